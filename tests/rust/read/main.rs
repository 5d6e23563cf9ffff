//! The reader as a whole: shards of bytes in, documents and located errors out.

// The helpers of tests are tests too.
#![allow(clippy::unwrap_used)]

mod columns;
mod damage;
mod files;
mod gzip;
mod lines;
mod parquet_files;
mod pieces;
mod raw;
mod resume;
mod tar;
mod tar_images;
mod zstandard;

use std::io::{self, Write};
use std::sync::Arc;

use _core::format::{AfterError, Position, Projection, ReadError, ReadOptions, RecordReader};
use _core::store::{Access, Source};
use _core::{Error, ShardError};
use flate2::Compression;
use flate2::write::GzEncoder;

/// A result of a reader.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Document(Position, String),
    Error(ReadError),
}

impl Seen {
    fn error(&self) -> Option<&ReadError> {
        match self {
            Seen::Error(error) => Some(error),
            Seen::Document(..) => None,
        }
    }
}

/// The first record that is lost.
fn position_of(error: &ReadError) -> Position {
    Position { record: error.error.record.unwrap(), byte: error.error.byte.unwrap() }
}

fn options(max_document_bytes: u64) -> Arc<ReadOptions> {
    Arc::new(ReadOptions {
        access: Access::default(),
        projection: Projection::text("text"),
        keep: None,
        max_document_bytes,
        ids: None,
    })
}

/// A source that returns `chunk` bytes at a time.
struct Chunks {
    bytes: Vec<u8>,
    chunk: usize,
}

impl Source for Chunks {
    fn size(&self) -> u64 {
        self.bytes.size()
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let length = out.len().min(self.chunk);
        self.bytes.read_at(offset, &mut out[..length])
    }
}

/// All results from `bytes`, which come in chunks of `chunk`.
fn read_in_chunks(path: &str, bytes: &[u8], chunk: usize) -> Vec<Seen> {
    read_source(path, Box::new(Chunks { bytes: bytes.to_vec(), chunk }), &options(1000))
}

fn read(path: &str, bytes: &[u8]) -> Vec<Seen> {
    read_in_chunks(path, bytes, usize::MAX)
}

/// All results from a valid shard `s.gz` of these bytes.
fn read_compressed(bytes: &[u8]) -> Vec<Seen> {
    read("s.gz", &gzip(bytes))
}

fn read_source(path: &str, source: Box<dyn Source>, options: &Arc<ReadOptions>) -> Vec<Seen> {
    match RecordReader::from_source(&path.into(), source, options, &Arc::default()) {
        Ok(mut reader) => read_on(&mut reader),
        Err(Error::Shard(error)) => vec![Seen::Error(ReadError { error, rest: AfterError::Lost })],
        Err(error) => panic!("{error}"),
    }
}

/// Reads to the end, and checks the invariants of every shard.
fn read_on(reader: &mut RecordReader) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut text = "before".to_owned();
    loop {
        let before = text.len();
        let position = reader.position();
        match reader.next_text(&mut text) {
            Ok(None) => break,
            Ok(Some((at, length))) => {
                assert_eq!(text.len(), before + length);
                assert!(at.record >= position.record && at.byte >= position.byte);
                assert_eq!(reader.position().record, at.record + 1);
                seen.push(Seen::Document(at, text.split_off(before)));
            }
            Err(error) => {
                assert_eq!(text, "before", "text is as it was after an error");
                let lost = error.rest == AfterError::Lost;
                seen.push(Seen::Error(error));
                if lost {
                    assert_eq!(reader.next_text(&mut text), Ok(None));
                }
            }
        }
    }
    assert_eq!(reader.next_text(&mut text), Ok(None), "the end stays");
    seen
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Lines of many kinds, all valid.
fn valid_shard() -> Vec<u8> {
    let mut shard = Vec::new();
    for record in 0..12 {
        match record % 4 {
            0 => writeln!(shard, r#"{{"text": "plain {record}"}}"#).unwrap(),
            1 => write!(shard, "{{\"id\": [{record}], \"text\": \"é\\u00e9\\n {record}\"}}\r\n").unwrap(),
            2 => shard.extend_from_slice(b" \t\r\n"),
            _ => writeln!(shard, r#"{{"text": "{}", "x": {{"y": "z"}}}}"#, "longer ".repeat(record)).unwrap(),
        }
    }
    shard
}
