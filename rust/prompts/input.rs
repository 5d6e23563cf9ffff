//! The reading end: one reader of records at a time, which the workers share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Left, PromptSpec, Reason};
use crate::error::{Error, Result, ShardError};
use crate::format::{AfterError, Position, RawKind, RawRecord, ReadError, ReadOptions, RecordReader};
use crate::lane::joined_shard::{Beside, JoinedShard, Read, Wanted};
use crate::prepare::sidecars::Joined;
use crate::store::Shard;

/// Bytes of records that a worker takes at once: small enough to stay in its cache until they are encoded.
const CHUNK_BYTES: usize = 256 << 10;
/// A chunk has at most so many records, for filters that leave out nearly all.
const CHUNK_RECORDS: usize = 1 << 16;
/// Chunks of each worker that may wait for an earlier one.
const AHEAD: u64 = 4;

/// The records of a chunk, one after another.
pub(crate) struct Records<'c> {
    spec: &'c PromptSpec,
    entries: std::slice::Iter<'c, Entry>,
    bytes: &'c [u8],
    beside: &'c [Option<(Position, usize)>],
}

/// A record of a chunk, or what is in its place.
pub(crate) enum Found<'c> {
    /// A record, with the index of its shard and its index among all records.
    Record(u32, u64, RawRecord<'c>, Joined<'c>),
    /// One that the row list leaves out, of the shard with this index.
    Dropped(u32),
    /// One that cannot be read.
    Left(Left),
}

impl Chunk {
    pub(crate) fn records<'c>(&'c self, spec: &'c PromptSpec) -> Records<'c> {
        Records { spec, entries: self.entries.iter(), bytes: &self.bytes, beside: &self.beside }
    }
}

impl<'c> Iterator for Records<'c> {
    type Item = Found<'c>;

    fn next(&mut self) -> Option<Found<'c>> {
        Some(match self.entries.next()? {
            Entry::Unreadable { shard, error, rest } => {
                let ShardError { record, byte, reason, .. } = error.clone();
                let reason = match rest {
                    AfterError::Readable => Reason::Bad(reason),
                    AfterError::Lost => Reason::Lost(reason),
                };
                Found::Left(Left { shard: *shard, record, byte, reason })
            }
            Entry::Dropped(shard) => Found::Dropped(*shard),
            &Entry::Record { shard, index, kind, position, length } => {
                let (record, rest) = self.bytes.split_at(length);
                self.bytes = rest;
                let joined = Joined::take(&self.spec.sidecars, shard, &mut self.beside, &mut self.bytes);
                Found::Record(shard, index, RawRecord::new(kind, position, record), joined)
            }
        })
    }
}

/// The shards' records, in chunks.
pub(super) struct Input<'a> {
    spec: &'a PromptSpec,
    stop: &'a Arc<AtomicBool>,
    reading: Mutex<Reading>,
    /// Signalled when a chunk was joined, and at the end.
    turn: Condvar,
}

struct Reading {
    /// The number of the next chunk.
    number: u64,
    /// How many chunks were joined.
    joined: u64,
    /// The index of the next shard.
    shard: usize,
    reader: Option<JoinedShard>,
    /// How many records were read.
    records: u64,
    /// How many of the selected ones are before that.
    selected: usize,
    ended: bool,
}

/// Raw records that follow one another, also over the border of shards.
#[derive(Default)]
pub(crate) struct Chunk {
    /// The bytes of all records one after another, each before those of its sidecars.
    pub(super) bytes: Vec<u8>,
    /// The records of sidecars.
    pub(super) beside: Beside,
    /// The records.
    pub(super) entries: Vec<Entry>,
}

/// A record of a chunk.
pub(super) enum Entry {
    /// One with so many bytes, of a shard, and its index among all records.
    Record { shard: u32, index: u64, kind: RawKind, position: Position, length: usize },
    /// One that the row list leaves out.
    Dropped(u32),
    /// One that cannot be read, or the rest of the shard.
    Unreadable { shard: u32, error: ShardError, rest: AfterError },
}

impl<'a> Input<'a> {
    pub(super) fn new(spec: &'a PromptSpec, stop: &'a Arc<AtomicBool>) -> Self {
        let reading =
            Reading { number: 0, joined: 0, shard: 0, reader: None, records: 0, selected: 0, ended: false };
        Self { spec, stop, reading: Mutex::new(reading), turn: Condvar::new() }
    }

    /// The next chunk, whose number is put in place of `number`; None at the end. Waits while too many are ahead of the
    /// one that is joined next.
    pub(super) fn take(&self, number: &mut u64) -> Result<Option<Chunk>> {
        let mut reading = self.lock();
        let ahead = AHEAD * self.spec.threads as u64;
        while reading.number >= reading.joined + ahead && !self.is_stopped() && !reading.ended {
            reading = self.turn.wait(reading).unwrap_or_else(PoisonError::into_inner);
        }
        if reading.ended || self.is_stopped() {
            return Ok(None);
        }
        *number = reading.number;
        reading.number += 1;
        let mut chunk = Chunk::default();
        // If it fails or panics, there is nothing after it.
        reading.ended = true;
        let is_more = reading.read(self.spec, self.stop, &mut chunk)?;
        reading.ended = !is_more;
        Ok(Some(chunk))
    }

    /// How many chunks were taken.
    pub(super) fn chunks(&self) -> u64 {
        self.lock().number
    }

    /// So many chunks were joined.
    pub(super) fn joined(&self, number: u64) {
        self.lock().joined = number;
        self.turn.notify_all();
    }

    /// Ends reading, also in the middle of a shard.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // Nobody is between its look at the flag and its wait.
        drop(self.lock());
        self.turn.notify_all();
    }

    /// Set when all is to end.
    pub(super) fn stop_flag(&self) -> &AtomicBool {
        self.stop
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    /// Fills a chunk. Returns whether there may be more records after it.
    fn read(&mut self, spec: &PromptSpec, stop: &Arc<AtomicBool>, chunk: &mut Chunk) -> Result<bool> {
        let selected = spec.selected.as_deref();
        while chunk.bytes.len() < CHUNK_BYTES && chunk.entries.len() < CHUNK_RECORDS {
            if selected.is_some_and(|selected| self.selected == selected.len()) {
                return Ok(false);
            }
            let Some(shard) = spec.shards.get(self.shard) else { return Ok(false) };
            let number = self.shard as u32;
            let reader = match &mut self.reader {
                Some(reader) => reader,
                None => match open(spec, shard, self.shard, stop) {
                    Ok(reader) => self.reader.insert(reader),
                    Err(Error::Shard(error)) => {
                        chunk.entries.push(Entry::Unreadable {
                            shard: number,
                            error,
                            rest: AfterError::Lost,
                        });
                        self.shard += 1;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            let before = (chunk.bytes.len(), chunk.beside.len());
            let read = reader.next(&spec.sidecars, &mut chunk.bytes, &mut chunk.beside);
            if matches!(read, Ok(Read::End)) {
                (self.shard, self.reader) = (self.shard + 1, None);
                continue;
            }
            // The lost rest of a shard counts as one record, and is reported whatever is selected.
            let is_lost = matches!(&read, Err(ReadError { rest: AfterError::Lost, .. }));
            let index = self.records;
            self.records += 1;
            if let Some(selected) = selected.filter(|_| !is_lost) {
                if selected[self.selected] != index {
                    chunk.bytes.truncate(before.0);
                    chunk.beside.truncate(before.1);
                    continue;
                }
                self.selected += 1;
            }
            chunk.entries.push(match read {
                Ok(Read::Record { kind, position, length, .. }) => {
                    Entry::Record { shard: number, index, kind, position, length }
                }
                Ok(Read::Dropped | Read::End) => Entry::Dropped(number),
                Err(ReadError { error, rest }) => Entry::Unreadable { shard: number, error, rest },
            });
        }
        Ok(true)
    }
}

fn open(spec: &PromptSpec, shard: &Shard, index: usize, stop: &Arc<AtomicBool>) -> Result<JoinedShard> {
    let PromptSpec { read, sidecars, drop, .. } = spec;
    JoinedShard::open_at(shard, index, Wanted { read, sidecars, drop }, Position::default(), stop)
}

/// How many records the shards have, by the count that selections use. None if it was interrupted.
pub fn count(
    shards: &[Shard],
    read: &Arc<ReadOptions>,
    mut is_interrupted: impl FnMut() -> bool,
) -> Result<Option<u64>> {
    let mut records = 0;
    for shard in shards {
        let mut reader = RecordReader::open(shard, read, &Arc::default())?;
        loop {
            match reader.next_raw() {
                Ok(Some(_)) | Err(ReadError { rest: AfterError::Readable, .. }) => records += 1,
                Ok(None) => break,
                Err(error) => return Err(error.into()),
            }
            if records % 256 == 0 && is_interrupted() {
                return Ok(None);
            }
        }
    }
    Ok(Some(records))
}
