//! Characters that a pre-tokenizer removes, such as the spaces between words.
//!
//! They stay in the text. A run of them is a part of the pre-token behind it, so that a word takes one look-up and not
//! two, and only what merges a pre-token for the first time leaves them out.

use regex_syntax::hir::ClassUnicode;

use crate::pretokenize::boundaries::Boundaries;
use crate::pretokenize::patterns::char_classes::table::CharTable;
use crate::simd::blocks::{BLOCK, Blocks, ByteBlock, block_at, ones};
use crate::simd::{Simd, Work};
use crate::utf8::decode;

/// The characters that are removed.
pub struct RemovedChars {
    table: CharTable,
    /// Whether a character of one byte is one.
    of_byte: [u8; 256],
}

impl RemovedChars {
    /// The characters of a set.
    pub fn new(set: &ClassUnicode) -> Self {
        let table = CharTable::of_sets(&[set]);
        let of_byte = std::array::from_fn(|byte| if byte < 128 { table.of(byte as u32) } else { 0 });
        Self { table, of_byte }
    }

    /// The rest of a pre-token, of which a run of characters at the start may be removed.
    #[inline(always)]
    pub fn kept<'a>(removed: Option<&Self>, pretoken: &'a [u8]) -> &'a [u8] {
        removed.map_or(pretoken, |removed| &pretoken[removed.len_in(pretoken)..])
    }

    /// A token as most pre-tokens have it, behind a space if that is removed; none if it would be removed.
    pub fn in_pretoken(removed: Option<&Self>, token: &[u8]) -> Option<Vec<u8>> {
        match removed {
            Some(removed) if removed.len_in(token) > 0 => None,
            Some(removed) if removed.contains(' ') => Some([b" ", token].concat()),
            _ => Some(token.to_vec()),
        }
    }

    /// Whether a character is removed.
    pub fn contains(&self, c: char) -> bool {
        self.table.of(c.into()) != 0
    }

    /// How many bytes are removed at the start of a pre-token.
    pub fn len_in(&self, pretoken: &[u8]) -> usize {
        let mut len = 0;
        while let Some(rest @ [_, ..]) = pretoken.get(len..) {
            let (code, width) = decode(rest);
            if self.table.of(code) == 0 {
                break;
            }
            len += width;
        }
        len
    }

    /// Joins what is removed to what follows it: leaves out the cuts behind it.
    pub fn join(&self, simd: Simd, text: &[u8], boundaries: &mut Boundaries) {
        simd.run(Join { removed: self, text, boundaries: boundaries.words_mut() });
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        size_of_val(self) + self.table.bytes()
    }
}

/// [`RemovedChars::join`], for a padded text.
struct Join<'a> {
    removed: &'a RemovedChars,
    text: &'a [u8],
    boundaries: &'a mut [u64],
}

impl Work for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, loader: impl Blocks) {
        let Self { removed, text, boundaries } = self;
        let (mut removed_before, mut high_before) = (0, 0);
        for (index, boundaries) in boundaries.iter_mut().enumerate() {
            let block = loader.load(block_at(text, index * BLOCK));
            let (is_removed, high) = (block.look_up(&removed.of_byte).not_zero(), block.high());
            *boundaries &= !(is_removed << 1 | removed_before);
            for bit in ones(*boundaries & (high << 1 | high_before)) {
                if removed.len_in(last_character(&text[..index * BLOCK + bit])) > 0 {
                    *boundaries &= !(1 << bit);
                }
            }
            (removed_before, high_before) = (is_removed >> (BLOCK - 1), high >> (BLOCK - 1));
        }
    }
}

/// The last character of a text.
fn last_character(text: &[u8]) -> &[u8] {
    let is_lead = |byte: &u8| *byte & 0xC0 != 0x80;
    &text[text.iter().rposition(is_lead).unwrap_or_default()..]
}
