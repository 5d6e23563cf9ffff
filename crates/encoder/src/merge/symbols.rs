//! Merging one word whose symbols are single bytes or a list: what both kinds of model share.

use super::MergeTable;
use super::array_merge::{ArrayMerge, Merges, Symbols};
use super::pair_table::NONE;
use super::windowed_merge::WindowedMerge;
use crate::layout::MAX_SYMBOLS;

/// Whether a byte is in any UTF-8 text.
pub fn occurs(byte: usize) -> bool {
    !matches!(byte, 0xC0 | 0xC1 | 0xF5..)
}

/// Scratch space of one worker, kept between words.
#[derive(Default)]
pub struct Scratch {
    pub symbols: Vec<u32>,
    windows: WindowedMerge,
}

/// The symbols of single bytes, and the ranks of their pairs: in a small table of their own, because most look-ups of a
/// word are for its initial pairs.
pub struct ByteSymbols {
    pub ids: [u32; 256],
    ranks: Box<[u32]>,
}

impl ByteSymbols {
    /// `ids` has the symbol of each byte, [`NONE`] for bytes that no word here holds.
    pub fn new(ids: &[u32; 256], table: &MergeTable) -> Self {
        let mut ranks = vec![NONE; 1 << 16];
        for (left, left_id) in ids.iter().enumerate().filter(|(_, id)| **id != NONE) {
            for (right, right_id) in ids.iter().enumerate().filter(|(_, id)| **id != NONE) {
                ranks[left << 8 | right] = table.ranks().get(*left_id, *right_id);
            }
        }
        Self { ids: *ids, ranks: ranks.into_boxed_slice() }
    }

    /// Appends the tokens of a word of any length.
    pub fn merge(&self, table: &MergeTable, word: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        merge(table, &BytePretoken { symbols: self, word }, &mut scratch.windows, ids);
    }

    /// Starts to merge a word of one to `W` bytes.
    #[inline(always)]
    pub fn start<const W: usize>(&self, table: &MergeTable, word: &[u8], merging: &mut ArrayMerge<W>) {
        merging.start(table, &BytePretoken { symbols: self, word });
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.ranks)
    }
}

impl Scratch {
    /// Appends the tokens of the word in `symbols`.
    pub fn merge_symbols(&mut self, table: &MergeTable, ids: &mut Vec<u32>) {
        let Self { symbols, windows } = self;
        match symbols.as_slice() {
            [] => {}
            [symbol] => ids.push(table.id(*symbol)),
            symbols => merge(table, &symbols, windows, ids),
        }
    }
}

fn merge(table: &MergeTable, word: &impl Symbols, windows: &mut WindowedMerge, ids: &mut Vec<u32>) {
    if word.len() <= MAX_SYMBOLS {
        table.merge(word, ids);
    } else {
        windows.merge(table, word, ids);
    }
}

/// A word whose symbols are its bytes.
struct BytePretoken<'a> {
    symbols: &'a ByteSymbols,
    word: &'a [u8],
}

impl Symbols for BytePretoken<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.word.len()
    }

    #[inline(always)]
    fn symbol(&self, index: usize) -> u32 {
        self.symbols.ids[usize::from(self.word[index])]
    }

    #[inline(always)]
    fn rank(&self, _: &MergeTable, index: usize) -> u32 {
        self.symbols.ranks[usize::from(self.word[index]) << 8 | usize::from(self.word[index + 1])]
    }
}
