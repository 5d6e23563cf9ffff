//! Which instructions the hot loops may use, detected once at load.
//!
//! The crate is compiled for the target's baseline processor (compiling all of it for newer ones slows inflating by a
//! fifth). The hot loops are compiled twice or three times instead: as plain Rust, which processors without a kernel
//! run, and with the features of a kernel. Both give the same ids; tests force the portable one. Functions that a
//! kernel calls must be inlined into it, or they run without its instructions.

pub mod blocks;

/// The instruction set that the hot loops of one encoder use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Simd {
    /// Plain Rust.
    Scalar,
    /// x86-64 with AVX2, BMI1, BMI2, LZCNT and POPCNT: Haswell, Zen and later. Text is cut with AVX-512 where the
    /// processor has that as well; the other loops gain nothing from it.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Simd {
    /// The best one that this processor supports.
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

    /// All that this processor supports, from plain Rust to the best: for tests and comparisons.
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

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(Avx2 { avx512: None }) => "AVX2 and BMI2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(Avx2 { avx512: Some(_) }) => "AVX-512, AVX2 and BMI2",
        }
    }
}

/// Plain Rust in place of a kernel's instructions.
#[derive(Clone, Copy)]
pub struct Scalar;

/// Permission to use the instructions of that kernel: having one proves that the processor has them, since only
/// `Kernel::detect` creates one, from which `Kernel::all` derives others.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx2 {
    avx512: Option<Avx512>,
}

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    pub fn avx512(self) -> Option<Avx512> {
        self.avx512
    }
}

/// The same for AVX-512 with its byte instructions (F, BW, VBMI, VBMI2): Ice Lake, Zen 4 and later. A processor with
/// these has everything that an [`Avx2`] stands for.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx512(());

/// Prefetches a cache line; a hint without effect on results.
#[inline(always)]
pub fn prefetch<T>(index: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching is in the baseline instruction set, has no effect that the program can observe, and takes any
    // address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(index.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = index;
}
