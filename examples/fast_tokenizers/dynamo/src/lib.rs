//! A tokenizer of Dynamo's frontend whose ids gristmill computes.
//!
//! Dynamo 1.0 and later choose a tokenizer by `DYN_TOKENIZER` or `--tokenizer`: `fastokens` and `basetenkenizer` stand
//! beside `default`, which is the `tokenizers` library. Each is a [`Tokenizer`] that encodes by itself and leaves
//! decoding to the library. This is one more of these: its ids are those of the library, for each text.

use std::path::Path;

use dynamo_tokenizers::traits::{DecodeResult, Decoder, Encoder, Tokenizer};
use dynamo_tokenizers::{EncodeSegment, Encoding, Error, HuggingFaceTokenizer, Result, TokenIdType};
use gristmill_encoder::Engine;

/// Encodes by gristmill, and decodes by the `tokenizers` library, both of one tokenizer.json.
pub struct GristmillTokenizer {
    encoder: gristmill_encoder::Encoder,
    library: HuggingFaceTokenizer,
    threads: usize,
}

impl GristmillTokenizer {
    /// Loads a tokenizer.json.
    ///
    /// # Errors
    ///
    /// It is none; gristmill's fast engine does not know a part of it; it pads or cuts texts; or a
    /// tokenizer_config.json beside it adds tokens that it lacks. Take Dynamo's default then.
    pub fn from_file(path: &str) -> Result<Self> {
        let json = std::fs::read(Path::new(path))?;
        let encoder = gristmill_encoder::Encoder::from_bytes(&json)?;
        if encoder.engine() != Engine::Fast {
            return Err(Error::msg(format!("{path}: {}", encoder.engine_reason())));
        }
        let parts: serde_json::Value = serde_json::from_slice(&json)?;
        if let Some(part) = ["padding", "truncation"].into_iter().find(|part| !parts[part].is_null()) {
            return Err(Error::msg(format!("{path}: it has {part}, which gristmill leaves to others")));
        }
        let library = HuggingFaceTokenizer::from_file(path)?;
        let (own, all) = (encoder.vocab_size(), library.vocab_size());
        if all != Some(own) {
            return Err(Error::msg(format!(
                "{path}: {own} tokens, with those of its tokenizer_config.json {all:?}"
            )));
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { encoder, library, threads })
    }
}

impl Encoder for GristmillTokenizer {
    fn encode(&self, input: &str) -> Result<Encoding> {
        Ok(Encoding::Sp(self.encoder.encode(input)?))
    }

    fn encode_batch(&self, inputs: &[&str]) -> Result<Vec<Encoding>> {
        let found = self.encoder.encode_batch(inputs, self.threads, || false)?;
        let (ids, offsets) = found.expect("nothing interrupts it");
        let ends = offsets.windows(2).map(|pair| pair[0] as usize..pair[1] as usize);
        Ok(ends.map(|range| Encoding::Sp(ids[range].to_vec())).collect())
    }

    fn encode_segments(&self, segments: &[EncodeSegment<'_>]) -> Result<Encoding> {
        self.library.encode_segments(segments)
    }
}

impl Decoder for GristmillTokenizer {
    fn has_unstable_suffix(&self, token_ids: &[TokenIdType], skip_special_tokens: bool) -> bool {
        self.library.has_unstable_suffix(token_ids, skip_special_tokens)
    }

    fn decode(&self, token_ids: &[TokenIdType], skip_special_tokens: bool) -> Result<DecodeResult> {
        self.library.decode(token_ids, skip_special_tokens)
    }
}

impl Tokenizer for GristmillTokenizer {
    fn validate_prefix_cache(&self) -> Result<()> {
        self.library.validate_prefix_cache()
    }

    fn vocab_size(&self) -> Option<usize> {
        self.library.vocab_size()
    }

    fn token_to_id(&self, token: &str) -> Result<Option<TokenIdType>> {
        self.library.token_to_id(token)
    }

    fn special_token_ids(&self) -> Result<Vec<TokenIdType>> {
        self.library.special_token_ids()
    }

    fn num_special_tokens_added(&self) -> Result<usize> {
        Ok(0) // as Dynamo's default encodes unless it is told otherwise
    }
}
