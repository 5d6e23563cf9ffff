//! Formats: how a file holds records.
//!
//! ```text
//! store ──> codec ──> RecordReader ──> RawRecord ──> Projection ──> text, and values for a filter
//! ```
//!
//! Reading and parsing are apart, because reading is serial within a shard and parsing is not: [`RecordReader`] finds
//! raw records and their positions, whatever the format; [`Projection`] later extracts the wanted columns of one, on any
//! thread. A filter of lines is evaluated there, too. Where a format has columns, the reader evaluates it, and does not
//! read the text of a row that is left out.
//!
//! `sniff` recognises codec and format. Each format has a folder with its reader; a new one is a variant of [`Format`], and
//! an arm where `reader` opens a shard and asks for the next record. docs/formats.md defines which files and records are accepted.

mod arrow;
mod columns;
mod ids;
mod jsonl;
pub mod keep;
mod options;
mod parquet;
mod projection;
mod reader;
mod sidecar;
mod sniff;
mod tar;
mod values;

use std::borrow::Cow;
use std::sync::Arc;

use gristmill_json::{write_json, write_string};

use crate::error::{Error, ShardError};

pub use gristmill_json::{Content, Line, Member, Path, Step, Value, View};
pub use ids::{IdFiles, IdKind};
pub use options::ReadOptions;
pub use projection::{ImageParts, KindOf, Medium, Projection, Scratch, SizeOf};
pub use reader::{Column, RecordReader, inflated_bytes, parts};
pub use sidecar::SidecarReader;
pub use tar::{FoundImage, GroupImages, key_at};
pub use values::{Values, text};

/// The first byte of a record with values whose types JSON lacks: no JSON begins with it.
const EXACT: u8 = 0;

/// The key of ids that have none, where records are shown.
const IDS: &str = "input_ids";

/// How a file holds records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Jsonl,
    /// A Parquet file; one row a record.
    Parquet,
    /// A stream or file of Arrow; one row a record.
    Arrow,
    /// A tar as `WebDataset` has them; one group of members a record.
    Tar,
    /// A file of ids with an index beside it, as Megatron has them; one document a record.
    Megatron,
    /// An array of ids, as NumPy has them, or without a head; one document a record.
    Array,
}

/// The position of a record in its shard, from which reading can resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// 0-based index of the record. For JSONL that of the line, blank lines counted; for tar that of the group; else
    /// that of the row.
    pub record: u64,
    /// The format's own hint. For JSONL the offset of the line's first byte in the inflated shard, for tar that of
    /// the group's first header; of ids that of the document; else 0.
    pub byte: u64,
}

impl Position {
    /// The byte for a message. None if the format has none: a line after the first one is never at byte 0.
    pub fn shown_byte(self) -> Option<u64> {
        (self.byte > 0 || self.record == 0).then_some(self.byte)
    }
}

/// A record as its format holds it, not parsed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRecord<'a> {
    /// The meaning of `bytes`.
    pub kind: RawKind,
    /// Where the record starts.
    pub position: Position,
    /// The record, or the wanted columns of it.
    pub bytes: &'a [u8],
    /// The images of a group in a tar, if they are wanted.
    pub images: Option<&'a GroupImages>,
}

impl<'a> RawRecord<'a> {
    /// A record without images.
    pub fn new(kind: RawKind, position: Position, bytes: &'a [u8]) -> Self {
        Self { kind, position, bytes, images: None }
    }
}

/// The meaning of a raw record's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawKind {
    /// A line, without its newline but with the byte order mark that may begin a shard; or the wanted members of a group in a
    /// tar, as a JSON object. Nothing was filtered yet.
    Line,
    /// The wanted columns of a row that is kept, as a packed object: see [`View::packed`].
    Row,
    /// The wanted text of a row that is kept, or of a group in a tar.
    Text,
    /// Nothing: the filter leaves the row out.
    Filtered,
    /// Ready ids.
    Ids {
        /// The type of the numbers.
        kind: IdKind,
        /// Whether the token that ends documents is among them, if any is.
        is_ended: bool,
    },
}

/// A record, or all records from that one on, cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ReadError {
    /// The fault, and the first record that is lost.
    pub error: ShardError,
    /// Whether the records after it can still be read.
    pub rest: AfterError,
}

/// Consequence of a [`ReadError`] for the records after it.
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

/// The value of a JSON text. The error is a message about it.
pub(crate) fn json_value(text: &[u8]) -> Result<View<'_>, String> {
    jsonl::value(text)
}

/// A record as JSON, without the byte order mark that may begin a shard.
pub fn json_of(record: RawRecord<'_>) -> Cow<'_, [u8]> {
    match record.kind {
        RawKind::Line => Cow::Borrowed(jsonl::without_mark(record.bytes, record.position)),
        RawKind::Row => {
            let mut json = Vec::new();
            write_json(View::packed(record.bytes), &mut json);
            Cow::Owned(json)
        }
        RawKind::Text | RawKind::Filtered => Cow::Borrowed(record.bytes),
        RawKind::Ids { kind, .. } => {
            let mut ids = Vec::new();
            let _ = kind.ids(record.bytes, &mut ids);
            Cow::Owned(format!("{{\"{IDS}\":{ids:?}}}").into_bytes())
        }
    }
}

/// Appends a record as `gristmill._prompts.exact` reads it, with what it has of values whose types JSON lacks, and calls
/// `each` with its keys as JSON writes them.
pub fn write_exact(record: RawRecord<'_>, out: &mut Vec<u8>, mut each: impl FnMut(&str)) {
    if record.kind != RawKind::Row {
        let json = json_of(record);
        out.extend_from_slice(&json);
        return gristmill_json::for_each_key(&json, each);
    }
    let (row, start) = (View::packed(record.bytes), out.len());
    out.push(EXACT);
    if !gristmill_json::write_exact(row, out) {
        out.remove(start);
    }
    let mut written = Vec::new();
    for (key, _) in row.packed_members() {
        written.clear();
        write_string(key, &mut written);
        each(str::from_utf8(&written[1..written.len() - 1]).unwrap_or_default());
    }
}

/// An error at a position of a shard.
fn located(shard: &Arc<str>, position: Position, reason: String) -> ShardError {
    ShardError {
        shard: Arc::clone(shard),
        record: Some(position.record),
        byte: position.shown_byte(),
        reason,
    }
}
