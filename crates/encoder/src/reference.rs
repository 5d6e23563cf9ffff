//! The reference engine: the pinned `tokenizers` crate, set up to give plain ids.

use ahash::AHashMap;
use gristmill_system::catch_panic;
use tokenizers::{AddedToken, ModelWrapper, PostProcessorWrapper, Tokenizer};

use super::IdsAndSpans;
use super::lazy::Lazy;
use crate::error::{Error, Result};

/// Ids are int32 in every batch.
const MAX_ID: u32 = i32::MAX as u32;

/// How many characters of its errors are passed on.
const MOST_WORDS: usize = 400;

/// The `tokenizers` crate with truncation and padding off.
pub struct Reference {
    tokenizer: Tokenizer,
    /// The same without a post-processor, which may leave space out of a token's offsets. It changes no ids where no
    /// tokens are added.
    with_offsets: Lazy<Tokenizer>,
    largest_id: u32,
    ambiguous: Option<(String, String)>,
}

impl Reference {
    /// Loads a tokenizer.json. `truncation` and `padding` blocks in it are switched off: they would
    /// silently cut documents. `special_as_text` leaves special tokens in a text as plain text.
    pub fn from_bytes(json: &[u8], special_as_text: bool) -> Result<Self> {
        let mut tokenizer = library_call(|| Tokenizer::from_bytes(json)).map_err(|error| {
            Error::Tokenizer(format!("the `tokenizers` library cannot load this tokenizer.json: {error}"))
        })?;
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| Error::Tokenizer(format!("cannot switch truncation off: {error}")))?;
        tokenizer.set_encode_special_tokens(special_as_text);
        let last = tokenizer.get_vocab(true).into_iter().max_by_key(|(_, id)| *id);
        let (token, largest_id) = last.unwrap_or_default();
        if largest_id > MAX_ID {
            return Err(Error::Tokenizer(format!(
                "the token {token:?} of this tokenizer.json has the id {largest_id}: expected ids of at most {MAX_ID}, which \
                 int32 holds"
            )));
        }
        let ambiguous = ambiguous_tokens(&tokenizer)?;
        Ok(Self { tokenizer, with_offsets: Lazy::new(), largest_id, ambiguous })
    }

    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let encoding = library_call(|| self.tokenizer.encode_fast(text, false)).map_err(|error| {
            Error::Tokenizer(format!("the `tokenizers` library cannot encode this text: {error}"))
        })?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// The ids of a text, and for each the first character of its token in the text and the one behind its last, as the
    /// library's Python package gives them.
    pub fn encode_with_offsets(&self, text: &str) -> Result<IdsAndSpans> {
        let encoding = library_call(|| self.tokenizer.encode_char_offsets(text, false)).map_err(|error| {
            Error::Tokenizer(format!("the `tokenizers` library cannot encode this text: {error}"))
        })?;
        Ok((encoding.get_ids().to_vec(), encoding.get_offsets().to_vec()))
    }

    /// The offset of each token's first byte in the text. The ids must be those of the text.
    pub fn token_starts(&self, text: &str, ids: &[u32]) -> Result<Vec<usize>> {
        let tokenizer = self.with_offsets.get_or_make(|| {
            let mut tokenizer = self.tokenizer.clone();
            tokenizer.with_post_processor(None::<PostProcessorWrapper>);
            tokenizer
        });
        let encoding = library_call(|| tokenizer.encode(text, false)).map_err(|error| {
            Error::Tokenizer(format!("the `tokenizers` library cannot encode this text: {error}"))
        })?;
        if encoding.get_ids() != ids {
            return Err(self.not_the_ids(encoding.get_ids(), ids));
        }
        Ok(encoding.get_offsets().iter().map(|(start, _)| *start).collect())
    }

    /// The error for ids that are not those of a text. If added tokens in it were to be text, there are fewer of them.
    fn not_the_ids(&self, own: &[u32], ids: &[u32]) -> Error {
        let added = self.tokenizer.get_added_tokens_decoder();
        let count = |ids: &[u32], token: u32| ids.iter().filter(|id| **id == token).count();
        let protected = added.iter().find(|(id, _)| count(own, **id) > count(ids, **id));
        match protected {
            Some((_, token)) => Error::Tokenizer(format!(
                "expected a text that the tokenizer's normalizer leaves as it is, as a message in it spells {:?}, which \
                 special_tokens_in_content=\"text\" has encoded as text, found one that it changes: normalize the record \
                 before, or take that spelling out of it",
                token.content
            )),
            None => {
                Error::Bug("the ids of a text whose offsets are asked for are not the reference's".into())
            }
        }
    }

    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        library_call(|| self.tokenizer.decode(ids, false)).map_err(|error| {
            Error::Tokenizer(format!("the `tokenizers` library cannot decode these ids: {error}"))
        })
    }

    /// The type of its model, which a file need not name: the library tells it by the fields.
    pub fn model(&self) -> &'static str {
        match self.tokenizer.get_model() {
            ModelWrapper::BPE(_) => "BPE",
            ModelWrapper::WordPiece(_) => "WordPiece",
            ModelWrapper::WordLevel(_) => "WordLevel",
            ModelWrapper::Unigram(_) => "Unigram",
        }
    }

    /// The share of merges that its model skips, chosen at random for each text; none for most models.
    pub fn dropout(&self) -> Option<f32> {
        match self.tokenizer.get_model() {
            ModelWrapper::BPE(model) => model.dropout.filter(|dropout| *dropout > 0.0),
            _ => None,
        }
    }

    /// Two added tokens that normalize alike. The library searches for them in the order of a randomly seeded
    /// map, so that which of them is found is drawn anew at each load.
    pub fn ambiguous_tokens(&self) -> Option<(&str, &str)> {
        self.ambiguous.as_ref().map(|(first, second)| (first.as_str(), second.as_str()))
    }

    pub fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    pub fn largest_id(&self) -> u32 {
        self.largest_id
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }
}

/// The first two added tokens with the same normalized spelling, if there are such. An error if that of one is empty:
/// the library would find it everywhere, and panic before a character of several bytes.
fn ambiguous_tokens(tokenizer: &Tokenizer) -> Result<Option<(String, String)>> {
    let added = tokenizer.get_added_vocabulary();
    let mut tokens: Vec<(&u32, &AddedToken)> =
        added.get_added_tokens_decoder().iter().filter(|(_, token)| token.normalized).collect();
    tokens.sort_unstable_by_key(|(id, _)| **id);
    let mut by_spelling: AHashMap<String, &str> = AHashMap::with_capacity(tokens.len());
    let mut ambiguous = None;
    for (id, AddedToken { content, .. }) in tokens {
        // For a normalized token, this is what the library searches for.
        let spelling = added.simple_id_to_token(*id).unwrap_or_default();
        if spelling.is_empty() {
            return Err(Error::Tokenizer(format!(
                "the normalizer removes all of the added token {content:?} of this tokenizer.json, and with such a token \
                 the `tokenizers` library panics at some texts: set its \"normalized\" to false"
            )));
        }
        if let Some(first) = by_spelling.insert(spelling, content) {
            ambiguous.get_or_insert_with(|| (first.to_owned(), content.clone()));
        }
    }
    Ok(ambiguous)
}

/// Calls `tokenizers` and turns its panics into errors: some unusual files make it panic when they are loaded, or with
/// the first text.
pub fn library_call<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    let result = catch_panic(call).unwrap_or_else(|message| Err(format!("it panicked: {message}").into()));
    // A `continuing_subword_prefix` is stripped from merges by its length, even in the middle of a character, and the
    // token that the message then names is not UTF-8.
    result.map_err(|error| {
        let words = error.to_string();
        let words = String::from_utf8_lossy(words.as_bytes());
        // It may quote strings of the file whole.
        match words.char_indices().nth(MOST_WORDS) {
            Some((end, _)) => format!("{}…", &words[..end]).into(),
            None => words.into(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_an_error_are_bounded() {
        let json = format!(r#"{{"version": "{}"}}"#, "é".repeat(1_000_000));
        let error = Reference::from_bytes(json.as_bytes(), false).err().unwrap().to_string();
        assert!(error.contains("Unknown tokenizer version 'éé") && error.ends_with("é…"), "{error}");
        assert!(error.chars().count() < 500);
    }

    #[test]
    fn an_id_that_int32_does_not_hold_is_refused() {
        let json = |id: u32| {
            format!(
                r#"{{"model": {{"type": "WordLevel", "vocab": {{"a": 0, "b": {id}}}, "unk_token": "a"}}}}"#
            )
        };
        assert!(Reference::from_bytes(json(MAX_ID).as_bytes(), false).is_ok());
        let error = Reference::from_bytes(json(MAX_ID + 1).as_bytes(), false).err().unwrap().to_string();
        assert!(error.contains("\"b\"") && error.contains("2147483648"), "{error}");
    }

    /// A tokenizer.json with added tokens, each with whether it is normalized.
    fn with_added_tokens(normalizer: &str, tokens: &[(&str, bool)]) -> String {
        let entry = |(content, normalized): &(&str, bool)| {
            serde_json::json!({"id": 0, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                               "normalized": normalized, "special": false})
        };
        serde_json::json!({
            "added_tokens": tokens.iter().map(entry).collect::<Vec<_>>(),
            "normalizer": {"type": normalizer, "strip_left": true, "strip_right": true},
            "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
        })
        .to_string()
    }

    #[test]
    fn added_tokens_that_normalize_alike_are_found() {
        let all: [(&[(&str, bool)], _); 4] = [
            (&[("Apple", true), ("pear", true), ("apple", true)], Some(("Apple", "apple"))),
            (&[("Apple", false), ("apple", true)], None),
            (&[("apple", true), ("apple", true)], None),
            (&[], None),
        ];
        for (tokens, expected) in all {
            let reference =
                Reference::from_bytes(with_added_tokens("Lowercase", tokens).as_bytes(), false).unwrap();
            assert_eq!(reference.ambiguous_tokens(), expected);
        }
    }

    #[test]
    fn an_added_token_of_which_the_normalizer_leaves_nothing_is_refused() {
        let load = |tokens| Reference::from_bytes(with_added_tokens("Strip", tokens).as_bytes(), false);
        let error = load(&[("b", true), ("\n", true)]).err().unwrap().to_string();
        assert!(error.contains(r#"added token "\n""#) && error.contains("set its"), "{error}");
        let mut ids = Vec::new();
        load(&[("b", true), ("\n", false)]).unwrap().encode("\n b", &mut ids).unwrap();
        assert_eq!(ids, [2, 1]);
    }

    #[test]
    fn message_of_the_library_is_valid_text() {
        let json = r##"{"model": {"type": "BPE", "continuing_subword_prefix": "#",
            "vocab": {"a": 0, "é日": 1, "a\u0000": 2}, "merges": [["a", "é日"]]}}"##;
        let error = Reference::from_bytes(json.as_bytes(), false).err().unwrap().to_string();
        assert!(std::str::from_utf8(error.as_bytes()).is_ok());
        assert!(error.contains("out of vocabulary"), "{error}");
    }

    #[test]
    fn a_panic_of_the_library_is_an_error() {
        let json = r#"{"normalizer": {"type": "Precompiled"}, "model":
            {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}"#;
        let error = Reference::from_bytes(json.as_bytes(), false).err().unwrap().to_string();
        assert!(error.contains("cannot load this tokenizer.json: it panicked: "), "{error}");
    }
}
