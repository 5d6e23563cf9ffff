//! How text is cut into pre-tokens before these are merged.
//!
//! A pre-tokenizer is a sequence of steps, each of which cuts the pre-tokens of the previous one at the matches of a
//! pattern. `parse_pretokenizer` reads the steps from tokenizer.json and `regex` their regular expressions. Where the
//! steps are one of the `known_patterns`, `simd` does all of them at once. Where each matches runs of a class of
//! characters, `bitmap` does them one after another. All others `dfa` runs, each as an automaton over classes of
//! characters, at a tenth of that speed. All are tested against the reference's own pre-tokenizers.

mod bitmap;
pub mod char_classes;
mod dfa;
mod digit_groups;
mod known_patterns;
mod parse_pretokenizer;
mod regex;
pub mod removed_chars;
mod simd;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bitmap::BitmapSplitter;
use dfa::{DfaScratch, StepGroup};
use known_patterns::KnownPattern;
use parse_pretokenizer::ParsedPretokenizer;
use regex::{Node, parser};
use removed_chars::RemovedChars;

use crate::pretokenize::boundaries::Boundaries;
use crate::pretokenize::boundaries::class_cutter::JoinedPairs;
use crate::simd::Simd;

use self::simd::SimdSplitter;

/// How text is cut into pre-tokens before merging: the split patterns of one tokenizer.json, recognised.
pub struct Pretokenizer {
    way: Method,
    simd: Simd,
    byte_level: Option<bool>,
    removed: Option<Arc<RemovedChars>>,
    description: String,
}

/// From the fastest to the most general.
enum Method {
    Simd {
        vector: SimdSplitter,
        /// For the texts that it is not sure of, if there are such.
        otherwise: Vec<StepGroup>,
    },
    Bitmap(BitmapSplitter),
    Dfa(Vec<StepGroup>),
}

/// Reusable memory of one thread.
#[derive(Default)]
pub struct SplitScratch {
    blocks: Vec<bitmap::BlockMaps>,
    pretokens: Vec<u32>,
    steps: DfaScratch,
}

impl Pretokenizer {
    /// Recognises a `pre_tokenizer` by its structure: a step, or a `Sequence` of `Split`, `Digits`, `Punctuation`,
    /// `Whitespace`, `WhitespaceSplit`, `BertPreTokenizer`, `CharDelimiterSplit` and perhaps one `ByteLevel`.
    ///
    /// The error names the part that was not recognised: it completes "the pre-tokenizer has".
    pub fn from_json(pre_tokenizer: &serde_json::Value, simd: Simd) -> Result<Self, String> {
        let parsed = parse_pretokenizer::parse_pretokenizer(pre_tokenizer)?;
        let known = KnownPattern::match_known(&parsed.steps);
        let runs = || BitmapSplitter::match_steps(&parsed.steps, simd);
        let vector = match known.and_then(|known| SimdSplitter::new(known, simd)) {
            Some(vector) => {
                let may_be_unsure = known.is_some_and(|known| known.han_apart);
                let otherwise = if may_be_unsure { StepGroup::grouped(&parsed.steps)? } else { Vec::new() };
                Some(Method::Simd { vector, otherwise })
            }
            None => None,
        };
        let way = match vector.or_else(|| runs().map(Method::Bitmap)) {
            Some(way) => way,
            None => Method::Dfa(StepGroup::grouped(&parsed.steps)?),
        };
        let mut description = match (known, &way) {
            (Some(known), _) => known.describe(),
            (None, way) => {
                let what = if matches!(way, Method::Bitmap(_)) { "into runs " } else { "" };
                match parsed.steps.len() {
                    0 => "not split".to_owned(),
                    1 => format!("split {what}by one pattern"),
                    count => format!("split {what}by a sequence of {count} patterns"),
                }
            }
        };
        let ParsedPretokenizer { byte_level, removed, .. } = parsed;
        let removed = (!removed.ranges().is_empty()).then(|| Arc::new(RemovedChars::new(&removed)));
        if removed.is_some() {
            description.push_str(", without the characters that are removed");
        }
        Ok(Self { way, simd, byte_level, removed, description })
    }

    /// If the pre-tokens are found step by step, several times slower than by other ways: pairs of characters that may
    /// be adjacent in one pre-token. Between all others, text may be cut first and each part split by itself: some step
    /// always cuts there, and no match of it or of an earlier step crosses the cut, just as if the text ended there.
    /// For later steps it does end there.
    pub fn joined_pairs(&self) -> Option<JoinedPairs> {
        let Method::Dfa(all) = &self.way else { return None };
        let mut joined = JoinedPairs::new();
        let ascii = 0..128u8;
        for (left, right) in ascii.clone().flat_map(|left| ascii.clone().map(move |right| (left, right))) {
            let steps = all.iter().flat_map(|steps| steps.at(left, right));
            let is_removed = self.removed.as_ref().is_some_and(|removed| removed.contains(left.into()));
            if is_removed || !steps.take_while(|(parts, _)| *parts).any(|(_, boundaries)| boundaries) {
                joined.add(char::from(left), char::from(right));
            }
        }
        for c in ascii {
            joined.add(char::from(c), '\u{80}');
            joined.add('\u{80}', char::from(c));
        }
        Some(joined)
    }

    /// The pattern that was recognised, in words.
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    /// Whether a space is prepended of text that does not begin with one, before it is split.
    pub fn add_prefix_space(&self) -> bool {
        self.byte_level == Some(true)
    }

    /// Whether pre-tokens are spelled in bytes.
    pub fn is_byte_level(&self) -> bool {
        self.byte_level.is_some()
    }

    /// Whether text is never cut.
    pub fn is_whole(&self) -> bool {
        matches!(&self.way, Method::Bitmap(runs) if runs.is_empty())
    }

    /// The characters that are removed, if there are such. They are at the start of pre-tokens.
    pub fn removed(&self) -> Option<&Arc<RemovedChars>> {
        self.removed.as_ref()
    }

    /// Bytes of its tables; those of the kernels are shared by all splitters.
    pub fn bytes(&self) -> usize {
        let removed = self.removed.as_ref().map_or(0, |removed| removed.bytes());
        removed
            + match &self.way {
                Method::Simd { otherwise, .. } => otherwise.iter().map(StepGroup::bytes).sum(),
                Method::Bitmap(runs) => runs.bytes(),
                Method::Dfa(all) => all.iter().map(StepGroup::bytes).sum(),
            }
    }

    /// Replaces `cuts` by those between the pre-tokens of `text[..n]`.
    ///
    /// `text[..n]` is valid UTF-8, `n` is below 2^32, and at least `PADDING` bytes follow it. Pre-tokens may
    /// end inside a character if a step follows the `ByteLevel`.
    pub fn split(&self, text: &[u8], n: usize, scratch: &mut SplitScratch, boundaries: &mut Boundaries) {
        if n == 0 {
            return boundaries.begin(0);
        }
        match &self.way {
            Method::Simd { vector, otherwise } => {
                if !vector.split(text, n, boundaries) {
                    split_stepwise(otherwise, &text[..n], scratch, boundaries);
                }
            }
            Method::Bitmap(runs) => runs.split(text, n, &mut scratch.blocks, boundaries),
            Method::Dfa(all) => split_stepwise(all, &text[..n], scratch, boundaries),
        }
        if let Some(removed) = &self.removed {
            removed.join(self.simd, text, boundaries);
        }
    }
}

/// Whether each match of a regular expression has at least one character, as far as it is known.
pub fn matches_characters(regex: &str) -> bool {
    parser::parse(regex).is_ok_and(|pattern| !pattern.may_be_empty())
}

/// Whether each match of a regular expression is one character, as far as it is known.
pub fn matches_one_character(regex: &str) -> bool {
    matches!(parser::parse(regex), Ok(Node::Class(_)))
}

/// Replaces `cuts` by those that some steps make one after another.
fn split_stepwise(all: &[StepGroup], text: &[u8], scratch: &mut SplitScratch, boundaries: &mut Boundaries) {
    let SplitScratch { pretokens, steps: of_steps, .. } = scratch;
    pretokens.clear();
    pretokens.push(text.len() as u32);
    for steps in all {
        steps.refine(text, pretokens, of_steps);
    }
    boundaries.begin_uncut(text.len());
    for end in &pretokens[..pretokens.len() - 1] {
        boundaries.add(*end as usize);
    }
}

/// The number of letters of a contraction whose apostrophe precedes `text`, 0 if there is none.
#[inline(always)]
fn contraction(text: &[u8], any_case: bool) -> u32 {
    let fold = if any_case { 0x20 } else { 0 };
    match *text {
        [a, ..] if matches!(a | fold, b's' | b't' | b'm' | b'd') => 1,
        [a, b, ..] if matches!([a | fold, b | fold], [b'r' | b'v', b'e'] | [b'l', b'l']) => 2,
        // The long s folds to s.
        [0xC5, 0xBF, ..] if any_case => 1,
        _ => 0,
    }
}
