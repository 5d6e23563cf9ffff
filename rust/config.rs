//! What a pipeline is to produce. Checked where Python makes it; the core trusts it.

use std::sync::Arc;

use crate::lane::cursor::Place;
use crate::pack::Layout;
use crate::plan::Plan;
use crate::read::{ReadOptions, Shard};

/// What happens to a record that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OnError {
    /// The run stops there.
    Raise,
    /// The record is listed and left out, as long as no more than this share of a lane's records is.
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

/// What defines the stream of one dataset, the same on every host.
pub struct StreamConfig {
    /// The manifest.
    pub shards: Vec<Shard>,
    /// Which lane reads which shards.
    pub plan: Plan,
    /// How records are read.
    pub read: Arc<ReadOptions>,
    /// What happens to bad records.
    pub on_error: OnError,
    /// `None`: the order of the shards.
    pub shuffle: Option<Shuffle>,
    /// `None`: endless.
    pub epochs: Option<u64>,
    /// Put before each document.
    pub bos: Option<u32>,
    /// Put behind each document.
    pub eos: Option<u32>,
    /// Tokens in a row.
    pub sequence_length: usize,
    /// The arrays of a batch.
    pub layout: Layout,
    /// Whether a document's last token has the next document's first as its target.
    pub boundary_targets: bool,
    /// Rows of each lane in a step.
    pub rows_per_lane: usize,
}

impl StreamConfig {
    /// The shard in which a place of a lane lies.
    pub fn shard(&self, lane: usize, place: Place) -> &Shard {
        let dealt = self.plan.epoch(place.epoch);
        &self.shards[dealt[lane][place.shard as usize] as usize]
    }
}

/// What may differ between hosts and runs without changing the stream.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// The lanes that this iterator gives, in the order of its rows.
    pub lanes: Vec<usize>,
    /// Worker threads.
    pub threads: usize,
    /// Batches that are prepared ahead of the consumer.
    pub prefetch: usize,
    /// Whether single rows are handed out instead of batches.
    pub single_rows: bool,
}
