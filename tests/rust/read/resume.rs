//! Reading resumed at a position returns the rest of the shard, or an error that says why it cannot.

use _core::store::Shard;

use super::*;

/// A file with these bytes, as the manifest would list it.
pub fn shard_file(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> Shard {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    Shard::whole(path.to_str().unwrap(), bytes.len() as u64)
}

/// All texts from the start, none for a bad record, each with the reader's position before it; then the last position.
pub fn with_positions(
    shard: &Shard,
    options: &Arc<ReadOptions>,
) -> (Vec<(Position, Option<String>)>, Position) {
    let mut reader = RecordReader::open(shard, options, &Arc::default()).unwrap();
    let mut found = Vec::new();
    loop {
        let position = reader.position();
        let mut text = String::new();
        match reader.next_text(&mut text) {
            Ok(None) => return (found, reader.position()),
            Ok(Some(_)) => found.push((position, Some(text))),
            Err(_) => found.push((position, None)),
        }
    }
}

fn shards() -> Vec<(&'static str, Vec<u8>)> {
    let mut rich = "\u{feff}".as_bytes().to_vec();
    rich.extend(valid_shard());
    rich.extend_from_slice(b"{\"text\": 1}\n");
    writeln!(rich, "{{\"text\": \"{}\"}}", "x".repeat(2000)).unwrap();
    rich.extend(valid_shard());
    let unfinished = [&rich[..], b"{\"text\": \"no newline\"}"].concat();
    let many: Vec<u8> = (0..60_000).flat_map(|i| format!("{{\"text\": \"{i}\"}}\n").into_bytes()).collect();
    vec![
        ("rich.jsonl", rich.clone()),
        ("unfinished.jsonl", unfinished.clone()),
        ("rich.gz", gzip(&rich)),
        ("unfinished.gz", [gzip(&unfinished[..333]), gzip(&unfinished[333..])].concat()),
        ("empty.jsonl", Vec::new()),
        ("blank.gz", gzip(b"\n \n")),
        ("many.gz", gzip(&many)),
    ]
}

#[test]
fn resume_from_every_record() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(1000);
    for (name, bytes) in shards() {
        let shard = shard_file(&folder, name, &bytes);
        let (found, end) = with_positions(&shard, &options);
        let step = found.len() / 100 + 1;
        for (skipped, (position, _)) in found.iter().enumerate().step_by(step) {
            let mut reader = RecordReader::open_at(&shard, &options, *position, &Arc::default()).unwrap();
            assert_eq!(reader.position(), *position);
            let mut expected = RecordReader::open(&shard, &options, &Arc::default()).unwrap();
            let expected = read_on(&mut expected);
            assert_eq!(read_on(&mut reader), expected[skipped..], "{name} at {position:?}");
        }
        let mut at_end = RecordReader::open_at(&shard, &options, end, &Arc::default()).unwrap();
        assert_eq!((read_on(&mut at_end), at_end.position()), (vec![], end), "{name}");
    }
}

#[test]
fn position_inside_a_line_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(1000);
    for (name, bytes) in shards() {
        let shard = shard_file(&folder, name, &bytes);
        let (found, end) = with_positions(&shard, &options);
        let mut positions: Vec<_> = found.iter().map(|(position, _)| *position).take(30).collect();
        positions.push(end);
        for Position { record, byte } in positions {
            for wrong in [
                Position { record: record + 1, byte },
                Position { record: record.wrapping_sub(1), byte },
                Position { record, byte: byte + 1 },
                Position { record: record + 1, byte: byte + 1 },
                Position { record, byte: byte.wrapping_sub(1) },
                Position { record, byte: u64::MAX },
                Position { record: u64::MAX, byte },
            ] {
                let error = RecordReader::open_at(&shard, &options, wrong, &Arc::default()).err();
                assert!(matches!(error, Some(Error::State(_))), "{name} at {wrong:?}: {error:?}");
            }
        }
    }
}

#[test]
fn messages_of_wrong_positions() {
    let folder = tempfile::tempdir().unwrap();
    let shard = shard_file(&folder, "s.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    for (record, byte, found) in [
        (1, 13, "this byte is inside line 0"),
        (2, 14, "line 1 starts there"),
        (2, 29, "the shard ends at byte 28"),
    ] {
        let error = RecordReader::open_at(&shard, &options(100), Position { record, byte }, &Arc::default())
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "{}: expected record {record} to start at byte {byte} as the state says, but {found}; the shard is \
                 not the one that the state was saved with: restore that one",
                shard.path
            )
        );
    }
}

#[test]
fn damage_before_and_after_the_position() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(1000);
    let lines: Vec<u8> = (0..2000)
        .flat_map(|i: u32| format!("{{\"text\": \"{}\"}}\n", i.wrapping_mul(2_654_435_761)).into_bytes())
        .collect();
    let compressed = gzip(&lines);
    let shard = shard_file(&folder, "s.gz", &compressed[..compressed.len() / 2]);
    let whole = read_on(&mut RecordReader::open(&shard, &options, &Arc::default()).unwrap());
    let damage = whole.last().unwrap().error().unwrap();

    // After the position: the same error at the same position as without resuming.
    for seen in &whole[..whole.len() - 1] {
        let Seen::Document(at, _) = seen else { panic!("{seen:?}") };
        if at.record % 100 == 0 {
            let mut reader = RecordReader::open_at(&shard, &options, *at, &Arc::default()).unwrap();
            assert_eq!(read_on(&mut reader), whole[at.record as usize..]);
        }
    }
    // Before the position: the shard's error.
    let Position { record, byte } = position_of(damage);
    let after = Position { record: record + 1, byte: byte + 1 };
    let error = RecordReader::open_at(&shard, &options, after, &Arc::default()).err();
    assert_eq!(error, Some(Error::Shard(damage.error.clone())));
}
