//! Every splitter against the pre-tokenizers of the reference, pre-token by pre-token.
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
#[path = "../../../../tests/support/mixtures.rs"]
#[allow(dead_code)] // shared with the benchmarks
mod mixtures;
mod recognition;

use std::sync::Arc;

use serde_json::Value;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper};

use super::{Boundaries, Method, Pretokenizer, SplitScratch};
use crate::pretokenize::PADDING;
use crate::pretokenize::boundaries::class_cutter::ClassCutter;
use crate::pretokenize::patterns::dfa::StepGroup;
use crate::pretokenize::patterns::parse_pretokenizer::{ParsedPretokenizer, parse_pretokenizer};
use crate::pretokenize::patterns::removed_chars::RemovedChars;
use crate::simd::Simd;

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

    /// The ends of its pre-tokens in bytes: after a `ByteLevel` each byte is one character.
    fn ends(&self, text: &str) -> Vec<u32> {
        self.pre_tokenized(text)
            .get_splits(OffsetReferential::Normalized, OffsetType::Byte)
            .iter()
            .scan(0, |end, (pretoken, ..)| {
                *end += pretoken.chars().count() as u32;
                Some(*end)
            })
            .collect()
    }

    /// Its pre-tokens, of which some text between them may have been removed, if there is no `ByteLevel` in it, or none
    /// that cuts inside characters.
    fn pretokens(&self, text: &str) -> Vec<String> {
        let pretokens = self.pre_tokenized(text);
        let splits = pretokens.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.iter().map(|(_, (start, end), _)| text[*start..*end].to_owned()).collect()
    }

    fn pre_tokenized(&self, text: &str) -> PreTokenizedString {
        let mut pretokens = PreTokenizedString::from(text);
        self.0.pre_tokenize(&mut pretokens).unwrap();
        pretokens
    }
}

/// One family's splitters, reference and own, with the memory they use.
struct Pair {
    name: String,
    oracle: Oracle,
    /// One that goes step by step, and one for each kernel, by name.
    pretokenizers: Vec<(&'static str, Pretokenizer)>,
    /// Cuts text into parts that can be split by themselves.
    words: ClassCutter,
    scratch: SplitScratch,
    padded: Vec<u8>,
    boundaries: Boundaries,
}

impl Pair {
    fn new(name: &str, json: &Value) -> Self {
        let pretokenizer =
            |simd| Pretokenizer::from_json(json, simd).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut pretokenizers = vec![("step by step", stepwise(json))];
        pretokenizers.extend(Simd::all().into_iter().map(|simd| (simd.name(), pretokenizer(simd))));
        let pairs = pretokenizers[0].1.joined_pairs().expect("it is stepwise");
        Self {
            name: name.into(),
            oracle: Oracle::new(json),
            words: ClassCutter::new(&pairs, false, Simd::detect()),
            pretokenizers,
            scratch: SplitScratch::default(),
            padded: Vec::new(),
            boundaries: Boundaries::default(),
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
        // The bytes that follow the text must not matter: letters would extend a word.
        self.padded.resize(text.len() + PADDING, b"aA1' \n\xE4"[text.len() % 7]);
    }

    /// The rest of the pre-tokens when the start of each is removed.
    fn check_kept(&mut self, text: &str) {
        let expected = self.oracle.pretokens(text);
        self.pad(text);
        let mut all = vec![("words first", self.split_words(text.len()))];
        for (name, pretokenizer) in &self.pretokenizers {
            pretokenizer.split(&self.padded, text.len(), &mut self.scratch, &mut self.boundaries);
            all.push((name, ends(&self.boundaries)));
        }
        let removed = self.pretokenizers[0].1.removed().map(|removed| &**removed);
        for (name, ends) in all {
            let mut kept = pretokens(text, &ends);
            for pretoken in &mut kept {
                *pretoken =
                    String::from_utf8(RemovedChars::kept(removed, pretoken.as_bytes()).to_vec()).unwrap();
            }
            kept.retain(|pretoken| !pretoken.is_empty());
            assert_eq!(kept, expected, "{}, {name}, on {text:?}", self.name);
        }
    }

    fn check(&mut self, text: &str) {
        let expected = self.expected(text);
        self.pad(text);
        for (name, pretokenizer) in &self.pretokenizers {
            pretokenizer.split(&self.padded, text.len(), &mut self.scratch, &mut self.boundaries);
            assert_eq!(
                ends(&self.boundaries),
                expected,
                "{}, {name}, on {text:?}: the reference's pieces are {:?}",
                self.name,
                pretokens(text, &expected),
            );
        }
        let by_words = self.split_words(text.len());
        assert_eq!(by_words, expected, "{}, words first, on {text:?}", self.name);
    }

    /// The ends of the pre-tokens of the padded text, cut into words first.
    fn split_words(&mut self, n: usize) -> Vec<u32> {
        self.words.cut(&self.padded, n, &mut self.boundaries);
        let (mut start, mut all) = (0, Vec::new());
        for end in ends(&self.boundaries) {
            let word = (end - start) as usize;
            self.pretokenizers[0].1.split(
                &self.padded[start as usize..],
                word,
                &mut self.scratch,
                &mut self.boundaries,
            );
            all.extend(ends(&self.boundaries).iter().map(|end| start + end));
            start = end;
        }
        all
    }

    fn expected(&self, text: &str) -> Vec<u32> {
        if self.pretokenizers[0].1.add_prefix_space() && !text.starts_with(' ') {
            // The reference adds the prefix space itself; here the encoder does.
            let ends = self.oracle.ends(text);
            return ends.into_iter().map(|end| end - 1).filter(|&end| end > 0).collect();
        }
        self.oracle.ends(text)
    }
}

/// The splitter for any pattern, though there may be a faster one.
fn stepwise(json: &Value) -> Pretokenizer {
    let ParsedPretokenizer { steps, byte_level, removed } = parse_pretokenizer(json).unwrap();
    Pretokenizer {
        way: Method::Dfa(StepGroup::grouped(&steps).unwrap()),
        simd: Simd::Scalar,
        byte_level,
        removed: (!removed.ranges().is_empty()).then(|| Arc::new(RemovedChars::new(&removed))),
        description: String::new(),
    }
}

fn ends(boundaries: &Boundaries) -> Vec<u32> {
    let mut ends = Vec::new();
    boundaries.push_ends(Simd::Scalar, 0, &mut ends);
    ends
}

fn pretokens(text: &str, ends: &[u32]) -> Vec<String> {
    let starts = std::iter::once(0).chain(ends.iter().map(|&end| end as usize));
    starts
        .zip(ends)
        .map(|(start, &end)| String::from_utf8_lossy(&text.as_bytes()[start..end as usize]).into_owned())
        .collect()
}

fn environment(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}
