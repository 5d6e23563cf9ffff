//! How text is cut into pieces before these are merged.
//!
//! A pre-tokenizer is a sequence of steps, each of which cuts the pieces of the previous one at the matches of a
//! pattern. `recognise` reads the steps from tokenizer.json and `parser` their regular expressions. Where the steps have
//! a known `shape` and the processor allows it, `vector` does all of them at once. Where each matches `runs` of a class
//! of characters, they are done one after another, by bitmaps. All others `stepwise` runs, each as an `automaton` over
//! `kinds` of characters, at a tenth of that speed. All are tested against the reference's own pre-tokenizers.

mod automaton;
#[cfg(target_arch = "x86_64")]
mod classes;
mod kinds;
mod parser;
mod pattern;
mod recognise;
pub mod removed;
mod right_groups;
mod runs;
mod shape;
mod stepwise;
mod table;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vector;

use std::sync::Arc;

use pattern::Node;
use recognise::Recognised;
use removed::Removed;
use runs::Runs;
use shape::Shape;
use stepwise::{StepScratch, Steps};

pub use super::cuts::Cuts;
use super::cuts::cutter::JoinedPairs;
use super::kernel::Kernel;

#[cfg(target_arch = "x86_64")]
use vector::VectorSplitter;

/// How many bytes must follow a text: from its last byte on, kernels read 64 and what a character that begins in these
/// may have after them.
pub const PADDING: usize = 64 + 3;

/// How text is cut into pieces before merging: the split patterns of one tokenizer.json, recognised.
pub struct Splitter {
    way: Way,
    kernel: Kernel,
    byte_level: Option<bool>,
    removed: Option<Arc<Removed>>,
    description: String,
}

/// From the fastest to the most general.
enum Way {
    #[cfg(target_arch = "x86_64")]
    Vector {
        vector: VectorSplitter,
        /// For the texts that it is not sure of, if there are such.
        otherwise: Vec<Steps>,
    },
    Runs(Runs),
    Stepwise(Vec<Steps>),
}

/// Reusable memory of one thread.
#[derive(Default)]
pub struct SplitScratch {
    blocks: Vec<runs::BlockMaps>,
    pieces: Vec<u32>,
    steps: StepScratch,
}

impl Splitter {
    /// Recognises a `pre_tokenizer` by its structure: a step, or a `Sequence` of `Split`, `Digits`, `Punctuation`,
    /// `Whitespace`, `WhitespaceSplit`, `BertPreTokenizer`, `CharDelimiterSplit` and perhaps one `ByteLevel`.
    ///
    /// The error names the part that was not recognised: it completes "the pre-tokenizer has".
    pub fn recognise(pre_tokenizer: &serde_json::Value, kernel: Kernel) -> Result<Self, String> {
        let recognised = recognise::recognise(pre_tokenizer)?;
        let shape = Shape::recognise(&recognised.steps);
        let runs = || Runs::recognise(&recognised.steps, kernel);
        #[cfg(target_arch = "x86_64")]
        let vector = match shape.and_then(|shape| VectorSplitter::new(shape, kernel)) {
            Some(vector) => {
                let may_be_unsure = shape.is_some_and(|shape| shape.han_apart);
                let otherwise = if may_be_unsure { Steps::grouped(&recognised.steps)? } else { Vec::new() };
                Some(Way::Vector { vector, otherwise })
            }
            None => None,
        };
        #[cfg(not(target_arch = "x86_64"))]
        let vector = None;
        let way = match vector.or_else(|| runs().map(Way::Runs)) {
            Some(way) => way,
            None => Way::Stepwise(Steps::grouped(&recognised.steps)?),
        };
        let mut description = match (shape, &way) {
            (Some(shape), _) => shape.describe(),
            (None, way) => {
                let what = if matches!(way, Way::Runs(_)) { "into runs " } else { "" };
                match recognised.steps.len() {
                    0 => "not split".to_owned(),
                    1 => format!("split {what}by one pattern"),
                    count => format!("split {what}by a sequence of {count} patterns"),
                }
            }
        };
        let Recognised { byte_level, removed, .. } = recognised;
        let removed = (!removed.ranges().is_empty()).then(|| Arc::new(Removed::new(&removed)));
        if removed.is_some() {
            description.push_str(", without the characters that are removed");
        }
        Ok(Self { way, kernel, byte_level, removed, description })
    }

    /// If the pieces are found step by step, several times slower than by other ways: pairs of characters that may be
    /// adjacent in one piece. Between all others, text may be cut first and each part split by itself: some step always
    /// cuts there, and no match of it or of an earlier step crosses the place, just as if the text ended there. For
    /// later steps it does end there.
    pub fn joined_pairs(&self) -> Option<JoinedPairs> {
        let Way::Stepwise(all) = &self.way else { return None };
        let mut joined = JoinedPairs::new();
        let ascii = 0..128u8;
        for (left, right) in ascii.clone().flat_map(|left| ascii.clone().map(move |right| (left, right))) {
            let steps = all.iter().flat_map(|steps| steps.at(left, right));
            let is_removed = self.removed.as_ref().is_some_and(|removed| removed.contains(left.into()));
            if is_removed || !steps.take_while(|(parts, _)| *parts).any(|(_, cuts)| cuts) {
                joined.add(char::from(left), char::from(right));
            }
        }
        for c in ascii {
            joined.add(char::from(c), '\u{80}');
            joined.add('\u{80}', char::from(c));
        }
        Some(joined)
    }

    /// What was recognised, in words.
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    /// Whether a space is put in front of text that does not begin with one, before it is split.
    pub fn add_prefix_space(&self) -> bool {
        self.byte_level == Some(true)
    }

    /// Whether pieces are spelled in bytes.
    pub fn is_byte_level(&self) -> bool {
        self.byte_level.is_some()
    }

    /// Whether text is never cut.
    pub fn is_whole(&self) -> bool {
        matches!(&self.way, Way::Runs(runs) if runs.is_empty())
    }

    /// The characters that are removed, if there are such. They are at the start of pieces.
    pub fn removed(&self) -> Option<&Arc<Removed>> {
        self.removed.as_ref()
    }

    /// Bytes of its tables; those of the kernels are shared by all splitters.
    pub fn bytes(&self) -> usize {
        let removed = self.removed.as_ref().map_or(0, |removed| removed.bytes());
        removed
            + match &self.way {
                #[cfg(target_arch = "x86_64")]
                Way::Vector { otherwise, .. } => otherwise.iter().map(Steps::bytes).sum(),
                Way::Runs(runs) => runs.bytes(),
                Way::Stepwise(all) => all.iter().map(Steps::bytes).sum(),
            }
    }

    /// Replaces `cuts` by those between the pieces of `text[..n]`.
    ///
    /// `text[..n]` is valid UTF-8, `n` is below 2^32, and at least [`PADDING`] bytes follow it. Pieces may
    /// end inside a character if a step follows the `ByteLevel`.
    pub fn split(&self, text: &[u8], n: usize, scratch: &mut SplitScratch, cuts: &mut Cuts) {
        if n == 0 {
            return cuts.begin(0);
        }
        match &self.way {
            #[cfg(target_arch = "x86_64")]
            Way::Vector { vector, otherwise } => {
                if !vector.split(text, n, cuts) {
                    split_stepwise(otherwise, &text[..n], scratch, cuts);
                }
            }
            Way::Runs(runs) => runs.split(text, n, &mut scratch.blocks, cuts),
            Way::Stepwise(all) => split_stepwise(all, &text[..n], scratch, cuts),
        }
        if let Some(removed) = &self.removed {
            removed.join(self.kernel, text, cuts);
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
fn split_stepwise(all: &[Steps], text: &[u8], scratch: &mut SplitScratch, cuts: &mut Cuts) {
    let SplitScratch { pieces, steps: of_steps, .. } = scratch;
    pieces.clear();
    pieces.push(text.len() as u32);
    for steps in all {
        steps.refine(text, pieces, of_steps);
    }
    cuts.begin_uncut(text.len());
    for end in &pieces[..pieces.len() - 1] {
        cuts.add(*end as usize);
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
