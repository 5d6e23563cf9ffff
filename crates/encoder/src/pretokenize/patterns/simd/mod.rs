//! The splitter for patterns with a `Shape`, 64 bytes at a time.
//!
//! `classify` turns 64 bytes into bitmaps over the characters that begin in them, `starts` derives from these by word
//! arithmetic which characters begin a pre-token, and here they become those of bytes. Only a few bits are carried from
//! block to block, and nothing is stored in between.
//!
//! A [`BitPacker`] drops continuation bytes and moves the starts back to bytes. With AVX2 it is BMI2's `pext` and `pdep`,
//! which AMD's processors before Zen 3 implement in microcode: they gain little here on text outside ASCII.

mod classify;
mod starts;

use self::classify::classify;
use self::starts::Starts;
use crate::pretokenize::boundaries::Boundaries;
use crate::pretokenize::patterns::char_classes::unicode::{SPACE, UnicodeClasses};
use crate::pretokenize::patterns::known_patterns::KnownPattern;
use crate::simd::blocks::{BLOCK, BitPacker, Blocks, block_at};
use crate::simd::{Simd, Work};
use crate::utf8::decode;

/// The shapes that kernels are compiled for.
const KNOWN_PATTERNS: [KnownPattern; 12] = [
    KnownPattern::GPT2,
    KnownPattern::GPT2_SINGLE_NUMBERS,
    KnownPattern::CL100K,
    KnownPattern::CL100K_PAIRS,
    KnownPattern::QWEN2,
    KnownPattern::QWEN3_5,
    KnownPattern::O200K,
    KnownPattern::O200K_SINGLE_NUMBERS,
    KnownPattern::TEKKEN,
    KnownPattern::DEEPSEEK_V3,
    KnownPattern::KIMI_K2,
    KnownPattern::CL100K_POSSESSIVE,
];

/// A kernel for one shape.
type Split = fn(Simd, &[u8], usize, &UnicodeClasses, &mut Boundaries) -> bool;

/// By shape.
const KERNELS: [Split; KNOWN_PATTERNS.len()] = [
    split::<0>,
    split::<1>,
    split::<2>,
    split::<3>,
    split::<4>,
    split::<5>,
    split::<6>,
    split::<7>,
    split::<8>,
    split::<9>,
    split::<10>,
    split::<11>,
];

/// Splits text by a pattern with a shape.
#[derive(Clone, Copy)]
pub struct SimdSplitter {
    /// The number of the shape.
    number: usize,
    simd: Simd,
    classes: &'static UnicodeClasses,
}

impl SimdSplitter {
    /// The one for a shape, if there is a kernel for it.
    pub fn new(shape: KnownPattern, simd: Simd) -> Option<Self> {
        let number = KNOWN_PATTERNS.iter().position(|&known| known == shape)?;
        Some(Self { number, simd, classes: UnicodeClasses::of(shape) })
    }

    /// Replaces `cuts` by those of `text[..n]`, `n` > 0, after which `PADDING` bytes follow, and tells
    /// whether they are sure: always, but for `Shape::han_apart`.
    pub fn split(self, text: &[u8], n: usize, boundaries: &mut Boundaries) -> bool {
        let Self { number, simd, classes } = self;
        let is_sure = KERNELS[number](simd, text, n, classes, boundaries);
        if KNOWN_PATTERNS[number].white_end {
            boundaries.keep_first_from(start_of_white_end(&text[..n], classes));
        }
        is_sure
    }
}

/// Where the whitespace at the end of a text begins.
fn start_of_white_end(text: &[u8], classes: &UnicodeClasses) -> usize {
    let mut end = text.len();
    while let Some(start) = text[..end].iter().rposition(|byte| byte & 0xC0 != 0x80) {
        if classes.table.of(decode(&text[start..end]).0) & SPACE == 0 {
            break;
        }
        end = start;
    }
    end
}

fn split<const SHAPE: usize>(
    simd: Simd,
    text: &[u8],
    n: usize,
    classes: &UnicodeClasses,
    boundaries: &mut Boundaries,
) -> bool {
    simd.run(SplitText::<SHAPE> { text, n, classes, boundaries })
}

/// [`SimdSplitter::split`] by one shape.
struct SplitText<'a, const SHAPE: usize> {
    text: &'a [u8],
    n: usize,
    classes: &'a UnicodeClasses,
    boundaries: &'a mut Boundaries,
}

impl<const SHAPE: usize> Work for SplitText<'_, SHAPE> {
    type Output = bool;

    #[inline(always)]
    fn run(self, blocks: impl Blocks) -> bool {
        let Self { text, n, classes, boundaries } = self;
        boundaries.begin(n);
        let mut starts = Starts::<_, SHAPE>::new(blocks, &text[..n], classes);
        let mut before = 0;
        for at in (0..n).step_by(BLOCK) {
            let window = block_at(text, at);
            let (block, leads) = classify::<SHAPE, _>(blocks, window, n - at, classes);
            let late = starts.late(&block);
            let mut bits = starts.of(&block, leads, at);
            if block.leads != !0 {
                bits = leads.unpack(bits);
            }
            if at > 0 {
                boundaries.push(before | late);
            }
            before = bits;
        }
        boundaries.push(before);
        !starts.is_unsure
    }
}
