//! Blocks of one AVX-512 register.

use std::arch::x86_64::{
    __m512i, _mm_loadu_si128, _mm512_add_epi32, _mm512_and_si512, _mm512_broadcast_i32x4,
    _mm512_castsi512_si128, _mm512_cmpeq_epi8_mask, _mm512_cmpge_epu8_mask, _mm512_cmple_epu8_mask,
    _mm512_cmplt_epi8_mask, _mm512_cvtepu8_epi32, _mm512_extracti32x4_epi32, _mm512_loadu_si512,
    _mm512_mask_blend_epi8, _mm512_mask_test_epi8_mask, _mm512_maskz_compress_epi8,
    _mm512_maskz_shuffle_epi8, _mm512_movepi8_mask, _mm512_or_si512, _mm512_permutex2var_epi8,
    _mm512_permutexvar_epi8, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_shuffle_epi8, _mm512_storeu_si512,
    _mm512_sub_epi8, _mm512_test_epi8_mask,
};

use super::{Blocks, Bmi2Blocks, ByteBlock};
use crate::simd::Avx512;
use gristmill_system::memory::Aligned;

/// The indices of 64 bytes.
static INDICES: Aligned<[u8; 64]> = Aligned({
    let mut indices = [0; 64];
    let mut index = 0;
    while index < 64 {
        indices[index] = index as u8;
        index += 1;
    }
    indices
});

/// For each index, the one before it, counted in two blocks side by side: the first entry is the last byte of the first
/// block.
static INDICES_BEFORE: Aligned<[u8; 64]> = Aligned({
    let mut indices = INDICES.0;
    let mut index = 0;
    while index < 64 {
        indices[index] += 63;
        index += 1;
    }
    indices
});

// SAFETY: `Simd::detect` creates an `Avx512` only where the processor also has BMI2.
unsafe impl Bmi2Blocks for Avx512 {}

impl Blocks for Avx512 {
    type Block = Whole;

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> Whole {
        // SAFETY: an `Avx512` exists only where the processor has these instructions.
        unsafe { Whole(load(bytes)) }
    }

    #[inline(always)]
    fn push_ones(self, ones: u64, base: u32, indices: &mut Vec<u32>) {
        // SAFETY: an `Avx512` exists only where the processor has these instructions.
        unsafe { push_ones(ones, base, indices) }
    }
}

/// 64 bytes. Only an [`Avx512`] creates one, so the processor has all features that the methods need.
#[derive(Clone, Copy)]
pub struct Whole(__m512i);

/// The body of a method on bytes that an `Avx512` has loaded.
macro_rules! with_avx512 {
    ($body:expr) => {
        // SAFETY: only an `Avx512` loads bytes, so the processor has these instructions.
        unsafe { $body }
    };
}

impl Whole {
    /// `table` indexed by the low half of bytes below 128.
    #[inline(always)]
    pub fn look_up_half(self, table: &[u8; 16]) -> Self {
        with_avx512!(Self(_mm512_shuffle_epi8(broadcast(table), self.0)))
    }

    /// Each byte moved up by one index; the first one is the last byte of `before`.
    #[inline(always)]
    pub fn behind(self, before: Self) -> Self {
        with_avx512!(Self(_mm512_permutex2var_epi8(before.0, load(&INDICES_BEFORE.0), self.0)))
    }
}

impl ByteBlock for Whole {
    #[inline(always)]
    fn high(self) -> u64 {
        with_avx512!(_mm512_movepi8_mask(self.0))
    }

    #[inline(always)]
    fn bit<const BIT: u32>(self) -> u64 {
        with_avx512!(_mm512_test_epi8_mask(self.0, splat(1 << BIT)))
    }

    #[inline(always)]
    fn equal(self, byte: u8) -> u64 {
        with_avx512!(_mm512_cmpeq_epi8_mask(self.0, splat(byte)))
    }

    #[inline(always)]
    fn equal_either(self, one: u8, other: u8) -> u64 {
        self.equal(one) | self.equal(other)
    }

    #[inline(always)]
    fn not_zero(self) -> u64 {
        self.meets(self)
    }

    #[inline(always)]
    fn meets(self, other: Self) -> u64 {
        with_avx512!(_mm512_test_epi8_mask(self.0, other.0))
    }

    #[inline(always)]
    fn within(self, low: u8, high: u8) -> u64 {
        with_avx512!(_mm512_cmple_epu8_mask(_mm512_sub_epi8(self.0, splat(low)), splat(high - low)))
    }

    #[inline(always)]
    fn within_either_case(self, low: u8, high: u8) -> u64 {
        with_avx512!(Self(_mm512_or_si512(self.0, splat(0x20)))).within(low, high)
    }

    #[inline(always)]
    fn continuation(self) -> u64 {
        // As signed numbers, these bytes are the lowest.
        with_avx512!(_mm512_cmplt_epi8_mask(self.0, splat(0xC0)))
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 256]) -> Self {
        let [a, b, c, d] = table.as_chunks().0 else { unreachable!("four times 64 entries") };
        with_avx512!({
            let ascii = _mm512_permutex2var_epi8(load(a), self.0, load(b));
            let others = _mm512_permutex2var_epi8(load(c), self.0, load(d));
            Self(_mm512_mask_blend_epi8(self.high(), ascii, others))
        })
    }

    #[inline(always)]
    fn leads(self, first: &[u8; 64], after: Self, second: &[u8; 64]) -> u64 {
        with_avx512!({
            let first = _mm512_permutexvar_epi8(self.0, load(first));
            let second = _mm512_permutexvar_epi8(after.0, load(second));
            _mm512_mask_test_epi8_mask(_mm512_cmpge_epu8_mask(self.0, splat(0xC0)), first, second)
        })
    }

    #[inline(always)]
    fn look_up_first_of_three(self, table: &[u8; 16]) -> Self {
        with_avx512!({
            let high_half = _mm512_and_si512(self.0, splat(0xF0));
            let is_first = _mm512_cmpeq_epi8_mask(high_half, splat(0xE0));
            let low_half = _mm512_and_si512(self.0, splat(0x0F));
            Self(_mm512_maskz_shuffle_epi8(is_first, broadcast(table), low_half))
        })
    }

    #[inline(always)]
    fn bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        // SAFETY: 64 bytes are 512 bits, and only an `Avx512` loads bytes, so the processor has these instructions.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), self.0) };
        bytes
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 bytes are 512 bits.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
fn splat(byte: u8) -> __m512i {
    _mm512_set1_epi8(byte as i8)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
fn broadcast(table: &[u8; 16]) -> __m512i {
    // SAFETY: the table is 16 bytes long.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}

/// Packs the indices of the set bits together and writes sixteen at a time.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
fn push_ones(ones: u64, base: u32, indices: &mut Vec<u32>) {
    indices.reserve(64);
    let len = indices.len();
    let count = ones.count_ones() as usize;
    let offsets = _mm512_maskz_compress_epi8(ones, load(&INDICES.0));
    let bases = _mm512_set1_epi32(base as i32);
    // SAFETY: there is room for 64 indices after those in the vector.
    let out: *mut [u32; 16] = unsafe { indices.as_mut_ptr().add(len).cast() };
    let write = |sixteen, offsets| {
        let written = _mm512_add_epi32(_mm512_cvtepu8_epi32(offsets), bases);
        // SAFETY: four times sixteen indices are 64.
        unsafe { _mm512_storeu_si512(out.add(sixteen).cast(), written) };
    };
    write(0, _mm512_castsi512_si128(offsets));
    write(1, _mm512_extracti32x4_epi32::<1>(offsets));
    if count > 32 {
        write(2, _mm512_extracti32x4_epi32::<2>(offsets));
        write(3, _mm512_extracti32x4_epi32::<3>(offsets));
    }
    // SAFETY: all indices up to there have been written.
    unsafe { indices.set_len(len + count) };
}
