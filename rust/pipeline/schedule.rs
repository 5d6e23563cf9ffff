//! The schedule: the state of every lane, and the rule that picks the next job.
//!
//! There are three kinds of jobs for a lane. *Read and encode*: one worker at a time reads the next block of one of its
//! sources, and encodes it while others read and encode the blocks after it. *Pack*: one worker at a time takes encoded
//! blocks in reading order and writes rows. *Decode*: any number of workers write the pixels of the images in a step's rows,
//! while the lane's packing waits. The lane that is furthest behind goes first, so that the next batch is full
//! before any other; of reading, the one that has tokens for the fewest steps. A source is read from when a lane first
//! needs it: one whose weight is 0 costs nothing.
//!
//! With windows, a lane gathers the next one while it delivers the one before. Otherwise all lanes would wait for each that
//! has delivered its own: `simulation` shows it. A lane holds no more by that than a whole window, the next one, since what
//! it gathers replaces what it has delivered.

use std::collections::VecDeque;

use crate::lane::block::SampleBlock;
use crate::lane::cursor::LARGEST_WINDOW_BYTES;
use crate::lane::reader::{LARGEST_BLOCK_BYTES, largest_block_bytes};
use crate::pack::Pause;
use crate::pack::pixels::PixelTask;
use crate::pack::queue::Supply;

/// A lane and the source that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feed {
    /// The lane, by its place among those of the host.
    pub lane: usize,
    /// The source.
    pub source: usize,
}

/// A piece of work for one worker.
#[derive(Debug)]
pub enum Job {
    /// Read a block, then encode it.
    ReadAndEncode { feed: Feed },
    /// Pack this lane, after adding this block of a source.
    Pack { lane: usize, block: Option<(usize, SampleBlock)> },
    /// Write some pixels of this lane's step.
    Decode { lane: usize, task: PixelTask },
}

impl Job {
    /// The feed that it works on; for packing the source may be any.
    pub fn feed(&self) -> Feed {
        match self {
            Self::ReadAndEncode { feed } => *feed,
            Self::Decode { lane, task } => {
                Feed { lane: *lane, source: task.image.as_ref().map_or(0, |image| image.source) }
            }
            Self::Pack { lane, block } => {
                Feed { lane: *lane, source: block.as_ref().map_or(0, |(source, _)| *source) }
            }
        }
    }
}

/// How far a lane was packed.
#[derive(Debug)]
pub struct Packed {
    /// Why it pauses.
    pub pause: Pause,
    /// The step that it writes next.
    pub step: u64,
    /// Pixels of that step that are to be written.
    pub pixels: Vec<PixelTask>,
    /// The supply of each source.
    pub supplies: Vec<Supply>,
}

/// The state of every lane, behind one lock, which is taken a few times per block.
pub struct Schedule {
    lanes: Vec<LaneWork>,
    /// Lanes may write steps below this one.
    open_until: u64,
    /// Blocks of a lane and source that may be read and not yet packed, and their bytes.
    read_ahead: usize,
    read_ahead_bytes: usize,
    /// Steps that all lanes have packed, together.
    steps: u64,
    /// One for each source.
    paces: Vec<Pace>,
}

/// How fast a source is used up, in all lanes.
#[derive(Default, Clone)]
struct Pace {
    /// Bytes of text that were encoded, and tokens of them.
    bytes: u64,
    tokens: u64,
    /// Tokens that were delivered.
    delivered: u64,
}

struct LaneWork {
    /// The step that it writes next.
    step: u64,
    packing: bool,
    pause: Pause,
    /// Pixels of the step that no worker has taken yet, the first ones last, and how many are being written.
    pixels: Vec<PixelTask>,
    decoding: usize,
    /// One for each source.
    feeds: Vec<FeedWork>,
}

#[derive(Default)]
struct FeedWork {
    /// Whether the lane has needed it.
    is_needed: bool,
    reading: bool,
    read_all: bool,
    /// Blocks that were read and not yet packed, in order.
    blocks: VecDeque<Ahead>,
    /// Bytes of their text.
    bytes: usize,
    /// Tokens of blocks that are encoded.
    tokens: usize,
    bytes_to_encode: usize,
    /// Number of the first of `blocks`.
    first: u64,
    /// The supply of its packing, and the tokens that its next window may have.
    supply: Supply,
    next_window: usize,
}

/// A block that was read ahead of the packing.
struct Ahead {
    bytes: usize,
    /// `None` while it is being encoded.
    block: Option<SampleBlock>,
}

/// Blocks of the largest size that a window has. Blocks of records that are all left out hold no tokens, and of rows that
/// were not read no bytes.
const MOST_GATHERED: usize = LARGEST_WINDOW_BYTES / LARGEST_BLOCK_BYTES;

/// How urgent work of a step is; of reading, with the blocks that were read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// Packing, or decoding images for it.
    Pack,
    /// Reading that packing waits for.
    ReadAwaited(usize),
    /// Reading ahead.
    Read(usize),
}

enum Kind {
    ReadAndEncode(usize),
    Pack,
    Decode,
}

impl Schedule {
    /// All lanes at the start, each with so many sources; `steps` are those they write first.
    pub fn new(steps: impl Iterator<Item = u64>, sources: usize, open_until: u64, threads: usize) -> Self {
        let lanes: Vec<LaneWork> = steps
            .map(|step| LaneWork {
                step,
                packing: false,
                // Packing finds which of several sources comes first.
                pause: if sources == 1 { Pause::Starved(0) } else { Pause::NoRoom },
                pixels: Vec::new(),
                decoding: 0,
                feeds: (0..sources)
                    .map(|_| FeedWork { is_needed: sources == 1, ..FeedWork::default() })
                    .collect(),
            })
            .collect();
        // Enough for two blocks per worker, however few lanes there are.
        let read_ahead = 1 + (2 * threads).div_ceil(lanes.len());
        let read_ahead_bytes = read_ahead * largest_block_bytes(sources);
        Self {
            lanes,
            open_until,
            read_ahead,
            read_ahead_bytes,
            steps: 0,
            paces: vec![Pace::default(); sources],
        }
    }

    /// Takes the most urgent work that can be done now.
    pub fn take(&mut self) -> Option<Job> {
        let (lane, kind) = self.pick()?;
        let state = &mut self.lanes[lane];
        Some(match kind {
            Kind::ReadAndEncode(source) => {
                state.feeds[source].reading = true;
                Job::ReadAndEncode { feed: Feed { lane, source } }
            }
            Kind::Decode => {
                let task = state.pixels.pop()?;
                state.decoding += 1;
                Job::Decode { lane, task }
            }
            Kind::Pack => {
                state.packing = true;
                // A block is added only once the lane has used up the ones before.
                let block = match state.pause {
                    Pause::Starved(source) => state.feeds[source].next_block().map(|block| (source, block)),
                    Pause::NoRoom | Pause::Pixels | Pause::Stopped => None,
                };
                Job::Pack { lane, block }
            }
        })
    }

    /// Whether there is work that could be taken now.
    pub fn has_work(&self) -> bool {
        self.pick().is_some()
    }

    fn pick(&self) -> Option<(usize, Kind)> {
        let mut best: Option<((u64, Urgency), usize, Kind)> = None;
        for (index, lane) in self.lanes.iter().enumerate() {
            let (urgency, kind) = if lane.can_pack(self.open_until) {
                ((lane.step, Urgency::Pack), Kind::Pack)
            } else if !lane.pixels.is_empty() {
                ((lane.step, Urgency::Pack), Kind::Decode)
            } else if let Some((urgency, source)) = self.next_to_read(lane) {
                (urgency, Kind::ReadAndEncode(source))
            } else {
                continue;
            };
            if best.as_ref().is_none_or(|(least, ..)| urgency < *least) {
                best = Some((urgency, index, kind));
            }
        }
        best.map(|(_, lane, kind)| (lane, kind))
    }

    /// The source of which a lane reads next, and how urgent that is: the one that packing waits for, or else that which it
    /// uses up first.
    fn next_to_read(&self, lane: &LaneWork) -> Option<((u64, Urgency), usize)> {
        let urgency = |(source, feed): (usize, &FeedWork)| {
            let held = feed.supply.left + feed.supply.gathered + feed.tokens_ahead(&self.paces[source]);
            let blocks = feed.blocks.len();
            let may_read_ahead = blocks < self.read_ahead && feed.bytes < self.read_ahead_bytes;
            let may_gather = held < feed.next_window
                && feed.bytes < LARGEST_WINDOW_BYTES
                && blocks < MOST_GATHERED + self.read_ahead;
            if !feed.can_read() || !(may_read_ahead || may_gather) {
                return None;
            }
            let waits = lane.pause == Pause::Starved(source);
            // Tokens gathered of a window are of no use before all of it is there.
            let is_starved = waits && (blocks == 0 || feed.supply.gathered > 0);
            let steps = if is_starved { 0 } else { self.steps_of(source, held).unwrap_or(blocks as u64) };
            let urgency = if waits { Urgency::ReadAwaited(blocks) } else { Urgency::Read(blocks) };
            Some(((lane.step + steps, urgency), source))
        };
        lane.feeds.iter().enumerate().filter_map(urgency).min()
    }

    /// For how many steps of a lane so many tokens of a source are enough.
    fn steps_of(&self, source: usize, tokens: usize) -> Option<u64> {
        (tokens as u64 * self.steps).checked_div(self.paces[source].delivered)
    }

    /// A block with `bytes` of text was read. Returns its number, for [`block_encoded`](Self::block_encoded).
    pub fn block_read(&mut self, feed: Feed, bytes: usize, read_all: bool) -> u64 {
        let feed = &mut self.lanes[feed.lane].feeds[feed.source];
        feed.reading = false;
        feed.read_all |= read_all;
        feed.bytes += bytes;
        feed.bytes_to_encode += bytes;
        feed.blocks.push_back(Ahead { bytes, block: None });
        feed.first + feed.blocks.len() as u64 - 1
    }

    /// A block was encoded.
    pub fn block_encoded(&mut self, feed: Feed, number: u64, block: SampleBlock) {
        let pace = &mut self.paces[feed.source];
        let feed = &mut self.lanes[feed.lane].feeds[feed.source];
        // A lane that has stopped in the meantime has dropped its blocks.
        let index = number.checked_sub(feed.first);
        if let Some(ahead) = index.and_then(|index| feed.blocks.get_mut(index as usize)) {
            pace.bytes += ahead.bytes as u64;
            pace.tokens += block.ids.len() as u64;
            feed.bytes_to_encode -= ahead.bytes;
            feed.tokens += block.ids.len();
            ahead.block = Some(block);
        }
    }

    /// A lane was packed.
    pub fn lane_packed(&mut self, lane: usize, packed: Packed) {
        let Packed { pause, step, mut pixels, supplies } = packed;
        let lane = &mut self.lanes[lane];
        self.steps += step - lane.step;
        for ((feed, pace), supply) in lane.feeds.iter_mut().zip(&mut self.paces).zip(supplies) {
            let held = feed.supply.left + feed.supply.gathered;
            pace.delivered += (held as u64).saturating_sub((supply.left + supply.gathered) as u64);
            feed.supply = supply;
            feed.next_window = if supply.next > 0 { supply.next } else { feed.next_window };
        }
        lane.packing = false;
        lane.pause = pause;
        lane.step = step;
        pixels.reverse();
        lane.pixels = pixels;
        match pause {
            Pause::Starved(source) => lane.feeds[source].is_needed = true,
            Pause::NoRoom | Pause::Pixels => {}
            Pause::Stopped => lane.feeds.iter_mut().for_each(FeedWork::stop),
        }
    }

    /// Some pixels of a lane's step were written.
    pub fn pixels_written(&mut self, lane: usize) {
        self.lanes[lane].decoding -= 1;
    }

    /// The consumer took a slot: lanes may write steps below `open_until`.
    pub fn slot_taken(&mut self, open_until: u64) {
        self.open_until = open_until;
    }
}

impl LaneWork {
    fn can_pack(&self, open_until: u64) -> bool {
        !self.packing
            && self.step < open_until
            && match self.pause {
                Pause::Starved(source) => {
                    self.feeds[source].blocks.front().is_some_and(|ahead| ahead.block.is_some())
                }
                Pause::NoRoom => true,
                Pause::Pixels => self.pixels.is_empty() && self.decoding == 0,
                Pause::Stopped => false,
            }
    }
}

impl FeedWork {
    fn can_read(&self) -> bool {
        self.is_needed && !self.reading && !self.read_all
    }

    /// Tokens of the blocks that were read ahead; of those that are being encoded, about.
    fn tokens_ahead(&self, pace: &Pace) -> usize {
        let encoding = (self.bytes_to_encode as u64 * pace.tokens).checked_div(pace.bytes);
        self.tokens + encoding.unwrap_or(0) as usize
    }

    fn next_block(&mut self) -> Option<SampleBlock> {
        let Ahead { bytes, block } = self.blocks.pop_front()?;
        let block = block?;
        self.first += 1;
        self.bytes -= bytes;
        self.tokens -= block.ids.len();
        self.supply.gathered += block.ids.len();
        Some(block)
    }

    fn stop(&mut self) {
        self.read_all = true;
        self.first += self.blocks.len() as u64;
        self.blocks.clear();
        (self.bytes, self.tokens, self.bytes_to_encode) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(lane: usize) -> Feed {
        Feed { lane, source: 0 }
    }

    fn packed(pause: Pause, step: u64) -> Packed {
        Packed { pause, step, pixels: Vec::new(), supplies: vec![Supply::default()] }
    }

    #[test]
    fn stopped_lane_drops_blocks_that_are_being_encoded() {
        let mut schedule = Schedule::new([0].into_iter(), 1, 4, 2);
        assert!(matches!(schedule.take(), Some(Job::ReadAndEncode { feed: Feed { lane: 0, .. } })));
        let first = schedule.block_read(feed(0), 9, false);
        assert!(matches!(schedule.take(), Some(Job::ReadAndEncode { feed: Feed { lane: 0, .. } })));
        let second = schedule.block_read(feed(0), 9, false);
        assert!(matches!(schedule.take(), Some(Job::ReadAndEncode { feed: Feed { lane: 0, .. } })));
        schedule.block_encoded(feed(0), first, SampleBlock::default());
        assert!(matches!(schedule.take(), Some(Job::Pack { lane: 0, block: Some(_) })));
        schedule.lane_packed(0, packed(Pause::Stopped, 1));
        schedule.block_encoded(feed(0), second, SampleBlock::default());
        let third = schedule.block_read(feed(0), 9, false);
        schedule.block_encoded(feed(0), third, SampleBlock::default());
        assert!(schedule.take().is_none());
    }

    #[test]
    fn furthest_behind_lane_goes_first_and_packs_before_it_reads() {
        let mut schedule = Schedule::new([3, 1, 1].into_iter(), 1, 4, 1);
        let take = |schedule: &mut Schedule| match schedule.take() {
            Some(Job::ReadAndEncode { feed }) => format!("read {}", feed.lane),
            Some(Job::Pack { lane, .. }) => format!("pack {lane}"),
            Some(Job::Decode { lane, .. }) => format!("decode {lane}"),
            None => "none".into(),
        };
        assert_eq!([(); 2].map(|()| take(&mut schedule)), ["read 1", "read 2"]);
        let number = schedule.block_read(feed(2), 9, false);
        schedule.block_encoded(feed(2), number, SampleBlock::default());
        schedule.block_read(feed(1), 9, false);
        // Lane 1 holds a block that is being encoded, and lane 2 then none.
        let expected = ["pack 2", "read 2", "read 1", "read 0"];
        assert_eq!(expected.map(|_| take(&mut schedule)), expected);
    }

    #[test]
    fn read_ahead_is_bounded_by_blocks_and_bytes_but_one_block_is_allowed() {
        let blocks_of = |bytes: usize| {
            let mut schedule = Schedule::new([0].into_iter(), 1, 4, 2);
            let mut blocks = 0;
            while let Some(Job::ReadAndEncode { feed }) = schedule.take() {
                schedule.block_read(feed, bytes, false);
                blocks += 1;
            }
            blocks
        };
        assert_eq!([0, 1, LARGEST_BLOCK_BYTES].map(blocks_of), [5; 3]);
        assert_eq!(blocks_of(2 * LARGEST_BLOCK_BYTES), 3);
        assert_eq!(blocks_of(100 * LARGEST_BLOCK_BYTES), 1);
    }

    #[test]
    fn blocks_without_tokens_and_bytes_are_not_gathered_without_end() {
        let mut schedule = Schedule::new([0].into_iter(), 1, 4, 2);
        assert!(matches!(schedule.take(), Some(Job::ReadAndEncode { .. })));
        let number = schedule.block_read(feed(0), 9, false);
        schedule.block_encoded(feed(0), number, SampleBlock::default());
        while let Some(job) = schedule.take() {
            if matches!(job, Job::Pack { .. }) {
                let supplies = vec![Supply { next: 100, left: 50, gathered: 0 }];
                schedule
                    .lane_packed(0, Packed { pause: Pause::NoRoom, step: 4, pixels: Vec::new(), supplies });
            } else {
                let number = schedule.block_read(feed(0), 0, false);
                schedule.block_encoded(feed(0), number, SampleBlock::default());
            }
        }
        assert_eq!(schedule.lanes[0].feeds[0].blocks.len(), MOST_GATHERED + schedule.read_ahead);
    }

    #[test]
    fn packed_block_makes_room_for_the_next() {
        let mut schedule = Schedule::new([0].into_iter(), 1, 4, 2);
        for _ in 0..3 {
            assert!(matches!(schedule.take(), Some(Job::ReadAndEncode { feed: Feed { lane: 0, .. } })));
            let number = schedule.block_read(feed(0), 100 * LARGEST_BLOCK_BYTES, false);
            assert!(schedule.take().is_none());
            schedule.block_encoded(feed(0), number, SampleBlock::default());
            assert!(matches!(schedule.take(), Some(Job::Pack { lane: 0, block: Some(_) })));
            schedule.lane_packed(0, packed(Pause::Starved(0), 0));
        }
    }

    #[test]
    fn sources_are_read_once_a_lane_needs_them_and_the_awaited_one_first() {
        let mut schedule = Schedule::new([0].into_iter(), 3, 4, 1);
        let source = |job: Option<Job>| match job {
            Some(Job::ReadAndEncode { feed }) => Some(feed.source),
            _ => None,
        };
        assert!(matches!(schedule.take(), Some(Job::Pack { lane: 0, block: None })));
        schedule.lane_packed(0, packed(Pause::Starved(2), 0));
        assert_eq!(source(schedule.take()), Some(2));
        assert!(schedule.take().is_none());
        let feed = Feed { lane: 0, source: 2 };
        let number = schedule.block_read(feed, 9, false);
        schedule.block_encoded(feed, number, SampleBlock::default());
        assert!(matches!(schedule.take(), Some(Job::Pack { lane: 0, block: Some((2, _)) })));
        schedule.lane_packed(0, packed(Pause::Starved(0), 0));
        assert_eq!([source(schedule.take()), source(schedule.take())], [Some(0), Some(2)]);
        assert!(schedule.take().is_none());
    }
}
