//! Tar: samples of `WebDataset` in, texts and located errors out.

use _core::format::Step;
use _core::store::Shard;
use proptest::prelude::*;

use super::resume::{shard_file, with_positions};
use super::*;

const BLOCK: usize = 512;

/// A member with a header of one block.
fn member(kind: u8, name: &[u8], prefix: &[u8], size: &[u8], content: &[u8]) -> Vec<u8> {
    let mut header = vec![0; BLOCK];
    header[..name.len()].copy_from_slice(name);
    header[124..124 + size.len()].copy_from_slice(size);
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[345..345 + prefix.len()].copy_from_slice(prefix);
    seal(&mut header);
    [header, content.to_vec(), vec![0; content.len().wrapping_neg() % BLOCK]].concat()
}

fn seal(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header[..BLOCK].iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

pub(super) fn entry(kind: u8, name: &[u8], content: &[u8]) -> Vec<u8> {
    member(kind, name, b"", format!("{:011o}", content.len()).as_bytes(), content)
}

/// How a name is written that may be long.
#[derive(Debug, Clone, Copy)]
enum Names {
    Ustar,
    Gnu,
    Pax,
}

fn file(names: Names, name: &str, content: &[u8]) -> Vec<u8> {
    let short = &name.as_bytes()[..name.len().min(100)];
    match names {
        _ if name.len() <= 100 => entry(b'0', short, content),
        Names::Ustar => {
            let (prefix, base) = name.rsplit_once('/').unwrap();
            let size = format!("{:011o}", content.len());
            member(b'0', base.as_bytes(), prefix.as_bytes(), size.as_bytes(), content)
        }
        Names::Gnu => {
            let long = [name.as_bytes(), b"\0"].concat();
            [entry(b'L', b"././@LongLink", &long), entry(b'0', short, content)].concat()
        }
        Names::Pax => {
            let mut length = name.len() + 8;
            while format!("{length} path={name}\n").len() != length {
                length += 1;
            }
            let record = format!("{length} path={name}\n");
            [entry(b'x', b"PaxHeaders/x", record.as_bytes()), entry(b'0', b"x", content)].concat()
        }
    }
}

fn end() -> Vec<u8> {
    vec![0; 2 * BLOCK]
}

pub(super) fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let files = files.iter().map(|(name, content)| file(Names::Gnu, name, content));
    files.chain([end()]).collect::<Vec<_>>().concat()
}

fn of(column: &str, limit: u64) -> Arc<ReadOptions> {
    Arc::new(ReadOptions { projection: Projection::text(column), ..ReadOptions::clone(&options(limit)) })
}

/// All results for a column of an archive: with the byte of each text, or the error.
fn texts(bytes: &[u8], column: &str) -> Vec<Result<(u64, String), String>> {
    texts_of("s.tar", bytes, &of(column, 1000))
}

fn texts_of(path: &str, bytes: &[u8], options: &Arc<ReadOptions>) -> Vec<Result<(u64, String), String>> {
    let seen = read_source(path, Box::new(bytes.to_vec()), options);
    let plain = |seen| match seen {
        Seen::Document(at, text) => Ok((at.byte, text)),
        Seen::Error(error) => Err(format!("{error} ({:?})", error.rest)),
    };
    seen.into_iter().map(plain).collect()
}

#[expect(clippy::unnecessary_wraps, reason = "a result of `texts`")]
fn text(byte: u64, text: &str) -> Result<(u64, String), String> {
    Ok((byte, text.to_owned()))
}

#[test]
fn neighbours_with_one_key_are_a_record() {
    let shard = [
        entry(b'5', b"d/", b""),
        file(Names::Gnu, "d/a.jpg", &[0xff, 0, 1]),
        file(Names::Gnu, "d/a.txt", b"a"),
        entry(b'2', b"README", b""),
        file(Names::Gnu, "__meta__/x.txt", b"no"),
        file(Names::Gnu, "d/b.txt", b"b"),
        file(Names::Gnu, "README", b"no"),
        file(Names::Gnu, "d/b.png", &[0; 3000]),
        file(Names::Gnu, "d/a.txt", b""),
        end(),
    ]
    .concat();
    let expected = [text(512, "a"), text(4096, "b"), text(9728, "")];
    assert_eq!(texts(&shard, "txt"), expected);
    assert_eq!(texts_of("s.tar.gz", &gzip(&shard), &of("txt", 1000)), expected);
    assert_eq!(texts_of("no name", &shard, &of("txt", 1000)), expected);
    let missing = texts(&shard, "caption");
    assert_eq!(
        missing[0],
        Err("s.tar: record 0, byte 512: expected the key \"caption\", found an object with the keys \"jpg\", \"txt\"; name \
             the key that holds the text with text_field= (Readable)"
            .to_owned())
    );
    assert_eq!(missing.len(), 3);
}

#[test]
fn text_may_be_in_json() {
    let shard = archive(&[
        ("a.json", b"\xef\xbb\xbf {\"caption\": \"one\\n\", \"x\": {\"y\": \"two\"},\n \"p.q\": \"three\"}"),
        ("a.seg.json", b"[1]"),
        ("b.json", b"{\"caption\": 1}"),
        ("c.json", b"{\"caption\": }"),
        ("d.json", b"[]"),
        ("d.json.caption", b"a part of its own"),
    ]);
    let seen = texts(&shard, "json.caption");
    assert_eq!(seen[0], text(0, "one\n"));
    let reason = |found: &Result<_, String>| found.clone().unwrap_err();
    assert!(
        reason(&seen[1]).contains(
            "record 1, byte 2048: expected a string under the key \"json.caption\", found a number"
        )
    );
    assert!(
        reason(&seen[2])
            .contains("expected JSON in the member \"json\": expected a value, found '}' at byte 12"),
        "{seen:?}"
    );
    assert_eq!(seen[3].as_ref().unwrap().1, "a part of its own");
    assert_eq!(texts(&shard, "json.x.y")[0], text(0, "two"));
    assert_eq!(texts(&shard, "json.p.q")[0], text(0, "three"));
    assert!(reason(&texts(&shard, "seg.json.x")[0]).contains("the keys \"json\", \"seg.json\""));
}

#[test]
fn bad_parts_lose_their_record_only() {
    let shard = archive(&[
        ("a.txt", b"\xc3\xa4\xff"),
        ("b.txt", b"b"),
        ("b.jpg", b""),
        ("b.txt", b"again"),
        ("c.txt", &[b'c'; 1001]),
        ("d.txt", &[b'd'; 1000]),
    ]);
    let seen = texts(&shard, "txt");
    let expected = [
        "record 0, byte 0: expected UTF-8 in the column \"txt\", found byte 0xff at byte 2 of the text (Readable)",
        "record 1, byte 2560: expected each extension once in a record, found \"txt\" twice (Readable)",
        "record 2, byte 3584: expected at most 1000 bytes of text and JSON in a record, found more up to \"txt\" of 1001; \
         raise max_document_bytes= to read it (Readable)",
    ];
    for (found, expected) in seen.iter().zip(expected) {
        assert_eq!(*found, Err(format!("s.tar: {expected}")));
    }
    assert_eq!(seen[3], text(5120, &"d".repeat(1000)));
}

#[test]
fn huge_members_are_not_read() {
    /// Only the headers of an archive, whose other bytes cannot be read.
    struct Sparse(Vec<(u64, Vec<u8>)>, u64);
    impl Source for Sparse {
        fn size(&self) -> u64 {
            self.1
        }
        fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
            if offset == self.1 {
                return Ok(0);
            }
            let known = self.0.iter().find(|(at, bytes)| (*at..*at + bytes.len() as u64).contains(&offset));
            let Some((at, bytes)) = known else { return Err(io::Error::other("data was read")) };
            let rest = &bytes[(offset - at) as usize..];
            let length = rest.len().min(out.len());
            out[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        }
    }
    const SIZE: u64 = 40 << 30;
    let size: Vec<u8> = [vec![0x80, 0, 0, 0], SIZE.to_be_bytes().to_vec()].concat();
    let pax = entry(b'x', b"x", format!("20 size={SIZE}\n").as_bytes());
    let first = [file(Names::Gnu, "a.txt", b"a"), member(b'0', b"a.mp4", b"", &size, b"")].concat();
    let second = [pax, member(b'0', b"b.mp4", b"", b"0", b"")].concat();
    let third = [file(Names::Gnu, "b.txt", b"b"), end()].concat();
    let second_at = first.len() as u64 + SIZE;
    let third_at = second_at + second.len() as u64 + SIZE;
    let length = third_at + third.len() as u64;
    let source = Sparse(vec![(0, first), (second_at, second), (third_at, third)], length);
    let seen = read_source("s.tar", Box::new(source), &of("txt", 1000));
    let read: Vec<_> = seen
        .iter()
        .map(|seen| match seen {
            Seen::Document(at, text) => (at.byte, text.as_str()),
            Seen::Error(error) => panic!("{error}"),
        })
        .collect();
    assert_eq!(read, [(0, "a"), (second_at, "b")]);
}

#[test]
fn filter_paths_are_read_as_json() {
    let shard = archive(&[("a.txt", b"a \"b\"\n"), ("a.json", b" {\"x\": [1, 2]}"), ("a.jpg", b"\xff\0\0")]);
    let paths = ["json", "jpg", "cls"].map(|key| vec![Step::Key(key.to_owned())]).to_vec();
    let options = ReadOptions {
        projection: Projection::text("txt").with_paths(paths),
        ..ReadOptions::clone(&options(1000))
    };
    let source = Box::new(shard.clone());
    let mut reader =
        RecordReader::from_source(&"s.tar".into(), source, &Arc::new(options), &Arc::default()).unwrap();
    let record = reader.next_raw().unwrap().unwrap();
    assert_eq!(
        std::str::from_utf8(record.bytes).unwrap(),
        r#"{"txt":"a \"b\"\n","json":{"x": [1, 2]},"jpg":{"bytes":3}}"#
    );
    let options = ReadOptions { projection: Projection::all(), ..ReadOptions::clone(&self::options(1000)) };
    let mut reader =
        RecordReader::from_source(&"s.tar".into(), Box::new(shard), &Arc::new(options), &Arc::default())
            .unwrap();
    let members = reader.next_members().unwrap().unwrap();
    let members: Vec<_> = members.iter().map(|m| (m.key.as_str(), m.kind, m.characters)).collect();
    assert_eq!(
        members,
        [("txt", "string", 6), ("json", "object", 14), ("json.x", "array", 0), ("jpg", "binary", 3)]
    );
    assert_eq!(reader.next_members(), Ok(None));
}

/// The expectation for an archive that is cut: the samples whose end is there, and where it is damaged.
#[test]
fn cut_at_every_byte() {
    let long = format!("{}/c", "n".repeat(150));
    let shard = [
        file(Names::Gnu, "a.jpg", &[7; 600]),
        file(Names::Gnu, "a.txt", b"a"),
        file(Names::Gnu, "b.txt", b"b"),
        file(Names::Pax, &format!("{long}.txt"), b"c"),
        end(),
    ]
    .concat();
    // Where the next sample's first member is complete, without padding; and the headers.
    let complete = [3073, 5121, 5632 + 512];
    let headers = [0, 1536, 2560, 3584, 4608];
    let whole = texts(&shard, "txt");
    assert_eq!(whole, [text(0, "a"), text(2560, "b"), text(3584, "c")]);
    for length in 0..shard.len() - BLOCK {
        let cut = &shard[..length];
        let seen = read_source("s.tar", Box::new(cut.to_vec()), &of("txt", 1000));
        for chunk in [1, 511, 700] {
            let source = Chunks { bytes: cut.to_vec(), chunk };
            assert_eq!(read_source("s.tar", Box::new(source), &of("txt", 1000)), seen, "{length} in {chunk}");
        }
        let (last, documents) = seen.split_last().unwrap();
        let texts: Vec<_> = documents
            .iter()
            .map(|seen| match seen {
                Seen::Document(at, text) => Ok((at.byte, text.clone())),
                Seen::Error(error) => panic!("{length}: {error}"),
            })
            .collect();
        let expected = complete.iter().filter(|&&end| length >= end).count();
        assert_eq!(texts, whole[..expected.min(2) + usize::from(length >= shard.len() - BLOCK)], "{length}");
        let error = last.error().unwrap();
        assert_eq!(error.rest, AfterError::Lost, "{length}");
        let byte = error.error.byte.unwrap() as usize;
        let at_header = headers.iter().rev().find(|&&header| header <= length).unwrap();
        assert!(byte >= *at_header.min(&length) && byte <= length, "{length}: {error}");
        assert_eq!(error.error.record, Some(texts.len() as u64), "{length}");
    }
}

/// A damaged archive: its name and bytes, how many documents it has, and record, byte and reason of the error.
type Damaged = (&'static str, Vec<u8>, usize, u64, u64, &'static str);

#[test]
fn damaged_archives_have_one_error() {
    let good = archive(&[("a.txt", b"a"), ("b.txt", b"b")]);
    let mut checksum = good.clone();
    checksum[1024] ^= 1;
    let after = [&good[..], &good[..]].concat();
    let single = [&good[..2560], &good[..]].concat();
    let zeroed = |range: std::ops::Range<usize>| {
        let mut bytes = good.clone();
        bytes[range].fill(0);
        bytes
    };
    let (first, second, page) = (zeroed(0..512), zeroed(1024..1536), zeroed(0..1024));
    let behind = [&good[..], &[1; 700]].concat();
    let last = [&good[..], &[0; 9000], b"x"].concat();
    let empty = [&end()[..], b"x"].concat();
    let leading = [&[0; 512], &good[..]].concat();
    let sparse = [entry(b'S', b"a.txt", b"a"), end()].concat();
    let global = [entry(b'g', b"x", b"20 comment=01234567\n"), good.clone()].concat();
    let paths = [entry(b'g', b"x", b"10 path=a\n"), good.clone()].concat();
    let long = [member(b'L', b"x", b"", b"00077777777", b""), vec![1; 100]].concat();
    let cases: [Damaged; 17] = [
        ("zero bytes", Vec::new(), 0, 0, 0, "found the end of the file: it was cut"),
        ("no end", good[..2048].to_vec(), 1, 1, 2048, "expected a block of zeros, which ends an archive"),
        ("checksum", checksum, 0, 0, 1024, "expected the header of a member, found another checksum"),
        ("two archives", after, 2, 2, 3072, "found another member: of several archives"),
        ("one block of zeros", single, 2, 2, 2560, "found another member: of several archives"),
        ("the first header is zeros", first, 0, 0, 512, "found other bytes: a part of the file was lost"),
        (
            "a header is zeros",
            second,
            1,
            1,
            1536,
            "after the block of zeros at byte 1024, which ends an archive",
        ),
        ("a page is zeros", page, 0, 0, 1024, "found another member"),
        ("zeros first", leading, 0, 0, 512, "found another member"),
        (
            "other bytes behind",
            behind,
            2,
            2,
            3072,
            "expected only zeros after the block of zeros at byte 2048",
        ),
        ("a byte behind many zeros", last, 2, 2, 11776, "found other bytes"),
        ("no members, and a byte", empty, 0, 0, 1024, "found other bytes"),
        ("sparse", sparse, 0, 0, 0, "expected a whole file, found a sparse one"),
        ("global paths", paths, 0, 0, 0, "expected no global header of pax with paths"),
        ("a name cut", long, 0, 0, 0, "expected the data of a member, found the end of the file in it"),
        ("JSON", b"{\"text\": \"a\"}\n".to_vec(), 0, 0, 0, "expected a header of 512 bytes, found the end"),
        ("JSON lines", b"{\"text\": \"a\"}\n".repeat(50), 0, 0, 0, "found another checksum"),
    ];
    for (name, bytes, documents, record, byte, reason) in cases {
        let mut seen = texts(&bytes, "txt");
        let error = seen.pop().unwrap().unwrap_err();
        assert_eq!(seen.len(), documents, "{name}: {seen:?}");
        assert!(error.starts_with(&format!("s.tar: record {record}, byte {byte}: ")), "{name}: {error}");
        assert!(error.contains(reason) && error.ends_with("(Lost)"), "{name}: {error}");
    }
    assert_eq!(texts(&global, "txt").len(), 2);
    for zeros in [0, 1, 511, 512, 10_240] {
        assert_eq!(texts(&[&good[..2560], &vec![0; zeros][..]].concat(), "txt").len(), 2, "{zeros} zeros");
    }
    assert_eq!(texts(&end(), "txt"), []);
    assert_eq!(texts(&end()[..BLOCK], "txt"), []);
}

#[test]
fn positions_of_other_shards_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = archive(&[("a.txt", b"a"), ("a.b", &[1; 600]), ("README", b""), ("b.txt", b"b")]);
    let shard = shard_file(&folder, "s.tar", &bytes);
    let open =
        |byte| RecordReader::open_at(&shard, &of("txt", 99), Position { record: 1, byte }, &Arc::default());
    assert!(open(3072).is_ok());
    assert!(open(4096).is_ok(), "the end");
    for (byte, found) in [
        (512, "there, expected the header of a member"),
        (513, "there, expected"),
        (2560, "no record starts there"),
        (9999, "the shard ends at byte 5120"),
    ] {
        let error = open(byte).err().unwrap().to_string();
        assert!(error.contains(found), "{byte}: {error}");
    }
}

/// An archive of random samples, and the text that each record has under "txt", if it has one.
fn samples() -> impl Strategy<Value = (Vec<u8>, Vec<Option<String>>)> {
    let key = "[a-c]{1,2}|[a-c]{1,140}/[a-c]{1,90}|d{90}/e{90}";
    let part = prop_oneof![
        3 => "[ -~é]{0,40}".prop_map(|text| ("txt", text.into_bytes())),
        1 => proptest::collection::vec(any::<u8>(), 0..1500).prop_map(|bytes| ("jpg", bytes)),
        1 => Just(("json", b"{\"a\": 1}".to_vec())),
    ];
    let sample = (key, proptest::collection::vec(part, 1..4), 0..6_u8);
    let names = prop_oneof![Just(Names::Ustar), Just(Names::Gnu), Just(Names::Pax)];
    (proptest::collection::vec(sample, 0..12), names).prop_map(|(samples, names)| {
        let (mut bytes, mut expected, mut last) = (Vec::new(), Vec::new(), String::new());
        for (key, mut parts, other) in samples {
            if key == last {
                continue;
            }
            parts.sort();
            parts.dedup_by_key(|part| part.0);
            match other {
                0 => bytes.extend(entry(b'5', b"folder/", b"")),
                1 if key.len() < 90 => bytes.extend(link(b'1', &format!("{key}.png"), b"a")), // not wanted
                _ => {}
            }
            for (part, content) in &parts {
                bytes.extend(file(names, &format!("{key}.{part}"), content));
            }
            let text = parts.iter().find(|part| part.0 == "txt");
            expected.push(text.map(|(_, content)| String::from_utf8(content.clone()).unwrap()));
            last = key;
        }
        bytes.extend(end());
        (bytes, expected)
    })
}

/// A link of `kind` to a target.
fn link(kind: u8, name: &str, target: &[u8]) -> Vec<u8> {
    let mut header = entry(kind, name.as_bytes(), b"");
    let short = &target[..target.len().min(100)];
    header[157..157 + short.len()].copy_from_slice(short);
    seal(&mut header);
    header
}

#[test]
fn links_are_members_that_are_not_followed() {
    let long = [b'x'; 150];
    let pax = [b"164 linkpath=", &long[..], b"\n"].concat();
    let shard = [
        file(Names::Gnu, "a.txt", b"a"),
        link(b'1', "a.jpg", b"b.jpg"), // not wanted
        link(b'1', "a.txt", b"a.txt"), // the file itself, again
        link(b'2', "b.txt", b"a.txt"),
        file(Names::Gnu, "b.jpg", b"b"),
        entry(b'K', b"././@LongLink", &long),
        link(b'1', "c.txt", &long),
        entry(b'x', b"PaxHeaders/d", &pax),
        link(b'2', "d.txt", b""),
        file(Names::Gnu, "e.txt", b"e"),
        end(),
    ]
    .concat();
    let long = String::from_utf8_lossy(&long).into_owned();
    let at = |record: u64, byte: u64, target: &str| {
        Err(format!(
            "s.tar: record {record}, byte {byte}: expected a file under \"txt\", found a link to \"{target}\": links are not \
             followed; write the tar with --hard-dereference and --dereference (Readable)"
        ))
    };
    let expected =
        [text(0, "a"), at(1, 2048, "a.txt"), at(2, 3584, &long), at(3, 5120, &long), text(6656, "e")];
    assert_eq!(texts(&shard, "txt"), expected);
}

/// The rest from each position that a reader returned is what a reader that starts there returns.
fn assert_resumes(shard: &Shard, options: &Arc<ReadOptions>) -> Vec<Option<String>> {
    let (found, end) = with_positions(shard, options);
    for (skipped, (position, _)) in found.iter().enumerate() {
        let mut reader = RecordReader::open_at(shard, options, *position, &Arc::default()).unwrap();
        let rest = read_on(&mut reader);
        assert_eq!(reader.position(), end);
        let rest: Vec<_> = rest
            .into_iter()
            .map(|seen| match seen {
                Seen::Document(_, text) => Some(text),
                Seen::Error(_) => None,
            })
            .collect();
        let expected: Vec<_> = found[skipped..].iter().map(|(_, text)| text.clone()).collect();
        assert_eq!(rest, expected, "from {position:?}");
    }
    found.into_iter().map(|(_, text)| text).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_samples_are_read_and_resumed((bytes, expected) in samples(), split in 1..20_000_u64) {
        let folder = tempfile::tempdir().unwrap();
        let shard = shard_file(&folder, "s.tar", &bytes);
        prop_assert_eq!(assert_resumes(&shard, &of("txt", 1000)), expected.clone());
        let packed = shard_file(&folder, "s.tar.gz", &gzip(&bytes));
        prop_assert_eq!(assert_resumes(&packed, &of("txt", 1000)), expected.clone());
        let pieces = shard.divided(split).flat_map(|piece| assert_resumes(&piece, &of("txt", 1000)));
        prop_assert_eq!(pieces.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn damaged_archives_end_without_a_panic(
        (mut bytes, _) in samples(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
        chunk in 1..1500_usize,
    ) {
        for (at, byte, seals) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            // A header that is changed on purpose.
            let header = at / BLOCK * BLOCK;
            if seals && bytes[header + 257..].starts_with(b"ustar") {
                seal(&mut bytes[header..header + BLOCK]);
            }
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let options = of("txt", 1000);
        let seen = read_source("s.tar", Box::new(bytes.clone()), &options);
        let lost = seen.iter().filter_map(Seen::error).filter(|error| error.rest == AfterError::Lost);
        prop_assert!(lost.count() <= 1);
        let source = Chunks { bytes: bytes.clone(), chunk };
        prop_assert_eq!(&read_source("s.tar", Box::new(source), &options), &seen);
        let folder = tempfile::tempdir().unwrap();
        assert_resumes(&shard_file(&folder, "s.tar", &bytes), &options);
    }
}
