//! Blocks in plain Rust.

use super::bits::PortablePacker;
use super::{AsciiClasses, BLOCK, Blocks, ByteBlock, ones};
use crate::simd::Scalar;

impl Blocks for Scalar {
    type Block = ScalarBlock;
    type Packer = PortablePacker;

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> ScalarBlock {
        ScalarBlock(*bytes)
    }

    #[inline(always)]
    fn push_ones(self, bits: u64, base: u32, indices: &mut Vec<u32>) {
        indices.extend(ones(bits).map(|index| base + index as u32));
    }

    #[inline(always)]
    fn packer(self, mask: u64) -> PortablePacker {
        PortablePacker::new(mask)
    }

    #[inline(always)]
    fn packer_without_gaps(self, mask: u64) -> PortablePacker {
        PortablePacker::without_gaps(mask)
    }
}

/// 64 bytes.
#[derive(Clone, Copy)]
pub struct ScalarBlock([u8; 64]);

impl ScalarBlock {
    /// The bytes for which `is` is true, in a form that compilers vectorize.
    #[inline(always)]
    fn map(self, is: impl Fn(u8) -> bool) -> u64 {
        let flags = self.0.map(|byte| u8::from(is(byte)));
        let (words, _) = flags.as_chunks();
        let eight = |word: &[u8; 8]| {
            // The highest byte of the product consists of the lowest bits of all bytes.
            u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56
        };
        words.iter().enumerate().map(|(index, word)| eight(word) << (8 * index)).sum()
    }
}

impl ByteBlock for ScalarBlock {
    #[inline(always)]
    fn high(self) -> u64 {
        self.bit::<7>()
    }

    #[inline(always)]
    fn bit<const BIT: u32>(self) -> u64 {
        self.map(|byte| byte >> BIT & 1 == 1)
    }

    #[inline(always)]
    fn equal(self, byte: u8) -> u64 {
        self.map(|other| other == byte)
    }

    #[inline(always)]
    fn equal_either(self, one: u8, other: u8) -> u64 {
        self.map(|byte| byte == one || byte == other)
    }

    #[inline(always)]
    fn not_zero(self) -> u64 {
        self.map(|byte| byte != 0)
    }

    #[inline(always)]
    fn meets(self, other: Self) -> u64 {
        Self(std::array::from_fn(|index| self.0[index] & other.0[index])).not_zero()
    }

    #[inline(always)]
    fn within(self, low: u8, high: u8) -> u64 {
        self.map(|byte| byte.wrapping_sub(low) <= high - low)
    }

    #[inline(always)]
    fn within_either_case(self, low: u8, high: u8) -> u64 {
        self.map(|byte| (byte | 0x20).wrapping_sub(low) <= high - low)
    }

    #[inline(always)]
    fn continuation(self) -> u64 {
        self.map(|byte| byte & 0xC0 == 0x80)
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 256]) -> Self {
        Self(self.0.map(|byte| table[usize::from(byte)]))
    }

    #[inline(always)]
    fn ascii_classes(self, classes: &AsciiClasses) -> Self {
        Self(self.0.map(|byte| classes.of(byte)))
    }

    #[inline(always)]
    fn look_up_half(self, table: &[u8; 16]) -> Self {
        Self(self.0.map(|byte| table[usize::from(byte & 15)]))
    }

    #[inline(always)]
    fn behind(self, before: Self) -> Self {
        let mut bytes = [before.0[BLOCK - 1]; BLOCK];
        bytes[1..].copy_from_slice(&self.0[..BLOCK - 1]);
        Self(bytes)
    }

    #[inline(always)]
    fn leads(self, first: &[u8; 64], after: Self, second: &[u8; 64]) -> u64 {
        let entry = |table: &[u8; 64], byte: u8| table[usize::from(byte & 0x3F)];
        let meet = |index: usize| entry(first, self.0[index]) & entry(second, after.0[index]) != 0;
        ones(self.within(0xC0, 0xFF)).map(|index| u64::from(meet(index)) << index).sum()
    }

    #[inline(always)]
    fn look_up_first_of_three(self, table: &[u8; 16]) -> Self {
        Self(self.0.map(|byte| if byte >> 4 == 0xE { table[usize::from(byte & 0xF)] } else { 0 }))
    }

    #[inline(always)]
    fn bytes(self) -> [u8; 64] {
        self.0
    }
}
