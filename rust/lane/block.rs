//! A block: the documents that are read, encoded and packed as one unit of work.

use std::sync::Arc;

use super::cursor::Place;
use crate::config::StreamConfig;
use crate::encode::EncodeWorker;
use crate::error::{Error, ShardError};

/// Some documents of a lane, in stream order, with what was met among and behind them.
#[derive(Debug, Default)]
pub struct Block {
    /// The sound documents.
    pub documents: Vec<Document>,
    /// The ids of all documents, one after another, BOS and EOS included. Filled by encoding.
    pub ids: Vec<u32>,
    /// The records that were left out.
    pub quarantined: Vec<ShardError>,
    /// What comes next.
    pub then: Then,
}

/// One document of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Document {
    /// Where its record stands.
    pub place: Place,
    /// Bytes of UTF-8 text.
    pub text_bytes: usize,
    /// Number of its ids. Filled by encoding.
    pub tokens: usize,
    /// Quarantined records between the document before (also of the block before) and this one.
    pub quarantined_before: u64,
}

/// What follows the documents of a block.
#[derive(Debug, Default)]
pub enum Then {
    /// The next block, in the same window.
    #[default]
    More,
    /// The end of a window. The next one begins at this place.
    WindowEnd(Place),
    /// The end of the lane's last epoch, and its place.
    Ended(Place),
    /// A record that stops the run.
    Failed(Failure),
}

/// What stops a lane, and where it can be tried again.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What is wrong.
    pub error: Error,
    /// Where reading goes on in a run that is restored behind the last sound document.
    pub place: Place,
    /// Quarantined records between that document and `place`.
    pub quarantined_before: u64,
}

/// Turns the texts of a lane's block into ids.
///
/// `text` holds the documents' texts one after another. A document that cannot be encoded ends the
/// block there.
pub fn encode(block: &mut Block, text: &str, encoder: &mut EncodeWorker, config: &StreamConfig, lane: usize) {
    let mut start = 0;
    for index in 0..block.documents.len() {
        let document = &mut block.documents[index];
        let Document { place, quarantined_before, .. } = *document;
        let end = start + document.text_bytes;
        let before = block.ids.len();
        block.ids.extend(config.bos);
        if let Err(error) = encoder.encode(&text[start..end], &mut block.ids) {
            let error = ShardError {
                shard: Arc::clone(&config.shard(lane, place).path),
                record: Some(place.record),
                byte: Some(place.byte),
                reason: error.to_string(),
            };
            block.ids.truncate(before);
            block.documents.truncate(index);
            block.then = Then::Failed(Failure { error: error.into(), place, quarantined_before });
            return;
        }
        block.ids.extend(config.eos);
        document.tokens = block.ids.len() - before;
        start = end;
    }
}
