//! The cache of each worker: the ids of the pre-tokens seen so far.
//!
//! Text repeats itself: in books, 98 of 100 pre-tokens have occurred before. Lookups therefore take most of the time,
//! and the layout, which [`layout`](crate::layout) draws, decides the speed.
//!
//! - The key is the pre-token itself, compared in full, so a hit is never wrong.
//! - A hit touches one cache line: four words of values and four of keys. A tiny pre-token (up to 7 bytes, six of seven
//!   in most texts) takes one word of each: its bytes with their number, and up to three ids. A short one (up to 15
//!   bytes), or one with up to six ids, takes two. A line thus holds two to four pre-tokens, and the table is half as
//!   large as one with room for 15 bytes and five ids in every slot.
//! - Tiny and short pre-tokens are found by the same instructions, since a branch on which of the two comes next is
//!   unpredictable. The key of a tiny pre-token is its word twice; the four words of keys are compared with the two of
//!   the key alternately, and a small table maps the kind and the equal words to the index of the value.
//! - A new pre-token takes free words, or else the first half of the line, whose content moves to the second half,
//!   evicting that. Two-way instead of direct-mapped was the largest single gain (1.6 times).
//! - The tables start with room for the pre-tokens of ten megabytes of most texts, and grow with the number of
//!   evictions, up to a bound.
//!
//! Medium pre-tokens (up to 31 bytes) are in buckets of two lines. Longer ones, up to [`LONG`] bytes, are in a hash
//! map: without that, second passes over source code take 6 to 14 % longer. Still longer ones are not cached, since
//! they hardly ever recur. Ids that a line has no room for are in `spilled`. When the map or `spilled` reaches its
//! bound, it is cleared, along with all references to it: that only costs time.

pub mod keys;
mod overflow_map;
pub mod packed_ids;
mod table;
#[cfg(test)]
mod tests;

use std::alloc::{Layout, handle_alloc_error};

use crate::layout::{IDS_PER_WORD, LINE_WORDS, MEDIUM, MediumKey, SHORT, ShortKey, Value};
use crate::lookup::pretoken::Pretoken;
use crate::simd::probe::Probe;
use crate::simd::{Scalar, prefetch};
use gristmill_system::memory::{CacheLine, CacheLines};
use keys::{bytes, medium_key, medium_part_key, short_part_key};
use overflow_map::OverflowMap;
use packed_ids::Block;
use table::{MediumTable, ShortTable, Stretch};

/// The longest pre-token that is cached.
const LONG: usize = 128;

/// A pre-token to look up: its key and slot, or its bytes.
pub enum Query<'a> {
    Short(ShortKey, usize),
    Medium(MediumKey, usize),
    Long(&'a [u8]),
}

impl<'a> Query<'a> {
    /// A pre-token of a text and its slot, if it has one; None if it is too long to be cached.
    #[inline(always)]
    pub fn at(pretoken: Pretoken<'a>, slot: usize) -> Option<Self> {
        let (text, len) = (pretoken.padded(), pretoken.len());
        if len <= SHORT {
            return Some(Self::Short(Scalar.key(bytes(text, 0), len), slot));
        }
        if len <= MEDIUM {
            return Some(Self::Medium(medium_key(text, 0, len), slot));
        }
        (len <= LONG).then_some(Self::Long(pretoken.bytes()))
    }

    /// A part of a pre-token, which may have other ids than the same bytes as a pre-token; None if it is too long to be
    /// cached.
    pub fn part(cache: &PretokenCache, part: Pretoken<'a>) -> Option<Self> {
        let (text, len) = (part.padded(), part.len());
        if len <= SHORT {
            let key = short_part_key(text, 0, len);
            Some(Self::Short(key, cache.short().slot(key)))
        } else {
            let key = (len <= MEDIUM).then(|| medium_part_key(text, 0, len))?;
            Some(Self::Medium(key, cache.medium_slot(&key)))
        }
    }
}

/// The tables begin with room for at least as many preloaded pre-tokens, and several times as many of texts.
const FIRST_PRETOKENS: usize = 1 << 17;

/// The most bytes of long pre-tokens, and of spilled ids, before they are cleared: offsets into them are 32-bit.
const MAX_STORED: usize = 1 << 31;

/// How many more bytes of each one batch may add; a pre-token that is split before it is merged may bring any number.
const ADDED_BY_A_BATCH: usize = 1 << 16;

/// The ids of pre-tokens.
pub struct PretokenCache {
    lines: CacheLines,
    short: ShortTable,
    medium: MediumTable,
    long: OverflowMap,
    spilled: Vec<Block>,
    bound: usize,
}

impl PretokenCache {
    /// An empty cache that stays within about `bound` bytes, or within the memory that the system can provide, with
    /// initial room for `pretokens` pre-tokens.
    pub fn new(mut bound: usize, pretokens: usize) -> Self {
        let pretokens = pretokens.next_power_of_two().max(FIRST_PRETOKENS);
        loop {
            // Half for tiny and short pre-tokens, a quarter for medium ones, an eighth each for long ones and spilled
            // ids.
            let short = Stretch::new(0, 1, pretokens * 2, bound / 2);
            let medium = Stretch::new(short.end(), 2, pretokens / 4, bound / 4);
            if let Some(lines) = CacheLines::sparse(medium.end()) {
                let (short, medium) = (ShortTable(short), MediumTable(medium));
                let (long, spilled) = (OverflowMap::default(), Vec::new());
                return Self { lines, short, medium, long, spilled, bound };
            }
            if bound == 0 {
                // Not even the smallest tables fit: handled like any other allocation failure.
                let layout = Layout::array::<CacheLine>(medium.end());
                handle_alloc_error(layout.unwrap_or(Layout::new::<CacheLine>()));
            }
            bound /= 2;
        }
    }

    /// Grows or clears the tables that are due. Slots change, so this must happen between batches.
    pub fn maintain(&mut self) {
        self.short.grow_if_due(&mut self.lines, hash);
        self.medium.grow_if_due(&mut self.lines, hash_medium);
        let bound = self.stored_bound();
        if size_of_val(&*self.spilled) > bound {
            for used in self.used() {
                self.lines[used].fill(CacheLine::EMPTY);
            }
            self.spilled = Vec::new(); // a text of many new pre-tokens may have left far more room than its bound
        }
        if self.long.bytes() > bound {
            self.long.clear();
        }
    }

    /// The most bytes of long pre-tokens, and of spilled ids.
    fn stored_bound(&self) -> usize {
        (self.bound / 8).min(MAX_STORED)
    }

    fn used(&self) -> [std::ops::Range<usize>; 2] {
        [self.short.0.used(), self.medium.0.used()]
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        let lines: usize = self.used().map(|used| used.len()).iter().sum();
        lines * size_of::<CacheLine>() + self.spilled.capacity() * size_of::<Block>() + self.long.bytes()
    }

    /// The table of tiny and short pre-tokens.
    #[inline(always)]
    pub fn short(&self) -> ShortPretokens<'_> {
        let lines = &self.lines[self.short.0.used()];
        ShortPretokens { lines, shift: 64 - lines.len().ilog2() }
    }

    /// The slot of a medium pre-token, to prefetch and then to pass to [`find_medium`](Self::find_medium).
    pub fn medium_slot(&self, key: &MediumKey) -> usize {
        self.medium.0.slot(hash_medium(key))
    }

    pub fn prefetch_medium(&self, slot: usize) {
        self.lines[slot..][..2].iter().for_each(|line| prefetch(line));
    }

    /// The packed ids of a medium pre-token.
    pub fn find_medium(&self, key: &MediumKey, slot: usize) -> Option<&[u64]> {
        let (values, _) = self.lines[slot..][..2]
            .iter()
            .map(|line| line.0.split_at(LINE_WORDS))
            .find(|(_, line_key)| line_key == key)?;
        Some(values)
    }

    /// Appends the ids of a pre-token; false if it is not cached. The hot loop has a faster path.
    #[inline(always)]
    pub fn append(&self, pretoken: &Query, ids: &mut Vec<u32>) -> bool {
        let words: Option<&[u64]> = match pretoken {
            Query::Short(key, slot) => self.short().find(Scalar, *key, *slot).map(<[u64; 2]>::as_slice),
            Query::Medium(key, slot) => self.find_medium(key, *slot),
            Query::Long(pretoken) => return self.long.append(pretoken, ids),
        };
        if let Some(words) = words {
            self.append_packed(words, ids);
        }
        words.is_some()
    }

    /// Appends the ids that packed words hold or refer to.
    #[inline(never)]
    pub fn append_packed(&self, words: &[u64], ids: &mut Vec<u32>) {
        let begin = ids.len();
        let count = if let Some((start, count)) = packed_ids::spilled(words) {
            for block in &self.spilled[start..][..count.div_ceil(packed_ids::BLOCK)] {
                ids.extend_from_slice(block);
            }
            count
        } else {
            for pair in words.as_chunks().0 {
                ids.extend_from_slice(&Scalar.unpack(pair)[..2 * IDS_PER_WORD]);
            }
            packed_ids::count(words)
        };
        ids.truncate(begin + count);
    }

    /// Caches the ids of a pre-token.
    pub fn insert(&mut self, pretoken: &Query, ids: &[u32]) {
        match pretoken {
            Query::Short(key, slot) => {
                if let Some(value) = self.pack(ids) {
                    self.put_short(*key, *slot, value);
                }
            }
            Query::Medium(key, slot) => {
                if let Some(value) = self.pack(ids) {
                    self.put_medium(key, *slot, value);
                }
            }
            Query::Long(pretoken) => self.long.insert(pretoken, ids),
        }
    }

    /// Caches the packed ids of a tiny or short pre-token.
    pub fn put_short(&mut self, key: ShortKey, slot: usize, value: Value) {
        self.short.insert(&mut self.lines, slot, key, value);
    }

    /// Caches the packed ids of a medium pre-token.
    pub fn put_medium(&mut self, key: &MediumKey, slot: usize, value: [u64; 4]) {
        self.medium.insert(&mut self.lines, slot, key, value);
    }

    /// The packed ids, or a reference to the spilled ids; None if there is no room for these until the next
    /// [`maintain`](Self::maintain).
    pub fn pack<const W: usize>(&mut self, ids: &[u32]) -> Option<[u64; W]> {
        packed_ids::pack(ids).or_else(|| {
            let room = self.stored_bound() + ADDED_BY_A_BATCH;
            if size_of_val(&*self.spilled) + size_of_val(ids) > room {
                return None;
            }
            let start = self.spilled.len() as u32;
            for ids in ids.chunks(packed_ids::BLOCK) {
                self.spilled.push(std::array::from_fn(|at| ids.get(at).copied().unwrap_or(0)));
            }
            Some(packed_ids::pack_spilled(start, ids.len()))
        })
    }
}

/// The tiny and short pre-tokens of a cache.
#[derive(Clone, Copy)]
pub struct ShortPretokens<'a> {
    /// Their number is a power of two: one for each value of the upper bits of a hash.
    lines: &'a [CacheLine],
    shift: u32,
}

impl<'a> ShortPretokens<'a> {
    /// The slot of a pre-token, to prefetch and then to pass to [`find`](Self::find).
    #[inline(always)]
    pub fn slot(self, key: ShortKey) -> usize {
        (hash(key) >> self.shift) as usize
    }

    #[inline(always)]
    pub fn prefetch(self, slot: usize) {
        // Prefetching a line that does not exist would have no effect.
        prefetch(self.lines.as_ptr().wrapping_add(slot));
    }

    /// The packed ids of a pre-token: two words, or one followed by an unrelated one.
    #[inline(always)]
    pub fn find(self, probe: impl Probe, key: ShortKey, slot: usize) -> Option<&'a Value> {
        let (value, found) = keys::find(probe, self.lines.get(slot)?, key);
        found.then_some(value)
    }

    /// A copy of the packed ids, or arbitrary words, and whether the pre-token was found.
    /// [`NO_KEY`](crate::layout::NO_KEY) never is, whatever the slot.
    #[inline(always)]
    pub fn read(self, probe: impl Probe, key: ShortKey, slot: usize) -> (Value, bool) {
        // SAFETY: there is at least one line, so a number masked by one less than their number is below it.
        let line = unsafe { self.lines.get_unchecked(slot & (self.lines.len() - 1)) };
        let (value, found) = keys::find(probe, line, key);
        (*value, found)
    }
}

/// The upper bits of a sum of products: each depends on all bits of the key.
#[inline(always)]
fn hash(key: ShortKey) -> u64 {
    let (low, high) = (key as u64, (key >> 64) as u64);
    low.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(high.wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

/// Both halves contribute, with different weights.
#[inline(always)]
fn hash_medium([a, b, c, d]: &MediumKey) -> u64 {
    let halves = [a ^ c.rotate_left(47), b ^ d.rotate_left(47)];
    hash(u128::from(halves[1]) << 64 | u128::from(halves[0]))
}
