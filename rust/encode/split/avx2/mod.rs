//! The splitter for patterns with a [`Shape`], 64 bytes at a time, on x86-64 with AVX2 and BMI2.
//!
//! [`classify`] turns 64 bytes into bitmaps over the characters that begin in them, [`starts`]
//! derives from these by word arithmetic which characters begin a piece, and here the bits become
//! offsets. Nothing but a few bits goes from block to block, and nothing is stored in between.

mod classify;
mod starts;

use std::arch::x86_64::_pdep_u64;

use self::classify::{Block, classify};
use self::starts::{After, Starts};
use super::classes::Classes;
use super::shape::Shape;

/// The shapes that kernels are compiled for.
const SHAPES: [Shape; 7] = [
    Shape::GPT2,
    Shape::GPT2_SINGLE_NUMBERS,
    Shape::CL100K,
    Shape::QWEN2,
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
pub type Kernel = unsafe fn(&[u8], usize, &Classes, &mut Vec<u32>);

/// The kernel for a shape, if there is one that this processor can run.
pub fn kernel(shape: Shape) -> Option<Kernel> {
    const KERNELS: [Kernel; SHAPES.len()] =
        [split::<0>, split::<1>, split::<2>, split::<3>, split::<4>, split::<5>, split::<6>];
    let able = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt");
    let number = SHAPES.iter().position(|&known| known == shape)?;
    able.then_some(KERNELS[number])
}

/// Appends the ends of the pieces of `text[..n]`, `n` > 0, behind which a block is readable.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn split<const SHAPE: usize>(text: &[u8], n: usize, classes: &Classes, ends: &mut Vec<u32>) {
    assert!(n > 0 && n + BLOCK <= text.len());
    let blocks = n.div_ceil(BLOCK);
    let mut starts = Starts::<SHAPE>::new(&text[..n], classes);
    // SAFETY: block 0 begins inside the text, so 64 bytes behind its start are readable.
    let mut block = unsafe { classify::<SHAPE>(text, 0, n, classes) };
    for number in 1..=blocks {
        let at = (number - 1) * BLOCK;
        let (next, after) = if number < blocks {
            // SAFETY: number * BLOCK < n, and 64 bytes behind `text[..n]` are readable.
            let next = unsafe { classify::<SHAPE>(text, number * BLOCK, n, classes) };
            let after = After::of(&next);
            (next, after)
        } else {
            (Block::default(), After::END)
        };
        let mut bits = starts.of(&block, after, at);
        if block.leads != !0 {
            bits = _pdep_u64(bits, block.leads);
        }
        if number == 1 {
            // A start is the end of the piece before it, which the first one has not.
            bits &= !1;
        }
        push_positions(bits, at as u32, ends);
        block = next;
    }
    ends.push(n as u32);
}

/// Appends the position of each bit.
#[inline]
#[target_feature(enable = "bmi1,popcnt")]
fn push_positions(mut bits: u64, base: u32, ends: &mut Vec<u32>) {
    /// Eight at a time without a look at the count: a block of text has about twelve pieces.
    const BATCH: usize = 8;
    let count = bits.count_ones() as usize;
    ends.reserve(BLOCK + BATCH);
    let length = ends.len();
    let mut written = 0;
    while written < count {
        for place in 0..BATCH {
            // SAFETY: at most 64 + 8 positions are written, for which there is room.
            unsafe { ends.as_mut_ptr().add(length + written + place).write(base + bits.trailing_zeros()) };
            bits &= bits.wrapping_sub(1);
        }
        written += BATCH;
    }
    // SAFETY: the first `count` positions behind the old length have been written.
    unsafe { ends.set_len(length + count) };
}
