//! Shards to documents: inflate, split into lines, extract the wanted text.
//!
//! ```text
//! file ──> inflate ──> lines ──> json ──> the document's text
//! ```
//!
//! `file` hands out the bytes on disk and sees when they change, `inflate` knows gzip, `lines` finds
//! records in bounded memory, `json` validates a line and unescapes one string of it. [`ShardReader`]
//! puts them together and says where each thing stands.
//!
//! Which lines and which files are sound is one rule, in docs/errors.md.

mod file;
mod inflate;
mod json;
mod lines;
mod reader;

use std::sync::Arc;

use crate::error::{Error, ShardError};

pub use json::Member;
pub use reader::ShardReader;

/// What to read, and how much to accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// The key under which a record holds its text.
    pub text_field: String,
    /// The longest line that is read, in inflated bytes without its newline.
    pub max_document_bytes: u64,
}

/// One input file, as the manifest knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Path of the file.
    pub path: Arc<str>,
    /// Its size on disk when the manifest was made.
    pub size: u64,
}

/// Where a record stands in its shard, and where reading can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// 0-based line, blank lines counted.
    pub record: u64,
    /// Offset of the line's first byte in the inflated shard.
    pub byte: u64,
}

/// What [`ShardReader::next`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// A document, whose text was appended.
    Document {
        /// Where its record stands.
        at: Position,
        /// Bytes of text appended.
        length: usize,
    },
    /// The shard has no more documents that can be read.
    End,
}

/// A record, or all records from one on, that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ReadError {
    /// What is wrong, for the user, and the first record that is lost.
    pub error: ShardError,
    /// Whether the records after it can still be read.
    pub rest: Rest,
}

/// What a [`ReadError`] means for the records after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// One record is bad; the next call goes on behind it.
    Readable,
    /// The shard cannot be read on; the next call gives [`Item::End`].
    Lost,
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        Self::Shard(error.error)
    }
}
