//! A block: the documents that are read, encoded and packed as one unit of work.

use super::id_buffer::Ids;
use crate::error::Error;
use crate::lane::cursor::RecordPosition;
use crate::quarantine::log::{QuarantineCounts, QuarantineLog};

/// Some documents of a lane, in stream order, with what was found among and after them.
#[derive(Debug, Default)]
pub struct Block {
    /// The sound documents.
    pub documents: Vec<Document>,
    /// The ids of all documents, one after another, BOS and EOS included. Filled by encoding.
    pub ids: Ids,
    /// The records that were left out.
    pub quarantined: QuarantineLog,
    /// What comes next.
    pub then: BlockEnd,
}

impl Block {
    /// Whether it holds nothing but bad records, and more follows.
    pub fn is_bad(&self) -> bool {
        self.documents.is_empty() && matches!(self.then, BlockEnd::More)
    }
}

/// One document of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Document {
    /// The place of its record.
    pub place: RecordPosition,
    /// The index in the manifest of the shard that contains it.
    pub shard: u32,
    /// Bytes of UTF-8 text.
    pub text_bytes: usize,
    /// Number of its ids. Filled by encoding.
    pub tokens: usize,
    /// What was left out between the previous document (possibly of the previous block) and this one.
    pub quarantined_before: QuarantineCounts,
}

/// What follows the documents of a block.
#[derive(Debug, Default)]
pub enum BlockEnd {
    /// The next block, in the same window.
    #[default]
    More,
    /// The end of a window. The next one begins at this place.
    WindowEnd(RecordPosition),
    /// The end of the lane's last epoch, and its place.
    Ended(RecordPosition),
    /// An error that stops the run.
    Failed(Box<Failure>),
}

/// What stops a lane, and where it can be retried.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What is wrong.
    pub error: Error,
    /// Where reading resumes in a run that is restored after the last sound document.
    pub place: RecordPosition,
    /// What was left out between that document and `place`.
    pub quarantined_before: QuarantineCounts,
}
