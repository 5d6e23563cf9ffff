//! The instruction sets of the hot loops, detected once at load.
//!
//! The crate is compiled for the target's baseline processor: compiling all of it for newer ones slows inflating by a
//! fifth. Only the hot loops are compiled several times, as plain Rust ([`Scalar`]) and with newer instructions
//! ([`Avx2`], [`Avx512`]). All give the same ids, and tests run all that the processor has.
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
    /// x86-64 with AVX2, BMI1, BMI2, LZCNT and POPCNT: Haswell, Zen and later. Where the processor also has AVX-512,
    /// text is cut with that; the other loops gain nothing from it.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

/// A loop over blocks of 64 bytes. `run` must be `#[inline(always)]`.
pub trait Work {
    /// The result.
    type Output;

    /// Runs the loop.
    fn run(self, blocks: impl Blocks) -> Self::Output;
}

/// A loop whose steps work on single pre-tokens, which gains nothing from AVX-512. `run` must be `#[inline(always)]`.
pub trait NarrowWork {
    /// The result.
    type Output;

    /// Runs the loop.
    fn run(self, simd: impl Probe + Lanes) -> Self::Output;
}

impl Simd {
    /// The best instruction set of this processor.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
        {
            let has_avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vbmi")
                && is_x86_feature_detected!("avx512vbmi2");
            return Self::Avx2(Avx2 { avx512: has_avx512.then_some(Avx512(())) });
        }
        Self::Scalar
    }

    /// All instruction sets of this processor, from plain Rust to the best: for tests and comparisons.
    pub fn all() -> Vec<Self> {
        match Self::detect() {
            Self::Scalar => vec![Self::Scalar],
            #[cfg(target_arch = "x86_64")]
            best @ Self::Avx2(Avx2 { avx512 }) => {
                let mut all = vec![Self::Scalar, Self::Avx2(Avx2 { avx512: None })];
                all.extend(avx512.map(|_| best));
                all
            }
        }
    }

    /// A name to display.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(Avx2 { avx512: None }) => "AVX2 and BMI2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(Avx2 { avx512: Some(_) }) => "AVX-512, AVX2 and BMI2",
        }
    }

    /// Runs a loop over blocks with these instructions.
    #[inline]
    pub fn run<W: Work>(self, work: W) -> W::Output {
        match self {
            Self::Scalar => work.run(Scalar),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(avx2) => match avx2.avx512 {
                // SAFETY: an `Avx512` exists only where the processor has these features.
                Some(avx512) => unsafe { run_avx512(avx512, work) },
                // SAFETY: an `Avx2` exists only where the processor has these features.
                None => unsafe { run_avx2(avx2, work) },
            },
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
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx2<W: Work>(avx2: Avx2, work: W) -> W::Output {
    work.run(avx2)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx512<W: Work>(avx512: Avx512, work: W) -> W::Output {
    work.run(avx512)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn run_narrow_avx2<W: NarrowWork>(avx2: Avx2, work: W) -> W::Output {
    work.run(avx2)
}

/// Plain Rust in place of newer instructions.
#[derive(Clone, Copy)]
pub struct Scalar;

/// Permission to use AVX2, BMI1, BMI2, LZCNT and POPCNT: only [`Simd::detect`] creates one, where the processor has them,
/// and [`Simd::all`] derives others from that.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx2 {
    avx512: Option<Avx512>,
}

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// Permission to use AVX-512, if the processor has it.
    pub fn avx512(self) -> Option<Avx512> {
        self.avx512
    }
}

/// Permission to use AVX-512 with its byte instructions (F, BW, VBMI, VBMI2): Ice Lake, Zen 4 and later. Such a processor
/// also has everything that an [`Avx2`] permits.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx512(());

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
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
