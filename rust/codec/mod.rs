//! Codecs: how a file is compressed. [`Decoder`] inflates the bytes of a store, in bounded memory; [`BlockDecoder`] the
//! blocks of formats that compress parts of a file.

mod block;
mod gzip;
mod gzip_blocks;
mod gzip_index;
mod inflater;
mod input;
mod zstd;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::store::Source;
pub use block::{BlockCodec, BlockDecoder};
use gzip::Gzip;
pub use gzip::MAGIC as GZIP_MAGIC;
use gzip_blocks::GzipBlocks;
pub use gzip_index::{GzipIndex, index_path, write_index};
pub use inflater::crc_of;
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

/// The inflated bytes of a shard, or of a piece of it.
pub struct Decoder {
    input: Input,
    codec: State,
    /// Where the piece ends in the file, until that is [passed](Self::pass_end).
    end: u64,
    damage: Option<String>,
    stop: Arc<AtomicBool>,
}

/// Where a piece starts.
#[derive(Default)]
pub struct PieceStart {
    /// The offset of its first byte in the inflated file, or of its first frame of Zstandard in the file.
    pub byte: u64,
    /// The newlines before it, if they are known.
    pub lines: Option<u64>,
    /// The inflated byte before it, if there is one.
    pub before: Option<u8>,
    /// The file is one frame, which belongs to the first piece.
    pub is_alone: bool,
}

/// Inflated bytes requested at once.
const CHUNK_BYTES: usize = 128 << 10;

/// A codec with its state between reads.
enum State {
    None,
    Gzip(Box<Gzip>),
    GzipBlocks(Box<GzipBlocks>),
    Zstd(Box<Zstd>),
}

impl Decoder {
    /// Inflates `source`, of which the longest record may have `longest` bytes. Reading fails once another thread sets `stop`.
    pub fn new(codec: Codec, source: Box<dyn Source>, longest: u64, stop: &Arc<AtomicBool>) -> Self {
        let codec = match codec {
            Codec::None => State::None,
            Codec::Gzip => State::Gzip(Box::default()),
            Codec::Zstd => State::Zstd(Box::new(Zstd::new(longest))),
        };
        Self { input: Input::new(source, stop), codec, end: u64::MAX, damage: None, stop: Arc::clone(stop) }
    }

    /// Inflates a piece of a file: its bytes if it is not compressed, or what is in frames of Zstandard or blocks of gzip
    /// that start in it. Without an index, gzip is inflated up to the piece.
    pub fn of_piece(
        codec: Codec,
        source: Box<dyn Source>,
        piece: &Range<u64>,
        index: Option<&GzipIndex>,
        longest: u64,
        stop: &Arc<AtomicBool>,
    ) -> Result<(Self, PieceStart), String> {
        let mut decoder = Self::new(codec, source, longest, stop);
        let mut start = PieceStart { byte: piece.start, ..PieceStart::default() };
        if codec == Codec::Gzip {
            let mut blocks = GzipBlocks::new();
            let from = index.map(|index| index.before(piece.start)).transpose()?.flatten();
            let found = blocks.find(&mut decoder.input, piece.start, from.as_ref())?;
            (start.byte, start.lines, start.before) = (found.inflated, Some(found.lines), found.before);
            (decoder.codec, decoder.end) = (State::GzipBlocks(Box::new(blocks)), piece.end);
            return Ok((decoder, start));
        }
        match &mut decoder.codec {
            _ if piece.start == 0 => {}
            State::Zstd(zstd) => {
                let found = zstd.find_frame(&mut decoder.input, piece.start)?;
                start.byte = found.offset;
                start.is_alone = found.is_alone;
                start.before = decoder.last_byte(found.before..found.offset)?;
                // A frame may be empty, although its header does not say so.
                if start.before.is_none() && found.before > 0 {
                    start.before = decoder.last_byte(0..found.offset)?;
                }
            }
            _ => start.before = decoder.last_byte(piece.start - 1..piece.start)?,
        }
        decoder.restart(start.byte..piece.end);
        Ok((decoder, start))
    }

    /// How many frames of Zstandard a file has.
    pub fn count_frames(source: Box<dyn Source>) -> Result<u64, String> {
        Zstd::new(0).count_frames(&mut Input::new(source, &Arc::default()))
    }

    /// The last inflated byte of a part of the file.
    fn last_byte(&mut self, part: Range<u64>) -> Result<Option<u8>, String> {
        self.restart(part);
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut last = None;
        loop {
            match self.read(&mut chunk)? {
                0 => return Ok(last),
                length => last = Some(chunk[length - 1]),
            }
        }
    }

    fn restart(&mut self, part: Range<u64>) {
        self.input.go_to(part.start);
        self.end = part.end;
        if let State::Zstd(zstd) = &mut self.codec {
            zstd.restart();
        }
    }

    /// Writes the next inflated bytes to `out` and returns their number, 0 at the end of the shard and of the piece.
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
            State::None => {
                let left = self.end.saturating_sub(self.input.offset());
                let most = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                self.input.read(&mut out[..most]).map_err(Damage::from)
            }
            State::Gzip(gzip) => gzip.read(&mut self.input, out),
            State::GzipBlocks(gzip) => gzip.read(&mut self.input, self.end, out),
            State::Zstd(zstd) => zstd.read(&mut self.input, self.end, out),
        };
        result.or_else(|Damage { written, reason }| {
            self.damage = Some(reason.clone());
            if written > 0 { Ok(written) } else { Err(reason) }
        })
    }

    /// Lets reading continue after the end of the piece; returns whether it had not been passed.
    pub fn pass_end(&mut self) -> bool {
        std::mem::replace(&mut self.end, u64::MAX) < u64::MAX
    }

    /// Skips at most `most` inflated bytes that need not be inflated to know their number, and returns it: whole frames
    /// of Zstandard that begin where the last read ended.
    pub fn skip(&mut self, most: u64) -> Result<u64, String> {
        match &mut self.codec {
            State::Zstd(zstd) if self.damage.is_none() => zstd
                .skip(&mut self.input, self.end, most)
                .inspect_err(|damage| self.damage = Some(damage.clone())),
            _ => Ok(0),
        }
    }

    /// As [`skip`](Self::skip), and any bytes of a file that is not compressed. Fewer only at its end, or where the codec
    /// must inflate.
    pub fn pass_over(&mut self, most: u64) -> Result<u64, String> {
        match self.codec {
            State::None => {
                let before = self.input.offset();
                self.input.skip(most);
                Ok(self.input.offset() - before)
            }
            _ => self.skip(most),
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
    // Objects in stores fail with this kind, and their messages say what to do.
    let advice = match error.kind() {
        io::ErrorKind::ConnectionAborted => "",
        _ => "; check the disk, and that no program writes to the file",
    };
    format!("expected to read more of the file, found: {error}{advice}")
}
