//! The merges of a file: resolved to ids, and those of them that can ever happen.
//!
//! Llama 3 lists 280 thousand merges for 128 thousand tokens, most of which never happen. To see why, take a token that
//! exists at some point while a word is being merged. Nothing was joined across its ends (symbols are never split
//! again), and each merge inside it was the first in order among those inside when it was applied, since it was the
//! first of all. So they are the merges that its spelling alone goes through. A token is thus made by one merge only,
//! the last one when its spelling is merged alone, or, if that does not give this token, by none. All other merges may
//! be dropped without changing any result: they are never the first in order.
//!
//! This makes the table half as large, gives every merge a product of its own, and lets text be cut at
//! more places.

use ahash::AHashMap;

use super::MergeTable;
use super::array_merge::{ArrayMerge, Lockstep, Merges};
use super::pair_table::{NONE, PairTable, VALUES};
use super::run_merge::RunMerge;
use crate::layout::MAX_SYMBOLS;
use crate::simd::{Scalar, Simd};
use crate::tokenizer_json::Token;
use crate::vocab::{Ids, Vocab, single_char};

/// One merge with ids for tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MergeRule {
    pub left: u32,
    pub right: u32,
    pub product: u32,
}

/// Why every product of a merge has a spelling: otherwise the file was refused.
pub const PRODUCTS: &str = "products are tokens of the vocabulary";

/// The merges of a file.
pub struct MergeRules {
    /// All of them, by rank.
    pub all: Vec<MergeRule>,
    /// The rules that can happen, by rank: one for each product.
    pub live: Vec<MergeRule>,
    /// Indexed by id: whether the token's spelling merges to the token itself.
    whole: Vec<bool>,
}

impl MergeRules {
    /// Resolves the merges, or says why the fast engine does not support them.
    pub fn new(merges: &[(Token, Token)], vocab: &Vocab, ids: &Ids) -> Result<Self, String> {
        let all = resolve(merges, ids)?;
        let characters: AHashMap<char, u32> =
            vocab.entries().filter_map(|(token, id)| Some((single_char(token)?, id))).collect();
        let live = live(&all, |id, symbols| {
            let mut chars = vocab.token(id).expect(PRODUCTS).chars();
            chars.all(|c| characters.get(&c).map(|id| symbols.push(*id)).is_some())
        });
        let highest = vocab.entries().last().map_or(0, |(_, id)| id as usize);
        let mut whole = vec![false; highest + 1];
        for id in characters.values().copied().chain(live.iter().map(|rule| rule.product)) {
            whole[id as usize] = true;
        }
        Ok(Self { all, live, whole })
    }

    /// Drops the merges whose product is not kept.
    pub fn keep(&mut self, is_kept: impl Fn(u32) -> Result<bool, String>) -> Result<(), String> {
        for rule in &self.live {
            self.whole[rule.product as usize] = is_kept(rule.product)?;
        }
        self.live.retain(|rule| self.whole[rule.product as usize]);
        Ok(())
    }

    /// The table of those that can happen, or why the fast engine does not support them.
    pub fn table(&self, simd: Simd) -> Result<MergeTable, String> {
        MergeTable::new(&self.live, self.whole.len() as u32, simd)
    }

    /// Whether merging the spelling of a token gives this token.
    pub fn makes(&self, id: u32) -> bool {
        self.whole.get(id as usize).is_some_and(|whole| *whole)
    }
}

/// The reference refuses a file whose vocabulary lacks a part or a product of a merge; the caller then uses its
/// message.
fn resolve(merges: &[(Token, Token)], ids: &Ids) -> Result<Vec<MergeRule>, String> {
    if merges.len() > VALUES as usize {
        return Err(format!("it has {} merges, and at most {VALUES} are supported", merges.len()));
    }
    let mut joined = String::new();
    merges
        .iter()
        .map(|(left, right)| {
            // With an empty part, the product of a merge would be its other part.
            if left.is_empty() || right.is_empty() {
                return Err("one of its merges has an empty part".into());
            }
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let id = |token: &str| {
                ids.get(token)
                    .copied()
                    .ok_or_else(|| format!("the merge token {token:?} is not in its vocabulary"))
            };
            Ok(MergeRule { left: id(left)?, right: id(right)?, product: id(&joined)? })
        })
        .collect()
}

/// The rules that can happen, in order. `spell` appends the symbols that spell an id, one for each character, or
/// returns false if no text gives these.
pub fn live(rules: &[MergeRule], spell: impl Fn(u32, &mut Vec<u32>) -> bool) -> Vec<MergeRule> {
    let all = AllRules {
        ranks: PairTable::new(
            rules.iter().enumerate().map(|(rank, rule)| ((rule.left, rule.right), rank as u32)),
        ),
        rules,
    };
    let mut live = Vec::with_capacity(rules.len());
    let mut last_merges = LastMerges::new(&all);
    let mut products: Vec<u32> = rules.iter().map(|rule| rule.product).collect();
    products.sort_unstable();
    products.dedup();
    let mut symbols = Vec::new();
    for product in products {
        symbols.clear();
        if spell(product, &mut symbols) {
            last_merges.add(product, &symbols, &mut live);
        }
    }
    last_merges.finish(&mut live);
    live.sort_unstable();
    live.into_iter().map(|rank| rules[rank as usize]).collect()
}

/// All rules of a file, several of which may have the same product.
struct AllRules<'a> {
    ranks: PairTable,
    rules: &'a [MergeRule],
}

impl Merges for AllRules<'_> {
    #[inline(always)]
    fn ranks(&self) -> &PairTable {
        &self.ranks
    }

    #[inline(always)]
    fn product(&self, rank: u32) -> u32 {
        self.rules[rank as usize].product
    }
}

/// The most symbols of a token that is merged side by side with others: nearly all have fewer.
const LONGEST_OF_SEVERAL: usize = 16;

/// Finds the last merges of tokens, several at a time.
struct LastMerges<'a> {
    rules: &'a AllRules<'a>,
    words: Lockstep<LONGEST_OF_SEVERAL>,
    products: Vec<u32>,
}

impl<'a> LastMerges<'a> {
    const AT_ONCE: usize = 16;

    fn new(rules: &'a AllRules<'a>) -> Self {
        Self { rules, words: Lockstep::default(), products: Vec::new() }
    }

    /// Adds a token of two or more symbols; appends the ranks of the merges found so far that make their tokens.
    fn add(&mut self, product: u32, symbols: &[u32], live: &mut Vec<u32>) {
        if symbols.len() <= LONGEST_OF_SEVERAL {
            let tag = self.products.len();
            self.products.push(product);
            self.words.add(tag, |word| {
                word.start(self.rules, &symbols);
                true
            });
            if self.words.len() == Self::AT_ONCE {
                self.finish(live);
            }
            return;
        }
        let mut left = Vec::new();
        if symbols.len() <= MAX_SYMBOLS {
            let mut word = ArrayMerge::<MAX_SYMBOLS>::default();
            word.start(self.rules, &symbols);
            while word.count() > 2 && word.step(Scalar, self.rules) {}
            word.emit(|id, _, _| left.push(id));
        } else {
            RunMerge::default().merge::<2, _>(Scalar, self.rules, &symbols, |id, _, _| left.push(id));
        }
        self.keep(product, &left, live);
    }

    fn finish(&mut self, live: &mut Vec<u32>) {
        self.words.merge::<2>(Scalar, self.rules);
        for word in self.words.iter() {
            word.with_ids(|id| id, |left| self.keep(self.products[word.tag()], left, live));
        }
        self.words.clear();
        self.products.clear();
    }

    /// Appends the rank of the merge of the two remaining symbols, if it makes the token.
    fn keep(&self, product: u32, left: &[u32], live: &mut Vec<u32>) {
        if let [left, right] = *left {
            let rank = self.rules.ranks.get(left, right);
            if rank != NONE && self.rules.product(rank) == product {
                live.push(rank);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::merge::oracle;

    #[test]
    fn merges_that_cannot_be_resolved_are_named() {
        let ids: Ids = [("a", 0), ("b", 1), ("", 2)].into();
        let merge = |a: &'static str, b: &'static str| vec![(Token::from(a), Token::from(b))];
        assert!(resolve(&merge("a", "b"), &ids).err().unwrap().contains("\"ab\""));
        assert!(resolve(&merge("a", "c"), &ids).err().unwrap().contains("\"c\""));
        assert!(resolve(&merge("a", ""), &ids).is_err());
    }

    #[test]
    fn of_two_ways_to_a_token_the_one_that_happens_is_kept() {
        let rule = |left, right, product| MergeRule { left, right, product };
        // a b c: "bc" ranks before "ab", so "abc" is made of "a" and "bc".
        let rules = [rule(1, 2, 4), rule(0, 1, 3), rule(3, 2, 5), rule(0, 4, 5)];
        let spell = |id: u32, symbols: &mut Vec<u32>| {
            symbols.extend_from_slice([&[0, 1][..], &[1, 2], &[0, 1, 2]][id as usize - 3]);
            true
        };
        assert_eq!(live(&rules, spell), [rules[0], rules[1], rules[3]]);
    }

    proptest! {
        #[test]
        fn dropped_merges_change_no_ids(
            rules in oracle::any_rules(),
            words in prop::collection::vec(prop::collection::vec(0u32..4, 1..100), 1..20),
        ) {
            let live = oracle::live(&rules);
            prop_assert!(live.iter().all(|rule| rules.contains(rule)));
            let products: HashSet<u32> = live.iter().map(|rule| rule.product).collect();
            prop_assert_eq!(products.len(), live.len());
            for symbols in words {
                prop_assert_eq!(oracle::merge(&live, &symbols), oracle::merge(&rules, &symbols));
            }
        }
    }
}
