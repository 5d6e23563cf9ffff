//! The specification of a stream and of this host's part of it. Python validates it; the core trusts it.

pub mod fields;
pub mod mixture;
pub mod rows;
pub mod sidecars;

use std::sync::Arc;

use crate::format::ReadOptions;
use crate::lane::assignment::Plan;
use crate::lane::block::Document;
use crate::pack::balance::RowCost;
use crate::prepare::Prepare;
use crate::prepare::values::SourceFields;
use crate::store::Shard;
use mixture::Mixing;
use rows::Rows;
use sidecars::Sidecars;

/// The policy for records that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OnError {
    /// The run stops there.
    Raise,
    /// The record is quarantined, as long as at most this share of a lane's records and of its shards is.
    Quarantine {
        /// Largest accepted share of bad records, 0 to 1.
        max_error_rate: f64,
    },
}

/// How documents are put in an order other than that of the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shuffle {
    /// Key of all permutations.
    pub seed: u64,
    /// Documents that are permuted together.
    pub window: usize,
}

/// How documents become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Joined, and cut every `sequence_length` tokens.
    Concat,
    /// Placed whole, a window of documents at a time, each in the fullest row that has room for it.
    BestFit {
        /// Documents that are placed together.
        window: usize,
    },
    /// One to a row.
    Pad,
}

/// The part that is kept of a document longer than a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// Its start.
    Right,
    /// Its end.
    Left,
    /// Its first half row and its last half row.
    Middle,
    /// Nothing: it stops the run.
    Error,
    /// All of it, in as many rows as it needs.
    Split,
    /// Nothing: it is left out.
    Drop,
    /// The system prompt and the last turns of a conversation, from a message of the user on. One of which not even the last
    /// round fits is left out.
    Turns,
}

/// The fate of a row that trains nothing, by its layout's labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UntrainedRows {
    /// It is delivered. Rows of samples without a mask are trained on.
    Deliver,
    /// It is left out, and its tokens are dropped.
    Drop,
    /// It is an error: a document of which it is known beforehand is a bad record; else it stops the run, or is left out
    /// where bad records are quarantined.
    Error,
}

/// A set of arrays, named after the library that reads it: see `batch::layouts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `inputs`, `targets` and their segmentations and positions.
    MaxText,
    /// `tokens`, `tokens_segment_ids`, `tokens_positions`, as Grain's packers name them.
    Grain,
    /// `input_ids`, `attention_mask`, `position_ids`, `labels`, as Hugging Face models take them.
    Hf,
    /// `tokens` and the lengths of their segments, of which devices make the arrays of other layouts. Rows begin with
    /// tokens, and `pad` does not cut in the middle: neither shows in the lengths.
    Varlen,
}

impl Layout {
    /// Whether the label of a row's last token is the one that follows it in the next row: targets are shifted, and the
    /// labels of other layouts belong to the tokens themselves.
    pub fn has_targets(self) -> bool {
        match self {
            Self::MaxText | Self::Varlen => true,
            Self::Grain | Self::Hf => false,
        }
    }
}

/// The definition of a stream, the same on every host: what is read, how it becomes rows, and how sources are mixed. A
/// stream without a mixture is one with a single source.
#[derive(Clone)]
pub struct StreamSpec {
    /// The sources, in the order of their names.
    pub sources: Vec<Arc<SourceSpec>>,
    /// How documents become rows.
    pub rows: RowSpec,
    /// How the sources are mixed; none if it is no mixture.
    pub mixing: Option<Mixing>,
    /// Steps that are made and not delivered: from each first one up to an end, in order and apart.
    pub skip: Vec<(u64, u64)>,
    /// The steps that it defines.
    pub interval: Interval,
}

/// The steps of a stream for which a [`StreamSpec`] holds: rows and records that are left out change at its borders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interval {
    /// The first step.
    pub first: u64,
    /// The border: the first step behind it; `None`: there is no other interval.
    pub until: Option<u64>,
    /// Whether the next interval continues the windows of this one, since only the number of rows differs.
    pub keeps_windows: bool,
    /// Whether the counts of a mixture's stage begin anew with the next interval, since its rows have other sizes.
    pub ends_stage: bool,
}

/// Shards that are read in one way.
pub struct SourceSpec {
    /// Its name in a mixture; else empty.
    pub name: String,
    /// Its index in the order in which the user has listed the sources.
    pub number: i32,
    /// The index of its first piece among those of all sources.
    pub first_piece: u32,
    /// The name of its stream in a quarantine file; empty: that of the whole.
    pub log_name: String,
    /// The shards that are dealt to lanes: those of the manifest, the large ones in pieces.
    pub shards: Vec<Shard>,
    /// The shards of each lane.
    pub plan: Plan,
    /// How records are read.
    pub read: Arc<ReadOptions>,
    /// The sidecars that are read beside the shards, and the filter over both.
    pub sidecars: Sidecars,
    /// Rows that are left out.
    pub drop: Arc<Rows>,
    /// The kind of sample that a record becomes.
    pub prepare: Prepare,
    /// The fields of the stream, and where the records have their values.
    pub fields: SourceFields,
    /// The policy for bad records.
    pub on_error: OnError,
    /// The fate of rows that train nothing.
    pub untrained_rows: UntrainedRows,
    /// `None`: the order of the shards.
    pub shuffle: Option<Shuffle>,
    /// `None`: endless.
    pub epochs: Option<u64>,
    /// The step at which shards are added, if that lies ahead: no lane may end before it.
    pub adds_at: Option<u64>,
    /// Put before each document.
    pub bos: Option<u32>,
    /// Put after each document.
    pub eos: Option<u32>,
    /// The rows of the stream.
    pub rows: RowSpec,
    /// The cost of rows, if a window's are put in an order in which steps cost the same.
    pub balance: Option<RowCost>,
}

/// How documents become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSpec {
    /// Tokens in a row.
    pub sequence_length: usize,
    /// How documents become rows.
    pub packing: Packing,
    /// The part that is kept of a document longer than a row.
    pub truncation: Truncation,
    /// The most segments in a row.
    pub max_segments: Option<usize>,
    /// The arrays of a batch.
    pub layout: Layout,
    /// The number that the index of each segment's first token is a multiple of.
    pub segment_multiple: usize,
    /// Whether a document's last token has the next document's first as its target. Only `maxtext` has targets.
    pub boundary_targets: bool,
    /// Rows of each lane in a step.
    pub rows_per_lane: usize,
}

impl From<SourceSpec> for StreamSpec {
    fn from(source: SourceSpec) -> Self {
        Arc::new(source).into()
    }
}

impl From<Arc<SourceSpec>> for StreamSpec {
    fn from(source: Arc<SourceSpec>) -> Self {
        Self {
            rows: source.rows,
            sources: vec![source],
            mixing: None,
            skip: Vec::new(),
            interval: Interval::default(),
        }
    }
}

impl StreamSpec {
    /// The first step from `step` on that is delivered.
    pub fn delivered_from(&self, step: u64) -> u64 {
        self.skip.iter().find(|(first, end)| (*first..*end).contains(&step)).map_or(step, |(_, end)| *end)
    }

    /// How many steps before `step` are not delivered.
    pub fn skipped_before(&self, step: u64) -> u64 {
        self.skip.iter().map(|&(first, end)| end.min(step).saturating_sub(first)).sum()
    }
}

impl SourceSpec {
    /// Whether some shard is in a store on the network.
    pub fn is_remote(&self) -> bool {
        self.shards.iter().chain(self.sidecars.files()).any(Shard::is_remote)
    }

    /// Whether a row may be left out because it trains nothing.
    pub fn leaves_out_rows(&self) -> bool {
        match self.untrained_rows {
            UntrainedRows::Deliver => false,
            UntrainedRows::Drop => true,
            UntrainedRows::Error => self.on_error != OnError::Raise,
        }
    }

    /// Documents in a window that is ordered as a whole; `None`: documents are delivered in reading order. A lane has
    /// one kind of window, that of shuffling if there is any: `best_fit` then places consecutive shares of the permuted
    /// window, so that one position and one count still make a cursor. Separate fit windows after the
    /// permutation would straddle the shuffle windows, and a cursor would have to name two of those.
    pub fn window(&self) -> Option<usize> {
        match (self.shuffle, self.rows.packing) {
            (Some(shuffle), _) => Some(shuffle.window),
            (None, Packing::BestFit { window }) => Some(window),
            (None, Packing::Concat | Packing::Pad) => None,
        }
    }
}

impl RowSpec {
    /// The elements that a segment of so many tokens takes, up to where the next one may begin.
    pub fn elements(&self, tokens: usize) -> usize {
        tokens.next_multiple_of(self.segment_multiple)
    }

    /// How many tokens of a document are before those that truncation has dropped, if it has dropped any.
    pub fn cut(&self, document: &Document) -> Option<usize> {
        let cuts = document.dropped > 0 && self.truncation != Truncation::Turns;
        cuts.then(|| self.kept_before_cut())
    }

    /// How many tokens of a document longer than a row are kept before those that are dropped.
    pub fn kept_before_cut(&self) -> usize {
        match self.truncation {
            Truncation::Left => 0,
            // The left half is the smaller one, as in veRL: empty in a row of one token.
            Truncation::Middle => self.sequence_length / 2,
            Truncation::Right
            | Truncation::Error
            | Truncation::Split
            | Truncation::Drop
            | Truncation::Turns => self.sequence_length,
        }
    }

    /// Whether a row may end after `offset` tokens of a document that continues in the next row.
    pub fn can_pause_at(&self, offset: u64) -> bool {
        match self.packing {
            Packing::Concat => true,
            Packing::BestFit { .. } => false,
            Packing::Pad => {
                self.truncation == Truncation::Split && offset.is_multiple_of(self.sequence_length as u64)
            }
        }
    }

    /// The most segments that a row can have.
    pub fn most_segments(&self) -> usize {
        match self.packing {
            Packing::Pad => 1,
            Packing::Concat | Packing::BestFit { .. } => self.max_segments.unwrap_or(self.sequence_length),
        }
    }
}

/// The quarantine file, and the stream that it lists records of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantineFileSpec {
    /// Path of the file, which is created if it does not exist.
    pub path: String,
    /// Names the stream, so that a file can hold the lists of several runs.
    pub stream: String,
}

/// Settings that may differ between hosts and runs without changing the stream.
#[derive(Debug, Clone)]
pub struct HostSpec {
    /// The lanes that this iterator delivers, in the order of its rows.
    pub lanes: Vec<usize>,
    /// Worker threads.
    pub threads: usize,
    /// Batches that are prepared ahead of the consumer.
    pub prefetch: usize,
    /// Share of the documents, 0 to 1, whose ids are compared with those of the reference engine.
    pub verify: f64,
    /// Whether single rows are delivered instead of batches.
    pub single_rows: bool,
    /// The file that lists every quarantined record.
    pub quarantine_file: Option<QuarantineFileSpec>,
    /// Entries of each row's provenance; 0 for none.
    pub provenance: usize,
    /// The numbers of such an entry: shard, record, offset and length; with the fifth also the sample, with the sixth the
    /// epoch.
    pub provenance_width: usize,
    /// Whether rows of a mixture say which source they are of.
    pub names_sources: bool,
    /// Whether rows of the layout `hf` have a mask of their tokens.
    pub attention_mask: bool,
}
