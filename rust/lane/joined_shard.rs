//! An open shard: its records, those of its sidecars beside them, and the rows that are left out.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::sidecars::SidecarReaders;
use crate::error::{Result, ShardError};
use crate::format::{
    AfterError, GroupImages, Position, RawKind, RawRecord, ReadError, ReadOptions, RecordReader,
};
use crate::spec::rows::Rows;
use crate::spec::sidecars::Sidecars;
use crate::store::Shard;

/// The parts of a manifest's shards that are read.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The wanted columns of records.
    pub read: &'a Arc<ReadOptions>,
    /// The sidecars.
    pub sidecars: &'a Sidecars,
    /// The rows that are left out by their numbers.
    pub drop: &'a Arc<Rows>,
}

/// The records that were read of sidecars: for each record position and length of that of each sidecar; none where the
/// shard has none.
pub type Beside = Vec<Option<(Position, usize)>>;

/// The outcome of a read.
#[derive(Debug)]
pub enum Read {
    /// A record.
    Record {
        /// The meaning of its bytes.
        kind: RawKind,
        /// Where it is.
        position: Position,
        /// The number of its bytes.
        length: usize,
        /// Its images, if they are wanted.
        images: Option<Box<GroupImages>>,
    },
    /// A record that is left out.
    Dropped,
    /// Nothing: the shard has ended.
    End,
}

/// Reads the records of a shard in step with those of its sidecars.
pub struct JoinedShard {
    /// Its index in the manifest.
    index: usize,
    path: Arc<str>,
    reader: RecordReader,
    sidecars: SidecarReaders,
    dropped: DroppedRows,
    next: Position,
    is_lost: bool,
}

/// The rows of a shard that the row list leaves out, from the next record on.
struct DroppedRows {
    rows: Arc<Rows>,
    shard: usize,
    next: usize,
}

impl JoinedShard {
    /// Opens a shard, whose index in the manifest is given, at the record at `position`.
    pub fn open_at(
        shard: &Shard,
        index: usize,
        wanted: Wanted<'_>,
        position: Position,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        Ok(Self {
            index,
            path: Arc::clone(shard.name()),
            reader: RecordReader::open_at(shard, wanted.read, position, stop)?,
            sidecars: SidecarReaders::open(&wanted.sidecars.kinds, &shard.path, index, position, stop)?,
            dropped: DroppedRows::new(wanted.drop, index, position.record),
            next: position,
            is_lost: false,
        })
    }

    /// The next record, whose bytes are appended to `bytes`, before those of its sidecars. On error both are as they
    /// were; after one that loses the rest the next call finds the end.
    pub fn next(
        &mut self,
        wanted: &Sidecars,
        bytes: &mut Vec<u8>,
        beside: &mut Beside,
    ) -> Result<Read, ReadError> {
        if self.is_lost {
            return Ok(Read::End);
        }
        let read = match self.reader.next_raw() {
            Ok(None) => {
                let end = self.reader.position();
                if let Some(row) = self.dropped.behind(end.record) {
                    self.is_lost = true;
                    return Err(self.listed_behind(row, end));
                }
                return self
                    .sidecars
                    .end()
                    .map(|()| Read::End)
                    .map_err(|error| self.unjoined(wanted, &error, end));
            }
            Ok(Some(RawRecord { position, .. })) if self.dropped.contains(position.record) => {
                self.sidecars.pass(position.record);
                Read::Dropped
            }
            Ok(Some(RawRecord { kind, position, bytes: record, images })) => {
                let images = images.cloned().map(Box::new);
                let before = bytes.len();
                bytes.extend_from_slice(record);
                let length = record.len();
                if let Err(error) = self.sidecars.read(position.record, bytes, beside) {
                    bytes.truncate(before);
                    return Err(self.unjoined(wanted, &error, position));
                }
                Read::Record { kind, position, length, images }
            }
            Err(ReadError { error, rest }) => {
                let record = error.record.filter(|_| rest == AfterError::Readable);
                if let Some(record) = record {
                    self.sidecars.pass(record);
                }
                if !record.is_some_and(|record| self.dropped.contains(record)) {
                    self.is_lost = rest == AfterError::Lost;
                    self.next = self.reader.position();
                    return Err(ReadError { error, rest });
                }
                Read::Dropped
            }
        };
        self.next = self.reader.position();
        Ok(read)
    }

    /// The position after what was read. Where a sidecar loses the rest, that of the first record which is lost.
    pub fn position(&self) -> Position {
        self.next
    }

    /// The error of a row list that names a row behind the end of the shard.
    fn listed_behind(&self, row: u32, end: Position) -> ReadError {
        let error = ShardError {
            shard: Arc::clone(&self.path),
            record: Some(end.record),
            byte: end.shown_byte(),
            reason: format!(
                "expected drop= to list rows of the shard, which has {} records, found row {row}: the list is that of \
                 another file; correct it",
                end.record
            ),
        };
        ReadError { error, rest: AfterError::Lost }
    }

    /// The error of the record at `at`, which lacks what a sidecar should have.
    fn unjoined(&mut self, wanted: &Sidecars, error: &ReadError, at: Position) -> ReadError {
        let ReadError { error, rest } = error;
        self.is_lost = *rest == AfterError::Lost;
        self.next = if self.is_lost { at } else { self.reader.position() };
        let error = ShardError {
            shard: Arc::clone(&self.path),
            record: Some(at.record),
            byte: at.shown_byte(),
            reason: wanted.unusable(self.index, error),
        };
        ReadError { error, rest: *rest }
    }
}

impl DroppedRows {
    fn new(rows: &Arc<Rows>, shard: usize, record: u64) -> Self {
        Self { rows: Arc::clone(rows), shard, next: rows.before(shard, record) }
    }

    /// The first row from a record on that is listed.
    fn behind(&mut self, record: u64) -> Option<u32> {
        self.contains(record);
        self.rows.of(self.shard).get(self.next).copied()
    }

    /// Whether a record is left out. Its number must be above those asked for before.
    fn contains(&mut self, record: u64) -> bool {
        let rows = self.rows.of(self.shard);
        while rows.get(self.next).is_some_and(|row| u64::from(*row) < record) {
            self.next += 1;
        }
        rows.get(self.next).is_some_and(|row| u64::from(*row) == record)
    }
}
