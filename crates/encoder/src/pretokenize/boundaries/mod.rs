//! Where a text is cut into pre-tokens, as a bitmap: sets of cuts are joined by a word operation for each 64 bytes,
//! where sorted lists would have to be merged.

pub mod class_cutter;
pub mod group_cutter;

use crate::simd::blocks::Blocks;
use crate::simd::{Simd, Work};

/// One bit for each byte of a text: whether a pre-token begins there that is not the first.
#[derive(Default)]
pub struct Boundaries {
    words: Vec<u64>,
    /// The bytes of the text.
    len: usize,
}

impl Boundaries {
    /// Begins with a text of `len` bytes, whose words are to be pushed.
    pub fn begin(&mut self, len: usize) {
        self.len = len;
        self.words.clear();
        self.words.reserve(len.div_ceil(64));
    }

    /// Begins with a text of `len` bytes without cuts.
    pub fn begin_uncut(&mut self, len: usize) {
        self.begin(len);
        self.words.resize(len.div_ceil(64), 0);
    }

    /// The cuts in the next 64 bytes. A cut in front of the text's first byte, or after its last, does not count.
    #[inline(always)]
    pub fn push(&mut self, mut word: u64) {
        let at = self.words.len() * 64;
        if at == 0 {
            word &= !1;
        }
        self.words.push(inside(word, at, self.len));
    }

    /// Adds a cut inside the text, in a word that is there already.
    #[inline(always)]
    pub fn add(&mut self, bit: usize) {
        self.words[bit / 64] |= 1 << (bit % 64);
    }

    /// Removes all cuts at or behind an offset but the first; where the text begins there is one already.
    pub fn keep_first_from(&mut self, bit: usize) {
        let mut has_first = bit == 0;
        for (index, word) in self.words.iter_mut().enumerate().skip(bit / 64) {
            let from = if index == bit / 64 { !0 << (bit % 64) } else { !0 };
            let boundaries = *word & from;
            *word &= !if has_first { boundaries } else { boundaries & boundaries.wrapping_sub(1) };
            has_first |= boundaries != 0;
        }
    }

    /// The length of the text.
    pub fn text_len(&self) -> usize {
        self.len
    }

    /// The words, to add cuts.
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Appends the ends of the pre-tokens of a text that begins at `start`, in ascending order; an empty text has none.
    pub fn push_ends(&self, simd: Simd, start: u32, ends: &mut Vec<u32>) {
        simd.run(PushOnes { words: &self.words, start, bits: ends });
        if self.len > 0 {
            ends.push(start + self.len as u32);
        }
    }
}

/// The bits of 64 bytes from `at` on that are inside a text of `len` bytes.
#[inline(always)]
pub fn inside(word: u64, at: usize, len: usize) -> u64 {
    if len - at < 64 { word & ((1 << (len - at)) - 1) } else { word }
}

/// Appends the indices of the bits that are set in some words, of which the first begins at `start`.
struct PushOnes<'a> {
    words: &'a [u64],
    start: u32,
    bits: &'a mut Vec<u32>,
}

impl Work for PushOnes<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, blocks: impl Blocks) {
        for (index, word) in self.words.iter().enumerate() {
            blocks.push_ones(*word, self.start + (index * 64) as u32, self.bits);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ends_are_the_cuts_inside_the_text_and_its_end(
            words in prop::collection::vec(any::<u64>(), 0..5),
            short_of in 0usize..64,
            added in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
            from in any::<prop::sample::Index>(),
        ) {
            let len = (words.len() * 64).saturating_sub(short_of);
            let mut boundaries = Boundaries::default();
            boundaries.begin(len);
            for word in &words {
                boundaries.push(*word);
            }
            let mut expected: Vec<u32> = (1..len as u32)
                .filter(|bit| words[*bit as usize / 64] >> (bit % 64) & 1 == 1)
                .chain((len > 0).then_some(len as u32))
                .collect();
            prop_assert_eq!(boundaries.is_empty(), expected.len() < 2);
            if len > 1 {
                for bit in added.iter().map(|index| 1 + index.index(len - 1)) {
                    boundaries.add(bit);
                    expected.push(bit as u32);
                }
            }
            expected.sort_unstable();
            expected.dedup();
            for simd in Simd::all() {
                let mut ends = vec![7];
                boundaries.push_ends(simd, 7, &mut ends);
                let moved: Vec<u32> = [0].iter().chain(&expected).map(|end| end + 7).collect();
                prop_assert_eq!(ends, moved);
            }
            let from = from.index(len + 1);
            boundaries.keep_first_from(from);
            let first = expected.iter().copied().find(|end| *end as usize >= from && from > 0);
            expected.retain(|end| (*end as usize) < from || *end as usize == len || Some(*end) == first);
            let mut ends = Vec::new();
            boundaries.push_ends(Simd::Scalar, 0, &mut ends);
            prop_assert_eq!(&ends, &expected);
        }
    }
}
