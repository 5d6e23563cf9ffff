//! Merging any number of symbols: for words and windows whose tokens are too long for those of `word`,
//! such as lines of spaces.
//!
//! These are mostly runs, in which the same pair has the lowest rank at many indices. So once the lowest rank is known,
//! all pairs of this rank are joined from left to right: what that makes has another rank. To find it and them, a lower
//! bound of the ranks in each block is kept, and only blocks with the lowest bound are searched.

use super::array_merge::{Merges, Symbols};
use super::pair_table::NONE;
use crate::simd::blocks::ones;
use crate::simd::lanes::Lanes;

/// Keys that one bitmap is about.
const BLOCK: usize = 64;
/// Before the first symbol, and behind the last.
const NOWHERE: u32 = u32::MAX;

/// A word on its way to tokens; its memory is used again for the next.
#[derive(Default)]
pub struct RunMerge {
    indices: Vec<Place>,
    /// The rank of the pair that begins at each index.
    ranks: Vec<[u32; BLOCK]>,
    /// A lower bound of the ranks in each block.
    bounds: Vec<[u32; BLOCK]>,
    /// How many symbols are left.
    count: usize,
}

/// A symbol, if one begins at this index, and where those after and before it begin.
struct Place {
    symbol: u32,
    next: u32,
    previous: u32,
}

impl RunMerge {
    /// Merges a word of one or more symbols, until only `UNTIL` symbols, or no merges, are left. `emit` gets each
    /// remaining symbol, with where it begins and ends.
    #[inline(always)]
    pub fn merge<const UNTIL: usize, M: Merges>(
        &mut self,
        lanes: impl Lanes,
        table: &M,
        word: &impl Symbols<M>,
        mut emit: impl FnMut(u32, usize, usize),
    ) {
        self.start(lanes, table, word);
        // A step joins no more than every second symbol, so it never goes below two symbols.
        while (UNTIL == 1 || self.count > UNTIL) && self.step(lanes, table) {}
        let mut index = 0;
        while let Some(&Place { symbol, next, .. }) = self.indices.get(index) {
            let end = (next as usize).min(self.indices.len());
            emit(symbol, index, end);
            index = end;
        }
    }

    #[inline(always)]
    fn start<M: Merges>(&mut self, lanes: impl Lanes, table: &M, word: &impl Symbols<M>) {
        let Self { indices, ranks, bounds, count } = self;
        *count = word.len();
        let last = word.len() - 1;
        indices.clear();
        indices.extend((0..=last).map(|index| Place {
            symbol: word.symbol(index),
            next: if index == last { NOWHERE } else { index as u32 + 1 },
            previous: (index as u32).wrapping_sub(1),
        }));
        ranks.clear();
        ranks.resize(word.len().div_ceil(BLOCK), [NONE; BLOCK]);
        for index in 0..last {
            ranks[index / BLOCK][index % BLOCK] = word.rank(table, index);
        }
        bounds.clear();
        bounds.resize(ranks.len().div_ceil(BLOCK), [NONE; BLOCK]);
        for (block, ranks) in ranks.iter().enumerate() {
            bounds[block / BLOCK][block % BLOCK] = lanes.least(ranks);
        }
    }

    /// Joins all pairs of the lowest rank, up to one that makes a pair of a lower rank; false if there is none.
    #[inline(always)]
    fn step(&mut self, lanes: impl Lanes, table: &impl Merges) -> bool {
        let mut lowest = NONE;
        for bounds in &self.bounds {
            lowest = lowest.min(lanes.least(bounds));
        }
        if lowest == NONE {
            return false;
        }
        for part in 0..self.bounds.len() {
            let blocks = lanes.equal(&self.bounds[part], lowest);
            let makes_lower =
                ones(blocks).any(|block| self.join_in(lanes, table, part * BLOCK + block, lowest));
            // Behind all joins: a vector that is loaded right behind what was stored in it waits for that.
            for block in ones(blocks) {
                self.bounds[part][block] = lanes.least(&self.ranks[part * BLOCK + block]);
            }
            if makes_lower {
                break;
            }
        }
        true
    }

    /// Joins the pairs of the lowest rank that begin in a block, up to one that makes a pair of a lower rank, and then is
    /// true.
    #[inline(always)]
    fn join_in(&mut self, lanes: impl Lanes, table: &impl Merges, block: usize, lowest: u32) -> bool {
        let mut indices = lanes.equal(&self.ranks[block], lowest);
        while indices != 0 {
            let left = block * BLOCK + indices.trailing_zeros() as usize;
            indices &= indices - 1;
            let (right, made) = self.join(table, left, lowest);
            if right / BLOCK == block {
                indices &= !(1 << (right % BLOCK));
            }
            if made < lowest {
                return true;
            }
        }
        false
    }

    /// Joins the pair at an index. Returns where its right symbol began, and the lower rank of the pairs that this
    /// makes.
    #[inline(always)]
    fn join(&mut self, table: &impl Merges, left: usize, rank: u32) -> (usize, u32) {
        let symbol = table.product(rank);
        let Place { next, previous, .. } = self.indices[left];
        self.count -= 1;
        let right = next as usize;
        let after = self.indices[right].next;
        self.indices[left] = Place { symbol, next: after, previous };
        let (mut with_after, mut with_before) = (NONE, NONE);
        if let Some(after) = self.indices.get_mut(after as usize) {
            after.previous = left as u32;
            with_after = table.ranks().get(symbol, after.symbol);
        }
        self.ranks[left / BLOCK][left % BLOCK] = with_after;
        self.ranks[right / BLOCK][right % BLOCK] = NONE;
        if let Some(before) = self.indices.get(previous as usize) {
            with_before = table.ranks().get(before.symbol, symbol);
            let (block, index) = (previous as usize / BLOCK, previous as usize % BLOCK);
            self.ranks[block][index] = with_before;
            // Rarely: the next search would wait for a store.
            let bound = &mut self.bounds[block / BLOCK][block % BLOCK];
            if with_before < *bound {
                *bound = with_before;
            }
        }
        (right, with_after.min(with_before))
    }
}
