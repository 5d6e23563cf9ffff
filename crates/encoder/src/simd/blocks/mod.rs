//! The operations of cutting text, on 64 bytes at a time. Each one tests all bytes and returns a bitmap, bit i for byte
//! i.
//!
//! AVX2 holds a block in two registers, NEON in four. In plain Rust the compiler vectorizes what it can.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod bits;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use gristmill_system::memory::Aligned;

pub use bits::BitPacker;

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
    type Packer: BitPacker;

    fn load(self, bytes: &[u8; BLOCK]) -> Self::Block;

    /// Appends `base` plus the index of each set bit of `ones`.
    fn push_ones(self, ones: u64, base: u32, indices: &mut Vec<u32>);

    fn packer(self, mask: u64) -> Self::Packer;

    /// For a mask whose set bits are the lowest ones.
    fn packer_without_gaps(self, mask: u64) -> Self::Packer;

    /// The lowest `count` bits of `map`, of up to 64.
    #[inline(always)]
    fn lowest(self, map: u64, count: u32) -> u64 {
        if count < 64 { map & ((1 << count) - 1) } else { map }
    }

    /// The bits of `starts`, the first of runs of `members`, whose run is followed by one of `wanted`. `ends` has the
    /// bits after these runs.
    #[inline(always)]
    fn starts_before(self, wanted: u64, members: u64, starts: u64, _ends: u64) -> u64 {
        bits::starts_before(wanted, members, starts)
    }

    /// The code point at the start of some bytes that are not ASCII, or some number below 2^21 if they are not UTF-8.
    #[inline(always)]
    fn code_point(self, bytes: [u8; 4]) -> u32 {
        bits::code_point(bytes)
    }

    /// All bits of the classes of 64 bytes, the lowest first: those of `known`, and for the bytes of `others`, whose
    /// classes are 0 there, what `class` finds.
    #[inline(always)]
    fn bits_of_classes(self, known: Self::Block, others: u64, class: impl Fn(usize) -> u8) -> [u64; 8] {
        let mut classes = known.bytes();
        for index in ones(others) {
            classes[index % BLOCK] = class(index);
        }
        self.load(&classes).bits()
    }
}

/// For each byte, the indices of its set bits in ascending order.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static INDICES: Aligned<[[u8; 8]; 256]> = Aligned({
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
});

/// The classes of ASCII characters, numbered from 1 to 7; all other bytes are in class 0.
pub struct AsciiClasses {
    /// By byte.
    of: [u8; 256],
    /// For each bit of a class, by the low half of a character: one bit for each high half with which its class has the
    /// bit.
    #[cfg(target_arch = "x86_64")]
    planes: [[u8; 16]; 3],
}

impl AsciiClasses {
    pub fn new(ascii: [u8; 128]) -> Self {
        #[cfg(target_arch = "x86_64")]
        let row = |bit: usize, low: usize| -> u8 {
            (0..8).map(|high| (ascii[high << 4 | low] >> bit & 1) << high).sum()
        };
        Self {
            of: std::array::from_fn(|byte| ascii.get(byte).copied().unwrap_or(0)),
            #[cfg(target_arch = "x86_64")]
            planes: std::array::from_fn(|bit| std::array::from_fn(|low| row(bit, low))),
        }
    }

    #[inline(always)]
    pub fn of(&self, byte: u8) -> u8 {
        self.of[usize::from(byte)]
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
    /// The classes of the bytes.
    fn ascii_classes(self, classes: &AsciiClasses) -> Self;
    /// `table` indexed by the bytes, which are below 16.
    fn look_up_half(self, table: &[u8; 16]) -> Self;
    /// Each byte moved up by one index; the first one is the last byte of `before`.
    fn behind(self, before: Self) -> Self;
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
        let classes = AsciiClasses::new(std::array::from_fn(|byte| table[byte] & 7));
        assert_eq!(got.ascii_classes(&classes).bytes(), bytes.map(|byte| classes.of(byte)));
        let half = table[30..].first_chunk().unwrap();
        let halves = blocks.load(&bytes.map(|byte| byte & 15)).look_up_half(half);
        assert_eq!(halves.bytes(), bytes.map(|byte| half[usize::from(byte & 15)]));
        let behind = std::array::from_fn(|index| if index == 0 { table[63] } else { bytes[index - 1] });
        assert_eq!(got.behind(blocks.load(table.first_chunk().unwrap())).bytes(), behind);
        let (first, second) = (table[..64].first_chunk().unwrap(), table[100..].first_chunk().unwrap());
        let mut after = *bytes;
        after.rotate_left(1);
        let meet = |index: usize| {
            let entry = |table: &[u8; 64], byte: u8| table[usize::from(byte & 0x3F)];
            bytes[index] >= 0xC0 && entry(first, bytes[index]) & entry(second, after[index]) != 0
        };
        let expected: u64 = (0..64).map(|index| u64::from(meet(index)) << index).sum();
        assert_eq!(got.leads(first, blocks.load(&after), second), expected);
        let whole_table = table;
        let table = table.first_chunk().unwrap();
        let expected = bytes.map(|byte| if byte >> 4 == 0xE { table[usize::from(byte & 15)] } else { 0 });
        assert_eq!(read(got.look_up_first_of_three(table)), expected);

        for bytes in [&[0; 64], bytes] {
            let choose = |other: &[u8; 256]| -> [u8; 64] {
                std::array::from_fn(|index| if ones >> index & 1 == 1 { other[index] } else { bytes[index] })
            };
            let known = blocks.load(&choose(&[0; 256]));
            let classes = blocks.bits_of_classes(known, ones, |index| whole_table[index]);
            assert_eq!(classes, blocks.load(&choose(whole_table)).bits());
        }

        let mut indices = vec![7];
        blocks.push_ones(ones, 1000, &mut indices);
        let expected = (0..64).filter(|bit| ones >> bit & 1 == 1).map(|bit| 1000 + bit);
        assert_eq!(indices, [7].into_iter().chain(expected).collect::<Vec<u32>>());
    }

    /// The operations on bits, one by one.
    fn check_bits(blocks: impl Blocks, mask: u64, map: u64, count: u32) {
        let packer = blocks.packer(mask);
        assert_eq!(packer.mask(), mask);
        let picked = |of: &dyn Fn(usize, usize) -> (usize, usize)| -> u64 {
            ones(mask)
                .enumerate()
                .map(|(low, high)| of(low, high))
                .map(|(from, to)| (map >> from & 1) << to)
                .sum()
        };
        assert_eq!(packer.pack(map), picked(&|low, high| (high, low)));
        assert_eq!(packer.unpack(map), picked(&|low, high| (low, high)));
        let lowest = blocks.lowest(map, count);
        assert_eq!(u128::from(lowest), u128::from(map) & ((1 << count) - 1));
        let packer = blocks.packer_without_gaps(blocks.lowest(!0, count));
        assert_eq!(
            [packer.mask(), packer.pack(map), packer.unpack(map)],
            [blocks.lowest(!0, count), lowest, lowest]
        );

        // Every second run, and whether what follows it is in `map`.
        let first = mask & !(mask << 1);
        let starts = first & map.rotate_left(5);
        let ends = mask.wrapping_add(starts) & !mask;
        let followed = |start: &usize| {
            let end = start + (mask >> start).trailing_ones() as usize;
            end < 64 && map >> end & 1 == 1
        };
        let expected: u64 = ones(starts).filter(followed).map(|start| 1 << start).sum();
        assert_eq!(blocks.starts_before(map, mask, starts, ends), expected);
    }

    #[test]
    fn every_code_point_is_read_back() {
        struct Read;
        impl Work for Read {
            type Output = ();

            fn run(self, blocks: impl Blocks) {
                for c in '\u{80}'..=char::MAX {
                    let mut bytes = [b'x'; 4];
                    c.encode_utf8(&mut bytes);
                    assert_eq!(blocks.code_point(bytes), u32::from(c));
                }
                for bytes in (0u32..0x100_0000).step_by(97).map(|bytes| (!bytes).to_be_bytes()) {
                    assert!(blocks.code_point(bytes) < 1 << 21);
                }
            }
        }
        for simd in Simd::all() {
            simd.run(Read);
        }
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
            let map = u64::from_le_bytes(*part(self.table, 7));
            check_bits(blocks, self.ones, map, u32::from(self.other) % 65);
            check_bits(blocks, !self.ones, map & map.rotate_left(1), 64);
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
