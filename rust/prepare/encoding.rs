//! The encoding of samples by themselves, where no lane places their ids.

use std::sync::{Arc, Mutex, PoisonError};

use super::Sample;
use crate::encode::{EncodeWorker, Encoder, Engine};
use crate::error::{Error, Result, caught};

/// The reference engine takes a hundred times the size of a text in memory: of longer ones it encodes one at a time.
const LONG: usize = 1 << 20;

/// Encodes for one thread.
pub struct SampleEncoder {
    encoder: Encoder,
    worker: EncodeWorker,
    /// Held while the reference encodes a long text; shared by all threads.
    long: Arc<Mutex<()>>,
}

impl SampleEncoder {
    /// An encoder that takes turns with others that share `long` where texts take much memory.
    pub fn new(encoder: &Encoder, long: &Arc<Mutex<()>>) -> Self {
        Self { encoder: encoder.clone(), worker: encoder.worker(), long: Arc::clone(long) }
    }

    /// Appends the ids of a sample, in whose data no special token is recognised, nor one of `guarded`.
    pub fn encode(&mut self, sample: &Sample, guarded: &[String], ids: &mut Vec<u32>) -> Result<()> {
        let Sample { text, data, .. } = sample;
        let takes_turn = self.encoder.engine() == Engine::Reference && text.len() > LONG;
        let _turn = takes_turn.then(|| self.long.lock().unwrap_or_else(PoisonError::into_inner));
        let encoded = caught(|| {
            Ok(if data.is_empty() {
                self.worker.encode(text, ids)
            } else {
                self.worker.encode_around(text, data, guarded, ids)
            }?)
        });
        if matches!(encoded, Err(Error::Bug(_))) {
            self.worker = self.encoder.worker(); // a panic may have left anything in the old one
        }
        encoded
    }

    /// Where in a text its tokens begin. The error is a message about the record.
    pub fn token_starts(&self, text: &str, ids: &[u32]) -> Result<Vec<usize>, String> {
        caught(|| Ok(self.encoder.token_starts(text, ids)?))
            .map_err(|error| format!("the mask of trained tokens cannot be derived: {error}"))
    }
}
