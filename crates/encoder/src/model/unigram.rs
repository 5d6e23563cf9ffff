//! Unigram: among all ways to take a word apart the one whose tokens have the highest sum of scores.
//!
//! The sums are those of the reference to the last bit: from left to right, in double precision, and of equal ones the
//! first that is found. A character without a token of its own may be an unknown token, ten points below the lowest
//! score; neighbouring ones become one, which is looked up as a token once more, and may be spelled in byte tokens.
//!
//! In SentencePiece style a space stands for the marker U+2581, as in [`characters`](super::characters).

use std::sync::Arc;

use memchr::memmem;

use super::characters::Spaces;
use super::trie::{NONE, ROOT, Trie};
use crate::pretokenize::patterns::removed_chars::RemovedChars;
use crate::tokenizer_json::UnigramModel;
use crate::utf8::decode;
use crate::vocab::{Ids, MARKER_TEXT, Vocab};

/// By how much an unknown character scores less than any token.
const UNKNOWN_PENALTY: f64 = 10.0;

/// The tokens of a vocabulary, and their scores.
pub struct Unigram {
    trie: Trie,
    /// By id.
    scores: Box<[f64]>,
    unknown: u32,
    unknown_score: f64,
    /// Byte tokens, [`NONE`] where missing.
    fallback: [u32; 256],
    words: Words,
    /// At the start of pre-tokens.
    removed: Option<Arc<RemovedChars>>,
}

/// The words that pre-tokens are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// A word, in which spaces are themselves or markers.
    Whole(Spaces),
    /// The words that Metaspace, behind another pre-tokenizer, makes.
    Marked { prefix: bool, split: bool },
}

impl Words {
    fn spaces(self) -> Spaces {
        match self {
            Self::Whole(spaces) => spaces,
            Self::Marked { .. } => Spaces::Markers,
        }
    }
}

/// Memory for one word.
#[derive(Default)]
pub struct UnigramScratch {
    /// For each offset in the word the best way to get there.
    paths: Vec<Path>,
    marked: Vec<u8>,
}

/// The best tokens up to an offset.
#[derive(Clone, Copy)]
struct Path {
    score: f64,
    /// Where the last of them begins, [`NONE`] if there is no way to the offset yet.
    start: u32,
    id: u32,
}

const NO_PATH: Path = Path { score: 0.0, start: NONE, id: NONE };

impl Path {
    /// Takes another way if it is better, or the first.
    #[inline(always)]
    fn offer(&mut self, score: f64, start: usize, id: u32) {
        if self.start == NONE || score > self.score {
            *self = Self { score, start: start as u32, id };
        }
    }
}

impl Unigram {
    /// Reads a vocabulary, or says why it is not for the fast engine.
    pub fn new(
        vocab: &Vocab,
        known: &Ids,
        model: &UnigramModel,
        words: Words,
        removed: Option<Arc<RemovedChars>>,
    ) -> Result<Self, String> {
        let scores: Box<[f64]> = model.scores().into();
        let unknown = model.unk_id.ok_or("its model has no unknown token")?;
        if unknown >= scores.len() {
            return Err(format!(
                "its unknown token has the id {unknown}, expected one of its {} tokens",
                scores.len()
            ));
        }
        let spelled = |(token, id): (&str, u32)| Some((words.spaces().spell(token)?.into_bytes(), id));
        let trie = Trie::new(vocab.entries().filter_map(spelled).collect());
        let mut fallback = [NONE; 256];
        if model.byte_fallback {
            for (byte, id) in fallback.iter_mut().enumerate() {
                *id = known.get(&*format!("<0x{byte:02X}>")).copied().unwrap_or(NONE);
            }
        }
        let lowest = scores.iter().copied().fold(f64::INFINITY, f64::min);
        let unknown_score = lowest - UNKNOWN_PENALTY;
        Ok(Self { trie, scores, unknown: unknown as u32, unknown_score, fallback, words, removed })
    }

    /// A token as most pre-tokens have it, or none if no pre-token is this token alone.
    pub fn spelled(&self, token: &str) -> Option<Vec<u8>> {
        let token = match self.words {
            Words::Whole(spaces) => spaces.spell(token)?,
            Words::Marked { prefix: true, .. } => token.strip_prefix(MARKER_TEXT)?.to_owned(),
            Words::Marked { prefix: false, .. } => token.to_owned(),
        };
        RemovedChars::in_pretoken(self.removed.as_deref(), token.as_bytes())
    }

    /// Appends the ids of a pre-token.
    pub fn encode(&self, pretoken: &[u8], scratch: &mut UnigramScratch, ids: &mut Vec<u32>) {
        let pretoken = RemovedChars::kept(self.removed.as_deref(), pretoken);
        let Words::Marked { prefix, split } = self.words else {
            return self.encode_word(pretoken, &mut scratch.paths, ids);
        };
        if pretoken.is_empty() {
            return;
        }
        let UnigramScratch { paths, marked } = scratch;
        mark(pretoken, prefix, marked);
        let mut rest = marked.as_slice();
        while let [_, behind @ ..] = rest {
            let next = if split { memchr::memchr(b' ', behind) } else { None };
            let (word, others) = rest.split_at(next.map_or(rest.len(), |index| index + 1));
            self.encode_word(word, paths, ids);
            rest = others;
        }
    }

    fn encode_word(&self, word: &[u8], paths: &mut Vec<Path>, ids: &mut Vec<u32>) {
        self.find_paths(word, paths);
        let begin = ids.len();
        // From the last token to the first; `unknown_end` is where a run of unknown ones ends, in which that begins at `end`.
        let (mut end, mut unknown_end) = (word.len(), None);
        while end > 0 {
            let Path { start, id, .. } = paths[end];
            if id == self.unknown {
                unknown_end.get_or_insert(end);
            } else {
                if let Some(unknown_end) = unknown_end.take() {
                    self.push_unknown(&word[end..unknown_end], ids);
                }
                ids.push(id);
            }
            end = start as usize;
        }
        if let Some(unknown_end) = unknown_end {
            self.push_unknown(&word[..unknown_end], ids);
        }
        ids[begin..].reverse();
    }

    fn find_paths(&self, word: &[u8], paths: &mut Vec<Path>) {
        paths.clear();
        paths.resize(word.len() + 1, NO_PATH);
        let mut start = 0;
        while start < word.len() {
            let before = paths[start].score;
            let character = start + decode(&word[start..]).1;
            let mut has_character = false;
            let mut node = ROOT;
            for (index, byte) in word.iter().enumerate().skip(start) {
                let Some(child) = self.trie.child(node, *byte) else { break };
                node = child;
                let id = self.trie.id(node);
                if id != NONE {
                    has_character |= index + 1 == character;
                    paths[index + 1].offer(self.scores[id as usize] + before, start, id);
                }
            }
            if !has_character {
                paths[character].offer(self.unknown_score + before, start, self.unknown);
            }
            start = character;
        }
    }

    /// Appends, last id first, those of a run of characters that are unknown one by one.
    fn push_unknown(&self, run: &[u8], ids: &mut Vec<u32>) {
        if let Some(id) = self.trie.walk(ROOT, run).map(|node| self.trie.id(node)).filter(|id| *id != NONE) {
            return ids.push(id);
        }
        let begin = ids.len();
        for byte in run.iter().rev() {
            match (byte, self.words.spaces()) {
                (b' ', Spaces::Markers) => {
                    ids.extend(MARKER_TEXT.bytes().rev().map(|byte| self.fallback[usize::from(byte)]));
                }
                _ => ids.push(self.fallback[usize::from(*byte)]),
            }
        }
        if ids[begin..].contains(&NONE) {
            ids.truncate(begin);
            ids.push(self.unknown);
        }
    }

    pub fn bytes(&self) -> usize {
        size_of_val(self) + self.trie.bytes() + size_of_val(&*self.scores)
    }
}

/// Replaces `word` by a text with spaces for markers, and one in front if `prefix` and it does not begin with one.
fn mark(text: &[u8], prefix: bool, word: &mut Vec<u8>) {
    word.clear();
    let marker = MARKER_TEXT.as_bytes();
    if prefix && !text.starts_with(b" ") && !text.starts_with(marker) {
        word.push(b' ');
    }
    let mut done = 0;
    for index in memmem::find_iter(text, marker) {
        word.extend_from_slice(&text[done..index]);
        word.push(b' ');
        done = index + marker.len();
    }
    word.extend_from_slice(&text[done..]);
}
