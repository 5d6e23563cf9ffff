//! Pieces: for any split they hold every record of the shard once, in order, as the whole shard does.

use _core::codec::{index_path, write_index};
use _core::store::{LocalFile, Shard};
use proptest::prelude::*;

use super::columns;
use super::parquet_files;
use super::resume::{shard_file, with_positions};
use super::zstandard::frame;
use super::*;

/// The outcome of each record of a piece: its text, or the message without the shard's name.
fn outcomes(shard: &Shard, options: &Arc<ReadOptions>) -> Vec<Result<String, String>> {
    let mut reader = RecordReader::open(shard, options, &Arc::default()).unwrap();
    let outcome = |seen| match seen {
        Seen::Document(_, text) => Ok(text),
        Seen::Error(error) => Err(error.error.reason),
    };
    read_on(&mut reader).into_iter().map(outcome).collect()
}

/// Checks that the pieces of a shard are the shard, and that each can be resumed at every record.
fn check_pieces(shard: &Shard, split_bytes: u64) -> Result<usize, TestCaseError> {
    let options = options(1000);
    let whole = outcomes(shard, &options);
    let mut found = Vec::new();
    let mut used = 0;
    for piece in shard.clone().divided(split_bytes) {
        let own = outcomes(&piece, &options);
        let (positions, end) = with_positions(&piece, &options);
        let mut reader = RecordReader::open(&piece, &options, &Arc::default()).unwrap();
        let seen = read_on(&mut reader);
        let step = positions.len() / 8 + 1;
        for (skipped, (position, _)) in positions.iter().enumerate().step_by(step) {
            let mut reader = RecordReader::open_at(&piece, &options, *position, &Arc::default()).unwrap();
            prop_assert_eq!(reader.position(), *position);
            prop_assert_eq!(read_on(&mut reader), &seen[skipped..]);
        }
        let mut at_end = RecordReader::open_at(&piece, &options, end, &Arc::default()).unwrap();
        prop_assert_eq!((read_on(&mut at_end), at_end.position()), (vec![], end));
        used += usize::from(!own.is_empty());
        found.extend(own);
    }
    prop_assert_eq!(found, whole);
    Ok(used)
}

fn member(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => "[a-z]{0,60}".prop_map(|text| format!("{{\"text\": \"{text}\"}}").into_bytes()),
        2 => Just(Vec::new()),
        1 => Just(b"\r".to_vec()),
        1 => Just(b"\xef\xbb\xbf{\"text\": \"mark\"}".to_vec()),
        1 => Just(b"{\"text\": 1}".to_vec()),
        1 => (900usize..1500).prop_map(|length| format!("{{\"text\": \"{}\"}}", "x".repeat(length)).into_bytes()),
    ]
}

prop_compose! {
    fn lines()(lines in prop::collection::vec(line(), 0..60), ends in any::<bool>()) -> Vec<u8> {
        let mut bytes = lines.join(&b'\n');
        if ends {
            bytes.push(b'\n');
        }
        bytes
    }
}

#[test]
fn pieces_of_arrow_files_are_the_shard() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in columns::FILES {
        let shard = shard_file(&folder, name, bytes);
        for split_bytes in [2500, 7000, 1 << 20] {
            check_pieces(&shard, split_bytes).unwrap();
        }
        assert!(check_pieces(&shard, 1000).unwrap() > 1, "{name}");
    }
}

proptest! {
    #[test]
    fn pieces_of_lines_are_the_shard(bytes in lines(), split_bytes in 1u64..3000) {
        let folder = tempfile::tempdir().unwrap();
        check_pieces(&shard_file(&folder, "s.jsonl", &bytes), split_bytes)?;
    }

    #[test]
    fn pieces_of_frames_are_the_shard(
        bytes in lines(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<bool>(), any::<bool>()), 1..12),
        split_bytes in 20u64..3000,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut places: Vec<_> = cuts.iter().map(|(index, ..)| index.index(bytes.len() + 1)).collect();
        places.sort_unstable();
        let mut file = frame(&bytes[..places[0]], 3, true, true);
        for (index, (_, checksum, size, is_skippable)) in cuts.iter().enumerate() {
            if *is_skippable {
                file.extend_from_slice(b"\x50\x2a\x4d\x18\x03\0\0\0abc");
            }
            let end = places.get(index + 1).copied().unwrap_or(bytes.len());
            file.extend(frame(&bytes[places[index]..end], 3, *checksum, *size));
        }
        check_pieces(&shard_file(&folder, "s.zst", &file), split_bytes)?;
    }

    #[test]
    fn pieces_of_members_are_the_shard(
        bytes in lines(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..10_u32, any::<bool>()), 1..12),
        split_bytes in 20u64..3000,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut places: Vec<_> = cuts.iter().map(|(index, ..)| index.index(bytes.len() + 1)).collect();
        places.sort_unstable();
        let mut file = member(&bytes[..places[0]], 6);
        for (index, (_, level, is_padded)) in cuts.iter().enumerate() {
            if *is_padded {
                file.extend_from_slice(&[0; 50]);
            }
            let end = places.get(index + 1).copied().unwrap_or(bytes.len());
            file.extend(member(&bytes[places[index]..end], *level));
        }
        check_pieces(&shard_file(&folder, "s.gz", &file), split_bytes)?;
    }

    #[test]
    fn pieces_of_parquet_are_the_shard(rows in 0usize..100, group in 1usize..40, split_bytes in 50u64..5000) {
        let folder = tempfile::tempdir().unwrap();
        let texts = parquet_files::texts();
        let file = parquet_files::file(&parquet_files::slices(&texts[..rows]), group, parquet_files::properties().build());
        check_pieces(&shard_file(&folder, "s.parquet", &file), split_bytes)?;
    }
}

#[test]
fn equal_pieces_of_equal_parts_are_all_used() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<u8> = (0..1000).flat_map(|i| format!("{{\"text\": \"{i:04}\"}}\n").into_bytes()).collect();
    let plain = shard_file(&folder, "s.jsonl", &lines);
    assert_eq!(check_pieces(&plain, plain.size.div_ceil(7)).unwrap(), 7);
    let frames: Vec<u8> = lines.chunks(170).flat_map(|part| frame(part, 3, true, true)).collect();
    let frames = shard_file(&folder, "s.zst", &frames);
    assert_eq!(check_pieces(&frames, frames.size.div_ceil(7)).unwrap(), 7);
    let texts: Vec<_> = (0..70).map(|i| Some(format!("{i:02}").repeat(480).into_bytes())).collect();
    let file = parquet_files::file(&parquet_files::slices(&texts), 10, parquet_files::properties().build());
    let rows = shard_file(&folder, "s.parquet", &file);
    assert_eq!(check_pieces(&rows, rows.size.div_ceil(7)).unwrap(), 7);
}

/// One member of many blocks.
#[test]
fn pieces_of_a_member_are_the_shard_with_and_without_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let text = |i: u32| {
        (0..i % 40).map(|j| (i.wrapping_mul(2_654_435_761) >> (j % 20)).to_string()).collect::<String>()
    };
    let lines: Vec<u8> =
        (0..20_000).flat_map(|i| format!("{{\"text\": \"{}\"}}\n", text(i)).into_bytes()).collect();
    let shard = shard_file(&folder, "s.gz", &member(&lines, 6));
    let index = index_path(std::path::Path::new(&*shard.path));
    for has_index in [false, true] {
        if has_index {
            let source = LocalFile::open(&shard, std::path::Path::new("")).unwrap();
            let mut out = std::fs::File::create(&index).unwrap();
            write_index(Box::new(source), &mut out, &Arc::default()).unwrap();
        }
        assert_eq!(check_pieces(&shard, shard.size.div_ceil(9)).unwrap(), 9, "{has_index}");
        // Records and bytes are those of the shard.
        let piece = shard.clone().divided(shard.size.div_ceil(9)).nth(4).unwrap();
        let reader = RecordReader::open(&piece, &options(1000), &Arc::default()).unwrap();
        let Position { record, byte } = reader.position();
        assert_eq!(lines[..byte as usize].split(|&byte| byte == b'\n').count() as u64 - 1, record);
        assert!(record > 1000 && lines[byte as usize - 1] == b'\n');
    }
    std::fs::write(&index, "something else").unwrap();
    let piece = shard.clone().divided(shard.size.div_ceil(9)).nth(4).unwrap();
    let error = RecordReader::open(&piece, &options(1000), &Arc::default()).err();
    assert!(
        matches!(&error, Some(Error::Argument(reason)) if reason.contains("make it again with gristmill index")),
        "{error:?}"
    );
}

#[test]
fn errors_name_the_piece() {
    let folder = tempfile::tempdir().unwrap();
    let lines = b"{\"text\": \"a\"}\n{\"text\": 1}\n{\"text\": 2}\n";
    let shard = shard_file(&folder, "s.jsonl", lines);
    let piece = shard.clone().divided(21).nth(1).unwrap();
    let mut reader = RecordReader::open(&piece, &options(1000), &Arc::default()).unwrap();
    let error = reader.next_text(&mut String::new()).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{}[19:38]: record 0, byte 26: expected a string", shard.path)),
        "{error}"
    );
    let missing = Shard { path: "none.jsonl".into(), ..piece };
    let error = RecordReader::open(&missing, &options(1000), &Arc::default()).err().unwrap().to_string();
    assert!(error.contains("[19:38]: expected the file of the manifest"), "{error}");
}

#[test]
fn positions_outside_a_piece_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let shard = shard_file(&folder, "s.jsonl", &b"{\"text\": \"a\"}\n".repeat(10));
    let piece = shard.divided(75).nth(1).unwrap();
    for (record, byte) in [(0, 15), (1, 75), (0, 76), (2, 90), (0, 1000)] {
        let error =
            RecordReader::open_at(&piece, &options(1000), Position { record, byte }, &Arc::default()).err();
        assert!(matches!(error, Some(Error::State(_))), "{record} {byte}: {error:?}");
    }
}

#[test]
fn one_frame_is_not_divided() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = frame(&valid_shard(), 3, true, true);
    let piece = shard_file(&folder, "s.zst", &bytes).divided(bytes.len().div_ceil(2) as u64).nth(1).unwrap();
    let error = RecordReader::open(&piece, &options(1000), &Arc::default()).err();
    assert!(matches!(&error, Some(Error::Argument(reason)) if reason.contains("split_bytes=0")), "{error:?}");
}

#[test]
fn damage_costs_the_pieces_that_it_is_in() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<Vec<u8>> = (0..4).map(|i| format!("{{\"text\": \"{i}\"}}\n").into_bytes()).collect();
    let mut frames: Vec<Vec<u8>> = lines.iter().map(|line| frame(line, 3, true, true)).collect();
    // A checksum.
    *frames[1].last_mut().unwrap() ^= 1;
    let shard = shard_file(&folder, "s.zst", &frames.concat());
    let texts: Vec<_> = shard
        .clone()
        .divided(shard.size.div_ceil(4))
        .map(|piece| match RecordReader::open(&piece, &options(1000), &Arc::default()) {
            Ok(mut reader) => read_on(&mut reader).len(),
            Err(_) => 0,
        })
        .collect();
    // The damaged frame has a text and an error; whether the next one starts with a line is not known.
    assert_eq!(texts, [1, 2, 0, 1]);
}
