//! Characters that a pre-tokenizer removes, such as the spaces between words.
//!
//! They stay in the text. A run of them is a part of the piece behind it, so that a word takes one look-up and not two,
//! and only what merges a piece for the first time leaves them out.

use regex_syntax::hir::ClassUnicode;

use super::table::Table;
use crate::cuts::Cuts;
use crate::kernel::Kernel;
use crate::kernel::blocks::{BLOCK, Blocks, ByteBlock, Work, block_at, ones};
use crate::utf8::decode;

/// The characters that are removed.
pub struct Removed {
    table: Table,
    /// Whether a character of one byte is one.
    of_byte: [u8; 256],
}

impl Removed {
    /// The characters of a set.
    pub fn new(set: &ClassUnicode) -> Self {
        let table = Table::of_sets(&[set]);
        let of_byte = std::array::from_fn(|byte| if byte < 128 { table.of(byte as u32) } else { 0 });
        Self { table, of_byte }
    }

    /// What is left of a piece, of which a run of characters at the start may be removed.
    #[inline(always)]
    pub fn kept<'a>(removed: Option<&Self>, piece: &'a [u8]) -> &'a [u8] {
        removed.map_or(piece, |removed| &piece[removed.len_in(piece)..])
    }

    /// A token as most pieces have it, behind a space if that is removed; none if it would be removed.
    pub fn in_piece(removed: Option<&Self>, token: &[u8]) -> Option<Vec<u8>> {
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

    /// How many bytes are removed at the start of a piece.
    pub fn len_in(&self, piece: &[u8]) -> usize {
        let mut len = 0;
        while let Some(rest @ [_, ..]) = piece.get(len..) {
            let (code, width) = decode(rest);
            if self.table.of(code) == 0 {
                break;
            }
            len += width;
        }
        len
    }

    /// Joins what is removed to what follows it: leaves out the cuts behind it.
    pub fn join(&self, kernel: Kernel, text: &[u8], cuts: &mut Cuts) {
        kernel.run(Join { removed: self, text, cuts: cuts.words_mut() });
    }

    /// Bytes of its tables.
    pub fn bytes(&self) -> usize {
        size_of_val(self) + self.table.bytes()
    }
}

/// [`Removed::join`], for a padded text.
struct Join<'a> {
    removed: &'a Removed,
    text: &'a [u8],
    cuts: &'a mut [u64],
}

impl Work for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, loader: impl Blocks) {
        let Self { removed, text, cuts } = self;
        let (mut removed_before, mut high_before) = (0, 0);
        for (index, cuts) in cuts.iter_mut().enumerate() {
            let block = loader.load(block_at(text, index * BLOCK));
            let (is_removed, high) = (block.look_up(&removed.of_byte).not_zero(), block.high());
            *cuts &= !(is_removed << 1 | removed_before);
            for place in ones(*cuts & (high << 1 | high_before)) {
                if removed.len_in(last_character(&text[..index * BLOCK + place])) > 0 {
                    *cuts &= !(1 << place);
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
