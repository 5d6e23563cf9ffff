//! Which instructions the hot loops may use, found out once at load.
//!
//! The crate is compiled for the target's base processor (compiling all of it for newer ones slows
//! inflating by a fifth). The hot loops exist twice instead: as plain Rust, which is what every
//! processor without a kernel of its own runs, and compiled with the features of a kernel. Both give
//! the same ids; tests force the portable one. What is compiled into a kernel must be inlined there, or it runs
//! without the kernel's instructions.

/// The instruction set that the hot loops of one encoder use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Plain Rust.
    Portable,
    /// x86-64 with AVX2, BMI1, BMI2, LZCNT and POPCNT: everything since Haswell and Zen. Text is cut with AVX-512
    /// where the processor has that as well; the other loops gain nothing by it.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Kernel {
    /// The best this processor has.
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
        Self::Portable
    }

    /// All that this processor has, from plain Rust to the best: for tests, and to compare.
    pub fn all() -> Vec<Self> {
        match Self::detect() {
            Self::Portable => vec![Self::Portable],
            #[cfg(target_arch = "x86_64")]
            best @ Self::Avx2(Avx2 { avx512 }) => {
                let mut all = vec![Self::Portable, Self::Avx2(Avx2 { avx512: None })];
                all.extend(avx512.map(|_| best));
                all
            }
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(Avx2 { avx512: None }) => "AVX2 and BMI2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(Avx2 { avx512: Some(_) }) => "AVX-512, AVX2 and BMI2",
        }
    }
}

/// Plain Rust, to do with what a kernel does otherwise.
#[derive(Clone, Copy)]
pub struct Plain;

/// To do with the instructions of that kernel: having one proves that the processor has them, as only
/// [`Kernel::detect`] makes one.
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

/// The same for AVX-512 with its instructions for bytes (F, BW, VBMI, VBMI2), as since Ice Lake and Zen 4. A processor
/// with these has all that an [`Avx2`] stands for.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx512(());

/// Asks for a cache line ahead of its use; a hint without effect on results.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching is in the base instruction set, touches no memory that the program sees, and takes any
    // address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
