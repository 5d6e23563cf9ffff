//! JSONL: one JSON object a line.

mod lines;

use gristmill_json as json;
use gristmill_json::{Line, Member, Offsets, Selector, View};

use super::reader::{Found, Reader, Unreadable};
use super::sniff::not_lines;
use super::{AfterError, Position, RawKind, RawRecord};
use crate::codec::{Decoder, PieceStart};
use lines::{Line as LineRead, Lines};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Finds the lines that hold records.
pub(super) struct JsonlReader {
    lines: Lines,
    max_line_bytes: u64,
}

impl JsonlReader {
    pub(super) fn new(input: Decoder, max_line_bytes: u64) -> Self {
        Self { lines: Lines::new(input, max_line_bytes), max_line_bytes }
    }

    /// Finds those that start in a piece.
    pub(super) fn of_piece(input: Decoder, start: &PieceStart, max_line_bytes: u64) -> Result<Self, String> {
        Ok(Self { lines: Lines::of_piece(input, start, max_line_bytes)?, max_line_bytes })
    }

    /// The next line that is not blank. None at the end.
    pub(super) fn next(&mut self) -> Result<Option<RawRecord<'_>>, Unreadable> {
        loop {
            let position = self.lines.position();
            if position == Position::default()
                && let Some(found) = not_lines(self.lines.head())
            {
                let reason = format!("expected JSON lines in the compressed file, found {found}");
                return Err(Unreadable { position, rest: AfterError::Lost, reason });
            }
            match self.lines.next() {
                Ok(LineRead::Complete(range)) => {
                    if !is_blank(without_mark(self.lines.bytes(range.clone()), position)) {
                        let bytes = self.lines.bytes(range);
                        return Ok(Some(RawRecord::new(RawKind::Line, position, bytes)));
                    }
                }
                Ok(LineRead::TooLong { bytes, first }) => return Err(self.too_long(position, bytes, first)),
                Ok(LineRead::End) => return Ok(None),
                Err(reason) => return Err(self.lost(reason)),
            }
        }
    }

    fn too_long(&self, position: Position, bytes: u64, first: u8) -> Unreadable {
        let advice = match first {
            b'[' => "if the file is one JSON array, convert it to one object per line with jq -c '.[]'",
            _ => "raise max_document_bytes= to read it",
        };
        let limit = self.max_line_bytes;
        let reason = format!("expected a line of at most {limit} bytes, found one of {bytes}; {advice}");
        Unreadable { position, rest: AfterError::Readable, reason }
    }

    /// The shard cannot be read any further: the line that could not be completed is lost, and everything after it.
    fn lost(&self, reason: String) -> Unreadable {
        let position = Position { record: self.lines.position().record, byte: self.lines.inflated() };
        Unreadable { position, rest: AfterError::Lost, reason }
    }
}

impl Reader for JsonlReader {
    /// Where the next line starts.
    fn position(&self) -> Position {
        self.lines.position()
    }

    fn skip_to(&mut self, target: Position) -> Result<Found, Unreadable> {
        self.lines.skip_to(target).map_err(|reason| self.lost(reason))
    }

    fn skip_records(&mut self, number: u64) -> Result<Found, Unreadable> {
        while self.lines.position().record < number {
            if self.lines.next().map_err(|reason| self.lost(reason))? == LineRead::End {
                break;
            }
        }
        Ok(Found::Target)
    }
}

/// Appends the string under `key` to `text`, and returns its bytes. The error is a message about the line.
pub(super) fn extract(record: RawRecord<'_>, key: &str, text: &mut String) -> Result<usize, String> {
    let line = without_mark(record.bytes, record.position);
    json::extract(line, key, text).map_err(|fault| fault.describe(line, record.bytes.len() - line.len(), key))
}

/// Like [`extract`] of a record that `is_kept`, which gets the values of the selector's paths. Returns whether it is kept.
pub(super) fn extract_if(
    record: RawRecord<'_>,
    key: &str,
    text: &mut String,
    selector: &Selector,
    offsets: &mut Offsets,
    is_kept: impl FnOnce(Line<'_>) -> bool,
) -> Result<bool, String> {
    let line = without_mark(record.bytes, record.position);
    json::extract_if(line, key, text, selector, offsets, is_kept)
        .map_err(|fault| fault.describe(line, record.bytes.len() - line.len(), key))
}

/// Finds the values of the selector's paths in a line, and returns it. The error is a message about the line.
pub(super) fn select<'a>(
    bytes: &'a [u8],
    position: Position,
    selector: &Selector,
    offsets: &mut Offsets,
) -> Result<&'a str, String> {
    let line = without_mark(bytes, position);
    json::select(line, selector, offsets).map_err(|fault| fault.describe(line, bytes.len() - line.len(), ""))
}

/// The members of the line's object. The error is a message about the line.
pub(super) fn members(record: RawRecord<'_>) -> Result<Vec<Member>, String> {
    let line = without_mark(record.bytes, record.position);
    json::members(line).map_err(|fault| fault.describe(line, record.bytes.len() - line.len(), ""))
}

/// The value of a JSON text, which may begin with a byte order mark. The error is a message about it.
pub(super) fn value(text: &[u8]) -> Result<View<'_>, String> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    json::value(text).map_err(|fault| fault.describe(text, 0, ""))
}

/// A line without the byte order mark that may begin a shard.
pub(super) fn without_mark(line: &[u8], position: Position) -> &[u8] {
    if position.byte == 0 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
}
