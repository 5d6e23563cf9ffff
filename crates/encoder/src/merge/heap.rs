//! Merging with a heap of candidates, for what is too long to be searched for the lowest rank: the rare word whose
//! windows cannot be joined, and at load the spelling of a token of more than 64 symbols.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::pairs::NONE;
use super::word::Merges;

/// Merges any number of symbols in O(n log n) time, until only `until` symbols, or no merges, are left. `emit` gets
/// each remaining symbol with the number of original symbols that it and those before it cover.
pub fn merge(table: &impl Merges, symbols: &[u32], until: usize, mut emit: impl FnMut(u32, usize)) {
    let ranks = symbols.windows(2).map(|pair| table.ranks().get(pair[0], pair[1]));
    let mut word = Word {
        ids: symbols.to_vec(),
        ranks: ranks.chain([NONE]).collect(),
        next: (1..=symbols.len()).collect(),
        previous: (0..symbols.len()).map(|place| place.wrapping_sub(1)).collect(),
    };
    let mut heap: BinaryHeap<Reverse<(u32, usize)>> = word
        .ranks
        .iter()
        .enumerate()
        .filter(|(_, rank)| **rank != NONE)
        .map(|(place, rank)| Reverse((*rank, place)))
        .collect();
    let mut remaining = symbols.len();
    while remaining > until
        && let Some(Reverse((rank, place))) = heap.pop()
    {
        // The pair that was there when this was pushed may have changed since.
        if word.ranks[place] == rank {
            remaining -= 1;
            word.join(table, rank, place, |candidate| heap.push(Reverse(candidate)));
        }
    }
    let mut place = 0;
    while place < symbols.len() {
        let id = word.ids[place];
        place = word.next[place];
        emit(id, place);
    }
}

/// The symbols as a linked list; `ranks[i]` is the rank of the pair of symbol i and its successor.
struct Word {
    ids: Vec<u32>,
    ranks: Vec<u32>,
    next: Vec<usize>,
    previous: Vec<usize>,
}

impl Word {
    fn join(&mut self, table: &impl Merges, rank: u32, left: usize, mut candidate: impl FnMut((u32, usize))) {
        let right = self.next[left];
        let after = self.next[right];
        let id = table.product(rank);
        self.ids[left] = id;
        self.next[left] = after;
        self.ranks[right] = NONE;
        self.ranks[left] = NONE;
        if after < self.ids.len() {
            self.previous[after] = left;
            self.ranks[left] = table.ranks().get(id, self.ids[after]);
            if self.ranks[left] != NONE {
                candidate((self.ranks[left], left));
            }
        }
        if left > 0 {
            let before = self.previous[left];
            self.ranks[before] = table.ranks().get(self.ids[before], id);
            if self.ranks[before] != NONE {
                candidate((self.ranks[before], before));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use crate::merge::oracle;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_heap_equals_the_naive_rule(
            rules in oracle::any_rules(),
            symbols in prop::collection::vec(0u32..4, 1..300),
        ) {
            let table = oracle::table(&rules, Kernel::detect());
            let mut tokens = Vec::new();
            merge(&table, &symbols, 1, |symbol, _| tokens.push(table.id(symbol)));
            prop_assert_eq!(tokens, oracle::merge(&rules, &symbols));
        }
    }
}
