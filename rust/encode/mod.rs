//! Text to ids: exactly those of the Hugging Face `tokenizers` crate at its pinned version.
//!
//! [`Encoder`] is made once from tokenizer.json and shared; every thread that encodes makes its own
//! [`EncodeWorker`], which owns whatever that thread must be able to change.

mod reference;
pub mod split;

use std::sync::Arc;

use crate::error::Result;
use reference::Reference;

/// Which engine computes the ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// gristmill's own, for the tokenizers whose structure it recognises.
    Fast,
    /// The `tokenizers` crate.
    Reference,
}

/// A tokenizer, ready to encode. Cloning shares it.
#[derive(Clone)]
pub struct Encoder {
    shared: Arc<Shared>,
}

struct Shared {
    reference: Reference,
}

/// What one thread needs to encode; make one per thread with [`Encoder::worker`].
pub struct EncodeWorker {
    shared: Arc<Shared>,
}

impl Encoder {
    /// Makes an encoder from the bytes of a tokenizer.json.
    pub fn from_bytes(json: &[u8]) -> Result<Self> {
        let reference = Reference::from_bytes(json)?;
        Ok(Self { shared: Arc::new(Shared { reference }) })
    }

    /// The engine that was chosen at load.
    pub fn engine(&self) -> Engine {
        Engine::Reference
    }

    /// One sentence: what was recognised, or what was not.
    pub fn engine_reason(&self) -> &'static str {
        "this build has the reference engine only"
    }

    /// Number of ids, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.shared.reference.vocab_size()
    }

    /// The id of a token as it is spelled in tokenizer.json.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.shared.reference.token_to_id(token)
    }

    /// The spelling of an id in tokenizer.json.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.shared.reference.id_to_token(id)
    }

    /// The text of some ids, as the reference decodes them, special tokens kept.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.shared.reference.decode(ids)
    }

    /// What one thread needs to encode.
    pub fn worker(&self) -> EncodeWorker {
        EncodeWorker { shared: Arc::clone(&self.shared) }
    }
}

impl EncodeWorker {
    /// Appends the ids of `text` to `ids`, no special tokens added.
    pub fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.shared.reference.encode(text, ids)
    }
}
