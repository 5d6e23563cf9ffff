//! The merges of a vocabulary, and merging by them.

pub mod array_merge;
#[cfg(test)]
pub mod oracle;
pub mod pair_table;
pub mod rules;
mod run_merge;
pub mod symbols;
mod windowed_merge;

use ahash::AHashMap;

use crate::layout::MAX_SYMBOLS;
use crate::simd::lanes::Lanes;
use crate::simd::probe::Probe;
use crate::simd::{NarrowWork, Simd};
use array_merge::{ArrayMerge, Lockstep, Merges, Symbols};
use pair_table::{NO_SYMBOL, NONE, PairTable};
use rules::MergeRule;
use run_merge::RunMerge;

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

    /// The instructions that the loops over words run on.
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

    /// Appends the ids of the tokens of up to [`MAX_SYMBOLS`] symbols.
    #[inline]
    pub fn merge(&self, symbols: &impl Symbols, ids: &mut Vec<u32>) {
        self.simd.run_narrow(MergeArray { table: self, symbols, ids });
    }

    /// Merges any number of symbols. `emit` gets the symbol of each token, with the range of symbols that it covers.
    fn merge_runs(&self, merge: &mut RunMerge, symbols: &impl Symbols, emit: impl FnMut(u32, usize, usize)) {
        self.simd.run_narrow(MergeRuns { table: self, merge, symbols, emit });
    }

    /// Merges several pre-tokens in lockstep; their tokens are symbols, not ids.
    pub fn merge_all<const W: usize>(&self, pretokens: &mut Lockstep<W>) {
        self.simd.run_narrow(MergeAll { table: self, pretokens });
    }
}

/// [`MergeTable::merge`].
struct MergeArray<'a, S> {
    table: &'a MergeTable,
    symbols: &'a S,
    ids: &'a mut Vec<u32>,
}

impl<S: Symbols> NarrowWork for MergeArray<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run(self, lanes: impl Probe + Lanes) {
        let Self { table, symbols, ids } = self;
        match symbols.len() {
            0 => {}
            1 => ids.push(table.id(symbols.symbol(0))),
            2 => match symbols.rank(table, 0) {
                NONE => ids.extend([0, 1].map(|index| table.id(symbols.symbol(index)))),
                rank => ids.push(table.id(rank)),
            },
            3..=8 => merge_within::<8>(table, lanes, symbols, ids),
            9..=16 => merge_within::<16>(table, lanes, symbols, ids),
            17..=32 => merge_within::<32>(table, lanes, symbols, ids),
            _ => merge_within::<MAX_SYMBOLS>(table, lanes, symbols, ids),
        }
    }
}

#[inline(always)]
fn merge_within<const W: usize>(
    table: &MergeTable,
    lanes: impl Lanes,
    symbols: &impl Symbols,
    ids: &mut Vec<u32>,
) {
    let mut merge = ArrayMerge::<W>::default();
    merge.start(table, symbols);
    while merge.step(lanes, table) {}
    merge.emit(|symbol, _, _| ids.push(table.id(symbol)));
}

/// [`MergeTable::merge_runs`].
struct MergeRuns<'a, S, E> {
    table: &'a MergeTable,
    merge: &'a mut RunMerge,
    symbols: &'a S,
    emit: E,
}

impl<S: Symbols, E: FnMut(u32, usize, usize)> NarrowWork for MergeRuns<'_, S, E> {
    type Output = ();

    #[inline(always)]
    fn run(self, lanes: impl Probe + Lanes) {
        self.merge.merge::<1, _>(lanes, self.table, self.symbols, self.emit);
    }
}

/// [`MergeTable::merge_all`].
struct MergeAll<'a, const W: usize> {
    table: &'a MergeTable,
    pretokens: &'a mut Lockstep<W>,
}

impl<const W: usize> NarrowWork for MergeAll<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run(self, lanes: impl Probe + Lanes) {
        self.pretokens.merge::<1>(lanes, self.table);
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
            words in prop::collection::vec(prop::collection::vec(0u32..4, 1..=MAX_SYMBOLS), 1..10),
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
