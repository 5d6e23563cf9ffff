//! Pre-tokens that are written later, because of new ones before them.
//!
//! A merge waits for memory most of the time, so new pre-tokens are merged in lockstep. One batch of mostly known text
//! has too few of them. So the pre-tokens after a new one are looked up, but not written, for some batches; then all
//! new ones are merged, and all ids are written at once.

use super::batch::{BATCH, PretokenBatch, write};
use super::cache::PretokenCache;
use super::cache::packed_ids::{absent, as_value};
use crate::layout::{MediumKey, NO_KEY, ShortKey, Value};
use crate::simd::Simd;

/// The most deferred pre-tokens: their values stay in the L1 cache.
const MAX_DEFERRED: usize = 4 * BATCH;

/// Deferring ends with this many new pre-tokens, or when fewer than one among `FOR_EACH` is new: text that is mostly
/// known is written as it is looked up.
const ENOUGH: usize = 12;
const FOR_EACH: usize = 64;

/// A pre-token that the cache lacks: its index among the deferred ones, its key, and its slot.
#[derive(Clone, Copy)]
pub struct Miss<K> {
    pub index: usize,
    pub key: K,
    pub slot: usize,
}

/// Deferred pre-tokens: the values of the known ones, and the new ones.
pub struct Deferred {
    values: Box<[Value; MAX_DEFERRED]>,
    len: usize,
    short: Vec<Miss<ShortKey>>,
    medium: Vec<Miss<MediumKey>>,
}

impl Default for Deferred {
    fn default() -> Self {
        Self { values: Box::new([[0; 2]; MAX_DEFERRED]), len: 0, short: Vec::new(), medium: Vec::new() }
    }
}

impl Deferred {
    pub fn clear(&mut self) {
        self.len = 0;
        self.short.clear();
        self.medium.clear();
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether to defer another batch.
    pub fn takes_more(&self) -> bool {
        let misses = self.short.len() + self.medium.len();
        self.len + BATCH <= MAX_DEFERRED && misses < ENOUGH && misses * FOR_EACH >= self.len
    }

    /// Adds the pre-tokens of a batch from `index` on. There must be room for them.
    pub fn add(&mut self, batch: &PretokenBatch, index: usize, cache: &PretokenCache) {
        let first = self.len;
        self.len += batch.range().end - index;
        let values = &mut self.values[first..self.len];
        for offset in batch.look_up(cache, index, values).iter() {
            let (slot, deferred) = (batch.slot(index + offset), first + offset);
            values[offset] = absent(slot);
            match batch.key(index + offset) {
                NO_KEY => {
                    let Some(key) = batch.medium_key(index + offset) else { continue };
                    match cache.find_medium(&key, slot) {
                        Some(words) => values[offset] = as_value(words, slot),
                        None => self.medium.push(Miss { index: deferred, key, slot }),
                    }
                }
                key => self.short.push(Miss { index: deferred, key, slot }),
            }
        }
    }

    /// The new tiny and short pre-tokens.
    pub fn short(&self) -> &[Miss<ShortKey>] {
        &self.short
    }

    /// The new medium pre-tokens.
    pub fn medium(&self) -> &[Miss<MediumKey>] {
        &self.medium
    }

    /// Sets the value of a pre-token.
    pub fn set(&mut self, index: usize, value: Value) {
        self.values[index] = value;
    }

    pub fn value(&self, index: usize) -> &Value {
        &self.values[index]
    }

    /// Writes the ids of the pre-tokens from `index` on, up to one whose value does not hold its ids, and returns its
    /// index, or the number of all.
    pub fn write(&self, simd: Simd, index: usize, ids: &mut Vec<u32>) -> usize {
        index + write(simd, &self.values[index..self.len], ids)
    }
}
