//! Merging words of any length, window by window: in linear time and constant memory, unless windows must grow.
//!
//! Why the result is exact: Call two neighbouring tokens *sound* if merging just their symbols gives these two tokens
//! again. A sequence of tokens is the encoding of its symbols if and only if every two neighbours are sound:
//!
//! - Merging the whole word never joins across the final boundaries. So inside any stretch between two of them, the
//!   merges of the whole word are those of the stretch alone, in the same order (rank, then index): in an encoding all
//!   neighbours are sound.
//! - Conversely, suppose all neighbours are sound, and consider the first merge of the whole word that crosses a
//!   boundary. Until then the two tokens next to it have gone through the same merges as they do alone. Lowest in the
//!   whole word, this merge is also the lowest among theirs, so it happens when they are merged alone, and they are not
//!   sound, a contradiction. So no merge crosses any boundary.
//!
//! Overlapping windows are therefore merged independently. A token that two of them have in common is sound with its
//! predecessor in the one and with its successor in the other, so in the first up to this token followed by the second
//! after it, all neighbours are sound. Windows at equal distances are merged side by side. If two have no token in
//! common, further windows between them begin where a late token of the first does. If that does not help, one of them
//! is longer, and so are those that follow while tokens are long: lines of spaces need it, of which vocabularies have
//! tokens of up to a hundred and more. A window of the word's beginning needs no token in common: nothing precedes. If
//! even the rest of the word has no token in common with what precedes, which takes a contrived vocabulary, the whole
//! word is merged at once.
//!
//! Compared with a heap over the whole word, windows are many times faster on a megabyte without a cut (a heap of that
//! size misses the caches at every step), and need memory for a few windows only.

use std::cmp::Ordering;
use std::ops::Range;

use super::MergeTable;
use super::array_merge::{Lockstep, Symbols};
use super::run_merge::RunMerge;
use crate::layout::MAX_SYMBOLS;

/// The size of most windows in runs.
const IN_RUNS: usize = 512;

/// How many windows are merged side by side.
const AT_ONCE: usize = 16;

/// How many borders between two windows are tried before a longer window is.
const TRIES: usize = 2;

/// The last tokens, which are not written yet: a longer window begins among them.
const KEPT: usize = 1 << 12;

/// Scratch space, kept between words.
#[derive(Default)]
pub struct WindowedMerge {
    windows: Windows,
    between: Windows,
    chain: Chain,
}

impl WindowedMerge {
    /// Appends the tokens of a word of any length.
    pub fn merge(&mut self, table: &MergeTable, word: &impl Symbols, ids: &mut Vec<u32>) {
        let size_at = |index| if begins_with_runs(word, index) { IN_RUNS } else { MAX_SYMBOLS };
        self.merge_by(table, word, size_at, ids);
    }

    /// Appends the tokens of a word, given the size of most windows that begin near an offset.
    fn merge_by(
        &mut self,
        table: &MergeTable,
        word: &impl Symbols,
        size_at: impl Fn(usize) -> usize,
        ids: &mut Vec<u32>,
    ) {
        let begin = ids.len();
        if !self.join_windows(table, word, size_at, ids) {
            ids.truncate(begin);
            self.windows.clear();
            self.windows.merge_next(table, word, word.len(), 0, 1);
            ids.extend(self.windows.tokens.iter().map(|token| token.id));
        }
    }

    /// Merges a word in windows. False if some had no token in common; `ids` is then meaningless.
    fn join_windows(
        &mut self,
        table: &MergeTable,
        word: &impl Symbols,
        size_at: impl Fn(usize) -> usize,
        ids: &mut Vec<u32>,
    ) -> bool {
        let Self { windows, between, chain } = self;
        chain.tokens.clear();
        let (mut start, mut size, mut needed) = (0, 0, 0);
        while chain.end() < word.len() {
            let before = std::mem::replace(&mut size, size_at(chain.end()).max(needed));
            if size != before {
                windows.clear();
            }
            // In a long run, a window has a token in common with those before it only if it begins where one of them
            // does.
            let at_once = if size <= MAX_SYMBOLS { AT_ONCE } else { 1 };
            if at_once == 1 {
                start = chain.places_to_go_on(size, size / 8).last().copied().unwrap_or(start);
            }
            start = windows.merge_next(table, word, size, start, at_once);
            // Where longer windows were needed, the next ones are as long, while tokens are.
            let is_long = |token: &Token| token.end - token.start > size / 8;
            if needed > 0 && !windows.tokens.iter().any(is_long) {
                needed = 0;
            }
            for window in windows.iter() {
                let end = window.last().map_or(0, |token| token.end);
                while chain.end() < end && !chain.join(window) {
                    let Some(size) = chain.go_on(between, table, word, size) else { return false };
                    needed = needed.max(size);
                }
            }
            if chain.tokens.len() > 2 * KEPT {
                chain.write(chain.tokens.len() - KEPT, ids);
            }
        }
        chain.write(chain.tokens.len(), ids);
        true
    }
}

/// Whether a word continues with runs of equal symbols, of which there are long tokens.
fn begins_with_runs(word: &impl Symbols, index: usize) -> bool {
    let end = word.len().min(index + MAX_SYMBOLS);
    let equal = (index + 1..end).filter(|&index| word.symbol(index) == word.symbol(index - 1));
    2 * equal.count() > end - index
}

/// A token and the symbols that it covers.
#[derive(Clone, Copy, PartialEq)]
struct Token {
    id: u32,
    start: usize,
    end: usize,
}

/// Tokens of which all neighbours are sound: the last ones; those before are already written.
#[derive(Default)]
struct Chain {
    tokens: Vec<Token>,
}

impl Chain {
    fn end(&self) -> usize {
        self.tokens.last().map_or(0, |token| token.end)
    }

    /// Continues with the tokens of a window, if they have one in common; one of the word's beginning replaces these.
    fn join(&mut self, window: &[Token]) -> bool {
        let begins_word = window[0].start == 0 && self.tokens.first().is_none_or(|token| token.start == 0);
        let Some((here, there)) = common(&self.tokens, window).or(begins_word.then_some((0, 0))) else {
            return false;
        };
        self.tokens.truncate(here);
        self.tokens.extend_from_slice(&window[there..]);
        true
    }

    /// Writes the first tokens, and forgets them.
    fn write(&mut self, count: usize, ids: &mut Vec<u32>) {
        ids.extend(self.tokens.drain(..count).map(|token| token.id));
    }

    /// Continues with a window that begins at a token of this chain: of this size or, where that has no token in common
    /// with it, of a larger one. Returns the size, if one has.
    fn go_on(
        &mut self,
        between: &mut Windows,
        table: &MergeTable,
        word: &impl Symbols,
        mut size: usize,
    ) -> Option<usize> {
        let first = self.tokens.first().map_or(0, |token| token.start);
        let mut in_front = size / 8;
        loop {
            between.clear();
            for index in self.places_to_go_on(size, in_front) {
                between.merge_next(table, word, size, index, 1);
                if between.iter().all(|window| self.join(window)) {
                    return Some(size);
                }
            }
            if size >= 2 * (word.len() - first) {
                return None; // one window was of all that is not written
            }
            size *= 2;
            in_front = size / 2;
        }
    }

    /// Where late tokens begin, the last first: those that end some symbols in front of the end, since what follows that
    /// decides how the end is merged; if they are too long for that, the first one that will do. A window of this size
    /// that starts there reaches further than this chain.
    fn places_to_go_on(&self, size: usize, in_front: usize) -> Vec<usize> {
        let end = self.end();
        let reaching = || self.tokens.iter().rev().take_while(|token| token.start + size > end);
        let mut late = reaching().skip_while(|token| token.end + in_front > end).peekable();
        let first = reaching().last().filter(|_| late.peek().is_none());
        late.chain(first).map(|token| token.start).take(TRIES).collect()
    }
}

/// The indices of the first token that two sequences have in common.
fn common(left: &[Token], right: &[Token]) -> Option<(usize, usize)> {
    let mut there = 0;
    let mut here = left.partition_point(|token| token.start < right[0].start);
    loop {
        let (ours, theirs) = (left.get(here)?, right.get(there)?);
        if ours == theirs {
            return Some((here, there));
        }
        match ours.end.cmp(&theirs.end) {
            Ordering::Less => here += 1,
            Ordering::Greater => there += 1,
            Ordering::Equal => (here, there) = (here + 1, there + 1),
        }
    }
}

/// Consecutive windows of a word, merged.
#[derive(Default)]
struct Windows {
    list: Vec<Window>,
    tokens: Vec<Token>,
    words: Lockstep<MAX_SYMBOLS>,
    long: RunMerge,
}

struct Window {
    start: usize,
    /// It has the same symbols as the one before: in a run of one character most do.
    is_repeat: bool,
    tokens: Range<usize>,
}

impl Windows {
    fn clear(&mut self) {
        self.list.clear();
        self.tokens.clear();
    }

    fn iter(&self) -> impl Iterator<Item = &[Token]> {
        self.list.iter().map(|window| &self.tokens[window.tokens.clone()])
    }

    /// Merges up to `count` windows, replacing the previous ones, and returns where the next one starts.
    fn merge_next(
        &mut self,
        table: &MergeTable,
        word: &impl Symbols,
        size: usize,
        first: usize,
        count: usize,
    ) -> usize {
        let mut before = self.list.pop();
        if let Some(window) = &mut before {
            self.tokens.drain(..window.tokens.start);
            window.tokens = 0..self.tokens.len();
        }
        self.list.clear();
        self.words.clear();
        let mut start = first;
        while self.list.len() < count && start < word.len() {
            let part = SymbolRange { word, start, len: size.min(word.len() - start) };
            let is_repeat = self.list.last().or(before.as_ref()).is_some_and(|before| {
                // Neither may be truncated by the end of the word.
                start.max(before.start) + size <= word.len()
                    && (0..size).all(|index| part.symbol(index) == word.symbol(before.start + index))
            });
            if !is_repeat && size <= MAX_SYMBOLS {
                self.words.add(0, |merging| {
                    merging.start(table, &part);
                    true
                });
            }
            self.list.push(Window { start, is_repeat, tokens: 0..0 });
            start = if start + part.len == word.len() { word.len() } else { start + size - size / 4 };
        }
        table.merge_all(&mut self.words);
        self.gather(table, word, size, before.as_ref());
        start
    }

    /// Collects the tokens of all windows. `earlier` is the window before them, whose tokens are still there.
    fn gather(&mut self, table: &MergeTable, word: &impl Symbols, size: usize, earlier: Option<&Window>) {
        let Self { list, tokens, words, long } = self;
        let mut merged = words.iter();
        let mut before = earlier;
        for window in list {
            let begin = tokens.len();
            let start = window.start;
            let token =
                |symbol, from, to| Token { id: table.id(symbol), start: start + from, end: start + to };
            if let (true, Some(before)) = (window.is_repeat, before) {
                for index in before.tokens.clone() {
                    let moved = |at: usize| at - before.start + start;
                    let Token { id, start, end } = tokens[index];
                    tokens.push(Token { id, start: moved(start), end: moved(end) });
                }
            } else if size <= MAX_SYMBOLS {
                if let Some(merged) = merged.next() {
                    merged.emit(|symbol, from, to| tokens.push(token(symbol, from, to)));
                }
            } else {
                let part = SymbolRange { word, start, len: size.min(word.len() - start) };
                table.merge_runs(long, &part, |symbol, from, to| tokens.push(token(symbol, from, to)));
            }
            window.tokens = begin..tokens.len();
            before = Some(window);
        }
    }
}

/// Some consecutive symbols of a word.
struct SymbolRange<'a, W> {
    word: &'a W,
    start: usize,
    len: usize,
}

impl<W: Symbols> Symbols for SymbolRange<'_, W> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn symbol(&self, index: usize) -> u32 {
        self.word.symbol(self.start + index)
    }

    #[inline(always)]
    fn rank(&self, table: &MergeTable, index: usize) -> u32 {
        self.word.rank(table, self.start + index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::oracle;
    use crate::merge::rules::MergeRule;
    use crate::simd::Simd;
    use proptest::prelude::*;

    fn merged(rules: &[MergeRule], symbols: &[u32], window: usize) -> Vec<u32> {
        let table = oracle::table(rules, Simd::detect());
        let mut ids = vec![99];
        // Windows of two sizes in turn, as where runs begin and end.
        let size_at = |index: usize| if (index / 100).is_multiple_of(2) { window } else { MAX_SYMBOLS };
        WindowedMerge::default().merge_by(&table, &symbols, size_at, &mut ids);
        ids.remove(0);
        ids
    }

    proptest! {
        #[test]
        fn windows_equal_the_naive_rule(
            rules in oracle::any_rules(),
            symbols in prop::collection::vec(0u32..4, 1..700),
            window in 1usize..40,
        ) {
            prop_assert_eq!(merged(&rules, &symbols, window), oracle::merge(&rules, &symbols));
        }

        #[test]
        fn windows_equal_the_naive_rule_on_runs(
            rules in oracle::any_rules(),
            unit in prop::collection::vec(0u32..4, 1..5),
            repeats in 1usize..300,
            tail in 0u32..4,
            window in prop_oneof![Just(MAX_SYMBOLS), Just(IN_RUNS), 2usize..40],
        ) {
            let symbols = [unit.repeat(repeats), vec![tail]].concat();
            prop_assert_eq!(merged(&rules, &symbols, window), oracle::merge(&rules, &symbols));
        }
    }

    proptest! {
        #[test]
        fn lines_of_spaces_equal_the_naive_rule(
            widths in prop::collection::vec(prop_oneof![6 => 0usize..200, 1 => 200usize..900], 1..8),
            tokens in prop::collection::vec(2usize..130, 0..8),
            with_newline in any::<bool>(),
            window in prop_oneof![Just(MAX_SYMBOLS), Just(IN_RUNS), 2usize..40],
        ) {
            // Tokens of two, four, ... spaces, some of other lengths, and one with a newline.
            let (mut rules, mut product_of, mut product) = (Vec::new(), vec![0u32; 300], 10u32);
            product_of[1] = 1;
            for length in (1..9).map(|power| 1 << power).chain(tokens) {
                let (left, right) = (usize::div_ceil(length, 2), length / 2);
                if product_of[left + right] == 0 && product_of[left] * product_of[right] > 0 {
                    rules.push(MergeRule { left: product_of[left], right: product_of[right], product });
                    product_of[left + right] = product;
                    product += 1;
                }
            }
            if with_newline {
                rules.push(MergeRule { left: product_of[4], right: 2, product });
            }
            let symbols: Vec<u32> = widths.iter().flat_map(|&width| [vec![1; width], vec![2]].concat()).collect();
            prop_assert_eq!(merged(&rules, &symbols, window), oracle::merge(&rules, &symbols));
        }
    }

    /// Tokens of up to 1,024 equal symbols, or of 512 pairs of two, do not fit into most windows.
    #[test]
    fn runs_of_long_tokens_are_merged_in_windows() {
        let doublings =
            |first: u32| (first..first + 9).map(|left| MergeRule { left, right: left, product: left + 1 });
        let equal = [MergeRule { left: 0, right: 0, product: 10 }].into_iter().chain(doublings(10));
        let pairs = [MergeRule { left: 1, right: 2, product: 30 }].into_iter().chain(doublings(30));
        let rules: Vec<MergeRule> = equal.chain(pairs).collect();
        let table = oracle::table(&rules, Simd::detect());
        let (zeros, ones) = (vec![0; 40_000], [1, 2].repeat(20_000));
        let turns = [&zeros[..10_000], &ones[..9_001], &[3], &zeros[..9_999], &ones[..10_000]].concat();
        for symbols in [&zeros, &ones, &turns] {
            for size in [MAX_SYMBOLS, IN_RUNS] {
                let mut ids = Vec::new();
                assert!(WindowedMerge::default().join_windows(
                    &table,
                    &symbols.as_slice(),
                    |_| size,
                    &mut ids
                ));
                let expected = oracle::merge_by_heap(&table, symbols);
                assert!(ids.into_iter().eq(expected.iter().map(|(symbol, _)| table.id(*symbol))));
            }
        }
    }

    /// Every pair of this chain ranks below the previous one, so that the word's last symbol decides how all of it is
    /// paired: only a window of the whole word gives the right tokens.
    #[test]
    fn a_word_that_its_end_decides_is_merged_right() {
        for length in [301u32, 302] {
            let symbols: Vec<u32> = (0..length).collect();
            let rules: Vec<MergeRule> = (0..length - 1)
                .rev()
                .map(|left| MergeRule { left, right: left + 1, product: 1000 + left })
                .collect();
            assert_eq!(merged(&rules, &symbols, MAX_SYMBOLS), oracle::merge(&rules, &symbols));
        }
    }
}
