//! 64 bytes of text as bitmaps over characters.

use super::KNOWN_PATTERNS;
use crate::pretokenize::boundaries::inside;
use crate::pretokenize::patterns::char_classes::unicode::{self, UnicodeClasses};
use crate::pretokenize::patterns::known_patterns::{Contractions, Newlines, Symbols, Words};
use crate::simd::blocks::{BitPacker, Blocks, ByteBlock, PaddedBlock, part};

/// Bit i of each map is the i-th character that begins in the block. Maps that a shape does not
/// need stay empty.
#[derive(Clone, Copy, Default)]
pub struct Bitmaps {
    /// Over bytes: where characters begin.
    pub leads: u64,
    /// The number of characters.
    pub count: u32,
    /// Letters; marks too where words contain them (`Words::WithMarks`, `Words::AfterAnyMarked`).
    pub word: u64,
    pub number: u64,
    /// Whitespace except newlines (with `Newlines::Plain`, newlines too).
    pub space: u64,
    /// `\r` and `\n`.
    pub newline: u64,
    /// The characters that count as punctuation.
    pub symbol: u64,
    /// U+0020.
    pub blank: u64,
    pub apostrophe: u64,
    pub slash: u64,
    pub upper: u64,
    pub lower: u64,
    pub mark: u64,
    pub cjk: u64,
    /// With `Shape::han_apart`: numbers in `cjk`, and what is neither number nor letter in it.
    pub han_number: u64,
    pub han_symbol: u64,
    pub ascii_letter: u64,
    pub ascii_symbol: u64,
}

/// Classifies the characters that begin in the first 64 bytes of a window, of which `n` belong to the text. Also returns
/// the packer of `Bitmaps::leads`.
#[inline(always)]
pub fn classify<const SHAPE: usize, B: Blocks>(
    blocks: B,
    window: &PaddedBlock,
    n: usize,
    classes: &UnicodeClasses,
) -> (Bitmaps, B::Packer) {
    let shape = const { KNOWN_PATTERNS[SHAPE] };
    let bytes = blocks.load(part(window, 0));
    let valid = inside(!0, 0, n);

    let ascii_letter = bytes.within_either_case(b'a', b'z');
    let newline = bytes.equal_either(b'\n', b'\r');
    let blank = bytes.equal(b' ');
    let mut space = bytes.within(b'\t', b'\r') | blank;
    let mut block = Bitmaps {
        leads: valid,
        count: valid.count_ones(),
        word: ascii_letter,
        number: bytes.within(b'0', b'9'),
        newline,
        blank,
        ..Bitmaps::default()
    };
    if shape.newlines == Newlines::Plain {
        block.newline = 0;
    } else {
        space &= !newline;
    }
    block.space = space;
    if shape.contractions != Contractions::None {
        block.apostrophe = bytes.equal(b'\'');
    }
    if shape.newlines == Newlines::KeptWithSlash {
        block.slash = bytes.equal(b'/');
    }
    if shape.words == Words::Cased {
        block.upper = bytes.within(b'A', b'Z');
        block.lower = ascii_letter & !block.upper;
    }
    if shape.symbols == Symbols::Categories {
        block.ascii_letter = ascii_letter;
        let other = block.word | block.number | blank;
        block.symbol = bytes.within(b'!', b'~') & !other;
        block.ascii_symbol = block.symbol;
    }

    let high = bytes.high() & valid;
    let mut leads = blocks.packer_without_gaps(valid);
    if high != 0 {
        leads = add_unicode::<SHAPE, B>(&mut block, blocks, bytes, high, window, classes);
    } else if valid != !0 {
        block.limit(valid);
    }
    if shape.symbols != Symbols::Categories {
        let other = block.word | block.number | block.space | block.newline | block.mark | block.cjk;
        block.symbol = blocks.lowest(!other, block.count);
    }
    (block, leads)
}

/// Adds the characters outside ASCII, whose bytes are `high`, and turns maps over bytes into maps over characters.
#[inline(always)]
fn add_unicode<const SHAPE: usize, B: Blocks>(
    block: &mut Bitmaps,
    blocks: B,
    bytes: B::Block,
    high: u64,
    window: &PaddedBlock,
    classes: &UnicodeClasses,
) -> B::Packer {
    let shape = const { KNOWN_PATTERNS[SHAPE] };
    let leads = block.leads & !bytes.continuation();
    let sure = bytes.look_up_first_of_three(&classes.by_first_of_three);
    let unsure = high & leads & !sure.not_zero();
    let class = |offset| classes.table.of(blocks.code_point(*part(window, offset)));
    let maps = blocks.bits_of_classes(sure, unsure, class);
    // After inlining, only the maps that a shape uses are computed.
    let of_class = |class: u8| maps[class.trailing_zeros() as usize];
    block.number |= of_class(unicode::NUMBER);
    block.space |= of_class(unicode::SPACE);
    block.word |= of_class(unicode::LETTER);
    match shape.words {
        Words::AfterSpace | Words::AfterAny | Words::AfterAnyMarked => {}
        Words::Cased => {
            block.mark = of_class(unicode::MARK);
            block.upper |= of_class(unicode::UPPER);
            block.lower |= of_class(unicode::LOWER);
            if shape.han_apart {
                block.cjk = of_class(unicode::CJK);
                block.han_number = block.number & block.cjk;
                block.han_symbol = of_class(unicode::SYMBOL);
                block.number &= !block.cjk;
            }
        }
        Words::WithMarks => {
            block.word |= of_class(unicode::MARK);
            block.symbol |= of_class(unicode::SYMBOL);
            block.cjk = of_class(unicode::CJK);
        }
    }
    let packer = blocks.packer(leads);
    let over_characters = |map: u64| packer.pack(map);
    block.word = over_characters(block.word);
    block.number = over_characters(block.number);
    block.space = over_characters(block.space);
    block.newline = over_characters(block.newline);
    block.blank = over_characters(block.blank);
    block.apostrophe = over_characters(block.apostrophe);
    block.slash = over_characters(block.slash);
    block.upper = over_characters(block.upper);
    block.lower = over_characters(block.lower);
    block.mark = over_characters(block.mark);
    block.symbol = over_characters(block.symbol);
    block.cjk = over_characters(block.cjk);
    block.han_number = over_characters(block.han_number);
    block.han_symbol = over_characters(block.han_symbol);
    block.ascii_letter = over_characters(block.ascii_letter);
    block.ascii_symbol = over_characters(block.ascii_symbol);
    block.leads = leads;
    block.count = leads.count_ones();
    packer
}

impl Bitmaps {
    /// Clears everything after the last character, with which `until` ends.
    #[cold]
    fn limit(&mut self, until: u64) {
        for map in [
            &mut self.word,
            &mut self.number,
            &mut self.space,
            &mut self.newline,
            &mut self.symbol,
            &mut self.blank,
            &mut self.apostrophe,
            &mut self.slash,
            &mut self.upper,
            &mut self.lower,
            &mut self.ascii_letter,
            &mut self.ascii_symbol,
        ] {
            *map &= until;
        }
    }
}
