//! The rule of BPE written as plainly as possible, for tests to check the fast implementations against.

use std::collections::HashMap;

use proptest::prelude::*;

use super::MergeTable;
use super::rules::{self, MergeRule};
use crate::kernel::Kernel;

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
            .filter_map(|(place, pair)| {
                ranks.get(&(pair[0], pair[1])).map(|(rank, product)| (*rank, place, *product))
            })
            .min();
        match best {
            None => return symbols,
            Some((_, place, product)) => {
                symbols[place] = product;
                symbols.remove(place + 1);
            }
        }
    }
}

/// Those rules of [`any_rules`] that can happen.
pub fn live(rules: &[MergeRule]) -> Vec<MergeRule> {
    rules::live(rules, |id, symbols| {
        spell(rules, id, symbols);
        true
    })
}

/// The table of those.
pub fn table(rules: &[MergeRule], kernel: Kernel) -> MergeTable {
    let ids = rules.iter().flat_map(|rule| [rule.left, rule.right, rule.product]).chain([3]);
    MergeTable::new(&live(rules), 1 + ids.max().expect("there is one"), kernel).expect("few ids")
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
            // Files list merges in any order of length: the one generated last may rank first.
            if rules.len() % 2 == 1 {
                rules.reverse();
            }
            rules
        },
    )
}
