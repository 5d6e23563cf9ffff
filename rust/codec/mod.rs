//! Codecs: how a file is compressed. [`Decoder`] inflates the bytes of a store, in bounded memory.

mod gzip;

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::store::ByteStream;
use gzip::Gzip;
pub use gzip::MAGIC as GZIP_MAGIC;

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    None,
    /// A chain of gzip members.
    Gzip,
}

type Input = BufReader<ByteStream>;

/// Compressed bytes read at once.
const INPUT_BYTES: usize = 64 << 10;

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
}

impl Decoder {
    /// Inflates `source`. Reading fails once another thread sets `stop`.
    pub fn new(codec: Codec, source: ByteStream, stop: &Arc<AtomicBool>) -> Self {
        let codec = match codec {
            Codec::None => State::None,
            Codec::Gzip => State::Gzip(Box::default()),
        };
        let input = BufReader::with_capacity(INPUT_BYTES, source);
        Self { input, codec, damage: None, stop: Arc::clone(stop) }
    }

    /// Writes the next inflated bytes to `out` and returns their number, 0 at the end of the shard.
    ///
    /// All bytes before any damage are returned first, however the source divides them, so that the position of an error
    /// does not depend on that. Damage is final: each later call repeats it.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, String> {
        if let Some(damage) = &self.damage {
            return Err(damage.clone());
        }
        // Here and not where the file is read, because a buffer of it may inflate to a thousand times its size.
        if self.stop.load(Ordering::Relaxed) {
            return Err("reading was stopped".to_owned());
        }
        let result = match &mut self.codec {
            State::None => read_plain(&mut self.input, out),
            State::Gzip(gzip) => gzip.read(&mut self.input, out),
        };
        result.or_else(|Damage { written, reason }| {
            self.damage = Some(reason.clone());
            if written > 0 { Ok(written) } else { Err(reason) }
        })
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

fn read_plain(input: &mut Input, out: &mut [u8]) -> Result<usize, Damage> {
    loop {
        match input.read(out) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map_err(|error| read_failed(&error).into()),
        }
    }
}

/// The bytes read but not yet consumed; reads more if there are none.
fn fill(input: &mut Input) -> Result<&[u8], String> {
    loop {
        match input.fill_buf() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read_failed(&error)),
        }
    }
    Ok(input.buffer())
}

/// The message of a failure of the store.
pub(crate) fn read_failed(error: &io::Error) -> String {
    format!(
        "expected to read more of the file, found: {error}; check the disk, and that no program writes to the file"
    )
}
