//! The reading end of a lane: its shards' documents in stream order, epoch after epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::block::{Block, BlockEnd, Document, Failure};
use super::error_budget::{ErrorBudget, counted};
use crate::error::{Error, Result, ShardError};
use crate::format::{AfterError, Position, ReadError, RecordReader};
use crate::lane::assignment::Assignment;
use crate::lane::cursor::{Cursor, RecordPosition};
use crate::quarantine::file::QuarantineFile;
use crate::quarantine::log::QuarantineCounts;
use crate::spec::{OnError, StreamSpec};

/// Text in the first block: little, so that the first batch arrives soon. Each further one is twice the size.
const FIRST_BLOCK_BYTES: usize = 32 << 10;
/// The most text in a block, not counting its last document: at this size, the cost of scheduling a block is negligible
/// next to that of encoding it.
pub const LARGEST_BLOCK_BYTES: usize = 512 << 10;
/// The most records in a block, for shards of very short or bad ones.
const LARGEST_BLOCK_RECORDS: usize = 16 << 10;
/// The most text in a window, not counting its last document: bounds the memory that long documents can take. Part of
/// the stream's definition.
const LARGEST_WINDOW_BYTES: usize = 16 << 20;

/// Reads a lane's documents in stream order.
pub struct LaneReader {
    spec: Arc<StreamSpec>,
    lane: usize,
    /// This epoch's shards: the plan, which all lanes share behind a lock, is asked once per epoch.
    dealt: Arc<Assignment>,
    /// The next record to read.
    place: RecordPosition,
    /// `place` or, if records were quarantined since the last sound one, the place of the first of these: a lane that
    /// failed can be resumed there with correct counts.
    safe: RecordPosition,
    /// The shard of `place`.
    shard: OpenShard,
    /// Whether this epoch had a document; assumed for an epoch entered midway.
    found_any: bool,
    pub(crate) block_bytes: usize,
    window: Fill,
    errors: ErrorBudget,
    left_out_in_a_row: QuarantineCounts,
    listed_in: Option<Arc<QuarantineFile>>,
    /// Set once nobody waits for what is read.
    stop: Arc<AtomicBool>,
    done: bool,
}

enum OpenShard {
    /// To be opened at `place`.
    Unopened,
    Open(Box<RecordReader>),
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
    QuarantineLog { error: ShardError, rest: AfterError },
    ShardEnd,
}

impl LaneReader {
    /// The documents of `lane` from `cursor` on.
    pub fn new(spec: Arc<StreamSpec>, lane: usize, cursor: &Cursor) -> Self {
        let place = cursor.window;
        let errors = ErrorBudget::new(Arc::clone(&spec), lane, &cursor.totals);
        Self {
            dealt: spec.plan.epoch(place.epoch),
            spec,
            lane,
            place,
            safe: place,
            shard: OpenShard::Unopened,
            found_any: place.shard > 0 || place.record > 0,
            block_bytes: FIRST_BLOCK_BYTES,
            window: Fill::default(),
            errors,
            left_out_in_a_row: QuarantineCounts::default(),
            listed_in: None,
            stop: Arc::default(),
            done: false,
        }
    }

    /// Lists every record that is left out in `file`.
    #[must_use]
    pub fn list_in(mut self, file: Option<Arc<QuarantineFile>>) -> Self {
        self.listed_in = file;
        self
    }

    /// Makes reading end with an error soon after `stop` is set.
    #[must_use]
    pub fn stopped_by(mut self, stop: &Arc<AtomicBool>) -> Self {
        self.stop = Arc::clone(stop);
        self
    }

    /// How far it has read, for an error message: also where nothing about it is sure, after a panic.
    pub fn position(&self) -> String {
        let RecordPosition { epoch, shard, record, .. } = self.place;
        let shard = self.dealt.get(self.lane).and_then(|lane| lane.get(shard as usize));
        let place = match shard.and_then(|shard| self.spec.shards.get(*shard as usize)) {
            Some(shard) => format!("record {record} of {} in epoch {epoch}", shard.path),
            None => format!("the end of epoch {epoch}"),
        };
        format!("lane {}, read up to {place}", self.lane)
    }

    /// Whether the last block was read.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Reads the next block. The documents' texts replace the content of `text`.
    pub fn read(&mut self, text: &mut String) -> Block {
        text.clear();
        let mut block = Block::default();
        block.then = self.fill(&mut block, text).unwrap_or_else(|error| {
            let quarantined_before = QuarantineCounts::default();
            BlockEnd::Failed(Box::new(Failure { error, place: self.safe, quarantined_before }))
        });
        self.done = matches!(block.then, BlockEnd::Ended(_) | BlockEnd::Failed(..));
        self.block_bytes = (self.block_bytes * 2).min(LARGEST_BLOCK_BYTES);
        block
    }

    fn fill(&mut self, block: &mut Block, text: &mut String) -> Result<BlockEnd> {
        while text.len() < self.block_bytes
            && block.documents.len() + (block.quarantined.count().records as usize) < LARGEST_BLOCK_RECORDS
        {
            if self.spec.epochs.is_some_and(|epochs| self.place.epoch >= epochs) {
                return Ok(BlockEnd::Ended(self.place));
            }
            let ends = match self.next(text)? {
                Record::Sound(document) => {
                    block.documents.push(document);
                    self.fills_window(document.text_bytes)
                }
                Record::QuarantineLog { error, rest } => {
                    block.quarantined.push(error, rest);
                    false
                }
                // A block ends with its epoch: a lane of little text would otherwise be read thousands of times to fill
                // one.
                Record::ShardEnd => self.next_shard()?,
            };
            if self.left_out_in_a_row == QuarantineCounts::default() {
                self.safe = self.place;
            }
            if ends {
                self.window = Fill::default();
                let is_window = self.spec.window().is_some();
                return Ok(if is_window { BlockEnd::WindowEnd(self.place) } else { BlockEnd::More });
            }
        }
        Ok(BlockEnd::More)
    }

    /// Counts a document into the window, if there are windows. Returns whether it closes it.
    fn fills_window(&mut self, text_bytes: usize) -> bool {
        let Some(most) = self.spec.window() else { return false };
        self.window.documents += 1;
        self.window.bytes += text_bytes;
        self.window.documents >= most || self.window.bytes >= LARGEST_WINDOW_BYTES
    }

    /// Advances to the next shard, if necessary that of the next epoch. Returns whether the epoch ended.
    fn next_shard(&mut self) -> Result<bool> {
        let shards = self.dealt[self.lane].len() as u64;
        self.shard = OpenShard::Unopened;
        if self.place.shard + 1 < shards {
            self.place = RecordPosition { shard: self.place.shard + 1, record: 0, byte: 0, ..self.place };
            return Ok(false);
        }
        if !self.found_any && self.spec.epochs.is_none() {
            let last = match self.errors.last() {
                Some(error) => {
                    let left_out = counted(self.errors.losses().records, "record");
                    format!("; {left_out} left out, the last one: {error}")
                }
                None => String::new(),
            };
            let first = &self.spec.shards[self.dealt[self.lane][0] as usize].path;
            let others = if shards > 1 { ", ..." } else { "" };
            let remedy = if self.spec.plan.lanes() > 1 { ", or use fewer lanes=" } else { "" };
            return Err(Error::Argument(format!(
                "lane {} has no sound document in its {} of epoch {} ({first}{others}): with epochs=None each lane needs \
                 one in every epoch, or it might look for one forever{last}. Leave these shards out{remedy}",
                self.lane,
                counted(shards, "shard"),
                self.place.epoch
            )));
        }
        self.found_any = false;
        self.place = RecordPosition { epoch: self.place.epoch + 1, ..RecordPosition::default() };
        self.dealt = self.spec.plan.epoch(self.place.epoch);
        Ok(true)
    }

    /// Reads one record of the current shard.
    fn next(&mut self, text: &mut String) -> Result<Record> {
        if let OpenShard::Unopened = self.shard {
            match self.open() {
                Ok(reader) => self.shard = OpenShard::Open(Box::new(reader)),
                Err(Error::Shard(error)) => {
                    self.shard = OpenShard::Lost;
                    return self.bad_record(error, AfterError::Lost);
                }
                Err(error) => return Err(error),
            }
        }
        let OpenShard::Open(reader) = &mut self.shard else {
            return self.shard_end();
        };
        let item = reader.next_text(text);
        let Position { record, byte } = reader.position();
        match item {
            Ok(Some((at, length))) => {
                let place = RecordPosition { record: at.record, byte: at.byte, ..self.place };
                self.place = RecordPosition { record, byte, ..self.place };
                self.found_any = true;
                self.errors.add_sound();
                let quarantined_before = std::mem::take(&mut self.left_out_in_a_row);
                let shard = self.shard_index();
                Ok(Record::Sound(Document {
                    place,
                    shard,
                    text_bytes: length,
                    tokens: 0,
                    quarantined_before,
                }))
            }
            Ok(None) => self.shard_end(),
            Err(ReadError { error, rest }) => {
                let found = self.bad_record(error, rest)?;
                self.place = RecordPosition { record, byte, ..self.place };
                Ok(found)
            }
        }
    }

    /// The index in the manifest of the shard of `place`.
    fn shard_index(&self) -> u32 {
        self.dealt[self.lane][self.place.shard as usize]
    }

    fn open(&self) -> Result<RecordReader> {
        let shard = &self.spec.shards[self.shard_index() as usize];
        let position = Position { record: self.place.record, byte: self.place.byte };
        RecordReader::open_at(shard, &self.spec.read, position, &self.stop)
    }

    fn shard_end(&mut self) -> Result<Record> {
        self.errors.judge_records(self.place, self.shard_index())?;
        Ok(Record::ShardEnd)
    }

    /// Decides about a record that cannot be used: stops there, or counts it.
    fn bad_record(&mut self, mut error: ShardError, rest: AfterError) -> Result<Record> {
        if self.stop.load(Ordering::Relaxed) {
            // What looks like damage may be the stop.
            return Err(Error::Closed);
        }
        if self.spec.on_error == OnError::Raise {
            let what = if rest == AfterError::Lost { "the rest of this shard" } else { "it" };
            error.reason = format!("{}; on_error=\"quarantine\" leaves {what} out", error.reason);
            return Err(Error::Shard(error));
        }
        self.left_out_in_a_row += QuarantineCounts::from(rest);
        self.errors.add_bad(&error, rest, self.place, self.shard_index())?;
        if let Some(file) = &self.listed_in {
            file.append(self.lane, self.errors.losses().records, self.place.epoch, &error)?;
        }
        Ok(Record::QuarantineLog { error, rest })
    }
}
