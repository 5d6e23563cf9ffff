//! The schedule: the state of every lane, and the rule that picks the next job.
//!
//! There are two kinds of jobs for a lane. *Read and encode*: one worker at a time reads its next block, and encodes it
//! while others read and encode the blocks after it. *Pack*: one worker at a time takes encoded blocks in reading order
//! and writes rows. The lane that is furthest behind goes first, so that the next batch is full before any other.

use std::collections::VecDeque;

use crate::lane::block::SampleBlock;
use crate::lane::reader::LARGEST_BLOCK_BYTES;
use crate::pack::Pause;

/// A piece of work for one worker.
#[derive(Debug)]
pub enum Job {
    /// Read a block of this lane, then encode it.
    ReadAndEncode { lane: usize },
    /// Pack this lane, after adding this block.
    Pack { lane: usize, block: Option<SampleBlock> },
}

impl Job {
    /// The lane it is on.
    pub fn lane(&self) -> usize {
        let (Self::ReadAndEncode { lane } | Self::Pack { lane, .. }) = self;
        *lane
    }
}

/// The state of every lane, behind one lock, which is taken a few times per block.
pub struct Schedule {
    lanes: Vec<LaneWork>,
    /// Lanes may write steps below this one.
    open_until: u64,
    /// Blocks of a lane that may be read and not yet packed.
    read_ahead: usize,
}

struct LaneWork {
    /// The step that it writes next.
    step: u64,
    reading: bool,
    read_all: bool,
    packing: bool,
    pause: Pause,
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
    ReadAndEncode,
    Pack,
}

impl Schedule {
    /// All lanes at the start; `steps` are those they write first.
    pub fn new(steps: impl Iterator<Item = u64>, open_until: u64, threads: usize) -> Self {
        let lanes: Vec<LaneWork> = steps
            .map(|step| LaneWork {
                step,
                reading: false,
                read_all: false,
                packing: false,
                pause: Pause::Starved,
                blocks: VecDeque::new(),
                bytes: 0,
                first: 0,
            })
            .collect();
        // Enough for two blocks per worker, however few lanes there are.
        let read_ahead = 1 + (2 * threads).div_ceil(lanes.len());
        Self { lanes, open_until, read_ahead }
    }

    /// Takes the most urgent work that can be done now.
    pub fn take(&mut self) -> Option<Job> {
        let (lane, kind) = self.pick()?;
        let state = &mut self.lanes[lane];
        Some(match kind {
            Kind::ReadAndEncode => {
                state.reading = true;
                Job::ReadAndEncode { lane }
            }
            Kind::Pack => {
                state.packing = true;
                // A block is added only once the lane has used up the ones before.
                let block = if state.pause == Pause::Starved { state.next_block() } else { None };
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
            } else if lane.can_read(self.read_ahead) {
                ((lane.step, 1 + lane.blocks.len()), Kind::ReadAndEncode)
            } else {
                continue;
            };
            if best.as_ref().is_none_or(|(least, ..)| urgency < *least) {
                best = Some((urgency, index, kind));
            }
        }
        best.map(|(_, lane, kind)| (lane, kind))
    }

    /// A block of `lane` with `bytes` of text was read. Returns its number, for [`block_encoded`](Self::block_encoded).
    pub fn block_read(&mut self, lane: usize, bytes: usize, read_all: bool) -> u64 {
        let lane = &mut self.lanes[lane];
        lane.reading = false;
        lane.read_all |= read_all;
        lane.bytes += bytes;
        lane.blocks.push_back(Ahead { bytes, block: None });
        lane.first + lane.blocks.len() as u64 - 1
    }

    /// A block of `lane` was encoded.
    pub fn block_encoded(&mut self, lane: usize, number: u64, block: SampleBlock) {
        let LaneWork { blocks, first, .. } = &mut self.lanes[lane];
        // A lane that has stopped in the meantime has dropped its blocks.
        if let Some(ahead) = number.checked_sub(*first).and_then(|index| blocks.get_mut(index as usize)) {
            ahead.block = Some(block);
        }
    }

    /// `lane` was packed up to `step`.
    pub fn lane_packed(&mut self, lane: usize, pause: Pause, step: u64) {
        let lane = &mut self.lanes[lane];
        lane.packing = false;
        lane.pause = pause;
        lane.step = step;
        if pause == Pause::Stopped {
            lane.read_all = true;
            lane.first += lane.blocks.len() as u64;
            lane.blocks.clear();
            lane.bytes = 0;
        }
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
                Pause::Starved => self.blocks.front().is_some_and(|ahead| ahead.block.is_some()),
                Pause::NoRoom => true,
                Pause::Stopped => false,
            }
    }

    /// Bytes count as well as blocks, since a block's last document may be of any size. A lane without a block may
    /// always read one, or it would stall.
    fn can_read(&self, read_ahead: usize) -> bool {
        !self.reading
            && !self.read_all
            && self.blocks.len() < read_ahead
            && self.bytes < read_ahead * LARGEST_BLOCK_BYTES
    }

    fn next_block(&mut self) -> Option<SampleBlock> {
        let Ahead { bytes, block } = self.blocks.pop_front()?;
        self.first += 1;
        self.bytes -= bytes;
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_lane_drops_blocks_that_are_being_encoded() {
        let mut schedule = Schedule::new([0].into_iter(), 4, 2);
        assert!(matches!(schedule.take(), Some(Job::ReadAndEncode { lane: 0 })));
        let first = schedule.block_read(0, 9, false);
        assert!(matches!(schedule.take(), Some(Job::ReadAndEncode { lane: 0 })));
        let second = schedule.block_read(0, 9, false);
        assert!(matches!(schedule.take(), Some(Job::ReadAndEncode { lane: 0 })));
        schedule.block_encoded(0, first, SampleBlock::default());
        assert!(matches!(schedule.take(), Some(Job::Pack { lane: 0, block: Some(_) })));
        schedule.lane_packed(0, Pause::Stopped, 1);
        schedule.block_encoded(0, second, SampleBlock::default());
        let third = schedule.block_read(0, 9, false);
        schedule.block_encoded(0, third, SampleBlock::default());
        assert!(schedule.take().is_none());
    }

    #[test]
    fn furthest_behind_lane_goes_first_and_packs_before_it_reads() {
        let mut schedule = Schedule::new([3, 1, 1].into_iter(), 4, 1);
        let take = |schedule: &mut Schedule| match schedule.take() {
            Some(Job::ReadAndEncode { lane }) => format!("read {lane}"),
            Some(Job::Pack { lane, .. }) => format!("pack {lane}"),
            None => "none".into(),
        };
        assert_eq!([(); 2].map(|()| take(&mut schedule)), ["read 1", "read 2"]);
        let number = schedule.block_read(2, 9, false);
        schedule.block_encoded(2, number, SampleBlock::default());
        schedule.block_read(1, 9, false);
        // Lane 1 holds a block that is being encoded, and lane 2 then none.
        let expected = ["pack 2", "read 2", "read 1", "read 0"];
        assert_eq!(expected.map(|_| take(&mut schedule)), expected);
    }

    #[test]
    fn read_ahead_is_bounded_by_blocks_and_bytes_but_one_block_is_allowed() {
        let blocks_of = |bytes: usize| {
            let mut schedule = Schedule::new([0].into_iter(), 4, 2);
            let mut blocks = 0;
            while let Some(Job::ReadAndEncode { lane }) = schedule.take() {
                schedule.block_read(lane, bytes, false);
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
        let mut schedule = Schedule::new([0].into_iter(), 4, 2);
        for _ in 0..3 {
            assert!(matches!(schedule.take(), Some(Job::ReadAndEncode { lane: 0 })));
            let number = schedule.block_read(0, 100 * LARGEST_BLOCK_BYTES, false);
            assert!(schedule.take().is_none());
            schedule.block_encoded(0, number, SampleBlock::default());
            assert!(matches!(schedule.take(), Some(Job::Pack { lane: 0, block: Some(_) })));
            schedule.lane_packed(0, Pause::Starved, 0);
        }
    }
}
