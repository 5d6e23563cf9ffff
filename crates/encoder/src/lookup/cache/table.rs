//! The two hash tables of the cache, in stretches of its lines.

use std::hint::select_unpredictable;
use std::ops::Range;

use super::keys::{is_tiny, is_tiny_word};
use super::{CacheLine, packed_ids};
use crate::layout::{LINE_WORDS, MediumKey, ShortKey, Value};

/// A stretch of lines whose buckets are found by a hash.
pub struct Stretch {
    start: usize,
    lines_per_bucket: usize,
    /// 64 minus the binary logarithm of the number of buckets: the upper bits of a hash are the best.
    shift: u32,
    /// The lower bound of `shift`. Lines beyond those in use have never been touched and take no memory.
    least_shift: u32,
    pushed_out: usize,
}

impl Stretch {
    /// A stretch from line `start` on, with room for `buckets` at first and never more than `most_bytes`.
    pub fn new(start: usize, lines_per_bucket: usize, buckets: usize, most_bytes: usize) -> Self {
        let most = (most_bytes / (lines_per_bucket * size_of::<CacheLine>())).max(2).ilog2();
        let least_shift = 64 - most;
        let shift = (64 - buckets.max(2).ilog2()).max(least_shift);
        Self { start, lines_per_bucket, shift, least_shift, pushed_out: 0 }
    }

    /// The line after all lines that this stretch may ever use.
    pub fn end(&self) -> usize {
        self.start + (self.lines_per_bucket << (64 - self.least_shift))
    }

    /// The lines in use.
    pub fn used(&self) -> Range<usize> {
        self.start..self.start + (self.lines_per_bucket << (64 - self.shift))
    }

    /// The first line of the bucket for a hash.
    #[inline(always)]
    pub fn slot(&self, hash: u64) -> usize {
        self.start + (hash >> self.shift) as usize * self.lines_per_bucket
    }

    /// Doubles if evictions have reached a quarter of the buckets, and returns the slots that were in use, whose
    /// contents each belong in one of two slots now. In descending order, no new slot is an old one that is not emptied
    /// yet. This happens in place, since touching memory for the first time is the main cost of growing.
    fn grow_if_due(&mut self) -> impl Iterator<Item = usize> + use<> {
        let before = self.used();
        let due =
            self.pushed_out * 4 >= before.len() / self.lines_per_bucket && self.shift > self.least_shift;
        if due {
            self.shift -= 1;
            self.pushed_out = 0;
        }
        due.then(|| before.step_by(self.lines_per_bucket).rev()).into_iter().flatten()
    }
}

/// Tiny and short pre-tokens. Each half of a line, two words of keys with their values, holds nothing, a short
/// pre-token, up to two tiny ones, or one tiny pre-token with more ids than one word has room for, whose key is in both
/// words.
pub struct ShortTable(pub Stretch);

/// The index of the first free word for a pre-token, or one past the last: for pre-tokens that take two words, then for
/// those that take one; by three times the number of words in use in the first half plus that in the second.
static FREE: [[u8; 9]; 2] = {
    let mut free = [[LINE_WORDS as u8; 9]; 2];
    let mut at = 0;
    while at < 9 {
        let (first, second) = (at / 3, at % 3);
        if first == 0 {
            free[0][at] = 0;
        } else if second == 0 {
            free[0][at] = 2;
        }
        if first < 2 {
            free[1][at] = first as u8;
        } else if second < 2 {
            free[1][at] = 2 + second as u8;
        }
        at += 1;
    }
    free
};

impl ShortTable {
    /// Puts a pre-token into free words, or else into the first half, whose content then replaces that of the second.
    pub fn insert(&mut self, lines: &mut [CacheLine], slot: usize, key: ShortKey, value: Value) {
        let (values, keys) = lines[slot].0.split_at_mut(LINE_WORDS);
        // Branchless: the set of free words is unpredictable. The second word of a half is never zero when the half is
        // full; otherwise the half holds at most a tiny pre-token, in the first word.
        let used =
            |half: usize| select_unpredictable(keys[2 * half + 1] != 0, 2, usize::from(keys[2 * half] != 0));
        let takes_one = usize::from(is_tiny(key) & packed_ids::is_in_one(value[0]));
        let mut word = usize::from(FREE[takes_one][3 * used(0) + used(1)]);
        if word == LINE_WORDS {
            self.0.pushed_out += 1;
            values.copy_within(..2, 2);
            keys.copy_within(..2, 2);
            keys[1] = 0;
            word = 0;
        }
        // Both words of a tiny pre-token's key are the same.
        let last = word + 1 - takes_one;
        keys[word] = key as u64;
        keys[last] = (key >> 64) as u64;
        values[last] = value[1];
        values[word] = value[0];
    }

    pub fn grow_if_due(&mut self, lines: &mut [CacheLine], hash: impl Fn(ShortKey) -> u64) {
        for slot in self.0.grow_if_due() {
            let CacheLine([.., a, b, c, d]) = lines[slot];
            let values = std::mem::replace(&mut lines[slot], CacheLine::EMPTY).0;
            let mut put = |key, value| self.insert(lines, self.0.slot(hash(key)), key, value);
            // The second half is the older one.
            for (keys, values) in [([c, d], [values[2], values[3]]), ([a, b], [values[0], values[1]])] {
                if is_tiny_word(keys[0]) && keys[0] != keys[1] {
                    for (key, value) in keys.into_iter().zip(values).filter(|(key, _)| *key != 0) {
                        put(u128::from(key) << 64 | u128::from(key), [value, 0]);
                    }
                } else if keys[1] != 0 {
                    put(u128::from(keys[1]) << 64 | u128::from(keys[0]), values);
                }
            }
        }
    }
}

/// Medium pre-tokens, whose keys take all key words of a line, in buckets of two lines.
pub struct MediumTable(pub Stretch);

impl MediumTable {
    /// Puts a pre-token into the first line of its bucket, whose content moves to the second.
    pub fn insert(
        &mut self,
        lines: &mut [CacheLine],
        slot: usize,
        key: &MediumKey,
        value: [u64; LINE_WORDS],
    ) {
        if lines[slot] != CacheLine::EMPTY {
            self.0.pushed_out += usize::from(lines[slot + 1] != CacheLine::EMPTY);
            lines[slot + 1] = lines[slot];
        }
        let (values, keys) = lines[slot].0.split_at_mut(LINE_WORDS);
        values.copy_from_slice(&value);
        keys.copy_from_slice(key);
    }

    pub fn grow_if_due(&mut self, lines: &mut [CacheLine], hash: impl Fn(&MediumKey) -> u64) {
        for slot in self.0.grow_if_due() {
            for line in [slot + 1, slot] {
                let CacheLine([values @ .., a, b, c, d]) =
                    std::mem::replace(&mut lines[line], CacheLine::EMPTY);
                if d != 0 {
                    let key = [a, b, c, d];
                    self.insert(lines, self.0.slot(hash(&key)), &key, values);
                }
            }
        }
    }
}
