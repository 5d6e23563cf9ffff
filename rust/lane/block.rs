//! Blocks: the records that are read, encoded and packed as one unit of work.
//!
//! ```text
//! LaneReader ──> RawBlock ──> prepare, encode ──> SampleBlock ──> Admission ──> Block ──> pack
//! serial         raw bytes    parallel            ids             serial        valid documents, ends of windows
//! ```

use std::sync::Arc;

use super::carried::Carried;
use super::cursor::RecordPosition;
use super::id_buffer::IdBuffer;
use super::joined_shard::Beside;
use crate::error::{Error, ShardError};
use crate::format::{AfterError, GroupImages, Position, RawKind};
use crate::quarantine::log::{QuarantineCounts, QuarantineLog};

/// Some records of a lane as its formats hold them, in stream order.
#[derive(Debug, Default)]
pub struct RawBlock {
    /// The bytes of all records, one after another.
    pub bytes: Vec<u8>,
    /// The records and ends of shards, in order.
    pub entries: Vec<RawEntry>,
    /// For each record, position and length of that of each of the stream's sidecars; none where its shard has none. Their
    /// bytes come after the record's own.
    pub sidecars: Beside,
    /// The records among them that were delivered before a border.
    pub carried: Option<Arc<Carried>>,
    /// More records, or the end.
    pub end: ReadEnd,
}

/// One item that a lane's reader found.
#[derive(Debug)]
pub enum RawEntry {
    /// A record.
    Record {
        /// The meaning of its bytes.
        kind: RawKind,
        /// Its position.
        position: RecordPosition,
        /// The index in the manifest of its shard.
        shard: u32,
        /// The position after it.
        next: Position,
        /// Its bytes.
        length: usize,
        /// Its images, if they are wanted.
        images: Option<Box<GroupImages>>,
    },
    /// A record that the row list leaves out, and the position after it.
    Dropped(Position),
    /// One that was delivered before a border of the stream.
    Carried(Position),
    /// A record, or the rest of a shard, that cannot be read.
    Unreadable(BadRecord),
    /// The end of a shard.
    ShardEnd(ShardEnd),
}

/// A record that cannot be used.
#[derive(Debug)]
pub struct BadRecord {
    /// The error, with shard, record and byte.
    pub error: ShardError,
    /// Whether the records after it can be read.
    pub after: AfterError,
    /// The index in the manifest of its shard.
    pub shard: u32,
    /// The position after it.
    pub next: Position,
}

/// The end of a shard in a lane.
#[derive(Debug, Clone, Copy)]
pub struct ShardEnd {
    /// The index in the manifest of the shard.
    pub shard: u32,
    /// Where the lane's next shard begins, which may be in the next epoch.
    pub next: RecordPosition,
}

/// The end of a block of records.
#[derive(Debug, Default)]
pub enum ReadEnd {
    /// More records.
    #[default]
    More,
    /// Nothing: the lane's last epoch has ended.
    Ended,
    /// An error that stops the run.
    Failed(Error),
}

/// Some records of a lane as samples with ids, in stream order.
#[derive(Debug, Default)]
pub struct SampleBlock {
    /// The samples, bad records and ends of shards, in order.
    pub entries: Vec<SampleEntry>,
    /// The ids of all samples, one after another, BOS and EOS included.
    pub ids: IdBuffer,
    /// More records, or the end.
    pub end: ReadEnd,
}

/// The outcome for one record.
#[derive(Debug)]
pub enum SampleEntry {
    /// A valid document.
    Document {
        /// The document. `Admission` fills in `left_out_before`.
        document: Document,
        /// The position after its record; none if another document of the record follows.
        next: Option<Position>,
    },
    /// Successive records that are left out because it was asked for: by a filter or the row list, or as overlong or
    /// untrained.
    Filtered {
        /// How many.
        records: u64,
        /// The position after them.
        next: Position,
    },
    /// A record that was delivered before a border of the stream, and the position after it.
    Carried(Position),
    /// A record that cannot be used.
    Bad(BadRecord),
    /// The end of a shard.
    ShardEnd(ShardEnd),
    /// A document that cannot be encoded, which stops the run.
    Failed {
        /// The error.
        error: Error,
        /// The position of the document.
        position: RecordPosition,
    },
}

/// Some documents of a lane, in stream order, with the records left out among them.
#[derive(Debug, Default)]
pub struct Block {
    /// The valid documents.
    pub documents: Vec<Document>,
    /// The ids of the documents, one after another, among others.
    pub ids: Arc<IdBuffer>,
    /// Index of the first document's first id.
    pub first_id: usize,
    /// Index of its first image.
    pub first_image: usize,
    /// Index of the first document among the samples that have values.
    pub first_sample: usize,
    /// The quarantined records.
    pub quarantined: QuarantineLog,
    /// The number of filtered records.
    pub filtered: u64,
    /// More documents, or an end.
    pub end: BlockEnd,
}

/// One document of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Document {
    /// The position of its record.
    pub position: RecordPosition,
    /// The index in the manifest of its shard.
    pub shard: u32,
    /// Number of its images.
    pub images: u32,
    /// Bytes of UTF-8 text.
    pub text_bytes: usize,
    /// Number of its ids.
    pub tokens: usize,
    /// Number of further ids, which truncation has dropped.
    pub dropped: usize,
    /// Number of messages that truncation has left out.
    pub dropped_messages: u32,
    /// How many of its ids are those of the first segment of a pair; 0: it has one segment.
    pub split: usize,
    /// Whether nothing that its messages say is trained on, but only the tokens that end them.
    pub only_stops: bool,
    /// How many samples of its record are left out between the document before it and this one, and behind the record's last
    /// one.
    pub filtered_samples: u32,
    /// Whether it is the last one of its record.
    pub ends_record: bool,
    /// The records left out between the previous document (possibly of the previous block) and this one.
    pub left_out_before: LeftOut,
}

/// How many records are left out of the stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Records and shards that cannot be used.
    pub quarantined: QuarantineCounts,
    /// Records that are left out because it was asked for.
    pub filtered: u64,
}

/// The end of a block of documents.
#[derive(Debug, Default)]
pub enum BlockEnd {
    /// The next block, in the same window.
    #[default]
    More,
    /// The end of a window. The next one begins at this position.
    WindowEnd(RecordPosition),
    /// The end of the lane's last epoch, and its position.
    Ended(RecordPosition),
    /// An error that stops the run.
    Failed(Box<Failure>),
}

/// The error that stops a lane, and the position to retry from.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The error.
    pub error: Error,
    /// Where reading resumes in a run that is restored after the last valid document.
    pub position: RecordPosition,
    /// The records left out between that document and `position`.
    pub left_out_before: LeftOut,
}

impl Document {
    /// How many segments, and samples with values, it has.
    pub fn segments(&self) -> usize {
        if self.split > 0 { 2 } else { 1 }
    }
}

impl RawBlock {
    /// Removes all records, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.sidecars.clear();
        self.end = ReadEnd::More;
    }
}

impl Block {
    /// Whether it holds nothing but records left out, and more follows.
    pub fn is_left_out(&self) -> bool {
        self.documents.is_empty() && matches!(self.end, BlockEnd::More)
    }
}
