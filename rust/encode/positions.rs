//! Writing the places of the ones of a bitmap.

use std::arch::x86_64::{
    _mm_loadl_epi64, _mm256_add_epi32, _mm256_cvtepu8_epi32, _mm256_set1_epi32, _mm256_storeu_si256,
};

/// For each byte, the places of its ones, low to high.
static PLACES: [[u8; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut bit, mut count) = (0, 0);
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                table[byte][count] = bit as u8;
                count += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    table
};

/// Appends `base` and the place of each one of `ones`. Eight bits at a time by a table, and always eight
/// times: a loop over the ones is mispredicted once for each bitmap, and its writes are scalar.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
pub fn push_ones(ones: u64, base: u32, places: &mut Vec<u32>) {
    places.reserve(64);
    let mut len = places.len();
    let mut bases = _mm256_set1_epi32(base as i32);
    for byte in ones.to_le_bytes() {
        // SAFETY: the table's entry is eight bytes long. There is room for 64 places, of which each byte before this
        // one has counted eight at most, so for eight more.
        unsafe {
            let offsets = _mm_loadl_epi64(PLACES[usize::from(byte)].as_ptr().cast());
            let written = _mm256_add_epi32(_mm256_cvtepu8_epi32(offsets), bases);
            _mm256_storeu_si256(places.as_mut_ptr().add(len).cast(), written);
        }
        bases = _mm256_add_epi32(bases, _mm256_set1_epi32(8));
        len += byte.count_ones() as usize;
    }
    // SAFETY: all up to there has been written.
    unsafe { places.set_len(len) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::kernel::Kernel;

    #[test]
    fn places_are_those_of_the_ones() {
        if Kernel::detect() == Kernel::Portable {
            return;
        }
        for ones in [0, 1, 1 << 63, u64::MAX, 0x8000_0001_0001_8000, 0x0123_4567_89AB_CDEF] {
            let mut places = vec![7];
            // SAFETY: the processor has the kernel's features.
            unsafe { push_ones(ones, 1000, &mut places) };
            let expected = (0..64).filter(|bit| ones >> bit & 1 == 1).map(|bit| 1000 + bit);
            assert_eq!(places, [7].into_iter().chain(expected).collect::<Vec<u32>>());
        }
    }
}
