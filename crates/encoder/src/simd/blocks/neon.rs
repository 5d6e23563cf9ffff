//! Blocks of four NEON registers.

use std::arch::aarch64::{
    uint8x16_t, uint8x16x4_t, vaddq_u32, vandq_u8, vceqq_u8, vcleq_u8, vcltq_s8, vcltzq_s8, vcnt_u8,
    vcreate_u8, vdupq_n_s8, vdupq_n_u8, vdupq_n_u32, vextq_u8, vget_lane_u64, vget_low_u16, vgetq_lane_u64,
    vld1_u8, vld1q_u8, vld1q_u8_x4, vmovl_high_u16, vmovl_u8, vmovl_u16, vorrq_u8, vpaddq_u8, vqtbl1q_u8,
    vqtbl4q_u8, vqtbx4q_u8, vreinterpret_u64_u8, vreinterpretq_s8_u8, vreinterpretq_u64_u8, vst1q_u8,
    vst1q_u32, vsubq_u8, vtstq_u8,
};

use super::bits::PortablePacker;
use super::{AsciiClasses, Blocks, ByteBlock, INDICES};
use crate::simd::Neon;

const _: () =
    assert!(cfg!(target_endian = "little"), "bit i of a bitmap is byte i only in little-endian order");

impl Blocks for Neon {
    type Block = Quarters;
    type Packer = PortablePacker;

    #[inline(always)]
    fn load(self, bytes: &[u8; 64]) -> Quarters {
        Quarters(std::array::from_fn(|quarter| load(&bytes.as_chunks().0[quarter])))
    }

    /// As with AVX2: eight bits at a time by a table, and always eight times.
    #[inline(always)]
    fn push_ones(self, ones: u64, base: u32, indices: &mut Vec<u32>) {
        indices.reserve(64);
        let len = indices.len();
        // SAFETY: every processor of this architecture has NEON.
        let counts = unsafe { vget_lane_u64::<0>(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(ones)))) };
        // Byte i of the product is the number of bits up to and with byte i. Without this, each byte would wait for the
        // count of the one before, which takes a way through the vector registers.
        let ends = counts.wrapping_mul(0x0101_0101_0101_0101);
        let mut start = 0;
        for (byte, (bits, end)) in ones.to_le_bytes().into_iter().zip(ends.to_le_bytes()).enumerate() {
            // SAFETY: the table's entry is eight bytes long. There is room for 64 indices, of which each byte before
            // this one has used at most eight, so eight more fit.
            unsafe {
                let offsets = vmovl_u8(vld1_u8(INDICES.0[usize::from(bits)].as_ptr()));
                let bases = vdupq_n_u32(base + 8 * byte as u32);
                let out = indices.as_mut_ptr().add(len + start);
                vst1q_u32(out, vaddq_u32(vmovl_u16(vget_low_u16(offsets)), bases));
                vst1q_u32(out.add(4), vaddq_u32(vmovl_high_u16(offsets), bases));
            }
            start = usize::from(end);
        }
        // SAFETY: all indices up to there have been written.
        unsafe { indices.set_len(len + start) };
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

/// Four times 16 bytes.
#[derive(Clone, Copy)]
pub struct Quarters([uint8x16_t; 4]);

/// The body of a method.
macro_rules! with_neon {
    ($body:expr) => {
        // SAFETY: every processor of this architecture has NEON.
        unsafe { $body }
    };
}

impl Quarters {
    #[inline(always)]
    fn map(self, change: impl Fn(uint8x16_t) -> uint8x16_t) -> Self {
        Self(self.0.map(change))
    }

    /// The bytes that are all ones, where all others are 0.
    #[inline(always)]
    fn marked(self) -> u64 {
        const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        let [a, b, c, d] = self.map(|quarter| with_neon!(vandq_u8(quarter, load(&BITS)))).0;
        // Three sums of neighbours join eight bits each.
        with_neon!({
            let sums = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
            vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)))
        })
    }

    #[inline(always)]
    fn zip(self, other: Self, join: impl Fn(uint8x16_t, uint8x16_t) -> uint8x16_t) -> Self {
        Self(std::array::from_fn(|quarter| join(self.0[quarter], other.0[quarter])))
    }

    /// `table` indexed by the bytes below 128, 0 for others.
    #[inline(always)]
    fn look_up_low(self, table: &[u8; 128]) -> Self {
        let [first, second] = table.as_chunks::<64>().0 else { unreachable!("two times 64 entries") };
        let (first, second) = (load_table(first), load_table(second));
        self.map(|quarter| {
            with_neon!({
                let found = vqtbl4q_u8(first, quarter);
                vqtbx4q_u8(found, second, vsubq_u8(quarter, splat(64)))
            })
        })
    }
}

impl ByteBlock for Quarters {
    #[inline(always)]
    fn high(self) -> u64 {
        self.map(|quarter| with_neon!(vcltzq_s8(vreinterpretq_s8_u8(quarter)))).marked()
    }

    #[inline(always)]
    fn bit<const BIT: u32>(self) -> u64 {
        self.map(|quarter| with_neon!(vtstq_u8(quarter, splat(1 << BIT)))).marked()
    }

    #[inline(always)]
    fn equal(self, byte: u8) -> u64 {
        self.map(|quarter| with_neon!(vceqq_u8(quarter, splat(byte)))).marked()
    }

    #[inline(always)]
    fn equal_either(self, one: u8, other: u8) -> u64 {
        let is = |quarter, byte| with_neon!(vceqq_u8(quarter, splat(byte)));
        self.map(|quarter| with_neon!(vorrq_u8(is(quarter, one), is(quarter, other)))).marked()
    }

    #[inline(always)]
    fn not_zero(self) -> u64 {
        self.meets(self)
    }

    #[inline(always)]
    fn meets(self, other: Self) -> u64 {
        self.zip(other, |one, other| with_neon!(vtstq_u8(one, other))).marked()
    }

    #[inline(always)]
    fn within(self, low: u8, high: u8) -> u64 {
        self.map(|quarter| with_neon!(vcleq_u8(vsubq_u8(quarter, splat(low)), splat(high - low)))).marked()
    }

    #[inline(always)]
    fn within_either_case(self, low: u8, high: u8) -> u64 {
        self.map(|quarter| with_neon!(vorrq_u8(quarter, splat(0x20)))).within(low, high)
    }

    #[inline(always)]
    fn continuation(self) -> u64 {
        // As signed numbers, these bytes are the lowest.
        self.map(|quarter| with_neon!(vcltq_s8(vreinterpretq_s8_u8(quarter), vdupq_n_s8(0xC0_u8 as i8))))
            .marked()
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 256]) -> Self {
        let [ascii, others] = table.as_chunks::<128>().0 else { unreachable!("two times 128 entries") };
        let found = self.look_up_low(ascii);
        if self.high() == 0 {
            return found;
        }
        let others = self.map(|quarter| with_neon!(vsubq_u8(quarter, splat(128)))).look_up_low(others);
        found.zip(others, |one, other| with_neon!(vorrq_u8(one, other)))
    }

    #[inline(always)]
    fn ascii_classes(self, classes: &AsciiClasses) -> Self {
        let Some(ascii) = classes.of.first_chunk() else { unreachable!("256 entries") };
        self.look_up_low(ascii)
    }

    #[inline(always)]
    fn look_up_half(self, table: &[u8; 16]) -> Self {
        self.map(|quarter| with_neon!(vqtbl1q_u8(load(table), quarter)))
    }

    #[inline(always)]
    fn behind(self, before: Self) -> Self {
        let [a, b, c, d] = self.0;
        let before = Self([before.0[3], a, b, c]);
        before.zip(Self([a, b, c, d]), |before, quarter| with_neon!(vextq_u8::<15>(before, quarter)))
    }

    #[inline(always)]
    fn leads(self, first: &[u8; 64], after: Self, second: &[u8; 64]) -> u64 {
        let (first, second) = (load_table(first), load_table(second));
        // Beyond the table, a byte finds 0.
        let leads = self.map(|quarter| with_neon!(vqtbl4q_u8(first, vsubq_u8(quarter, splat(0xC0)))));
        let after = after.map(|quarter| with_neon!(vqtbl4q_u8(second, vandq_u8(quarter, splat(0x3F)))));
        leads.meets(after)
    }

    #[inline(always)]
    fn look_up_first_of_three(self, table: &[u8; 16]) -> Self {
        self.map(|quarter| with_neon!(vqtbl1q_u8(load(table), vsubq_u8(quarter, splat(0xE0)))))
    }

    #[inline(always)]
    fn bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (part, quarter) in bytes.as_chunks_mut::<16>().0.iter_mut().zip(self.0) {
            // SAFETY: a quarter is 16 bytes.
            unsafe { vst1q_u8(part.as_mut_ptr(), quarter) };
        }
        bytes
    }
}

#[inline(always)]
fn splat(byte: u8) -> uint8x16_t {
    with_neon!(vdupq_n_u8(byte))
}

#[inline(always)]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: there are 16 bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline(always)]
fn load_table(table: &[u8; 64]) -> uint8x16x4_t {
    // SAFETY: there are 64 bytes.
    unsafe { vld1q_u8_x4(table.as_ptr()) }
}
