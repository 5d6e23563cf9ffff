//! The lines of a shard, in bounded memory.

use std::ops::Range;

use memchr::{memchr, memchr_iter};

use crate::codec::{Decoder, PieceStart};
use crate::format::Position;
use crate::format::reader::{CHUNK_BYTES, Found};

/// Result of [`Lines::next`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line without its newline: [`bytes`](Lines::bytes) has it until the next call.
    Complete(Range<usize>),
    /// A line longer than accepted, which has been skipped.
    TooLong { bytes: u64, first: u8 },
    /// No more lines.
    End,
}

/// Splits inflated bytes into lines. Holds no more than one line of the accepted length and a chunk.
pub(super) struct Lines {
    input: Decoder,
    limit: usize,
    /// `buffer[start..end]` has been inflated and not returned; no newline before `scanned`.
    buffer: Vec<u8>,
    start: usize,
    scanned: usize,
    end: usize,
    /// Offset in the inflated shard of the byte after those.
    inflated: u64,
    /// Lines that start here belong to the next piece. Unknown until this piece's end is passed.
    piece_end: u64,
    /// Where the next line starts.
    position: Position,
}

impl Lines {
    pub(super) fn new(input: Decoder, max_line_bytes: u64) -> Self {
        Self {
            input,
            limit: usize::try_from(max_line_bytes).unwrap_or(usize::MAX),
            buffer: Vec::new(),
            start: 0,
            scanned: 0,
            end: 0,
            inflated: 0,
            piece_end: u64::MAX,
            position: Position::default(),
        }
    }

    /// The lines that start in a piece.
    pub(super) fn of_piece(input: Decoder, start: &PieceStart, max_line_bytes: u64) -> Result<Self, String> {
        let position = Position { record: start.lines.unwrap_or_default(), byte: start.byte };
        let mut lines = Self { position, inflated: start.byte, ..Self::new(input, max_line_bytes) };
        if start.before.is_some_and(|byte| byte != b'\n') {
            lines.drop_line(start.lines.is_some())?;
        }
        Ok(lines)
    }

    /// Drops the rest of a line that started in the piece before, and counts it or not.
    fn drop_line(&mut self, counts: bool) -> Result<(), String> {
        while self.fill()? > 0 {
            let newline = memchr(b'\n', &self.buffer[..self.end]);
            self.start = newline.map_or(self.end, |newline| newline + 1);
            self.scanned = self.start;
            self.position.byte += self.start as u64;
            if newline.is_some() {
                self.position.record += u64::from(counts);
                break;
            }
        }
        Ok(())
    }

    /// Where the next line starts.
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// Offset in the inflated shard of the first byte that was not inflated.
    pub(super) fn inflated(&self) -> u64 {
        self.inflated
    }

    /// The bytes of the line that was returned last.
    pub(super) fn bytes(&self, line: Range<usize>) -> &[u8] {
        &self.buffer[line]
    }

    /// The bytes that the next line begins with, if any were inflated.
    pub(super) fn head(&mut self) -> &[u8] {
        if self.start == self.end {
            // A failure comes again.
            _ = self.fill();
        }
        &self.buffer[self.start..self.end]
    }

    /// The next line. Errors are those of the input; all lines that end before an error are returned first.
    pub(super) fn next(&mut self) -> Result<Line, String> {
        if self.position.byte >= self.piece_end {
            return Ok(Line::End);
        }
        loop {
            if let Some(length) = memchr(b'\n', &self.buffer[self.scanned..self.end]) {
                let from = self.start;
                let to = self.scanned + length;
                self.take_line(to + 1);
                return Ok(self.bounded(from, to));
            }
            self.scanned = self.end;
            if self.end - self.start > self.limit {
                return self.pass_over();
            }
            if self.fill_line()? == 0 {
                let (from, to) = (self.start, self.end);
                if from == to {
                    return Ok(Line::End);
                }
                self.take_line(to);
                return Ok(self.bounded(from, to));
            }
        }
    }

    /// Drops everything before `target`, which should be the start of line `target.record`. Errors are those of the
    /// input. Only allowed before the first line is returned. Where the codec skips parts without inflating them, the
    /// lines in these are not counted, and `target.record` is taken as it is.
    pub(super) fn skip_to(&mut self, target: Position) -> Result<Found, String> {
        if target.byte < self.position.byte {
            return Ok(Found::Elsewhere(format!(
                "the first line of the piece starts at byte {}",
                self.position.byte
            )));
        }
        let mut unfinished = false;
        let mut counted = true;
        while self.position.byte < target.byte {
            if self.start == self.end {
                // Not the last byte, which shows whether a line ends there.
                let skipped = self.input.skip(target.byte - 1 - self.position.byte)?;
                self.position.byte += skipped;
                self.inflated += skipped;
                counted &= skipped == 0;
                if self.fill_on()? == 0 {
                    return Ok(Found::Elsewhere(format!("the shard ends at byte {}", self.position.byte)));
                }
            }
            let wanted = usize::try_from(target.byte - self.position.byte).unwrap_or(usize::MAX);
            let taken = &self.buffer[self.start..self.end.min(self.start.saturating_add(wanted))];
            self.position.record += memchr_iter(b'\n', taken).count() as u64;
            self.position.byte += taken.len() as u64;
            unfinished = taken.last() != Some(&b'\n');
            self.start += taken.len();
            self.scanned = self.start;
        }
        if unfinished {
            // Without a newline before it, a position is after a line only at the end of the shard.
            if self.start < self.end || self.fill_on()? > 0 {
                let line =
                    if counted { format!("line {}", self.position.record) } else { "a line".to_owned() };
                return Ok(Found::Elsewhere(format!("this byte is inside {line}")));
            }
            self.position.record += 1;
        }
        if !counted {
            self.position.record = target.record;
        }
        Ok(if self.position.record == target.record {
            Found::Target
        } else {
            Found::Elsewhere(format!("line {} starts there", self.position.record))
        })
    }

    fn bounded(&self, from: usize, to: usize) -> Line {
        if to - from > self.limit {
            Line::TooLong { bytes: (to - from) as u64, first: self.buffer[from] }
        } else {
            Line::Complete(from..to)
        }
    }

    /// Consumes `buffer[start..next]`, a line with its newline.
    fn take_line(&mut self, next: usize) {
        self.position.record += 1;
        self.position.byte += (next - self.start) as u64;
        self.start = next;
        self.scanned = next;
    }

    /// Skips a line that is too long without holding it in memory.
    fn pass_over(&mut self) -> Result<Line, String> {
        let first = self.buffer[self.start];
        let mut bytes = 0;
        let newline = loop {
            let held = &self.buffer[self.start..self.end];
            let newline = memchr(b'\n', held);
            let length = newline.unwrap_or(held.len());
            bytes += length as u64;
            self.start += length;
            self.scanned = self.start;
            if newline.is_some() || self.fill_on()? == 0 {
                break newline;
            }
        };
        self.position.byte += bytes;
        self.take_line(self.start + usize::from(newline.is_some()));
        Ok(Line::TooLong { bytes, first })
    }

    /// Inflates more bytes; returns 0 at the end of the shard, and at that of the piece unless a line continues there.
    fn fill_line(&mut self) -> Result<usize, String> {
        if self.start < self.end { self.fill_on() } else { self.fill() }
    }

    /// Inflates more bytes, also after the end of the piece; returns 0 at the end of the shard.
    fn fill_on(&mut self) -> Result<usize, String> {
        let length = self.fill()?;
        if length == 0 && self.input.pass_end() {
            self.piece_end = self.inflated;
            return self.fill();
        }
        Ok(length)
    }

    /// Inflates more bytes after those held; returns 0 at the end of the shard and of the piece.
    fn fill(&mut self) -> Result<usize, String> {
        self.make_room();
        let length = self.input.read(&mut self.buffer[self.end..])?;
        self.end += length;
        self.inflated += length as u64;
        Ok(length)
    }

    /// Moves the bytes that are held to the front, with room for at least a chunk after them. The buffer doubles while a line
    /// outgrows it, up to the accepted length, and shrinks again after that line.
    fn make_room(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        self.scanned = self.end;
        if self.buffer.len() < self.end + CHUNK_BYTES {
            let doubled = (2 * self.buffer.len()).max(CHUNK_BYTES);
            // Not a small last step: growing may hold the old buffer next to the new one.
            let size = if doubled < self.limit { doubled } else { self.limit.saturating_add(CHUNK_BYTES) };
            self.buffer.reserve_exact(size - self.buffer.len());
            self.buffer.resize(size, 0);
        } else if self.end < CHUNK_BYTES && self.buffer.len() > 4 * CHUNK_BYTES {
            self.buffer.truncate(2 * CHUNK_BYTES);
            self.buffer.shrink_to_fit();
        }
    }
}
