//! Pieces that wait for new ones before them.
//!
//! A merge waits for memory most of the time, so new pieces are merged side by side. One batch of mostly known text has
//! too few of them. So the pieces after a new one are looked up, but not written, for some batches; then all new ones
//! are merged, and all ids are written at once.

use super::batch::{BATCH, PretokenBatch, write};
use crate::lookup::cache::packed_ids::{Value, absent, as_value};
use crate::lookup::cache::{MediumKey, NO_KEY, PretokenCache, ShortKey};
use crate::simd::Simd;

/// The most pieces that wait: their values stay in the L1 cache.
const MOST: usize = 4 * BATCH;

/// Waiting ends with so many new pieces, or when there is less than one among `FOR_EACH`: text that is mostly known is
/// written as it is looked up.
const ENOUGH: usize = 12;
const FOR_EACH: usize = 64;

/// A piece that the cache lacks: its index among those that wait, its key, and its place.
#[derive(Clone, Copy)]
pub struct Miss<K> {
    pub index: usize,
    pub key: K,
    pub slot: usize,
}

/// Pieces that wait: the values of those that are known.
pub struct Deferred {
    values: Box<[Value; MOST]>,
    len: usize,
    short: Vec<Miss<ShortKey>>,
    medium: Vec<Miss<MediumKey>>,
}

impl Default for Deferred {
    fn default() -> Self {
        Self { values: Box::new([[0; 2]; MOST]), len: 0, short: Vec::new(), medium: Vec::new() }
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

    /// Whether another batch is to wait as well.
    pub fn takes_more(&self) -> bool {
        let misses = self.short.len() + self.medium.len();
        self.len + BATCH <= MOST && misses < ENOUGH && misses * FOR_EACH >= self.len
    }

    /// Adds the pieces of a batch from `index` on. There must be room for them.
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

    /// Those of the short pieces that the cache lacked.
    pub fn short(&self) -> &[Miss<ShortKey>] {
        &self.short
    }

    /// Those of the medium pieces.
    pub fn medium(&self) -> &[Miss<MediumKey>] {
        &self.medium
    }

    /// Gives a piece its value.
    pub fn set(&mut self, index: usize, value: Value) {
        self.values[index] = value;
    }

    pub fn value(&self, index: usize) -> &Value {
        &self.values[index]
    }

    /// Writes the ids of the pieces from `index` on, up to one whose value does not hold them, and returns its index, or
    /// the number of all.
    pub fn write(&self, simd: Simd, index: usize, ids: &mut Vec<u32>) -> usize {
        index + write(simd, &self.values[index..self.len], ids)
    }
}
