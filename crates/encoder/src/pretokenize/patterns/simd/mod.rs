//! The splitter for patterns with a `Shape`, 64 bytes at a time, on x86-64 with AVX2 and BMI2, optionally AVX-512.
//!
//! `classify` turns 64 bytes into bitmaps over the characters that begin in them, `starts` derives from these by word
//! arithmetic which characters begin a pre-token, and here they become those of bytes. Only a few bits are carried from
//! block to block, and nothing is stored in between.
//!
//! `pext` drops continuation bytes, `pdep` maps the starts back to bytes. AMD's processors before Zen 3 implement both
//! in microcode and gain little here on text outside ASCII.

mod classify;
mod starts;

use self::classify::classify;
use self::starts::Starts;
use crate::pretokenize::boundaries::Boundaries;
use crate::pretokenize::patterns::char_classes::unicode::{SPACE, UnicodeClasses};
use crate::pretokenize::patterns::known_patterns::KnownPattern;
use crate::simd::blocks::{BLOCK, Bmi2Blocks, block_at};
use crate::simd::{Avx2, Avx512, Simd};
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

/// Splits as `super::Splitter::split` does, on a processor with the features of a kernel.
type Split<K> = unsafe fn(K, &[u8], usize, &UnicodeClasses, &mut Boundaries) -> bool;

/// One of a kernel's functions for each shape.
macro_rules! of_shapes {
    ($split:ident: $($number:literal)*) => { [$($split::<$number>),*] };
}

const AVX2: [Split<Avx2>; KNOWN_PATTERNS.len()] = of_shapes!(avx2: 0 1 2 3 4 5 6 7 8 9 10 11);
const AVX512: [Split<Avx512>; KNOWN_PATTERNS.len()] = of_shapes!(avx512: 0 1 2 3 4 5 6 7 8 9 10 11);

/// Splits text by a pattern with a shape.
#[derive(Clone, Copy)]
pub struct SimdSplitter {
    /// Which shape.
    number: usize,
    avx2: Avx2,
    classes: &'static UnicodeClasses,
}

impl SimdSplitter {
    /// The one for a shape, if the kernel has one.
    pub fn new(shape: KnownPattern, simd: Simd) -> Option<Self> {
        let number = KNOWN_PATTERNS.iter().position(|&known| known == shape)?;
        let Simd::Avx2(avx2) = simd else { return None };
        Some(Self { number, avx2, classes: UnicodeClasses::of(shape) })
    }

    /// Replaces `cuts` by those of `text[..n]`, `n` > 0, after which `PADDING` bytes follow, and tells
    /// whether they are sure: always, but for `Shape::han_apart`.
    pub fn split(self, text: &[u8], n: usize, boundaries: &mut Boundaries) -> bool {
        let Self { number, avx2, classes } = self;
        let is_sure = match avx2.avx512() {
            // SAFETY: having an `Avx512` proves that the processor has these features.
            Some(avx512) => unsafe { AVX512[number](avx512, text, n, classes, boundaries) },
            // SAFETY: having an `Avx2` proves that the processor has these features.
            None => unsafe { AVX2[number](avx2, text, n, classes, boundaries) },
        };
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

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn avx2<const SHAPE: usize>(
    blocks: Avx2,
    text: &[u8],
    n: usize,
    classes: &UnicodeClasses,
    boundaries: &mut Boundaries,
) -> bool {
    split::<SHAPE>(blocks, text, n, classes, boundaries)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt")]
fn avx512<const SHAPE: usize>(
    blocks: Avx512,
    text: &[u8],
    n: usize,
    classes: &UnicodeClasses,
    boundaries: &mut Boundaries,
) -> bool {
    split::<SHAPE>(blocks, text, n, classes, boundaries)
}

#[inline(always)]
fn split<const SHAPE: usize>(
    blocks: impl Bmi2Blocks,
    text: &[u8],
    n: usize,
    classes: &UnicodeClasses,
    boundaries: &mut Boundaries,
) -> bool {
    boundaries.begin(n);
    let mut starts = Starts::<_, SHAPE>::new(blocks, &text[..n], classes);
    let mut before = 0;
    for at in (0..n).step_by(BLOCK) {
        let window = block_at(text, at);
        let block = classify::<SHAPE>(blocks, window, n - at, classes);
        let late = starts.late(&block);
        let mut bits = starts.of(&block, at);
        if block.leads != !0 {
            bits = blocks.pdep(bits, block.leads);
        }
        if at > 0 {
            boundaries.push(before | late);
        }
        before = bits;
    }
    boundaries.push(before);
    !starts.is_unsure
}
