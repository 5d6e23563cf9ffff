//! The reading end of a lane: its shards' documents in stream order, epoch after epoch.

use std::sync::Arc;

use super::block::{Block, Document, Failure, Then};
use super::cursor::{Cursor, Place};
use crate::config::{OnError, StreamConfig};
use crate::error::{Error, Result, ShardError};
use crate::read::{Item, Position, ReadError, ShardReader};

/// Text in a block: the first is small, so that the first batch comes soon; each further one is
/// twice the size, up to a size at which taking up a block costs nothing beside encoding it.
const FIRST_BLOCK_BYTES: usize = 32 << 10;
const LARGEST_BLOCK_BYTES: usize = 512 << 10;
/// Records in a block at most, for shards of very short or of bad ones.
const LARGEST_BLOCK_RECORDS: usize = 16 << 10;
/// Text in a window at most, but for its last document: bounds the memory that long documents could
/// ask for. Part of the stream's definition.
const LARGEST_WINDOW_BYTES: usize = 16 << 20;
/// Records after which a lane's share of bad ones says something.
const RECORDS_TO_JUDGE: u64 = 100;

/// Reads a lane's documents in stream order.
pub struct Source {
    config: Arc<StreamConfig>,
    lane: usize,
    /// The next record to read.
    place: Place,
    /// `place`, as long as no record was quarantined since the last sound one; then where it was
    /// before. There, a lane that failed can be taken up with its counts being right.
    safe: Place,
    /// The shard of `place`.
    shard: OpenShard,
    /// Whether this epoch gave a document; an epoch that was entered midway is taken to have.
    found_any: bool,
    pub(super) block_bytes: usize,
    window: Fill,
    records: u64,
    quarantined: u64,
    quarantined_in_a_row: u64,
    done: bool,
}

enum OpenShard {
    /// To be opened at `place`.
    Unopened,
    Open(Box<ShardReader>),
    /// Nothing more can be read from it.
    Lost,
}

/// How full something is.
#[derive(Default)]
struct Fill {
    documents: usize,
    bytes: usize,
}

/// What one record turned out to be.
enum Record {
    Sound(Document),
    Quarantined(ShardError),
    ShardEnd,
}

impl Source {
    /// The documents of `lane` from `cursor` on.
    pub fn new(config: Arc<StreamConfig>, lane: usize, cursor: &Cursor) -> Self {
        let place = cursor.window;
        Self {
            config,
            lane,
            place,
            safe: place,
            shard: OpenShard::Unopened,
            found_any: place.shard > 0 || place.record > 0,
            block_bytes: FIRST_BLOCK_BYTES,
            window: Fill::default(),
            records: cursor.totals.records,
            quarantined: cursor.totals.quarantined,
            quarantined_in_a_row: 0,
            done: false,
        }
    }

    /// Whether the last block was given.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Reads the next block. The documents' texts replace what is in `text`.
    pub fn read(&mut self, text: &mut String) -> Block {
        text.clear();
        let mut block = Block::default();
        block.then = self
            .fill(&mut block, text)
            .unwrap_or_else(|error| Then::Failed(Failure { error, place: self.safe, quarantined_before: 0 }));
        self.done = matches!(block.then, Then::Ended(_) | Then::Failed(..));
        self.block_bytes = (self.block_bytes * 2).min(LARGEST_BLOCK_BYTES);
        block
    }

    fn fill(&mut self, block: &mut Block, text: &mut String) -> Result<Then> {
        while text.len() < self.block_bytes
            && block.documents.len() + block.quarantined.len() < LARGEST_BLOCK_RECORDS
        {
            if self.config.epochs.is_some_and(|epochs| self.place.epoch >= epochs) {
                return Ok(Then::Ended(self.place));
            }
            let window_ends = match self.next(text)? {
                Record::Sound(document) => {
                    block.documents.push(document);
                    self.fills_window(document.text_bytes)
                }
                Record::Quarantined(error) => {
                    block.quarantined.push(error);
                    false
                }
                Record::ShardEnd => self.next_shard()? && self.config.window().is_some(),
            };
            if self.quarantined_in_a_row == 0 {
                self.safe = self.place;
            }
            if window_ends {
                self.window = Fill::default();
                return Ok(Then::WindowEnd(self.place));
            }
        }
        Ok(Then::More)
    }

    /// Counts a document into the window, if there are windows. Returns whether it closes it.
    fn fills_window(&mut self, text_bytes: usize) -> bool {
        let Some(most) = self.config.window() else { return false };
        self.window.documents += 1;
        self.window.bytes += text_bytes;
        self.window.documents >= most || self.window.bytes >= LARGEST_WINDOW_BYTES
    }

    /// Goes on to the next shard, of the next epoch if need be. Returns whether the epoch ended.
    fn next_shard(&mut self) -> Result<bool> {
        let shards = self.config.plan.epoch(self.place.epoch)[self.lane].len() as u64;
        self.shard = OpenShard::Unopened;
        if self.place.shard + 1 < shards {
            self.place = Place { shard: self.place.shard + 1, record: 0, byte: 0, ..self.place };
            return Ok(false);
        }
        if !self.found_any && self.config.epochs.is_none() {
            return Err(Error::Argument(format!(
                "lane {} has no sound document in its {shards} shards, so that with epochs=None it would read \
                 them for ever: use fewer lanes=, or leave the shards out",
                self.lane
            )));
        }
        self.found_any = false;
        self.place = Place { epoch: self.place.epoch + 1, ..Place::default() };
        Ok(true)
    }

    /// Reads one record of the current shard.
    fn next(&mut self, text: &mut String) -> Result<Record> {
        if let OpenShard::Unopened = self.shard {
            match self.open() {
                Ok(reader) => self.shard = OpenShard::Open(Box::new(reader)),
                Err(Error::Shard(error)) => {
                    self.shard = OpenShard::Lost;
                    return self.bad_record(error);
                }
                Err(error) => return Err(error),
            }
        }
        let OpenShard::Open(reader) = &mut self.shard else {
            return self.shard_end();
        };
        let item = reader.next(text);
        let Position { record, byte } = reader.position();
        match item {
            Ok(Item::Document { at, length }) => {
                let place = Place { record: at.record, byte: at.byte, ..self.place };
                self.place = Place { record, byte, ..self.place };
                self.found_any = true;
                self.records += 1;
                let quarantined_before = std::mem::take(&mut self.quarantined_in_a_row);
                Ok(Record::Sound(Document { place, text_bytes: length, tokens: 0, quarantined_before }))
            }
            Ok(Item::End) => self.shard_end(),
            Err(ReadError { error, .. }) => {
                let found = self.bad_record(error)?;
                self.place = Place { record, byte, ..self.place };
                Ok(found)
            }
        }
    }

    fn open(&self) -> Result<ShardReader> {
        let shard = self.config.shard(self.lane, self.place);
        let position = Position { record: self.place.record, byte: self.place.byte };
        ShardReader::open_at(shard, &self.config.read, position)
    }

    fn shard_end(&self) -> Result<Record> {
        self.judge(None)?;
        Ok(Record::ShardEnd)
    }

    /// Decides about a record that cannot be used: stops there, or counts it.
    fn bad_record(&mut self, error: ShardError) -> Result<Record> {
        if self.config.on_error == OnError::Raise {
            return Err(Error::Shard(error));
        }
        self.records += 1;
        self.quarantined += 1;
        self.quarantined_in_a_row += 1;
        if self.records >= RECORDS_TO_JUDGE {
            self.judge(Some(&error))?;
        }
        Ok(Record::Quarantined(error))
    }

    /// Stops the run when too many of this lane's records are bad.
    fn judge(&self, last: Option<&ShardError>) -> Result<()> {
        let OnError::Quarantine { max_error_rate } = self.config.on_error else { return Ok(()) };
        if self.quarantined as f64 <= max_error_rate * self.records as f64 {
            return Ok(());
        }
        Err(Error::Shard(ShardError {
            shard: Arc::clone(&self.config.shard(self.lane, self.place).path),
            record: Some(self.place.record),
            byte: Some(self.place.byte),
            reason: format!(
                "{} of the {} records that lane {} has read so far are bad, more than \
                 max_error_rate={max_error_rate} allows{}. Mend these shards or leave them out, or raise \
                 max_error_rate=",
                self.quarantined,
                self.records,
                self.lane,
                last.map(|error| format!("; the last one: {error}")).unwrap_or_default(),
            ),
        }))
    }
}
