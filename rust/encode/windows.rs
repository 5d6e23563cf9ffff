//! Merging words of any length, window by window, in linear time and constant memory.
//!
//! Why the result is exact. Call two neighbouring tokens *sound* when merging just their symbols gives
//! these two tokens again. A sequence of tokens is the encoding of its symbols exactly when every two
//! neighbours are sound:
//!
//! - Merging the whole word never joins across the final boundaries. So inside any stretch between two
//!   of them, the merges of the whole word are the merges of the stretch alone, in the same order (rank,
//!   then place): in an encoding all neighbours are sound.
//! - The other way round, say all neighbours are sound and look at the first merge of the whole word
//!   that crosses a boundary. Until then the two tokens beside it have gone through the same merges as
//!   they do alone. Lowest in the whole word, this merge is also lowest among theirs, so it happens when
//!   they are merged alone, and they are not sound. So no merge crosses any boundary.
//!
//! A window of symbols is merged as if it stood alone; its tokens are sound among themselves. All but
//! its end is kept, the next window begins where that ends, and only the joint between the two has to
//! be tried. When it is not sound, the boundary is moved back a token; when that does not help, the word
//! is begun again with a longer window, up to the whole word. Only vocabularies made for the purpose get
//! there: a test does.
//!
//! Against a heap over the whole word this is several times faster on a megabyte without a cut (a heap
//! of that size misses the caches at every step) and needs no memory that grows with the word.

use super::heap;
use super::merge::MergeTable;
use super::merging::LONGEST;

/// What a long word is made of. Offsets are in units of the source, bytes for text.
pub trait Symbols {
    /// Where the word ends.
    fn end(&self) -> usize;
    /// Replaces `window` by the symbols from offset `from`, `limit` of them or as many as are left.
    fn read(&self, from: usize, limit: usize, window: &mut Window);
}

/// Some consecutive symbols and the offset where each ends.
#[derive(Default, Clone, PartialEq)]
pub struct Window {
    pub symbols: Vec<u32>,
    pub ends: Vec<usize>,
}

impl Window {
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.ends.clear();
    }

    pub fn push(&mut self, symbol: u32, end: usize) {
        self.symbols.push(symbol);
        self.ends.push(end);
    }
}

#[derive(Clone, Copy, PartialEq)]
struct Piece {
    id: u32,
    /// How many symbols of its window this token and those before it cover.
    end: usize,
}

/// Scratch space, kept between words.
#[derive(Default)]
pub struct WindowMerger {
    window: Window,
    pieces: Vec<Piece>,
    joint: Window,
    joint_pieces: Vec<Piece>,
    previous: Vec<u32>,
}

/// How many boundaries are tried before the window grows.
const TRIES: usize = 8;

impl WindowMerger {
    /// Appends the tokens of a word of any length.
    pub fn merge(&mut self, table: &MergeTable, word: &impl Symbols, ids: &mut Vec<u32>) {
        self.merge_from(table, word, LONGEST, ids);
    }

    fn merge_from(&mut self, table: &MergeTable, word: &impl Symbols, first: usize, ids: &mut Vec<u32>) {
        let begin = ids.len();
        let mut size = first;
        while !self.try_windows(table, word, size, ids) {
            ids.truncate(begin);
            size *= 8;
        }
    }

    /// Merges with windows of one size. False: some joint was not sound, `ids` holds nothing of use.
    fn try_windows(
        &mut self,
        table: &MergeTable,
        word: &impl Symbols,
        size: usize,
        ids: &mut Vec<u32>,
    ) -> bool {
        let end = word.end();
        let mut at = 0;
        // Starts of the tokens kept from the last window, the newest last.
        let mut starts: Vec<usize> = Vec::new();
        let mut tries = 0;
        let mut repeats = 0;
        self.previous.clear();
        while at < end {
            word.read(at, size, &mut self.window);
            // A run of one character gives the same window over and over.
            if self.window.symbols == self.previous {
                repeats += 1;
            } else {
                repeats = 0;
                self.merge_window(table);
                self.previous.clone_from(&self.window.symbols);
            }
            let Some(first) = self.pieces.first() else { return false };
            let first_end = self.window.ends[first.end - 1];
            // The third of three equal windows meets the joint that the second has met.
            if repeats < 2
                && let (Some(start), Some(id)) = (starts.last(), ids.last())
                && !self.is_sound(table, word, (*start, at, first_end), (*id, first.id))
            {
                tries += 1;
                if tries == TRIES || starts.len() == 1 {
                    return false;
                }
                at = *start;
                starts.pop();
                ids.pop();
                self.previous.clear();
                continue;
            }
            tries = 0;
            let last = self.window.ends.last() == Some(&end);
            let kept = if last { self.pieces.len() } else { self.kept(size) };
            starts.clear();
            for piece in &self.pieces[..kept] {
                starts.push(at);
                ids.push(piece.id);
                at = self.window.ends[piece.end - 1];
            }
        }
        true
    }

    /// How many tokens of a window to keep: what lies within seven eighths of it, at least one.
    fn kept(&self, size: usize) -> usize {
        self.pieces.iter().take_while(|piece| piece.end <= size - size / 8).count().max(1)
    }

    fn merge_window(&mut self, table: &MergeTable) {
        merge_all(table, &self.window.symbols, &mut self.pieces);
    }

    /// Whether the symbols from `start` to `end` merge to two tokens, parted at `middle`.
    fn is_sound(
        &mut self,
        table: &MergeTable,
        word: &impl Symbols,
        (start, middle, end): (usize, usize, usize),
        (left, right): (u32, u32),
    ) -> bool {
        word.read(start, end - start, &mut self.joint);
        let count = self.joint.ends.partition_point(|symbol_end| *symbol_end <= end);
        let parted = self.joint.ends.partition_point(|symbol_end| *symbol_end <= middle);
        self.joint.symbols.truncate(count);
        merge_all(table, &self.joint.symbols, &mut self.joint_pieces);
        self.joint_pieces == [Piece { id: left, end: parted }, Piece { id: right, end: count }]
    }
}

/// Merges symbols as if they stood alone.
fn merge_all(table: &MergeTable, symbols: &[u32], pieces: &mut Vec<Piece>) {
    pieces.clear();
    if symbols.len() <= LONGEST {
        table.merge(&symbols, |id, _, end| pieces.push(Piece { id, end }));
    } else {
        heap::merge(table, symbols, 1, |symbol, end| pieces.push(Piece { id: table.id(symbol), end }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::kernel::Kernel;
    use crate::encode::oracle;
    use crate::encode::rules::MergeRule;
    use proptest::prelude::*;

    impl Symbols for &[u32] {
        fn end(&self) -> usize {
            self.len()
        }

        fn read(&self, from: usize, limit: usize, window: &mut Window) {
            window.clear();
            for (place, symbol) in self.iter().enumerate().skip(from).take(limit) {
                window.push(*symbol, place + 1);
            }
        }
    }

    fn merged(rules: &[MergeRule], symbols: &[u32], window: usize) -> Vec<u32> {
        let table = MergeTable::new(&oracle::live(rules), Kernel::detect());
        let mut ids = vec![99];
        WindowMerger::default().merge_from(&table, &symbols, window, &mut ids);
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
        ) {
            let symbols = [unit.repeat(repeats), vec![tail]].concat();
            prop_assert_eq!(merged(&rules, &symbols, LONGEST), oracle::merge(&rules, &symbols));
        }
    }

    /// Every pair of this chain ranks below the one before it, so that the word's very last symbol
    /// decides how all of it is paired: no window but the whole word gives the right tokens.
    #[test]
    fn a_word_that_its_end_decides_is_merged_right() {
        for length in [301u32, 302] {
            let symbols: Vec<u32> = (0..length).collect();
            let rules: Vec<MergeRule> = (0..length - 1)
                .rev()
                .map(|left| MergeRule { left, right: left + 1, product: 1000 + left })
                .collect();
            assert_eq!(merged(&rules, &symbols, LONGEST), oracle::merge(&rules, &symbols));
        }
    }
}
