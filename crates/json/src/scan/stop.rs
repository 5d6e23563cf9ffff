//! Where the plain content of a JSON string stops.

/// The first byte from `at` on that is a quote, a backslash or a control character; the length of
/// `bytes` if there is none.
#[inline]
pub(crate) fn find_stop(bytes: &[u8], mut at: usize) -> usize {
    while let Some(block) = bytes[at..].first_chunk() {
        if let Some(index) = stop_in_block(block) {
            return at + index;
        }
        at += size_of_val(block);
    }
    let rest = bytes[at..].iter().position(|&byte| is_stop(byte));
    rest.map_or(bytes.len(), |length| at + length)
}

fn is_stop(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | 0..0x20)
}

/// The first stop among 16 bytes. A fifth faster over whole lines than eight bytes in a register; 32
/// bytes, or AVX2 chosen at run time, gained nothing more: most stretches are shorter than 100 bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
fn stop_in_block(block: &[u8; 16]) -> Option<usize> {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
    };
    // SAFETY: the load reads the 16 bytes of `block`, unaligned; SSE2 is part of x86_64.
    let stops = unsafe {
        let bytes = _mm_loadu_si128(block.as_ptr().cast());
        let quotes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"' as i8));
        let escapes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\' as i8));
        let controls = _mm_cmpeq_epi8(bytes, _mm_min_epu8(bytes, _mm_set1_epi8(0x1f)));
        _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quotes, escapes), controls))
    };
    (stops != 0).then_some(stops.trailing_zeros() as usize)
}

#[cfg(not(target_arch = "x86_64"))]
use portable::stop_in_block;

/// The same for any processor, with the block as one integer.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    const ONES: u128 = u128::MAX / 255;
    const HIGHS: u128 = ONES << 7;

    #[inline]
    pub(super) fn stop_in_block(block: &[u8; 16]) -> Option<usize> {
        let word = u128::from_le_bytes(*block);
        let quotes = below(word ^ (ONES * u128::from(b'"')), 1);
        let escapes = below(word ^ (ONES * u128::from(b'\\')), 1);
        let stops = quotes | escapes | below(word, 0x20);
        (stops != 0).then_some(stops.trailing_zeros() as usize / 8)
    }

    /// Marks the bytes of `word` that are below `bound`. A borrow may mark bytes above a true one as
    /// well; the lowest mark is always true.
    fn below(word: u128, bound: u128) -> u128 {
        word.wrapping_sub(ONES * bound) & !word & HIGHS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_at_every_index() {
        for byte in 0..=u8::MAX {
            for length in 0..50 {
                for at in 0..length {
                    let mut bytes = vec![b'x'; length];
                    bytes[at] = byte;
                    // Another stop after it must not be found first.
                    bytes[length - 1] = if at == length - 1 { byte } else { b'"' };
                    let expected = bytes.iter().position(|&byte| is_stop(byte)).unwrap_or(length);
                    assert_eq!(find_stop(&bytes, 0), expected, "byte {byte} at {at} of {length}");
                    assert_eq!(find_stop(&bytes, at), expected, "byte {byte} from {at} of {length}");
                    if let Some(block) = bytes.first_chunk() {
                        let expected = Some(expected).filter(|&index| index < 16);
                        assert_eq!(portable::stop_in_block(block), expected, "byte {byte} at {at}");
                    }
                }
            }
        }
    }
}
