//! The operations of cutting text, on 64 bytes at a time. Each one tests all bytes and returns a bitmap, bit i for byte
//! i.
//!
//! AVX2 holds a block in two registers and needs several instructions for the bitmap of each. AVX-512 holds it in one,
//! and its comparisons yield bitmaps directly. In plain Rust the compiler vectorizes what it can.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_bzhi_u64, _pdep_u64, _pext_u64};

/// Bytes in a block.
pub const BLOCK: usize = 64;

/// A block of text, and the rest of a character that begins in it.
pub type PaddedBlock = [u8; BLOCK + 3];

/// The first `N` bytes of an array from `at` on. After inlining, `at` is a constant and the check is gone.
#[inline(always)]
pub fn part<const N: usize, const M: usize>(window: &[u8; M], at: usize) -> &[u8; N] {
    let Some(bytes) = window[at..].first_chunk() else { unreachable!("a part of the window") };
    bytes
}

/// The first `M` bytes of a padded text from `at` on: a block, or with `M` > 64 a block and the bytes after it.
#[inline(always)]
pub fn block_at<const M: usize>(text: &[u8], at: usize) -> &[u8; M] {
    text[at..].first_chunk().expect("texts are padded")
}

/// The indices of the set bits, in ascending order.
#[inline(always)]
pub fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (bits != 0).then_some(bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        index
    })
}

/// The instructions that cut text.
pub trait Blocks: Copy {
    type Block: ByteBlock;

    fn load(self, bytes: &[u8; BLOCK]) -> Self::Block;

    /// Appends `base` plus the index of each set bit of `ones`.
    fn push_ones(self, ones: u64, base: u32, indices: &mut Vec<u32>);
}

/// The instructions of a processor that also has BMI2.
///
/// # Safety
///
/// A value of such a type exists only where the processor has BMI2.
#[cfg(target_arch = "x86_64")]
pub unsafe trait Bmi2Blocks: Blocks {
    /// The bits of `map` at the set bits of `mask`, packed together.
    #[inline(always)]
    fn pext(self, map: u64, mask: u64) -> u64 {
        // SAFETY: the processor has BMI2, as the trait requires.
        unsafe { _pext_u64(map, mask) }
    }

    /// The lowest bits of `map`, spread to the set bits of `mask`.
    #[inline(always)]
    fn pdep(self, map: u64, mask: u64) -> u64 {
        // SAFETY: the processor has BMI2, as the trait requires.
        unsafe { _pdep_u64(map, mask) }
    }

    /// The lowest `count` bits of `map`.
    #[inline(always)]
    fn bzhi(self, map: u64, count: u32) -> u64 {
        // SAFETY: the processor has BMI2, as the trait requires.
        unsafe { _bzhi_u64(map, count) }
    }
}

/// 64 bytes.
pub trait ByteBlock: Copy {
    /// The top bit of each byte.
    fn high(self) -> u64;
    /// Bit `BIT` of each byte, counted from the lowest.
    fn bit<const BIT: u32>(self) -> u64;

    /// All bits of each byte, the lowest first.
    #[inline(always)]
    fn bits(self) -> [u64; 8] {
        [
            self.bit::<0>(),
            self.bit::<1>(),
            self.bit::<2>(),
            self.bit::<3>(),
            self.bit::<4>(),
            self.bit::<5>(),
            self.bit::<6>(),
            self.bit::<7>(),
        ]
    }

    fn equal(self, byte: u8) -> u64;
    fn equal_either(self, one: u8, other: u8) -> u64;
    fn not_zero(self) -> u64;
    /// The bytes that have a bit in common with those of another block.
    fn meets(self, other: Self) -> u64;
    /// The bytes from `low` to `high`.
    fn within(self, low: u8, high: u8) -> u64;
    /// The bytes from `low` to `high`, two lower-case letters, in either case.
    fn within_either_case(self, low: u8, high: u8) -> u64;
    /// The continuation bytes of UTF-8: 0x80 to 0xBF.
    fn continuation(self) -> u64;
    /// `table` indexed by the bytes.
    fn look_up(self, table: &[u8; 256]) -> Self;
    /// The bytes from 0xC0 on whose entry in `first` has a bit in common with the entry in `second` of the byte after
    /// them. Both tables are indexed by the lower six bits.
    fn leads(self, first: &[u8; 64], after: Self, second: &[u8; 64]) -> u64;
    /// `table` indexed by the low half of the bytes from 0xE0 to 0xEF, 0 for others.
    fn look_up_first_of_three(self, table: &[u8; 16]) -> Self;
    fn bytes(self) -> [u8; 64];
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::{Simd, Work};

    /// The same operations, byte by byte.
    fn check<B: Blocks>(blocks: B, bytes: &[u8; 64], other: u8, table: &[u8; 256], ones: u64) {
        let map = |is: &dyn Fn(u8) -> bool| -> u64 {
            bytes.iter().enumerate().map(|(index, byte)| u64::from(is(*byte)) << index).sum()
        };
        let read = |got: B::Block| -> [u8; 64] {
            std::array::from_fn(|index| {
                let bits = got.bits().into_iter().enumerate();
                bits.map(|(bit, map)| ((map >> index & 1) as u8) << bit).sum()
            })
        };
        let got = blocks.load(bytes);
        assert_eq!(read(got), *bytes);
        assert_eq!(got.high(), map(&|byte| byte >= 0x80));
        assert_eq!(got.continuation(), map(&|byte| (0x80..0xC0).contains(&byte)));
        assert_eq!(got.not_zero(), map(&|byte| byte != 0));
        assert_eq!(got.meets(blocks.load(&[other; 64])), map(&|byte| byte & other != 0));
        let one = bytes[0];
        assert_eq!(got.equal(one), map(&|byte| byte == one));
        assert_eq!(got.equal_either(one, other), map(&|byte| byte == one || byte == other));
        let (low, high) = (one.min(other), one.max(other));
        assert_eq!(got.within(low, high), map(&|byte| (low..=high).contains(&byte)));
        let is_letter = |byte: u8| byte.is_ascii_alphabetic();
        assert_eq!(got.within_either_case(b'a', b'z'), map(&is_letter));
        assert_eq!(read(got.look_up(table)), bytes.map(|byte| table[usize::from(byte)]));
        assert_eq!(got.bytes(), *bytes);
        let (first, second) = (table[..64].first_chunk().unwrap(), table[100..].first_chunk().unwrap());
        let mut after = *bytes;
        after.rotate_left(1);
        let meet = |index: usize| {
            let entry = |table: &[u8; 64], byte: u8| table[usize::from(byte & 0x3F)];
            bytes[index] >= 0xC0 && entry(first, bytes[index]) & entry(second, after[index]) != 0
        };
        let expected: u64 = (0..64).map(|index| u64::from(meet(index)) << index).sum();
        assert_eq!(got.leads(first, blocks.load(&after), second), expected);
        let table = table.first_chunk().unwrap();
        let expected = bytes.map(|byte| if byte >> 4 == 0xE { table[usize::from(byte & 15)] } else { 0 });
        assert_eq!(read(got.look_up_first_of_three(table)), expected);

        let mut indices = vec![7];
        blocks.push_ones(ones, 1000, &mut indices);
        let expected = (0..64).filter(|bit| ones >> bit & 1 == 1).map(|bit| 1000 + bit);
        assert_eq!(indices, [7].into_iter().chain(expected).collect::<Vec<u32>>());
    }

    struct Check<'a> {
        bytes: &'a [u8; 64],
        other: u8,
        table: &'a [u8; 256],
        ones: u64,
    }

    impl Work for Check<'_> {
        type Output = ();

        fn run(self, blocks: impl Blocks) {
            check(blocks, self.bytes, self.other, self.table, self.ones);
        }
    }

    proptest! {
        #[test]
        fn all_kernels_agree(
            halves: [[u8; 32]; 2], ascii: bool, other: u8, table: [[u8; 32]; 8], ones: u64, dense in 0usize..3,
        ) {
            let mut bytes: [u8; 64] = halves.concat().try_into().unwrap();
            if ascii {
                bytes = bytes.map(|byte| byte & 0x7F);
            }
            let table = table.concat().try_into().unwrap();
            let ones = [ones, ones & ones.rotate_left(7), ones | ones.rotate_left(7)][dense];
            for simd in Simd::all() {
                simd.run(Check { bytes: &bytes, other, table: &table, ones });
            }
        }
    }
}
