//! The few operations that merging does on all places of a word at once, for each kernel.
//!
//! Left to the compiler, these loops become comparisons with a branch each, and most of those branches are
//! guessed wrong.

use std::hint::select_unpredictable;

use super::kernel::Plain;
use super::pairs::NONE;

/// Entries that are looked at in one line of a [`PairTable`](super::pairs::PairTable).
pub const PER_LINE: usize = 8;

/// Low bits of an entry that are its value; those above are its key.
pub const VALUE_BITS: u32 = 24;

/// What a kernel does on vectors: several numbers at a time.
pub trait Vectors: Copy {
    /// The least of the keys.
    fn least<const W: usize>(self, keys: &[u32; W]) -> u32;

    /// Puts keys at places; places at or above `W` are nowhere.
    fn put<const W: usize>(self, keys: &mut [u32; W], places: [(u32, u32); 3]);

    /// The value of the entry with a key, [`NONE`] if no entry has it.
    fn find(self, entries: &[u64; PER_LINE], key: u64) -> u32;
}

/// The value of an entry, [`NONE`] for no entry: none is zero.
#[inline(always)]
fn value(entry: u64) -> u32 {
    select_unpredictable(entry == 0, NONE, entry as u32 & NONE)
}

impl Vectors for Plain {
    #[inline(always)]
    fn least<const W: usize>(self, keys: &[u32; W]) -> u32 {
        keys.iter().fold(u32::MAX, |least, key| least.min(*key))
    }

    #[inline(always)]
    fn put<const W: usize>(self, keys: &mut [u32; W], places: [(u32, u32); 3]) {
        for (place, key) in places {
            if let Some(entry) = keys.get_mut(place as usize) {
                *entry = key;
            }
        }
    }

    #[inline(always)]
    fn find(self, entries: &[u64; PER_LINE], key: u64) -> u32 {
        let found =
            entries.iter().filter(|entry| **entry >> VALUE_BITS == key).fold(0, |all, entry| all | entry);
        value(found)
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm_cvtsi128_si32, _mm_cvtsi128_si64, _mm_min_epu32, _mm_or_si128, _mm_shuffle_epi32,
        _mm256_add_epi32, _mm256_and_si256, _mm256_blendv_epi8, _mm256_castsi256_si128, _mm256_cmpeq_epi32,
        _mm256_cmpeq_epi64, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_min_epu32, _mm256_or_si256,
        _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setr_epi32, _mm256_srli_epi64, _mm256_storeu_si256,
    };

    use super::{PER_LINE, VALUE_BITS, Vectors, value};
    use crate::encode::kernel::Avx2;

    impl Vectors for Avx2 {
        #[inline(always)]
        fn least<const W: usize>(self, keys: &[u32; W]) -> u32 {
            // SAFETY: having an `Avx2` proves that the processor has AVX2.
            unsafe { least(keys) }
        }

        #[inline(always)]
        fn put<const W: usize>(self, keys: &mut [u32; W], places: [(u32, u32); 3]) {
            // SAFETY: as above.
            unsafe { put(keys, places) }
        }

        #[inline(always)]
        fn find(self, entries: &[u64; PER_LINE], key: u64) -> u32 {
            // SAFETY: as above.
            unsafe { find(entries, key) }
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

    /// By comparing and blending, not by three stores: the next search would have to wait for them.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn put<const W: usize>(keys: &mut [u32; W], places: [(u32, u32); 3]) {
        let mut lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let places =
            places.map(|(place, key)| (_mm256_set1_epi32(place as i32), _mm256_set1_epi32(key as i32)));
        for keys in keys.as_chunks_mut::<8>().0 {
            let mut values = load(keys);
            for (place, key) in places {
                values = _mm256_blendv_epi8(values, key, _mm256_cmpeq_epi32(lane, place));
            }
            // SAFETY: eight numbers of 32 bits are 32 bytes.
            unsafe { _mm256_storeu_si256(keys.as_mut_ptr().cast(), values) };
            lane = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn find(entries: &[u64; PER_LINE], key: u64) -> u32 {
        let key = _mm256_set1_epi64x(key as i64);
        let mut found = _mm256_set1_epi32(0);
        for half in entries.as_chunks::<4>().0 {
            // SAFETY: four numbers of 64 bits are 32 bytes.
            let entries = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
            let is_key = _mm256_cmpeq_epi64(_mm256_srli_epi64::<{ VALUE_BITS as i32 }>(entries), key);
            found = _mm256_or_si256(found, _mm256_and_si256(entries, is_key));
        }
        let found = _mm_or_si128(_mm256_castsi256_si128(found), _mm256_extracti128_si256::<1>(found));
        let found = _mm_or_si128(found, _mm_shuffle_epi32::<0b01_00_11_10>(found));
        value(_mm_cvtsi128_si64(found) as u64)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(keys: &[u32; 8]) -> __m256i {
        // SAFETY: eight numbers of 32 bits are 32 bytes.
        unsafe { _mm256_loadu_si256(keys.as_ptr().cast()) }
    }
}
