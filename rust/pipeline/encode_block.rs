//! The encoding of a block, which takes most of the workers' time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::encode::{EncodeWorker, Encoder, Engine};
use crate::error::{Error, Result, caught};
use crate::lane::block::{Block, BlockEnd, Document, Failure};
use crate::lane::cursor::RecordPosition;
use crate::lane::id_buffer::IdPool;
use crate::random::hash;
use crate::spec::StreamSpec;

/// The reference takes a hundred times the size of a text in memory. Longer ones are not verified, and where it is the
/// engine, they are encoded by one thread at a time.
const LONG: usize = 1 << 20;

/// Turns the texts of blocks into ids, for one thread.
pub struct BlockEncoder {
    spec: Arc<StreamSpec>,
    encoder: Encoder,
    worker: EncodeWorker,
    /// Share of the documents that are also encoded by the reference.
    verify: f64,
    ids: Arc<IdPool>,
    /// Held while the reference encodes a long text; shared by all threads.
    long: Arc<Mutex<()>>,
    /// Set once nobody waits for what is encoded.
    stop: Arc<AtomicBool>,
}

impl BlockEncoder {
    /// An encoder for one thread. `verify` is the share of documents, 0 to 1, whose ids are compared with those of the
    /// reference. Blocks get their memory from `ids`.
    pub fn new(spec: &Arc<StreamSpec>, encoder: &Encoder, verify: f64, ids: Arc<IdPool>) -> Self {
        Self {
            spec: Arc::clone(spec),
            encoder: encoder.clone(),
            worker: encoder.worker(),
            verify,
            ids,
            long: Arc::default(),
            stop: Arc::default(),
        }
    }

    /// Makes it take turns with others that share `long` where texts take much memory.
    #[must_use]
    pub fn taking_turns(mut self, long: &Arc<Mutex<()>>) -> Self {
        self.long = Arc::clone(long);
        self
    }

    /// Makes encoding end with the document at which `stop` is set.
    #[must_use]
    pub fn stopped_by(mut self, stop: &Arc<AtomicBool>) -> Self {
        self.stop = Arc::clone(stop);
        self
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
            block.ids.extend(self.spec.bos);
            match self.encode_document(&text[start..end], &document, &mut block.ids) {
                Ok(compared) => verified += u64::from(compared),
                Err(error) => {
                    block.ids.truncate(before);
                    fail(block, index, error);
                    return verified;
                }
            }
            block.ids.extend(self.spec.eos);
            block.documents[index].tokens = block.ids.len() - before;
            start = end;
        }
        verified
    }

    /// Appends a document's ids, and says whether they were compared with the reference's.
    fn encode_document(&mut self, text: &str, document: &Document, ids: &mut Vec<u32>) -> Result<bool> {
        let is_reference = self.encoder.engine() == Engine::Reference;
        let takes_turn = is_reference && text.len() > LONG;
        let _turn = takes_turn.then(|| self.long.lock().unwrap_or_else(PoisonError::into_inner));
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        let Document { place, shard, .. } = *document;
        let located = |reason| Error::Shard(place.error(&self.spec.shards[shard as usize], reason));
        let before = ids.len();
        if let Err(error) = caught(|| Ok(self.worker.encode(text, ids)?)) {
            if matches!(error, Error::Bug(_)) {
                self.worker = self.encoder.worker(); // a panic may have left anything in the old one
            }
            let advice = if matches!(error, Error::Tokenizer(_)) {
                "; on_error= leaves out no such text: mend the tokenizer, or remove the record"
            } else {
                ""
            };
            return Err(located(format!("{error}{advice}")));
        }
        if is_reference || text.len() > LONG || !is_sampled(document, self.verify) {
            return Ok(false);
        }
        let mut expected = Vec::new();
        let encoded = self.encoder.encode_with_reference(text, &mut expected);
        encoded.map_err(|error| located(error.to_string()))?;
        let found = &ids[before..];
        if found == expected {
            return Ok(true);
        }
        let equal = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        let id = |ids: &[u32]| ids.get(equal).map_or("the end".to_owned(), u32::to_string);
        Err(located(format!(
            "expected the ids of the reference engine, found a difference at token {equal}: {} instead of {}. This is \
             a bug in the fast engine, please report it; Encoder(..., engine=\"reference\") avoids it",
            id(found),
            id(&expected),
        )))
    }
}

/// Ends a block before one of its documents.
fn fail(block: &mut Block, index: usize, error: Error) {
    let Document { place, quarantined_before, .. } = block.documents[index];
    block.documents.truncate(index);
    block.then = BlockEnd::Failed(Box::new(Failure { error, place, quarantined_before }));
}

/// Whether a document is in the share that is verified: the same documents in every run.
fn is_sampled(document: &Document, share: f64) -> bool {
    let Document { place: RecordPosition { epoch, record, .. }, shard, .. } = *document;
    hash([epoch, shard.into(), record]) as f64 <= share * 2f64.powi(62)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::cursor::Cursor;
    use crate::lane::reader::LaneReader;
    use crate::pack::tests::{folder_of, lines};
    use crate::quarantine::log::QuarantineCounts;

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
        let spec = Arc::new(folder.spec);
        let mut text = String::new();
        let mut block = LaneReader::new(Arc::clone(&spec), 0, &Cursor::default()).read(&mut text);
        let new = |vocab| BlockEncoder::new(&spec, &encoder(vocab), 1.0, IdPool::new(1));
        // As if the fast engine had a bug.
        let worker = encoder(r#"{"a": 0, "b": 2}"#).worker();
        let verified = BlockEncoder { worker, ..new(r#"{"a": 0, "b": 1}"#) }.encode(&mut block, &text);
        assert_eq!((block.documents.len(), &**block.ids, verified), (1, &[0, 0][..], 1));
        let BlockEnd::Failed(failure) = &block.then else { panic!("{:?}", block.then) };
        let error = failure.error.to_string();
        assert!(error.contains("0.jsonl: record 1, byte 15: "), "{error}");
        assert!(error.contains("a difference at token 2: 2 instead of 1. "), "{error}");
    }

    #[test]
    fn long_documents_are_not_compared() {
        let long = "a".repeat(LONG + 1);
        let folder = folder_of([("0.jsonl".to_owned(), lines(&["a", &long, "a"]))].into_iter());
        let spec = Arc::new(folder.spec);
        let (mut text, mut verified) = (String::new(), 0);
        let mut source = LaneReader::new(Arc::clone(&spec), 0, &Cursor::default());
        let mut encoder = BlockEncoder::new(&spec, &encoder(r#"{"a": 0, "b": 1}"#), 1.0, IdPool::new(1));
        let mut documents = 0;
        while !source.is_done() {
            let mut block = source.read(&mut text);
            verified += encoder.encode(&mut block, &text);
            documents += block.documents.len();
        }
        assert_eq!((documents, verified), (3, 2));
    }

    #[test]
    fn what_nobody_waits_for_is_not_encoded() {
        let folder = folder_of([("0.jsonl".to_owned(), lines(&["a", "b"]))].into_iter());
        let spec = Arc::new(folder.spec);
        let mut text = String::new();
        let mut block = LaneReader::new(Arc::clone(&spec), 0, &Cursor::default()).read(&mut text);
        let encoder = encoder(r#"{"a": 0, "b": 1}"#);
        let stop = Arc::new(AtomicBool::new(true));
        BlockEncoder::new(&spec, &encoder, 0.0, IdPool::new(1)).stopped_by(&stop).encode(&mut block, &text);
        assert!(block.documents.is_empty() && block.ids.is_empty(), "{block:?}");
        assert!(matches!(&block.then, BlockEnd::Failed(failure) if matches!(failure.error, Error::Closed)));
    }

    #[test]
    fn the_sample_is_the_share_that_was_asked_for() {
        let documents: Vec<Document> = (0..10_000)
            .map(|i| Document {
                place: RecordPosition { epoch: i / 5000, shard: 0, record: i % 5000, byte: 0 },
                shard: i as u32 % 7,
                text_bytes: 0,
                tokens: 0,
                quarantined_before: QuarantineCounts::default(),
            })
            .collect();
        for share in [0.0, 1e-4, 0.01, 0.5, 1.0] {
            let count = documents.iter().filter(|document| is_sampled(document, share)).count() as f64;
            let deviation = (10_000.0 * share * (1.0 - share)).sqrt();
            assert!((count - share * 10_000.0).abs() <= 5.0 * deviation, "{share}: {count}");
        }
    }
}
