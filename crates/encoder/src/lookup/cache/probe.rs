//! What the hot loop does for each piece, for each kernel: making its key, comparing it with a cache line, and
//! unpacking the ids found.

use super::packed_ids::{self, Value};
use crate::simd::Scalar;
use gristmill_system::memory::{Aligned, CacheLine};

/// Longest piece of each kind that the tables hold.
const TINY: usize = 7;
pub const SHORT: usize = 15;
pub const MEDIUM: usize = 31;

/// The bytes of a text that a key is made from, some of them past the piece's end.
pub const KEY_BYTES: usize = 16;

/// A piece with its length in the last byte; a tiny piece has it in both words, so that one of them suffices. The
/// length of a tiny piece has its upper bits set: no text contains such a byte, so a word of a longer piece never looks
/// like a tiny piece. (An added token in the text does, but is tiny itself.)
pub type ShortKey = u128;
/// A medium piece with its length in the last byte.
pub type MediumKey = [u64; 4];

/// The upper bits of the last byte of a tiny piece's word.
const TINY_TAG: u8 = 0xF8;
/// The upper bits of a key's last byte if the key is that of a part of a piece, which may have other ids.
const PART_TAG: u8 = 0x80;
/// No piece.
pub const NO_KEY: ShortKey = u128::MAX;

/// The operations of a kernel on a piece.
pub trait Probe: Copy {
    /// The key of the piece of `len` bytes, one to [`SHORT`], that these begin with.
    fn key(self, bytes: &[u8; KEY_BYTES], len: usize) -> ShortKey;

    /// Which of a line's last four words equal their word of the key, one bit each: even ones the first, odd ones the
    /// second.
    fn equal(self, line: &CacheLine, key: ShortKey) -> usize;

    /// The same as `packed::unpack`.
    fn unpack(self, words: &[u64; 2]) -> [u32; 8];
}

/// Whether a key's piece takes one word.
#[inline(always)]
pub fn is_tiny(key: ShortKey) -> bool {
    key >> 126 & 1 == 1
}

/// Whether a word of a key is the whole piece.
pub fn is_tiny_word(word: u64) -> bool {
    (word >> 56) as u8 > TINY_TAG
}

/// The key of a part of a piece, of up to [`SHORT`] bytes. It always has two words.
pub fn short_part_key(text: &[u8], start: usize, len: usize) -> ShortKey {
    load(text, start) & BELOW[len & SHORT] | u128::from(PART_TAG | len as u8) << 120
}

/// The key of a part of a piece, of [`SHORT`] + 1 to [`MEDIUM`] bytes.
pub fn medium_part_key(text: &[u8], start: usize, len: usize) -> MediumKey {
    let [a, b, c, d] = medium_key(text, start, len);
    [a, b, c, d | u64::from(PART_TAG) << 56]
}

/// The place after the words of values. A line has two words from here on as well.
const NO_VALUE: usize = 4;

/// The word at which a key's value begins, or [`NO_VALUE`], by the upper half of the key's last byte and the words of a
/// line that equal the key's.
static VALUES: Aligned<[u8; 128]> = Aligned({
    let mut values = [NO_VALUE as u8; 128];
    let mut equal = 1;
    while equal < 16 {
        values[(TINY_TAG & 0x70) as usize | equal] = equal.trailing_zeros() as u8;
        if equal & 0b0011 == 0b0011 {
            values[equal] = 0;
        } else if equal & 0b1100 == 0b1100 {
            values[equal] = 2;
        }
        equal += 1;
    }
    values
});

/// The value of a key as two words of a line, or arbitrary ones; and whether the key is there.
#[inline(always)]
pub fn find(probe: impl Probe, line: &CacheLine, key: ShortKey) -> (&Value, bool) {
    let kind = (key >> 120) as usize & 0x70;
    let word = usize::from(VALUES.0[kind | probe.equal(line, key) & 15]);
    // SAFETY: no entry of the table exceeds `NO_VALUE`, from which on there are two words.
    (unsafe { &*line.0.as_ptr().add(word).cast() }, word < NO_VALUE)
}

/// The key of a piece of [`SHORT`] + 1 to [`MEDIUM`] bytes.
#[inline(always)]
pub fn medium_key(text: &[u8], start: usize, len: usize) -> MediumKey {
    let rest = load(text, start + 16) & BELOW[(len - 16) & SHORT] | LENGTH[len & MEDIUM];
    let first = load(text, start);
    [first as u64, (first >> 64) as u64, rest as u64, (rest >> 64) as u64]
}

impl Probe for Scalar {
    #[inline(always)]
    fn key(self, bytes: &[u8; KEY_BYTES], len: usize) -> ShortKey {
        let bytes = u128::from_le_bytes(*bytes) & BELOW[len & SHORT];
        let again = if len <= TINY { bytes << 64 } else { 0 };
        bytes | again | LENGTH[len & SHORT]
    }

    #[inline(always)]
    fn equal(self, line: &CacheLine, key: ShortKey) -> usize {
        let words = [key as u64, (key >> 64) as u64];
        (0..4).map(|slot| usize::from(line.0[4 + slot] == words[slot & 1]) << slot).sum()
    }

    #[inline(always)]
    fn unpack(self, words: &[u64; 2]) -> [u32; 8] {
        packed_ids::unpack(words)
    }
}

/// Masks of the low bytes, by their number.
static BELOW: [u128; SHORT + 1] = {
    let mut masks = [0; SHORT + 1];
    let mut len = 1;
    while len <= SHORT {
        masks[len] = u128::MAX >> (128 - 8 * len);
        len += 1;
    }
    masks
};

/// How a key encodes the length.
static LENGTH: [u128; MEDIUM + 1] = {
    let mut lengths = [0; MEDIUM + 1];
    let mut len = 1;
    while len <= MEDIUM {
        lengths[len] = (len as u128) << 120;
        if len <= TINY {
            let tagged = TINY_TAG as u128 | len as u128;
            lengths[len] = tagged << 120 | tagged << 56;
        }
        len += 1;
    }
    lengths
};

/// The bytes of a padded text from `start` on.
#[inline(always)]
pub fn bytes(text: &[u8], start: usize) -> &[u8; KEY_BYTES] {
    text[start..].first_chunk().expect("texts are padded")
}

#[inline(always)]
fn load(text: &[u8], start: usize) -> u128 {
    u128::from_le_bytes(*bytes(text, start))
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m128i, _mm_loadu_si128, _mm_or_si128, _mm_shuffle_epi8, _mm256_and_si256,
        _mm256_broadcastsi128_si256, _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_loadu_si256,
        _mm256_movemask_pd, _mm256_set1_epi32, _mm256_setr_epi8, _mm256_setr_epi32, _mm256_shuffle_epi8,
        _mm256_srlv_epi32,
    };

    use super::{CacheLine, KEY_BYTES, LENGTH, Probe, SHORT, ShortKey, TINY};
    use crate::simd::Avx2;
    use crate::vocab::MAX_IDS;
    use gristmill_system::memory::Aligned;

    impl Probe for Avx2 {
        #[inline(always)]
        fn key(self, bytes: &[u8; KEY_BYTES], len: usize) -> ShortKey {
            // SAFETY: having an `Avx2` proves that the processor has AVX2.
            unsafe { key(bytes, len) }
        }

        #[inline(always)]
        fn equal(self, line: &CacheLine, key: ShortKey) -> usize {
            // SAFETY: having an `Avx2` proves that the processor has AVX2.
            unsafe { equal(line, key) }
        }

        #[inline(always)]
        fn unpack(self, words: &[u64; 2]) -> [u32; 8] {
            // SAFETY: having an `Avx2` proves that the processor has AVX2.
            unsafe { unpack(words) }
        }
    }

    /// For each length, which bytes of a text go into a key (the upper bit set for none), and how the key encodes the
    /// length.
    static PARTS: Aligned<[[[u8; KEY_BYTES]; 2]; SHORT + 1]> = Aligned({
        let mut parts = [[[0x80; KEY_BYTES], [0; KEY_BYTES]]; SHORT + 1];
        let mut len = 1;
        while len <= SHORT {
            let [bytes, length] = &mut parts[len];
            let mut slot = 0;
            while slot < len {
                bytes[slot] = slot as u8;
                if len <= TINY {
                    bytes[8 + slot] = slot as u8;
                }
                slot += 1;
            }
            *length = LENGTH[len].to_le_bytes();
            len += 1;
        }
        parts
    });

    #[inline]
    #[target_feature(enable = "avx2")]
    fn key(bytes: &[u8; KEY_BYTES], len: usize) -> ShortKey {
        let [bytes, slots, length] = {
            let [slots, length] = &PARTS.0[len & SHORT];
            [bytes, slots, length].map(|bytes| vector(u128::from_le_bytes(*bytes)))
        };
        let key = _mm_or_si128(_mm_shuffle_epi8(bytes, slots), length);
        // SAFETY: both are 16 bytes.
        unsafe { std::mem::transmute(key) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn equal(line: &CacheLine, key: ShortKey) -> usize {
        // SAFETY: the last four words of a line are 32 bytes.
        let keys = unsafe { _mm256_loadu_si256(line.0[4..].as_ptr().cast()) };
        let equal = _mm256_cmpeq_epi64(keys, _mm256_broadcastsi128_si256(vector(key)));
        _mm256_movemask_pd(_mm256_castsi256_pd(equal)) as usize
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn unpack(words: &[u64; 2]) -> [u32; 8] {
        // SAFETY: two words are 16 bytes.
        let words = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(words.as_ptr().cast()) });
        // Selects the bytes that hold the 20 bits of each id; the surrounding bits are then removed.
        let slots = _mm256_setr_epi8(
            0, 1, 2, -1, 2, 3, 4, -1, 5, 6, 7, -1, 8, 9, 10, -1, //
            10, 11, 12, -1, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1,
        );
        let shifts = _mm256_setr_epi32(0, 4, 0, 0, 4, 0, 0, 0);
        let ids = _mm256_srlv_epi32(_mm256_shuffle_epi8(words, slots), shifts);
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
