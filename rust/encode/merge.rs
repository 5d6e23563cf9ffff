//! Merges: the ranks of all pairs, and merging one word of up to [`LONGEST`] symbols.
//!
//! The rule of BPE: of all adjacent pairs that have a merge take the one of lowest rank, the leftmost
//! among equals, join it, and begin again until no pair has a merge. The rank of a merge is its place
//! in the file's list, not the id it makes (Llama 3 lists 280 thousand merges for 128 thousand ids);
//! of a pair that is listed twice the last place counts, as in the reference.
//!
//! The reference walks a heap and takes an entry as valid when the pair that now stands at its place
//! has the same product. That is the same rule as long as an id has one spelling: see
//! [`MergeTable::new`].

use super::file::Token;
use super::kernel::Kernel;
use super::vocab::{Ids, MAX_IDS};

/// "No merge", "no id".
pub const NONE: u32 = u32::MAX;

/// The most symbols that [`MergeTable::merge`] takes at once.
pub const LONGEST: usize = 128;

const RANK_BITS: u32 = 24;
const ID_BITS: u32 = MAX_IDS.trailing_zeros();
const EMPTY: u64 = u64::MAX;

/// The rank of each pair that has a merge, and the id that each merge makes.
pub struct MergeTable {
    /// Open addressing with linear probing, at most half full. An entry is 20 bits of either id and
    /// 24 bits of rank: one cache line holds eight.
    entries: Box<[u64]>,
    shift: u32,
    /// By rank.
    products: Box<[u32]>,
    kernel: Kernel,
}

/// One merge with ids for tokens.
#[derive(Clone, Copy)]
pub struct MergeRule {
    pub left: u32,
    pub right: u32,
    pub product: u32,
}

/// Resolves the merges of a file, or says why they are not for the fast engine.
///
/// A part or a product that the vocabulary lacks makes the reference refuse the file: so the caller
/// asks it, for its message.
pub fn rules(merges: &[(Token, Token)], ids: &Ids) -> Result<Vec<MergeRule>, String> {
    let mut joined = String::new();
    merges
        .iter()
        .map(|(left, right)| {
            // An empty part would make a merge whose product is its other part.
            if left.is_empty() || right.is_empty() {
                return Err("one of its merges has an empty part".into());
            }
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let id = |token: &str| {
                ids.get(token).copied().ok_or_else(|| format!("the merge token {token:?} is not a token"))
            };
            Ok(MergeRule { left: id(left)?, right: id(right)?, product: id(&joined)? })
        })
        .collect()
}

impl MergeTable {
    /// The table of merges whose ids have one spelling each, the product's being that of its parts
    /// joined. Then every symbol stands for a fixed stretch of spelling, an entry of the reference's
    /// heap with the same place and product is the same pair, and the two rules above are one.
    pub fn new(rules: &[MergeRule], kernel: Kernel) -> Result<Self, String> {
        if rules.len() >= (1 << RANK_BITS) - 1 {
            return Err(format!("it has {} merges", rules.len()));
        }
        let slots = (rules.len() * 2).next_power_of_two().max(16);
        let mut table = Self {
            entries: vec![EMPTY; slots].into_boxed_slice(),
            shift: 64 - slots.trailing_zeros(),
            products: rules.iter().map(|rule| rule.product).collect(),
            kernel,
        };
        for (rank, rule) in rules.iter().enumerate() {
            let slot = table.slot(rule.left, rule.right);
            table.entries[slot] = pair_key(rule.left, rule.right) << RANK_BITS | rank as u64;
        }
        Ok(table)
    }

    /// The slot that holds a pair, or the empty one where it would be.
    fn slot(&self, left: u32, right: u32) -> usize {
        let key = pair_key(left, right);
        let mut slot = hash(key, self.shift);
        while self.entries[slot] != EMPTY && self.entries[slot] >> RANK_BITS != key {
            slot = (slot + 1) & (self.entries.len() - 1);
        }
        slot
    }

    /// The rank of a pair, [`NONE`] when it has no merge.
    #[inline]
    pub fn rank(&self, left: u32, right: u32) -> u32 {
        let key = pair_key(left, right);
        let mask = self.entries.len() - 1;
        let mut slot = hash(key, self.shift);
        loop {
            let entry = self.entries[slot & mask];
            if entry >> RANK_BITS == key {
                return (entry & ((1 << RANK_BITS) - 1)) as u32;
            }
            if entry == EMPTY {
                return NONE;
            }
            slot += 1;
        }
    }

    #[inline]
    pub fn product(&self, rank: u32) -> u32 {
        self.products[rank as usize]
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.products)
    }

    /// Merges up to [`LONGEST`] symbols. `ranks[i]` is the rank of symbols i and i + 1; the callers
    /// have quicker ways to it for single bytes than the table. `emit` gets each token with the range
    /// of symbols that it covers.
    #[inline]
    pub fn merge(&self, symbols: &[u32], ranks: &[u32], emit: impl FnMut(u32, usize, usize)) {
        match self.kernel {
            Kernel::Portable => self.merge_short(symbols, ranks, emit),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this kernel is chosen only where the processor has its features.
            Kernel::Avx2 => unsafe { self.merge_avx2(symbols, ranks, emit) },
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn merge_avx2(&self, symbols: &[u32], ranks: &[u32], emit: impl FnMut(u32, usize, usize)) {
        self.merge_short(symbols, ranks, emit);
    }

    #[inline(always)]
    fn merge_short(&self, symbols: &[u32], ranks: &[u32], mut emit: impl FnMut(u32, usize, usize)) {
        match symbols.len() {
            0 => {}
            1 => emit(symbols[0], 0, 1),
            2 if ranks[0] == NONE => {
                emit(symbols[0], 0, 1);
                emit(symbols[1], 1, 2);
            }
            2 => emit(self.product(ranks[0]), 0, 2),
            3..=8 => self.merge_within::<8>(symbols, ranks, emit),
            9..=16 => self.merge_within::<16>(symbols, ranks, emit),
            17..=32 => self.merge_within::<32>(symbols, ranks, emit),
            33..=64 => self.merge_within::<64>(symbols, ranks, emit),
            _ => self.merge_within::<LONGEST>(symbols, ranks, emit),
        }
    }

    /// Repeated minimum search over a fixed array: up to this length that beats a heap, because the
    /// search is a few vector instructions and every access is in the first-level cache.
    #[inline(always)]
    fn merge_within<const W: usize>(
        &self,
        symbols: &[u32],
        ranks: &[u32],
        mut emit: impl FnMut(u32, usize, usize),
    ) {
        const PLACE_BITS: u32 = LONGEST.trailing_zeros();
        const PLACE: u32 = LONGEST as u32 - 1;
        let key = |rank: u32, place: usize| {
            if rank == NONE { NONE } else { rank << PLACE_BITS | place as u32 }
        };
        let n = symbols.len().min(W);
        let mut ids = [0u32; W];
        // Rank and place in one number: the smallest is the lowest rank, leftmost among equals.
        let mut keys = [NONE; W];
        let mut next = [0u8; W];
        let mut previous = [0u8; W];
        ids[..n].copy_from_slice(&symbols[..n]);
        for place in 0..n {
            next[place] = place as u8 + 1;
            previous[place] = (place as u8).wrapping_sub(1);
        }
        for (place, rank) in ranks[..n - 1].iter().enumerate() {
            keys[place] = key(*rank, place);
        }
        loop {
            let least = keys.iter().fold(NONE, |least, key| least.min(*key));
            if least == NONE {
                break;
            }
            let left = (least & PLACE) as usize % W;
            let right = next[left] as usize % W;
            let after = next[right] as usize;
            let id = self.product(least >> PLACE_BITS);
            ids[left] = id;
            next[left] = after as u8;
            keys[right] = NONE;
            keys[left] = NONE;
            if after < n {
                previous[after % W] = left as u8;
                keys[left] = key(self.rank(id, ids[after % W]), left);
            }
            if left > 0 {
                let before = previous[left] as usize % W;
                keys[before] = key(self.rank(ids[before], id), before);
            }
        }
        let mut place = 0;
        while place < n {
            let end = next[place] as usize;
            emit(ids[place], place, end);
            place = end;
        }
    }
}

fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << ID_BITS | u64::from(right)
}

/// Fibonacci hashing: the upper bits of the product depend on all bits of the key.
#[inline]
fn hash(key: u64, shift: u32) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> shift) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::oracle;
    use proptest::prelude::*;

    #[test]
    fn of_a_pair_listed_twice_the_last_place_counts() {
        let rule = |left, right, product| MergeRule { left, right, product };
        let table =
            MergeTable::new(&[rule(0, 1, 5), rule(1, 2, 6), rule(0, 1, 5)], Kernel::Portable).unwrap();
        assert_eq!((table.rank(0, 1), table.rank(1, 2), table.rank(2, 1)), (2, 1, NONE));
    }

    #[test]
    fn merges_that_cannot_be_resolved_are_named() {
        let ids: Ids = [("a", 0), ("b", 1), ("", 2)].into();
        let merge = |a: &'static str, b: &'static str| vec![(Token::from(a), Token::from(b))];
        assert!(rules(&merge("a", "b"), &ids).err().unwrap().contains("\"ab\""));
        assert!(rules(&merge("a", "c"), &ids).err().unwrap().contains("\"c\""));
        assert!(rules(&merge("a", ""), &ids).is_err());
    }

    proptest! {
        #[test]
        fn merging_equals_the_naive_rule(
            rules in oracle::any_rules(),
            symbols in prop::collection::vec(0u32..4, 1..LONGEST),
        ) {
            for kernel in [Kernel::Portable, Kernel::detect()] {
                let table = MergeTable::new(&rules, kernel).unwrap();
                let ranks: Vec<u32> = symbols.windows(2).map(|pair| table.rank(pair[0], pair[1])).collect();
                let (mut tokens, mut covered) = (Vec::new(), 0);
                table.merge(&symbols, &ranks, |id, start, end| {
                    assert_eq!(start, covered);
                    covered = end;
                    tokens.push(id);
                });
                prop_assert_eq!(covered, symbols.len());
                prop_assert_eq!(tokens, oracle::merge(&rules, &symbols));
            }
        }
    }
}
