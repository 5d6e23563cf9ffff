//! The inflated bytes of a tar, in order, with parts passed over.

use crate::codec::Decoder;
use crate::format::reader::CHUNK_BYTES;

/// Bytes requested after a jump, which lead to the next header in most cases. Each further request is twice as large: a tar
/// of short texts is read in few of them, and one of images is not read as a whole.
const FEWEST_BYTES: usize = 4 << 10;

pub(super) struct Input {
    decoder: Decoder,
    buffer: Vec<u8>,
    /// `buffer[start..end]` was inflated and not consumed.
    start: usize,
    end: usize,
    /// Offset of the next byte.
    offset: u64,
    request: usize,
}

impl Input {
    pub(super) fn new(decoder: Decoder) -> Self {
        Self { decoder, buffer: Vec::new(), start: 0, end: 0, offset: 0, request: FEWEST_BYTES }
    }

    /// Offset of the next byte.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads as many bytes as `out` has, fewer only at the end. Returns their number.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Result<usize, String> {
        let mut length = 0;
        while length < out.len() {
            let rest = &mut out[length..];
            if self.start == self.end && rest.len() >= CHUNK_BYTES {
                let read = self.decoder.read(rest)?;
                if read == 0 {
                    break;
                }
                self.offset += read as u64;
                length += read;
                continue;
            }
            let held = self.fill()?;
            let taken = held.len().min(rest.len());
            if taken == 0 {
                break;
            }
            rest[..taken].copy_from_slice(&held[..taken]);
            self.consume(taken);
            length += taken;
        }
        Ok(length)
    }

    /// Passes over bytes, without reading them where the codec allows that. Returns their number, which is smaller only at
    /// the end.
    pub(super) fn pass(&mut self, length: u64) -> Result<u64, String> {
        let held = (self.end - self.start) as u64;
        if length <= held {
            self.consume(length as usize);
            return Ok(length);
        }
        self.consume(held as usize);
        let mut passed = held;
        let skipped = self.decoder.pass_over(length - passed)?;
        self.offset += skipped;
        passed += skipped;
        self.request = FEWEST_BYTES;
        while passed < length {
            let held = self.fill()?.len();
            if held == 0 {
                break;
            }
            let taken = held.min(usize::try_from(length - passed).unwrap_or(usize::MAX));
            self.consume(taken);
            passed += taken as u64;
        }
        Ok(passed)
    }

    /// The bytes that were inflated and not consumed; inflates more if there are none. Empty at the end.
    fn fill(&mut self) -> Result<&[u8], String> {
        if self.start == self.end {
            if self.buffer.len() < self.request {
                self.buffer.resize(self.request, 0);
            }
            (self.start, self.end) = (0, 0);
            self.end = self.decoder.read(&mut self.buffer[..self.request])?;
            self.request = (2 * self.request).min(CHUNK_BYTES);
        }
        Ok(&self.buffer[self.start..self.end])
    }

    fn consume(&mut self, length: usize) {
        self.start += length;
        self.offset += length as u64;
    }
}
