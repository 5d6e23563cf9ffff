//! `WordPiece`: of a word the longest token that it begins with, and so on with what is left, whose tokens begin with a
//! prefix such as `##`. A word that cannot be taken apart, or that is too long, is the unknown token as a whole.

use std::sync::Arc;

use super::trie::{NONE, ROOT, Trie};
use crate::pretokenize::patterns::removed_chars::RemovedChars;
use crate::tokenizer_json::WordPieceModel;
use crate::vocab::{Ids, Vocab};

/// The tokens of a vocabulary.
pub struct WordPieces {
    trie: Trie,
    /// The node in which the tokens inside of words begin, behind their prefix; none if there are no such tokens.
    inside: Option<u32>,
    prefix: String,
    unknown: u32,
    /// The most characters that a word may have.
    most: usize,
    /// At the start of pre-tokens.
    removed: Option<Arc<RemovedChars>>,
}

impl WordPieces {
    /// Reads a vocabulary, or says why it is not for the fast engine.
    pub fn new(
        vocab: &Vocab,
        known: &Ids,
        model: &WordPieceModel,
        removed: Option<Arc<RemovedChars>>,
    ) -> Result<Self, String> {
        let unknown = *known
            .get(&*model.unk_token)
            .ok_or_else(|| format!("its unknown token {:?} is not in its vocabulary", model.unk_token))?;
        let trie = Trie::new(vocab.entries().map(|(token, id)| (token.as_bytes().to_vec(), id)).collect());
        let prefix = model.continuing_subword_prefix.clone();
        let inside = trie.walk(ROOT, prefix.as_bytes());
        Ok(Self { trie, inside, prefix, unknown, most: model.max_input_chars_per_word, removed })
    }

    /// A token as most pre-tokens have it, or none if no pre-token is this token alone.
    pub fn spelled(&self, token: &str) -> Option<Vec<u8>> {
        if !self.prefix.is_empty() && token.starts_with(&self.prefix) {
            return None;
        }
        RemovedChars::in_pretoken(self.removed.as_deref(), token.as_bytes())
    }

    /// Appends the ids of a pre-token.
    pub fn encode(&self, pretoken: &[u8], ids: &mut Vec<u32>) {
        let word = RemovedChars::kept(self.removed.as_deref(), pretoken);
        let begin = ids.len();
        let mut rest = if self.is_too_long(word) { None } else { Some(word) };
        let mut from = Some(ROOT);
        while let Some(left @ [_, ..]) = rest {
            let found = from.and_then(|from| self.longest(from, left));
            rest = found.map(|(id, len)| {
                ids.push(id);
                &left[len..]
            });
            from = self.inside;
        }
        if rest.is_none() {
            ids.truncate(begin);
            ids.push(self.unknown);
        }
    }

    fn is_too_long(&self, word: &[u8]) -> bool {
        word.len() > self.most && word.iter().filter(|byte| **byte & 0xC0 != 0x80).count() > self.most
    }

    /// The longest token that a text begins with, from a node on, and the length of what it covers.
    fn longest(&self, mut node: u32, text: &[u8]) -> Option<(u32, usize)> {
        let mut found = None;
        for (index, byte) in text.iter().enumerate() {
            let Some(child) = self.trie.child(node, *byte) else { break };
            node = child;
            let id = self.trie.id(node);
            if id != NONE {
                found = Some((id, index + 1));
            }
        }
        found
    }

    pub fn bytes(&self) -> usize {
        size_of_val(self) + self.trie.bytes()
    }
}
