//! The order of a lane's samples: which are delivered, which are left out, and where windows end.
//!
//! Workers read and encode the blocks of a lane at the same time. Decisions that depend on earlier records are made here,
//! one block after another in stream order: whether too many records are bad, how many were quarantined or filtered before
//! each document, and which documents form a window.

use std::sync::Arc;

use super::block::{
    BadRecord, Block, BlockEnd, Document, Failure, LeftOut, ReadEnd, SampleBlock, SampleEntry, ShardEnd,
};
use super::carried::Carried;
use super::cursor::{Cursor, LARGEST_WINDOW_BYTES, RecordPosition};
use super::error_budget::{ErrorBudget, counted};
use super::id_buffer::IdBuffer;
use crate::error::{Error, Result};
use crate::format::{AfterError, Position};
use crate::quarantine::file::QuarantineFile;
use crate::quarantine::log::QuarantineCounts;
use crate::spec::{OnError, SourceSpec};

/// Admits a lane's samples to the stream.
pub struct Admission {
    spec: Arc<SourceSpec>,
    lane: usize,
    /// The position after the last record.
    position: RecordPosition,
    /// `position` or, if records were left out since the last document, the position of the first of these: a lane that
    /// failed can be resumed there with correct counts.
    safe: RecordPosition,
    /// Whether this epoch had a document with a token.
    found_any: bool,
    /// Filtered records since the start of the run.
    filtered: u64,
    window: Window,
    errors: ErrorBudget,
    /// Records left out since the last document.
    left_out: LeftOut,
    file: Option<Arc<QuarantineFile>>,
    /// Samples that were added and not yet passed on.
    samples: Option<Samples>,
}

/// The rest of some samples.
struct Samples {
    entries: std::vec::IntoIter<SampleEntry>,
    ids: Arc<IdBuffer>,
    /// Index of the first id of the next document, of its first image, and of itself.
    first_id: usize,
    first_image: usize,
    first_sample: usize,
    end: ReadEnd,
}

/// A window that is being filled.
struct Window {
    documents: usize,
    bytes: usize,
    /// The bytes that end it.
    most_bytes: usize,
}

impl Window {
    fn new(most_bytes: usize) -> Self {
        Self { documents: 0, bytes: 0, most_bytes }
    }
}

impl Admission {
    /// For the samples of `lane` from `cursor` on. Every quarantined record is listed in `file`.
    pub fn new(
        spec: Arc<SourceSpec>,
        lane: usize,
        cursor: &Cursor,
        file: Option<Arc<QuarantineFile>>,
    ) -> Self {
        let position = cursor.window;
        let errors = ErrorBudget::new(Arc::clone(&spec), lane, &cursor.totals);
        Self {
            spec,
            lane,
            position,
            safe: position,
            found_any: !position.begins_epoch() && cursor.tokenless == 0,
            filtered: cursor.totals.filtered,
            window: Window::new(cursor.window_bytes()),
            errors,
            left_out: LeftOut::default(),
            file,
            samples: None,
        }
    }

    /// Knows that documents of the epoch were delivered before a border.
    #[must_use]
    pub fn carrying(mut self, carried: Option<&Arc<Carried>>) -> Self {
        self.found_any |= carried.is_some_and(|carried| carried.is_ahead_of(self.position));
        self
    }

    /// Adds the lane's next samples, once all that was added before has been [passed on](Self::next_block).
    pub fn add(&mut self, samples: SampleBlock) {
        let SampleBlock { entries, ids, end } = samples;
        let (entries, ids) = (entries.into_iter(), Arc::new(ids));
        self.samples = Some(Samples { entries, ids, first_id: 0, first_image: 0, first_sample: 0, end });
    }

    /// Ids that were not passed on.
    pub fn held(&self) -> usize {
        self.samples.as_ref().map_or(0, |samples| samples.ids.len() - samples.first_id)
    }

    /// The next block, up to the end of a window or of the samples that were added. None if more samples must be added.
    pub fn next_block(&mut self) -> Option<Block> {
        let mut samples = self.samples.take()?;
        let Samples { first_id, first_image, first_sample, .. } = samples;
        let ids = Arc::clone(&samples.ids);
        let mut block = Block { ids, first_id, first_image, first_sample, ..Block::default() };
        for entry in samples.entries.by_ref() {
            if let SampleEntry::Document { document, .. } = &entry {
                samples.first_id += document.tokens;
                samples.first_image += document.images as usize;
                samples.first_sample += document.segments();
            }
            match self.admit(entry, &mut block) {
                Ok(false) => {}
                Ok(true) => {
                    block.end = BlockEnd::WindowEnd(self.position);
                    self.samples = Some(samples);
                    return Some(block);
                }
                Err(failure) => {
                    block.end = BlockEnd::Failed(failure);
                    return Some(block);
                }
            }
        }
        block.end = match samples.end {
            ReadEnd::More => BlockEnd::More,
            ReadEnd::Ended => BlockEnd::Ended(self.position),
            ReadEnd::Failed(error) => BlockEnd::Failed(Box::new(self.failure(error))),
        };
        Some(block)
    }

    /// Returns whether a window ends after the entry.
    fn admit(&mut self, entry: SampleEntry, block: &mut Block) -> Result<bool, Box<Failure>> {
        let ends_window = match entry {
            SampleEntry::Document { document, next } => {
                match next {
                    Some(next) => self.advance_to(next),
                    None => self.position = document.position.next_sample(),
                }
                self.found_any |= document.tokens > 0;
                self.errors.add_valid(next.is_some().into());
                let left_out_before = std::mem::take(&mut self.left_out);
                block.documents.push(Document { left_out_before, ends_record: next.is_some(), ..document });
                self.fills_window(document.text_bytes)
            }
            SampleEntry::Filtered { records, next } => {
                self.advance_to(next);
                self.errors.add_valid(records);
                self.filtered += records;
                self.left_out.filtered += records;
                block.filtered += records;
                false
            }
            SampleEntry::Carried(next) => {
                self.advance_to(next);
                false
            }
            SampleEntry::Bad(bad) => {
                self.quarantine(bad, block).map_err(|error| Box::new(self.failure(error)))?;
                false
            }
            SampleEntry::ShardEnd(end) => {
                self.end_shard(end).map_err(|error| Box::new(self.failure(error)))?
            }
            SampleEntry::Failed { error, position } => {
                let left_out_before = std::mem::take(&mut self.left_out);
                return Err(Box::new(Failure { error, position, left_out_before }));
            }
        };
        if self.left_out == LeftOut::default() {
            self.safe = self.position;
        }
        if ends_window {
            self.window = Window::new((2 * self.window.most_bytes).min(LARGEST_WINDOW_BYTES));
        }
        Ok(ends_window && self.spec.window().is_some())
    }

    fn advance_to(&mut self, next: Position) {
        self.position = self.position.at(next);
    }

    fn failure(&self, error: Error) -> Failure {
        Failure { error, position: self.safe, left_out_before: LeftOut::default() }
    }

    /// Counts a document into the window, if there are windows. Returns whether it ends it.
    fn fills_window(&mut self, text_bytes: usize) -> bool {
        let Some(most) = self.spec.window() else { return false };
        self.window.documents += 1;
        self.window.bytes += text_bytes;
        self.window.documents >= most || self.window.bytes >= self.window.most_bytes
    }

    /// Stops at a record that cannot be used, or counts and lists it.
    fn quarantine(&mut self, bad: BadRecord, block: &mut Block) -> Result<()> {
        let BadRecord { mut error, after, shard, next } = bad;
        if self.spec.on_error == OnError::Raise {
            let what = if after == AfterError::Lost { "the rest of this shard" } else { "it" };
            error.reason = format!("{}; set on_error=\"quarantine\" to skip {what}", error.reason);
            return Err(Error::Shard(error));
        }
        self.left_out.quarantined += QuarantineCounts::from(after);
        self.errors.add_bad(&error, after, self.position, shard)?;
        if let Some(file) = &self.file {
            file.append(self.lane, self.errors.counts().records, self.position.epoch, &error)?;
        }
        block.quarantined.push(error, after);
        self.advance_to(next);
        Ok(())
    }

    /// Returns whether an epoch ends with the shard, and with it a window.
    fn end_shard(&mut self, end: ShardEnd) -> Result<bool> {
        self.errors.judge_records(self.position, end.shard)?;
        let ends_epoch = end.next.epoch > self.position.epoch;
        if ends_epoch {
            self.check_endless()?;
            self.found_any = false;
        }
        self.position = end.next;
        Ok(ends_epoch)
    }

    /// Checks that the epoch had a document with a token, or that epochs are finite: a lane must not look for one forever.
    fn check_endless(&self) -> Result<()> {
        if self.found_any || self.spec.epochs.is_some() {
            return Ok(());
        }
        let epoch = self.position.epoch;
        let shards = &self.spec.plan.epoch(epoch)[self.lane];
        let quarantined = match (self.errors.counts().records, self.errors.last()) {
            (0, _) => String::new(),
            (records, None) => format!("; {} quarantined", counted(records, "record")),
            (records, Some(last)) => {
                format!("; {} quarantined, the last one: {last}", counted(records, "record"))
            }
        };
        let (filtered, advice) = match self.filtered {
            0 => (String::new(), "Remove"),
            records if self.spec.read.keep.is_some() => {
                (format!("; keep= filtered {}", counted(records, "record")), "Let keep= pass more, or remove")
            }
            records => (
                format!("; {} overlong or untrained", counted(records, "record")),
                "Raise sequence_length=, or remove",
            ),
        };
        let first = self.spec.shards[shards[0] as usize].name();
        let others = if shards.len() > 1 { ", ..." } else { "" };
        let remedy = if self.spec.plan.lanes() > 1 { ", or use fewer lanes=" } else { "" };
        Err(Error::Argument(format!(
            "lane {} has no valid document with a token in its {} of epoch {epoch} ({first}{others}): with epochs=None each lane \
             needs one in every epoch, or it would loop forever{filtered}{quarantined}. {advice} these shards{remedy}",
            self.lane,
            counted(shards.len() as u64, "shard"),
        )))
    }
}
