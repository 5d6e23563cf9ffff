//! The lengths in front of delta-encoded strings, checked before the library takes memory for them.
//!
//! ```text
//! DELTA_LENGTH_BYTE_ARRAY   lengths, bytes
//! DELTA_BYTE_ARRAY          lengths of prefixes, lengths of suffixes, bytes of suffixes
//! lengths                   values of a block, mini blocks of a block, number of lengths, first length
//!                           blocks: least delta, width of each mini block in bits, deltas above the least one
//! ```

use parquet::basic::Encoding;

/// The lengths that the library would find in a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lengths {
    Fine,
    /// They are not valid, or more than the values of the page.
    Invalid,
    /// The strings take so many bytes: each may repeat most of the one before.
    Repeat(u64),
}

/// Checks the lengths of a page with so many values, which may take `limit` bytes in memory.
pub(super) fn check(encoding: Encoding, bytes: &[u8], values: u32, limit: u64) -> Lengths {
    let Some((first, end)) = read(bytes, values) else { return Lengths::Invalid };
    if encoding == Encoding::DELTA_LENGTH_BYTE_ARRAY {
        return Lengths::Fine; // they are slices of the page
    }
    match read(&bytes[end..], values) {
        None => Lengths::Invalid,
        Some((second, _)) if first + second > limit => Lengths::Repeat(first + second),
        Some(_) => Lengths::Fine,
    }
}

/// The sum of at most `most` lengths, and the offset behind them. None: there are more, or they are not valid.
fn read(bytes: &[u8], most: u32) -> Option<(u64, usize)> {
    let mut input = Input { bytes, offset: 0 };
    let block = input.varint()?;
    let mini_blocks = input.varint()?;
    let count = input.varint()?;
    let mut length = input.zigzag()? as i32;
    if mini_blocks == 0 || !block.is_multiple_of(mini_blocks) || count > most.into() {
        return None;
    }
    let size = block / mini_blocks;
    let mut sum = if count > 0 { length.max(0) as u64 } else { 0 };
    let mut left = count.saturating_sub(1);
    if left > 0 && (size == 0 || !size.is_multiple_of(32)) {
        return None;
    }
    while left > 0 {
        let least = input.zigzag()? as i32;
        for &width in input.take(mini_blocks)? {
            // Blocks behind the last value may have any width, and have no bytes.
            if left == 0 {
                break;
            }
            if width > 32 {
                return None;
            }
            let packed = input.take(u64::from(width).checked_mul(size)? / 8)?;
            let deltas = left.min(size);
            for index in 0..deltas {
                length = length.wrapping_add(least).wrapping_add(unpack(packed, width.into(), index));
                sum += length.max(0) as u64;
            }
            left -= deltas;
        }
    }
    Some((sum, input.offset))
}

/// A number of some bits, least significant bits first.
fn unpack(packed: &[u8], width: u64, index: u64) -> i32 {
    let bit = index * width;
    let first = (bit / 8) as usize;
    let mut word = [0; 8];
    let length = packed.len().saturating_sub(first).min(8);
    word[..length].copy_from_slice(&packed[first..first + length]);
    (u64::from_le_bytes(word) >> (bit % 8) & ((1 << width) - 1)) as i32
}

struct Input<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Input<'a> {
    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let end = self.offset.checked_add(usize::try_from(length).ok()?)?;
        let taken = self.bytes.get(self.offset..end)?;
        self.offset = end;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn varint(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    fn zigzag(out: &mut Vec<u8>, value: i64) {
        varint(out, (value << 1 ^ value >> 63) as u64);
    }

    /// Lengths as a writer packs them, in blocks of 128 with four mini blocks.
    fn packed(lengths: &[i32]) -> Vec<u8> {
        let mut out = Vec::new();
        for number in [128, 4, lengths.len() as u64] {
            varint(&mut out, number);
        }
        zigzag(&mut out, lengths.first().copied().unwrap_or(0).into());
        let deltas: Vec<i32> = lengths.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        for block in deltas.chunks(128) {
            let least = *block.iter().min().unwrap();
            zigzag(&mut out, least.into());
            let above: Vec<u32> = block.iter().map(|delta| delta.wrapping_sub(least) as u32).collect();
            let widths: Vec<u32> =
                above.chunks(32).map(|mini| 32 - mini.iter().max().unwrap().leading_zeros()).collect();
            out.extend((0..4).map(|mini| widths.get(mini).map_or(7, |&width| width as u8)));
            for (mini, width) in above.chunks(32).zip(widths) {
                let mut bits = vec![0; width as usize * 32];
                for (index, value) in mini.iter().enumerate() {
                    for bit in 0..width {
                        bits[index * width as usize + bit as usize] = (value >> bit & 1) as u8;
                    }
                }
                out.extend(bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |sum, bit| sum << 1 | bit)));
            }
        }
        out
    }

    #[test]
    fn more_lengths_than_values_are_invalid() {
        let lengths = packed(&[1; 40]);
        for encoding in [Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
            let bytes = lengths.repeat(2);
            assert_eq!(check(encoding, &bytes, 40, 1000), Lengths::Fine);
            assert_eq!(check(encoding, &bytes, 39, 1000), Lengths::Invalid);
        }
        let few_then_many = [packed(&[0, 0]), packed(&[1; 40])].concat();
        assert_eq!(check(Encoding::DELTA_BYTE_ARRAY, &few_then_many, 39, 1000), Lengths::Invalid);
    }

    #[test]
    fn strings_that_repeat_one_another_are_counted() {
        let bytes = [packed(&[0, 1000, 1000]), packed(&[1000, 0, 0])].concat();
        assert_eq!(check(Encoding::DELTA_BYTE_ARRAY, &bytes, 3, 3000), Lengths::Fine);
        assert_eq!(check(Encoding::DELTA_BYTE_ARRAY, &bytes, 3, 2999), Lengths::Repeat(3000));
    }

    proptest! {
        #[test]
        fn packed_lengths_are_summed(
            lengths in prop::collection::vec(prop_oneof![0..20, 0..i32::MAX, any::<i32>()], 0..300),
            rest in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let bytes = [packed(&lengths), rest.clone()].concat();
            let sum = lengths.iter().map(|&length| length.max(0) as u64).sum();
            prop_assert_eq!(read(&bytes, 300), Some((sum, bytes.len() - rest.len())));
        }

        #[test]
        fn any_bytes_end_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), most in 0..1000_u32) {
            if let Some((_, end)) = read(&bytes, most) {
                prop_assert!(end <= bytes.len());
            }
        }
    }
}
