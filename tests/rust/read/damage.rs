//! Damaged gzip: all text before the damage is read, then comes a located error; nothing is lost in silence.

use flate2::{Decompress, FlushDecompress, Status};
use proptest::prelude::*;

use super::gzip::member_with_full_header;
use super::*;

/// The bytes that can be inflated before the damage, each member in one call, and whether there is damage.
fn inflated_prefix(mut compressed: &[u8]) -> (Vec<u8>, bool) {
    let mut prefix = Vec::new();
    loop {
        while let Some(rest) = compressed.strip_prefix(b"\0") {
            compressed = rest;
        }
        if compressed.is_empty() {
            return (prefix, false);
        }
        let mut member = Decompress::new_gzip(15);
        let mut out = vec![0; 100_000];
        let status = member.decompress(compressed, &mut out, FlushDecompress::Finish);
        prefix.extend_from_slice(&out[..member.total_out() as usize]);
        if !matches!(status, Ok(Status::StreamEnd)) {
            return (prefix, true);
        }
        compressed = &compressed[member.total_in() as usize..];
    }
}

/// The expected results from a shard that is damaged after `prefix`: its whole lines, then the error's position.
fn expected_before(prefix: &[u8]) -> (Vec<Seen>, Position) {
    let whole = memchr::memrchr(b'\n', prefix).map_or(0, |newline| newline + 1);
    let record = memchr::memchr_iter(b'\n', prefix).count() as u64;
    (read_compressed(&prefix[..whole]), Position { record, byte: prefix.len() as u64 })
}

pub fn assert_damaged_after(prefix: &[u8], seen: &[Seen], what: &str) {
    // A head that a mutation has repeated may be inflated: it is refused as a compressed file in a compressed file.
    if prefix.starts_with(&[0x1f, 0x8b]) || prefix.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return assert_eq!(seen, read_compressed(prefix), "{what}");
    }
    let (before, expected) = expected_before(prefix);
    let (last, documents) = seen.split_last().unwrap();
    assert_eq!(documents, before, "{what}");
    let error = last.error().unwrap_or_else(|| panic!("{what}: {last:?}"));
    assert_eq!((position_of(error), error.rest), (expected, AfterError::Lost), "{what}: {error}");
}

fn two_members() -> Vec<u8> {
    let shard = valid_shard();
    let (first, second) = shard.split_at(150);
    [gzip(first), member_with_full_header(second)].concat()
}

#[test]
fn truncated_at_every_byte() {
    let compressed = two_members();
    let whole = read("s.gz", &compressed);
    let first_member = gzip(&valid_shard()[..150]).len();
    for length in 0..compressed.len() {
        let cut = &compressed[..length];
        let seen = read("s.gz", cut);
        for chunk in [1, 2, 3, 7] {
            assert_eq!(read_in_chunks("s.gz", cut, chunk), seen, "{length} bytes in chunks of {chunk}");
        }
        if length < 2 {
            assert!(matches!(&seen[..], [Seen::Error(_)]));
        } else if length == first_member {
            // A whole member is a valid shard, here one that ends inside of a line.
            assert_eq!(seen, read_compressed(&valid_shard()[..150]));
        } else {
            let (prefix, damaged) = inflated_prefix(cut);
            assert!(damaged && valid_shard().starts_with(&prefix), "{length} bytes");
            assert_damaged_after(&prefix, &seen, &format!("{length} bytes"));
        }
    }
    assert_eq!(whole, read("s.jsonl", &valid_shard()));
}

/// Each bit flipped once, in deflate data of all three block types. A flip may change text that is
/// read before the checksum is known, but never without an error after it.
#[test]
fn every_bit_flipped() {
    let shard = valid_shard();
    let mut stored = GzEncoder::new(Vec::new(), Compression::none());
    stored.write_all(&shard).unwrap();
    let first_member = gzip(&shard[..150]).len();
    // A header may change in the text flag, the time, the extra flags and the system. Otherwise only padding to a
    // whole byte may: before the trailer (8 bytes), and in the head of a stored block.
    let whole = two_members();
    let padding = vec![first_member - 9, whole.len() - 9];
    assert_flips_are_errors(&whole, &shard, &padding);
    assert_flips_are_errors(&stored.finish().unwrap(), &shard, &[10]);
    let fixed_codes = gzip(b"\n");
    assert_flips_are_errors(&fixed_codes, b"\n", &[fixed_codes.len() - 9]);
}

fn assert_flips_are_errors(compressed: &[u8], shard: &[u8], padding: &[usize]) {
    let valid = read_compressed(shard);
    let mut harmless = Vec::new();
    for bit in 0..compressed.len() * 8 {
        let mut flipped = compressed.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let seen = read("s.gz", &flipped);
        for chunk in [1, 7] {
            assert_eq!(read_in_chunks("s.gz", &flipped, chunk), seen, "bit {bit} in chunks of {chunk}");
        }
        if seen == valid {
            harmless.push(bit / 8);
        } else if bit < 16 {
            assert!(matches!(&seen[..], [Seen::Error(_)]), "no magic");
        } else {
            assert_damaged_after(&inflated_prefix(&flipped).0, &seen, &format!("bit {bit}"));
        }
    }
    harmless.dedup();
    assert_eq!(harmless, [&[3, 4, 5, 6, 7, 8, 9], padding].concat());
}

#[test]
fn disk_fails_after_every_byte() {
    struct Failing(Chunks);
    impl Source for Failing {
        fn size(&self) -> u64 {
            self.0.size() + 1
        }

        fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
            match self.0.read_at(offset, out)? {
                0 => Err(io::Error::from_raw_os_error(5)),
                length => Ok(length),
            }
        }
    }
    for (path, bytes) in [("s.gz", two_members()), ("s.jsonl", valid_shard())] {
        for length in 0..=bytes.len() {
            let source = Failing(Chunks { bytes: bytes[..length].to_vec(), chunk: 50 });
            let seen = read_source(path, Box::new(source), &options(1000));
            let prefix = match path {
                "s.gz" => inflated_prefix(&bytes[..length]).0,
                _ => bytes[..length].to_vec(),
            };
            assert_damaged_after(&prefix, &seen, &format!("{path} after {length} bytes"));
            let reason = &seen.last().unwrap().error().unwrap().error.reason;
            assert!(
                reason.starts_with("expected to read more of the file, found: Input/output error"),
                "{reason}"
            );
        }
    }
}

#[test]
fn interrupted_reads_are_retried() {
    struct Interrupted(Chunks, bool);
    impl Source for Interrupted {
        fn size(&self) -> u64 {
            self.0.size()
        }

        fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 { Err(io::ErrorKind::Interrupted.into()) } else { self.0.read_at(offset, out) }
        }
    }
    for (path, bytes) in [("s.gz", two_members()), ("s.jsonl", valid_shard())] {
        let source = Interrupted(Chunks { bytes, chunk: 5 }, false);
        assert_eq!(read_source(path, Box::new(source), &options(1000)), read("s.jsonl", &valid_shard()));
    }
}

/// There is one error, that of the shard, at that line.
#[test]
fn damage_inside_a_too_long_line() {
    let shard = format!("{{\"text\":\"a\"}}\n{}", "x".repeat(2_000_000));
    let compressed = gzip(shard.as_bytes());
    let seen = read("s.gz", &compressed[..compressed.len() - 8]);
    assert_eq!(seen.len(), 2);
    let error = seen[1].error().unwrap();
    assert_eq!((position_of(error), error.rest), (Position { record: 1, byte: 2_000_013 }, AfterError::Lost));
}

#[derive(Debug, Clone)]
pub enum Mutation {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Remove(prop::sample::Index, usize),
    Repeat(prop::sample::Index, prop::sample::Index, usize),
}

pub fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), 1..=u8::MAX).prop_map(|(at, bits)| Mutation::Flip(at, bits)),
        at().prop_map(Mutation::Cut),
        (at(), 1..20_usize).prop_map(|(at, length)| Mutation::Remove(at, length)),
        (at(), at(), 1..50_usize).prop_map(|(from, to, length)| Mutation::Repeat(from, to, length)),
    ]
}

pub fn mutate(bytes: &mut Vec<u8>, mutation: &Mutation) {
    if bytes.is_empty() {
        return;
    }
    match mutation {
        Mutation::Flip(at, bits) => {
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
        }
        Mutation::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Mutation::Remove(at, length) => {
            let at = at.index(bytes.len());
            bytes.drain(at..bytes.len().min(at + length));
        }
        Mutation::Repeat(from, to, length) => {
            let from = from.index(bytes.len());
            let chunk = bytes[from..bytes.len().min(from + length)].to_vec();
            let to = to.index(bytes.len());
            bytes.splice(to..to, chunk);
        }
    }
}

proptest! {
    /// Reading any mutated shard ends, with the same results in chunks of any size. The text before an error equals
    /// that of an independent decoder.
    #[test]
    fn mutated_gzip(
        texts in prop::collection::vec("[a-zé ]{0,60}", 0..30),
        level in 0..=9_u32,
        members in 1..4_usize,
        mutations in prop::collection::vec(mutation(), 1..4),
        chunk in 1..100_usize,
    ) {
        let lines: Vec<u8> =
            texts.iter().flat_map(|text| format!("{{\"text\":\"{text}\"}}\n").into_bytes()).collect();
        let mut compressed = Vec::new();
        for part in lines.chunks((lines.len() / members).max(1)) {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
            encoder.write_all(part).unwrap();
            compressed.extend(encoder.finish().unwrap());
        }
        for mutation in &mutations {
            mutate(&mut compressed, mutation);
        }
        let seen = read("s.gz", &compressed);
        prop_assert_eq!(&read_in_chunks("s.gz", &compressed, chunk), &seen);
        if !compressed.starts_with(&[0x1f, 0x8b]) {
            prop_assert!(matches!(&seen[..], [Seen::Error(error)] if error.rest == AfterError::Lost));
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
