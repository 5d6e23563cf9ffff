//! Zstandard: chains of frames, their limits, and damage.

use std::io;
use std::sync::Mutex;

use _core::store::LocalFile;
use proptest::prelude::*;
use zstd_safe::{CParameter, OutBuffer};

use super::damage::{assert_damaged_after, mutate, mutation};
use super::resume::{shard_file, with_positions};
use super::*;

/// The content decides, not the name: this one is that of the shards that results are compared with.
const NAME: &str = "s.gz";

/// A frame as the `zstd` command writes it: with a checksum, and with its size if that is known.
pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    frame(bytes, 3, true, true)
}

pub fn frame(bytes: &[u8], level: i32, checksum: bool, content_size: bool) -> Vec<u8> {
    let parameters = [
        CParameter::CompressionLevel(level),
        CParameter::ChecksumFlag(checksum),
        CParameter::ContentSizeFlag(content_size),
    ];
    let mut context = zstd_safe::CCtx::create();
    for parameter in parameters {
        context.set_parameter(parameter).unwrap();
    }
    let mut compressed = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
    context.compress2(&mut compressed, bytes).unwrap();
    compressed
}

/// A frame without a size, flushed after each of `parts`, so that it has a block or more for each.
fn blocks(parts: &[&[u8]]) -> Vec<u8> {
    let mut context = zstd_safe::CCtx::create();
    context.set_parameter(CParameter::ChecksumFlag(true)).unwrap();
    let mut compressed = Vec::with_capacity(1 << 20);
    let mut output = OutBuffer::around(&mut compressed);
    for part in parts {
        let mut input = zstd_safe::InBuffer::around(part);
        while input.pos() < part.len() {
            context.compress_stream(&mut output, &mut input).unwrap();
        }
        while context.flush_stream(&mut output).unwrap() > 0 {}
    }
    while context.end_stream(&mut output).unwrap() > 0 {}
    compressed
}

fn skippable(length: usize) -> Vec<u8> {
    [&b"\x5a\x2a\x4d\x18"[..], &(length as u32).to_le_bytes(), &vec![7; length]].concat()
}

fn reason(seen: &[Seen]) -> &str {
    match seen {
        [.., Seen::Error(error)] => &error.error.reason,
        _ => panic!("{seen:?}"),
    }
}

/// The bytes that can be inflated before the damage, and whether there is damage, by the library alone, which gets one
/// byte at a time. It then returns a block before it reads the next one.
fn inflated_prefix(compressed: &[u8]) -> (Vec<u8>, bool) {
    let mut context = zstd_safe::DCtx::create();
    context.set_parameter(zstd_safe::DParameter::WindowLogMax(27)).unwrap();
    let mut prefix = Vec::new();
    let mut is_between_frames = true;
    let mut block = vec![0; 1 << 18];
    for byte in compressed.chunks(1) {
        let mut input = zstd_safe::InBuffer::around(byte);
        while input.pos() < byte.len() {
            let mut output = OutBuffer::around(&mut block[..]);
            match context.decompress_stream(&mut output, &mut input) {
                Ok(hint) => is_between_frames = hint == 0,
                Err(_) => return (prefix, true),
            }
            prefix.extend_from_slice(output.as_slice());
        }
    }
    (prefix, !is_between_frames)
}

#[test]
fn codec_is_recognised_by_content() {
    let shard = valid_shard();
    let expected = read("s.jsonl", &shard);
    for name in ["s.jsonl", "s.jsonl.zst", "s.ZST", "s.gz", "s.zstd", "s"] {
        assert_eq!(read(name, &zstd(&shard)), expected, "{name}");
        assert_eq!(read(name, &[skippable(3), zstd(&shard)].concat()), expected, "{name}");
    }
    assert_eq!(read("s.zst", &gzip(&shard)), expected);
    for (bytes, found) in [(&shard[..], "7b 22 74 65"), (b"\x28\xb5", "28 b5")] {
        assert_eq!(
            reason(&read("s.jsonl.zst", bytes)),
            format!(
                "expected Zstandard data (bytes 28 b5 2f fd) because the name ends in .zst, found {found}; download it \
                 again, or rename it if it is plain JSON lines"
            )
        );
    }
    assert_eq!(
        reason(&read("s.zst", b"")),
        "expected Zstandard data, found an empty file: it is truncated; download it again"
    );
}

#[test]
fn frames_of_all_kinds() {
    let shard = valid_shard();
    let expected = read("s.jsonl", &shard);
    let (first, second) = shard.split_at(100);
    let mut random = vec![0; 300_000];
    let mut number = 1_u32;
    for byte in &mut random {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = b'a' + (number >> 24) as u8 % 26;
    }
    let incompressible = [b"{\"text\":\"", &random[..], b"\"}\n"].concat();
    let seen = read_source("s", Box::new(zstd(&incompressible)), &options(1 << 20));
    assert!(matches!(&seen[..], [Seen::Document(_, text)] if text.as_bytes() == random));
    for (name, bytes) in [
        ("one frame", zstd(&shard)),
        ("without checksum", frame(&shard, 3, false, true)),
        ("without size", frame(&shard, 3, true, false)),
        ("of several blocks", blocks(&[&first[..1], b"", &first[1..], second])),
        ("two frames", [zstd(first), zstd(second)].concat()),
        ("empty frames", [zstd(b""), zstd(first), blocks(&[]), zstd(second), zstd(b"")].concat()),
        ("a frame a byte", shard.iter().flat_map(|&byte| zstd(&[byte])).collect()),
        (
            "skippable frames",
            [skippable(0), zstd(first), skippable(700_000), skippable(1), zstd(second), skippable(9)]
                .concat(),
        ),
    ] {
        assert_eq!(read(NAME, &bytes), expected, "{name}");
        for chunk in [1, 2, 3, 7] {
            assert_eq!(read_in_chunks(NAME, &bytes, chunk), expected, "{name} in chunks of {chunk}");
        }
    }
    for empty in [zstd(b""), blocks(&[]), skippable(5)] {
        assert_eq!(read(NAME, &empty), []);
    }
}

/// Outputs that end exactly where a block, a frame or the reader's buffer does.
#[test]
fn blocks_as_long_as_the_buffer() {
    for length in [65_536, 131_071, 131_072, 131_073, 262_144, 400_000] {
        for line in [1, 13, length] {
            let mut shard: Vec<u8> = b"\n".repeat(length);
            for start in (0..length).step_by(line) {
                let end = length.min(start + line) - 1;
                shard[start..end].fill(b' ');
            }
            let bytes = [frame(&shard, 1, false, true), zstd(b"{\"text\":\"a\"}")].concat();
            let seen = read(NAME, &bytes);
            let [Seen::Document(position, _)] = &seen[..] else {
                assert_eq!((line, seen.len()), (length, 2), "one line is too long");
                continue;
            };
            assert_eq!(position.byte, length as u64);
        }
    }
}

#[test]
fn truncated_at_every_byte() {
    let shard = valid_shard();
    let (first, second) = shard.split_at(150);
    let parts = [skippable(4), blocks(&[&first[..60], &first[60..]]), frame(second, 3, true, true)];
    let whole = parts.concat();
    let ends: Vec<usize> = (1..=3).map(|count| parts[..count].concat().len()).collect();
    for length in 0..=whole.len() {
        let cut = &whole[..length];
        let seen = read(NAME, cut);
        for chunk in [1, 2, 7] {
            assert_eq!(read_in_chunks(NAME, cut, chunk), seen, "{length} bytes in chunks of {chunk}");
        }
        let (prefix, _) = inflated_prefix(cut);
        if length < 4 {
            assert!(matches!(&seen[..], [Seen::Error(_)]));
        } else if ends.contains(&length) {
            assert_eq!(seen, read_compressed(&prefix), "{length} bytes");
        } else {
            assert!(shard.starts_with(&prefix));
            assert_damaged_after(&prefix, &seen, &format!("{length} bytes"));
            assert!(
                reason(&seen).starts_with(&format!(
                    "expected more Zstandard data, found the end of the file at byte {length}: the file is truncated (in \
                     the Zstandard frame at byte "
                )),
                "{}",
                reason(&seen)
            );
        }
    }
}

#[test]
fn every_bit_flipped() {
    let shard = valid_shard();
    let compressed = [blocks(&[&shard[..60], &shard[60..150]]), zstd(&shard[150..])].concat();
    for bit in 0..compressed.len() * 8 {
        let mut flipped = compressed.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let seen = read(NAME, &flipped);
        for chunk in [1, 7] {
            assert_eq!(read_in_chunks(NAME, &flipped, chunk), seen, "bit {bit} in chunks of {chunk}");
        }
        let (prefix, damaged) = inflated_prefix(&flipped);
        if bit / 8 < 4 {
            assert!(matches!(&seen[..], [Seen::Error(_)]), "no magic");
        } else if damaged {
            assert_damaged_after(&prefix, &seen, &format!("bit {bit}"));
        } else {
            assert_eq!(
                seen,
                read_compressed(&prefix),
                "bit {bit}: a frame became skippable, or its header changed"
            );
        }
    }
}

#[test]
fn messages_of_damage() {
    let shard = valid_shard();
    let valid = read("s.jsonl", &shard);
    let first = zstd(b"\n\n");
    let at = first.len();
    let compressed = [first, zstd(&shard)].concat();
    let length = compressed.len();

    let mut wrong_checksum = compressed.clone();
    wrong_checksum[length - 2] ^= 1;
    let seen = read("s.zst", &wrong_checksum);
    assert_eq!(seen.len(), valid.len() + 1, "the text of a frame is delivered before its checksum is known");
    assert_eq!(
        reason(&seen),
        format!(
            "expected the checksum of the Zstandard frame, found another one: some text after byte 2 of the inflated \
             shard is wrong (in the Zstandard frame at byte {at} of the file); download the shard again"
        )
    );
    assert_eq!(
        reason(&read("s.zst", &[&compressed[..], b"x"].concat())),
        format!(
            "expected the end of the file or another Zstandard frame after byte {length} of the file, found byte 0x78; \
             download the shard again, or if no data follows there, truncate the file to {length} bytes"
        )
    );
    let mut corrupt = compressed;
    corrupt[at + 9] |= 6; // a reserved type of block
    assert_eq!(
        reason(&read("s.zst", &corrupt)),
        format!(
            "expected valid Zstandard data, found corrupt data (Data corruption detected) (in the Zstandard frame at \
             byte {at} of the file); download the shard again"
        )
    );
}

#[test]
fn large_windows_are_refused_before_their_memory_is_taken() {
    let window = |log: u8| {
        let mut compressed = blocks(&[&valid_shard()]);
        compressed[5] = (log - 10) << 3; // as a compressor that was allowed so much memory would write it
        compressed
    };
    assert_eq!(read("s.zst", &window(27)), read("s.jsonl", &valid_shard()));
    assert_eq!(
        reason(&read("s.zst", &window(30))),
        "expected a Zstandard window of at most 134217728 bytes, found one of 1073741824, which would take as much memory \
         in each lane (in the Zstandard frame at byte 0 of the file); set max_document_bytes=1073741824 or more to read it, \
         or compress the shard again without --long or with --long=27"
    );
}

#[test]
fn dictionaries_are_refused() {
    let mut compressed = frame(&valid_shard(), 3, true, true);
    compressed[4] |= 1;
    compressed.insert(if compressed[4] & 0x20 > 0 { 5 } else { 6 }, 77);
    assert_eq!(
        reason(&read("s.zst", &compressed)),
        "expected a Zstandard frame without a dictionary, found one that needs a dictionary (in the Zstandard frame at \
         byte 0 of the file); inflate the shard with zstd -d -D DICTIONARY, and compress it again without"
    );
}

/// A file that notes which bytes are read.
struct Noting(LocalFile, Arc<Mutex<Vec<(u64, usize)>>>);

impl Source for Noting {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let length = self.0.read_at(offset, out)?;
        self.1.lock().unwrap().push((offset, length));
        Ok(length)
    }
}

fn many_lines() -> Vec<u8> {
    (0..40_000_u32)
        .flat_map(|i| format!("{{\"text\": \"{}\"}}\n", i.wrapping_mul(2_654_435_761)).into_bytes())
        .collect()
}

#[test]
fn resume_skips_whole_frames() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(1000);
    let lines = many_lines();
    let sized: Vec<u8> = lines.chunks(100_000).flat_map(zstd).collect();
    let mixed: Vec<u8> = lines
        .chunks(50_001)
        .enumerate()
        .flat_map(|(i, chunk)| match i % 3 {
            0 => blocks(&[&chunk[..1000], &chunk[1000..]]),
            1 => [skippable(i), frame(chunk, 3, false, true)].concat(),
            _ => zstd(chunk),
        })
        .collect();
    for (name, bytes, skips) in [("sized.zst", sized, true), ("mixed.zst", mixed, false)] {
        let shard = shard_file(&folder, name, &bytes);
        let (found, end) = with_positions(&shard, &options);
        assert_eq!(found.len(), 40_000);
        let whole = read_on(&mut RecordReader::open(&shard, &options, &Arc::default()).unwrap());
        for skipped in (0..found.len()).step_by(997).chain(found.len() - 2..found.len()) {
            let position = found[skipped].0;
            let mut reader = RecordReader::open_at(&shard, &options, position, &Arc::default()).unwrap();
            assert_eq!(reader.position(), position);
            assert_eq!(read_on(&mut reader), whole[skipped..], "{name} at {position:?}");
        }
        let mut at_end = RecordReader::open_at(&shard, &options, end, &Arc::default()).unwrap();
        assert_eq!((read_on(&mut at_end), at_end.position()), (vec![], end));

        let Position { record, byte } = found[39_900].0;
        for wrong in [byte + 1, byte - 1, end.byte + 1, u64::MAX] {
            let wrong = Position { record, byte: wrong };
            let error = RecordReader::open_at(&shard, &options, wrong, &Arc::default()).err();
            assert!(matches!(error, Some(Error::State(_))), "{name} at {wrong:?}: {error:?}");
        }
        let notes = Arc::default();
        let file = LocalFile::open(&shard, std::path::Path::new("")).unwrap();
        let source = Box::new(Noting(file, Arc::clone(&notes)));
        let mut reader = RecordReader::from_source(&shard.path, source, &options, &Arc::default()).unwrap();
        reader.skip_to(found[39_900].0).unwrap();
        let read: usize = notes.lock().unwrap().iter().map(|(_, length)| length).sum();
        assert_eq!(read < bytes.len() / 4, skips, "{read} of {} bytes", bytes.len());
    }
}

#[test]
fn truncation_is_found_when_frames_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let lines = many_lines();
    let bytes: Vec<u8> = lines.chunks(100_000).flat_map(zstd).collect();
    let shard = shard_file(&folder, "s.zst", &bytes[..bytes.len() / 2]);
    let position = Position { record: 39_000, byte: lines.len() as u64 - 100 };
    let error = RecordReader::open_at(&shard, &options(1000), position, &Arc::default()).err();
    let Some(Error::Shard(error)) = error else { panic!("{error:?}") };
    assert!(error.reason.contains("the file is truncated"), "{error}");
}

#[test]
fn stop_ends_reading_among_frames_without_content() {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = std::iter::repeat_with(|| zstd(b"")).take(100_000).flatten().collect();
    let shard = shard_file(&folder, "s.zst", &bytes);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut reader = RecordReader::open(&shard, &options(1000), &stop).unwrap();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let error = reader.next_text(&mut String::new()).unwrap_err();
    assert_eq!(error.error.reason, "reading was stopped");
}

proptest! {
    /// Reading any mutated shard ends, with the same results in chunks of any size. The text before an error equals
    /// that of the library alone.
    #[test]
    fn mutated_zstd(
        texts in prop::collection::vec("[a-zé ]{0,60}", 0..30),
        level in 1..=19_i32,
        parts in 1..4_usize,
        flags in any::<[bool; 3]>(),
        mutations in prop::collection::vec(mutation(), 1..4),
        chunk in 1..100_usize,
    ) {
        let lines: Vec<u8> =
            texts.iter().flat_map(|text| format!("{{\"text\":\"{text}\"}}\n").into_bytes()).collect();
        let [checksum, content_size, flushed] = flags;
        let mut compressed = Vec::new();
        for part in lines.chunks((lines.len() / parts).max(1)) {
            compressed.extend(if flushed {
                blocks(&[&part[..part.len() / 2], &part[part.len() / 2..]])
            } else {
                frame(part, level, checksum, content_size)
            });
        }
        for mutation in &mutations {
            mutate(&mut compressed, mutation);
        }
        let seen = read(NAME, &compressed);
        prop_assert_eq!(&read_in_chunks(NAME, &compressed, chunk), &seen);
        if !compressed.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            if seen.len() == 1 {
                prop_assert!(matches!(&seen[..], [Seen::Error(_)]));
            }
            return Ok(());
        }
        let (prefix, damaged) = inflated_prefix(&compressed);
        if damaged {
            assert_damaged_after(&prefix, &seen, "mutated");
        } else {
            prop_assert_eq!(&seen, &read_compressed(&prefix));
        }
    }
}
