//! How byte-level BPE cuts text into pieces before it merges.
//!
//! A pre-tokenizer is a sequence of steps, each of which cuts the pieces of the previous one at the matches of a
//! pattern. `recognise` reads the steps from tokenizer.json and `parser` their regular expressions. `portable` runs any
//! of them, each as an `automaton` over `kinds` of characters; where the steps have a known `shape` and the processor
//! allows it, `vector` does all of them at once, ten times as fast. Both are tested against the reference's own
//! pre-tokenizers.

mod automaton;
#[cfg(target_arch = "x86_64")]
mod classes;
mod kinds;
mod parser;
mod pattern;
mod portable;
mod recognise;
mod shape;
mod table;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vector;

use portable::{StepScratch, Steps};
use shape::Shape;

pub use super::cuts::Cuts;
use super::cuts::classes::JoinedPairs;
use super::kernel::Kernel;

#[cfg(target_arch = "x86_64")]
use vector::VectorSplitter;

/// How many bytes must follow a text: from its last byte on, kernels read 64 and what a character that begins in these
/// may have after them.
pub const PADDING: usize = 64 + 3;

/// How text is cut into pieces before merging: the split patterns of one tokenizer.json, recognised.
pub struct Splitter {
    steps: Vec<Steps>,
    #[cfg(target_arch = "x86_64")]
    vector: Option<VectorSplitter>,
    add_prefix_space: bool,
    description: String,
}

/// Reusable memory of one thread.
#[derive(Default)]
pub struct SplitScratch {
    pieces: Vec<u32>,
    steps: StepScratch,
}

impl SplitScratch {
    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.pieces.capacity() * size_of::<u32>() + self.steps.bytes()
    }
}

impl Splitter {
    /// Recognises the `pre_tokenizer` of a byte-level BPE tokenizer by its structure: a `ByteLevel`
    /// alone, or a `Sequence` of `Split`, `Digits`, `Punctuation` and one `ByteLevel`.
    ///
    /// The error names the part that was not recognised: it completes "the pre-tokenizer has".
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
    pub fn recognise(pre_tokenizer: &serde_json::Value, kernel: Kernel) -> Result<Self, String> {
        let recognised = recognise::recognise(pre_tokenizer)?;
        let shape = Shape::recognise(&recognised.steps);
        Ok(Self {
            steps: Steps::grouped(&recognised.steps)?,
            #[cfg(target_arch = "x86_64")]
            vector: shape.and_then(|shape| VectorSplitter::new(shape, kernel)),
            add_prefix_space: recognised.add_prefix_space,
            description: shape.map_or_else(
                || format!("split by a sequence of {} patterns", recognised.steps.len()),
                Shape::describe,
            ),
        })
    }

    /// Whether the pieces are found step by step, several times slower than with a vector kernel.
    pub fn is_stepwise(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.vector.is_none();
        #[cfg(not(target_arch = "x86_64"))]
        true
    }

    /// Pairs of characters that may be adjacent in one piece. Between all others, text may be cut first and each part
    /// split by itself: some step always cuts there, and no match of it or of an earlier step crosses the place, just
    /// as if the text ended there. For later steps it does end there.
    pub fn joined_pairs(&self) -> JoinedPairs {
        let mut joined = JoinedPairs::new();
        let ascii = 0..128u8;
        for (left, right) in ascii.clone().flat_map(|left| ascii.clone().map(move |right| (left, right))) {
            let steps = self.steps.iter().flat_map(|steps| steps.at(left, right));
            if !steps.take_while(|(parts, _)| *parts).any(|(_, cuts)| cuts) {
                joined.add(char::from(left), char::from(right));
            }
        }
        for c in ascii {
            joined.add(char::from(c), '\u{80}');
            joined.add('\u{80}', char::from(c));
        }
        joined
    }

    /// What was recognised, in words.
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    /// Whether a space is put in front of text that does not begin with one, before it is split.
    pub fn add_prefix_space(&self) -> bool {
        self.add_prefix_space
    }

    /// Bytes of its tables; those of the kernels are shared by all splitters.
    pub fn bytes(&self) -> usize {
        self.steps.iter().map(Steps::bytes).sum()
    }

    /// Replaces `cuts` by those between the pieces of `text[..n]`.
    ///
    /// `text[..n]` is valid UTF-8, `n` is below 2^32, and at least [`PADDING`] bytes follow it. Pieces may
    /// end inside a character if a step follows the `ByteLevel`.
    pub fn split(&self, text: &[u8], n: usize, scratch: &mut SplitScratch, cuts: &mut Cuts) {
        if n == 0 {
            return cuts.begin(0);
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(vector) = self.vector {
            return vector.split(text, n, cuts);
        }
        let SplitScratch { pieces, steps: scratch } = scratch;
        pieces.clear();
        pieces.push(n as u32);
        for steps in &self.steps {
            steps.refine(&text[..n], pieces, scratch);
        }
        cuts.begin_uncut(n);
        for end in &pieces[..pieces.len() - 1] {
            cuts.add(*end as usize);
        }
    }
}
