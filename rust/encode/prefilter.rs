//! Where an added token may begin, by its first two bytes.
//!
//! An automaton reads a byte in about the time in which all else encodes one. Most added tokens begin with two bytes
//! that are rare together, such as `<|` or two spaces, so it is asked only where they stand.

use std::collections::BTreeSet;

use crate::encode::kernel::Kernel;
use crate::encode::kernel::blocks::{BLOCK, Blocks, ByteBlock, Work, block_at};

/// Bytes of text that are looked at together.
pub const CHUNK: usize = 32 * BLOCK;

/// The places in a chunk, a bit for each.
pub type Places = [u64; CHUNK / BLOCK];

/// Finds the places at which one of some spellings may begin.
pub struct Prefilter {
    kernel: Kernel,
    /// Each first byte has a bit, which the bytes that may come second have too. Eight or more share them.
    first: [u8; 256],
    second: [u8; 256],
    /// What shows in most blocks, without a look at the tables, that nothing begins there.
    shortcut: Option<Shortcut>,
}

#[derive(Clone, Copy)]
enum Shortcut {
    /// All pairs of first and second bytes, if there are no more than two: then the tables are not needed.
    Pairs([(u8, u8); 2]),
    /// All first bytes, if there are no more than two: most often one that is rare, such as `<`.
    First(u8, u8),
}

impl Prefilter {
    /// For spellings that are not empty.
    pub fn new(spellings: &[String], kernel: Kernel) -> Self {
        let pairs =
            spellings.iter().map(|spelling| (spelling.as_bytes()[0], spelling.as_bytes().get(1).copied()));
        let pairs: BTreeSet<(u8, Option<u8>)> = pairs.collect();
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
        Self { kernel, first, second, shortcut }
    }

    /// The places in the chunk of a text that begins at `from`; none behind the text's end.
    pub fn places(&self, text: &[u8], from: usize) -> Places {
        let mut places = [0; CHUNK / BLOCK];
        self.kernel.run(Find { prefilter: self, text, from, places: &mut places });
        places
    }
}

struct Find<'a> {
    prefilter: &'a Prefilter,
    text: &'a [u8],
    from: usize,
    places: &'a mut Places,
}

impl Work for Find<'_> {
    #[inline(always)]
    fn run(self, blocks: impl Blocks) {
        let Self { prefilter: Prefilter { first, second, shortcut, .. }, text, from, places } = self;
        for (at, places) in (from..text.len()).step_by(BLOCK).zip(places) {
            *places = if at + BLOCK < text.len() {
                let block = blocks.load(block_at(text, at));
                let after = || blocks.load(block_at(text, at + 1));
                match *shortcut {
                    Some(Shortcut::Pairs(pairs)) => {
                        let after = after();
                        let [one, other] = pairs.map(|(left, right)| block.equal(left) & after.equal(right));
                        one | other
                    }
                    Some(Shortcut::First(one, other)) if block.equal_either(one, other) == 0 => 0,
                    _ => block.look_up(first).meets(after().look_up(second)),
                }
            } else {
                // What is behind the end may be any byte.
                let may_start = |place: usize| {
                    let after = text.get(place + 1).map_or(!0, |byte| second[usize::from(*byte)]);
                    first[usize::from(text[place])] & after != 0
                };
                (at..text.len()).map(|place| u64::from(may_start(place)) << (place - at)).sum()
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_place_where_a_spelling_begins_is_found(
            spellings in prop::collection::vec(prop_oneof!["[ab<é\n ]{1,3}", "<[ab< ]{0,2}"], 1..20),
            text in "[abcd<é\n ]{0,5000}",
        ) {
            for kernel in Kernel::all() {
                let prefilter = Prefilter::new(&spellings, kernel);
                for from in (0..text.len()).step_by(CHUNK) {
                    let places = prefilter.places(text.as_bytes(), from);
                    for place in from..text.len().min(from + CHUNK) {
                        let rest = &text.as_bytes()[place..];
                        let begins = spellings.iter().any(|spelling| rest.starts_with(spelling.as_bytes()));
                        let is_found = places[(place - from) / BLOCK] >> (place % BLOCK) & 1 == 1;
                        prop_assert!(is_found || !begins, "{} at {}", text, place);
                    }
                }
            }
        }

        #[test]
        fn of_one_spelling_only_its_first_two_bytes_are(text in "[ab<]{0,300}") {
            for kernel in Kernel::all() {
                let places = Prefilter::new(&["<a".to_owned()], kernel).places(text.as_bytes(), 0);
                let is_found = |place: &usize| places[place / BLOCK] >> (place % BLOCK) & 1 == 1;
                let found: Vec<usize> = (0..text.len()).filter(is_found).collect();
                let ends_in_first = text.ends_with('<').then(|| text.len() - 1);
                let begins = text.match_indices("<a").map(|(place, _)| place);
                let expected: Vec<usize> = begins.chain(ends_in_first).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
