//! Lines: counted, skipped and too long ones, against a naive reader.

use proptest::prelude::*;

use super::*;

/// The documents and the positions of bad lines in plain bytes, by whole-file splitting and `serde_json`.
fn naive(bytes: &[u8], limit: usize) -> Vec<(Position, Option<String>)> {
    let mut found = Vec::new();
    let mut byte = 0;
    for (record, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let at = Position { record: record as u64, byte };
        byte += line.len() as u64 + 1;
        let content = if record == 0 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        if line.len() > limit {
            found.push((at, None));
        } else if !content.iter().all(|byte| b" \t\r".contains(byte)) {
            let value: Option<serde_json::Value> = serde_json::from_slice(content).ok();
            let text = value.as_ref().and_then(|value| value.get("text")?.as_str());
            found.push((at, text.map(str::to_owned)));
        }
    }
    found
}

fn simplified(seen: &[Seen]) -> Vec<(Position, Option<String>)> {
    seen.iter()
        .map(|seen| match seen {
            Seen::Document(at, text) => (*at, Some(text.clone())),
            Seen::Error(error) => {
                assert_eq!(error.rest, AfterError::Readable, "{error}");
                (position_of(error), None)
            }
        })
        .collect()
}

#[test]
fn positions_of_all_kinds_of_lines() {
    let shard = valid_shard();
    let seen = read("s.jsonl", &shard);
    assert_eq!(simplified(&seen), naive(&shard, 1000));
    assert_eq!(seen.len(), 9);
    for (seen, record) in seen.iter().zip([0, 1, 3, 4, 5, 7, 8, 9, 11]) {
        let Seen::Document(at, text) = seen else { panic!("{seen:?}") };
        assert_eq!(at.record, record);
        assert!(text.contains(&record.to_string()) || text.contains("longer"), "{text}");
    }
}

#[test]
fn shards_end_with_or_without_a_newline() {
    let document = |record, byte| Seen::Document(Position { record, byte }, "a".into());
    let line = r#"{"text":"a"}"#;
    for (shard, expected) in [
        (String::new(), vec![]),
        ("\n".into(), vec![]),
        (" \r\n\t".into(), vec![]),
        ("\u{feff}".into(), vec![]),
        ("\u{feff}\n".into(), vec![]),
        (line.into(), vec![document(0, 0)]),
        (format!("{line}\n"), vec![document(0, 0)]),
        (format!("{line}\r\n\r\n"), vec![document(0, 0)]),
        (format!("\u{feff}{line}\n{line}"), vec![document(0, 0), document(1, 16)]),
        (format!("\n\n  {line}\r"), vec![document(2, 2)]),
    ] {
        assert_eq!(read("s.jsonl", shard.as_bytes()), expected, "{shard:?}");
        assert_eq!(read("s.gz", &gzip(shard.as_bytes())), expected, "{shard:?} in gzip");
    }
}

#[test]
fn byte_order_mark_after_the_start_is_an_error() {
    let shard = "\n\u{feff}{\"text\":\"a\"}\n{\"text\":\"b\"}\u{feff}\n\u{feff}\n";
    let seen = read("s.jsonl", shard.as_bytes());
    let records: Vec<_> = seen.iter().map(|seen| position_of(seen.error().unwrap()).record).collect();
    assert_eq!(records, [1, 2, 3]);
    let reason = &seen[0].error().unwrap().error.reason;
    assert!(
        reason.contains("found a byte order mark (U+FEFF), which is allowed only at the start"),
        "{reason}"
    );
    let twice = read("s.jsonl", "\u{feff}\u{feff}{\"text\":\"a\"}".as_bytes());
    let reason = &twice[0].error().unwrap().error.reason;
    assert!(reason.contains("byte order mark") && reason.contains("at byte 3 of the line"), "{reason}");
}

#[test]
fn lines_around_the_limit() {
    for (length, valid) in [(999, true), (1000, true), (1001, false), (5_000_000, false)] {
        let line = format!("{{\"text\":\"{}\"}}", "x".repeat(length - 11));
        assert_eq!(line.len(), length);
        let shard = format!("{{\"text\":\"first\"}}\n{line}\n{{\"text\":\"last\"}}\n{line}");
        for chunk in [usize::MAX, 100_000] {
            let seen = read_in_chunks("s.jsonl", shard.as_bytes(), chunk);
            assert_eq!(seen.len(), 4);
            let last = Position { record: 2, byte: 17 + length as u64 + 1 };
            assert_eq!(seen[2], Seen::Document(last, "last".into()));
            for index in [1, 3] {
                match &seen[index] {
                    Seen::Document(..) => assert!(valid, "{length}"),
                    Seen::Error(error) => {
                        assert!(!valid, "{error}");
                        assert_eq!(error.rest, AfterError::Readable);
                        assert_eq!(
                            error.error.reason,
                            format!(
                                "expected a line of at most 1000 bytes, found one of {length}; raise \
                                 max_document_bytes= to read it"
                            )
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn json_array_on_one_line_is_reported_as_such() {
    let shard = format!("[{}{{\"text\": \"last\"}}]", "{\"text\": \"a\"}, ".repeat(100));
    let seen = read("s.jsonl", shard.as_bytes());
    assert_eq!(
        seen[0].error().unwrap().error.reason,
        format!(
            "expected a line of at most 1000 bytes, found one of {}; if the file is one JSON array, convert it to one \
             object per line with jq -c '.[]'",
            shard.len()
        )
    );
}

#[test]
fn line_without_a_limit() {
    let shard = format!("{{\"text\":\"{}\"}}", "x".repeat(3_000_000));
    let source = Box::new(shard.into_bytes());
    let seen = read_source("s.jsonl", source, &options(u64::MAX));
    assert!(matches!(&seen[..], [Seen::Document(_, text)] if text.len() == 3_000_000));
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => "[ -~é€]{0,30}".prop_map(|text| serde_json::json!({ "text": text }).to_string().into_bytes()),
        1 => prop::sample::select(vec!["", " ", "\r", "{}", "[]", "{\"text\":1}", "{\"text\":\"a\"}\r", "\u{feff}", "x"])
            .prop_map(|line| line.as_bytes().to_vec()),
        1 => (900..1100_usize).prop_map(|length| format!("{{\"text\":\"{}\"}}", "x".repeat(length)).into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..5),
    ]
}

proptest! {
    #[test]
    fn agrees_with_a_naive_reader(
        lines in prop::collection::vec(line(), 0..20),
        newline in any::<bool>(),
        members in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        chunk in prop_oneof![1..8_usize, Just(usize::MAX)],
    ) {
        let mut shard = lines.join(&b'\n');
        if newline {
            shard.push(b'\n');
        }
        // A last newline ends the last line; it opens none.
        let mut expected = naive(shard.strip_suffix(b"\n").unwrap_or(&shard), 1000);
        if shard.is_empty() {
            expected.clear();
        }
        prop_assert_eq!(&simplified(&read_in_chunks("s.jsonl", &shard, chunk)), &expected);

        let mut cuts: Vec<_> = members.iter().map(|cut| cut.index(shard.len() + 1)).collect();
        cuts.extend([0, shard.len()]);
        cuts.sort_unstable();
        let compressed: Vec<u8> = cuts.windows(2).flat_map(|cut| gzip(&shard[cut[0]..cut[1]])).collect();
        prop_assert_eq!(&simplified(&read_in_chunks("s.gz", &compressed, chunk)), &expected);
    }
}
