//! 64 bytes of text as bitmaps over characters.

use super::KNOWN_PATTERNS;
use crate::pretokenize::boundaries::inside;
use crate::pretokenize::patterns::char_classes::unicode::{self, UnicodeClasses};
use crate::pretokenize::patterns::known_patterns::{Contractions, Newlines, Symbols, Words};
use crate::simd::blocks::{BLOCK, Bmi2Blocks, ByteBlock, PaddedBlock, part};

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
    /// What counts as punctuation.
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

/// Classifies the characters that begin in the first 64 bytes of a window, of which `n` belong to the text.
#[inline(always)]
pub fn classify<const SHAPE: usize>(
    blocks: impl Bmi2Blocks,
    window: &PaddedBlock,
    n: usize,
    classes: &UnicodeClasses,
) -> Bitmaps {
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
    if high != 0 {
        add_unicode::<SHAPE>(&mut block, blocks, bytes, high, window, classes);
    } else if valid != !0 {
        block.limit(blocks.bzhi(!0, block.count));
    }
    if shape.symbols != Symbols::Categories {
        let other = block.word | block.number | block.space | block.newline | block.mark | block.cjk;
        block.symbol = blocks.bzhi(!other, block.count);
    }
    block
}

/// Adds the characters outside ASCII, whose bytes are `high`, and turns maps over bytes into maps over characters.
#[inline(always)]
fn add_unicode<const SHAPE: usize>(
    block: &mut Bitmaps,
    blocks: impl Bmi2Blocks,
    bytes: impl ByteBlock,
    high: u64,
    window: &PaddedBlock,
    classes: &UnicodeClasses,
) {
    let shape = const { KNOWN_PATTERNS[SHAPE] };
    let leads = block.leads & !bytes.continuation();
    let sure = bytes.look_up_first_of_three(&classes.by_first_of_three);
    let mut maps = ClassMaps::default();
    let sure_leads = sure.not_zero();
    if sure_leads != 0 {
        maps.0 = sure.bits();
    }
    let mut unsure = high & leads & !sure_leads;
    while unsure != 0 {
        // Up to eight characters at a time: byte i of `gathered` holds bit i of their classes. This
        // beats both a shift for each bit of each character and a store and reload of the classes.
        let mut gathered = 0;
        let mut rest = unsure;
        for index in 0..8 {
            let offset = rest.trailing_zeros() as usize % BLOCK;
            rest &= rest - 1;
            let class = classes.table.of(decode(blocks, *part(window, offset)));
            gathered |= blocks.pdep(u64::from(class), 0x0101_0101_0101_0101) << index;
            if rest == 0 {
                break;
            }
        }
        maps.spread(blocks, gathered, unsure & !rest);
        unsure = rest;
    }
    block.number |= maps.of(unicode::NUMBER);
    block.space |= maps.of(unicode::SPACE);
    block.word |= maps.of(unicode::LETTER);
    match shape.words {
        Words::AfterSpace | Words::AfterAny | Words::AfterAnyMarked => {}
        Words::Cased => {
            block.mark = maps.of(unicode::MARK);
            block.upper |= maps.of(unicode::UPPER);
            block.lower |= maps.of(unicode::LOWER);
            if shape.han_apart {
                block.cjk = maps.of(unicode::CJK);
                block.han_number = block.number & block.cjk;
                block.han_symbol = maps.of(unicode::SYMBOL);
                block.number &= !block.cjk;
            }
        }
        Words::WithMarks => {
            block.word |= maps.of(unicode::MARK);
            block.symbol |= maps.of(unicode::SYMBOL);
            block.cjk = maps.of(unicode::CJK);
        }
    }
    let over_characters = |map: u64| blocks.pext(map, leads);
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
}

/// For each bit of a class, the bytes at which a character of the class begins. After inlining, only the maps that a
/// shape uses are computed.
#[derive(Default)]
struct ClassMaps([u64; 8]);

impl ClassMaps {
    #[inline(always)]
    fn of(&self, class: u8) -> u64 {
        self.0[class.trailing_zeros() as usize]
    }

    /// Adds the classes of up to eight characters: byte i of `gathered` holds bit i of the class of each, in order.
    #[inline(always)]
    fn spread(&mut self, blocks: impl Bmi2Blocks, gathered: u64, characters: u64) {
        for (bit, map) in self.0.iter_mut().enumerate() {
            *map |= blocks.pdep(gathered >> (8 * bit) & 0xFF, characters);
        }
    }
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

/// The code point at the start of some bytes, or some number below 2^21 if they are not UTF-8.
#[inline(always)]
fn decode(blocks: impl Bmi2Blocks, bytes: [u8; 4]) -> u32 {
    /// The payload of two, three and four bytes, by the high half of the first.
    const PAYLOAD: [u64; 4] = [0x1F3F_0000, 0x1F3F_0000, 0x0F3F_3F00, 0x073F_3F3F];
    let word = u32::from_be_bytes(bytes);
    blocks.pext(u64::from(word), PAYLOAD[(word >> 28 & 3) as usize]) as u32
}
