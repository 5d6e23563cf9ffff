//! 64 bytes of text as bitmaps over characters.

use std::arch::x86_64::{
    __m256i, _bzhi_u64, _mm_cvtsi32_si128, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_cmpeq_epi8, _mm256_cmpgt_epi8, _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8,
    _mm256_or_si256, _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_sll_epi16, _mm256_sub_epi8, _pdep_u64,
    _pext_u32, _pext_u64,
};

use super::super::classes::{self, Classes};
use super::super::shape::{Contractions, Newlines, Symbols, Words};
use super::{BLOCK, SHAPES};

/// Bit i of each map is the i-th character that begins in the block. Maps that a shape does not
/// need stay empty.
#[derive(Clone, Copy, Default)]
pub struct Block {
    /// Over bytes: where characters begin.
    pub leads: u64,
    /// The number of characters.
    pub count: u32,
    /// Letters; with `Words::WithMarks` marks too.
    pub word: u64,
    pub number: u64,
    /// White space but for newlines (with `Newlines::Plain` newlines too).
    pub space: u64,
    /// `\r` and `\n`.
    pub newline: u64,
    /// What punctuation takes.
    pub symbol: u64,
    /// U+0020.
    pub blank: u64,
    pub apostrophe: u64,
    pub slash: u64,
    pub upper: u64,
    pub lower: u64,
    pub mark: u64,
    pub cjk: u64,
    pub ascii_letter: u64,
    pub ascii_symbol: u64,
}

/// Classifies the block at `text[at..]`, of which what lies at `n` and behind does not count.
///
/// # Safety
///
/// `text[at..at + 64]` is readable, and `text[n..n + 3]` too.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub unsafe fn classify<const SHAPE: usize>(text: &[u8], at: usize, n: usize, classes: &Classes) -> Block {
    let shape = const { SHAPES[SHAPE] };
    // SAFETY: the caller vouches for 64 bytes.
    let bytes = unsafe { Bytes::load(text.as_ptr().add(at)) };
    let valid = if n - at >= BLOCK { !0 } else { (1 << (n - at)) - 1 };

    let lower_case = Bytes(_mm256_or_si256(bytes.0, splat(0x20)), _mm256_or_si256(bytes.1, splat(0x20)));
    let ascii_letter = lower_case.within(b'a', b'z');
    let newline = bytes.equal_either(b'\n', b'\r');
    let blank = bytes.equal(b' ');
    let mut space = bytes.within(b'\t', b'\r') | blank;
    let mut block = Block {
        leads: valid,
        count: valid.count_ones(),
        word: ascii_letter,
        number: bytes.within(b'0', b'9'),
        newline,
        blank,
        ..Block::default()
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
        // SAFETY: as the caller vouches.
        unsafe { add_unicode::<SHAPE>(&mut block, bytes, high, text.as_ptr().add(at), classes) };
    } else if valid != !0 {
        block.limit();
    }
    if shape.symbols != Symbols::Categories {
        let other = block.word | block.number | block.space | block.newline | block.mark;
        block.symbol = _bzhi_u64(!other, block.count);
    }
    block
}

/// Adds the characters outside ASCII, which begin or go on at `high`, and turns maps over bytes
/// into maps over characters.
///
/// # Safety
///
/// `at` points to 64 readable bytes, and three more are readable behind the last of `high`.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn add_unicode<const SHAPE: usize>(
    block: &mut Block,
    bytes: Bytes,
    high: u64,
    at: *const u8,
    classes: &Classes,
) {
    let shape = const { SHAPES[SHAPE] };
    let leads = block.leads & !bytes.continuation();
    // SAFETY: the table has 16 bytes.
    let by_first = unsafe { _mm_loadu_si128(classes.by_first_of_three.as_ptr().cast()) };
    let sure = bytes.look_up_first_of_three(_mm256_broadcastsi128_si256(by_first));
    let mut maps = ClassMaps::default();
    let sure_leads = sure.not_zero();
    if sure_leads != 0 {
        maps.set_all(sure);
    }
    let mut unsure = high & leads & !sure_leads;
    while unsure != 0 {
        // Up to eight characters at a time: byte i of `gathered` holds bit i of their classes. This
        // beats both a shift for each bit of each character and a store and reload of the classes.
        let mut gathered = 0;
        let mut rest = unsure;
        for place in 0..8 {
            let offset = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            // SAFETY: `offset` is in the block and before `n`, so four bytes are readable there.
            let class = classes.table.of(unsafe { decode(at.add(offset)) });
            gathered |= _pdep_u64(u64::from(class), 0x0101_0101_0101_0101) << place;
            if rest == 0 {
                break;
            }
        }
        maps.spread(gathered, unsure & !rest);
        unsure = rest;
    }
    block.number |= maps.of(classes::NUMBER);
    block.space |= maps.of(classes::SPACE);
    block.word |= maps.of(classes::LETTER);
    match shape.words {
        Words::AfterSpace | Words::AfterAny | Words::AfterAnyMarked => {}
        Words::Cased => {
            block.mark = maps.of(classes::MARK);
            block.upper |= maps.of(classes::UPPER);
            block.lower |= maps.of(classes::LOWER);
        }
        Words::WithMarks => {
            block.word |= maps.of(classes::MARK);
            block.symbol |= maps.of(classes::SYMBOL);
            block.cjk = maps.of(classes::CJK);
        }
    }
    let over_characters = |map: u64| _pext_u64(map, leads);
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
    block.ascii_letter = over_characters(block.ascii_letter);
    block.ascii_symbol = over_characters(block.ascii_symbol);
    block.leads = leads;
    block.count = leads.count_ones();
}

/// For each bit of a class, the bytes at which a character of the class begins. After inlining only
/// the maps that a shape asks for are computed.
#[derive(Default)]
struct ClassMaps([u64; 8]);

impl ClassMaps {
    #[inline]
    fn of(&self, class: u8) -> u64 {
        self.0[class.trailing_zeros() as usize]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn set_all(&mut self, classes: Bytes) {
        self.0 = [
            classes.bit::<0>(),
            classes.bit::<1>(),
            classes.bit::<2>(),
            classes.bit::<3>(),
            classes.bit::<4>(),
            classes.bit::<5>(),
            classes.bit::<6>(),
            classes.bit::<7>(),
        ];
    }

    /// Adds the classes of up to eight characters: byte i of `gathered` has for each in order bit i
    /// of its class.
    #[inline]
    #[target_feature(enable = "bmi2")]
    fn spread(&mut self, gathered: u64, characters: u64) {
        for (bit, map) in self.0.iter_mut().enumerate() {
            *map |= _pdep_u64(gathered >> (8 * bit) & 0xFF, characters);
        }
    }
}

impl Block {
    /// Clears what lies behind the last character.
    #[cold]
    #[target_feature(enable = "bmi2")]
    fn limit(&mut self) {
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
            *map = _bzhi_u64(*map, self.count);
        }
    }
}

/// The code point at `at`, or some number below 2^21 where the bytes are not UTF-8.
///
/// # Safety
///
/// Four bytes are readable.
#[inline]
#[target_feature(enable = "bmi2")]
unsafe fn decode(at: *const u8) -> u32 {
    /// The payload of two, three and four bytes, by the high half of the first.
    const PAYLOAD: [u32; 4] = [0x1F3F_0000, 0x1F3F_0000, 0x0F3F_3F00, 0x073F_3F3F];
    // SAFETY: the caller vouches for four bytes.
    let word = u32::from_be(unsafe { at.cast::<u32>().read_unaligned() });
    _pext_u32(word, PAYLOAD[(word >> 28 & 3) as usize])
}

#[inline]
#[target_feature(enable = "avx2")]
fn splat(byte: u8) -> __m256i {
    _mm256_set1_epi8(byte as i8)
}

/// 64 bytes.
#[derive(Clone, Copy)]
struct Bytes(__m256i, __m256i);

impl Bytes {
    /// # Safety
    ///
    /// 64 bytes are readable at `at`.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(at: *const u8) -> Self {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { Self(_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())) }
    }

    /// The top bit of each byte.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn high(self) -> u64 {
        let low = u64::from(_mm256_movemask_epi8(self.0) as u32);
        low | u64::from(_mm256_movemask_epi8(self.1) as u32) << 32
    }

    /// Bit `BIT` of each byte, counted from the lowest.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn bit<const BIT: i32>(self) -> u64 {
        let shift = _mm_cvtsi32_si128(7 - BIT);
        Self(_mm256_sll_epi16(self.0, shift), _mm256_sll_epi16(self.1, shift)).high()
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn equal(self, byte: u8) -> u64 {
        let byte = splat(byte);
        Self(_mm256_cmpeq_epi8(self.0, byte), _mm256_cmpeq_epi8(self.1, byte)).high()
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn equal_either(self, one: u8, other: u8) -> u64 {
        let (one, other) = (splat(one), splat(other));
        Self(
            _mm256_or_si256(_mm256_cmpeq_epi8(self.0, one), _mm256_cmpeq_epi8(self.0, other)),
            _mm256_or_si256(_mm256_cmpeq_epi8(self.1, one), _mm256_cmpeq_epi8(self.1, other)),
        )
        .high()
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn not_zero(self) -> u64 {
        !self.equal(0)
    }

    /// The bytes from `low` to `high`.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn within(self, low: u8, high: u8) -> u64 {
        let (low, span) = (splat(low), splat(high - low));
        let (a, b) = (_mm256_sub_epi8(self.0, low), _mm256_sub_epi8(self.1, low));
        Self(_mm256_cmpeq_epi8(_mm256_min_epu8(a, span), a), _mm256_cmpeq_epi8(_mm256_min_epu8(b, span), b))
            .high()
    }

    /// The bytes that go on a character: 0x80 to 0xBF, which are the lowest as signed numbers.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn continuation(self) -> u64 {
        let first = splat(0xC0);
        Self(_mm256_cmpgt_epi8(first, self.0), _mm256_cmpgt_epi8(first, self.1)).high()
    }

    /// `table` by the low half of the bytes from 0xE0 to 0xEF, 0 for others.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn look_up_first_of_three(self, table: __m256i) -> Self {
        let first = |bytes| {
            let high_half = _mm256_and_si256(bytes, splat(0xF0));
            let looked_up = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, splat(0x0F)));
            _mm256_and_si256(looked_up, _mm256_cmpeq_epi8(high_half, splat(0xE0)))
        };
        Self(first(self.0), first(self.1))
    }
}
