//! Cuts between three-byte characters that no merge joins.
//!
//! Chinese, Japanese and Thai are written without spaces, so pieces in these scripts are whole clauses: hardly ever met
//! twice, which makes a cache of them useless. Nearly all their characters take three bytes. Cut where no merge can
//! join two of them, clauses become groups of a few characters, which are short pieces like any others.
//!
//! The vocabulary decides which pairs of characters are joined; each thread remembers the answers.

use super::cuts::{Cuts, inside};
use super::kernel::Kernel;

/// The bytes of each of these characters.
pub const WIDTH: usize = 3;

/// Cuts on one thread. It remembers of the pairs of characters met lately whether they are joined: a direct-mapped table
/// whose 128 KiB stay in the L2 cache.
pub struct GroupCutter {
    /// The six bytes of a pair, and one bit for the answer.
    memo: Box<[u64]>,
}

const MEMO_BITS: u32 = 14;

impl Default for GroupCutter {
    fn default() -> Self {
        Self { memo: vec![u64::MAX; 1 << MEMO_BITS].into_boxed_slice() }
    }
}

impl GroupCutter {
    /// Adds to the cuts of a padded text those between two three-byte characters that no merge joins: `joins` says of
    /// two whether one may.
    pub fn cut(
        &mut self,
        kernel: Kernel,
        text: &[u8],
        cuts: &mut Cuts,
        joins: impl Fn([u8; WIDTH], [u8; WIDTH]) -> bool,
    ) {
        match kernel {
            Kernel::Portable => self.cut_blocks(leads, text, cuts, joins),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2(avx2) => match avx2.avx512() {
                // SAFETY: having an `Avx512` proves that the processor has these features.
                Some(avx512) => unsafe { vector::avx512(avx512, self, text, cuts, joins) },
                // SAFETY: the same of an `Avx2`.
                None => unsafe { vector::avx2(avx2, self, text, cuts, joins) },
            },
        }
    }

    /// `leads` says which of 64 bytes begin a three-byte character.
    #[inline(always)]
    fn cut_blocks(
        &mut self,
        leads: impl Fn(&[u8; 64]) -> u64,
        text: &[u8],
        cuts: &mut Cuts,
        joins: impl Fn([u8; WIDTH], [u8; WIDTH]) -> bool,
    ) {
        let n = cuts.text_len();
        let mut before = 0;
        for (index, word) in cuts.words_mut().iter_mut().enumerate() {
            let at = index * 64;
            let Some(block) = text.get(at..).and_then(<[u8]>::first_chunk) else { return };
            let leads = inside(leads(block), at, n);
            let between = leads & (leads << WIDTH | before >> (64 - WIDTH)) & !*word;
            before = leads;
            if between != 0 {
                *word |= self.parted(text, at, between, &joins);
            }
        }
    }

    /// Those of the places between two characters where no merge joins them; bit 0 is the place `at`.
    #[inline(never)]
    fn parted(
        &mut self,
        text: &[u8],
        at: usize,
        between: u64,
        joins: impl Fn([u8; WIDTH], [u8; WIDTH]) -> bool,
    ) -> u64 {
        let mut parted = between;
        let mut rest = between;
        while rest != 0 {
            let place = rest.trailing_zeros();
            rest &= rest - 1;
            // No branch on the answer, which is unpredictable.
            let joined = self.recall_or(&text[at + place as usize - WIDTH..], &joins);
            parted &= !(u64::from(joined) << place);
        }
        parted
    }

    /// Whether the two characters that a padded text begins with are joined.
    #[inline(always)]
    fn recall_or(&mut self, text: &[u8], joins: impl Fn([u8; WIDTH], [u8; WIDTH]) -> bool) -> bool {
        let Some(bytes) = text.first_chunk() else { return true };
        let pair = u64::from_le_bytes(*bytes) << 16 >> 15;
        let slot = &mut self.memo[(pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - MEMO_BITS)) as usize];
        if *slot & !1 != pair {
            let [left, right, ..] = bytes.as_chunks().0 else { unreachable!("eight bytes") };
            *slot = pair | u64::from(joins(*left, *right));
        }
        *slot & 1 == 1
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.memo)
    }
}

/// Which bytes begin a three-byte character.
fn leads(block: &[u8; 64]) -> u64 {
    if block.is_ascii() {
        return 0;
    }
    block.iter().enumerate().map(|(place, byte)| u64::from(byte >> 4 == 0xE) << place).sum()
}

#[cfg(target_arch = "x86_64")]
mod vector {
    use super::{Cuts, GroupCutter, WIDTH};
    use crate::encode::blocks::{Blocks, ByteBlock};
    use crate::encode::kernel::{Avx2, Avx512};

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn avx2(
        blocks: Avx2,
        groups: &mut GroupCutter,
        text: &[u8],
        cuts: &mut Cuts,
        joins: impl Fn([u8; WIDTH], [u8; WIDTH]) -> bool,
    ) {
        groups.cut_blocks(|block| blocks.load(block).within(0xE0, 0xEF), text, cuts, joins);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn avx512(
        blocks: Avx512,
        groups: &mut GroupCutter,
        text: &[u8],
        cuts: &mut Cuts,
        joins: impl Fn([u8; WIDTH], [u8; WIDTH]) -> bool,
    ) {
        groups.cut_blocks(|block| blocks.load(block).within(0xE0, 0xEF), text, cuts, joins);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::encode::split::PADDING;

    proptest! {
        #[test]
        fn groups_are_cut_where_characters_are_not_joined(
            text in "[aé日本語のは、😀]{0,200}",
            pieces: [bool; 200],
            joined in prop::collection::hash_set("[日本語のは、]{2}", 0..20),
        ) {
            let n = text.len();
            let mut expected: BTreeSet<u32> =
                text.char_indices().zip(pieces).filter(|(_, is_cut)| *is_cut).map(|((at, _), _)| at as u32).collect();
            expected.remove(&0);
            let pieces = expected.clone();
            expected.extend((n > 0).then_some(n as u32));
            let joins = |left: [u8; WIDTH], right: [u8; WIDTH]| {
                joined.contains(std::str::from_utf8(&[left, right].concat()).unwrap())
            };
            for ((_, left), (at, right)) in text.char_indices().zip(text.char_indices().skip(1)) {
                if left.len_utf8() == 3 && right.len_utf8() == 3 && !joined.contains(&format!("{left}{right}")) {
                    expected.insert(at as u32);
                }
            }
            // What follows a text does not count.
            let padded = [text.as_bytes(), "日".repeat(PADDING).as_bytes()].concat();
            for kernel in Kernel::all() {
                let (mut cutter, mut cuts, mut ends) = (GroupCutter::default(), Cuts::default(), Vec::new());
                cuts.begin_uncut(n);
                for place in &pieces {
                    cuts.add(*place as usize);
                }
                for _ in 0..2 {
                    cutter.cut(kernel, &padded, &mut cuts, joins);
                    cuts.write_ends(kernel, &mut ends);
                    prop_assert_eq!(&ends, &expected.iter().copied().collect::<Vec<_>>());
                }
            }
        }
    }
}
