//! The operations of the lookup loops on a pre-token: making its key, comparing the key with a cache line, and
//! unpacking ids.

use gristmill_system::memory::CacheLine;

use super::Scalar;
use crate::layout::{
    FEW, FIRST_BYTES, ID_BITS, IDS_PER_WORD, KEY_BYTES, LINE_WORDS, MAX_IDS, SHORT, ShortKey, TAGS, TINY,
    Value,
};

/// Operations on a pre-token, for each instruction set. The operations here work on two words of 64 bits.
pub trait Probe: Copy {
    /// The key of the pre-token of `len` bytes, one to [`SHORT`], at the start of `bytes`.
    #[inline(always)]
    fn key(self, bytes: &[u8; KEY_BYTES], len: usize) -> ShortKey {
        let bytes = u128::from_le_bytes(*bytes) & FIRST_BYTES[len & SHORT];
        let again = if len <= TINY { bytes << 64 } else { 0 };
        bytes | again | TAGS[len & SHORT]
    }

    /// One bit for each word of keys of a line: whether it equals the word of `key` at the same parity.
    #[inline(always)]
    fn equal(self, line: &CacheLine, key: ShortKey) -> usize {
        let words = [key as u64, (key >> 64) as u64];
        (0..LINE_WORDS)
            .map(|index| usize::from(line.0[LINE_WORDS + index] == words[index & 1]) << index)
            .sum()
    }

    /// The ids of a packed value. Only the first ones, as many as it counts, have a meaning.
    #[inline(always)]
    fn unpack(self, value: &Value) -> [u32; 8] {
        std::array::from_fn(|index| {
            let shift = index % IDS_PER_WORD * ID_BITS as usize;
            if index < FEW { (value[index / IDS_PER_WORD] >> shift) as u32 & (MAX_IDS - 1) } else { 0 }
        })
    }
}

impl Probe for Scalar {}

/// Keys and lines are in general registers before and after, and the way through vector registers takes longer than a
/// few instructions on words.
#[cfg(target_arch = "aarch64")]
impl Probe for crate::simd::Neon {}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m128i, _mm_loadu_si128, _mm_or_si128, _mm_shuffle_epi8, _mm256_and_si256,
        _mm256_broadcastsi128_si256, _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_loadu_si256,
        _mm256_movemask_pd, _mm256_set1_epi32, _mm256_setr_epi8, _mm256_setr_epi32, _mm256_shuffle_epi8,
        _mm256_srlv_epi32,
    };

    use gristmill_system::memory::Aligned;

    use super::{CacheLine, KEY_BYTES, LINE_WORDS, MAX_IDS, Probe, SHORT, ShortKey, TAGS, TINY, Value};
    use crate::simd::Avx2;

    impl Probe for Avx2 {
        #[inline(always)]
        fn key(self, bytes: &[u8; KEY_BYTES], len: usize) -> ShortKey {
            // SAFETY: an `Avx2` exists only where the processor has AVX2.
            unsafe { key(bytes, len) }
        }

        #[inline(always)]
        fn equal(self, line: &CacheLine, key: ShortKey) -> usize {
            // SAFETY: an `Avx2` exists only where the processor has AVX2.
            unsafe { equal(line, key) }
        }

        #[inline(always)]
        fn unpack(self, value: &Value) -> [u32; 8] {
            // SAFETY: an `Avx2` exists only where the processor has AVX2.
            unsafe { unpack(value) }
        }
    }

    /// By length: the indices of the text's bytes in a key (with the upper bit set for a zero), and the tags.
    static SELECTORS: Aligned<[[[u8; KEY_BYTES]; 2]; SHORT + 1]> = Aligned({
        let mut selectors = [[[0x80; KEY_BYTES], [0; KEY_BYTES]]; SHORT + 1];
        let mut len = 1;
        while len <= SHORT {
            let [bytes, tag] = &mut selectors[len];
            let mut index = 0;
            while index < len {
                bytes[index] = index as u8;
                if len <= TINY {
                    bytes[8 + index] = index as u8;
                }
                index += 1;
            }
            *tag = TAGS[len].to_le_bytes();
            len += 1;
        }
        selectors
    });

    #[inline]
    #[target_feature(enable = "avx2")]
    fn key(bytes: &[u8; KEY_BYTES], len: usize) -> ShortKey {
        let [bytes, indices, tag] = {
            let [indices, tag] = &SELECTORS.0[len & SHORT];
            [bytes, indices, tag].map(|bytes| vector(u128::from_le_bytes(*bytes)))
        };
        let key = _mm_or_si128(_mm_shuffle_epi8(bytes, indices), tag);
        // SAFETY: both are 16 bytes.
        unsafe { std::mem::transmute(key) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn equal(line: &CacheLine, key: ShortKey) -> usize {
        // SAFETY: the last four words of a line are 32 bytes.
        let keys = unsafe { _mm256_loadu_si256(line.0[LINE_WORDS..].as_ptr().cast()) };
        let equal = _mm256_cmpeq_epi64(keys, _mm256_broadcastsi128_si256(vector(key)));
        _mm256_movemask_pd(_mm256_castsi256_pd(equal)) as usize
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn unpack(value: &Value) -> [u32; 8] {
        // SAFETY: two words are 16 bytes.
        let words = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(value.as_ptr().cast()) });
        // The bytes that hold the 20 bits of each id; shifts and a mask remove the bits around them.
        let bytes = _mm256_setr_epi8(
            0, 1, 2, -1, 2, 3, 4, -1, 5, 6, 7, -1, 8, 9, 10, -1, //
            10, 11, 12, -1, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1,
        );
        let shifts = _mm256_setr_epi32(0, 4, 0, 0, 4, 0, 0, 0);
        let ids = _mm256_srlv_epi32(_mm256_shuffle_epi8(words, bytes), shifts);
        let ids = _mm256_and_si256(ids, _mm256_set1_epi32(MAX_IDS as i32 - 1));
        // SAFETY: a vector of 32 bytes is eight numbers of 32 bits.
        unsafe { std::mem::transmute(ids) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn vector(number: u128) -> __m128i {
        // SAFETY: both are 16 bytes.
        unsafe { std::mem::transmute(number) }
    }
}
