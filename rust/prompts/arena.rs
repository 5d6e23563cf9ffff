//! The arena: all prompts in memory, in the order of their records.

use std::collections::HashSet;

use super::PromptSpec;
use super::part::{Left, Part, Reason};
use crate::error::{Error, Result, ShardError};

/// The prompts and records that are kept, and the records that are not.
#[derive(Debug)]
pub struct Arena {
    /// The records that were read.
    pub read: u64,
    /// The records that the filter left out.
    pub filtered: u64,
    /// The ids of all prompts: those of each record are next to one another.
    pub ids: Vec<u32>,
    /// For each id whether it is trained on, if any prompt has a mask.
    pub trained: Vec<bool>,
    /// Where each prompt's ids begin, and their total number.
    pub id_offsets: Vec<i64>,
    /// The rendered texts, one after another, if they are kept.
    pub texts: Vec<u8>,
    /// Where each begins, and the bytes of all.
    pub text_offsets: Vec<i64>,
    /// The records as JSON, one after another, if they are kept.
    pub records: Vec<u8>,
    /// Where each begins, and the bytes of all.
    pub record_offsets: Vec<i64>,
    /// The index of each record's shard.
    pub shards: Vec<u32>,
    /// The number of each record in its shard.
    pub numbers: Vec<i64>,
    /// The index of each record among all records of all shards.
    pub indices: Vec<i64>,
    /// The records that are left out.
    pub left: Vec<Left>,
    /// The keys that any record has, as JSON writes them, in the order in which they occur.
    pub keys: Vec<String>,
    known: HashSet<String>,
    names: Vec<std::sync::Arc<str>>,
    raises: bool,
    max_memory: u64,
    /// The bytes of what was joined.
    bytes: u64,
}

impl Arena {
    pub(super) fn new(spec: &PromptSpec) -> Self {
        Self {
            read: 0,
            filtered: 0,
            ids: Vec::new(),
            trained: Vec::new(),
            id_offsets: vec![0],
            texts: Vec::new(),
            text_offsets: vec![0],
            records: Vec::new(),
            record_offsets: vec![0],
            shards: Vec::new(),
            numbers: Vec::new(),
            indices: Vec::new(),
            left: Vec::new(),
            keys: Vec::new(),
            known: HashSet::new(),
            names: spec.shards.iter().map(|shard| std::sync::Arc::clone(shard.name())).collect(),
            raises: spec.raises,
            max_memory: spec.max_memory,
            bytes: 0,
        }
    }

    /// Appends the next part. An error if it has a bad record and that ends the reading.
    pub(super) fn join(&mut self, part: Part) -> Result<()> {
        self.read += part.read;
        self.filtered += part.filtered;
        self.bytes += bytes_of(&part);
        if self.raises
            && let Some(bad) = part.left.iter().find(|left| !matches!(left.reason, Reason::Overlong(_)))
        {
            return Err(self.error(bad).into());
        }
        if self.bytes > self.max_memory {
            // Prompts that follow are only counted, so that the error can tell how much there is.
            self.forget();
            return Ok(());
        }
        self.ids.extend_from_slice(&part.ids);
        self.trained.extend_from_slice(&part.trained);
        extend_offsets(&mut self.id_offsets, &part.id_counts);
        self.texts.extend_from_slice(part.texts.as_bytes());
        extend_offsets(&mut self.text_offsets, &part.text_bytes);
        self.records.extend_from_slice(&part.records);
        extend_offsets(&mut self.record_offsets, &part.record_bytes);
        self.shards.extend(part.places.iter().map(|(shard, ..)| shard));
        self.numbers.extend(part.places.iter().map(|&(_, number, _)| number as i64));
        self.indices.extend(part.places.iter().map(|&(.., index)| index as i64));
        self.left.extend(part.left);
        for key in part.keys {
            if self.known.insert(key.clone()) {
                self.keys.push(key);
            }
        }
        Ok(())
    }

    /// The arena, if it fits into memory.
    pub(super) fn finish(mut self) -> Result<Self> {
        if self.bytes > self.max_memory {
            return Err(Error::Argument(format!(
                "max_memory={}: the prompts of {} records take {} bytes in memory; raise max_memory=, or keep fewer \
                 records with select=, max_samples= or keep=, or no columns with columns=False",
                self.max_memory, self.read, self.bytes
            )));
        }
        self.known = HashSet::new();
        self.ids.shrink_to_fit();
        self.trained.shrink_to_fit();
        self.records.shrink_to_fit();
        self.texts.shrink_to_fit();
        Ok(self)
    }

    fn forget(&mut self) {
        self.ids = Vec::new();
        self.trained = Vec::new();
        self.id_offsets = Vec::new();
        self.texts = Vec::new();
        self.text_offsets = Vec::new();
        self.records = Vec::new();
        self.record_offsets = Vec::new();
        self.shards = Vec::new();
        self.numbers = Vec::new();
        self.indices = Vec::new();
        self.left = Vec::new();
    }

    fn error(&self, Left { shard, record, byte, reason }: &Left) -> ShardError {
        let reason = match reason {
            Reason::Overlong(tokens) => format!("{tokens} tokens"),
            Reason::Bad(reason) | Reason::Lost(reason) => reason.clone(),
        };
        let shard = std::sync::Arc::clone(&self.names[*shard as usize]);
        ShardError { shard, record: *record, byte: *byte, reason }
    }
}

/// The bytes that a part takes in the arena.
fn bytes_of(part: &Part) -> u64 {
    let elements =
        part.id_counts.len() + part.text_bytes.len() + part.record_bytes.len() + 2 * part.places.len();
    let left: usize = part.left.iter().map(left_bytes).sum();
    let bytes = 4 * part.ids.len()
        + part.trained.len()
        + 8 * elements
        + 4 * part.places.len()
        + part.texts.len()
        + part.records.len();
    (bytes + left) as u64
}

fn left_bytes(left: &Left) -> usize {
    size_of::<Left>()
        + match &left.reason {
            Reason::Overlong(_) => 0,
            Reason::Bad(reason) | Reason::Lost(reason) => reason.len(),
        }
}

fn extend_offsets(offsets: &mut Vec<i64>, counts: &[usize]) {
    let mut end = offsets.last().copied().unwrap_or(0);
    offsets.extend(counts.iter().map(|&count| {
        end += count as i64;
        end
    }));
}
