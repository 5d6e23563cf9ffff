//! The splitter for patterns with a `Shape`, 64 bytes at a time, on x86-64 with AVX2 and BMI2.
//!
//! `classify` turns 64 bytes into bitmaps over the characters that begin in them, `starts`
//! derives from these by word arithmetic which characters begin a piece, and here the bits become
//! offsets. Nothing but a few bits goes from block to block, and nothing is stored in between.
//!
//! `pext` drops the bytes that go on a character, `pdep` puts the starts back. AMD's processors
//! before Zen 3 have both in microcode and gain little here on text outside ASCII.

mod classify;
mod starts;

use std::arch::x86_64::_pdep_u64;

use self::classify::classify;
use self::starts::Starts;
use super::classes::Classes;
use super::shape::Shape;
use crate::encode::kernel::Kernel;
use crate::encode::positions::push_ones;

/// The shapes that kernels are compiled for.
const SHAPES: [Shape; 8] = [
    Shape::GPT2,
    Shape::GPT2_SINGLE_NUMBERS,
    Shape::CL100K,
    Shape::QWEN2,
    Shape::QWEN3_5,
    Shape::O200K,
    Shape::TEKKEN,
    Shape::DEEPSEEK_V3,
];

const BLOCK: usize = 64;

/// Splits as [`super::Splitter::split`] does.
///
/// # Safety
///
/// The processor has the features that [`kernel`] asked for.
pub type SplitKernel = unsafe fn(&[u8], usize, &Classes, &mut Vec<u32>);

/// The kernel for a shape, if there is one that this processor can run.
pub fn kernel(shape: Shape) -> Option<SplitKernel> {
    const KERNELS: [SplitKernel; SHAPES.len()] =
        [split::<0>, split::<1>, split::<2>, split::<3>, split::<4>, split::<5>, split::<6>, split::<7>];
    let number = SHAPES.iter().position(|&known| known == shape)?;
    matches!(Kernel::detect(), Kernel::Avx2(_)).then_some(KERNELS[number])
}

/// Appends the ends of the pieces of `text[..n]`, `n` > 0, behind which a block is readable.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn split<const SHAPE: usize>(text: &[u8], n: usize, classes: &Classes, ends: &mut Vec<u32>) {
    assert!(n > 0 && n + BLOCK <= text.len());
    let blocks = n.div_ceil(BLOCK);
    let mut starts = Starts::<SHAPE>::new(&text[..n], classes);
    for number in 0..blocks {
        let at = number * BLOCK;
        // SAFETY: `at` < n, and 64 bytes behind `text[..n]` are readable.
        let block = unsafe { classify::<SHAPE>(text, at, n, classes) };
        let late = starts.late(&block);
        let mut bits = starts.of(&block, at);
        if number == 0 {
            // A start is the end of the piece before it, which the first one has not.
            bits &= !1;
        }
        if block.leads != !0 {
            bits = _pdep_u64(bits, block.leads);
        }
        ends.extend(late);
        push_ones(bits, at as u32, ends);
    }
    ends.push(n as u32);
}
