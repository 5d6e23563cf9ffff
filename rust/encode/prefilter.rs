//! Where an added token may begin, by its first two bytes.
//!
//! An automaton reads a byte in about the time in which all else encodes one. Most added tokens begin with two bytes
//! that are rare together, such as `<|` or two spaces, so it is asked only where they stand.

use std::collections::BTreeSet;

use crate::encode::kernel::Kernel;
use crate::encode::kernel::blocks::{BLOCK, Blocks, ByteBlock, Work, block_at, part};

/// Bytes of text that are looked at together.
const CHUNK: usize = 32 * BLOCK;

/// The places in a chunk, a bit for each.
type Places = [u64; CHUNK / BLOCK];

/// Finds the places at which certain bytes stand, and others after these.
pub struct Prefilter {
    /// Each first byte has a bit, which the bytes that may come second have too. Eight or more share them.
    first: [u8; 256],
    second: [u8; 256],
    shortcut: Option<Shortcut>,
}

/// What shows without a look at the tables, at least for most blocks, that nothing begins there.
#[derive(Clone, Copy)]
enum Shortcut {
    /// All pairs of first and second bytes, if there are no more than two: then the tables are not needed.
    Pairs([(u8, u8); 2]),
    /// All first bytes, if there are no more than two: most often one that is rare, such as `<`.
    First(u8, u8),
}

impl Prefilter {
    /// For each first byte with one that may follow, or none if any may.
    pub fn new(pairs: impl Iterator<Item = (u8, Option<u8>)>) -> Self {
        let pairs: BTreeSet<_> = pairs.collect();
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
        Self { first, second, shortcut }
    }

    /// The places of a text.
    pub fn places<'a>(&'a self, kernel: Kernel, text: &'a [u8]) -> PlacesIn<'a> {
        PlacesIn { prefilter: self, kernel, text, chunk: None, places: [0; CHUNK / BLOCK] }
    }
}

/// The places of a text at which something may begin.
pub struct PlacesIn<'a> {
    prefilter: &'a Prefilter,
    kernel: Kernel,
    text: &'a [u8],
    /// Where the present chunk begins, and its places.
    chunk: Option<usize>,
    places: Places,
}

impl PlacesIn<'_> {
    /// The first place from `from` on, if there is one. Going backwards takes long.
    #[inline]
    pub fn next(&mut self, mut from: usize) -> Option<usize> {
        while from < self.text.len() {
            let chunk = from - from % CHUNK;
            if self.chunk != Some(chunk) {
                self.find(chunk);
            }
            let block = from % CHUNK / BLOCK;
            let rest = self.places[block] >> (from % BLOCK);
            if rest != 0 {
                return Some(from + rest.trailing_zeros() as usize);
            }
            let blocks = &self.places[block + 1..];
            match blocks.iter().position(|places| *places != 0) {
                Some(empty) => {
                    let block = block + 1 + empty;
                    return Some(chunk + block * BLOCK + self.places[block].trailing_zeros() as usize);
                }
                None => from = chunk + CHUNK,
            }
        }
        None
    }

    #[inline(never)]
    fn find(&mut self, chunk: usize) {
        let Self { prefilter, kernel, text, ref mut places, .. } = *self;
        kernel.run(Find { prefilter, text, from: chunk, places });
        self.chunk = Some(chunk);
    }
}

/// Finds the places of a chunk.
struct Find<'a> {
    prefilter: &'a Prefilter,
    text: &'a [u8],
    from: usize,
    places: &'a mut Places,
}

impl Work for Find<'_> {
    #[inline(always)]
    fn run(self, blocks: impl Blocks) {
        let Self { prefilter, text, from, places } = self;
        *places = [0; CHUNK / BLOCK];
        for (at, places) in (from..text.len()).step_by(BLOCK).zip(places) {
            *places = if at + BLOCK < text.len() {
                prefilter.places_in(blocks, block_at(text, at))
            } else {
                let rest = &text[at..];
                let mut padded = [0; BLOCK + 1];
                padded[..rest.len()].copy_from_slice(rest);
                let last = rest.len() - 1;
                // What is behind the end may be any byte.
                let begins_last = prefilter.first[usize::from(rest[last])] != 0;
                let before = !(!0 << last);
                prefilter.places_in(blocks, &padded) & before | u64::from(begins_last) << last
            };
        }
    }
}

impl Prefilter {
    /// The places in a block, which one byte follows.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefilter(spellings: &[String]) -> Prefilter {
        Prefilter::new(spellings.iter().map(|spelling| {
            let bytes = spelling.as_bytes();
            (bytes[0], bytes.get(1).copied())
        }))
    }

    fn places(prefilter: &Prefilter, kernel: Kernel, text: &str) -> Vec<usize> {
        let mut places = prefilter.places(kernel, text.as_bytes());
        let mut from = 0;
        std::iter::from_fn(|| {
            let place = places.next(from)?;
            from = place + 1;
            Some(place)
        })
        .collect()
    }

    proptest! {
        #[test]
        fn every_place_where_a_spelling_begins_is_found(
            spellings in prop::collection::vec(prop_oneof!["[ab<é\n ]{1,3}", "<[ab< ]{0,2}"], 1..20),
            text in "[abcd<éж日\n ]{0,5000}",
        ) {
            let prefilter = prefilter(&spellings);
            let found = places(&prefilter, Kernel::Portable, &text);
            for place in 0..text.len() {
                let rest = &text.as_bytes()[place..];
                let begins = spellings.iter().any(|spelling| rest.starts_with(spelling.as_bytes()));
                prop_assert!(!begins || found.binary_search(&place).is_ok(), "{} at {}", text, place);
            }
            for kernel in Kernel::all() {
                prop_assert_eq!(&places(&prefilter, kernel, &text), &found, "{}", kernel.name());
            }
        }

        #[test]
        fn of_one_spelling_only_its_first_two_bytes_are(text in "[ab<]{0,300}") {
            let prefilter = prefilter(&["<a".to_owned()]);
            let ends_in_first = text.ends_with('<').then(|| text.len() - 1);
            let begins = text.match_indices("<a").map(|(place, _)| place);
            let expected: Vec<usize> = begins.chain(ends_in_first).collect();
            for kernel in Kernel::all() {
                prop_assert_eq!(&places(&prefilter, kernel, &text), &expected);
            }
        }
    }
}
