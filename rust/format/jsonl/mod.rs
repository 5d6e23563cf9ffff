//! JSONL: one record a line. The reader finds the documents of one shard in order, each with its place.

mod json;
mod lines;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::sniff::{Sniffed, sniff};
use super::{AfterError, Format, Position, ReadError, ReadOptions};
use crate::codec::Decoder;
use crate::error::{Error, Result, ShardError};
use crate::store::{ByteStream, LocalFile, Shard};
use json::Fault;
pub use json::Member;
use lines::{CHUNK_BYTES, Line, Lines, Skipped};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads the documents of one shard in order, in bounded memory: about one line and fixed buffers.
pub struct ShardReader {
    path: Arc<str>,
    options: Arc<ReadOptions>,
    lines: Lines,
    /// The shard has ended or cannot be read any further.
    ended: bool,
}

impl ShardReader {
    /// Opens a shard at its first record. A file that is missing or does not have the manifest's size is an
    /// [`Error::Shard`]; one that cannot be opened for lack of descriptors or memory is an [`Error::System`]. Once `stop`
    /// is set, by another thread, reading the shard fails.
    pub fn open(shard: &Shard, options: &Arc<ReadOptions>, stop: &Arc<AtomicBool>) -> Result<Self> {
        let file = LocalFile::open(shard, &options.folder)?;
        Ok(Self::from_source(&shard.path, Box::new(file), options, stop)?)
    }

    /// Opens a shard at a place that [`position`](Self::position) returned earlier. Everything before it is inflated
    /// and its lines are counted, but nothing is parsed. A place that is not the start of that line is an
    /// [`Error::State`].
    pub fn open_at(
        shard: &Shard,
        options: &Arc<ReadOptions>,
        position: Position,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let mut reader = Self::open(shard, options, stop)?;
        reader.skip_to(position)?;
        Ok(reader)
    }

    /// Reads a shard's bytes from any source. The extension of `path` says whether they must be gzip, and `path` names
    /// the shard in errors.
    pub fn from_source(
        path: &Arc<str>,
        source: ByteStream,
        options: &Arc<ReadOptions>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, ReadError> {
        Ok(Self {
            path: Arc::clone(path),
            options: Arc::clone(options),
            lines: Lines::new(inflated(path, source, stop)?, options.max_document_bytes),
            ended: false,
        })
    }

    /// Appends the text of the next document to `text`, and returns the place of its record and the bytes appended. None
    /// at the end. On error `text` is as it was.
    pub fn next(&mut self, text: &mut String) -> Result<Option<(Position, usize)>, ReadError> {
        self.next_record(|record, options| json::extract(record, &options.text_field, text))
    }

    /// The members of the next record, whether or not it has a text. None at the end.
    pub fn next_members(&mut self) -> Result<Option<Vec<Member>>, ReadError> {
        Ok(self.next_record(|record, _| json::members(record))?.map(|(_, members)| members))
    }

    /// The result of `take` on the next record, and the record's place. None at the end.
    fn next_record<T>(
        &mut self,
        take: impl FnOnce(&[u8], &ReadOptions) -> Result<T, Fault>,
    ) -> Result<Option<(Position, T)>, ReadError> {
        while !self.ended {
            let at = self.lines.position();
            let line = match self.lines.next() {
                Ok(Line::Complete(line)) => line,
                Ok(Line::TooLong { bytes }) => return Err(self.too_long(at, bytes)),
                Ok(Line::End) => break,
                Err(reason) => return Err(self.lost(reason)),
            };
            let skipped =
                if at.byte == 0 && line.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
            let record = &line[skipped..];
            if is_blank(record) {
                continue;
            }
            return match take(record, &self.options) {
                Ok(found) => Ok(Some((at, found))),
                Err(fault) => {
                    let reason = fault.describe(record, skipped, &self.options.text_field);
                    Err(read_error(&self.path, at, AfterError::Readable, reason))
                }
            };
        }
        self.ended = true;
        Ok(None)
    }

    /// Where the next line starts: after a document, the place directly after its line.
    pub fn position(&self) -> Position {
        self.lines.position()
    }

    fn skip_to(&mut self, position: Position) -> Result<()> {
        match self.lines.skip_to(position) {
            Ok(Skipped::ToTarget) => Ok(()),
            Ok(Skipped::Elsewhere(found)) => Err(Error::State(format!(
                "{}: expected record {} to start at byte {} as the state says, but {found}; the shard is not the \
                 one that the state was saved with: bring that one back",
                self.path, position.record, position.byte
            ))),
            Err(reason) => Err(self.lost(reason).into()),
        }
    }

    fn too_long(&self, at: Position, bytes: u64) -> ReadError {
        let limit = self.options.max_document_bytes;
        let reason = format!(
            "expected a line of at most {limit} bytes, found one of {bytes}; raise max_document_bytes= to read it"
        );
        read_error(&self.path, at, AfterError::Readable, reason)
    }

    /// The shard cannot be read any further: the line that could not be completed is lost, and everything after it.
    fn lost(&mut self, reason: String) -> ReadError {
        self.ended = true;
        let at = Position { record: self.lines.position().record, byte: self.lines.inflated() };
        read_error(&self.path, at, AfterError::Lost, reason)
    }
}

/// How many bytes a shard inflates to. Relative paths start from `folder`.
pub fn inflated_bytes(shard: &Shard, folder: &Path) -> Result<u64> {
    let file = LocalFile::open(shard, folder)?;
    let mut input = inflated(&shard.path, Box::new(file), &Arc::default())?;
    let mut at = Position::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match input.read(&mut chunk) {
            Ok(0) => return Ok(at.byte),
            Ok(read) => at.byte += read as u64,
            Err(reason) => return Err(read_error(&shard.path, at, AfterError::Lost, reason).into()),
        }
    }
}

/// The inflated bytes of a source whose name is `path`.
fn inflated(path: &Arc<str>, source: ByteStream, stop: &Arc<AtomicBool>) -> Result<Decoder, ReadError> {
    let Sniffed { codec, format: Format::Jsonl, bytes } = sniff(source, path)
        .map_err(|reason| read_error(path, Position::default(), AfterError::Lost, reason))?;
    Ok(Decoder::new(codec, bytes, stop))
}

fn read_error(path: &Arc<str>, at: Position, rest: AfterError, reason: String) -> ReadError {
    let error = ShardError { shard: Arc::clone(path), record: Some(at.record), byte: Some(at.byte), reason };
    ReadError { error, rest }
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Arc<ReadOptions> {
        Arc::new(ReadOptions {
            folder: std::path::PathBuf::new(),
            text_field: "text".into(),
            max_document_bytes: 100,
        })
    }

    fn read_all(path: &str, bytes: &[u8]) -> Vec<Result<String, String>> {
        let source = Box::new(std::io::Cursor::new(bytes.to_vec()));
        let mut reader = match ShardReader::from_source(&path.into(), source, &options(), &Arc::default()) {
            Ok(reader) => reader,
            Err(error) => return vec![Err(error.to_string())],
        };
        let mut seen = Vec::new();
        loop {
            let mut text = String::new();
            match reader.next(&mut text) {
                Ok(None) => return seen,
                Ok(Some((_, length))) => {
                    assert_eq!(length, text.len());
                    seen.push(Ok(text));
                }
                Err(error) => seen.push(Err(error.to_string())),
            }
        }
    }

    #[test]
    fn moves_between_threads() {
        fn is_send<T: Send>() {}
        is_send::<ShardReader>();
    }

    #[test]
    fn reads_plain_lines() {
        let long = format!("{{\"text\": \"{}\"}}\n", "x".repeat(100));
        let shard = [
            "\u{feff}{\"text\": \"a\\n\"}\r\n\n \t\n{\"text\": 1}\n",
            &long,
            "{\"x\": [1, {}], \"text\": \"b\", \"text\": \"\\ud83d\\ude00\"}",
        ]
        .concat();
        let seen = read_all("s.jsonl", shard.as_bytes());
        assert_eq!(seen.len(), 4, "{seen:#?}");
        assert_eq!(seen[0], Ok("a\n".into()));
        assert_eq!(
            seen[1],
            Err("s.jsonl: record 3, byte 24: expected a string under the key \"text\", found a number at byte 9 of \
                 the line: {\"text\": 1}"
                .into())
        );
        assert_eq!(
            seen[2],
            Err("s.jsonl: record 4, byte 36: expected a line of at most 100 bytes, found one of 112; raise \
                 max_document_bytes= to read it"
                .into())
        );
        assert_eq!(seen[3], Ok("\u{1f600}".into()));
    }
}
