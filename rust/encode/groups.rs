//! Cuts between three-byte characters that no merge joins.
//!
//! Chinese, Japanese and Thai are written without spaces, so pieces in these scripts are whole clauses: hardly ever met
//! twice, which makes a cache of them useless. Nearly all their characters take three bytes. Cut where no merge can
//! join two of them, clauses become groups of a few characters, which are short pieces like any others.
//!
//! The vocabulary decides which pairs of characters are joined; each thread remembers the answers.

use super::kernel::Kernel;

/// The bytes of each of these characters.
pub const WIDTH: usize = 3;

/// Cuts on one thread.
#[derive(Default)]
pub struct GroupCutter {
    memo: PairMemo,
    cuts: Vec<u32>,
    merged: Vec<u32>,
}

impl GroupCutter {
    /// Adds to the ends of the pieces of a padded text of `n` bytes those of the groups in them. `joins` says of two
    /// three-byte characters whether a merge may join them.
    pub fn cut(
        &mut self,
        kernel: Kernel,
        text: &[u8],
        n: usize,
        ends: &mut Vec<u32>,
        joins: impl Fn([u8; WIDTH], [u8; WIDTH]) -> bool,
    ) {
        let Self { memo, cuts, merged } = self;
        cuts.clear();
        candidates(kernel, text, n, cuts);
        // Not `retain`, which branches on what is unpredictable.
        let mut count = 0;
        for index in 0..cuts.len() {
            let place = cuts[index];
            cuts[count] = place;
            count += usize::from(!memo.recall_or(&text[place as usize - WIDTH..], &joins));
        }
        cuts.truncate(count);
        if !cuts.is_empty() {
            merge(ends, cuts, merged);
            std::mem::swap(ends, merged);
        }
    }

    /// Frees the buffers that a long text has grown.
    pub fn shrink(&mut self) {
        (self.cuts, self.merged) = Default::default();
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.memo.0) + (self.cuts.capacity() + self.merged.capacity()) * size_of::<u32>()
    }
}

/// Appends the places between two three-byte characters.
fn candidates(kernel: Kernel, text: &[u8], n: usize, places: &mut Vec<u32>) {
    match kernel {
        Kernel::Portable => {
            let is_lead = |at: usize| matches!(text[at], 0xE0..=0xEF);
            for block in (0..n).step_by(64).map(|at| at..n.min(at + 64)) {
                if !text[block.clone()].is_ascii() {
                    let between = block.filter(|at| *at >= WIDTH && is_lead(*at) && is_lead(*at - WIDTH));
                    places.extend(between.map(|at| at as u32));
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx2(avx2) => match avx2.avx512() {
            // SAFETY: having an `Avx512` proves that the processor has these features.
            Some(avx512) => unsafe { vector::avx512(avx512, text, n, places) },
            // SAFETY: the same of an `Avx2`.
            None => unsafe { vector::avx2(avx2, text, n, places) },
        },
    }
}

#[cfg(target_arch = "x86_64")]
mod vector {
    use super::WIDTH;
    use crate::encode::blocks::{Blocks, Bytes};
    use crate::encode::kernel::{Avx2, Avx512};

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn avx2(blocks: Avx2, text: &[u8], n: usize, places: &mut Vec<u32>) {
        candidates(blocks, text, n, places);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn avx512(blocks: Avx512, text: &[u8], n: usize, places: &mut Vec<u32>) {
        candidates(blocks, text, n, places);
    }

    /// 64 bytes at a time.
    #[inline(always)]
    fn candidates(blocks: impl Blocks, text: &[u8], n: usize, places: &mut Vec<u32>) {
        let mut before = 0;
        for at in (0..n).step_by(64) {
            let Some(block) = text[at..].first_chunk() else { return };
            let mut leads = blocks.load(block).within(0xE0, 0xEF);
            if n - at < 64 {
                leads = blocks.bzhi(leads, (n - at) as u32);
            }
            let between = leads & (leads << WIDTH | before >> (64 - WIDTH));
            before = leads;
            if between != 0 {
                blocks.push_ones(between, at as u32, places);
            }
        }
    }
}

/// Replaces `merged` by the numbers of two ascending lists in ascending order, those in both once.
fn merge(ends: &[u32], cuts: &[u32], merged: &mut Vec<u32>) {
    // Ends are copied so many at a time, without a branch on how many of them come before the next cut.
    const EIGHT: usize = 8;
    merged.clear();
    merged.reserve(ends.len() + cuts.len() + EIGHT);
    let mut rest = ends;
    for cut in cuts {
        while let Some(eight) = rest.first_chunk::<EIGHT>() {
            let before = eight.iter().map(|end| u32::from(end < cut)).sum::<u32>() as usize;
            let len = merged.len() + before;
            merged.extend_from_slice(eight);
            merged.truncate(len);
            rest = &rest[before..];
            if before < EIGHT {
                break;
            }
        }
        if rest.len() < EIGHT {
            let (before, after) = rest.split_at(rest.partition_point(|end| end < cut));
            merged.extend_from_slice(before);
            rest = after;
        }
        merged.push(*cut);
        merged.truncate(merged.len() - usize::from(rest.first() == Some(cut)));
    }
    merged.extend_from_slice(rest);
}

/// Whether pairs of characters are joined, for those met lately. Direct-mapped; its 128 KiB stay in the L2 cache.
struct PairMemo(Box<[u64]>);

const MEMO_BITS: u32 = 14;

impl Default for PairMemo {
    fn default() -> Self {
        Self(vec![u64::MAX; 1 << MEMO_BITS].into_boxed_slice())
    }
}

impl PairMemo {
    /// Whether the two characters that a padded text begins with are joined.
    #[inline(always)]
    fn recall_or(&mut self, text: &[u8], joins: impl Fn([u8; WIDTH], [u8; WIDTH]) -> bool) -> bool {
        let Some(bytes) = text.first_chunk() else { return true };
        // The six bytes of the pair, and one bit for the answer.
        let pair = u64::from_le_bytes(*bytes) << 16 >> 15;
        let slot = &mut self.0[(pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - MEMO_BITS)) as usize];
        if *slot & !1 != pair {
            let [left, right, ..] = bytes.as_chunks().0 else { unreachable!("eight bytes") };
            *slot = pair | u64::from(joins(*left, *right));
        }
        *slot & 1 == 1
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
            let mut ends: Vec<u32> =
                text.char_indices().zip(pieces).filter(|(_, is_end)| *is_end).map(|((at, _), _)| at as u32).collect();
            ends.retain(|end| *end > 0);
            ends.extend((!text.is_empty()).then_some(text.len() as u32));
            let joins = |left: [u8; WIDTH], right: [u8; WIDTH]| {
                joined.contains(std::str::from_utf8(&[left, right].concat()).unwrap())
            };
            let mut expected: BTreeSet<u32> = ends.iter().copied().collect();
            for ((_, left), (at, right)) in text.char_indices().zip(text.char_indices().skip(1)) {
                if left.len_utf8() == 3 && right.len_utf8() == 3 && !joined.contains(&format!("{left}{right}")) {
                    expected.insert(at as u32);
                }
            }
            // What follows a text does not count.
            let padded = [text.as_bytes(), "日".repeat(PADDING).as_bytes()].concat();
            for kernel in Kernel::all() {
                let (mut cutter, mut found) = (GroupCutter::default(), ends.clone());
                for _ in 0..2 {
                    cutter.cut(kernel, &padded, text.len(), &mut found, joins);
                    prop_assert_eq!(&found, &expected.iter().copied().collect::<Vec<_>>());
                }
            }
        }
    }
}
