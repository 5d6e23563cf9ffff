//! The packing end of a lane: encoded documents in the order in which they are given, and the
//! cursor that goes with every place in them.
//!
//! Without shuffling, documents are given as they are read, and the cursor names the next one.
//! With it, whole windows are gathered and permuted, and the cursor names the window and how many
//! of its documents are given. A quarantined record is counted when what lies behind it is reached:
//! the next document, or the next window.

use std::collections::VecDeque;

use super::block::{Block, Document, Then};
use super::cursor::{Cursor, Place, Totals};
use crate::config::Shuffle;
use crate::error::{Error, Result, ShardError};
use crate::random::{Purpose, permutation};

/// The documents of one lane, to be given token by token.
pub struct Documents {
    lane: usize,
    shuffle: Option<Shuffle>,
    /// Blocks that are encoded and not begun.
    waiting: VecDeque<Block>,
    window: Window,
    /// The place of the next token.
    cursor: Cursor,
    /// Quarantined records that were met, and those of them that were counted and not yet reported.
    quarantined: VecDeque<ShardError>,
    counted: Vec<ShardError>,
    /// Whether `cursor` comes from a saved state whose document was not met yet.
    resuming: bool,
    end: Option<End>,
}

/// What comes next in a lane.
#[derive(Debug, PartialEq)]
pub enum Next<'a> {
    /// A document.
    Document {
        /// Those of its tokens that are not given yet.
        tokens: &'a [u32],
        /// Whether these are all of them.
        opens: bool,
    },
    /// More blocks must be pushed to know.
    Starved,
    /// The lane has given its last epoch.
    Ended,
    /// A record that stops the run.
    Failed(Error),
}

#[derive(Debug, Clone)]
enum End {
    Ended,
    Failed(Error),
}

/// The documents that may be given now: a whole window, or without shuffling a block.
#[derive(Default)]
struct Window {
    blocks: Vec<Block>,
    /// In the order in which they are given.
    order: Vec<Given>,
    next: usize,
    /// What happens when all are given.
    then: Then,
}

/// A document of a window, and where its ids are.
#[derive(Clone, Copy)]
struct Given {
    block: usize,
    start: usize,
    document: Document,
}

impl Documents {
    /// Documents from `cursor` on; the blocks pushed must begin at the cursor's window.
    pub fn new(lane: usize, shuffle: Option<Shuffle>, cursor: Cursor) -> Self {
        Self {
            lane,
            shuffle,
            waiting: VecDeque::new(),
            window: Window::default(),
            cursor,
            quarantined: VecDeque::new(),
            counted: Vec::new(),
            resuming: true,
            end: None,
        }
    }

    /// Adds the lane's next encoded block.
    pub fn push(&mut self, block: Block) {
        self.waiting.push_back(block);
    }

    /// The cursor of the next token, as of the last [`peek`](Self::peek).
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// For what only the packing can count.
    pub fn totals_mut(&mut self) -> &mut Totals {
        &mut self.cursor.totals
    }

    /// The quarantined records counted since the last call.
    pub fn take_quarantined(&mut self) -> Vec<ShardError> {
        std::mem::take(&mut self.counted)
    }

    /// Moves to the next token, over documents without any, and says what is there.
    pub fn peek(&mut self) -> Next<'_> {
        loop {
            while let Some(&given) = self.window.order.get(self.window.next) {
                if let Err(error) = self.reach(&given) {
                    self.window = Window::default();
                    self.end = Some(End::Failed(error));
                    break;
                }
                if given.document.tokens > 0 {
                    let offset = self.cursor.offset as usize;
                    let tokens = &self.window.blocks[given.block].ids[given.start..][..given.document.tokens];
                    return Next::Document { tokens: &tokens[offset..], opens: offset == 0 };
                }
                self.finish_document(&given);
            }
            self.close_window();
            match &self.end {
                Some(End::Ended) => return Next::Ended,
                Some(End::Failed(error)) => return Next::Failed(error.clone()),
                None => {}
            }
            if !self.next_window() {
                return Next::Starved;
            }
        }
    }

    /// Gives the next `tokens` tokens of the document that [`peek`](Self::peek) showed.
    pub fn advance(&mut self, tokens: usize) {
        let given = self.window.order[self.window.next];
        self.cursor.offset += tokens as u64;
        self.cursor.totals.tokens += tokens as u64;
        if self.cursor.offset == given.document.tokens as u64 {
            self.finish_document(&given);
        }
    }

    /// Moves the cursor to a document. An error means that a saved state does not fit.
    fn reach(&mut self, given: &Given) -> Result<()> {
        let Document { place, quarantined_before, tokens, .. } = given.document;
        let moved = self.shuffle.is_none() && self.cursor.window != place;
        if std::mem::take(&mut self.resuming) && self.cursor.offset > 0 {
            let found = if moved { 0 } else { tokens as u64 };
            if self.cursor.offset >= found {
                return Err(Error::State(format!(
                    "the state stands at token {} of the document at record {}, which has {found} tokens: it was \
                     saved with other data or settings",
                    self.cursor.offset, self.cursor.window.record
                )));
            }
        }
        if moved {
            self.count_quarantined(quarantined_before as usize);
            self.cursor.window = place;
        }
        Ok(())
    }

    fn finish_document(&mut self, given: &Given) {
        let totals = &mut self.cursor.totals;
        totals.documents += 1;
        totals.text_bytes += given.document.text_bytes as u64;
        if self.shuffle.is_some() {
            self.cursor.given += 1;
        } else {
            totals.records += 1;
        }
        self.cursor.offset = 0;
        self.window.next += 1;
    }

    fn count_quarantined(&mut self, count: usize) {
        self.counted.extend(self.quarantined.drain(..count));
        self.cursor.totals.records += count as u64;
        self.cursor.totals.quarantined += count as u64;
    }

    /// Ends a window, or without shuffling a block, whose documents are all given.
    fn close_window(&mut self) {
        let window = std::mem::take(&mut self.window);
        let (place, end) = match window.then {
            Then::More => return,
            Then::WindowEnd(next) => (next, None),
            Then::Ended(end) => (end, Some(End::Ended)),
            Then::Failed(error, place) => (place, Some(End::Failed(error))),
        };
        if self.shuffle.is_some() {
            self.cursor.totals.records += window.order.len() as u64;
        }
        self.count_quarantined(self.quarantined.len());
        self.cursor.window = place;
        self.cursor.given = 0;
        self.end = end;
    }

    /// Begins the next window, or without shuffling the next block. False: it is not all there.
    fn next_window(&mut self) -> bool {
        let ends_window = |block: &Block| self.shuffle.is_none() || !matches!(block.then, Then::More);
        let Some(last) = self.waiting.iter().position(ends_window) else { return false };
        let mut blocks: Vec<Block> = self.waiting.drain(..=last).collect();
        let then = blocks.last_mut().map(|block| std::mem::take(&mut block.then)).unwrap_or_default();
        if let (Some(_), Then::Failed(error, _)) = (self.shuffle, &then) {
            // A window that lacks a document has no order: the run stops before it.
            self.end = Some(End::Failed(error.clone()));
            return true;
        }
        for block in &mut blocks {
            self.quarantined.extend(block.quarantined.drain(..));
        }
        let mut order = in_stream_order(&blocks);
        if let Some(Shuffle { seed, .. }) = self.shuffle {
            let Place { epoch, shard, record, .. } = self.cursor.window;
            let key = [self.lane as u64, epoch, shard, record];
            let permuted = permutation(order.len(), seed, Purpose::Window, &key);
            order = permuted.into_iter().map(|index| order[index as usize]).collect();
        }
        // Only a saved state can have given any of a window that just begins.
        let next = self.cursor.given as usize;
        if next > order.len() {
            self.end = Some(End::Failed(Error::State(format!(
                "the state has given {next} documents of a window of {}: it was saved with other data or settings",
                order.len()
            ))));
            return true;
        }
        self.window = Window { blocks, order, next, then };
        true
    }
}

fn in_stream_order(blocks: &[Block]) -> Vec<Given> {
    let mut order = Vec::with_capacity(blocks.iter().map(|block| block.documents.len()).sum());
    for (index, block) in blocks.iter().enumerate() {
        let mut start = 0;
        for &document in &block.documents {
            order.push(Given { block: index, start, document });
            start += document.tokens;
        }
    }
    order
}
