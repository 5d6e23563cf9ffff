//! The rule of BPE written as plainly as possible, for tests to check the fast implementations against.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use proptest::prelude::*;

use super::MergeTable;
use super::array_merge::Merges;
use super::pair_table::NONE;
use super::rules::{self, MergeRule};
use crate::simd::Simd;

/// Merges literally by the rule: find the lowest rank, of several the leftmost, join, repeat.
pub fn merge(rules: &[MergeRule], symbols: &[u32]) -> Vec<u32> {
    let ranks: HashMap<(u32, u32), (usize, u32)> = rules
        .iter()
        .enumerate()
        .map(|(rank, rule)| ((rule.left, rule.right), (rank, rule.product)))
        .collect();
    let mut symbols = symbols.to_vec();
    loop {
        let best = symbols
            .windows(2)
            .enumerate()
            .filter_map(|(index, pair)| {
                ranks.get(&(pair[0], pair[1])).map(|(rank, product)| (*rank, index, *product))
            })
            .min();
        match best {
            None => return symbols,
            Some((_, index, product)) => {
                symbols[index] = product;
                symbols.remove(index + 1);
            }
        }
    }
}

/// The same by a heap of candidates, for thousands of symbols: each token's symbol with its end.
pub fn merge_by_heap(table: &MergeTable, symbols: &[u32]) -> Vec<(u32, usize)> {
    // `next[i]` and `previous[i]` are the neighbours of the symbol at index i, as long as that is `alive`.
    let len = symbols.len();
    let (mut ids, mut alive) = (symbols.to_vec(), vec![true; len]);
    let mut next: Vec<usize> = (1..=len).collect();
    let mut previous: Vec<usize> = (0..len).map(|index| index.wrapping_sub(1)).collect();
    let rank = |ids: &[u32], left: usize, right: usize| match (ids.get(left), ids.get(right)) {
        (Some(left), Some(right)) => table.ranks().get(*left, *right),
        _ => NONE,
    };
    let mut heap: BinaryHeap<_> =
        (1..len).map(|right| Reverse((rank(&ids, right - 1, right), right - 1))).collect();
    while let Some(Reverse((lowest, left))) = heap.pop()
        && lowest != NONE
    {
        let right = next[left];
        // The pair that was there when this was pushed may have changed since.
        if !alive[left] || rank(&ids, left, right) != lowest {
            continue;
        }
        (ids[left], alive[right], next[left]) = (table.product(lowest), false, next[right]);
        if let Some(previous) = previous.get_mut(next[right]) {
            *previous = left;
        }
        for (left, right) in [(left, next[left]), (previous[left], left)] {
            heap.push(Reverse((rank(&ids, left, right), left)));
        }
    }
    (0..len).filter(|index| alive[*index]).map(|index| (ids[index], next[index])).collect()
}

/// The rules of [`any_rules`] that can happen.
pub fn live(rules: &[MergeRule]) -> Vec<MergeRule> {
    rules::live(rules, |id, symbols| {
        spell(rules, id, symbols);
        true
    })
}

/// The table of those.
pub fn table(rules: &[MergeRule], simd: Simd) -> MergeTable {
    let ids = rules.iter().flat_map(|rule| [rule.left, rule.right, rule.product]).chain([3]);
    MergeTable::new(&live(rules), 1 + ids.max().expect("there is one"), simd).expect("few ids")
}

/// Appends the symbols of an id, by any rule that makes it: all of them give the same spelling.
fn spell(rules: &[MergeRule], id: u32, symbols: &mut Vec<u32>) {
    match rules.iter().find(|rule| rule.product == id) {
        None => symbols.push(id),
        Some(rule) => {
            spell(rules, rule.left, symbols);
            spell(rules, rule.right, symbols);
        }
    }
}

/// Merges over the symbols 0 to 3, in any order, some listed twice, some unreachable. Products get ids by their
/// spelling, so that one spelling has one id.
pub fn any_rules() -> impl Strategy<Value = Vec<MergeRule>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..40).prop_map(
        |picks| {
            let mut spellings: Vec<Vec<u8>> = (0..4u8).map(|symbol| vec![symbol]).collect();
            let mut rules = Vec::new();
            for (left, right) in picks {
                let (left, right) = (left.index(spellings.len()), right.index(spellings.len()));
                let joined = [spellings[left].clone(), spellings[right].clone()].concat();
                let product =
                    spellings.iter().position(|spelling| *spelling == joined).unwrap_or(spellings.len());
                if product == spellings.len() {
                    spellings.push(joined);
                }
                rules.push(MergeRule { left: left as u32, right: right as u32, product: product as u32 });
            }
            // Files have merges in any order of length: the one generated last may rank first.
            if rules.len() % 2 == 1 {
                rules.reverse();
            }
            rules
        },
    )
}

proptest! {
    #[test]
    fn heap_equals_naive_rule(rules in any_rules(), symbols in prop::collection::vec(0u32..4, 1..300)) {
        let table = table(&rules, Simd::detect());
        let tokens: Vec<u32> = merge_by_heap(&table, &symbols).iter().map(|(symbol, _)| table.id(*symbol)).collect();
        prop_assert_eq!(tokens, merge(&rules, &symbols));
    }
}
