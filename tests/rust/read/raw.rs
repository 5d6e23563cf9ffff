//! Raw records: extracting after reading gives the same as reading and extracting at once.

use _core::format::{RawKind, RawRecord};

use super::*;

/// An owned result of [`RecordReader::next_raw`].
enum Raw {
    Record { kind: RawKind, position: Position, bytes: Vec<u8> },
    Error(ReadError),
}

/// The raw records of a shard, each with the position after it.
fn read_raw(path: &str, bytes: &[u8]) -> Vec<(Raw, Position)> {
    let source = Box::new(bytes.to_vec());
    let mut reader =
        RecordReader::from_source(&path.into(), source, &options(1000), &Arc::default()).unwrap();
    let mut raw = Vec::new();
    loop {
        let next = match reader.next_raw() {
            Ok(None) => return raw,
            Ok(Some(RawRecord { kind, position, bytes, .. })) => {
                Raw::Record { kind, position, bytes: bytes.to_vec() }
            }
            Err(error) => Raw::Error(error),
        };
        raw.push((next, reader.position()));
    }
}

fn extract(path: &str, raw: &Raw) -> Seen {
    match raw {
        Raw::Error(error) => Seen::Error(error.clone()),
        Raw::Record { kind, position, bytes } => {
            let record = RawRecord::new(*kind, *position, bytes);
            let mut text = "before".to_owned();
            match options(1000).projection.extract(&path.into(), record, &mut text) {
                Ok(length) => Seen::Document(*position, text.split_off(text.len() - length)),
                Err(error) => {
                    assert_eq!(text, "before", "text is as it was after an error");
                    Seen::Error(ReadError { error, rest: AfterError::Readable })
                }
            }
        }
    }
}

fn shard_with_bad_lines() -> Vec<u8> {
    let mut shard = "\u{feff}".as_bytes().to_vec();
    shard.extend_from_slice(b"{\"text\": 1}\n");
    shard.extend(valid_shard());
    writeln!(shard, "{{\"text\": \"{}\"}}", "x".repeat(2000)).unwrap();
    shard.extend_from_slice(
        "\u{feff}{\"text\": \"a\"}\n{\"no\": \"text\"}\n\n{\"text\": \"last\"}".as_bytes(),
    );
    shard
}

#[test]
fn extraction_after_reading_equals_reading_at_once() {
    let shard = shard_with_bad_lines();
    let compressed = gzip(&shard);
    for (path, bytes) in [
        ("s.jsonl", &shard[..]),
        ("s.gz", &compressed[..]),
        ("s.gz", &compressed[..compressed.len() - 20]),
        ("s.jsonl", b""),
    ] {
        let raw = read_raw(path, bytes);
        let extract = || raw.iter().rev().map(|(raw, _)| extract(path, raw)).collect::<Vec<_>>();
        let mut seen = std::thread::scope(|scope| scope.spawn(extract).join().unwrap());
        seen.reverse();
        assert_eq!(seen, read(path, bytes), "{path}");
    }
}

#[test]
fn raw_records_are_the_lines() {
    let shard = shard_with_bad_lines();
    for (raw, after) in read_raw("s.jsonl", &shard) {
        let Raw::Record { position, bytes, .. } = raw else { continue };
        let line = &shard[position.byte as usize..after.byte as usize];
        assert_eq!(bytes, line.strip_suffix(b"\n").unwrap_or(line));
        assert_eq!(after.record, position.record + 1);
    }
}
