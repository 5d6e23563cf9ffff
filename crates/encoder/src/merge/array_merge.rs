//! Words on their way to tokens.
//!
//! The rule of BPE: of all adjacent pairs that have a merge, join the one of lowest rank, the leftmost among equals, and
//! repeat until no pair has a merge. The rank of a merge is its place in the file's list, not the id it makes; of a pair
//! that is listed twice the last index counts, as in the reference.
//!
//! The reference pops entries from a heap and accepts one if the pair now at its place has the same product. This is
//! the same rule as long as an id has one spelling: then a symbol is a fixed stretch of spelling, and an entry with the
//! same index and product is the same pair.

use std::hint::select_unpredictable;

use super::MergeTable;
use super::pair_table::{NO_PAIR, NO_SYMBOL, NONE, Pair, PairSlot, PairTable};
use crate::layout::{INDEX_BITS, MAX_SYMBOLS};
use crate::simd::Scalar;
use crate::simd::lanes::Lanes;

/// The questions that merging asks of a set of rules.
pub trait Merges {
    /// The ranks of pairs.
    fn ranks(&self) -> &PairTable;
    /// The product of the merge of a rank.
    fn product(&self, rank: u32) -> u32;
}

const INDEX: u32 = (1 << INDEX_BITS) - 1;
/// Above the keys of all merges.
const NO_KEY: u32 = u32::MAX;

/// A word of one to `W` symbols on its way to tokens, by repeated minimum search over a fixed array. Up to this length
/// that beats a heap: the search is a few vector instructions, and all else is in registers or the L1 cache.
#[derive(Clone)]
pub struct ArrayMerge<const W: usize> {
    /// The symbol that begins at each index, if one does.
    symbols: [u32; W],
    /// Rank and index of the pair that begins at each index: the smallest has the lowest rank and is the leftmost among
    /// equals.
    keys: [u32; W],
    /// One bit for each index where a symbol begins: neighbours are found by counting zeros, without linked lists.
    begins: u64,
    len: usize,
    /// Tells words side by side from each other.
    tag: usize,
    joining: Joining,
}

/// A merge, while the ranks of the pairs that it makes are being fetched.
#[derive(Clone, Copy, Default)]
struct Joining {
    left: usize,
    right: usize,
    /// `right` if nothing precedes.
    before: usize,
    with_after: PairSlot,
    with_before: PairSlot,
}

impl<const W: usize> Default for ArrayMerge<W> {
    #[inline(always)]
    fn default() -> Self {
        Self {
            symbols: [NO_SYMBOL; W],
            keys: [NO_KEY; W],
            begins: 0,
            len: 0,
            tag: 0,
            joining: Joining::default(),
        }
    }
}

impl<const W: usize> ArrayMerge<W> {
    /// Begins with a word of one to `W` symbols.
    #[inline(always)]
    pub fn start<M: Merges>(&mut self, table: &M, word: &impl Symbols<M>) {
        // Vectors take eight keys at a time, indices are masked, and a key has room for those below `MAX_SYMBOLS`.
        const { assert!(W.is_power_of_two() && W >= 8 && W <= MAX_SYMBOLS) };
        debug_assert!((1..=W).contains(&word.len()), "{} symbols", word.len());
        let len = word.len().min(W);
        for (index, symbol) in self.symbols[..len].iter_mut().enumerate() {
            *symbol = word.symbol(index);
        }
        self.keys = [NO_KEY; W];
        for (index, entry) in self.keys[..len - 1].iter_mut().enumerate() {
            *entry = key(word.rank(table, index), index);
        }
        self.begins = !0u64 >> (64 - len);
        self.len = len;
    }

    pub fn tag(&self) -> usize {
        self.tag
    }

    /// How many symbols are left.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.begins.count_ones()
    }

    /// Does the next merge; false if there is none.
    #[inline(always)]
    pub fn step(&mut self, lanes: impl Lanes, table: &impl Merges) -> bool {
        let more = self.join(lanes, table);
        if more {
            let changes = self.rank(table);
            lanes.put(&mut self.keys, changes);
        }
        more
    }

    /// Joins the next pair and prefetches the ranks of the pairs that this makes; false if there is none.
    #[inline(always)]
    fn join(&mut self, lanes: impl Lanes, table: &impl Merges) -> bool {
        let least = lanes.least(&self.keys);
        if least >= NONE << INDEX_BITS {
            return false;
        }
        let left = (least & INDEX) as usize;
        let symbol = table.product(least >> INDEX_BITS);
        let later = self.begins & (!1 << left);
        let right = later.trailing_zeros() as usize;
        self.begins &= !(later & later.wrapping_neg());
        let after = (later & later.wrapping_sub(1)).trailing_zeros() as usize;
        // One above the index: zero is for none.
        let before = 64 - (self.begins & !(!0 << left)).leading_zeros() as usize;
        self.symbols[left & (W - 1)] = symbol;
        // No branch at the word's ends: `NO_PAIR` is looked up there, whose entry is always cached.
        let at = |index: usize| self.symbols[index & (W - 1)];
        let pair_after = select_unpredictable(after < 64, Pair::new(symbol, at(after)), NO_PAIR);
        let pair_before = Pair::new(at(before.wrapping_sub(1)), symbol);
        let pair_before = select_unpredictable(before > 0, pair_before, NO_PAIR);
        let with_after = table.ranks().place_of(pair_after);
        let with_before = table.ranks().place_of(pair_before);
        let before = select_unpredictable(before > 0, before.wrapping_sub(1), right);
        self.joining = Joining { left, right, before, with_after, with_before };
        true
    }

    /// The keys that the last join changed, in this order, each with its place.
    #[inline(always)]
    fn rank(&self, table: &impl Merges) -> [(usize, u32); 3] {
        let Joining { left, right, before, with_after, with_before } = self.joining;
        let with_after = table.ranks().find(with_after);
        let with_before = table.ranks().find(with_before);
        [(before, key(with_before, before)), (left, key(with_after, left)), (right, NO_KEY)]
    }

    /// The ids of the first symbols that are left, zeros if there are fewer.
    ///
    /// No branch on how many are left: that is unpredictable, and a misprediction costs more than all of this.
    #[inline(always)]
    pub fn first_ids<const N: usize>(&self, id: impl Fn(u32) -> u32) -> [u32; N] {
        let mut rest = self.begins;
        std::array::from_fn(|_| {
            let id = id(self.symbols[rest.trailing_zeros() as usize & (W - 1)]);
            let first = select_unpredictable(rest != 0, id, 0);
            rest &= rest.wrapping_sub(1);
            first
        })
    }

    /// Takes what is left: the id of each symbol.
    #[inline(always)]
    pub fn with_ids<T>(&self, id: impl Fn(u32) -> u32, take: impl FnOnce(&[u32]) -> T) -> T {
        let (mut ids, mut count) = ([0; W], 0);
        self.emit(|symbol, _, _| {
            ids[count & (W - 1)] = id(symbol);
            count += 1;
        });
        take(&ids[..count.min(W)])
    }

    /// Gives each symbol that is left with the range of those that it covers.
    #[inline(always)]
    pub fn emit(&self, mut emit: impl FnMut(u32, usize, usize)) {
        let mut rest = self.begins;
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let end = if rest == 0 { self.len } else { rest.trailing_zeros() as usize };
            emit(self.symbols[index & (W - 1)], index, end);
        }
    }
}

/// Words that are merged side by side.
#[derive(Default)]
pub struct Lockstep<const W: usize> {
    /// The words in use come first; the others keep their memory.
    slots: Vec<ArrayMerge<W>>,
    len: usize,
    /// The words that are not done.
    live: Vec<u32>,
}

impl<const W: usize> Lockstep<W> {
    pub fn clear(&mut self) {
        self.len = 0;
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds a word if `start` starts one. The tag tells it from the others.
    #[inline(always)]
    pub fn add(&mut self, tag: usize, start: impl FnOnce(&mut ArrayMerge<W>) -> bool) {
        if self.len == self.slots.len() {
            self.slots.push(ArrayMerge::default());
        }
        let slot = &mut self.slots[self.len];
        slot.tag = tag;
        self.len += usize::from(start(slot));
    }

    pub fn iter(&self) -> impl Iterator<Item = &ArrayMerge<W>> {
        self.slots[..self.len].iter()
    }

    /// Merges until `UNTIL` symbols are left of each word, or no merge is.
    ///
    /// The words advance in lockstep, one merge each: while the rank look-ups of one word miss the cache, the processor
    /// works on the next.
    #[inline(always)]
    pub fn merge<const UNTIL: u32>(&mut self, lanes: impl Lanes, table: &impl Merges) {
        let Self { slots, len, live } = self;
        live.clear();
        live.extend(0..*len as u32);
        // Not `retain`: it is not inlined, so it would be compiled without the kernel's instructions.
        let mut count = *len;
        while count > 0 {
            let mut kept = 0;
            for index in 0..count {
                let at = live[index];
                let word = &mut slots[at as usize];
                // One symbol has no merge anyway.
                let more = (UNTIL == 1 || word.count() > UNTIL) && word.join(lanes, table);
                live[kept] = at;
                kept += usize::from(more);
            }
            count = kept;
            for at in &live[..count] {
                let word = &mut slots[*at as usize];
                // Plain stores suffice: these keys are not read again until all other words have advanced.
                let changes = word.rank(table);
                Scalar.put(&mut word.keys, changes);
            }
        }
    }
}

/// Rank and index in one number. Nothing branches on a rank: whether a pair has one is unpredictable, and a
/// misprediction would discard the work in flight for other words.
#[inline(always)]
fn key(rank: u32, index: usize) -> u32 {
    debug_assert!(index < MAX_SYMBOLS, "place {index}");
    rank << INDEX_BITS | index as u32
}

/// A word to merge.
pub trait Symbols<M = MergeTable> {
    fn len(&self) -> usize;
    fn symbol(&self, index: usize) -> u32;
    /// The rank of the symbols at `place` and after it, where there is a quicker way than the table.
    fn rank(&self, table: &M, index: usize) -> u32;
}

impl<M: Merges> Symbols<M> for &[u32] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[u32]>::len(self)
    }

    #[inline(always)]
    fn symbol(&self, index: usize) -> u32 {
        self[index]
    }

    #[inline(always)]
    fn rank(&self, table: &M, index: usize) -> u32 {
        table.ranks().get(self[index], self[index + 1])
    }
}
