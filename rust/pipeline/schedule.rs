//! The schedule: the state of every lane, and the rule that picks the next job.
//!
//! There are three kinds of jobs for a lane. *Read and encode*: one worker at a time reads the next block of one of its
//! sources, and encodes it while others read and encode the blocks after it. *Pack*: one worker at a time takes encoded
//! blocks in reading order and writes rows. *Decode*: any number of workers write the pixels of the images in a step's rows,
//! while the lane's packing waits. The lane that is furthest behind goes first, so that the next batch is full
//! before any other. A source is read from when a lane first needs it: one whose weight is 0 costs nothing.

use std::collections::VecDeque;

use crate::lane::block::SampleBlock;
use crate::lane::reader::largest_block_bytes;
use crate::pack::Pause;
use crate::pack::pixels::PixelTask;

/// What a lane reads of one source.
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
    /// What it is on; of packing that may be any source.
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

/// The state of every lane, behind one lock, which is taken a few times per block.
pub struct Schedule {
    lanes: Vec<LaneWork>,
    /// Lanes may write steps below this one.
    open_until: u64,
    /// Blocks of a lane and source that may be read and not yet packed, and their bytes.
    read_ahead: usize,
    read_ahead_bytes: usize,
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
    /// Number of the first of `blocks`.
    first: u64,
}

/// A block that was read ahead of the packing.
struct Ahead {
    bytes: usize,
    /// `None` while it is being encoded.
    block: Option<SampleBlock>,
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
                // Which of several sources comes first is found by packing.
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
        Self { lanes, open_until, read_ahead, read_ahead_bytes }
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
        let mut best: Option<((u64, usize), usize, Kind)> = None;
        for (index, lane) in self.lanes.iter().enumerate() {
            let (urgency, kind) = if lane.can_pack(self.open_until) {
                ((lane.step, 0), Kind::Pack)
            } else if !lane.pixels.is_empty() {
                ((lane.step, 0), Kind::Decode)
            } else if let Some((blocks, source)) = self.next_to_read(lane) {
                ((lane.step, 1 + blocks), Kind::ReadAndEncode(source))
            } else {
                continue;
            };
            if best.as_ref().is_none_or(|(least, ..)| urgency < *least) {
                best = Some((urgency, index, kind));
            }
        }
        best.map(|(_, lane, kind)| (lane, kind))
    }

    /// The source of which a lane reads next, and how urgent that is: the one that packing waits for, or else that of
    /// which it has the fewest blocks.
    fn next_to_read(&self, lane: &LaneWork) -> Option<(usize, usize)> {
        let urgency = |(source, feed): (usize, &FeedWork)| {
            let waits = lane.feeds.len() == 1 || lane.pause == Pause::Starved(source);
            let can_read = feed.can_read(self.read_ahead, self.read_ahead_bytes);
            can_read.then(|| (feed.blocks.len().max(usize::from(!waits)), source))
        };
        lane.feeds.iter().enumerate().filter_map(urgency).min()
    }

    /// A block with `bytes` of text was read. Returns its number, for [`block_encoded`](Self::block_encoded).
    pub fn block_read(&mut self, feed: Feed, bytes: usize, read_all: bool) -> u64 {
        let feed = &mut self.lanes[feed.lane].feeds[feed.source];
        feed.reading = false;
        feed.read_all |= read_all;
        feed.bytes += bytes;
        feed.blocks.push_back(Ahead { bytes, block: None });
        feed.first + feed.blocks.len() as u64 - 1
    }

    /// A block was encoded.
    pub fn block_encoded(&mut self, feed: Feed, number: u64, block: SampleBlock) {
        let FeedWork { blocks, first, .. } = &mut self.lanes[feed.lane].feeds[feed.source];
        // A lane that has stopped in the meantime has dropped its blocks.
        if let Some(ahead) = number.checked_sub(*first).and_then(|index| blocks.get_mut(index as usize)) {
            ahead.block = Some(block);
        }
    }

    /// `lane` was packed up to `step`, of which some pixels are to be written.
    pub fn lane_packed(&mut self, lane: usize, pause: Pause, step: u64, mut pixels: Vec<PixelTask>) {
        let lane = &mut self.lanes[lane];
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
    /// Bytes count as well as blocks, since a block's last document may be of any size. A source without a block may
    /// always be read, or its lane would stall.
    fn can_read(&self, blocks: usize, bytes: usize) -> bool {
        self.is_needed && !self.reading && !self.read_all && self.blocks.len() < blocks && self.bytes < bytes
    }

    fn next_block(&mut self) -> Option<SampleBlock> {
        let Ahead { bytes, block } = self.blocks.pop_front()?;
        self.first += 1;
        self.bytes -= bytes;
        block
    }

    fn stop(&mut self) {
        self.read_all = true;
        self.first += self.blocks.len() as u64;
        self.blocks.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::reader::LARGEST_BLOCK_BYTES;

    fn feed(lane: usize) -> Feed {
        Feed { lane, source: 0 }
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
        schedule.lane_packed(0, Pause::Stopped, 1, Vec::new());
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
    fn packed_block_makes_room_for_the_next() {
        let mut schedule = Schedule::new([0].into_iter(), 1, 4, 2);
        for _ in 0..3 {
            assert!(matches!(schedule.take(), Some(Job::ReadAndEncode { feed: Feed { lane: 0, .. } })));
            let number = schedule.block_read(feed(0), 100 * LARGEST_BLOCK_BYTES, false);
            assert!(schedule.take().is_none());
            schedule.block_encoded(feed(0), number, SampleBlock::default());
            assert!(matches!(schedule.take(), Some(Job::Pack { lane: 0, block: Some(_) })));
            schedule.lane_packed(0, Pause::Starved(0), 0, Vec::new());
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
        schedule.lane_packed(0, Pause::Starved(2), 0, Vec::new());
        assert_eq!(source(schedule.take()), Some(2));
        assert!(schedule.take().is_none());
        let feed = Feed { lane: 0, source: 2 };
        let number = schedule.block_read(feed, 9, false);
        schedule.block_encoded(feed, number, SampleBlock::default());
        assert!(matches!(schedule.take(), Some(Job::Pack { lane: 0, block: Some((2, _)) })));
        schedule.lane_packed(0, Pause::Starved(0), 0, Vec::new());
        assert_eq!([source(schedule.take()), source(schedule.take())], [Some(0), Some(2)]);
        assert!(schedule.take().is_none());
    }
}
