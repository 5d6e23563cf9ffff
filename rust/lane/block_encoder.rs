//! The encoding of a block, which takes most of the workers' time.

use std::sync::Arc;

use super::block::{Block, Document, Failure, Then};
use super::cursor::Place;
use super::ids::IdsPool;
use crate::config::StreamConfig;
use crate::encode::{EncodeWorker, Encoder};
use crate::error::{Error, caught};
use crate::random::hash;

/// The longest text that is also encoded by the reference, which takes a hundred times its size in memory.
const MOST_VERIFIED: usize = 1 << 20;

/// Turns the texts of blocks into ids, for one thread.
pub struct BlockEncoder {
    config: Arc<StreamConfig>,
    encoder: Encoder,
    worker: EncodeWorker,
    /// Share of the documents that are also encoded by the reference.
    verify: f64,
    ids: Arc<IdsPool>,
}

impl BlockEncoder {
    /// An encoder for one thread. `verify` is the share of documents, 0 to 1, whose ids are compared with those of the
    /// reference. Blocks get their memory from `ids`.
    pub fn new(config: &Arc<StreamConfig>, encoder: &Encoder, verify: f64, ids: Arc<IdsPool>) -> Self {
        Self { config: Arc::clone(config), encoder: encoder.clone(), worker: encoder.worker(), verify, ids }
    }

    /// Fills in the ids of a block. `text` holds its documents' texts one after another. A document that
    /// cannot be encoded, or whose ids differ from the reference's, ends the block. Returns how many documents were
    /// compared with the reference and found equal.
    pub fn encode(&mut self, block: &mut Block, text: &str) -> u64 {
        let mut verified = 0;
        block.ids = self.ids.take();
        let mut start = 0;
        for index in 0..block.documents.len() {
            let document = block.documents[index];
            let end = start + document.text_bytes;
            let before = block.ids.len();
            block.ids.extend(self.config.bos);
            match self.encode_document(&text[start..end], &document, &mut block.ids) {
                Ok(compared) => verified += u64::from(compared),
                Err(reason) => {
                    block.ids.truncate(before);
                    self.fail(block, index, reason);
                    return verified;
                }
            }
            block.ids.extend(self.config.eos);
            block.documents[index].tokens = block.ids.len() - before;
            start = end;
        }
        verified
    }

    /// Appends a document's ids, and says whether they were compared with the reference's. The error says
    /// what is wrong with them.
    fn encode_document(
        &mut self,
        text: &str,
        document: &Document,
        ids: &mut Vec<u32>,
    ) -> Result<bool, String> {
        let before = ids.len();
        caught(|| self.worker.encode(text, ids)).map_err(|error| {
            if matches!(error, Error::Bug(_)) {
                self.worker = self.encoder.worker(); // a panic may have left anything in the old one
            }
            error.to_string()
        })?;
        if text.len() > MOST_VERIFIED || !is_sampled(document, self.verify) {
            return Ok(false);
        }
        let mut expected = Vec::new();
        self.encoder.encode_with_reference(text, &mut expected).map_err(|error| error.to_string())?;
        let found = &ids[before..];
        if found == expected {
            return Ok(true);
        }
        let equal = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        let id = |ids: &[u32]| ids.get(equal).map_or("the end".to_owned(), u32::to_string);
        Err(format!(
            "expected the ids of the reference engine, found a difference at token {equal}: {} instead of {}. This is \
             a bug in the fast engine, please report it; Encoder(..., engine=\"reference\") avoids it",
            id(found),
            id(&expected),
        ))
    }

    fn fail(&self, block: &mut Block, index: usize, reason: String) {
        let Document { place, shard, quarantined_before, .. } = block.documents[index];
        let error = place.error(&self.config.shards[shard as usize], reason);
        block.documents.truncate(index);
        block.then = Then::Failed(Box::new(Failure { error: error.into(), place, quarantined_before }));
    }
}

/// Whether a document is in the share that is verified: the same documents in every run.
fn is_sampled(document: &Document, share: f64) -> bool {
    let Document { place: Place { epoch, record, .. }, shard, .. } = *document;
    hash([epoch, shard.into(), record]) as f64 <= share * 2f64.powi(62)
}

#[cfg(test)]
mod tests {
    use super::super::cursor::Cursor;
    use super::super::quarantine::Losses;
    use super::super::source::Source;
    use super::super::tests::{folder_of, lines};
    use super::*;

    /// An encoder for two letters.
    fn encoder(vocab: &str) -> Encoder {
        let pre_tokenizer = r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}"#;
        let model = format!(r#"{{"type": "BPE", "vocab": {vocab}, "merges": []}}"#);
        Encoder::from_bytes(
            format!(r#"{{"pre_tokenizer": {pre_tokenizer}, "model": {model}, "added_tokens": []}}"#)
                .as_bytes(),
        )
        .unwrap()
    }

    #[test]
    fn a_document_that_the_reference_encodes_otherwise_ends_the_block() {
        let shard = lines(&["aa", "aab", "aa"]);
        let folder = folder_of([("0.jsonl".to_owned(), shard)].into_iter());
        let config = Arc::new(folder.config);
        let mut text = String::new();
        let mut block = Source::new(Arc::clone(&config), 0, &Cursor::default()).read(&mut text);
        let new = |vocab| BlockEncoder::new(&config, &encoder(vocab), 1.0, IdsPool::new(1));
        // As if the fast engine had a bug.
        let worker = encoder(r#"{"a": 0, "b": 2}"#).worker();
        let verified = BlockEncoder { worker, ..new(r#"{"a": 0, "b": 1}"#) }.encode(&mut block, &text);
        assert_eq!((block.documents.len(), &**block.ids, verified), (1, &[0, 0][..], 1));
        let Then::Failed(failure) = &block.then else { panic!("{:?}", block.then) };
        let error = failure.error.to_string();
        assert!(error.contains("0.jsonl: record 1, byte 15: "), "{error}");
        assert!(error.contains("a difference at token 2: 2 instead of 1. "), "{error}");
    }

    #[test]
    fn long_documents_are_not_compared() {
        let long = "a".repeat(MOST_VERIFIED + 1);
        let folder = folder_of([("0.jsonl".to_owned(), lines(&["a", &long, "a"]))].into_iter());
        let config = Arc::new(folder.config);
        let (mut text, mut verified) = (String::new(), 0);
        let mut source = Source::new(Arc::clone(&config), 0, &Cursor::default());
        let mut encoder = BlockEncoder::new(&config, &encoder(r#"{"a": 0, "b": 1}"#), 1.0, IdsPool::new(1));
        let mut documents = 0;
        while !source.is_done() {
            let mut block = source.read(&mut text);
            verified += encoder.encode(&mut block, &text);
            documents += block.documents.len();
        }
        assert_eq!((documents, verified), (3, 2));
    }

    #[test]
    fn the_sample_is_the_share_that_was_asked_for() {
        let documents: Vec<Document> = (0..10_000)
            .map(|i| Document {
                place: Place { epoch: i / 5000, shard: 0, record: i % 5000, byte: 0 },
                shard: i as u32 % 7,
                text_bytes: 0,
                tokens: 0,
                quarantined_before: Losses::default(),
            })
            .collect();
        for share in [0.0, 1e-4, 0.01, 0.5, 1.0] {
            let count = documents.iter().filter(|document| is_sampled(document, share)).count() as f64;
            let deviation = (10_000.0 * share * (1.0 - share)).sqrt();
            assert!((count - share * 10_000.0).abs() <= 5.0 * deviation, "{share}: {count}");
        }
    }
}
