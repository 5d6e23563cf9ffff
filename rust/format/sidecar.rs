//! Sidecars: files whose records belong to those of a shard by their numbers.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{
    AfterError, Position, RawKind, RawRecord, ReadError, ReadOptions, RecordReader, json_of, located,
};
use crate::error::Result;
use crate::store::Shard;

/// A record as a JSON object on a line.
fn line<'a>(record: &RawRecord<'a>) -> Cow<'a, [u8]> {
    if record.kind == RawKind::Row { json_of(*record) } else { Cow::Borrowed(record.bytes) }
}

/// Reads the records of a sidecar in step with those of a shard. The options must want all columns, so that each record is
/// a JSON object on a line, whatever the format.
pub struct SidecarReader {
    path: Arc<str>,
    reader: RecordReader,
    /// The record that was read ahead of the shard: its bytes, or why it cannot be read.
    ahead: Option<(Position, Result<Vec<u8>, ReadError>)>,
}

impl SidecarReader {
    /// Opens a sidecar at the record with this number. Everything before it is inflated, and nothing parsed.
    pub fn open_at(
        sidecar: &Shard,
        options: &Arc<ReadOptions>,
        number: u64,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let reader = RecordReader::open(sidecar, options, stop)?;
        Ok(Self::new(reader, Arc::clone(&sidecar.path), number)?)
    }

    /// Reads on with the record of this number of a reader that has read nothing.
    pub fn new(mut reader: RecordReader, path: Arc<str>, number: u64) -> Result<Self, ReadError> {
        reader.skip_records(number)?;
        Ok(Self { path, reader, ahead: None })
    }

    /// Appends the record with this number to `bytes`, and returns its position and length. Numbers ascend from call to
    /// call. An error says where in the sidecar, and whether the records after it still belong to those of the shard.
    pub fn read(&mut self, number: u64, bytes: &mut Vec<u8>) -> Result<(Position, usize), ReadError> {
        if self.ahead.is_none() {
            match self.reader.next_raw() {
                Ok(Some(record)) if record.position.record == number => {
                    let json = line(&record);
                    bytes.extend_from_slice(&json);
                    return Ok((record.position, json.len()));
                }
                Ok(Some(record)) => self.ahead = Some((record.position, Ok(line(&record).into_owned()))),
                Ok(None) => {
                    let end = self.reader.position();
                    let found = format!(
                        "expected a record {number}, as the shard has one, found the end: the sidecar is shorter than the shard; download \
                         both again"
                    );
                    return Err(self.error(end, found, AfterError::Lost));
                }
                Err(error) => self.hold(error),
            }
        }
        match self.ahead.take() {
            Some((_, Err(error))) if error.rest == AfterError::Lost => Err(error),
            Some((position, found)) if position.record == number => {
                let found = found?;
                bytes.extend_from_slice(&found);
                Ok((position, found.len()))
            }
            Some((position, _)) if position.record < number => {
                let found =
                    "expected no record, as the shard has a blank line there, found one; download both again"
                        .to_owned();
                Err(self.error(position, found, AfterError::Lost))
            }
            ahead => {
                self.ahead = ahead;
                let position = Position { record: number, byte: 0 };
                let found =
                    "expected a record, as the shard has one, found a blank line; download both again"
                        .to_owned();
                Err(self.error(position, found, AfterError::Readable))
            }
        }
    }

    /// Passes over the record with this number, which the shard has and cannot be read there.
    pub fn pass(&mut self, number: u64) {
        if self.ahead.is_none() {
            match self.reader.next_raw() {
                Ok(None) => return,
                Ok(Some(RawRecord { position, .. })) if position.record == number => return,
                Ok(Some(record)) => self.ahead = Some((record.position, Ok(line(&record).into_owned()))),
                Err(error) => self.hold(error),
            }
        }
        self.ahead = self.ahead.take().filter(|(position, found)| {
            position.record != number || matches!(found, Err(error) if error.rest == AfterError::Lost)
        });
    }

    /// An error if there is another record, at the end of the shard.
    pub fn end(&mut self) -> Result<(), ReadError> {
        let found = match self.ahead.take() {
            Some((position, found)) => found.map(|_| Some(position)),
            None => self.reader.next_raw().map(|record| record.map(|record| record.position)),
        };
        let position = match found {
            Ok(None) => return Ok(()),
            Ok(Some(position)) => position,
            Err(error) => return Err(ReadError { rest: AfterError::Lost, ..error }),
        };
        let found = "expected the end, as the shard ends before, found a record: the sidecar is longer than the shard; download \
             both again";
        Err(self.error(position, found.to_owned(), AfterError::Lost))
    }

    /// Keeps an error until its record is asked for.
    fn hold(&mut self, error: ReadError) {
        let record = error.error.record.unwrap_or_default();
        self.ahead = Some((Position { record, byte: error.error.byte.unwrap_or_default() }, Err(error)));
    }

    fn error(&self, position: Position, found: String, rest: AfterError) -> ReadError {
        ReadError { error: located(&self.path, position, found), rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Projection;

    fn open(bytes: &str, number: u64) -> SidecarReader {
        let options = Arc::new(ReadOptions {
            access: crate::store::Access::default(),
            projection: Projection::all(),
            keep: None,
            max_document_bytes: 20,
            ids: None,
        });
        let path: Arc<str> = "s.jsonl".into();
        let source = Box::new(bytes.as_bytes().to_vec());
        let reader = RecordReader::from_source(&path, source, &options, &Arc::default()).unwrap();
        SidecarReader::new(reader, path, number).unwrap()
    }

    fn read(reader: &mut SidecarReader, number: u64) -> Result<String, String> {
        let mut bytes = b"before".to_vec();
        match reader.read(number, &mut bytes) {
            Ok((position, length)) => {
                assert_eq!((position.record, length), (number, bytes.len() - 6));
                Ok(String::from_utf8(bytes[6..].to_vec()).unwrap())
            }
            Err(error) => {
                assert_eq!(bytes, b"before");
                Err(format!("{error} ({:?})", error.rest))
            }
        }
    }

    #[test]
    fn records_are_found_by_number() {
        let mut reader = open("{\"a\": 0}\n\n{\"a\": 2}\n", 0);
        assert_eq!(read(&mut reader, 0).unwrap(), "{\"a\": 0}");
        assert_eq!(read(&mut reader, 2).unwrap(), "{\"a\": 2}");
        reader.end().unwrap();
        let mut reader = open("{\"a\": 0}\n\n{\"a\": 2}\n", 2);
        assert_eq!(read(&mut reader, 2).unwrap(), "{\"a\": 2}");
        reader.end().unwrap();
    }

    #[test]
    fn damaged_records_leave_the_others_in_step() {
        let shard = format!("{{\"a\": 0}}\n{{\"{}\": 1}}\n\n{{\"a\": 3}}\n{{\"a\": 4}}\n", "x".repeat(20));
        let mut reader = open(&shard, 0);
        assert_eq!(read(&mut reader, 0).unwrap(), "{\"a\": 0}");
        let error = read(&mut reader, 1).unwrap_err();
        assert!(
            error.starts_with("s.jsonl: record 1, byte 9: expected a line of at most 20 bytes"),
            "{error}"
        );
        assert!(error.ends_with("(Readable)"), "{error}");
        let error = read(&mut reader, 2).unwrap_err();
        assert!(
            error.contains("record 2: ")
                && error.ends_with("found a blank line; download both again (Readable)"),
            "{error}"
        );
        // The shard's own record is damaged.
        reader.pass(3);
        assert_eq!(read(&mut reader, 4).unwrap(), "{\"a\": 4}");
        for pass in [true, false] {
            let mut reader = open(&shard, 1);
            if pass {
                reader.pass(1);
                reader.pass(2);
            }
            assert_eq!(read(&mut reader, 3).is_ok(), pass);
        }
    }

    #[test]
    fn other_lengths_are_errors() {
        let mut reader = open("{}\n", 0);
        read(&mut reader, 0).unwrap();
        let error = read(&mut reader, 1).unwrap_err();
        assert!(
            error.contains("record 1, byte 3: expected a record 1") && error.ends_with("(Lost)"),
            "{error}"
        );
        let mut reader = open("{}\n", 5);
        assert!(read(&mut reader, 5).unwrap_err().contains("the sidecar is shorter"));
        let mut reader = open("{}\n{}\n", 0);
        read(&mut reader, 0).unwrap();
        assert!(reader.end().unwrap_err().to_string().contains("record 1, byte 3: expected the end"));
        // A blank line in the shard.
        let mut reader = open("{}\n{}\n{}\n", 0);
        read(&mut reader, 0).unwrap();
        let error = read(&mut reader, 2).unwrap_err();
        assert!(
            error.contains("record 1, byte 3: expected no record") && error.ends_with("(Lost)"),
            "{error}"
        );
    }
}
