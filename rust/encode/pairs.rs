//! A number for each of many pairs of symbols, in a table where a look-up touches one cache line or none.
//!
//! Merging is bound by these look-ups: the table is larger than the second-level cache, the pairs come
//! as good as at random, and most of them are not there, which a processor cannot foresee. So:
//!
//! - A pair is looked for in the eight entries of one line, all of them compared without a branch. Only
//!   behind a line that is full, of which there are few, does the search go on in the next. (A cuckoo
//!   table, the one before, touched two lines each time.)
//! - A filter of a few bits for each pair, small enough for the second-level cache, tells seven of eight
//!   pairs that are not there. These look into a line that is always empty: no branch here either.

use std::hint::select_unpredictable;

use super::kernel::{Plain, prefetch};
use super::vectors::{PER_LINE, VALUE_BITS, Vectors};
use super::vocab::{ID_BITS as SYMBOL_BITS, MAX_IDS};

/// "Not there". All values and symbols are below it.
pub const NONE: u32 = (1 << VALUE_BITS) - 1;

/// A symbol that no pair has, for "no neighbour".
pub const NO_SYMBOL: u32 = MAX_IDS - 1;

/// Entries are never zero: their keys are inverted, and no pair is twice [`NO_SYMBOL`].
const EMPTY: u64 = 0;
const KEY: u64 = (1 << (2 * SYMBOL_BITS)) - 1;

/// An entry is 40 bits of key above 24 bits of value.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; PER_LINE]);

/// Values below [`NONE`] by pairs of symbols below [`NO_SYMBOL`].
pub struct PairTable {
    /// A power of two of them, and one more that stays empty.
    lines: Box<[Line]>,
    /// 32 bits for each line, a bit set for each pair.
    filter: Box<[u32]>,
    shift: u32,
}

/// Where to find a pair.
#[derive(Clone, Copy, Default)]
pub struct PairPlace {
    key: u64,
    place: usize,
}

impl PairTable {
    /// Of a pair that is listed twice the last value counts.
    pub fn new(pairs: impl ExactSizeIterator<Item = ((u32, u32), u32)>) -> Self {
        // Five entries a line or fewer: one line in ten is full.
        let size = (pairs.len() / 5).next_power_of_two().max(2);
        let mut table = Self {
            lines: vec![Line([EMPTY; PER_LINE]); size + 1].into_boxed_slice(),
            filter: vec![0; size].into_boxed_slice(),
            shift: 64 - size.trailing_zeros(),
        };
        for ((left, right), value) in pairs {
            table.insert(key(left, right), value);
        }
        table
    }

    fn insert(&mut self, key: u64, value: u32) {
        let (word, bit) = self.filter_bit(key);
        self.filter[word] |= bit;
        let mut place = self.place(key);
        loop {
            let mut entries = self.lines[place].0.iter_mut();
            if let Some(entry) = entries.find(|entry| **entry == EMPTY || **entry >> VALUE_BITS == key) {
                *entry = key << VALUE_BITS | u64::from(value);
                return;
            }
            place = self.next(place);
        }
    }

    /// The value of a pair, [`NONE`] if it has none.
    #[inline(always)]
    pub fn get(&self, vectors: impl Vectors, left: u32, right: u32) -> u32 {
        self.find(vectors, self.place_of(left, right))
    }

    /// Where a pair would be, its line asked for.
    #[inline(always)]
    pub fn place_of(&self, left: u32, right: u32) -> PairPlace {
        let key = key(left, right);
        let (word, bit) = self.filter_bit(key);
        let perhaps = self.filter[word] & bit != 0;
        let place = select_unpredictable(perhaps, self.place(key), self.lines.len() - 1);
        prefetch(&raw const self.lines[place]);
        PairPlace { key, place }
    }

    /// The value of the pair that belongs to a place, [`NONE`] if it has none.
    #[inline(always)]
    pub fn find(&self, vectors: impl Vectors, PairPlace { key, place }: PairPlace) -> u32 {
        let Line(entries) = &self.lines[place];
        let found = vectors.find(entries, key);
        let may_be_behind = u32::from(entries[PER_LINE - 1] != EMPTY);
        // One rare branch, not two of which the first is a guess.
        if may_be_behind & u32::from(found == NONE) != 0 { self.find_behind(place, key) } else { found }
    }

    /// A pair that was not in its line, which is full.
    #[cold]
    fn find_behind(&self, mut place: usize, key: u64) -> u32 {
        loop {
            place = self.next(place);
            let Line(entries) = &self.lines[place];
            let found = Plain.find(entries, key);
            if found != NONE || entries[PER_LINE - 1] == EMPTY {
                return found;
            }
        }
    }

    /// Fibonacci hashing: the upper bits of the product depend on all bits of the key.
    #[inline(always)]
    fn place(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    /// With another factor, so that pairs of one line are told from each other.
    #[inline(always)]
    fn filter_bit(&self, key: u64) -> (usize, u32) {
        let hash = key.wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
        ((hash >> self.shift) as usize, 1 << (hash >> 32 & 31))
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.lines.len() - 2)
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.lines) + size_of_val(&*self.filter)
    }
}

#[inline(always)]
fn key(left: u32, right: u32) -> u64 {
    (u64::from(left) << SYMBOL_BITS | u64::from(right)) ^ KEY
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_table_is_a_map(
            pairs in prop::collection::vec(((0u32..40, 0u32..40), 0..NONE), 0..600),
        ) {
            let table = PairTable::new(pairs.iter().copied());
            let map: HashMap<_, _> = pairs.into_iter().collect();
            for left in (0..41).chain([NO_SYMBOL]) {
                for right in (0..41).chain([NO_SYMBOL]) {
                    let expected = map.get(&(left, right)).copied().unwrap_or(NONE);
                    prop_assert_eq!(table.get(Plain, left, right), expected);
                }
            }
        }
    }
}
