//! The reading end of a lane: the raw records of its shards in stream order, epoch after epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::assignment::Assignment;
use super::block::{BadRecord, RawBlock, RawEntry, ReadEnd, ShardEnd};
use super::cursor::{Cursor, RecordPosition};
use super::joined_shard::{JoinedShard, Read, Wanted};
use crate::error::{Error, Result};
use crate::format::{AfterError, Position, ReadError};
use crate::spec::StreamSpec;

/// Bytes of records in the first block: few, so that the first batch arrives soon. Each further one is twice the size.
const FIRST_BLOCK_BYTES: usize = 32 << 10;
/// The most bytes of records in a block, not counting its last one: at this size, the cost of scheduling a block is
/// negligible next to that of encoding it.
pub const LARGEST_BLOCK_BYTES: usize = 512 << 10;
/// The most records in a block, for shards of very short or bad ones: the error of a bad one takes more memory than it.
const LARGEST_BLOCK_RECORDS: usize = 4 << 10;

/// The most bytes of records in a block of a lane with so many sources, which take turns: half of it halves the memory,
/// and costs five sources 3 % of processor time beside one; a fifth of it would cost 5 %.
pub fn largest_block_bytes(sources: usize) -> usize {
    if sources == 1 { LARGEST_BLOCK_BYTES } else { LARGEST_BLOCK_BYTES / 2 }
}

/// Reads a lane's records in stream order. Which of them are valid is found later: see [`Admission`].
///
/// [`Admission`]: super::admission::Admission
pub struct LaneReader {
    spec: Arc<StreamSpec>,
    lane: usize,
    /// This epoch's shards: the plan, which all lanes share behind a lock, is asked once per epoch.
    assignment: Arc<Assignment>,
    /// The next record to read.
    position: RecordPosition,
    /// The shard of `position`.
    shard: OpenShard,
    pub(crate) block_bytes: usize,
    largest_block_bytes: usize,
    /// Set when the consumer no longer waits: reading then ends soon.
    stop: Arc<AtomicBool>,
    done: bool,
}

enum OpenShard {
    /// To be opened at `position`.
    Unopened,
    Open(Box<JoinedShard>),
    /// It cannot be opened.
    Lost,
}

/// The kind of item that was read.
enum Step {
    Entry,
    ShardEnd,
}

impl LaneReader {
    /// The records of `lane` from `cursor` on.
    pub fn new(spec: Arc<StreamSpec>, lane: usize, cursor: &Cursor) -> Self {
        let position = cursor.window;
        Self {
            assignment: spec.plan.epoch(position.epoch),
            spec,
            lane,
            position,
            shard: OpenShard::Unopened,
            block_bytes: FIRST_BLOCK_BYTES,
            largest_block_bytes: LARGEST_BLOCK_BYTES,
            stop: Arc::default(),
            done: false,
        }
    }

    /// Makes its blocks as large as suits a lane with so many sources.
    #[must_use]
    pub fn beside_others(mut self, sources: usize) -> Self {
        self.largest_block_bytes = largest_block_bytes(sources);
        self
    }

    /// Makes reading end with an error soon after `stop` is set.
    #[must_use]
    pub fn stopped_by(mut self, stop: &Arc<AtomicBool>) -> Self {
        self.stop = Arc::clone(stop);
        self
    }

    /// How far it has read, for an error message: also where nothing about it is sure, after a panic.
    pub fn describe_position(&self) -> String {
        let RecordPosition { epoch, shard, record, .. } = self.position;
        let shard = self.assignment.get(self.lane).and_then(|lane| lane.get(shard as usize));
        let position = match shard.and_then(|shard| self.spec.shards.get(*shard as usize)) {
            Some(shard) => format!("record {record} of {} in epoch {epoch}", shard.name()),
            None => format!("the end of epoch {epoch}"),
        };
        format!("lane {}, read up to {position}", self.lane)
    }

    /// Whether the last block was read.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Replaces the content of `block` with the next block.
    pub fn read(&mut self, block: &mut RawBlock) {
        block.clear();
        block.end = self.fill(block).unwrap_or_else(ReadEnd::Failed);
        self.done = !matches!(block.end, ReadEnd::More);
        self.block_bytes = (self.block_bytes * 2).min(self.largest_block_bytes);
    }

    fn fill(&mut self, block: &mut RawBlock) -> Result<ReadEnd> {
        while block.bytes.len() < self.block_bytes && block.entries.len() < LARGEST_BLOCK_RECORDS {
            let RecordPosition { epoch, .. } = self.position;
            if self.spec.epochs.is_some_and(|epochs| epoch >= epochs) {
                return Ok(ReadEnd::Ended);
            }
            if let Step::ShardEnd = self.next(block)? {
                let shard = self.shard_index();
                self.next_shard();
                block.entries.push(RawEntry::ShardEnd(ShardEnd { shard, next: self.position }));
                // A block ends with its epoch: a lane of little text would otherwise be read thousands of times to
                // fill one.
                if self.position.epoch > epoch {
                    break;
                }
            }
        }
        Ok(ReadEnd::More)
    }

    /// Advances to the next shard, if necessary that of the next epoch.
    fn next_shard(&mut self) {
        self.shard = OpenShard::Unopened;
        let RecordPosition { epoch, shard, .. } = self.position;
        if shard + 1 < self.assignment[self.lane].len() as u64 {
            self.position = RecordPosition { epoch, shard: shard + 1, ..RecordPosition::default() };
        } else {
            self.position = RecordPosition { epoch: epoch + 1, ..RecordPosition::default() };
            self.assignment = self.spec.plan.epoch(epoch + 1);
        }
    }

    /// Reads one record of the current shard into the block.
    fn next(&mut self, block: &mut RawBlock) -> Result<Step> {
        let shard = self.shard_index();
        if let OpenShard::Unopened = self.shard {
            match self.open() {
                Ok(files) => self.shard = OpenShard::Open(Box::new(files)),
                Err(Error::Shard(error)) => {
                    self.shard = OpenShard::Lost;
                    let RecordPosition { record, byte, .. } = self.position;
                    let next = Position { record, byte };
                    return self.unreadable(block, BadRecord { error, after: AfterError::Lost, shard, next });
                }
                Err(error) => return Err(error),
            }
        }
        let OpenShard::Open(files) = &mut self.shard else { return Ok(Step::ShardEnd) };
        let read = files.next(&self.spec.sidecars, &mut block.bytes, &mut block.sidecars);
        let next = files.position();
        match read {
            Ok(Read::End) => return Ok(Step::ShardEnd),
            Ok(Read::Dropped) => block.entries.push(RawEntry::Dropped(next)),
            Ok(Read::Record { kind, position: Position { record, byte }, length }) => {
                let position = RecordPosition { record, byte, ..self.position };
                block.entries.push(RawEntry::Record { kind, position, shard, next, length });
            }
            Err(ReadError { error, rest: after }) => {
                self.unreadable(block, BadRecord { error, after, shard, next })?;
            }
        }
        self.position = RecordPosition { record: next.record, byte: next.byte, ..self.position };
        Ok(Step::Entry)
    }

    fn unreadable(&self, block: &mut RawBlock, bad: BadRecord) -> Result<Step> {
        if self.stop.load(Ordering::Relaxed) {
            // The error may be an effect of the stop, not damage.
            return Err(Error::Closed);
        }
        if let Some(outage) = self.spec.read.places.outage() {
            return Err(outage);
        }
        block.entries.push(RawEntry::Unreadable(bad));
        Ok(Step::Entry)
    }

    /// The index in the manifest of the shard of `position`.
    fn shard_index(&self) -> u32 {
        self.assignment[self.lane][self.position.shard as usize]
    }

    fn open(&self) -> Result<JoinedShard> {
        let StreamSpec { shards, read, sidecars, drop, .. } = &*self.spec;
        let index = self.shard_index() as usize;
        let position = Position { record: self.position.record, byte: self.position.byte };
        JoinedShard::open_at(&shards[index], index, Wanted { read, sidecars, drop }, position, &self.stop)
    }
}
