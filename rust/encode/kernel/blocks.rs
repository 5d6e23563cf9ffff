//! 64 bytes of text at a time, in vector registers: the operations that cutting text needs. Each one tests all of the
//! bytes and returns a bitmap, bit i for byte i.
//!
//! AVX2 holds a block in two registers and needs several instructions for the bitmap of each; AVX-512 holds it in one,
//! and its comparisons yield bitmaps directly.

use std::arch::x86_64::{_bzhi_u64, _pdep_u64, _pext_u64};

/// A kernel that cuts text.
///
/// # Safety
///
/// Having one proves that the processor has BMI2.
pub unsafe trait Blocks: Copy {
    type Block: ByteBlock;

    fn load(self, bytes: &[u8; 64]) -> Self::Block;

    /// Appends `base` plus the place of each set bit of `ones`.
    fn push_ones(self, ones: u64, base: u32, places: &mut Vec<u32>);

    /// The bits of `map` at the set bits of `mask`, packed together.
    #[inline(always)]
    fn pext(self, map: u64, mask: u64) -> u64 {
        // SAFETY: having a kernel proves that the processor has BMI2.
        unsafe { _pext_u64(map, mask) }
    }

    /// The lowest bits of `map`, spread to the set bits of `mask`.
    #[inline(always)]
    fn pdep(self, map: u64, mask: u64) -> u64 {
        // SAFETY: having a kernel proves that the processor has BMI2.
        unsafe { _pdep_u64(map, mask) }
    }

    /// The lowest `count` bits of `map`.
    #[inline(always)]
    fn bzhi(self, map: u64, count: u32) -> u64 {
        // SAFETY: having a kernel proves that the processor has BMI2.
        unsafe { _bzhi_u64(map, count) }
    }
}

/// 64 bytes.
pub trait ByteBlock: Copy {
    /// The top bit of each byte.
    fn high(self) -> u64;
    /// Bit `BIT` of each byte, counted from the lowest.
    fn bit<const BIT: u32>(self) -> u64;
    fn equal(self, byte: u8) -> u64;
    fn equal_either(self, one: u8, other: u8) -> u64;
    fn not_zero(self) -> u64;
    /// The bytes from `low` to `high`.
    fn within(self, low: u8, high: u8) -> u64;
    /// The bytes from `low` to `high`, two lower-case letters, in either case.
    fn within_either_case(self, low: u8, high: u8) -> u64;
    /// The continuation bytes of UTF-8: 0x80 to 0xBF.
    fn continuation(self) -> u64;
    /// `table` indexed by the low half of the bytes from 0xE0 to 0xEF, 0 for others.
    fn look_up_first_of_three(self, table: &[u8; 16]) -> Self;
}

mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm_cvtsi32_si128, _mm_loadl_epi64, _mm_loadu_si128, _mm256_add_epi32, _mm256_and_si256,
        _mm256_broadcastsi128_si256, _mm256_cmpeq_epi8, _mm256_cmpgt_epi8, _mm256_cvtepu8_epi32,
        _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
        _mm256_set1_epi32, _mm256_shuffle_epi8, _mm256_sll_epi16, _mm256_storeu_si256, _mm256_sub_epi8,
    };

    use super::{Blocks, ByteBlock};
    use crate::encode::kernel::Avx2;
    use crate::memory::Aligned;

    // SAFETY: it stands for BMI2 as well.
    unsafe impl Blocks for Avx2 {
        type Block = Halves;

        #[inline(always)]
        fn load(self, bytes: &[u8; 64]) -> Halves {
            let at = bytes.as_ptr();
            // SAFETY: having an `Avx2` proves that the processor has AVX2, and twice 32 bytes are 64.
            unsafe { Halves(_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())) }
        }

        #[inline(always)]
        fn push_ones(self, ones: u64, base: u32, places: &mut Vec<u32>) {
            // SAFETY: having an `Avx2` proves that the processor has AVX2 and POPCNT.
            unsafe { push_ones(ones, base, places) }
        }
    }

    /// Two times 32 bytes. Only an [`Avx2`] creates one, so the processor has the features that all of this needs.
    #[derive(Clone, Copy)]
    pub struct Halves(__m256i, __m256i);

    impl Halves {
        #[inline(always)]
        fn map(self, change: impl Fn(__m256i) -> __m256i) -> Self {
            Self(change(self.0), change(self.1))
        }
    }

    /// The body of a method on bytes that an `Avx2` has loaded.
    macro_rules! with_avx2 {
        ($body:expr) => {
            // SAFETY: having loaded bytes with an `Avx2` proves that the processor has AVX2.
            unsafe { $body }
        };
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
        fn look_up_first_of_three(self, table: &[u8; 16]) -> Self {
            self.map(|half| {
                with_avx2!({
                    let high_half = _mm256_and_si256(half, splat(0xF0));
                    let looked_up =
                        _mm256_shuffle_epi8(broadcast(table), _mm256_and_si256(half, splat(0x0F)));
                    _mm256_and_si256(looked_up, _mm256_cmpeq_epi8(high_half, splat(0xE0)))
                })
            })
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

    /// For each byte, the places of its set bits, low to high.
    static PLACES: Aligned<[[u8; 8]; 256]> = Aligned({
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

    /// Eight bits at a time by a table, and always eight times: a loop over the set bits is mispredicted once per
    /// bitmap, and its writes are scalar.
    #[inline]
    #[target_feature(enable = "avx2,popcnt")]
    fn push_ones(ones: u64, base: u32, places: &mut Vec<u32>) {
        places.reserve(64);
        let mut len = places.len();
        let mut bases = _mm256_set1_epi32(base as i32);
        for byte in ones.to_le_bytes() {
            // SAFETY: the table's entry is eight bytes long. There is room for 64 places, of which each byte before
            // this one has used at most eight, so eight more fit.
            unsafe {
                let offsets = _mm_loadl_epi64(PLACES.0[usize::from(byte)].as_ptr().cast());
                let written = _mm256_add_epi32(_mm256_cvtepu8_epi32(offsets), bases);
                _mm256_storeu_si256(places.as_mut_ptr().add(len).cast(), written);
            }
            bases = _mm256_add_epi32(bases, _mm256_set1_epi32(8));
            len += byte.count_ones() as usize;
        }
        // SAFETY: all up to there has been written.
        unsafe { places.set_len(len) };
    }
}

mod avx512 {
    use std::arch::x86_64::{
        __m512i, _mm_loadu_si128, _mm512_add_epi32, _mm512_and_si512, _mm512_broadcast_i32x4,
        _mm512_castsi512_si128, _mm512_cmpeq_epi8_mask, _mm512_cmple_epu8_mask, _mm512_cmplt_epi8_mask,
        _mm512_cvtepu8_epi32, _mm512_extracti32x4_epi32, _mm512_loadu_si512, _mm512_mask_blend_epi8,
        _mm512_maskz_compress_epi8, _mm512_maskz_shuffle_epi8, _mm512_movepi8_mask, _mm512_or_si512,
        _mm512_permutex2var_epi8, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_shuffle_epi8,
        _mm512_storeu_si512, _mm512_sub_epi8, _mm512_test_epi8_mask,
    };

    use super::{Blocks, ByteBlock};
    use crate::encode::kernel::Avx512;
    use crate::memory::Aligned;

    /// The places of 64 bytes.
    static PLACES: Aligned<[u8; 64]> = Aligned({
        let mut places = [0; 64];
        let mut place = 0;
        while place < 64 {
            places[place] = place as u8;
            place += 1;
        }
        places
    });

    /// For each place, the one before it, as an index into two times 64 bytes: first comes the last byte of the first
    /// 64.
    static PLACES_BEFORE: Aligned<[u8; 64]> = Aligned({
        let mut places = PLACES.0;
        let mut place = 0;
        while place < 64 {
            places[place] += 63;
            place += 1;
        }
        places
    });

    // SAFETY: a processor with these features has BMI2, which `Kernel::detect` has checked too.
    unsafe impl Blocks for Avx512 {
        type Block = Whole;

        #[inline(always)]
        fn load(self, bytes: &[u8; 64]) -> Whole {
            // SAFETY: having an `Avx512` proves that the processor has these instructions.
            unsafe { Whole(load(bytes)) }
        }

        #[inline(always)]
        fn push_ones(self, ones: u64, base: u32, places: &mut Vec<u32>) {
            // SAFETY: having an `Avx512` proves that the processor has these instructions.
            unsafe { push_ones(ones, base, places) }
        }
    }

    /// 64 bytes. Only an [`Avx512`] creates one, so the processor has the features that all of this needs.
    #[derive(Clone, Copy)]
    pub struct Whole(__m512i);

    /// The body of a method on bytes that an `Avx512` has loaded.
    macro_rules! with_avx512 {
        ($body:expr) => {
            // SAFETY: having loaded bytes with an `Avx512` proves that the processor has these instructions.
            unsafe { $body }
        };
    }

    impl Whole {
        /// The bytes that share a set bit with the byte of `other` at their place.
        #[inline(always)]
        pub fn meets(self, other: Self) -> u64 {
            with_avx512!(_mm512_test_epi8_mask(self.0, other.0))
        }

        /// `table` indexed by the ASCII bytes, `other` for the rest.
        #[inline(always)]
        pub fn look_up_ascii(self, table: &[u8; 128], other: u8) -> Self {
            let [low, high] = table.as_chunks().0 else { unreachable!("two times 64 entries") };
            with_avx512!({
                let found = _mm512_permutex2var_epi8(load(low), self.0, load(high));
                Self(_mm512_mask_blend_epi8(self.high(), found, splat(other)))
            })
        }

        /// `table` indexed by the low half of bytes below 128.
        #[inline(always)]
        pub fn look_up_half(self, table: &[u8; 16]) -> Self {
            with_avx512!(Self(_mm512_shuffle_epi8(broadcast(table), self.0)))
        }

        /// Each byte moved up by one place, preceded by the last one of `before`.
        #[inline(always)]
        pub fn behind(self, before: Self) -> Self {
            with_avx512!(Self(_mm512_permutex2var_epi8(before.0, load(&PLACES_BEFORE.0), self.0)))
        }
    }

    impl ByteBlock for Whole {
        #[inline(always)]
        fn high(self) -> u64 {
            with_avx512!(_mm512_movepi8_mask(self.0))
        }

        #[inline(always)]
        fn bit<const BIT: u32>(self) -> u64 {
            with_avx512!(_mm512_test_epi8_mask(self.0, splat(1 << BIT)))
        }

        #[inline(always)]
        fn equal(self, byte: u8) -> u64 {
            with_avx512!(_mm512_cmpeq_epi8_mask(self.0, splat(byte)))
        }

        #[inline(always)]
        fn equal_either(self, one: u8, other: u8) -> u64 {
            self.equal(one) | self.equal(other)
        }

        #[inline(always)]
        fn not_zero(self) -> u64 {
            self.meets(self)
        }

        #[inline(always)]
        fn within(self, low: u8, high: u8) -> u64 {
            with_avx512!(_mm512_cmple_epu8_mask(_mm512_sub_epi8(self.0, splat(low)), splat(high - low)))
        }

        #[inline(always)]
        fn within_either_case(self, low: u8, high: u8) -> u64 {
            with_avx512!(Self(_mm512_or_si512(self.0, splat(0x20)))).within(low, high)
        }

        #[inline(always)]
        fn continuation(self) -> u64 {
            // As signed numbers, these bytes are the lowest.
            with_avx512!(_mm512_cmplt_epi8_mask(self.0, splat(0xC0)))
        }

        #[inline(always)]
        fn look_up_first_of_three(self, table: &[u8; 16]) -> Self {
            with_avx512!({
                let high_half = _mm512_and_si512(self.0, splat(0xF0));
                let is_first = _mm512_cmpeq_epi8_mask(high_half, splat(0xE0));
                let low_half = _mm512_and_si512(self.0, splat(0x0F));
                Self(_mm512_maskz_shuffle_epi8(is_first, broadcast(table), low_half))
            })
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    fn load(bytes: &[u8; 64]) -> __m512i {
        // SAFETY: 64 bytes are 512 bits.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    fn splat(byte: u8) -> __m512i {
        _mm512_set1_epi8(byte as i8)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2")]
    fn broadcast(table: &[u8; 16]) -> __m512i {
        // SAFETY: the table is 16 bytes long.
        _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
    }

    /// The places of the set bits packed together, and written sixteen at a time.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
    fn push_ones(ones: u64, base: u32, places: &mut Vec<u32>) {
        places.reserve(64);
        let len = places.len();
        let count = ones.count_ones() as usize;
        let offsets = _mm512_maskz_compress_epi8(ones, load(&PLACES.0));
        let bases = _mm512_set1_epi32(base as i32);
        // SAFETY: there is room for 64 places after those that are there.
        let out: *mut [u32; 16] = unsafe { places.as_mut_ptr().add(len).cast() };
        let write = |sixteen, offsets| {
            let written = _mm512_add_epi32(_mm512_cvtepu8_epi32(offsets), bases);
            // SAFETY: four times sixteen places are 64.
            unsafe { _mm512_storeu_si512(out.add(sixteen).cast(), written) };
        };
        write(0, _mm512_castsi512_si128(offsets));
        write(1, _mm512_extracti32x4_epi32::<1>(offsets));
        if count > 32 {
            write(2, _mm512_extracti32x4_epi32::<2>(offsets));
            write(3, _mm512_extracti32x4_epi32::<3>(offsets));
        }
        // SAFETY: all up to there has been written.
        unsafe { places.set_len(len + count) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encode::kernel::Kernel;

    /// The same operations, byte by byte.
    fn check<B: Blocks>(blocks: B, bytes: &[u8; 64], other: u8, table: &[u8; 16], ones: u64) {
        let map = |is: &dyn Fn(u8) -> bool| -> u64 {
            bytes.iter().enumerate().map(|(place, byte)| u64::from(is(*byte)) << place).sum()
        };
        let read = |got: B::Block| -> [u8; 64] {
            std::array::from_fn(|place| {
                let bits = [got.bit::<0>(), got.bit::<1>(), got.bit::<2>(), got.bit::<3>()];
                let more = [got.bit::<4>(), got.bit::<5>(), got.bit::<6>(), got.bit::<7>()];
                let bits = bits.into_iter().chain(more).enumerate();
                bits.map(|(bit, map)| ((map >> place & 1) as u8) << bit).sum()
            })
        };
        let got = blocks.load(bytes);
        assert_eq!(read(got), *bytes);
        assert_eq!(got.high(), map(&|byte| byte >= 0x80));
        assert_eq!(got.continuation(), map(&|byte| (0x80..0xC0).contains(&byte)));
        assert_eq!(got.not_zero(), map(&|byte| byte != 0));
        let one = bytes[0];
        assert_eq!(got.equal(one), map(&|byte| byte == one));
        assert_eq!(got.equal_either(one, other), map(&|byte| byte == one || byte == other));
        let (low, high) = (one.min(other), one.max(other));
        assert_eq!(got.within(low, high), map(&|byte| (low..=high).contains(&byte)));
        let is_letter = |byte: u8| byte.is_ascii_alphabetic();
        assert_eq!(got.within_either_case(b'a', b'z'), map(&is_letter));
        let expected = bytes.map(|byte| if byte >> 4 == 0xE { table[usize::from(byte & 15)] } else { 0 });
        assert_eq!(read(got.look_up_first_of_three(table)), expected);

        let mut places = vec![7];
        blocks.push_ones(ones, 1000, &mut places);
        let expected = (0..64).filter(|bit| ones >> bit & 1 == 1).map(|bit| 1000 + bit);
        assert_eq!(places, [7].into_iter().chain(expected).collect::<Vec<u32>>());
    }

    proptest! {
        #[test]
        fn the_kernels_do_what_is_said(
            halves: [[u8; 32]; 2], other: u8, table: [u8; 16], ones: u64, dense in 0usize..3,
        ) {
            let bytes: [u8; 64] = halves.concat().try_into().unwrap();
            let ones = [ones, ones & ones.rotate_left(7), ones | ones.rotate_left(7)][dense];
            for kernel in Kernel::all() {
                let Kernel::Avx2(avx2) = kernel else { continue };
                match avx2.avx512() {
                    Some(avx512) => check(avx512, &bytes, other, &table, ones),
                    None => check(avx2, &bytes, other, &table, ones),
                }
            }
        }
    }
}
