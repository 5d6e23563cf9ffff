//! How byte-level BPE cuts text into pieces before it merges.
//!
//! A pre-tokenizer is a sequence of steps, each of which cuts the pieces of the one before at the
//! matches of a pattern. [`recognise`] reads the steps from tokenizer.json, [`pattern`] their
//! regular expressions; [`portable`] runs any of them as automata over [`kinds`] of characters.

mod automaton;
mod kinds;
mod pattern;
mod portable;
mod recognise;
#[cfg(test)]
mod tests;

use portable::{Step, Trail};

/// How many bytes behind the text must be readable.
pub const PADDING: usize = 64;

/// How text is cut into pieces before merging: the split patterns of one tokenizer.json, recognised.
pub struct Splitter {
    steps: Vec<Step>,
    add_prefix_space: bool,
    description: String,
}

/// Reusable memory of one thread.
#[derive(Default)]
pub struct SplitScratch {
    pieces: Vec<u32>,
    trail: Trail,
}

impl Splitter {
    /// Recognises the `pre_tokenizer` of a byte-level BPE tokenizer by its structure: a `ByteLevel`
    /// alone, or a `Sequence` of `Split`, `Digits`, `Punctuation` and one `ByteLevel`.
    ///
    /// The error is one clause that says what was not recognised.
    pub fn recognise(pre_tokenizer: &serde_json::Value) -> Result<Self, String> {
        let recognised = recognise::recognise(pre_tokenizer)?;
        let steps = recognised.steps.iter().map(|step| match step.domain {
            recognise::Domain::Characters => Step::over_characters(&step.pattern),
            recognise::Domain::Bytes => Step::over_bytes(&step.pattern),
        });
        Ok(Self {
            steps: steps.collect::<Result<_, _>>()?,
            add_prefix_space: recognised.add_prefix_space,
            description: format!("split in {} steps", recognised.steps.len()),
        })
    }

    /// What was recognised, for people.
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    /// Whether a space is to be put in front of text that has none there, before it is split.
    pub fn add_prefix_space(&self) -> bool {
        self.add_prefix_space
    }

    /// Replaces `ends` by the exclusive end of each piece of `text[..n]` in ascending order; the
    /// last is `n` (none if `n` is 0).
    ///
    /// `text[..n]` is valid UTF-8, `n` is below 2^32, and at least [`PADDING`] bytes are readable
    /// behind it. Pieces may end inside a character where a step follows the `ByteLevel`.
    pub fn split(&self, text: &[u8], n: usize, scratch: &mut SplitScratch, ends: &mut Vec<u32>) {
        ends.clear();
        if n == 0 {
            return;
        }
        ends.push(n as u32);
        for step in &self.steps {
            std::mem::swap(ends, &mut scratch.pieces);
            ends.clear();
            step.refine(&text[..n], &scratch.pieces, &mut scratch.trail, ends);
        }
    }
}
