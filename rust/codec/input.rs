//! The compressed bytes of a shard, in order, with parts skipped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::read_failed;
use crate::store::Source;

/// Bytes read at once.
const BUFFER_BYTES: usize = 64 << 10;

/// A buffered position in a source.
pub(super) struct Input {
    source: Box<dyn Source>,
    buffer: Box<[u8]>,
    /// `buffer[start..end]` was read and not consumed.
    start: usize,
    end: usize,
    /// Offset in the source of the byte after those.
    offset: u64,
    stop: Arc<AtomicBool>,
}

impl Input {
    /// Reading fails once another thread sets `stop`.
    pub(super) fn new(source: Box<dyn Source>, stop: &Arc<AtomicBool>) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self { source, buffer, start: 0, end: 0, offset: 0, stop: Arc::clone(stop) }
    }

    /// Offset in the source of the first byte that was not consumed.
    pub(super) fn offset(&self) -> u64 {
        self.offset - (self.end - self.start) as u64
    }

    /// Goes to an offset.
    pub(super) fn go_to(&mut self, offset: u64) {
        (self.start, self.end, self.offset) = (0, 0, offset);
    }

    /// The bytes that were read and not consumed; reads more if there are none. Empty at the end.
    pub(super) fn fill(&mut self) -> Result<&[u8], String> {
        self.fill_at_most(BUFFER_BYTES)
    }

    /// As [`fill`](Self::fill), but reads at most `most` bytes: where those after them will be skipped.
    pub(super) fn fill_at_most(&mut self, most: usize) -> Result<&[u8], String> {
        if self.start == self.end {
            let most = most.min(BUFFER_BYTES);
            (self.start, self.end) = (0, 0);
            self.end = read(&mut *self.source, self.offset, &mut self.buffer[..most], &self.stop)?;
            self.offset += self.end as u64;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    /// Consumes bytes that [`fill`](Self::fill) returned.
    pub(super) fn consume(&mut self, length: usize) {
        self.start += length;
    }

    /// Consumes bytes without reading them. Returns whether there were as many.
    pub(super) fn skip(&mut self, length: u64) -> bool {
        let held = (self.end - self.start) as u64;
        if length <= held {
            self.start += length as usize;
            return true;
        }
        (self.start, self.end) = (0, 0);
        let after = self.offset.saturating_add(length - held);
        self.offset = after.min(self.source.size());
        self.offset == after
    }

    /// Reads without the buffer, which must be empty.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Result<usize, String> {
        let length = read(&mut *self.source, self.offset, out, &self.stop)?;
        self.offset += length as u64;
        Ok(length)
    }
}

fn read(source: &mut dyn Source, offset: u64, out: &mut [u8], stop: &AtomicBool) -> Result<usize, String> {
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err("reading was stopped".to_owned());
        }
        match source.read_at(offset, out) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map_err(|error| read_failed(&error)),
        }
    }
}
