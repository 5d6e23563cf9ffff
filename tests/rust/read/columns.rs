//! Files with columns of many types, as pyarrow writes them (`columns.py`): text, rows and filters, and damage.

use _core::format::keep::{Comparison, Expression, Instruction};
use _core::format::{RawKind, Step, json_of};
use proptest::prelude::*;

use super::damage::{mutate, mutation};
use super::*;

pub const FILES: [(&str, &[u8]); 7] = [
    ("plain.arrow", include_bytes!("columns/plain.arrow")),
    ("zstd.arrow", include_bytes!("columns/zstd.arrow")),
    ("lz4.arrow", include_bytes!("columns/lz4.arrow")),
    ("views.arrow", include_bytes!("columns/views.arrow")),
    ("dictionary.arrow", include_bytes!("columns/dictionary.arrow")),
    ("v1.parquet", include_bytes!("columns/v1.parquet")),
    ("v2.parquet", include_bytes!("columns/v2.parquet")),
];
const ROWS: usize = 40;

/// The text of a row, as columns.py has it.
fn text(row: usize) -> Option<String> {
    match row % 11 {
        3 => None,
        5 => Some(String::new()),
        7 => Some("again and again".to_owned()),
        _ => Some(format!("text {row}: {}", "é".repeat(row % 40))),
    }
}

/// The bytes of a record.
#[derive(Debug, Clone, PartialEq)]
enum Row {
    Record(RawKind, String),
    Error(AfterError, String),
}

fn records(name: &str, bytes: &[u8], options: &Arc<ReadOptions>, from: u64) -> Vec<Row> {
    let source = Box::new(bytes.to_vec());
    let mut reader = match RecordReader::from_source(&name.into(), source, options, &Arc::default()) {
        Ok(reader) => reader,
        Err(Error::Shard(error)) => return vec![Row::Error(AfterError::Lost, error.reason)],
        Err(error) => panic!("{error}"),
    };
    if from > 0
        && let Err(error) = reader.skip_to(Position { record: from, byte: 0 })
    {
        return vec![Row::Error(AfterError::Lost, error.to_string())];
    }
    let mut rows = Vec::new();
    loop {
        let position = reader.position();
        match reader.next_raw() {
            Ok(None) => return rows,
            Ok(Some(record)) => {
                assert_eq!(record.position, position);
                rows.push(Row::Record(record.kind, String::from_utf8_lossy(&json_of(record)).into_owned()));
            }
            Err(error) => rows.push(Row::Error(error.rest, error.error.reason)),
        }
    }
}

/// Reads texts, of all rows or of those whose id is not below 20; or whole rows.
fn all_options() -> [Arc<ReadOptions>; 3] {
    let path = vec![vec![Step::Key("id".into())], vec![Step::Key("messages".into()), Step::Index(0)]];
    let keep = vec![
        Instruction::Path(0),
        Instruction::Number(20.0),
        Instruction::Compare(Comparison::GreaterOrEqual),
    ];
    let text = options(1000);
    let projection = Projection::text("text").with_paths(path);
    let filtered = ReadOptions { projection, keep: Some(Expression(keep)), ..(*text).clone() };
    let rows = ReadOptions { projection: Projection::all(), ..(*text).clone() };
    [text, Arc::new(filtered), Arc::new(rows)]
}

#[test]
fn texts_and_filters_of_all_files() {
    let [texts, filtered, _] = all_options();
    for (name, bytes) in FILES {
        let has_id = name != "dictionary.arrow";
        for (options, from) in [(&texts, 0), (&filtered, if has_id { 20 } else { ROWS })] {
            let rows = records(name, bytes, options, 0);
            assert_eq!(rows.len(), ROWS, "{name}");
            for (row, found) in rows.iter().enumerate() {
                let expected = match text(row) {
                    _ if row < from => Row::Record(RawKind::Filtered, String::new()),
                    Some(text) => Row::Record(RawKind::Text, text),
                    None => Row::Error(
                        AfterError::Readable,
                        "expected a string in the column \"text\", found null".to_owned(),
                    ),
                };
                assert_eq!(*found, expected, "{name}, row {row}");
            }
        }
    }
}

#[test]
fn rows_are_the_same_in_all_formats() {
    let [.., all] = all_options();
    let parse = |row: &Row| match row {
        Row::Record(RawKind::Row, line) => serde_json::from_str::<serde_json::Value>(line).unwrap(),
        _ => panic!("{row:?}"),
    };
    let rows_of = |name| {
        let (name, bytes) = FILES.iter().find(|file| file.0 == name).unwrap();
        records(name, bytes, &all, 0).iter().map(parse).collect::<Vec<_>>()
    };
    let expected = rows_of("plain.arrow");
    assert_eq!(expected.len(), ROWS);
    let message = serde_json::json!({"role": "user", "content": "text 1: é"});
    assert_eq!(expected[1]["messages"], serde_json::json!([message]));
    assert_eq!(expected[1]["map"], serde_json::json!([["k", 1.0]]));
    assert_eq!(expected[0]["fixed"], serde_json::Value::Null);
    assert_eq!(expected[4]["time"], "1970-01-01T00:00:00.004000+00:00");
    for name in ["zstd.arrow", "lz4.arrow", "v1.parquet", "v2.parquet"] {
        assert_eq!(rows_of(name), expected, "{name}");
    }
}

#[test]
fn resume_from_every_row() {
    for options in all_options() {
        for (name, bytes) in FILES {
            let whole = records(name, bytes, &options, 0);
            for from in 0..=ROWS {
                let rest = records(name, bytes, &options, from as u64);
                assert_eq!(rest, whole[from..], "{name} from {from}");
            }
            let beyond = records(name, bytes, &options, ROWS as u64 + 1);
            assert!(
                matches!(&beyond[..], [Row::Error(_, reason)] if reason.contains("the shard has 40 rows"))
            );
        }
    }
}

#[test]
fn truncated_at_every_byte() {
    let [texts, ..] = all_options();
    for (name, bytes) in FILES {
        let whole = records(name, bytes, &texts, 0);
        for length in 0..bytes.len() {
            let rows = records(name, &bytes[..length], &texts, 0);
            let (last, before) = rows.split_last().unwrap();
            assert!(whole.starts_with(before), "{name} of {length} bytes");
            assert!(matches!(last, Row::Error(AfterError::Lost, _)), "{name} of {length} bytes: {last:?}");
        }
    }
}

#[test]
fn columns_are_named_in_errors() {
    let (name, bytes) = FILES[0];
    for (column, expected) in [
        (
            "body",
            "found the columns \"id\", \"messages\", \"map\", \"fixed\", \"flag\", \"time\", \"none\", \"text\"",
        ),
        ("id", "found one of type int64"),
        ("messages", "found one of type list<struct<role: string, content: string>>"),
    ] {
        let options = ReadOptions { projection: Projection::text(column), ..(*options(1000)).clone() };
        let rows = records(name, bytes, &Arc::new(options), 0);
        let reason = format!("expected a column of strings named {column:?}, {expected}; set text_field=");
        assert_eq!(rows, [Row::Error(AfterError::Lost, reason)]);
    }
}

/// The record batches of a file that claims to inflate to more than allowed.
#[test]
fn buffers_above_the_limit_are_refused_by_their_size() {
    let [texts, ..] = all_options();
    for name in ["zstd.arrow", "lz4.arrow"] {
        let (_, bytes) = FILES.iter().find(|file| file.0 == name).unwrap();
        let magic: &[u8] = if name == "zstd.arrow" { b"\x28\xb5\x2f\xfd" } else { b"\x04\x22\x4d\x18" };
        let mut bytes = bytes.to_vec();
        // The lengths that lie before the compressed buffers.
        for at in memchr::memmem::find_iter(&bytes.clone(), magic).collect::<Vec<_>>() {
            bytes[at - 8..at].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        }
        let rows = records(name, &bytes, &texts, 0);
        let Some(Row::Error(AfterError::Lost, reason)) = rows.last() else { panic!("{rows:?}") };
        assert!(
            reason.starts_with(
                "expected the columns of a record batch to have at most 135266304 bytes, found more"
            ) && reason.ends_with("or raise max_document_bytes="),
            "{reason}"
        );
    }
}

fn check_mutated(
    file: (&str, &[u8]),
    mutations: &[super::damage::Mutation],
    from: usize,
) -> Result<(), TestCaseError> {
    let (name, bytes) = file;
    let mut bytes = bytes.to_vec();
    for mutation in mutations {
        mutate(&mut bytes, mutation);
    }
    for options in all_options() {
        let whole = records(name, &bytes, &options, 0);
        // Each row or error takes some of the file, or is one of few that a header claims.
        let from = from % (whole.len() + 1);
        let is_sound = !matches!(whole.last(), Some(Row::Error(AfterError::Lost, _)));
        // Damage before the row may not be found again, or be found earlier.
        if from > 0 && is_sound {
            let rest = records(name, &bytes, &options, from as u64);
            prop_assert!(rest == whole[from..] || matches!(&rest[..], [.., Row::Error(AfterError::Lost, _)]));
        }
    }
    Ok(())
}

proptest! {
    /// Reading any mutated file ends without a panic, and a resumed reader gives the rest.
    #[test]
    fn mutated_arrow(
        file in 0..5_usize,
        mutations in prop::collection::vec(mutation(), 1..4),
        from in 0..60_usize,
    ) {
        check_mutated(FILES[file], &mutations, from)?;
    }

    #[test]
    fn mutated_parquet_columns(
        file in 5..7_usize,
        mutations in prop::collection::vec(mutation(), 1..4),
        from in 0..60_usize,
    ) {
        check_mutated(FILES[file], &mutations, from)?;
    }
}
