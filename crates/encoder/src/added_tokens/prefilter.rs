//! Where an added token may begin, by its first two bytes.
//!
//! An automaton reads a byte in about the time in which all else encodes one. Most added tokens begin with two bytes
//! that are rare together, such as `<|` or two spaces, so it is asked only where they stand.

use std::collections::BTreeSet;

use crate::simd::blocks::{BLOCK, Blocks, ByteBlock, block_at, part};
use crate::simd::{Simd, Work};

/// Bytes of text that are looked at together.
const CHUNK: usize = 32 * BLOCK;

/// The offsets in a chunk, a bit for each.
type Places = [u64; CHUNK / BLOCK];

/// Finds the offsets at which one of some spellings may begin.
pub struct Prefilter {
    simd: Simd,
    /// Each first byte has a bit, which the bytes that may come second have too. Eight or more share them.
    first: [u8; 256],
    second: [u8; 256],
    shortcut: Option<Shortcut>,
}

/// The shortcut that shows without a look at the tables, at least for most blocks, that nothing begins there.
#[derive(Clone, Copy)]
enum Shortcut {
    /// All pairs of first and second bytes, if there are no more than two: then the tables are not needed.
    Pairs([(u8, u8); 2]),
    /// All first bytes, if there are no more than two: most often one that is rare, such as `<`.
    First(u8, u8),
}

impl Prefilter {
    /// For spellings that are not empty.
    pub fn new(spellings: &[String], simd: Simd) -> Self {
        let pair = |spelling: &String| (spelling.as_bytes()[0], spelling.as_bytes().get(1).copied());
        let pairs: BTreeSet<(u8, Option<u8>)> = spellings.iter().map(pair).collect();
        let (mut first, mut second) = ([0; 256], [0; 256]);
        let mut distinct = Vec::new();
        for (left, right) in &pairs {
            let bit = &mut first[usize::from(*left)];
            if *bit == 0 {
                *bit = 1 << (distinct.len() % 8);
                distinct.push(*left);
            }
            match right {
                Some(right) => second[usize::from(*right)] |= *bit,
                None => second.iter_mut().for_each(|second| *second |= *bit),
            }
        }
        let pairs: Option<Vec<_>> = pairs.into_iter().map(|(left, right)| Some((left, right?))).collect();
        let shortcut = match (pairs.as_deref(), &*distinct) {
            (Some(&[pair]), _) => Some(Shortcut::Pairs([pair, pair])),
            (Some(&[one, other]), _) => Some(Shortcut::Pairs([one, other])),
            (_, &[one]) => Some(Shortcut::First(one, one)),
            (_, &[one, other]) => Some(Shortcut::First(one, other)),
            _ => None,
        };
        Self { simd, first, second, shortcut }
    }

    /// The offsets in a text.
    pub fn positions<'a>(&'a self, text: &'a [u8]) -> CandidatesIn<'a> {
        CandidatesIn { prefilter: self, text, chunk: None, positions: [0; CHUNK / BLOCK] }
    }

    /// The offsets in a block, which one byte follows.
    #[inline(always)]
    fn places_in(&self, blocks: impl Blocks, bytes: &[u8; BLOCK + 1]) -> u64 {
        let (block, after) = (blocks.load(part(bytes, 0)), blocks.load(part(bytes, 1)));
        match self.shortcut {
            Some(Shortcut::Pairs([one, other])) => {
                block.equal(one.0) & after.equal(one.1) | block.equal(other.0) & after.equal(other.1)
            }
            Some(Shortcut::First(one, other)) if block.equal_either(one, other) == 0 => 0,
            _ => block.look_up(&self.first).meets(after.look_up(&self.second)),
        }
    }
}

/// The offsets in a text at which something may begin.
pub struct CandidatesIn<'a> {
    prefilter: &'a Prefilter,
    text: &'a [u8],
    /// Where the present chunk begins, and its offsets.
    chunk: Option<usize>,
    positions: Places,
}

impl CandidatesIn<'_> {
    /// The first offset from `from` on, if there is one. Going backwards takes long.
    #[inline]
    pub fn first_from(&mut self, mut from: usize) -> Option<usize> {
        while from < self.text.len() {
            let chunk = from - from % CHUNK;
            if self.chunk != Some(chunk) {
                self.find(chunk);
            }
            let block = from % CHUNK / BLOCK;
            let rest = self.positions[block] >> (from % BLOCK);
            if rest != 0 {
                return Some(from + rest.trailing_zeros() as usize);
            }
            // In a loop of its own: to go through the one around it for each block takes a hundredth of all.
            let blocks = &self.positions[block + 1..];
            match blocks.iter().position(|positions| *positions != 0) {
                Some(empty) => {
                    let block = block + 1 + empty;
                    return Some(chunk + block * BLOCK + self.positions[block].trailing_zeros() as usize);
                }
                None => from = chunk + CHUNK,
            }
        }
        None
    }

    #[inline(never)]
    fn find(&mut self, chunk: usize) {
        let Self { prefilter, text, .. } = *self;
        self.positions = prefilter.simd.run(Find { prefilter, text, from: chunk });
        self.chunk = Some(chunk);
    }
}

/// Finds the offsets in a chunk.
struct Find<'a> {
    prefilter: &'a Prefilter,
    text: &'a [u8],
    from: usize,
}

impl Work for Find<'_> {
    type Output = Places;

    #[inline(always)]
    fn run(self, blocks: impl Blocks) -> Places {
        let Self { prefilter, text, from } = self;
        let mut all = [0; CHUNK / BLOCK];
        for (at, positions) in (from..text.len()).step_by(BLOCK).zip(&mut all) {
            *positions = if at + BLOCK < text.len() {
                prefilter.places_in(blocks, block_at(text, at))
            } else {
                let rest = &text[at..];
                let mut padded = [0; BLOCK + 1];
                padded[..rest.len()].copy_from_slice(rest);
                let last = rest.len() - 1;
                // The bytes behind the end may be any.
                let begins_last = prefilter.first[usize::from(rest[last])] != 0;
                let before = !(!0 << last);
                prefilter.places_in(blocks, &padded) & before | u64::from(begins_last) << last
            };
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn positions(prefilter: &Prefilter, text: &str) -> Vec<usize> {
        let mut positions = prefilter.positions(text.as_bytes());
        let mut from = 0;
        std::iter::from_fn(|| {
            let position = positions.first_from(from)?;
            from = position + 1;
            Some(position)
        })
        .collect()
    }

    proptest! {
        /// With fewer first bytes than there are bits, nothing else is found.
        #[test]
        fn the_places_are_those_of_the_first_two_bytes_of_spellings(
            spellings in prop::collection::vec(prop_oneof!["[ab<é\n ]{1,3}", "<[ab< ]{0,2}", "<a|  "], 1..8),
            text in "[abcd<é\n ]{0,5000}",
        ) {
            let begins = |position: &usize| {
                let rest = &text.as_bytes()[*position..];
                // The bytes behind the end may be any.
                spellings.iter().map(String::as_bytes).any(|spelling| {
                    let pair = &spelling[..spelling.len().min(2).min(rest.len())];
                    rest.starts_with(pair)
                })
            };
            let expected: Vec<usize> = (0..text.len()).filter(begins).collect();
            for simd in Simd::all() {
                prop_assert_eq!(&positions(&Prefilter::new(&spellings, simd), &text), &expected);
            }
        }

        #[test]
        fn every_place_where_one_of_many_spellings_begins_is_found(
            spellings in prop::collection::vec("[a-z<é\n ]{1,2}", 20..40),
            text in "[a-z<é\n ]{0,500}",
        ) {
            for simd in Simd::all() {
                let found = positions(&Prefilter::new(&spellings, simd), &text);
                for position in 0..text.len() {
                    let rest = &text.as_bytes()[position..];
                    let begins = spellings.iter().any(|spelling| rest.starts_with(spelling.as_bytes()));
                    prop_assert!(!begins || found.binary_search(&position).is_ok(), "{} at {}", text, position);
                }
            }
        }
    }
}
