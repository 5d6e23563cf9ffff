//! The vocabulary: tokens as spelled in tokenizer.json, and their ids.

use ahash::AHashMap;

use crate::layout::MAX_IDS;
use crate::lazy::Lazy;
use crate::tokenizer_json::Token;

/// The character that SentencePiece-style tokenizers write for a space.
pub const MARKER: char = '\u{2581}';
pub const MARKER_TEXT: &str = "\u{2581}";

const HOLE: (u32, u32) = (u32::MAX, 0);

/// The model's vocabulary, added tokens not included.
pub struct Vocab {
    /// All tokens, one after another.
    text: String,
    /// Start and length in `text`, by id.
    spans: Vec<(u32, u32)>,
    len: usize,
    /// Ids in the order of their tokens, built when a token is first looked up: few callers do that.
    sorted: Lazy<Vec<u32>>,
}

/// The character that a token consists of, if it is one.
pub fn single_char(token: &str) -> Option<char> {
    let mut chars = token.chars();
    chars.next().filter(|_| chars.next().is_none())
}

/// The ids by token, used while loading; borrows from the file.
pub type Ids<'a> = AHashMap<&'a str, u32>;

impl Vocab {
    /// Takes the entries of a file, or says why the fast engine does not support them.
    pub fn new<'a>(entries: &'a [(Token<'a>, u32)]) -> Result<(Self, Ids<'a>), String> {
        let highest = entries.iter().map(|entry| entry.1).max().ok_or("its vocabulary is empty")?;
        if highest >= MAX_IDS - 1 {
            return Err(format!("its highest id is {highest}, expected one below {}", MAX_IDS - 1));
        }
        let bytes = entries.iter().map(|entry| entry.0.len()).sum();
        if u32::try_from(bytes).is_err() {
            return Err(format!("its tokens have {bytes} bytes in total, expected fewer than 2^32"));
        }
        let mut ids = Ids::with_capacity(entries.len());
        let mut text = String::with_capacity(bytes);
        let mut spans = vec![HOLE; highest as usize + 1];
        for (token, id) in entries {
            if ids.insert(token, *id).is_some() {
                return Err(format!("its vocabulary has the token {token:?} twice"));
            }
            let span = &mut spans[*id as usize];
            if *span != HOLE {
                return Err(format!("its vocabulary has the id {id} twice"));
            }
            *span = (text.len() as u32, token.len() as u32);
            text.push_str(token);
        }
        Ok((Self { text, spans, len: entries.len(), sorted: Lazy::new() }, ids))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn largest_id(&self) -> u32 {
        self.spans.len() as u32 - 1
    }

    pub fn token(&self, id: u32) -> Option<&str> {
        let (start, len) = *self.spans.get(id as usize).filter(|span| **span != HOLE)?;
        self.text.get(start as usize..(start + len) as usize)
    }

    pub fn id(&self, token: &str) -> Option<u32> {
        let sorted = self.sorted.get_or_make(|| {
            let mut ids: Vec<u32> = self.entries().map(|(_, id)| id).collect();
            ids.sort_unstable_by_key(|id| self.token(*id));
            ids
        });
        let index = sorted.binary_search_by_key(&Some(token), |id| self.token(*id)).ok()?;
        Some(sorted[index])
    }

    /// All tokens in the order of their ids.
    pub fn entries(&self) -> impl Iterator<Item = (&str, u32)> {
        (0..self.spans.len() as u32).filter_map(|id| Some((self.token(id)?, id)))
    }

    pub fn bytes(&self) -> usize {
        let by_token = self.len * size_of::<u32>(); // once one was looked up
        self.text.len() + self.spans.len() * size_of::<(u32, u32)>() + by_token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries<'a>(list: &[(&'a str, u32)]) -> Vec<(Token<'a>, u32)> {
        list.iter().map(|(token, id)| (Token::from(*token), *id)).collect()
    }

    #[test]
    fn tokens_and_ids_are_found_both_ways() {
        let list = entries(&[("b", 4), ("", 0), ("ab", 2), ("▁", 3)]);
        let (vocab, ids) = Vocab::new(&list).unwrap();
        for (token, id) in &list {
            assert_eq!(vocab.id(token), Some(*id));
            assert_eq!(vocab.token(*id), Some(token.as_ref()));
            assert_eq!(ids[token.as_ref()], *id);
        }
        assert_eq!(vocab.len(), 4);
        assert_eq!(vocab.token(1), None);
        assert_eq!(vocab.token(5), None);
        assert_eq!(vocab.id("a"), None);
    }

    #[test]
    fn ambiguous_ids_are_refused() {
        assert!(Vocab::new(&entries(&[("a", 0), ("a", 1)])).is_err());
        assert!(Vocab::new(&entries(&[("a", 0), ("b", 0)])).is_err());
        assert!(Vocab::new(&entries(&[("a", MAX_IDS - 1)])).is_err());
        assert!(Vocab::new(&[]).is_err());
    }
}
