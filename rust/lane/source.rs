//! The reading end of a lane: its shards' documents in stream order, epoch after epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::block::{Block, Document, Failure, Then};
use super::cursor::{Cursor, Place};
use super::quarantine::Losses;
use super::quarantine_file::QuarantineFile;
use crate::config::{OnError, StreamConfig};
use crate::error::{Error, Result, ShardError};
use crate::plan::Dealt;
use crate::read::{Position, ReadError, Rest, ShardReader};

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
/// Records after which a lane's share of bad ones is meaningful.
const RECORDS_TO_JUDGE: u64 = 100;

/// Reads a lane's documents in stream order.
pub struct Source {
    config: Arc<StreamConfig>,
    lane: usize,
    /// This epoch's shards: the plan, which all lanes share behind a lock, is asked once per epoch.
    dealt: Arc<Dealt>,
    /// The next record to read.
    place: Place,
    /// `place` or, if records were quarantined since the last sound one, the place of the first of these: a lane that
    /// failed can be resumed there with correct counts.
    safe: Place,
    /// The shard of `place`.
    shard: OpenShard,
    /// Whether this epoch had a document; assumed for an epoch entered midway.
    found_any: bool,
    pub(super) block_bytes: usize,
    window: Fill,
    records: u64,
    losses: Losses,
    left_out_in_a_row: Losses,
    /// The last entry since this source was made.
    last_left_out: Option<ShardError>,
    listed_in: Option<Arc<QuarantineFile>>,
    /// Set once nobody waits for what is read.
    stop: Arc<AtomicBool>,
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
    Quarantined { error: ShardError, lost: bool },
    ShardEnd,
}

impl Source {
    /// The documents of `lane` from `cursor` on.
    pub fn new(config: Arc<StreamConfig>, lane: usize, cursor: &Cursor) -> Self {
        let place = cursor.window;
        Self {
            dealt: config.plan.epoch(place.epoch),
            config,
            lane,
            place,
            safe: place,
            shard: OpenShard::Unopened,
            found_any: place.shard > 0 || place.record > 0,
            block_bytes: FIRST_BLOCK_BYTES,
            window: Fill::default(),
            records: cursor.totals.records,
            losses: Losses { records: cursor.totals.quarantined, shards: cursor.totals.lost_shards },
            left_out_in_a_row: Losses::default(),
            last_left_out: None,
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

    /// How far it has read, for an error message.
    pub fn position(&self) -> String {
        let Place { epoch, shard, record, .. } = self.place;
        match self.dealt[self.lane].get(shard as usize) {
            Some(&shard) => {
                format!("record {record} of {} in epoch {epoch}", self.config.shards[shard as usize].path)
            }
            None => format!("the end of epoch {epoch}"),
        }
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
            let quarantined_before = Losses::default();
            Then::Failed(Box::new(Failure { error, place: self.safe, quarantined_before }))
        });
        self.done = matches!(block.then, Then::Ended(_) | Then::Failed(..));
        self.block_bytes = (self.block_bytes * 2).min(LARGEST_BLOCK_BYTES);
        block
    }

    fn fill(&mut self, block: &mut Block, text: &mut String) -> Result<Then> {
        while text.len() < self.block_bytes
            && block.documents.len() + (block.quarantined.count().records as usize) < LARGEST_BLOCK_RECORDS
        {
            if self.config.epochs.is_some_and(|epochs| self.place.epoch >= epochs) {
                return Ok(Then::Ended(self.place));
            }
            let ends = match self.next(text)? {
                Record::Sound(document) => {
                    block.documents.push(document);
                    self.fills_window(document.text_bytes)
                }
                Record::Quarantined { error, lost } => {
                    block.quarantined.push(error, lost);
                    false
                }
                // A block ends with its epoch: a lane of little text would otherwise be read thousands of times to fill
                // one.
                Record::ShardEnd => self.next_shard()?,
            };
            if self.left_out_in_a_row == Losses::default() {
                self.safe = self.place;
            }
            if ends {
                self.window = Fill::default();
                let is_window = self.config.window().is_some();
                return Ok(if is_window { Then::WindowEnd(self.place) } else { Then::More });
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

    /// Advances to the next shard, if necessary that of the next epoch. Returns whether the epoch ended.
    fn next_shard(&mut self) -> Result<bool> {
        let shards = self.dealt[self.lane].len() as u64;
        self.shard = OpenShard::Unopened;
        if self.place.shard + 1 < shards {
            self.place = Place { shard: self.place.shard + 1, record: 0, byte: 0, ..self.place };
            return Ok(false);
        }
        if !self.found_any && self.config.epochs.is_none() {
            let last = match &self.last_left_out {
                Some(error) => {
                    format!("; {} left out, the last one: {error}", counted(self.losses.records, "record"))
                }
                None => String::new(),
            };
            return Err(Error::Argument(format!(
                "lane {} has no sound document in its {}: with epochs=None it would loop over them forever{last}. Leave \
                 these shards out, or use fewer lanes=",
                self.lane,
                counted(shards, "shard")
            )));
        }
        self.found_any = false;
        self.place = Place { epoch: self.place.epoch + 1, ..Place::default() };
        self.dealt = self.config.plan.epoch(self.place.epoch);
        Ok(true)
    }

    /// Reads one record of the current shard.
    fn next(&mut self, text: &mut String) -> Result<Record> {
        if let OpenShard::Unopened = self.shard {
            match self.open() {
                Ok(reader) => self.shard = OpenShard::Open(Box::new(reader)),
                Err(Error::Shard(error)) => {
                    self.shard = OpenShard::Lost;
                    return self.bad_record(error, true);
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
            Ok(Some((at, length))) => {
                let place = Place { record: at.record, byte: at.byte, ..self.place };
                self.place = Place { record, byte, ..self.place };
                self.found_any = true;
                self.records += 1;
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
                let found = self.bad_record(error, rest == Rest::Lost)?;
                self.place = Place { record, byte, ..self.place };
                Ok(found)
            }
        }
    }

    /// The index in the manifest of the shard of `place`.
    fn shard_index(&self) -> u32 {
        self.dealt[self.lane][self.place.shard as usize]
    }

    fn open(&self) -> Result<ShardReader> {
        let shard = &self.config.shards[self.shard_index() as usize];
        let position = Position { record: self.place.record, byte: self.place.byte };
        ShardReader::open_at(shard, &self.config.read, position, &self.stop)
    }

    fn shard_end(&mut self) -> Result<Record> {
        self.judge_records()?;
        Ok(Record::ShardEnd)
    }

    /// Decides about a record that cannot be used: stops there, or counts it. `lost` says that the rest of its shard is
    /// lost with it.
    fn bad_record(&mut self, mut error: ShardError, lost: bool) -> Result<Record> {
        if self.stop.load(Ordering::Relaxed) {
            // What looks like damage may be the stop.
            return Err(Error::Closed);
        }
        if self.config.on_error == OnError::Raise {
            let what = if lost { "the rest of this shard" } else { "it" };
            error.reason = format!("{}; on_error=\"quarantine\" leaves {what} out", error.reason);
            return Err(Error::Shard(error));
        }
        let one = Losses { records: 1, shards: u64::from(lost) };
        self.records += 1;
        self.losses += one;
        self.left_out_in_a_row += one;
        self.last_left_out = Some(error.clone());
        if lost {
            self.judge_shards()?;
        } else if self.records >= RECORDS_TO_JUDGE {
            self.judge_records()?;
        }
        if let Some(file) = &self.listed_in {
            file.append(self.lane, self.losses.records, self.place.epoch, &error)?;
        }
        Ok(Record::Quarantined { error, lost })
    }

    /// Stops the run when too many of this lane's records are bad. Shards that end early are judged as shards: one at a
    /// lane's start would make up all of its records.
    fn judge_records(&mut self) -> Result<()> {
        let OnError::Quarantine { max_error_rate } = self.config.on_error else { return Ok(()) };
        let bad = self.losses.records - self.losses.shards;
        let (records, lane) = (self.records, self.lane);
        if is_within(bad as f64, records as f64, max_error_rate) {
            return Ok(());
        }
        let what = format!(
            "{bad} of the {records} records that lane {lane} has read so far are bad, more than \
             max_error_rate={max_error_rate} allows"
        );
        Err(self.too_many(&what))
    }

    /// Stops the run when too many of this lane's shards cannot be read to their end. One in each epoch is tolerated at
    /// any rate but 0: the smallest possible number says nothing about a rate.
    ///
    /// The rate is applied to an average lane's shards: how many a lane has may vary from epoch to epoch, and the
    /// verdict must not depend on which epoch comes first.
    fn judge_shards(&mut self) -> Result<()> {
        let OnError::Quarantine { max_error_rate } = self.config.on_error else { return Ok(()) };
        let (epochs, lost, lane) = (self.place.epoch + 1, self.losses.shards, self.lane);
        let (shards, lanes) = (self.config.shards.len(), self.config.plan.lanes());
        let of_lane = shards as f64 * epochs as f64 / lanes as f64;
        let always = if max_error_rate > 0.0 { epochs } else { 0 };
        // A lane may have more shards than the average.
        if lost <= always || is_within(lost as f64, of_lane, max_error_rate) || max_error_rate >= 1.0 {
            return Ok(());
        }
        // As above, it must not be rounded down.
        let allowed = ((max_error_rate * of_lane + 1e-9) as u64).max(always);
        let [lost, epochs, shards, lanes] =
            [(lost, "shard"), (epochs, "epoch"), (shards as u64, "shard"), (lanes as u64, "lane")]
                .map(|(number, noun)| counted(number, noun));
        let what = format!(
            "{lost} of lane {lane} could not be read to the end in {epochs} of {shards} in {lanes}: expected at most \
             {allowed} with max_error_rate={max_error_rate}"
        );
        Err(self.too_many(&what))
    }

    /// The error names the last entry; after a restore behind it, the place where reading stands.
    fn too_many(&mut self, what: &str) -> Error {
        let last = self.last_left_out.take();
        let told = last.as_ref().map(|error| format!("; the last one: {error}")).unwrap_or_default();
        let reason = format!(
            "{what}{told}. Resume from the last state with a higher max_error_rate=, or repair or remove these shards \
             and start over"
        );
        Error::Shard(match last {
            Some(error) => ShardError { reason, ..error },
            None => self.place.error(&self.config.shards[self.shard_index() as usize], reason),
        })
    }
}

/// Whether a share is at most a rate. A quotient is rounded as the rate was: 29 of 100 are 0.29, and 0.29 of 100 are less
/// than 29.
fn is_within(part: f64, whole: f64, rate: f64) -> bool {
    part == 0.0 || part / whole <= rate
}

/// A number and what it counts.
fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
