//! The instruction sets of the hot loops, detected once at load.
//!
//! The crate is compiled for the target's baseline processor: compiling all of it for newer ones slows inflating by a
//! fifth. Only the hot loops are compiled several times, as plain Rust ([`Scalar`]) and with newer instructions
//! (`Avx2`, `Neon`). All give the same ids, and tests run all that the processor has.
//!
//! A loop is [`Work`] on blocks of 64 bytes, or [`NarrowWork`] on single pre-tokens; [`Simd::run`] and
//! [`Simd::run_narrow`] run it. A function that it calls must be inlined into it, or that function runs without the
//! instructions.

pub mod blocks;
pub mod lanes;
pub mod probe;

use blocks::Blocks;
use lanes::Lanes;
use probe::Probe;

/// The instruction set that the hot loops of one encoder use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Simd {
    /// Plain Rust.
    Scalar,
    /// x86-64 with AVX2, BMI1, BMI2, LZCNT and POPCNT: Haswell, Zen and later.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// Any aarch64.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// A loop over blocks of 64 bytes. `run` must be `#[inline(always)]`.
pub trait Work {
    /// The result.
    type Output;

    /// Runs the loop.
    fn run(self, blocks: impl Blocks) -> Self::Output;
}

/// A loop whose steps work on single pre-tokens. `run` must be `#[inline(always)]`.
pub trait NarrowWork {
    /// The result.
    type Output;

    /// Runs the loop.
    fn run(self, simd: impl Probe + Lanes) -> Self::Output;
}

impl Simd {
    /// The best instruction set of this processor.
    pub fn detect() -> Self {
        #[cfg(target_arch = "aarch64")]
        return Self::Neon;
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
        {
            return Self::Avx2(Avx2(()));
        }
        #[cfg(not(target_arch = "aarch64"))]
        Self::Scalar
    }

    /// All instruction sets of this processor, from plain Rust to the best: for tests and comparisons.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Scalar, Self::detect()];
        all.dedup();
        all
    }

    /// A name to display.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "AVX2 and BMI2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "NEON",
        }
    }

    /// Runs a loop over blocks with these instructions.
    #[inline]
    pub fn run<W: Work>(self, work: W) -> W::Output {
        match self {
            Self::Scalar => work.run(Scalar),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Avx2` exists only where the processor has these features.
            Self::Avx2(avx2) => unsafe { run_avx2(avx2, work) },
            #[cfg(target_arch = "aarch64")]
            Self::Neon => work.run(Neon),
        }
    }

    /// Runs a loop over pre-tokens with these instructions.
    #[inline]
    pub fn run_narrow<W: NarrowWork>(self, work: W) -> W::Output {
        match self {
            Self::Scalar => work.run(Scalar),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Avx2` exists only where the processor has these features.
            Self::Avx2(avx2) => unsafe { run_narrow_avx2(avx2, work) },
            #[cfg(target_arch = "aarch64")]
            Self::Neon => work.run(Neon),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx2<W: Work>(avx2: Avx2, work: W) -> W::Output {
    work.run(avx2)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn run_narrow_avx2<W: NarrowWork>(avx2: Avx2, work: W) -> W::Output {
    work.run(avx2)
}

/// Plain Rust in place of newer instructions.
#[derive(Clone, Copy)]
pub struct Scalar;

/// Permission to use AVX2, BMI1, BMI2, LZCNT and POPCNT: only [`Simd::detect`] creates one, where the processor has
/// them.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx2(());

/// NEON, which the baseline of aarch64 includes.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy)]
pub struct Neon;

/// Prefetches a cache line; a hint without effect on results.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching is in the baseline instruction set, has no effect that the program can observe, and takes any
    // address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
