//! Every splitter against the pre-tokenizers of the reference, piece by piece.
//!
//! `GRISTMILL_CASES` is the number of random texts for each family, `GRISTMILL_LENGTH` the length up to which all texts
//! over the alphabet of traps are tried, `GRISTMILL_FAMILIES` the names of the families to try (by default all). The
//! longest run so far:
//!
//! ```text
//! GRISTMILL_CASES=1000000 cargo test --release -p gristmill-encoder --lib -- --nocapture split::tests::differential
//! ```

mod classes;
mod differential;
#[path = "../../../tests/support/mixtures.rs"]
#[allow(dead_code)] // shared with the benchmarks
mod mixtures;
mod recognition;

use std::sync::Arc;

use serde_json::Value;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

use super::recognise::{Recognised, recognise};
use super::removed::Removed;
use super::stepwise::Steps;
use super::{Cuts, PADDING, SplitScratch, Splitter, Way};
use crate::cuts::cutter::Cutter;
use crate::kernel::Kernel;

/// The pre-tokenizers of real tokenizers, by name, one for each structure.
fn families() -> Vec<(String, Value)> {
    let all: serde_json::Map<String, Value> = serde_json::from_str(include_str!("families.json")).unwrap();
    all.into_iter().collect()
}

/// The pre-tokenizer of the reference.
struct Oracle(PreTokenizerWrapper);

impl Oracle {
    fn new(json: &Value) -> Self {
        Self(serde_json::from_value(json.clone()).unwrap())
    }

    /// The ends of its pieces in bytes: after a `ByteLevel` each byte is one character.
    fn ends(&self, text: &str) -> Vec<u32> {
        self.pre_tokenized(text)
            .get_splits(OffsetReferential::Normalized, OffsetType::Byte)
            .iter()
            .scan(0, |end, (piece, ..)| {
                *end += piece.chars().count() as u32;
                Some(*end)
            })
            .collect()
    }

    /// Its pieces, of which some text between them may have been removed, if there is no `ByteLevel` in it, or none that
    /// cuts inside characters.
    fn pieces(&self, text: &str) -> Vec<String> {
        let pieces = self.pre_tokenized(text);
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.iter().map(|(_, (start, end), _)| text[*start..*end].to_owned()).collect()
    }

    fn pre_tokenized(&self, text: &str) -> PreTokenizedString {
        let mut pieces = PreTokenizedString::from(text);
        self.0.pre_tokenize(&mut pieces).unwrap();
        pieces
    }
}

/// One family's splitters, reference and own, with the memory they use.
struct Pair {
    name: String,
    oracle: Oracle,
    /// One that goes step by step, and one for each kernel, by name.
    splitters: Vec<(&'static str, Splitter)>,
    /// Cuts text into parts that can be split by themselves.
    words: Cutter,
    scratch: SplitScratch,
    padded: Vec<u8>,
    cuts: Cuts,
}

impl Pair {
    fn new(name: &str, json: &Value) -> Self {
        let splitter =
            |kernel| Splitter::recognise(json, kernel).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut splitters = vec![("step by step", stepwise(json))];
        splitters.extend(Kernel::all().into_iter().map(|kernel| (kernel.name(), splitter(kernel))));
        let pairs = splitters[0].1.joined_pairs().expect("it is stepwise");
        Self {
            name: name.into(),
            oracle: Oracle::new(json),
            words: Cutter::new(&pairs, false, Kernel::detect()),
            splitters,
            scratch: SplitScratch::default(),
            padded: Vec::new(),
            cuts: Cuts::default(),
        }
    }

    fn all() -> Vec<Self> {
        let asked = std::env::var("GRISTMILL_FAMILIES");
        let wanted =
            |name: &str| asked.as_ref().map_or(true, |names| names.split(',').any(|one| one == name));
        let families = families();
        families.iter().filter(|(name, _)| wanted(name)).map(|(name, json)| Self::new(name, json)).collect()
    }

    fn pad(&mut self, text: &str) {
        self.padded.clear();
        self.padded.extend_from_slice(text.as_bytes());
        // What follows the text must not matter: letters would extend a word.
        self.padded.resize(text.len() + PADDING, b"aA1' \n\xE4"[text.len() % 7]);
    }

    /// What is left of the pieces when the start of each is removed.
    fn check_kept(&mut self, text: &str) {
        let expected = self.oracle.pieces(text);
        self.pad(text);
        let mut all = vec![("words first", self.split_words(text.len()))];
        for (name, splitter) in &self.splitters {
            splitter.split(&self.padded, text.len(), &mut self.scratch, &mut self.cuts);
            all.push((name, ends(&self.cuts)));
        }
        let removed = self.splitters[0].1.removed().map(|removed| &**removed);
        for (name, ends) in all {
            let mut kept = pieces(text, &ends);
            for piece in &mut kept {
                *piece = String::from_utf8(Removed::kept(removed, piece.as_bytes()).to_vec()).unwrap();
            }
            kept.retain(|piece| !piece.is_empty());
            assert_eq!(kept, expected, "{}, {name}, on {text:?}", self.name);
        }
    }

    fn check(&mut self, text: &str) {
        let expected = self.expected(text);
        self.pad(text);
        for (name, splitter) in &self.splitters {
            splitter.split(&self.padded, text.len(), &mut self.scratch, &mut self.cuts);
            assert_eq!(
                ends(&self.cuts),
                expected,
                "{}, {name}, on {text:?}: the reference's pieces are {:?}",
                self.name,
                pieces(text, &expected),
            );
        }
        let by_words = self.split_words(text.len());
        assert_eq!(by_words, expected, "{}, words first, on {text:?}", self.name);
    }

    /// The ends of the pieces of the padded text, cut into words first.
    fn split_words(&mut self, n: usize) -> Vec<u32> {
        self.words.cut(&self.padded, n, &mut self.cuts);
        let (mut start, mut all) = (0, Vec::new());
        for end in ends(&self.cuts) {
            let word = (end - start) as usize;
            self.splitters[0].1.split(
                &self.padded[start as usize..],
                word,
                &mut self.scratch,
                &mut self.cuts,
            );
            all.extend(ends(&self.cuts).iter().map(|end| start + end));
            start = end;
        }
        all
    }

    fn expected(&self, text: &str) -> Vec<u32> {
        if self.splitters[0].1.add_prefix_space() && !text.starts_with(' ') {
            // The reference adds the prefix space itself; here the encoder does.
            let ends = self.oracle.ends(text);
            return ends.into_iter().map(|end| end - 1).filter(|&end| end > 0).collect();
        }
        self.oracle.ends(text)
    }
}

/// The splitter for any pattern, though there may be a faster one.
fn stepwise(json: &Value) -> Splitter {
    let Recognised { steps, byte_level, removed } = recognise(json).unwrap();
    Splitter {
        way: Way::Stepwise(Steps::grouped(&steps).unwrap()),
        kernel: Kernel::Portable,
        byte_level,
        removed: (!removed.ranges().is_empty()).then(|| Arc::new(Removed::new(&removed))),
        description: String::new(),
    }
}

fn ends(cuts: &Cuts) -> Vec<u32> {
    let mut ends = Vec::new();
    cuts.push_ends(Kernel::Portable, 0, &mut ends);
    ends
}

fn pieces(text: &str, ends: &[u32]) -> Vec<String> {
    let starts = std::iter::once(0).chain(ends.iter().map(|&end| end as usize));
    starts
        .zip(ends)
        .map(|(start, &end)| String::from_utf8_lossy(&text.as_bytes()[start..end as usize]).into_owned())
        .collect()
}

fn environment(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}
