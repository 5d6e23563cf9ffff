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

use ahash::AHashMap;

use super::file::Token;
use super::kernel::{Kernel, prefetch};
use super::vocab::{Ids, MAX_IDS};

/// "No merge", "no id".
pub const NONE: u32 = u32::MAX;

/// The most symbols that [`MergeTable::merge`] takes at once.
pub const LONGEST: usize = 64;

const RANK_BITS: u32 = 24;
const ID_BITS: u32 = MAX_IDS.trailing_zeros();
const EMPTY: u64 = u64::MAX;
/// Above all ranks.
const NO_RANK: u64 = (1 << RANK_BITS) - 1;
/// An id that no token has, in place of a neighbour behind either end of a word.
const NO_NEIGHBOUR: u32 = MAX_IDS - 1;

/// The rank of each pair that has a merge, and the id that each merge makes.
///
/// A cuckoo table: a pair is in one of two buckets of two entries. So a look-up is four comparisons
/// without a branch, whether the pair is there or not, which a processor cannot foresee: with linear
/// probing the wrong guesses took half of the time of merging. An entry is 20 bits of either id above 24
/// bits of rank.
pub struct MergeTable {
    buckets: Box<[Bucket]>,
    shift: u32,
    /// By rank.
    products: Box<[u32]>,
    kernel: Kernel,
}

#[derive(Clone, Copy)]
#[repr(align(16))]
struct Bucket([u64; 2]);

/// One merge with ids for tokens.
#[derive(Debug, Clone, Copy)]
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
        if rules.len() as u64 >= NO_RANK {
            return Err(format!("it has {} merges", rules.len()));
        }
        // Of a pair that is listed twice the last place counts.
        let mut ranks = AHashMap::with_capacity(rules.len());
        for (rank, rule) in rules.iter().enumerate() {
            ranks.insert(pair_key(rule.left, rule.right), rank as u64);
        }
        let entries: Vec<u64> = ranks.iter().map(|(key, rank)| key << RANK_BITS | rank).collect();
        // Up to 80 of 100 entries in use, filling takes few moves.
        let mut size = (entries.len() * 5 / 8).next_power_of_two().max(2);
        let mut buckets = fill(&entries, size);
        while buckets.is_none() {
            size *= 2;
            buckets = fill(&entries, size);
        }
        Ok(Self {
            buckets: buckets.unwrap_or_default(),
            shift: shift(size),
            products: rules.iter().map(|rule| rule.product).collect(),
            kernel,
        })
    }

    /// The rank of a pair, [`NONE`] when it has no merge.
    #[inline(always)]
    pub fn rank(&self, left: u32, right: u32) -> u32 {
        let key = pair_key(left, right);
        let [first, second] = places(key, self.shift);
        // SAFETY: both places are below the number of buckets, which is 2^(64 - shift).
        let [first, second] =
            unsafe { [self.buckets.get_unchecked(first), self.buckets.get_unchecked(second)] };
        // What is left of an entry without its key: the rank, or something larger for another pair.
        let rest = |entry: u64| entry ^ key << RANK_BITS;
        let least = |bucket: &Bucket| rest(bucket.0[0]).min(rest(bucket.0[1]));
        let rank = least(first).min(least(second));
        if rank < NO_RANK { rank as u32 } else { NONE }
    }

    #[inline]
    pub fn product(&self, rank: u32) -> u32 {
        self.products[rank as usize]
    }

    /// Whether this merge comes next is known only after a search, which the load need not wait for.
    #[inline(always)]
    fn prefetch_product(&self, rank: u32) {
        // The last one in place of none: no branch.
        if let Some(product) = self.products.get((rank as usize).min(self.products.len().wrapping_sub(1))) {
            prefetch(product);
        }
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.products)
    }

    /// Merges a word of up to [`LONGEST`] symbols. `emit` gets each token with the range of symbols that
    /// it covers.
    #[inline]
    pub fn merge(&self, word: &impl Word, emit: impl FnMut(u32, usize, usize)) {
        match self.kernel {
            Kernel::Portable => self.merge_by_length(word, emit),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this kernel is chosen only where the processor has its features.
            Kernel::Avx2 => unsafe { self.merge_avx2(word, emit) },
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn merge_avx2(&self, word: &impl Word, emit: impl FnMut(u32, usize, usize)) {
        self.merge_by_length(word, emit);
    }

    #[inline(always)]
    fn merge_by_length(&self, word: &impl Word, mut emit: impl FnMut(u32, usize, usize)) {
        match word.len() {
            0 => {}
            1 => emit(word.symbol(0), 0, 1),
            2 => match word.rank(self, 0) {
                NONE => {
                    emit(word.symbol(0), 0, 1);
                    emit(word.symbol(1), 1, 2);
                }
                rank => emit(self.product(rank), 0, 2),
            },
            3..=8 => self.merge_within::<8>(word, emit),
            9..=16 => self.merge_within::<16>(word, emit),
            17..=32 => self.merge_within::<32>(word, emit),
            _ => self.merge_within::<LONGEST>(word, emit),
        }
    }

    /// Repeated minimum search over a fixed array: up to this length that beats a heap, because the
    /// search is a few vector instructions and all the rest is in registers or the first-level cache.
    #[inline(always)]
    fn merge_within<const W: usize>(&self, word: &impl Word, mut emit: impl FnMut(u32, usize, usize)) {
        const PLACE_BITS: u32 = LONGEST.trailing_zeros();
        const PLACE: u32 = LONGEST as u32 - 1;
        // Rank and place in one number: the smallest is the lowest rank, leftmost among equals.
        let key = |rank: u32, place: usize| {
            self.prefetch_product(rank);
            if rank == NONE { NONE } else { rank << PLACE_BITS | place as u32 & PLACE }
        };
        let n = word.len().min(W);
        // The id of place i is ids[i + 1], with one in front and one behind that have no merges.
        let mut ids = [NO_NEIGHBOUR; LONGEST + 2];
        let mut keys = [NONE; W];
        for (place, id) in ids[1..=n].iter_mut().enumerate() {
            *id = word.symbol(place);
        }
        for (place, entry) in keys[..n - 1].iter_mut().enumerate() {
            *entry = key(word.rank(self, place), place);
        }
        // One bit for each place where a token begins: neighbours are found by counting zeroes, without
        // lists to set up, and without a branch at the ends.
        let mut begins = !0u64 >> (64 - n);
        loop {
            let least = keys.iter().fold(NONE, |least, key| least.min(*key));
            if least == NONE {
                break;
            }
            let left = (least & PLACE) as usize;
            let id = self.product(least >> PLACE_BITS);
            let later = begins & (!1 << left);
            let right = later.trailing_zeros() as usize;
            begins &= !(later & later.wrapping_neg());
            let after = (later & later.wrapping_sub(1)).trailing_zeros() as usize;
            // One above the place: zero is for none.
            let before = 64 - (begins & !(!0 << left)).leading_zeros() as usize;
            ids[left + 1] = id;
            let key_left = key(self.rank(id, ids[(after + 1).min(LONGEST + 1)]), left);
            let key_before = key(self.rank(ids[before], id), before.wrapping_sub(1));
            // Not three stores: the next search would have to wait for them.
            for (place, key) in keys.iter_mut().enumerate() {
                *key = if place == right { NONE } else { *key };
                *key = if place == left { key_left } else { *key };
                *key = if place + 1 == before { key_before } else { *key };
            }
        }
        let mut rest = begins;
        while rest != 0 {
            let place = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let end = if rest == 0 { n } else { rest.trailing_zeros() as usize };
            emit(ids[place + 1], place, end);
        }
    }
}

/// A cuckoo table of so many buckets; none if the entries find no place.
fn fill(entries: &[u64], size: usize) -> Option<Box<[Bucket]>> {
    const MOVES: usize = 1000;
    let mut buckets = vec![Bucket([EMPTY; 2]); size].into_boxed_slice();
    for entry in entries {
        let mut homeless = *entry;
        let mut from = usize::MAX;
        for turn in 0..=MOVES {
            let choice = places(homeless >> RANK_BITS, shift(size));
            let free = choice.into_iter().find(|place| buckets[*place].0.contains(&EMPTY));
            if let Some(place) = free {
                let way = usize::from(buckets[place].0[0] != EMPTY);
                buckets[place].0[way] = homeless;
                break;
            }
            if turn == MOVES {
                return None;
            }
            // Put out one of those there, not where the homeless one has just come from.
            let place = if choice[0] == from { choice[1] } else { choice[0] };
            std::mem::swap(&mut buckets[place].0[turn / 2 % 2], &mut homeless);
            from = place;
        }
    }
    Some(buckets)
}

/// A word to merge.
pub trait Word {
    fn len(&self) -> usize;
    fn symbol(&self, place: usize) -> u32;
    /// The rank of the symbols at `place` and behind it: where there is a quicker way than the table.
    fn rank(&self, table: &MergeTable, place: usize) -> u32;
}

impl Word for &[u32] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[u32]>::len(self)
    }

    #[inline(always)]
    fn symbol(&self, place: usize) -> u32 {
        self[place]
    }

    #[inline(always)]
    fn rank(&self, table: &MergeTable, place: usize) -> u32 {
        table.rank(self[place], self[place + 1])
    }
}

fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << ID_BITS | u64::from(right)
}

fn shift(size: usize) -> u32 {
    64 - size.trailing_zeros()
}

/// The two buckets where a pair may be. Fibonacci hashing: the upper bits of the products depend on all
/// bits of the key.
#[inline(always)]
fn places(key: u64, shift: u32) -> [usize; 2] {
    [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F].map(|factor| (key.wrapping_mul(factor) >> shift) as usize)
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
            symbols in prop::collection::vec(0u32..4, 1..=LONGEST),
        ) {
            for kernel in [Kernel::Portable, Kernel::detect()] {
                let table = MergeTable::new(&rules, kernel).unwrap();
                let (mut tokens, mut covered) = (Vec::new(), 0);
                table.merge(&symbols.as_slice(), |id, start, end| {
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
