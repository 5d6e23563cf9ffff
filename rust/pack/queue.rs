//! The packing end of a lane: encoded documents in delivery order, and the cursor for every position in them.
//!
//! Without windows, documents are delivered in reading order, and the cursor names the next one. With windows, whole
//! windows are gathered and put in order, and the cursor names the window and how many of its documents, or rows, are
//! delivered. A record left out is counted when what follows it is reached: the next document, or the next window.

use std::collections::VecDeque;
use std::sync::Arc;

use super::tokens::TokenSlice;
use super::window::{Part, Window};
use crate::error::{Error, Result, ShardError};
use crate::lane::block::{Block, BlockEnd, Document, Failure, LeftOut};
use crate::lane::carried::Carried;
use crate::lane::cursor::{Cursor, RecordPosition, Totals};
use crate::lane::error_budget;
use crate::quarantine::file::QuarantineFile;
use crate::quarantine::log::QuarantineLog;
use crate::spec::mixture::Unit;
use crate::spec::{Packing, SourceSpec};

/// The documents of one lane, to be delivered token by token.
pub struct DocumentQueue {
    spec: Arc<SourceSpec>,
    lane: usize,
    /// Encoded blocks that are not begun, and their tokens.
    waiting: VecDeque<Block>,
    waiting_tokens: usize,
    window: Window,
    /// The position of the next token.
    cursor: Cursor,
    /// Quarantined records that were not yet counted, and those that were counted but not yet reported.
    quarantined: QuarantineLog,
    counted: QuarantineLog,
    /// Documents whose last token is in the current row, or in one before it that was left out.
    row_documents: u64,
    /// The epoch in which the first of the rows that were left out in succession ends.
    left_out_since: Option<u64>,
    /// The number of filtered records that were not yet counted.
    filtered: u64,
    /// The last epoch known to have a token before the cursor.
    token_epoch: Option<u64>,
    /// Whether `cursor` comes from a saved state whose document was not reached yet.
    resuming: bool,
    end: Option<Result<()>>,
    /// The documents of the window that were delivered before a border.
    carried: Option<Arc<Carried>>,
    /// The last sample of which an image could not be decoded, and the file that lists all of them.
    undecodable: Option<ShardError>,
    file: Option<Arc<QuarantineFile>>,
}

/// The documents or events that come next in a lane.
#[derive(Debug)]
pub enum Next<'a> {
    /// Tokens of a document.
    Tokens(Upcoming<'a>),
    /// More blocks must be pushed to know.
    Starved,
    /// The lane's last epoch has ended.
    Ended,
    /// An error that stops the run.
    Failed(Error),
}

/// The tokens of a document that come next.
#[derive(Debug, Clone, Copy)]
pub struct Upcoming<'a> {
    /// The tokens not yet delivered, to the document's end.
    pub rest: TokenSlice<'a>,
    /// How many of them come now: all, unless `best_fit` has placed only a piece of the document.
    pub piece: usize,
    /// Whether `best_fit` closes the row after that piece.
    pub ends_row: bool,
}

/// The supply of a source in a lane, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Supply {
    /// All that the next window may have by the one that is being delivered, or without windows all of the block.
    pub next: usize,
    /// Tokens of the window being delivered that are not delivered.
    pub left: usize,
    /// Tokens after the window: without the rest of its own, no window can begin.
    pub gathered: usize,
}

/// The counts of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowCounts {
    /// Elements that are padding.
    pub padding: usize,
    /// Tokens that a mask selects; 0 where there are no masks.
    pub trained: usize,
    /// Images.
    pub images: usize,
    /// Tokens of the images.
    pub image_tokens: usize,
}

fn count_document(totals: &mut Totals, document: &Document) {
    totals.documents += 1;
    totals.text_bytes += document.text_bytes as u64;
    totals.dropped += document.dropped as u64;
    totals.only_stops += u64::from(document.only_stops);
    totals.filtered_samples += u64::from(document.filtered_samples);
    totals.dropped_messages += u64::from(document.dropped_messages);
}

fn tokens_of(block: &Block) -> usize {
    block.documents.iter().map(|document| document.tokens).sum()
}

impl DocumentQueue {
    /// The documents from `cursor` on; the blocks pushed must begin at the cursor's window.
    pub fn new(spec: Arc<SourceSpec>, lane: usize, cursor: Cursor) -> Self {
        Self {
            spec,
            lane,
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            window: Window::default(),
            cursor,
            quarantined: QuarantineLog::default(),
            counted: QuarantineLog::default(),
            row_documents: 0,
            left_out_since: None,
            filtered: 0,
            token_epoch: (!cursor.window.begins_epoch() && cursor.tokenless == 0)
                .then_some(cursor.window.epoch),
            resuming: true,
            end: None,
            carried: None,
            undecodable: None,
            file: None,
        }
    }

    /// Lists samples of which an image cannot be decoded in this file.
    #[must_use]
    pub fn listing_in(mut self, file: Option<Arc<QuarantineFile>>) -> Self {
        self.file = file;
        self
    }

    /// Continues behind a border, before which some documents were delivered.
    #[must_use]
    pub fn carrying(mut self, carried: Option<&Arc<Carried>>) -> Self {
        self.carried = carried.cloned();
        if carried.is_some_and(|carried| carried.is_ahead_of(self.cursor.window)) {
            self.token_epoch = Some(self.cursor.window.epoch);
        }
        self
    }

    /// The position from which the next interval of the stream continues, and the documents from there on that were delivered.
    /// `None`: more blocks are needed to know them.
    pub fn carry(&mut self) -> Result<Option<(Cursor, Option<Arc<Carried>>)>> {
        let is_inside = |cursor: &Cursor| cursor.delivered | cursor.offset | cursor.window_hash > 0;
        if is_inside(&self.cursor) {
            match self.peek() {
                Next::Starved => return Ok(None),
                Next::Failed(error) => return Err(error),
                Next::Tokens(_) | Next::Ended => {}
            }
        }
        let mut cursor = self.cursor;
        let mut carried = match &self.carried {
            Some(carried) => carried.from(cursor.window),
            None => Carried::new(cursor.window.epoch),
        };
        if is_inside(&cursor) {
            let (rows, offset) = (&self.spec.rows, cursor.offset as usize);
            if self.has_windows() {
                let (records, again) = self.window.carry(offset, rows, &mut carried);
                cursor.totals.records += records;
                for document in again {
                    let mut own = Totals::default();
                    count_document(&mut own, &document);
                    cursor.totals = cursor.totals.without(&own);
                }
            } else if let Some(part) = self.window.part() {
                self.window.carry_part(&part, offset, rows, &mut carried);
            }
            (cursor.delivered, cursor.offset, cursor.window_hash, cursor.tokenless) = (0, 0, 0, 0);
        }
        let elements = cursor.totals.tokens + cursor.totals.padding;
        let length = self.spec.rows.sequence_length as u64;
        // A saved state may hold any numbers.
        cursor.totals.earlier_rows += elements.saturating_sub(cursor.totals.earlier_elements) / length;
        cursor.totals.earlier_elements = elements;
        Ok(Some((cursor, (!carried.is_empty()).then(|| Arc::new(carried)))))
    }

    /// The documents that were delivered before the last border.
    pub fn carried(&self) -> Option<Arc<Carried>> {
        self.carried.clone()
    }

    /// Adds the lane's next encoded block, once all that was pushed before is [used up](Next::Starved).
    pub fn push(&mut self, mut block: Block) {
        // One log for all blocks, so that it stays bounded however many blocks a window has.
        self.quarantined.append(std::mem::take(&mut block.quarantined));
        self.filtered += block.filtered;
        if !block.is_left_out() {
            self.waiting_tokens += tokens_of(&block);
            self.waiting.push_back(block);
        }
    }

    /// The supply that was pushed and not delivered.
    pub fn supply(&self) -> Supply {
        let Window { tokens, left, .. } = self.window;
        let growth = if self.cursor.window_grows() { 2 } else { 1 };
        Supply { next: growth * tokens, left, gathered: self.waiting_tokens }
    }

    /// The cursor of the next token, as of the last [`peek`](Self::peek).
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Counts a row that its tokens are in.
    pub fn count_row(&mut self, row: RowCounts, unit: Unit) {
        self.left_out_since = None;
        let totals = &mut self.cursor.totals;
        totals.padding += row.padding as u64;
        totals.trained += row.trained as u64;
        totals.images += row.images as u64;
        totals.image_tokens += row.image_tokens as u64;
        let documents = std::mem::take(&mut self.row_documents);
        self.cursor.in_stage += match unit {
            Unit::Rows => 0,
            Unit::Tokens => (self.spec.rows.sequence_length - row.padding) as u64,
            Unit::Samples => documents,
        };
    }

    /// Counts a row of so many tokens that is not delivered. An error if a lane without end has left out all rows of an
    /// epoch.
    pub fn leave_out_row(&mut self, tokens: usize) -> Result<()> {
        self.cursor.totals.tokens -= tokens as u64;
        self.cursor.totals.dropped += tokens as u64;
        let epoch = self.cursor.window.epoch;
        let since = *self.left_out_since.get_or_insert(epoch);
        if self.spec.epochs.is_some() || epoch <= since + 1 {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "lane {} has no row with a token to train on in epoch {}: with epochs=None each lane needs one in every epoch, or \
             it would loop forever. Raise sequence_length=, or look at what is trained on with gristmill inspect",
            self.lane,
            since + 1
        )))
    }

    /// Begins a stage of the mixture.
    pub fn begin_stage(&mut self) {
        self.cursor.in_stage = 0;
    }

    /// Counts and lists a delivered sample of this epoch of which an image cannot be decoded, so that its `trained` tokens are
    /// not trained on.
    pub fn count_undecodable(&mut self, epoch: u64, trained: usize, error: ShardError) -> Result<()> {
        self.cursor.totals.trained -= trained as u64;
        self.cursor.totals.undecodable += 1;
        let error = self.undecodable.insert(error).clone();
        self.judge_undecodable(false)?;
        let number = self.cursor.totals.undecodable;
        match &self.file {
            Some(file) => file.append_undecodable(self.lane, number, epoch, &error),
            None => Ok(()),
        }
    }

    /// An error if too many samples have images that cannot be decoded; at the lane's end however few there are.
    pub fn judge_undecodable(&self, is_end: bool) -> Result<()> {
        let (spec, totals, last) = (&self.spec, &self.cursor.totals, self.undecodable.as_ref());
        error_budget::judge_undecodable(spec, self.lane, totals, last, is_end)
    }

    /// The quarantined records counted since the last call: the newest ones if there are very many.
    pub fn take_quarantined(&mut self) -> Vec<ShardError> {
        std::mem::take(&mut self.counted).into_newest()
    }

    /// Moves to the next token, past documents without any, and returns what is there.
    pub fn peek(&mut self) -> Next<'_> {
        loop {
            while let Some(part) = self.window.part() {
                let document = *self.window.document(&part);
                if let Err(error) = self.reach(&document) {
                    self.window = Window::default();
                    self.end = Some(Err(error));
                    break;
                }
                if document.tokens > 0 {
                    return Next::Tokens(self.upcoming(&part));
                }
                self.finish_document(&document);
                self.window.advance();
            }
            self.close_window();
            match &self.end {
                Some(Ok(())) => return Next::Ended,
                Some(Err(error)) => return Next::Failed(error.clone()),
                None => {}
            }
            if !self.next_window() {
                return Next::Starved;
            }
        }
    }

    /// Moves past the next `written` tokens that [`peek`](Self::peek) returned.
    pub fn advance(&mut self, written: usize) {
        let Some(part) = self.window.part() else { return };
        let document = *self.window.document(&part);
        self.cursor.totals.tokens += written as u64;
        self.mark_inside();
        if self.is_placed() {
            if part.to == part.last {
                self.count_document(&document);
                self.row_documents += 1;
            }
            self.cursor.delivered += u64::from(part.ends_row);
            self.window.advance();
            return;
        }
        self.cursor.offset += written as u64;
        if self.cursor.offset == (part.to - part.from) as u64 {
            self.finish_document(&document);
            self.row_documents += 1;
            self.window.advance();
        }
    }

    fn upcoming(&self, part: &Part) -> Upcoming<'_> {
        let from = part.from + self.cursor.offset as usize;
        let document = self.window.document(part);
        let ids = &self.window.tokens(part)[from..];
        let trained = self.window.trained(part).map(|trained| &trained[from..]);
        let images = if from == 0 { self.window.images(part) } else { &[] };
        let values = self.window.values(part).after(from);
        let rest = TokenSlice { ids, trained, values, images, offset: from, document };
        Upcoming { rest, piece: part.to - from, ends_row: part.ends_row }
    }

    /// Whether parts are placed in rows, which the cursor then counts.
    fn is_placed(&self) -> bool {
        matches!(self.spec.rows.packing, Packing::BestFit { .. })
    }

    fn has_windows(&self) -> bool {
        self.spec.window().is_some()
    }

    /// Moves the cursor to a document. An error means that a saved state does not fit.
    fn reach(&mut self, document: &Document) -> Result<()> {
        let moved = !self.has_windows() && self.cursor.window != document.position;
        self.check_resumed(document.position, if moved { 0 } else { document.tokens as u64 })?;
        if moved {
            self.count_left_out(document.left_out_before);
            self.move_to(document.position);
        }
        if document.tokens > 0 {
            self.token_epoch = Some(document.position.epoch);
        }
        Ok(())
    }

    /// On the first call, checks that the document at the saved position, which has `tokens`, can be resumed. `position` is
    /// what was found there.
    fn check_resumed(&mut self, position: RecordPosition, tokens: u64) -> Result<()> {
        let offset = self.cursor.offset;
        if std::mem::take(&mut self.resuming) && offset > 0 && offset >= tokens {
            let what =
                format!("is at token {offset} of a document, but the document here has {tokens} tokens");
            return Err(self.does_not_fit(position, &what));
        }
        Ok(())
    }

    fn does_not_fit(&self, position: RecordPosition, what: &str) -> Error {
        let reason = format!(
            "the state of lane {} {what}: it was saved with other data or settings, or records were quarantined then \
             that can be read now, or the other way round",
            self.lane
        );
        let shard = self.spec.plan.epoch(position.epoch)[self.lane][position.shard as usize];
        Error::State(position.error(&self.spec.shards[shard as usize], reason).to_string())
    }

    /// Moves the cursor to a record.
    fn move_to(&mut self, position: RecordPosition) {
        let is_tokenless = !position.begins_epoch() && self.token_epoch != Some(position.epoch);
        self.cursor.tokenless = u64::from(is_tokenless && self.spec.epochs.is_none());
        self.cursor.window = position;
    }

    fn finish_document(&mut self, document: &Document) {
        self.count_document(document);
        self.mark_inside();
        if self.has_windows() {
            self.cursor.delivered += 1;
        } else {
            self.cursor.totals.records += u64::from(document.ends_record);
        }
        self.cursor.offset = 0;
    }

    /// The position is inside the window from now on, if there are windows.
    fn mark_inside(&mut self) {
        if self.has_windows() {
            self.cursor.window_hash = self.window.hash;
        }
    }

    fn count_document(&mut self, document: &Document) {
        count_document(&mut self.cursor.totals, document);
    }

    fn count_left_out(&mut self, count: LeftOut) {
        let LeftOut { quarantined, filtered } = count;
        self.counted.append(self.quarantined.take_first(quarantined));
        self.filtered -= filtered;
        self.cursor.totals.records += quarantined.records + filtered;
        self.cursor.totals.quarantined += quarantined.records;
        self.cursor.totals.lost_shards += quarantined.shards;
        self.cursor.totals.filtered += filtered;
    }

    /// Ends a window, or without windows a block, whose documents are all delivered.
    fn close_window(&mut self) {
        let Window { records, has_tokens, without_tokens, end: follows, .. } =
            std::mem::take(&mut self.window);
        let all = LeftOut { quarantined: self.quarantined.count(), filtered: self.filtered };
        let (position, left_out, end) = match follows {
            BlockEnd::More => return,
            BlockEnd::WindowEnd(next) => (next, all, None),
            BlockEnd::Ended(end) => (end, all, Some(self.may_end())),
            BlockEnd::Failed(failure) => {
                let Failure { error, position, left_out_before } = *failure;
                (position, left_out_before, Some(Err(error)))
            }
        };
        let fits = self.check_resumed(self.cursor.window, 0);
        let end = if let Some(Err(_)) = end { end } else { fits.err().map(Err).or(end) };
        if self.has_windows() {
            self.cursor.totals.records += records as u64;
            // All documents with tokens may have been delivered before a restore.
            self.token_epoch = has_tokens.then_some(self.cursor.window.epoch).or(self.token_epoch);
        }
        self.cursor.totals += without_tokens;
        self.count_left_out(left_out);
        self.move_to(position);
        self.cursor.delivered = 0;
        self.cursor.window_hash = 0;
        self.cursor.window_size += u64::from(self.cursor.window_grows());
        self.end = end;
    }

    /// Whether the lane may end here: not while shards are to be added, which it would never read.
    fn may_end(&self) -> Result<()> {
        let Some(step) = self.spec.adds_at else { return Ok(()) };
        Err(Error::Argument(format!(
            "lane {} ends before step {step}, from which on edits= adds shards that it would not read: add them at an earlier \
             step, raise epochs=, or train on them in another run",
            self.lane
        )))
    }

    /// Begins the next window, or without windows the next block. False if it is not complete.
    fn next_window(&mut self) -> bool {
        let ends_window = |block: &Block| !self.has_windows() || !matches!(block.end, BlockEnd::More);
        let Some(last) = self.waiting.iter().position(ends_window) else { return false };
        let mut blocks: Vec<Block> = self.waiting.drain(..=last).collect();
        self.waiting_tokens -= blocks.iter().map(tokens_of).sum::<usize>();
        let end = blocks.last_mut().map(|block| std::mem::take(&mut block.end)).unwrap_or_default();
        if let (true, BlockEnd::Failed(failure)) = (self.has_windows(), &end) {
            // A window that lacks a document has no defined order: the run stops before it.
            self.end = Some(Err(failure.error.clone()));
            return true;
        }
        let carried = self.carried.as_deref().filter(|carried| carried.is_ahead_of(self.cursor.window));
        self.window = Window::new(blocks, end, &self.spec, self.lane, self.cursor.window, carried);
        // Only a saved state can be inside a window that just begins.
        let Cursor { delivered, offset, window_hash, .. } = self.cursor;
        let misfit = if self.has_windows() && delivered | offset > 0 && window_hash != self.window.hash {
            "is inside the window of documents that begins here, but another window is read now"
        } else if !self.window.skip(delivered, self.is_placed()) {
            "counts more delivered documents or rows than the window that begins here holds"
        } else {
            return true;
        };
        self.window = Window::default();
        self.end = Some(Err(self.does_not_fit(self.cursor.window, misfit)));
        true
    }
}
