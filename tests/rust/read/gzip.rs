//! Recognition of gzip, and chains of members.

use std::path::{Path, PathBuf};

use flate2::{Crc, GzBuilder};

use super::*;

fn reason(seen: &[Seen]) -> &str {
    match seen {
        [.., Seen::Error(error)] => &error.error.reason,
        _ => panic!("{seen:?}"),
    }
}

/// A member with every optional header field and a header checksum.
pub fn member_with_full_header(bytes: &[u8]) -> Vec<u8> {
    let plain = gzip(bytes);
    let mut member = vec![0x1f, 0x8b, 8, 0b1_1111, 1, 2, 3, 4, 0, 3];
    member.extend_from_slice(b"\x04\0ab\0\0name\0comment\0");
    let mut crc = Crc::new();
    crc.update(&member);
    member.extend_from_slice(&(crc.sum() as u16).to_le_bytes());
    member.extend_from_slice(&plain[10..]);
    member
}

#[test]
fn codec_is_recognised_by_content() {
    let shard = valid_shard();
    let expected = read("s.jsonl", &shard);
    assert_eq!(read("s.jsonl", &gzip(&shard)), expected);
    for name in ["s.gz", "s.json.gz", "s.GZ"] {
        assert_eq!(read(name, &gzip(&shard)), expected, "{name}");
        for (bytes, found) in
            [(&shard[..], "7b 22"), (b"\x1f", "1f"), (b"\x1f\x8c12", "1f 8c"), (b"\n", "0a")]
        {
            let seen = read(name, bytes);
            assert_eq!(seen.len(), 1);
            assert_eq!(
                reason(&seen),
                format!(
                    "expected gzip data (bytes 1f 8b) because the name ends in .gz, found {found}; download it \
                     again, or rename it if it is plain JSON lines"
                )
            );
            let error = seen[0].error().unwrap();
            assert_eq!((position_of(error), error.rest), (Position::default(), AfterError::Lost));
        }
        assert_eq!(
            reason(&read(name, b"")),
            "expected gzip data, found an empty file: it is truncated; download it again"
        );
    }
    assert_eq!(read("s.jsonl", b""), []);
    assert!(reason(&read("s.jsonl", b"\x1f")).starts_with("expected a JSON object"));
}

#[test]
fn members_headers_and_padding() {
    let shard = valid_shard();
    let expected = read("s.jsonl", &shard);
    let (first, second) = shard.split_at(100);
    let mut named = GzBuilder::new().filename("name").mtime(7).write(Vec::new(), Compression::none());
    named.write_all(second).unwrap();
    let named = named.finish().unwrap();
    let zeros = vec![0; 700_000];
    for (name, bytes) in [
        ("one member", gzip(&shard)),
        ("two members", [gzip(first), gzip(second)].concat()),
        ("all header fields", [member_with_full_header(first), named].concat()),
        ("empty members", [gzip(b""), gzip(first), gzip(b""), gzip(b""), gzip(second), gzip(b"")].concat()),
        ("a member a byte", shard.iter().flat_map(|&byte| gzip(&[byte])).collect()),
        ("zeros after", [&gzip(&shard)[..], &zeros].concat()),
        ("zeros between", [&gzip(first)[..], &zeros, &gzip(second)].concat()),
    ] {
        assert_eq!(read("s.gz", &bytes), expected, "{name}");
    }
    assert_eq!(read("s.gz", &gzip(b"")), []);
}

#[test]
fn bytes_after_the_last_member() {
    let shard = valid_shard();
    let valid = read("s.jsonl", &shard);
    let compressed = gzip(&shard);
    let length = compressed.len();
    for (tail, expected) in [
        (
            &b"x"[..],
            format!(
                "expected the end of the file or another gzip member after byte {length} of the file, found byte 0x78; download the shard again, or if no data follows there, truncate the file to {length} bytes"
            ),
        ),
        (
            b"\0\0\n",
            format!(
                "expected the end of the file or another gzip member after byte {0} of the file, found byte 0x0a; download the shard again, or if no data follows there, truncate the file to {0} bytes",
                length + 2
            ),
        ),
        (
            b"\x1f",
            format!(
                "expected more gzip data, found the end of the file at byte {}: the file is truncated (in the gzip member at byte {length} of the file); download the shard again",
                length + 1
            ),
        ),
        (
            b"\x1fx",
            format!(
                "expected a gzip header, found other bytes (in the gzip member at byte {length} of the file); download the shard again"
            ),
        ),
    ] {
        for chunk in [1, 2, usize::MAX] {
            let seen = read_in_chunks("s.gz", &[&compressed[..], tail].concat(), chunk);
            assert_eq!(seen[..seen.len() - 1], valid, "{}", tail.escape_ascii());
            assert_eq!(reason(&seen), expected);
            let error = seen.last().unwrap().error().unwrap();
            assert_eq!(position_of(error), Position { record: 12, byte: shard.len() as u64 });
            assert_eq!(error.rest, AfterError::Lost);
        }
    }
}

#[test]
fn wrong_trailer_is_an_error() {
    let shard = valid_shard();
    let valid = read("s.jsonl", &shard);
    let first = gzip(b"\n\n");
    let compressed = [first.clone(), gzip(&shard)].concat();
    for (from_end, field) in [(8, "CRC-32"), (4, "length")] {
        let mut compressed = compressed.clone();
        let at = compressed.len() - from_end;
        compressed[at] ^= 1;
        let seen = read("s.gz", &compressed);
        assert_eq!(seen.len(), valid.len() + 1);
        assert_eq!(
            reason(&seen),
            format!(
                "expected the {field} in the gzip trailer, found another one: some text after byte 2 of the inflated \
                 shard is wrong (in the gzip member at byte {} of the file); download the shard again",
                first.len()
            )
        );
        assert_eq!(
            position_of(seen.last().unwrap().error().unwrap()),
            Position { record: 14, byte: shard.len() as u64 + 2 }
        );
    }
}

/// Files of the flate2 crate, made by other gzip writers. They hold no JSON, so an error at each line shows that it was
/// inflated.
#[test]
#[ignore = "needs the shared folder"]
fn files_of_other_writers() {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let folder =
        std::env::var_os("GRISTMILL_SHARED").map_or(beside, PathBuf::from).join("torture/gz-flate2/tests");
    for name in ["good-file", "multi"] {
        let compressed = std::fs::read(folder.join(format!("{name}.gz"))).unwrap();
        let plain = std::fs::read(folder.join(format!("{name}.txt"))).unwrap();
        let expected = read("s.txt", &plain);
        assert!(!expected.is_empty());
        for chunk in [1, 3, usize::MAX] {
            assert_eq!(read_in_chunks("s.txt", &compressed, chunk), expected, "{name}");
        }
    }
}

#[test]
fn other_formats_are_named() {
    for (head, found) in [
        (&b"\x04\x22\x4d\x18"[..], "LZ4; convert it to gzip"),
        (b"\xfd7zXZ", "xz; convert it to gzip"),
        (b"BZh91AY&SY", "bzip2; convert it to gzip"),
        (b"PK\x03\x04\x14", "a zip archive; pass the files that it holds"),
        (b"PK\x05\x06\0", "a zip archive; pass the files that it holds"),
        (b"\xff\xfe{\0", "UTF-16; convert it to UTF-8"),
        (b"\xff\xfe\0\0{\0\0\0", "UTF-32; convert it to UTF-8"),
        (b"\0\0\xfe\xff\0\0\0{", "UTF-32; convert it to UTF-8"),
        (b"\xfe\xff\0{", "UTF-16; convert it to UTF-8"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
            "a Git LFS pointer; download the file itself with git lfs pull",
        ),
        (b"<!doctype html>", "a web page; download the shard again"),
        (b"<!DOCTYPE html>", "a web page; download the shard again"),
        (b"\r\n  <!Doctype HTML>", "a web page; download the shard again"),
        (b"<HTML lang=\"en\">", "a web page; download the shard again"),
        (
            b"\xef\xbb\xbf<?xml version=\"1.0\"?>",
            "XML, in which object stores report errors; download the shard again",
        ),
        (b"<html>", "a web page; download the shard again"),
        (b"<?xml version", "XML, in which object stores report errors; download the shard again"),
    ] {
        for (path, expected) in [
            ("s.jsonl", "JSON lines (plain, gzip or Zstandard), Parquet, Arrow or tar"),
            ("s.gz", "gzip data"),
            ("s.zst", "Zstandard data"),
        ] {
            let seen = read(path, head);
            assert_eq!(seen.len(), 1);
            assert_eq!(reason(&seen), format!("expected {expected}, found {found}"));
        }
    }
}
