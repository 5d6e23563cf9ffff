//! The reading end of a lane: the raw records of its shards in stream order, epoch after epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::assignment::Assignment;
use super::block::{BadRecord, RawBlock, RawEntry, ReadEnd, ShardEnd};
use super::carried::Carried;
use super::cursor::{Cursor, RecordPosition};
use super::joined_shard::{JoinedShard, Read, Wanted};
use crate::codec::crc_of;
use crate::error::{Error, Result};
use crate::format::{AfterError, GroupImages, Position, ReadError};
use crate::spec::SourceSpec;

/// Bytes of records in the first block: few, so that the first batch arrives soon. Each further one is twice the size.
const FIRST_BLOCK_BYTES: usize = 32 << 10;
/// The most bytes of records in a block, not counting its last one: at this size, the cost of scheduling a block is
/// negligible next to that of encoding it.
pub const LARGEST_BLOCK_BYTES: usize = 512 << 10;
/// The most records in a block, for shards of very short or bad ones: the error of a bad one takes more memory than it.
const LARGEST_BLOCK_RECORDS: usize = 4 << 10;
/// The most shards that end in a block: each is a request where it is in a store, and the first batch waits for all of
/// them. Thousands of shards of a few lines had filled no block.
const MOST_SHARDS_OF_BLOCK: usize = 16;

/// The most bytes of records in a block of a lane with so many sources, which take turns: half of it halves the memory,
/// and costs five sources 3 % of processor time beside one; a fifth of it would cost 5 %.
pub fn largest_block_bytes(sources: usize) -> usize {
    if sources == 1 { LARGEST_BLOCK_BYTES } else { LARGEST_BLOCK_BYTES / 2 }
}

/// Reads a lane's records in stream order. Whether they are valid is found later: see [`Admission`].
///
/// [`Admission`]: super::admission::Admission
pub struct LaneReader {
    spec: Arc<SourceSpec>,
    lane: usize,
    /// This epoch's shards: the plan, which all lanes share behind a lock, is asked once per epoch.
    assignment: Arc<Assignment>,
    /// The next record to read.
    position: RecordPosition,
    /// The shard of `position`.
    shard: OpenShard,
    /// The visit of an open shard in a store: its bytes may be fetched again.
    visit: Option<Visit>,
    pub(crate) block_bytes: usize,
    largest_block_bytes: usize,
    /// Set when the consumer no longer waits: reading then ends soon.
    stop: Arc<AtomicBool>,
    /// The records that were delivered before a border.
    carried: Option<Arc<Carried>>,
    done: bool,
}

enum OpenShard {
    /// To be opened at `position`.
    Unopened,
    Open(Box<JoinedShard>),
    /// It cannot be opened.
    Lost,
}

/// The stretch of an open shard that was read. Its records are not kept, so their checksum is compared when they are
/// read again.
#[derive(Clone, Copy)]
struct Visit {
    /// Where it was opened.
    start: RecordPosition,
    mark: Mark,
    /// The record at which damage was found last.
    damage: Option<u64>,
}

/// The start of a block, or of the shard in it: what was read from there on has not been returned.
#[derive(Clone, Copy, Default)]
struct Mark {
    position: RecordPosition,
    /// The checksum of all records of the visit before it.
    crc: u32,
    /// The mark of their images.
    images: u32,
    /// The number of entries in the block.
    entries: usize,
    bytes: usize,
    sidecars: usize,
}

impl Visit {
    fn new(start: RecordPosition, block: &RawBlock) -> Self {
        let RawBlock { entries, bytes, sidecars, .. } = block;
        let (entries, bytes, sidecars) = (entries.len(), bytes.len(), sidecars.len());
        Self {
            start,
            mark: Mark { position: start, entries, bytes, sidecars, ..Mark::default() },
            damage: None,
        }
    }
}

/// The checksum of images behind others with this one.
fn crc_of_images(crc: u32, images: &GroupImages) -> u32 {
    images.images.iter().fold(crc, |crc, image| crc_of(crc, format!("{image:?}").as_bytes()))
}

/// The kind of item that was read.
enum Step {
    Entry,
    ShardEnd,
}

impl LaneReader {
    /// The records of `lane` from `cursor` on.
    pub fn new(spec: Arc<SourceSpec>, lane: usize, cursor: &Cursor) -> Self {
        let position = cursor.window;
        Self {
            assignment: spec.plan.epoch(position.epoch),
            spec,
            lane,
            position,
            shard: OpenShard::Unopened,
            visit: None,
            block_bytes: FIRST_BLOCK_BYTES,
            largest_block_bytes: LARGEST_BLOCK_BYTES,
            stop: Arc::default(),
            carried: None,
            done: false,
        }
    }

    /// Makes its blocks as large as suits a lane with so many sources.
    #[must_use]
    pub fn beside_others(mut self, sources: usize) -> Self {
        self.largest_block_bytes = largest_block_bytes(sources);
        self
    }

    /// Marks the records that were delivered before a border.
    #[must_use]
    pub fn carrying(mut self, carried: Option<&Arc<Carried>>) -> Self {
        self.carried = carried.cloned();
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
        block.carried = self.carried.clone().filter(|carried| carried.is_ahead_of(self.position));
        if let Some(visit) = &mut self.visit {
            let Mark { crc, images, .. } = visit.mark;
            visit.mark = Mark { position: self.position, crc, images, ..Mark::default() };
        }
        block.end = self.fill(block).unwrap_or_else(ReadEnd::Failed);
        if let Some(visit) = &mut self.visit {
            let mark = &mut visit.mark;
            mark.crc = crc_of(mark.crc, &block.bytes[mark.bytes..]);
            for entry in &block.entries[mark.entries..] {
                if let RawEntry::Record { images: Some(images), .. } = entry {
                    mark.images = crc_of_images(mark.images, images);
                }
            }
        }
        self.done = !matches!(block.end, ReadEnd::More);
        self.block_bytes = (self.block_bytes * 2).min(self.largest_block_bytes);
    }

    fn fill(&mut self, block: &mut RawBlock) -> Result<ReadEnd> {
        let mut shards = 0;
        while block.bytes.len() < self.block_bytes
            && block.entries.len() < LARGEST_BLOCK_RECORDS
            && shards < MOST_SHARDS_OF_BLOCK
        {
            let RecordPosition { epoch, .. } = self.position;
            if self.spec.epochs.is_some_and(|epochs| epoch >= epochs) {
                return Ok(ReadEnd::Ended);
            }
            if let Step::ShardEnd = self.next(block)? {
                let shard = self.shard_index();
                self.next_shard();
                block.entries.push(RawEntry::ShardEnd(ShardEnd { shard, next: self.position }));
                shards += 1;
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
        self.visit = None;
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
                Ok(files) => {
                    self.shard = OpenShard::Open(Box::new(files));
                    let is_remote = self.spec.shards[shard as usize].is_remote();
                    self.visit = is_remote.then(|| Visit::new(self.position, block));
                }
                Err(Error::Shard(error)) => {
                    self.shard = OpenShard::Lost;
                    self.visit = None;
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
            Ok(Read::Dropped) => {
                let position = RecordPosition { record: next.record - 1, ..self.position };
                let is_carried = block.carried.as_ref().is_some_and(|carried| carried.has_record(position));
                block.entries.push(if is_carried {
                    RawEntry::Carried(next)
                } else {
                    RawEntry::Dropped(next)
                });
            }
            Ok(Read::Record { kind, position: Position { record, byte }, length, images }) => {
                let start = self.position;
                // A state may be inside of the first record.
                let is_inside = (start.record, start.byte) == (record, byte);
                let position = if is_inside { start } else { start.at(Position { record, byte }) };
                block.entries.push(RawEntry::Record { kind, position, shard, next, length, images });
            }
            Err(ReadError { error, rest: after }) => {
                if after == AfterError::Lost && self.is_good_again(block)? {
                    return Ok(Step::Entry);
                }
                self.unreadable(block, BadRecord { error, after, shard, next })?;
            }
        }
        self.position = self.position.at(next);
        Ok(Step::Entry)
    }

    fn unreadable(&self, block: &mut RawBlock, bad: BadRecord) -> Result<Step> {
        if self.stop.load(Ordering::Relaxed) {
            // The error may be an effect of the stop, not damage.
            return Err(Error::Closed);
        }
        if let Some(outage) = self.spec.read.access.outage() {
            return Err(outage);
        }
        block.entries.push(RawEntry::Unreadable(bad));
        Ok(Step::Entry)
    }

    /// The index in the manifest of the shard of `position`.
    fn shard_index(&self) -> u32 {
        self.assignment[self.lane][self.position.shard as usize]
    }

    /// Fetches a shard in a store once more, if it was found to be damaged where it was not before, and continues
    /// at the start of the block. False: it is no better, or was not fetched.
    fn is_good_again(&mut self, block: &mut RawBlock) -> Result<bool> {
        let found = self.position.record;
        let Some(visit) = self.visit.filter(|visit| visit.damage.is_none_or(|before| before < found)) else {
            return Ok(false);
        };
        if !self.may_be_fetched_again() {
            return Ok(false);
        }
        let Ok(mut files) = self.open_at(visit.start) else { return Ok(false) };
        if !self.reads_as_before(&mut files, &visit.mark) {
            let name = self.spec.shards[self.shard_index() as usize].name();
            return Err(Error::System(format!(
                "{name}: expected the records that were read before, found others when it was fetched again: bytes \
                 arrived damaged, and some of records {} to {} are wrong; continue from a state that was saved before \
                 them",
                visit.start.record, visit.mark.position.record
            )));
        }
        let Mark { position, entries, bytes, sidecars, .. } = visit.mark;
        block.entries.truncate(entries);
        block.bytes.truncate(bytes);
        block.sidecars.truncate(sidecars);
        self.position = position;
        self.shard = OpenShard::Open(Box::new(files));
        self.visit = Some(Visit { damage: Some(found), ..visit });
        Ok(true)
    }

    /// Reads a shard up to a mark; whether these are the records that were read before.
    fn reads_as_before(&self, files: &mut JoinedShard, mark: &Mark) -> bool {
        let (mut bytes, mut sidecars) = (Vec::new(), Vec::new());
        let (mut crc, mut crc_images) = (0, 0);
        while files.position().record < mark.position.record {
            match files.next(&self.spec.sidecars, &mut bytes, &mut sidecars) {
                Ok(Read::Record { images: Some(images), .. }) => {
                    crc_images = crc_of_images(crc_images, &images);
                }
                Ok(Read::Record { .. } | Read::Dropped)
                | Err(ReadError { rest: AfterError::Readable, .. }) => {}
                Ok(Read::End) | Err(_) => return false,
            }
            crc = crc_of(crc, &bytes);
            bytes.clear();
            sidecars.clear();
        }
        (crc, crc_images) == (mark.crc, mark.images)
    }

    fn open(&self) -> Result<JoinedShard> {
        let lane = &self.assignment[self.lane];
        if let Some(next) = lane.get(self.position.shard as usize + 1) {
            let shards = &self.spec.shards;
            self.spec.read.access.announce(&shards[self.shard_index() as usize], &shards[*next as usize]);
        }
        match self.open_at(self.position) {
            Err(Error::Shard(_)) if self.may_be_fetched_again() => self.open_at(self.position),
            opened => opened,
        }
    }

    /// Whether the shard is in a store that has it and answers; says so in the log.
    fn may_be_fetched_again(&self) -> bool {
        let (shard, access) = (&self.spec.shards[self.shard_index() as usize], &self.spec.read.access);
        let may = !self.stop.load(Ordering::Relaxed) && access.outage().is_none() && access.holds(shard);
        if may {
            access.forget(shard);
            let (name, record) = (shard.name(), self.position.record);
            access.note(&format!("{name}: damaged at record {record}; fetching it once more"));
        }
        may
    }

    fn open_at(&self, position: RecordPosition) -> Result<JoinedShard> {
        let SourceSpec { shards, read, sidecars, drop, .. } = &*self.spec;
        let index = self.shard_index() as usize;
        let position = Position { record: position.record, byte: position.byte };
        JoinedShard::open_at(&shards[index], index, Wanted { read, sidecars, drop }, position, &self.stop)
    }
}
