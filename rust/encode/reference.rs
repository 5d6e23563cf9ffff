//! The reference engine: the pinned `tokenizers` crate, set up to give plain ids.

use tokenizers::Tokenizer;

use crate::error::{Error, Result};

/// The `tokenizers` crate with truncation and padding off.
pub struct Reference {
    tokenizer: Tokenizer,
}

impl Reference {
    /// Loads a tokenizer.json. `truncation` and `padding` blocks in it are switched off: they would
    /// silently cut documents. `special_as_text` leaves special tokens in a text as plain text.
    pub fn from_bytes(json: &[u8], special_as_text: bool) -> Result<Self> {
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|error| {
            Error::Tokenizer(format!("the `tokenizers` library cannot load this tokenizer.json: {error}"))
        })?;
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| Error::Tokenizer(format!("cannot switch truncation off: {error}")))?;
        tokenizer.set_encode_special_tokens(special_as_text);
        Ok(Self { tokenizer })
    }

    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let encoding = self.tokenizer.encode_fast(text, false).map_err(|error| {
            Error::Tokenizer(format!("the `tokenizers` library cannot encode this text: {error}"))
        })?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids, false).map_err(|error| {
            Error::Tokenizer(format!("the `tokenizers` library cannot decode these ids: {error}"))
        })
    }

    pub fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }
}
