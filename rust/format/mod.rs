//! Formats: how a file holds records.
//!
//! ```text
//! store ──> codec ──> format: lines ──> json ──> the document's text
//! ```
//!
//! `sniff` recognises codec and format, `jsonl` finds records in bounded memory, and its `json` validates a line and
//! unescapes one string of it. [`ShardReader`] combines them and tracks positions.
//!
//! docs/errors.md defines which lines and files are sound.

mod jsonl;
mod sniff;

use std::path::PathBuf;

use crate::error::{Error, ShardError};

pub use jsonl::{Member, ShardReader, inflated_bytes};

/// What to read, and how much to accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// The folder that relative paths of shards start from: the working folder may change while they are read.
    pub folder: PathBuf,
    /// The key under which a record holds its text.
    pub text_field: String,
    /// The longest line that is read, in inflated bytes without its newline.
    pub max_document_bytes: u64,
}

/// How a file holds records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Jsonl,
}

/// The place of a record in its shard, from which reading can resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// 0-based line, blank lines counted.
    pub record: u64,
    /// Offset of the line's first byte in the inflated shard.
    pub byte: u64,
}

/// A record, or all records from that one on, cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ReadError {
    /// What is wrong, and the first record that is lost.
    pub error: ShardError,
    /// Whether the records after it can still be read.
    pub rest: AfterError,
}

/// What a [`ReadError`] means for the records after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterError {
    /// One record is bad; the next call continues after it.
    Readable,
    /// The rest of the shard cannot be read; the next call finds the end.
    Lost,
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        Self::Shard(error.error)
    }
}
