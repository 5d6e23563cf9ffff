//! Codecs: how a file is compressed. [`Decoder`] inflates the bytes of a store, in bounded memory; [`BlockDecoder`] the
//! blocks of formats that compress parts of a file.

mod block;
mod gzip;
mod input;
mod zstd;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::store::Source;
pub use block::{BlockCodec, BlockDecoder};
use gzip::Gzip;
pub use gzip::MAGIC as GZIP_MAGIC;
use input::Input;
use zstd::Zstd;
pub use zstd::{MAGIC as ZSTD_MAGIC, is_skippable as is_skippable_frame};

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    None,
    /// A chain of gzip members.
    Gzip,
    /// A chain of Zstandard frames.
    Zstd,
}

/// The inflated bytes of a shard.
pub struct Decoder {
    input: Input,
    codec: State,
    damage: Option<String>,
    stop: Arc<AtomicBool>,
}

/// A codec with its state between reads.
enum State {
    None,
    Gzip(Box<Gzip>),
    Zstd(Box<Zstd>),
}

impl Decoder {
    /// Inflates `source`. Reading fails once another thread sets `stop`.
    pub fn new(codec: Codec, source: Box<dyn Source>, stop: &Arc<AtomicBool>) -> Self {
        let codec = match codec {
            Codec::None => State::None,
            Codec::Gzip => State::Gzip(Box::default()),
            Codec::Zstd => State::Zstd(Box::default()),
        };
        Self { input: Input::new(source, stop), codec, damage: None, stop: Arc::clone(stop) }
    }

    /// Writes the next inflated bytes to `out` and returns their number, 0 at the end of the shard.
    ///
    /// All bytes before any damage are returned first, however the source divides them, so that the position of an error
    /// does not depend on that. Damage is final: each later call repeats it.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, String> {
        if let Some(damage) = &self.damage {
            return Err(damage.clone());
        }
        // Here and not only where the file is read, because a buffer of it may inflate to a thousand times its size.
        if self.stop.load(Ordering::Relaxed) {
            return Err("reading was stopped".to_owned());
        }
        let result = match &mut self.codec {
            State::None => self.input.read(out).map_err(Damage::from),
            State::Gzip(gzip) => gzip.read(&mut self.input, out),
            State::Zstd(zstd) => zstd.read(&mut self.input, out),
        };
        result.or_else(|Damage { written, reason }| {
            self.damage = Some(reason.clone());
            if written > 0 { Ok(written) } else { Err(reason) }
        })
    }

    /// Skips at most `most` inflated bytes that need not be inflated to know their number, and returns it: whole frames
    /// of Zstandard that begin where the last read ended.
    pub fn skip(&mut self, most: u64) -> Result<u64, String> {
        match &mut self.codec {
            State::Zstd(zstd) if self.damage.is_none() => {
                zstd.skip(&mut self.input, most).inspect_err(|damage| self.damage = Some(damage.clone()))
            }
            _ => Ok(0),
        }
    }
}

/// Why reading cannot continue.
struct Damage {
    /// Valid bytes that were written before the damage.
    written: usize,
    reason: String,
}

impl From<String> for Damage {
    fn from(reason: String) -> Self {
        Self { written: 0, reason }
    }
}

/// The message of a failure of the store.
pub(crate) fn read_failed(error: &io::Error) -> String {
    format!(
        "expected to read more of the file, found: {error}; check the disk, and that no program writes to the file"
    )
}
