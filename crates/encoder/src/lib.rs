//! Text to ids: exactly those of the Hugging Face `tokenizers` crate at its pinned version.
//!
//! [`Encoder`] is created once from tokenizer.json and shared; every encoding thread creates its own [`EncodeWorker`],
//! which owns all state that the thread changes.
//!
//! There are two engines. The fast one is gristmill's own and takes the tokenizers whose structure it recognises
//! (`plan.rs`): byte-level and SentencePiece-style BPE, `WordPiece` and Unigram. The other is the `tokenizers` crate itself, for
//! everything else. `fast.rs` shows the path of a text through the fast engine; docs/exact-ids.md explains what makes it
//! fast.

mod added_tokens;
mod byte_alphabet;
mod encode_batch;
mod error;
mod fast;
mod ids;
mod layout;
mod lazy;
mod lookup;
mod merge;
mod model;
mod normalize;
mod normalize_and_cut;
mod offsets;
mod plan;
mod pretokenize;
mod reference;
mod simd;
mod tokenizer_json;
mod utf8;
mod vocab;

use std::num::NonZero;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;

pub use error::{Error, Result};
use fast::{FastEncoder, FastWorker};
use gristmill_system::lock_unless_forked;
use ids::IdDensity;
use lazy::Lazy;
use offsets::Spellings;
#[doc(hidden)] // for the benchmark of pre-tokenizers alone
pub use pretokenize::{
    PADDING,
    boundaries::Boundaries,
    patterns::{Pretokenizer, SplitScratch},
};
use reference::Reference;
pub use simd::Simd;
use tokenizer_json::TokenizerJson;

/// Version of the `tokenizers` crate whose ids these are; part of a run's identity.
pub const TOKENIZERS_VERSION: &str = "0.23.2";

/// The engine that computes the ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// gristmill's own, for the tokenizers whose structure it recognises.
    Fast,
    /// The `tokenizers` crate.
    Reference,
}

/// The treatment of special tokens that are spelled out in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpecialTokens {
    /// Their ids, as in the reference.
    #[default]
    Id,
    /// The ids that their characters encode to (`encode_special_tokens` of the reference).
    Text,
}

/// How to make an [`Encoder`].
#[derive(Debug, Clone)]
pub struct EncoderOptions {
    /// The treatment of special tokens that are spelled out in a text.
    pub special_tokens_in_text: SpecialTokens,
    /// [`Engine::Reference`] to use the reference engine whatever the file; [`Engine::Fast`] to use the fast one where
    /// the file allows.
    pub engine: Engine,
    /// About how many bytes the cache of one worker may grow to.
    pub cache_bytes: usize,
    /// The instructions that the hot loops run on: other than the best one only for tests and comparisons.
    pub simd: Simd,
}

impl Default for EncoderOptions {
    fn default() -> Self {
        Self {
            special_tokens_in_text: SpecialTokens::Id,
            engine: Engine::Fast,
            cache_bytes: 64 << 20,
            simd: Simd::detect(),
        }
    }
}

/// The memory of an encoder, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderMemory {
    /// Shared by all workers: vocabulary, merges, tables, and the file itself.
    pub shared: usize,
    /// The memory that the cache of one worker begins with.
    pub worker: usize,
    /// The bound on the cache of one worker; buffers of a few times its longest text come on top, of tens of times
    /// behind a normalizer of the library.
    pub worker_bound: usize,
}

/// The ids of a text, and for each the first character of its token in the text and the one behind its last.
pub type IdsAndSpans = (Vec<u32>, Vec<(usize, usize)>);

/// A tokenizer, ready to encode. Cloning shares it.
///
/// ```
/// use gristmill_encoder::{Encoder, Engine};
///
/// let json = r#"{"pre_tokenizer": {"type": "Whitespace"}, "model":
///     {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}"#;
/// let encoder = Encoder::from_bytes(json.as_bytes())?;
/// let mut ids = Vec::new();
/// encoder.worker().encode("ab aab", &mut ids)?;
/// assert_eq!(ids, [2, 0, 2]);
/// assert_eq!(encoder.engine(), Engine::Fast);
/// # Ok::<(), gristmill_encoder::Error>(())
/// ```
#[derive(Clone)]
pub struct Encoder {
    shared: Arc<Shared>,
}

struct Shared {
    json: Box<[u8]>,
    options: EncoderOptions,
    backend: Backend,
    reason: String,
    /// Idle workers: those of earlier calls of [`Encoder::encode`] and [`Encoder::encode_batch`], whose caches are
    /// warm, and one created at load. Workers that [`Encoder::worker`] gives away do not come back.
    idle: Mutex<Vec<FastWorker>>,
    /// Made when offsets are first asked for.
    spellings: Lazy<Spellings>,
    cores: usize,
    density: IdDensity,
}

enum Backend {
    /// With the reference for what only it does, created when first needed: it takes several times as long as
    /// everything else together.
    Fast(Arc<FastEncoder>, Lazy<Result<Reference, String>>),
    Reference(Reference),
}

/// The memory that one thread needs to encode; create one per thread with [`Encoder::worker`].
pub struct EncodeWorker {
    shared: Arc<Shared>,
    fast: Option<FastWorker>,
}

impl Encoder {
    /// Creates an encoder from the bytes of a tokenizer.json.
    pub fn from_bytes(json: &[u8]) -> Result<Self> {
        Self::with_options(json, EncoderOptions::default())
    }

    /// Creates an encoder with options other than the defaults.
    pub fn with_options(json: &[u8], options: EncoderOptions) -> Result<Self> {
        let (backend, reason) = match make_fast(json, &options) {
            Ok(fast) => {
                let description = fast.description.clone();
                (Backend::Fast(Arc::new(fast), Lazy::new()), description)
            }
            // The reference may refuse what the fast engine does not support.
            Err(reason) => {
                let reference = make_reference(json, &options)?;
                let reason = match reference.model() {
                    model @ "WordLevel" if options.engine == Engine::Fast => {
                        unsupported(&format!("its model is {model}"))
                    }
                    _ => reason,
                };
                (Backend::Reference(reference), reason)
            }
        };
        let idle = Mutex::new(backend.new_worker().into_iter().collect());
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let density = IdDensity::new();
        let shared = Shared {
            json: json.into(),
            options,
            backend,
            reason,
            idle,
            spellings: Lazy::new(),
            cores,
            density,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The bytes of the tokenizer.json that this was created from.
    pub fn json(&self) -> &[u8] {
        &self.shared.json
    }

    /// The engine that was chosen at load.
    pub fn engine(&self) -> Engine {
        match self.shared.backend {
            Backend::Fast(..) => Engine::Fast,
            Backend::Reference(_) => Engine::Reference,
        }
    }

    /// One sentence: what was recognised, or why the fast engine does not support it.
    pub fn engine_reason(&self) -> &str {
        &self.shared.reason
    }

    /// The type of the model: BPE, Unigram, `WordPiece` or `WordLevel`.
    pub fn model(&self) -> &'static str {
        match &self.shared.backend {
            Backend::Fast(fast, _) => fast.model(),
            Backend::Reference(reference) => reference.model(),
        }
    }

    /// The memory of the encoder and of each of its workers.
    pub fn memory(&self) -> EncoderMemory {
        let shared = self.shared.json.len();
        match &self.shared.backend {
            // Not counted: the reference caches ten thousand merged words per thread.
            Backend::Reference(_) => EncoderMemory { shared, worker: 0, worker_bound: 0 },
            Backend::Fast(fast, _) => EncoderMemory {
                shared: shared + fast.bytes(),
                worker: fast.worker_bytes(),
                worker_bound: self.shared.options.cache_bytes,
            },
        }
    }

    /// The share of merges that dropout skips at random, if any: a text then gets different ids each time.
    pub fn dropout(&self) -> Option<f32> {
        match &self.shared.backend {
            Backend::Fast(..) => None,
            Backend::Reference(reference) => reference.dropout(),
        }
    }

    /// Two added tokens that normalize alike, if there are such: which of them a text gets is then random at each load.
    pub fn ambiguous_tokens(&self) -> Option<(&str, &str)> {
        match &self.shared.backend {
            Backend::Fast(..) => None,
            Backend::Reference(reference) => reference.ambiguous_tokens(),
        }
    }

    /// Number of ids, added tokens included. If there are gaps between them, the largest id is not below this number.
    pub fn vocab_size(&self) -> usize {
        match &self.shared.backend {
            Backend::Fast(fast, _) => fast.added.all,
            Backend::Reference(reference) => reference.vocab_size(),
        }
    }

    /// The largest id, added tokens included; 0 where there are none.
    pub fn largest_id(&self) -> u32 {
        match &self.shared.backend {
            Backend::Fast(fast, _) => fast.vocab.largest_id().max(fast.added.largest_id().unwrap_or(0)),
            Backend::Reference(reference) => reference.largest_id(),
        }
    }

    /// The id of a token as it is spelled in tokenizer.json.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        match &self.shared.backend {
            Backend::Fast(fast, _) => fast.added.id(token).or_else(|| fast.vocab.id(token)),
            Backend::Reference(reference) => reference.token_to_id(token),
        }
    }

    /// The spelling of an id in tokenizer.json.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        match &self.shared.backend {
            Backend::Fast(fast, _) => {
                fast.added.token(id).or_else(|| fast.vocab.token(id)).map(str::to_owned)
            }
            Backend::Reference(reference) => reference.id_to_token(id),
        }
    }

    /// The text of some ids, as the reference decodes them, special tokens kept.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.shared.reference()?.decode(ids)
    }

    /// Appends the ids that the reference gives a text, whatever the engine: for verification.
    pub fn encode_with_reference(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.shared.reference()?.encode(text, ids)
    }

    /// The ids of a text with the characters of their tokens. The reference tells them, since a normalizer and a
    /// post-processor change them.
    pub fn encode_with_offsets(&self, text: &str) -> Result<IdsAndSpans> {
        self.shared.reference()?.encode_with_offsets(text)
    }

    /// Why [`EncodeWorker::encode_around`] is not available, if it is not.
    pub fn recognises_special_everywhere(&self) -> Option<String> {
        match &self.shared.backend {
            Backend::Fast(fast, _) => fast.recognises_special_everywhere().map(str::to_owned),
            Backend::Reference(_) => Some(format!("the engine is the reference, {}", self.shared.reason)),
        }
    }

    /// For each of the ids of a text the offset of its token's first byte in the text. A token that stands for none, such
    /// as a space that is prepended, begins where the next one does.
    ///
    /// # Errors
    ///
    /// The reference, which is asked where a normalizer changed the text, cannot encode it or has other ids.
    pub fn token_starts(&self, text: &str, ids: &[u32]) -> Result<Vec<usize>> {
        if let Backend::Fast(fast, _) = &self.shared.backend
            && let Some(spelling) = fast.spelling()
        {
            let spellings = self.shared.spellings.get_or_make(|| {
                let tokens = (0..=self.largest_id()).map(|id| {
                    let added = fast.added.token(id);
                    let token = added.or_else(|| fast.vocab.token(id)).unwrap_or_default();
                    (token.to_owned(), added.is_some())
                });
                Spellings::new(spelling, tokens)
            });
            if fast.spells_by_length(text)
                && let Some(starts) = spellings.starts_by_length(text.len(), ids)
            {
                return Ok(starts);
            }
            if let Some(starts) = spellings.starts(text, ids) {
                return Ok(starts);
            }
            if let Some((normalized, offsets)) = fast.normalized_with_offsets(text, ids)
                && let Some(starts) = spellings.starts(&normalized, ids)
            {
                return Ok(starts.iter().map(|start| offsets[*start]).collect());
            }
        }
        self.token_starts_with_reference(text, ids)
    }

    /// The same as the reference tells it, for verification: a token that begins inside of a character begins with the
    /// character for it.
    pub fn token_starts_with_reference(&self, text: &str, ids: &[u32]) -> Result<Vec<usize>> {
        self.shared.reference()?.token_starts(text, ids)
    }

    /// The ids of a text, on this thread.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut worker = self.worker();
        let mut ids = self.shared.density.array(text.len());
        let outcome = worker.encode(text, &mut ids);
        worker.release();
        self.shared.density.trim(text.len(), &mut ids);
        outcome.map(|()| ids)
    }

    /// The memory that one thread needs to encode.
    pub fn worker(&self) -> EncodeWorker {
        let idle = lock_unless_forked(&self.shared.idle).and_then(|mut idle| idle.pop());
        let fast = idle.or_else(|| self.shared.backend.new_worker());
        EncodeWorker { shared: Arc::clone(&self.shared), fast }
    }
}

impl EncodeWorker {
    /// Appends the ids of `text` to `ids`, no special tokens added.
    pub fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        match &mut self.fast {
            Some(fast) => fast.encode(text, ids),
            None => self.shared.reference()?.encode(text, ids),
        }
    }

    /// Appends the ids of `text`, in which none of these added tokens, no special one, and none that it has outside of the
    /// ranges `data` too is recognised where it overlaps one of them: bytes, in order, none touching the next one. All other
    /// added tokens, and those of white space, are recognised everywhere.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode); and where that cannot be, as [`Encoder::recognises_special_everywhere`] says, or
    /// because the model makes a special token of ordinary text.
    pub fn encode_around(
        &mut self,
        text: &str,
        data: &[Range<usize>],
        tokens: &[String],
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        if let Some(reason) = self.recognises_special_everywhere() {
            return Err(Error::Tokenizer(format!("special tokens cannot be told from text: {reason}")));
        }
        match &mut self.fast {
            Some(fast) => fast.encode_around(text, data, tokens, ids),
            None => Err(Error::Tokenizer("special tokens cannot be told from text by the reference".into())),
        }
    }

    fn recognises_special_everywhere(&self) -> Option<&'static str> {
        match &self.shared.backend {
            Backend::Fast(fast, _) => fast.recognises_special_everywhere(),
            Backend::Reference(_) => None,
        }
    }

    /// Leaves it, with what it has cached, to later calls of [`Encoder::encode`] and [`Encoder::encode_batch`].
    fn release(self) {
        self.shared.keep(self.fast);
    }
}

impl Shared {
    /// Keeps a worker for later calls, if there are not yet as many as can run at once.
    fn keep(&self, mut worker: Option<FastWorker>) {
        if let Some(mut idle) = lock_unless_forked(&self.idle)
            && idle.len() < self.cores
        {
            idle.extend(worker.take());
        }
        // One too many is freed here, which takes long, and not while the lock is held.
    }

    fn reference(&self) -> Result<&Reference> {
        match &self.backend {
            Backend::Reference(reference) => Ok(reference),
            Backend::Fast(_, reference) => {
                let make = || make_reference(&self.json, &self.options).map_err(|error| error.to_string());
                reference.get_or_make(make).as_ref().map_err(|message| Error::Tokenizer(message.clone()))
            }
        }
    }
}

impl Backend {
    /// The memory that a thread needs for the fast engine.
    fn new_worker(&self) -> Option<FastWorker> {
        match self {
            Self::Fast(fast, _) => Some(FastWorker::new(Arc::clone(fast))),
            Self::Reference(_) => None,
        }
    }
}

fn make_reference(json: &[u8], options: &EncoderOptions) -> Result<Reference> {
    Reference::from_bytes(json, options.special_tokens_in_text == SpecialTokens::Text)
}

/// The fast engine, or a sentence that says why it is not available.
fn make_fast(json: &[u8], options: &EncoderOptions) -> Result<FastEncoder, String> {
    if options.engine == Engine::Reference {
        return Err("the reference engine was requested".into());
    }
    // The parts of the file are validated by the reference's types, which may panic.
    let parsed = reference::library_call(|| Ok(TokenizerJson::parse(json)));
    parsed
        .unwrap_or_else(|error| Err(error.to_string()))
        .and_then(|file| FastEncoder::new(file, options))
        .map_err(|reason| unsupported(&reason))
}

fn unsupported(reason: &str) -> String {
    format!("not supported by the fast engine: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_in_text_of_another_form_need_no_reference() {
        let json = r#"{
            "version": "1.0", "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
            "added_tokens": [{"id": 5, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "model": {"type": "BPE", "vocab": {"a": 0, "Ġ": 1, "Ã": 2, "©": 3, "e": 4}, "merges": []}}"#;
        let encoder = Encoder::from_bytes(json.as_bytes()).unwrap();
        let needs_reference = || match &encoder.shared.backend {
            Backend::Fast(_, reference) => reference.is_made(),
            Backend::Reference(_) => true,
        };
        for (text, starts) in [
            ("a<s> e\u{301}a", vec![0, 1, 4, 5, 5, 8]),
            ("e\u{301}<s>e\u{301}", vec![0, 0, 3, 6, 6]),
            ("\u{e9} a", vec![0, 1, 2, 3]),
        ] {
            let ids = encoder.encode(text).unwrap();
            assert_eq!(encoder.token_starts(text, &ids).unwrap(), starts, "{text:?}");
        }
        assert!(!needs_reference());
        // The spelling of a control token that was encoded as text.
        let (text, data) = ("e\u{301}<s>", 0..6);
        let mut ids = Vec::new();
        assert!(encoder.worker().encode_around(text, std::slice::from_ref(&data), &[], &mut ids).is_ok());
        assert!(encoder.token_starts(text, &ids).is_err());
        assert!(needs_reference());
    }

    #[test]
    fn the_version_is_that_of_the_crate() {
        let locked = format!("name = \"tokenizers\"\nversion = \"{TOKENIZERS_VERSION}\"\n");
        assert!(include_str!("../../../Cargo.lock").contains(&locked));
    }
}
