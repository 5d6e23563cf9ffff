//! The merges of a vocabulary, and merging by them.

pub mod array_merge;
#[cfg(test)]
pub mod oracle;
pub mod pair_table;
pub mod rules;
mod run_merge;
pub mod symbols;
mod vectors;
mod windowed_merge;

use ahash::AHashMap;

#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{Scalar, Simd};
use array_merge::{ArrayMerge, LONGEST, Lockstep, Merges, Symbols};
use pair_table::{NO_SYMBOL, NONE, PairTable};
use rules::MergeRule;
use run_merge::RunMerge;
use vectors::Vectors;

/// The merges that can happen, one for each product.
///
/// Symbols are the ids of tokens as long as these ascend in the order of the merges, so that a merge's product is also
/// its rank. From the first one that does not, products have symbols above all ids. Most files have none of these,
/// SentencePiece-style ones a few at the end, for runs of spaces.
pub struct MergeTable {
    products: PairTable,
    /// Above all ids: the symbol of the first of `moved`.
    first_moved: u32,
    /// The ids of the products whose symbols are not their ids.
    moved: Box<[u32]>,
    simd: Simd,
}

impl Merges for MergeTable {
    #[inline(always)]
    fn ranks(&self) -> &PairTable {
        &self.products
    }

    #[inline(always)]
    fn product(&self, rank: u32) -> u32 {
        rank
    }
}

impl MergeTable {
    /// The table of rules with a product each, in the order of their ranks, or why there is none. All ids are below
    /// `ids`.
    pub fn new(rules: &[MergeRule], ids: u32, simd: Simd) -> Result<Self, String> {
        let ascends = |rules: &&[MergeRule]| rules[0].product < rules[1].product;
        let in_order = 1 + rules.windows(2).take_while(ascends).count();
        let moved: Box<[u32]> = rules.iter().skip(in_order).map(|rule| rule.product).collect();
        if ids as usize + moved.len() > NO_SYMBOL as usize {
            return Err(format!(
                "it has ids up to {}, and {} of its merges are not in the order of their products, expected at most \
                 {NO_SYMBOL} together",
                ids - 1,
                moved.len()
            ));
        }
        let symbols: AHashMap<u32, u32> = moved.iter().copied().zip(ids..).collect();
        let symbol = |id: u32| symbols.get(&id).copied().unwrap_or(id);
        let pair = |rule: &MergeRule| ((symbol(rule.left), symbol(rule.right)), symbol(rule.product));
        Ok(Self { products: PairTable::new(rules.iter().map(pair)), first_moved: ids, moved, simd })
    }

    /// What the loops over words run on.
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// The id of a symbol.
    #[inline(always)]
    pub fn id(&self, symbol: u32) -> u32 {
        match symbol.checked_sub(self.first_moved) {
            None => symbol,
            Some(index) => self.moved.get(index as usize).copied().unwrap_or(symbol),
        }
    }

    pub fn bytes(&self) -> usize {
        self.products.bytes() + size_of_val(&*self.moved)
    }

    /// Appends the ids of the tokens of a word of up to [`LONGEST`] symbols.
    #[inline]
    pub fn merge(&self, word: &impl Symbols, ids: &mut Vec<u32>) {
        match self.simd {
            Simd::Scalar => self.merge_by_length(Scalar, word, ids),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: having an `Avx2` proves that the processor has these features.
            Simd::Avx2(avx2) => unsafe { self.merge_avx2(avx2, word, ids) },
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn merge_avx2(&self, avx2: Avx2, word: &impl Symbols, ids: &mut Vec<u32>) {
        self.merge_by_length(avx2, word, ids);
    }

    #[inline(always)]
    fn merge_by_length(&self, vectors: impl Vectors, word: &impl Symbols, ids: &mut Vec<u32>) {
        match word.len() {
            0 => {}
            1 => ids.push(self.id(word.symbol(0))),
            2 => match word.rank(self, 0) {
                NONE => ids.extend([self.id(word.symbol(0)), self.id(word.symbol(1))]),
                rank => ids.push(self.id(rank)),
            },
            3..=8 => self.merge_within::<8>(vectors, word, ids),
            9..=16 => self.merge_within::<16>(vectors, word, ids),
            17..=32 => self.merge_within::<32>(vectors, word, ids),
            _ => self.merge_within::<LONGEST>(vectors, word, ids),
        }
    }

    #[inline(always)]
    fn merge_within<const W: usize>(&self, vectors: impl Vectors, word: &impl Symbols, ids: &mut Vec<u32>) {
        let mut merging = ArrayMerge::<W>::default();
        merging.start(self, word);
        while merging.step(vectors, self) {}
        merging.emit(|symbol, _, _| ids.push(self.id(symbol)));
    }

    /// Merges a word of any length. `emit` gets each token's symbol, with where it begins and ends.
    fn merge_runs(&self, long: &mut RunMerge, word: &impl Symbols, emit: impl FnMut(u32, usize, usize)) {
        match self.simd {
            Simd::Scalar => long.merge::<1, _>(Scalar, self, word, emit),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: having an `Avx2` proves that the processor has these features.
            Simd::Avx2(avx2) => unsafe { self.merge_runs_avx2(avx2, long, word, emit) },
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn merge_runs_avx2(
        &self,
        avx2: Avx2,
        long: &mut RunMerge,
        word: &impl Symbols,
        emit: impl FnMut(u32, usize, usize),
    ) {
        long.merge::<1, _>(avx2, self, word, emit);
    }

    /// Merges several words side by side; their tokens are symbols, not ids.
    pub fn merge_all<const W: usize>(&self, words: &mut Lockstep<W>) {
        match self.simd {
            Simd::Scalar => words.merge::<1>(Scalar, self),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: having an `Avx2` proves that the processor has these features.
            Simd::Avx2(avx2) => unsafe { self.merge_all_avx2(avx2, words) },
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn merge_all_avx2<const W: usize>(&self, avx2: Avx2, words: &mut Lockstep<W>) {
        words.merge::<1>(avx2, self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::oracle;
    use proptest::prelude::*;

    #[test]
    fn products_out_of_order_have_symbols_above_all_ids() {
        let rule = |left, right, product| MergeRule { left, right, product };
        let rules = [rule(0, 1, 5), rule(1, 1, 7), rule(0, 0, 4), rule(4, 4, 6)];
        let table = MergeTable::new(&rules, 10, Simd::detect()).unwrap();
        let symbols = [(0, 1), (1, 1), (0, 0), (10, 10)].map(|(left, right)| table.ranks().get(left, right));
        assert_eq!(symbols, [5, 7, 10, 11]);
        assert_eq!([0, 5, 7, 9, 10, 11].map(|symbol| table.id(symbol)), [0, 5, 7, 9, 4, 6]);
        assert!(MergeTable::new(&rules, NO_SYMBOL - 2, Simd::detect()).is_ok());
        let refused = MergeTable::new(&rules, NO_SYMBOL - 1, Simd::detect()).err().unwrap();
        assert!(refused.contains("2 of its merges are not in the order of their products"), "{refused}");
    }

    proptest! {
        #[test]
        fn merging_equals_the_naive_rule(
            rules in oracle::any_rules(),
            words in prop::collection::vec(prop::collection::vec(0u32..4, 1..=LONGEST), 1..10),
        ) {
            for simd in Simd::all() {
                let table = oracle::table(&rules, simd);
                for symbols in &words {
                    let mut tokens = Vec::new();
                    table.merge(&symbols.as_slice(), &mut tokens);
                    prop_assert_eq!(tokens, oracle::merge(&rules, symbols));
                }
            }
        }

        #[test]
        fn merging_long_words_equals_the_naive_rule(
            rules in oracle::any_rules(),
            words in prop::collection::vec(prop::collection::vec(0u32..4, 1..=600), 1..6),
        ) {
            for simd in Simd::all() {
                let table = oracle::table(&rules, simd);
                let mut long = RunMerge::default();
                for symbols in &words {
                    let (mut tokens, mut covered) = (Vec::new(), 0);
                    table.merge_runs(&mut long, &symbols.as_slice(), |symbol, start, end| {
                        assert_eq!(start, covered);
                        covered = end;
                        tokens.push(table.id(symbol));
                    });
                    prop_assert_eq!(covered, symbols.len());
                    prop_assert_eq!(tokens, oracle::merge(&rules, symbols));
                }
            }
        }

        #[test]
        fn merging_thousands_of_symbols_equals_the_heap(
            rules in oracle::any_rules(),
            unit in prop_oneof![prop::collection::vec(0u32..4, 1..9), prop::collection::vec(0u32..4, 5000)],
            len in 3500usize..9000,
        ) {
            let symbols: Vec<u32> = unit.iter().copied().cycle().take(len).collect();
            for simd in Simd::all() {
                let table = oracle::table(&rules, simd);
                let mut tokens = Vec::new();
                table.merge_runs(&mut RunMerge::default(), &symbols.as_slice(), |symbol, _, end| {
                    tokens.push((symbol, end));
                });
                prop_assert_eq!(tokens, oracle::merge_by_heap(&table, &symbols));
            }
        }

        #[test]
        fn words_side_by_side_equal_the_naive_rule(
            rules in oracle::any_rules(),
            words in prop::collection::vec(prop::collection::vec(0u32..4, 1..=16), 0..40),
        ) {
            for simd in Simd::all() {
                let table = oracle::table(&rules, simd);
                let mut merging = Lockstep::<16>::default();
                for (tag, word) in words.iter().enumerate() {
                    merging.add(tag, |merging| {
                        merging.start(&table, &word.as_slice());
                        true
                    });
                }
                table.merge_all(&mut merging);
                prop_assert_eq!(merging.len(), words.len());
                for word in merging.iter() {
                    let (mut tokens, mut covered) = (Vec::new(), 0);
                    word.emit(|symbol, start, end| {
                        assert_eq!(start, covered);
                        covered = end;
                        tokens.push(table.id(symbol));
                    });
                    prop_assert_eq!(covered, words[word.tag()].len());
                    prop_assert_eq!(tokens, oracle::merge(&rules, &words[word.tag()]));
                }
            }
        }
    }
}
