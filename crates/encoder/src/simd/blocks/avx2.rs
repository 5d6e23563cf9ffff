//! Blocks of two AVX2 registers.

use std::arch::x86_64::{
    __m256i, _bzhi_u64, _mm_cvtsi32_si128, _mm_loadl_epi64, _mm_loadu_si128, _mm256_add_epi32,
    _mm256_adds_epu8, _mm256_alignr_epi8, _mm256_and_si256, _mm256_andnot_si256, _mm256_broadcastsi128_si256,
    _mm256_cmpeq_epi8, _mm256_cmpgt_epi8, _mm256_cvtepu8_epi32, _mm256_loadu_si256, _mm256_min_epu8,
    _mm256_movemask_epi8, _mm256_or_si256, _mm256_permute2x128_si256, _mm256_set1_epi8, _mm256_set1_epi32,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sll_epi16, _mm256_srli_epi16, _mm256_storeu_si256,
    _mm256_sub_epi8, _mm256_xor_si256, _pdep_u64, _pext_u64,
};

use super::{AsciiClasses, BLOCK, BitPacker, Blocks, ByteBlock, INDICES};
use crate::simd::Avx2;

/// The body of a method of an `Avx2`, or of what it has created.
macro_rules! with_bmi2 {
    ($body:expr) => {
        // SAFETY: an `Avx2` exists only where the processor has BMI2.
        unsafe { $body }
    };
}

impl Blocks for Avx2 {
    type Block = Halves;
    type Packer = Bmi2Packer;

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> Halves {
        let at = bytes.as_ptr();
        // SAFETY: an `Avx2` exists only where the processor has AVX2, and twice 32 bytes are 64.
        unsafe { Halves(_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())) }
    }

    #[inline(always)]
    fn push_ones(self, ones: u64, base: u32, indices: &mut Vec<u32>) {
        // SAFETY: an `Avx2` exists only where the processor has AVX2 and POPCNT.
        unsafe { push_ones(ones, base, indices) }
    }

    #[inline(always)]
    fn packer(self, mask: u64) -> Bmi2Packer {
        Bmi2Packer { mask }
    }

    #[inline(always)]
    fn packer_without_gaps(self, mask: u64) -> Bmi2Packer {
        Bmi2Packer { mask }
    }

    #[inline(always)]
    fn lowest(self, map: u64, count: u32) -> u64 {
        with_bmi2!(_bzhi_u64(map, count))
    }

    #[inline(always)]
    fn starts_before(self, wanted: u64, _members: u64, starts: u64, ends: u64) -> u64 {
        // Runs and their ends are in the same order.
        with_bmi2!(_pdep_u64(_pext_u64(wanted, ends), starts))
    }

    #[inline(always)]
    fn code_point(self, bytes: [u8; 4]) -> u32 {
        /// The payload of two, three and four bytes, by the high half of the first.
        const PAYLOAD: [u64; 4] = [0x1F3F_0000, 0x1F3F_0000, 0x0F3F_3F00, 0x073F_3F3F];
        let word = u32::from_be_bytes(bytes);
        with_bmi2!(_pext_u64(u64::from(word), PAYLOAD[(word >> 28 & 3) as usize])) as u32
    }

    /// Up to eight bytes at a time, whose classes `pdep` turns by a quarter: byte i of `gathered` holds bit i of each.
    /// This beats both a shift for each bit of each class and a store and reload of the classes.
    #[inline(always)]
    fn bits_of_classes(self, known: Halves, others: u64, class: impl Fn(usize) -> u8) -> [u64; 8] {
        let mut maps = if known.not_zero() == 0 { [0; 8] } else { known.bits() };
        let mut unknown = others;
        while unknown != 0 {
            let mut gathered = 0;
            let mut rest = unknown;
            for index in 0..8 {
                let class = class(rest.trailing_zeros() as usize % BLOCK);
                rest &= rest - 1;
                gathered |= with_bmi2!(_pdep_u64(u64::from(class), 0x0101_0101_0101_0101)) << index;
                if rest == 0 {
                    break;
                }
            }
            for (bit, map) in maps.iter_mut().enumerate() {
                *map |= with_bmi2!(_pdep_u64(gathered >> (8 * bit) & 0xFF, unknown & !rest));
            }
            unknown = rest;
        }
        maps
    }
}

/// Only an [`Avx2`] creates one, so the processor has BMI2.
#[derive(Clone, Copy)]
pub struct Bmi2Packer {
    mask: u64,
}

impl BitPacker for Bmi2Packer {
    #[inline(always)]
    fn mask(self) -> u64 {
        self.mask
    }

    #[inline(always)]
    fn pack(self, map: u64) -> u64 {
        with_bmi2!(_pext_u64(map, self.mask))
    }

    #[inline(always)]
    fn unpack(self, map: u64) -> u64 {
        with_bmi2!(_pdep_u64(map, self.mask))
    }
}

/// Two times 32 bytes. Only an [`Avx2`] creates one, so the processor has all features that the methods need.
#[derive(Clone, Copy)]
pub struct Halves(__m256i, __m256i);

/// The body of a method on bytes that an `Avx2` has loaded.
macro_rules! with_avx2 {
    ($body:expr) => {
        // SAFETY: only an `Avx2` loads bytes, so the processor has AVX2.
        unsafe { $body }
    };
}

impl Halves {
    #[inline(always)]
    fn map(self, change: impl Fn(__m256i) -> __m256i) -> Self {
        Self(change(self.0), change(self.1))
    }

    /// `table`, of up to 128 entries, indexed by the bytes below that number, 0 for others.
    #[inline(always)]
    fn look_up_low<const N: usize>(self, table: &[u8; N]) -> Self {
        self.map(|half| with_avx2!(look_up_low(half, table)))
    }
}

impl ByteBlock for Halves {
    #[inline(always)]
    fn high(self) -> u64 {
        let bits = |half| with_avx2!(u64::from(_mm256_movemask_epi8(half) as u32));
        bits(self.0) | bits(self.1) << 32
    }

    #[inline(always)]
    fn bit<const BIT: u32>(self) -> u64 {
        with_avx2!({
            let shift = _mm_cvtsi32_si128(7 - BIT as i32);
            self.map(|half| _mm256_sll_epi16(half, shift)).high()
        })
    }

    #[inline(always)]
    fn equal(self, byte: u8) -> u64 {
        self.map(|half| with_avx2!(_mm256_cmpeq_epi8(half, splat(byte)))).high()
    }

    #[inline(always)]
    fn equal_either(self, one: u8, other: u8) -> u64 {
        let is = |half, byte| with_avx2!(_mm256_cmpeq_epi8(half, splat(byte)));
        self.map(|half| with_avx2!(_mm256_or_si256(is(half, one), is(half, other)))).high()
    }

    #[inline(always)]
    fn not_zero(self) -> u64 {
        !self.equal(0)
    }

    #[inline(always)]
    fn meets(self, other: Self) -> u64 {
        let both = |one, other| with_avx2!(_mm256_and_si256(one, other));
        Self(both(self.0, other.0), both(self.1, other.1)).not_zero()
    }

    #[inline(always)]
    fn within(self, low: u8, high: u8) -> u64 {
        self.map(|half| {
            with_avx2!({
                let above = _mm256_sub_epi8(half, splat(low));
                _mm256_cmpeq_epi8(_mm256_min_epu8(above, splat(high - low)), above)
            })
        })
        .high()
    }

    #[inline(always)]
    fn within_either_case(self, low: u8, high: u8) -> u64 {
        self.map(|half| with_avx2!(_mm256_or_si256(half, splat(0x20)))).within(low, high)
    }

    #[inline(always)]
    fn continuation(self) -> u64 {
        // As signed numbers, these bytes are the lowest.
        self.map(|half| with_avx2!(_mm256_cmpgt_epi8(splat(0xC0), half))).high()
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 256]) -> Self {
        let [ascii, others] = table.as_chunks::<128>().0 else { unreachable!("two times 128 entries") };
        let found = self.look_up_low(ascii);
        if self.high() == 0 {
            return found;
        }
        with_avx2!({
            let top = splat(0x80);
            let others = self.map(|half| _mm256_xor_si256(half, top)).look_up_low(others);
            Self(_mm256_or_si256(found.0, others.0), _mm256_or_si256(found.1, others.1))
        })
    }

    #[inline(always)]
    fn ascii_classes(self, classes: &AsciiClasses) -> Self {
        self.map(|half| with_avx2!(ascii_classes(half, &classes.planes)))
    }

    #[inline(always)]
    fn look_up_half(self, table: &[u8; 16]) -> Self {
        self.map(|half| with_avx2!(_mm256_shuffle_epi8(broadcast(table), half)))
    }

    #[inline(always)]
    fn behind(self, before: Self) -> Self {
        let after = |one, half| {
            with_avx2!(_mm256_alignr_epi8::<15>(half, _mm256_permute2x128_si256::<0x21>(one, half)))
        };
        Self(after(before.1, self.0), after(self.0, self.1))
    }

    #[inline(always)]
    fn leads(self, first: &[u8; 64], after: Self, second: &[u8; 64]) -> u64 {
        let first = self.map(|half| with_avx2!(_mm256_sub_epi8(half, splat(0xC0)))).look_up_low(first);
        let second = after.map(|half| with_avx2!(_mm256_and_si256(half, splat(0x3F)))).look_up_low(second);
        first.meets(second)
    }

    #[inline(always)]
    fn look_up_first_of_three(self, table: &[u8; 16]) -> Self {
        self.map(|half| {
            with_avx2!({
                let high_half = _mm256_and_si256(half, splat(0xF0));
                let looked_up = _mm256_shuffle_epi8(broadcast(table), _mm256_and_si256(half, splat(0x0F)));
                _mm256_and_si256(looked_up, _mm256_cmpeq_epi8(high_half, splat(0xE0)))
            })
        })
    }

    #[inline(always)]
    fn bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let at = bytes.as_mut_ptr();
        // SAFETY: twice 32 bytes are 64, and only an `Avx2` loads bytes, so the processor has AVX2.
        unsafe {
            _mm256_storeu_si256(at.cast(), self.0);
            _mm256_storeu_si256(at.add(32).cast(), self.1);
        }
        bytes
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn splat(byte: u8) -> __m256i {
    _mm256_set1_epi8(byte as i8)
}

#[inline]
#[target_feature(enable = "avx2")]
fn broadcast(table: &[u8; 16]) -> __m256i {
    // SAFETY: the table is 16 bytes long.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx2")]
fn look_up_low<const N: usize>(half: __m256i, table: &[u8; N]) -> __m256i {
    let mut found = _mm256_setzero_si256();
    let mut rest = half;
    for row in table.as_chunks().0 {
        // From 16 on the sum has its top bit set, and the shuffle gives 0.
        let at = _mm256_adds_epu8(rest, splat(0x70));
        found = _mm256_or_si256(found, _mm256_shuffle_epi8(broadcast(row), at));
        rest = _mm256_sub_epi8(rest, splat(16));
    }
    found
}

/// Two look-ups for each bit of a class: by the low half of a byte, the high halves with which the class has the bit,
/// and by the high half, its bit among these.
#[inline]
#[target_feature(enable = "avx2")]
fn ascii_classes(half: __m256i, planes: &[[u8; 16]; 3]) -> __m256i {
    // No bit for the high halves of bytes that are not ASCII.
    const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 0, 0, 0, 0, 0, 0, 0, 0];
    let high_half = _mm256_and_si256(_mm256_srli_epi16::<4>(half), splat(15));
    let bit_of_high = _mm256_shuffle_epi8(broadcast(&BITS), high_half);
    let mut classes = _mm256_setzero_si256();
    for (bit, plane) in planes.iter().enumerate() {
        let high_halves = _mm256_shuffle_epi8(broadcast(plane), half);
        let lacks_bit = _mm256_cmpeq_epi8(_mm256_and_si256(high_halves, bit_of_high), _mm256_setzero_si256());
        classes = _mm256_or_si256(classes, _mm256_andnot_si256(lacks_bit, splat(1 << bit)));
    }
    classes
}

/// Eight bits at a time by a table, and always eight times: a loop over the set bits is mispredicted once per
/// bitmap, and its writes are scalar.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn push_ones(ones: u64, base: u32, indices: &mut Vec<u32>) {
    indices.reserve(64);
    let mut len = indices.len();
    let mut bases = _mm256_set1_epi32(base as i32);
    for byte in ones.to_le_bytes() {
        // SAFETY: the table's entry is eight bytes long. There is room for 64 indices, of which each byte before this
        // one has used at most eight, so eight more fit.
        unsafe {
            let offsets = _mm_loadl_epi64(INDICES.0[usize::from(byte)].as_ptr().cast());
            let written = _mm256_add_epi32(_mm256_cvtepu8_epi32(offsets), bases);
            _mm256_storeu_si256(indices.as_mut_ptr().add(len).cast(), written);
        }
        bases = _mm256_add_epi32(bases, _mm256_set1_epi32(8));
        len += byte.count_ones() as usize;
    }
    // SAFETY: all indices up to there have been written.
    unsafe { indices.set_len(len) };
}
