//! Merging up to 512 symbols: for words and windows whose tokens are too long for those of [`word`](super::word), such
//! as lines of spaces.
//!
//! These are mostly runs, in which the same pair has the lowest rank at many places. So all keys are searched for the
//! lowest rank, and then all pairs of this rank are joined from left to right: what that makes has another rank.

use super::pairs::NONE;
use super::vectors::Vectors;
use super::word::{Merges, Word};

/// The most symbols.
pub const MOST: usize = BLOCK * 8;

/// Keys that one bitmap is about.
const BLOCK: usize = 64;
/// Before the first symbol, and behind the last.
const NOWHERE: u16 = u16::MAX;

/// A word on its way to tokens.
struct LongWord {
    /// The symbol that begins at each place, if one does.
    symbols: [u32; MOST],
    /// The rank of the pair that begins at each place.
    ranks: [[u32; BLOCK]; MOST / BLOCK],
    /// Where the symbols after and before the one at each place begin.
    next: [u16; MOST],
    previous: [u16; MOST],
    /// Blocks in use.
    blocks: usize,
}

/// Merges a word of one to [`MOST`] symbols. `emit` gets each token's symbol, with where it begins and ends.
#[inline(always)]
pub fn merge<M: Merges>(
    vectors: impl Vectors,
    table: &M,
    word: &impl Word<M>,
    mut emit: impl FnMut(u32, usize, usize),
) {
    let len = word.len().min(MOST);
    let mut long = LongWord {
        symbols: [0; MOST],
        ranks: [[NONE; BLOCK]; MOST / BLOCK],
        next: [NOWHERE; MOST],
        previous: [NOWHERE; MOST],
        blocks: len.div_ceil(BLOCK),
    };
    for place in 0..len {
        long.symbols[place] = word.symbol(place);
        if place > 0 {
            let before = place - 1;
            (long.next[before], long.previous[place]) = (place as u16, before as u16);
            long.ranks[before / BLOCK][before % BLOCK] = word.rank(table, before);
        }
    }
    while long.step(vectors, table) {}
    let mut place = 0;
    while place < len {
        let end = usize::from(long.next[place]).min(len);
        emit(long.symbols[place], place, end);
        place = end;
    }
}

impl LongWord {
    /// Joins all pairs of the lowest rank, up to one that makes a pair of a lower rank; false if there is none.
    #[inline(always)]
    fn step(&mut self, vectors: impl Vectors, table: &impl Merges) -> bool {
        let ranks = &self.ranks[..self.blocks];
        let lowest = ranks.iter().map(|ranks| vectors.least(ranks)).min().unwrap_or(NONE);
        if lowest == NONE {
            return false;
        }
        for block in 0..self.blocks {
            let mut places = vectors.equal(&self.ranks[block], lowest);
            while places != 0 {
                let left = block * BLOCK + places.trailing_zeros() as usize;
                places &= places - 1;
                let (right, made) = self.join(table, left);
                if right / BLOCK == block {
                    places &= !(1 << (right % BLOCK));
                }
                if made < lowest {
                    return true;
                }
            }
        }
        true
    }

    /// Joins the pair at a place. Returns where its right symbol began, and the lower rank of the pairs that this makes.
    #[inline(always)]
    fn join(&mut self, table: &impl Merges, left: usize) -> (usize, u32) {
        let symbol = table.product(self.ranks[left / BLOCK][left % BLOCK]);
        let right = usize::from(self.next[left]) % MOST;
        let after = self.next[right];
        let before = self.previous[left];
        self.symbols[left] = symbol;
        self.next[left] = after;
        let (mut with_after, mut with_before) = (NONE, NONE);
        if after != NOWHERE {
            let after = usize::from(after) % MOST;
            self.previous[after] = left as u16;
            with_after = table.ranks().get(symbol, self.symbols[after]);
        }
        self.ranks[left / BLOCK][left % BLOCK] = with_after;
        self.ranks[right / BLOCK][right % BLOCK] = NONE;
        if before != NOWHERE {
            let before = usize::from(before) % MOST;
            with_before = table.ranks().get(self.symbols[before], symbol);
            self.ranks[before / BLOCK][before % BLOCK] = with_before;
        }
        (right, with_after.min(with_before))
    }
}
