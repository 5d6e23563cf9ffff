//! The operations of merging on all pairs of a pre-token at once.
//!
//! Left to the compiler, these loops become comparisons with a branch each, most of which are mispredicted.

use super::Scalar;

/// Operations on arrays of 32-bit keys, for each instruction set.
pub trait Lanes: Copy {
    /// The smallest key.
    fn least<const W: usize>(self, keys: &[u32; W]) -> u32;

    /// One bit for each of up to 64 keys: whether it equals `key`.
    fn equal<const W: usize>(self, keys: &[u32; W], key: u32) -> u64;

    /// Stores keys at indices below `W`, one after another.
    fn put<const W: usize>(self, keys: &mut [u32; W], indices: [(usize, u32); 3]);
}

impl Lanes for Scalar {
    #[inline(always)]
    fn least<const W: usize>(self, keys: &[u32; W]) -> u32 {
        keys.iter().fold(u32::MAX, |least, key| least.min(*key))
    }

    #[inline(always)]
    fn equal<const W: usize>(self, keys: &[u32; W], key: u32) -> u64 {
        keys.iter().rev().fold(0, |bits, other| bits << 1 | u64::from(*other == key))
    }

    #[inline(always)]
    fn put<const W: usize>(self, keys: &mut [u32; W], indices: [(usize, u32); 3]) {
        for (index, key) in indices {
            keys[index & (W - 1)] = key;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm_cvtsi128_si32, _mm_min_epu32, _mm_shuffle_epi32, _mm256_add_epi32, _mm256_blendv_epi8,
        _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cmpeq_epi32, _mm256_extracti128_si256,
        _mm256_loadu_si256, _mm256_min_epu32, _mm256_movemask_ps, _mm256_set1_epi32, _mm256_setr_epi32,
        _mm256_storeu_si256,
    };

    use super::Lanes;
    use crate::simd::Avx2;

    impl Lanes for Avx2 {
        #[inline(always)]
        fn least<const W: usize>(self, keys: &[u32; W]) -> u32 {
            // SAFETY: an `Avx2` exists only where the processor has AVX2.
            unsafe { least(keys) }
        }

        #[inline(always)]
        fn equal<const W: usize>(self, keys: &[u32; W], key: u32) -> u64 {
            // SAFETY: an `Avx2` exists only where the processor has AVX2.
            unsafe { equal(keys, key) }
        }

        #[inline(always)]
        fn put<const W: usize>(self, keys: &mut [u32; W], indices: [(usize, u32); 3]) {
            // SAFETY: an `Avx2` exists only where the processor has AVX2.
            unsafe { put(keys, indices) }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn least<const W: usize>(keys: &[u32; W]) -> u32 {
        let mut least = _mm256_set1_epi32(-1);
        for keys in keys.as_chunks::<8>().0 {
            least = _mm256_min_epu32(least, load(keys));
        }
        let least = _mm_min_epu32(_mm256_castsi256_si128(least), _mm256_extracti128_si256::<1>(least));
        let least = _mm_min_epu32(least, _mm_shuffle_epi32::<0b01_00_11_10>(least));
        let least = _mm_min_epu32(least, _mm_shuffle_epi32::<0b10_11_00_01>(least));
        _mm_cvtsi128_si32(least) as u32
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn equal<const W: usize>(keys: &[u32; W], key: u32) -> u64 {
        const { assert!(W <= 64) };
        let key = _mm256_set1_epi32(key as i32);
        let mut bits = 0;
        for (part, keys) in (0..).zip(keys.as_chunks::<8>().0) {
            let equal = _mm256_castsi256_ps(_mm256_cmpeq_epi32(load(keys), key));
            bits |= u64::from(_mm256_movemask_ps(equal) as u32) << (8 * part);
        }
        bits
    }

    /// Compares and blends instead of storing three scalars: the vector loads of the next search would stall on those.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn put<const W: usize>(keys: &mut [u32; W], indices: [(usize, u32); 3]) {
        let mut lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let indices =
            indices.map(|(index, key)| (_mm256_set1_epi32(index as i32), _mm256_set1_epi32(key as i32)));
        for keys in keys.as_chunks_mut::<8>().0 {
            let mut values = load(keys);
            for (index, key) in indices {
                values = _mm256_blendv_epi8(values, key, _mm256_cmpeq_epi32(lane, index));
            }
            // SAFETY: eight numbers of 32 bits are 32 bytes.
            unsafe { _mm256_storeu_si256(keys.as_mut_ptr().cast(), values) };
            lane = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(keys: &[u32; 8]) -> __m256i {
        // SAFETY: eight numbers of 32 bits are 32 bytes.
        unsafe { _mm256_loadu_si256(keys.as_ptr().cast()) }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::{
        uint32x4_t, vaddq_u32, vaddvq_u32, vandq_u32, vbslq_u32, vceqq_u32, vdupq_n_u32, vld1q_u32,
        vminq_u32, vminvq_u32, vorrq_u32, vst1q_u32,
    };

    use super::Lanes;
    use crate::simd::Neon;

    /// The number of each key of 32, as a bit.
    const BITS: [[u32; 4]; 8] = {
        let mut bits = [[0; 4]; 8];
        let mut index = 0;
        while index < 32 {
            bits[index / 4][index % 4] = 1 << index;
            index += 1;
        }
        bits
    };

    /// The body of a function.
    macro_rules! with_neon {
        ($body:expr) => {
            // SAFETY: every processor of this architecture has NEON.
            unsafe { $body }
        };
    }

    impl Lanes for Neon {
        #[inline(always)]
        fn least<const W: usize>(self, keys: &[u32; W]) -> u32 {
            let smaller = |least, keys: &[u32; 4]| with_neon!(vminq_u32(least, load(keys)));
            with_neon!(vminvq_u32(keys.as_chunks().0.iter().fold(splat(u32::MAX), smaller)))
        }

        #[inline(always)]
        fn equal<const W: usize>(self, keys: &[u32; W], key: u32) -> u64 {
            const { assert!(W <= 64) };
            let key = splat(key);
            let mut bits = 0;
            for (half, keys) in keys.chunks(32).enumerate() {
                let add = |bits, (keys, bit): (&[u32; 4], &[u32; 4])| {
                    with_neon!(vorrq_u32(bits, vandq_u32(vceqq_u32(load(keys), key), load(bit))))
                };
                let equal = keys.as_chunks().0.iter().zip(&BITS).fold(splat(0), add);
                bits |= u64::from(with_neon!(vaddvq_u32(equal))) << (32 * half);
            }
            bits
        }

        /// Compares and selects instead of storing three scalars, for the same reason as with AVX2.
        #[inline(always)]
        fn put<const W: usize>(self, keys: &mut [u32; W], indices: [(usize, u32); 3]) {
            let mut lane = load(&[0, 1, 2, 3]);
            let indices = indices.map(|(index, key)| (splat(index as u32), splat(key)));
            for keys in keys.as_chunks_mut::<4>().0 {
                let mut values = load(keys);
                for (index, key) in indices {
                    values = with_neon!(vbslq_u32(vceqq_u32(lane, index), key, values));
                }
                // SAFETY: four numbers of 32 bits are 16 bytes.
                unsafe { vst1q_u32(keys.as_mut_ptr(), values) };
                lane = with_neon!(vaddq_u32(lane, splat(4)));
            }
        }
    }

    #[inline(always)]
    fn splat(number: u32) -> uint32x4_t {
        with_neon!(vdupq_n_u32(number))
    }

    #[inline(always)]
    fn load(keys: &[u32; 4]) -> uint32x4_t {
        // SAFETY: four numbers of 32 bits are 16 bytes.
        unsafe { vld1q_u32(keys.as_ptr()) }
    }
}
