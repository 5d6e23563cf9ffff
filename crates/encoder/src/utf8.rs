//! Reading characters from bytes that are known to be UTF-8.

/// The first character of `text` and its length. `text` begins with a whole character; other bytes give
/// some number below 2^21, never a panic.
#[inline(always)]
pub fn decode(text: &[u8]) -> (u32, usize) {
    let low = |index: usize| u32::from(text.get(index).copied().unwrap_or(0) & 0x3F);
    let first = u32::from(text.first().copied().unwrap_or(0));
    match first {
        0..0x80 => (first, 1),
        0x80..0xE0 => ((first & 0x1F) << 6 | low(1), 2),
        0xE0..0xF0 => ((first & 0x0F) << 12 | low(1) << 6 | low(2), 3),
        _ => ((first & 0x07) << 18 | low(1) << 12 | low(2) << 6 | low(3), 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scalar_value_is_read_back() {
        for c in '\0'..=char::MAX {
            let mut bytes = [0; 4];
            let len = c.encode_utf8(&mut bytes).len();
            assert_eq!(decode(&bytes[..len]), (c as u32, len));
        }
    }

    #[test]
    fn broken_bytes_give_a_number() {
        assert_eq!(decode(&[]), (0, 1));
        assert_eq!(decode(&[0xF4]).1, 4);
    }
}
