//! A map from pairs of symbols to numbers, as a perfect hash table: a look-up reads exactly one entry, whether the pair
//! is in it or not.
//!
//! Merging is bound by these look-ups. Pairs arrive in effectively random order and most are absent, so a branch on the
//! result would be mispredicted: there is one probe for each pair, no branch, and a table that is almost full.
//!
//! Pairs are hashed to buckets of a few. Each bucket has a multiplier, found at load, that sends its pairs to entries
//! of their own: the largest buckets choose first, those of one pair last. (Belazzougui, Botelho and Dietzfelbinger,
//! "Hash, displace, and compress", 2009.)

use std::hint::select_unpredictable;

use crate::layout::{ID_BITS as SYMBOL_BITS, MAX_IDS, RANK_BITS};
use crate::simd::prefetch;

/// The number of values: all are below it. Free entries have it instead of one.
pub const VALUES: u32 = (1 << RANK_BITS) - 1;

/// "Absent". Above all values and symbols; [`PairTable::find`] says why it is not [`VALUES`].
pub const NONE: u32 = (1 << (RANK_BITS + 1)) - 1;

/// A symbol that no pair has, for "no neighbour".
pub const NO_SYMBOL: u32 = MAX_IDS - 1;

/// An entry that is free.
const EMPTY: u64 = NO_PAIR.0 | VALUES as u64;

/// Average pairs in a bucket. More make the search for multipliers slow, fewer make these take more memory.
const PER_BUCKET: usize = 4;

/// Small multipliers would leave the upper hash bits of a bucket's pairs equal.
const SMALLEST_MULTIPLIER: u16 = 1 << 15 | 1;

/// Values below [`VALUES`] by pairs of symbols below [`NO_SYMBOL`].
pub struct PairTable {
    entries: Box<[u64]>,
    /// One for each bucket, of which there is a power of two.
    multipliers: Box<[u16]>,
    factor: u64,
}

/// Two symbols, as the entry of a pair begins: its value does not matter.
#[derive(Clone, Copy, Default)]
pub struct Pair(u64);

/// A pair that is never in a table.
pub const NO_PAIR: Pair = Pair::new(NO_SYMBOL, NO_SYMBOL);

impl Pair {
    #[inline(always)]
    pub const fn new(left: u32, right: u32) -> Self {
        Self(((left as u64) << SYMBOL_BITS | right as u64) << RANK_BITS)
    }
}

/// Where to find a pair.
#[derive(Clone, Copy, Default)]
pub struct PairSlot {
    pair: Pair,
    slot: usize,
}

impl PairTable {
    /// The last value of a pair that is listed twice counts.
    pub fn new(pairs: impl ExactSizeIterator<Item = ((u32, u32), u32)>) -> Self {
        let pairs: Vec<u64> =
            pairs.map(|((left, right), value)| Pair::new(left, right).0 | u64::from(value)).collect();
        Self::search(&pairs, 0x9E37_79B9_7F4A_7C15)
    }

    /// Builds a table with a factor, or with others if that separates the pairs badly.
    fn search(pairs: &[u64], mut factor: u64) -> Self {
        // One entry in fifty stays free, or the last buckets would search for long.
        let mut free = 1 + pairs.len() / 50;
        loop {
            if let Some(table) = Self::build(pairs, factor, free) {
                return table;
            }
            // Some bucket found no multiplier. Another factor, and more entries, are likely to help.
            factor = factor.wrapping_mul(0xD6E8_FEB8_6659_FD93);
            free += free.div_ceil(4);
        }
    }

    fn build(pairs: &[u64], factor: u64, free: usize) -> Option<Self> {
        let size = pairs.len() + free;
        let mut table = Self {
            entries: vec![EMPTY; size].into_boxed_slice(),
            multipliers: vec![1; (pairs.len() / PER_BUCKET).next_power_of_two()].into_boxed_slice(),
            factor,
        };
        let bucket = |pair: &u64| table.bucket(table.hash(*pair));
        let mut sizes = vec![0u32; table.multipliers.len()];
        for pair in pairs {
            sizes[bucket(pair)] += 1;
        }
        // Comes first: the pair of zeros, whose hash is zero, belongs to the first entry whatever the multiplier is.
        sizes[0] = u32::MAX;
        let mut order: Vec<(u32, u32, u32)> = pairs
            .iter()
            .enumerate()
            .map(|(index, pair)| (u32::MAX - sizes[bucket(pair)], bucket(pair) as u32, index as u32))
            .collect();
        order.sort_unstable();
        let mut members = Vec::new();
        let mut is_taken = vec![false; size];
        for bucket in order.chunk_by(|one, other| one.1 == other.1) {
            members.clear();
            members.extend(bucket.iter().rev().map(|(.., index)| pairs[*index as usize]));
            members.sort_by_key(|pair| pair >> RANK_BITS);
            members.dedup_by_key(|pair| *pair >> RANK_BITS);
            table.multipliers[bucket[0].1 as usize] = table.separate(&members, &mut is_taken)?;
            for pair in &members {
                let slot = table.slot(*pair);
                table.entries[slot] = *pair;
            }
        }
        Some(table)
    }

    /// Takes an entry that is free for each of some pairs, and gives the multiplier that sends them there.
    fn separate(&self, pairs: &[u64], is_taken: &mut [bool]) -> Option<u16> {
        (SMALLEST_MULTIPLIER..u16::MAX).step_by(2).find(|multiplier| {
            let slots = || pairs.iter().map(|pair| self.entry(self.hash(*pair), *multiplier));
            let free = slots().take_while(|slot| !std::mem::replace(&mut is_taken[*slot], true)).count();
            if free < pairs.len() {
                slots().take(free).for_each(|slot| is_taken[slot] = false);
            }
            free == pairs.len()
        })
    }

    /// The value of a pair, [`NONE`] if it has none.
    #[inline(always)]
    pub fn get(&self, left: u32, right: u32) -> u32 {
        self.find(self.place_of(Pair::new(left, right)))
    }

    /// Where a pair would be, its line asked for.
    #[inline(always)]
    pub fn place_of(&self, pair: Pair) -> PairSlot {
        let slot = self.slot(pair.0);
        prefetch(self.entries.as_ptr().wrapping_add(slot));
        PairSlot { pair, slot }
    }

    /// The value of the pair that belongs to an entry, [`NONE`] if it has none.
    #[inline(always)]
    pub fn find(&self, PairSlot { pair, slot }: PairSlot) -> u32 {
        // XOR leaves the value if the entry is this pair's, and more than any value otherwise. If `NONE` were the bound
        // as well, the compiler would see a minimum, and compile that to a branch.
        let rest = self.entries[slot] ^ pair.0;
        select_unpredictable(rest < u64::from(VALUES), rest as u32, NONE)
    }

    /// The entry for a pair.
    #[inline(always)]
    fn slot(&self, pair: u64) -> usize {
        let hash = self.hash(pair);
        self.entry(hash, self.multipliers[self.bucket(hash)])
    }

    /// The upper bits depend on all bits of the key.
    #[inline(always)]
    fn hash(&self, pair: u64) -> u64 {
        (pair >> RANK_BITS).wrapping_mul(self.factor)
    }

    #[inline(always)]
    fn bucket(&self, hash: u64) -> usize {
        (hash >> (2 * SYMBOL_BITS)) as usize & (self.multipliers.len() - 1)
    }

    #[inline(always)]
    fn entry(&self, hash: u64, multiplier: u16) -> usize {
        // Scaled to any number of entries: with a power of two, half of them may be free, and merging misses the caches.
        let fraction = hash.wrapping_mul(u64::from(multiplier)) >> 32;
        ((fraction * self.entries.len() as u64) >> 32) as usize
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.multipliers)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_without_much_room_is_a_map() {
        let pairs = |count: u32| (0..count).map(|n| ((n % 70_001, n * 7 % 9_973), n));
        let count = 50_000;
        let table = PairTable::new(pairs(count));
        assert_eq!(table.entries.len(), 51_001);
        for ((left, right), value) in pairs(count) {
            assert_eq!(table.get(left, right), value);
        }
        for ((left, right), value) in pairs(count + 5_000).skip(count as usize) {
            assert_eq!(table.get(left, right), NONE, "{value}");
        }
    }

    #[test]
    fn pairs_that_cannot_be_told_apart_need_another_factor() {
        let pairs = [(1, 2), (2, 1)].map(|(left, right)| Pair::new(left, right).0);
        assert!(PairTable::build(&pairs, 0, 0).is_none());
        assert!(PairTable::build(&pairs, 1 << 30 | 1, 0).is_some());
    }

    #[test]
    fn with_another_factor_there_are_more_entries() {
        // The upper half of these hashes, which gives the entry, is a small number: always the first one.
        let pairs: Vec<u64> = (0..8).map(|n| Pair::new(0, n).0 | u64::from(n)).collect();
        assert!(PairTable::build(&pairs, 1 << 32, 1).is_none());
        let table = PairTable::search(&pairs, 1 << 32);
        assert!((8 + 2..8 + 20).contains(&table.entries.len()), "{}", table.entries.len());
        assert!((0..8).all(|n| table.get(0, n) == n));
    }

    #[test]
    fn sets_that_are_hard_to_place_are_placed() {
        let table_is_a_map = |pairs: &[(u32, u32)], entries: usize| {
            let pairs = || pairs.iter().copied().zip(0..pairs.len() as u32);
            let table = PairTable::new(pairs());
            assert_eq!(table.entries.len(), entries);
            for ((left, right), value) in pairs() {
                assert_eq!(table.get(left, right), value);
            }
        };
        // The pair of zeros would find its entry taken, if its turn did not come first.
        table_is_a_map(&[(4, 4), (0, 1), (0, 4), (4, 3), (0, 0), (0, 3), (2, 0), (3, 0)], 8 + 1);
        // Sets in which one pair is the sum of two others.
        table_is_a_map(&[(2, 2), (0, 1), (1, 0), (1, 1)], 4 + 1);
        table_is_a_map(&[(3, 0), (1, 0), (2, 0), (6, 0)], 4 + 1);
    }

    proptest! {
        #[test]
        fn the_table_is_a_map(
            pairs in prop::collection::vec(((0u32..40, 0u32..40), 0..VALUES), 0..600),
        ) {
            let table = PairTable::new(pairs.iter().copied());
            let map: HashMap<_, _> = pairs.into_iter().collect();
            for left in (0..41).chain([NO_SYMBOL]) {
                for right in (0..41).chain([NO_SYMBOL]) {
                    let expected = map.get(&(left, right)).copied().unwrap_or(NONE);
                    prop_assert_eq!(table.get(left, right), expected);
                }
            }
        }
    }
}
