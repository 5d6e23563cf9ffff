//! Text to ids: exactly those of the Hugging Face `tokenizers` crate at its pinned version.
//!
//! [`Encoder`] is made once from tokenizer.json and shared; every thread that encodes makes its own
//! [`EncodeWorker`], which owns whatever that thread must be able to change.

mod reference;

use std::panic::resume_unwind;
use std::sync::Arc;

use crate::error::Result;
use reference::Reference;

/// Version of the `tokenizers` crate whose ids these are; part of a run's identity.
pub const TOKENIZERS_VERSION: &str = "0.23.2";

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

    /// The ids of all texts one after another, and where each text's begin, with the end at last.
    pub fn encode_batch<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        threads: usize,
    ) -> Result<(Vec<u32>, Vec<i64>)> {
        let share = texts.len().div_ceil(threads.max(1)).max(1);
        let parts: Vec<Result<(Vec<u32>, Vec<usize>)>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                texts.chunks(share).map(|texts| scope.spawn(|| self.encode_part(texts))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        let mut ids = Vec::new();
        let mut offsets = vec![0];
        for part in parts {
            let (part, ends) = part?;
            offsets.extend(ends.iter().map(|end| (ids.len() + end) as i64));
            ids.extend(part);
        }
        Ok((ids, offsets))
    }

    fn encode_part<T: AsRef<str>>(&self, texts: &[T]) -> Result<(Vec<u32>, Vec<usize>)> {
        let mut worker = self.worker();
        let mut ids = Vec::new();
        let mut ends = Vec::with_capacity(texts.len());
        for text in texts {
            worker.encode(text.as_ref(), &mut ids)?;
            ends.push(ids.len());
        }
        Ok((ids, ends))
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
