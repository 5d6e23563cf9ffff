//! Parquet: columns of strings as writers lay them out, their limits, and damage.

use std::path::Path;

use _core::format::{RawKind, json_of};
use _core::store::LocalFile;
use bytes::Bytes;
use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::{
    EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion,
};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

use super::damage::{mutate, mutation};
use super::resume::{shard_file, with_positions};
use super::*;

const SCHEMA: &str = "message rows { required int64 id; optional binary text (UTF8); }";

pub fn properties() -> WriterPropertiesBuilder {
    // Pages of a few rows, so that small files have many.
    WriterProperties::builder().set_write_batch_size(1).set_data_page_row_count_limit(7)
}

/// A file with a column of ids and one of texts, `group` rows in a row group.
pub fn file(texts: &[Option<&[u8]>], group: usize, properties: WriterProperties) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    for texts in texts.chunks(group) {
        let mut rows = writer.next_row_group().unwrap();
        let mut column = rows.next_column().unwrap().unwrap();
        let ids: Vec<i64> = (0..texts.len() as i64).collect();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let mut column = rows.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = texts.iter().flatten().map(|text| text.to_vec().into()).collect();
        let levels: Vec<i16> = texts.iter().map(|text| i16::from(text.is_some())).collect();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        rows.close().unwrap();
    }
    writer.into_inner().unwrap()
}

/// Some texts, with nulls, repeated ones and an empty one among them.
pub fn texts() -> Vec<Option<Vec<u8>>> {
    let text = |i: usize| match i % 11 {
        3 => None,
        5 => Some(String::new()),
        7 => Some("again and again".to_owned()),
        _ => Some(format!("text {i}: {}", "é".repeat(i % 40))),
    };
    (0..100).map(|i| text(i).map(String::into_bytes)).collect()
}

pub fn slices(texts: &[Option<Vec<u8>>]) -> Vec<Option<&[u8]>> {
    texts.iter().map(Option::as_deref).collect()
}

/// The expected results of reading `texts`, in the file `s.parquet`.
fn expected(texts: &[Option<Vec<u8>>]) -> Vec<Seen> {
    let seen = |(row, text): (usize, &Option<Vec<u8>>)| match text {
        Some(text) => {
            Seen::Document(Position { record: row as u64, byte: 0 }, String::from_utf8(text.clone()).unwrap())
        }
        None => Seen::Error(ReadError {
            error: ShardError {
                shard: "s.parquet".into(),
                record: Some(row as u64),
                byte: (row == 0).then_some(0),
                reason: "expected a string in the column \"text\", found null".to_owned(),
            },
            rest: AfterError::Readable,
        }),
    };
    texts.iter().enumerate().map(seen).collect()
}

fn reason(seen: &[Seen]) -> &str {
    match seen {
        [.., Seen::Error(error)] => &error.error.reason,
        _ => panic!("{seen:?}"),
    }
}

fn compressions() -> [Compression; 6] {
    [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4_RAW,
        Compression::LZ4,
    ]
}

/// Files of the same texts, as different writers would write them.
fn variants(texts: &[Option<Vec<u8>>]) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for compression in compressions() {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for (encoding, dictionary) in [
                (Encoding::PLAIN, false),
                (Encoding::PLAIN, true),
                (Encoding::DELTA_LENGTH_BYTE_ARRAY, false),
                (Encoding::DELTA_BYTE_ARRAY, false),
            ] {
                for group in [1000, 30] {
                    let properties = properties()
                        .set_compression(compression)
                        .set_writer_version(version)
                        .set_dictionary_enabled(dictionary)
                        // After some rows the dictionary is full, and plain pages follow.
                        .set_dictionary_page_size_limit(500)
                        .set_column_encoding("text".into(), encoding)
                        .set_write_page_header_statistics(group == 30)
                        .set_statistics_enabled(EnabledStatistics::Page)
                        .set_offset_index_disabled(group == 30);
                    let name = format!("{compression:?}, {version:?}, {encoding}, {dictionary}, {group}");
                    files.push((name, file(&slices(texts), group, properties.build())));
                }
            }
        }
    }
    files
}

#[test]
fn same_texts_from_all_codecs_encodings_and_versions() {
    let texts = texts();
    let expected = expected(&texts);
    for (name, bytes) in variants(&texts) {
        assert_eq!(read("s.parquet", &bytes), expected, "{name}");
        assert_eq!(read_in_chunks("s.parquet", &bytes, 7), expected, "{name} in chunks");
    }
}

#[test]
fn format_is_recognised_by_content() {
    let texts = [Some(&b"a"[..])];
    let bytes = file(&texts, 1, properties().build());
    for name in ["s.parquet", "s.jsonl", "s.gz", "s"] {
        let seen = read(name, &bytes);
        assert!(matches!(&seen[..], [Seen::Document(_, text)] if text == "a"), "{name}: {seen:?}");
    }
    assert_eq!(read("s.parquet", &gzip(&valid_shard())), read("s", &valid_shard()));
    assert_eq!(
        reason(&read("s.parquet", b"{\"text\": \"a\"}\n")),
        "expected a Parquet file (bytes 50 41 52 31) because the name ends in .parquet, found 7b 22 74 65; download it \
         again, or rename it if it is plain JSON lines"
    );
}

#[test]
fn files_without_rows() {
    assert_eq!(read("s.parquet", &file(&[], 1, properties().build())), []);
    let texts: Vec<_> = (0..20).map(|_| None).collect();
    let seen = read("s.parquet", &file(&texts, 3, properties().build()));
    assert_eq!(seen.len(), 20);
    assert!(seen.iter().all(|seen| matches!(seen, Seen::Error(error) if error.rest == AfterError::Readable)));
}

#[test]
fn resume_from_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let texts = texts();
    let options = options(1000);
    for (name, bytes) in variants(&texts).iter().step_by(5) {
        let shard = shard_file(&folder, "s.parquet", bytes);
        let (found, end) = with_positions(&shard, &options);
        let whole = read_on(&mut RecordReader::open(&shard, &options, &Arc::default()).unwrap());
        for (skipped, (position, _)) in found.iter().enumerate() {
            let mut reader = RecordReader::open_at(&shard, &options, *position, &Arc::default()).unwrap();
            assert_eq!(reader.position(), *position);
            assert_eq!(read_on(&mut reader), whole[skipped..], "{name} at {position:?}");
        }
        let mut at_end = RecordReader::open_at(&shard, &options, end, &Arc::default()).unwrap();
        assert_eq!((read_on(&mut at_end), at_end.position()), (vec![], end));
        for wrong in [Position { record: 101, byte: 0 }, Position { record: 50, byte: 1 }] {
            let error = RecordReader::open_at(&shard, &options, wrong, &Arc::default()).err();
            assert!(matches!(error, Some(Error::State(_))), "{name} at {wrong:?}: {error:?}");
        }
    }
}

#[test]
fn texts_that_are_too_long_or_not_utf8_cost_one_row() {
    let long = "x".repeat(1001).into_bytes();
    let texts = [Some(&b"a"[..]), Some(&long), Some(b"\xff\xfe"), Some(b"ab\xe9"), Some("é".as_bytes())];
    let seen = read("s.parquet", &file(&texts, 2, properties().build()));
    let reasons: Vec<_> = seen.iter().filter_map(|seen| Some(seen.error()?.error.to_string())).collect();
    assert_eq!(seen.len(), 5);
    assert_eq!(
        reasons,
        [
            "s.parquet: record 1: expected a text of at most 1000 bytes, found one of 1001; raise max_document_bytes= to \
             read it",
            "s.parquet: record 2: expected UTF-8 in the column \"text\", found byte 0xff at byte 0 of the text",
            "s.parquet: record 3: expected UTF-8 in the column \"text\", found byte 0xe9 at byte 2 of the text",
        ]
    );
}

/// A file of one row whose only column has this type, with the value "a" if it holds strings.
fn file_of(schema: &str, levels: (&[i16], &[i16])) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties().build())).unwrap();
    let mut rows = writer.next_row_group().unwrap();
    while let Some(mut column) = rows.next_column().unwrap() {
        match column.untyped() {
            parquet::column::writer::ColumnWriter::ByteArrayColumnWriter(column) => {
                column.write_batch(&[ByteArray::from("a")], Some(levels.0), Some(levels.1)).unwrap();
            }
            parquet::column::writer::ColumnWriter::Int64ColumnWriter(column) => {
                column.write_batch(&[1], None, None).unwrap();
            }
            _ => panic!("another type"),
        }
        column.close().unwrap();
    }
    rows.close().unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn columns_are_found_by_path() {
    let read_column = |column: &str, bytes: &[u8]| {
        let options = ReadOptions { projection: Projection::text(column), ..(*options(1000)).clone() };
        read_source("s.parquet", Box::new(bytes.to_vec()), &Arc::new(options))
    };
    for (schema, column, level) in [
        ("message rows { required binary text; }", "text", 0),
        ("message rows { optional binary text (ENUM); }", "text", 1),
        (
            "message rows { required group a { optional group b { optional binary text (UTF8); } } }",
            "a.b.text",
            2,
        ),
        ("message rows { required binary other; required binary text; }", "other", 0),
        ("message rows { required group a { required binary text; } }", "a.text", 0),
    ] {
        let seen = read_column(column, &file_of(schema, (&[level], &[0])));
        assert!(matches!(&seen[..], [Seen::Document(_, text)] if text == "a"), "{schema}: {seen:?}");
    }
    for (schema, found) in [
        ("message rows { required int64 id; }", "found the columns \"id\"; set text_field="),
        ("message rows { required int64 text; }", "found one of INT64 values; set text_field="),
        ("message rows { repeated binary text (UTF8); }", "found one of lists; set text_field="),
        (
            "message rows { required group text { required binary a; } }",
            "found the columns \"text.a\"; set text_field=",
        ),
    ] {
        let seen = read_column("text", &file_of(schema, (&[1], &[0])));
        assert_eq!(reason(&seen), format!("expected a column of strings named \"text\", {found}"));
        assert_eq!(seen[0].error().unwrap().rest, AfterError::Lost);
    }
}

/// A file of some rows with an id and messages, of which the last row has none.
fn conversations() -> Vec<u8> {
    let schema = "message rows { required int64 id; optional group messages (LIST) { repeated group list {
        optional group element { optional binary role (UTF8); optional binary content (UTF8); } } } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties().build())).unwrap();
    let mut rows = writer.next_row_group().unwrap();
    let mut column = rows.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&[1, 2, 3, 4], None, None).unwrap();
    column.close().unwrap();
    // Two messages, the second without content; a null; an empty list; one message of null.
    let roles = (vec![ByteArray::from("user"), ByteArray::from("assistant")], [4, 4, 0, 1, 2]);
    let contents = (vec![ByteArray::from("\"é\"\n")], [4, 3, 0, 1, 2]);
    for (values, definition) in [roles, contents] {
        let mut column = rows.next_column().unwrap().unwrap();
        let repetition = [0, 1, 0, 0, 0];
        column.typed::<ByteArrayType>().write_batch(&values, Some(&definition), Some(&repetition)).unwrap();
        column.close().unwrap();
    }
    rows.close().unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn rows_of_named_columns_are_json_objects() {
    let reader = |columns: &[&str], skipped| {
        let projection = Projection::named(columns.iter().map(ToString::to_string).collect());
        let options = Arc::new(ReadOptions { projection, ..(*options(1000)).clone() });
        let source = Box::new(conversations());
        let mut reader =
            RecordReader::from_source(&"s.parquet".into(), source, &options, &Arc::default()).unwrap();
        reader.skip_to(Position { record: skipped, byte: 0 }).unwrap();
        reader
    };
    let rows = [
        r#"{"messages":[{"role":"user","content":"\"é\"\n"},{"role":"assistant","content":null}]}"#,
        r#"{"messages":null}"#,
        r#"{"messages":[]}"#,
        r#"{"messages":[null]}"#,
    ];
    for skipped in 0..=4 {
        let mut reader = reader(&["messages", "tools"], skipped as u64);
        for row in &rows[skipped..] {
            let record = reader.next_raw().unwrap().unwrap();
            assert_eq!((record.kind, str::from_utf8(&json_of(record)).unwrap()), (RawKind::Row, *row));
        }
        assert_eq!(reader.next_raw().unwrap(), None);
    }
    let mut both = reader(&["messages", "id"], 1);
    assert_eq!(*json_of(both.next_raw().unwrap().unwrap()), *br#"{"id":2,"messages":null}"#);
    let projection = Projection::named(vec!["tools".to_owned()]);
    let options = ReadOptions { projection, ..(*options(1000)).clone() };
    let seen = read_source("s.parquet", Box::new(conversations()), &Arc::new(options));
    let columns = r#""id", "messages.list.element.role", "messages.list.element.content""#;
    assert_eq!(
        reason(&seen),
        format!(
            r#"expected one of the columns ["tools"], found the columns {columns}; name others in sample="#
        )
    );
}

#[test]
fn row_that_is_longer_as_json_than_allowed_costs_one_row() {
    let projection = Projection::named(vec!["messages".to_owned()]);
    let options = Arc::new(ReadOptions { projection, max_document_bytes: 40, ..(*options(1000)).clone() });
    let seen = read_source("s.parquet", Box::new(conversations()), &options);
    assert_eq!(
        seen[0].error().unwrap().error.reason,
        "expected a row of at most 40 bytes as JSON, found a longer one; raise max_document_bytes= to read it"
    );
    assert_eq!(seen.len(), 4);
}

#[test]
fn pages_above_the_limit_are_refused_by_their_header() {
    let long = "x".repeat(150 << 20).into_bytes();
    let properties = properties().set_compression(Compression::ZSTD(ZstdLevel::default()));
    let bytes = file(&[Some(b"a"), Some(&long)], 1, properties.set_dictionary_enabled(false).build());
    assert!(bytes.len() < 1 << 20, "a bomb");
    let seen = read("s.parquet", &bytes);
    assert!(matches!(&seen[0], Seen::Document(_, text) if text == "a"));
    let reason = reason(&seen);
    assert!(
        reason.starts_with("expected a page of at most 135266304 bytes, found one of 157286410 at byte ")
            && reason.ends_with(
                " of the file; write the file again with smaller pages (pyarrow: write_batch_size=16), or raise \
                 max_document_bytes="
            ),
        "{reason}"
    );
    let seen = read_source("s.parquet", Box::new(bytes), &options(200 << 20));
    assert!(matches!(&seen[1], Seen::Document(_, text) if text.len() == long.len()));
}

#[test]
fn truncated_at_every_byte() {
    let bytes = file(&slices(&texts()), 30, properties().build());
    for length in 0..bytes.len() {
        let seen = read("s.parquet", &bytes[..length]);
        assert_eq!(seen.len(), 1, "{length}");
        let error = seen[0].error().unwrap();
        assert_eq!((position_of(error), error.rest), (Position::default(), AfterError::Lost));
        if length >= 4 {
            assert!(error.error.reason.contains("the file is truncated"), "{error}");
        }
    }
}

/// A flip may change a text where there is no checksum, but no other row of another page, and nothing panics.
#[test]
fn every_byte_changed() {
    let texts = texts();
    let properties = properties().set_compression(Compression::SNAPPY);
    let bytes = file(&slices(&texts), 30, properties.build());
    for at in 0..bytes.len() {
        for bits in [1, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= bits;
            let seen = read("s.parquet", &changed);
            assert!(seen.len() <= texts.len() + 1, "byte {at}");
        }
    }
}

#[test]
fn encrypted_files_are_named() {
    let mut bytes = file(&[Some(b"a")], 1, properties().build());
    let end = bytes.len() - 4;
    bytes[end..].copy_from_slice(b"PARE");
    let expected =
        "expected a Parquet file without encryption, found an encrypted one; decrypt it and write it again";
    assert_eq!(reason(&read("s.parquet", &bytes)), expected);
    bytes[..4].copy_from_slice(b"PARE");
    assert_eq!(reason(&read("s.parquet", &bytes)), expected);
}

#[test]
fn hostile_schemas_are_refused() {
    // FileMetaData with a schema of groups that each have one child, deeper than the stack, and one with 2^31 children.
    let footer = |elements: &[u8], count: u32| {
        let mut footer = vec![0x15, 2, 0x19, 0xfc];
        let mut count = count;
        while count >= 0x80 {
            footer.push(count as u8 | 0x80);
            count >>= 7;
        }
        footer.push(count as u8);
        footer.extend_from_slice(elements);
        footer.extend_from_slice(&[0x16, 0, 0x19, 0x0c, 0]);
        let length = (footer.len() as u32).to_le_bytes();
        [b"PAR1", &footer[..], &length, b"PAR1"].concat()
    };
    // Name "a", one child.
    let group = [0x48, 1, b'a', 0x15, 2, 0];
    let deep = footer(&group.repeat(1_000_000), 1_000_000);
    let wide = footer(&[0x48, 1, b'a', 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0], 1);
    for bytes in [deep, wide] {
        let seen = read("s.parquet", &bytes);
        assert_eq!(
            reason(&seen),
            "expected a valid Parquet file, found a corrupt one: its schema is not a tree of the elements that it has; \
             download the shard again"
        );
    }
}

#[test]
fn lengths_that_claim_more_than_the_values_take_no_memory() {
    let texts: Vec<Option<&[u8]>> = vec![Some(b"a"), Some(b"ab"), Some(b"abc"), Some(b"abcd")];
    for encoding in [Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
        let properties =
            properties().set_column_encoding("text".into(), encoding).set_dictionary_enabled(false).build();
        let bytes = file(&texts, 4, properties);
        assert_eq!(read("s.parquet", &bytes).len(), 4);
        // Blocks of 128, four mini blocks, four lengths.
        let starts: Vec<_> =
            bytes.windows(4).enumerate().filter(|(_, four)| four == b"\x80\x01\x04\x04").collect();
        let places: Vec<_> = starts.iter().map(|(start, _)| start + 3).collect();
        assert_eq!(places.len(), if encoding == Encoding::DELTA_BYTE_ARRAY { 2 } else { 1 });
        for place in places {
            let mut bytes = bytes.clone();
            bytes[place] = 0x7f;
            let seen = read("s.parquet", &bytes);
            assert!(reason(&seen).contains("the lengths of its strings are not valid (the page at byte"));
            assert_eq!(seen.len(), 1);
        }
    }
}

#[test]
fn stop_ends_reading() {
    let bytes = file(&slices(&texts()), 30, properties().build());
    let folder = tempfile::tempdir().unwrap();
    let shard = shard_file(&folder, "s.parquet", &bytes);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let file = Box::new(LocalFile::open(&shard, Path::new("")).unwrap());
    let mut reader = RecordReader::from_source(&shard.path, file, &options(1000), &stop).unwrap();
    reader.next_text(&mut String::new()).unwrap();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut errors = std::iter::repeat_with(|| reader.next_text(&mut String::new())).filter_map(Result::err);
    assert_eq!(
        errors.find(|error| error.rest == AfterError::Lost).unwrap().error.reason,
        "reading was stopped"
    );
}

proptest! {
    /// Reading any mutated file ends without a panic, with the same results in chunks of any size, and a resumed reader
    /// gives the rest of them.
    #[test]
    fn mutated_parquet(
        texts in prop::collection::vec(prop::option::weighted(0.9, "[a-zé ]{0,60}"), 0..60),
        group in 1..60_usize,
        codec in 0..6_usize,
        encoding in 0..4_usize,
        flags in any::<[bool; 4]>(),
        mutations in prop::collection::vec(mutation(), 1..4),
        chunk in 1..100_usize,
        from in any::<prop::sample::Index>(),
    ) {
        let texts: Vec<Option<&[u8]>> = texts.iter().map(|text| text.as_ref().map(String::as_bytes)).collect();
        let codecs = compressions();
        let encodings = [
            Encoding::PLAIN,
            Encoding::PLAIN,
            Encoding::DELTA_LENGTH_BYTE_ARRAY,
            Encoding::DELTA_BYTE_ARRAY,
        ];
        let properties = properties()
            .set_compression(codecs[codec])
            .set_column_encoding("text".into(), encodings[encoding])
            .set_dictionary_enabled(encoding == 1)
            .set_writer_version(if flags[0] { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 })
            .set_offset_index_disabled(flags[1])
            .set_write_page_header_statistics(flags[2]);
        let mut bytes = file(&texts, group, properties.build());
        for mutation in &mutations {
            mutate(&mut bytes, mutation);
        }
        if !flags[3] && bytes.len() > 8 {
            // Most mutations would hit the footer, or the magic.
            bytes[..4].copy_from_slice(b"PAR1");
            let end = bytes.len() - 4;
            bytes[end..].copy_from_slice(b"PAR1");
        }
        let seen = read("s.parquet", &bytes);
        prop_assert_eq!(&read_in_chunks("s.parquet", &bytes, chunk), &seen);
        let last = seen.last().and_then(|seen| Some(seen.error()?.rest));
        if seen.len() > 1 && bytes.starts_with(b"PAR1") {
            let skipped = from.index(seen.len());
            let mut reader =
                RecordReader::from_source(&"s.parquet".into(), Box::new(bytes), &options(1000), &Arc::default()).unwrap();
            let position = Position { record: skipped as u64, byte: 0 };
            // Damage before the position may not be found again, or be found earlier.
            if reader.skip_to(position).is_ok() && last != Some(AfterError::Lost) {
                prop_assert_eq!(&read_on(&mut reader)[..], &seen[skipped..]);
            }
        }
    }
}

/// A file of Snappy with small dictionaries, by this writer.
fn written_by(writer: &str, version: WriterVersion) -> Vec<u8> {
    let properties = properties()
        .set_compression(Compression::SNAPPY)
        .set_writer_version(version)
        .set_created_by(writer.to_owned())
        .set_dictionary_enabled(version == WriterVersion::PARQUET_1_0);
    file(&slices(&texts()), 30, properties.build())
}

#[test]
fn compressed_pages_that_old_arrow_says_are_plain() {
    let mut bytes = written_by("parquet-cpp version 1.5.1-SNAPSHOT", WriterVersion::PARQUET_2_0);
    // In a page's header: no bytes of repetition levels, then that the page is compressed, which becomes that it is not.
    let said = [0x15, 0x00, 0x11];
    let places: Vec<_> = (0..bytes.len() - 3).filter(|at| bytes[*at..].starts_with(&said)).collect();
    assert!(places.len() > 10, "{places:?}");
    for at in places {
        bytes[at + 2] = 0x12;
    }
    assert_eq!(read("s.parquet", &bytes), expected(&texts()));
}

/// A file whose footer says that each part of a column has `bytes` fewer.
fn with_short_chunks(bytes: &[u8], fewer: i64) -> Vec<u8> {
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from(bytes.to_vec())).unwrap();
    let shortened = metadata.row_groups().iter().map(|group| {
        let columns = group.columns().iter().map(|column| {
            let builder = column.clone().into_builder();
            builder.set_total_compressed_size(column.compressed_size() - fewer).build().unwrap()
        });
        group.clone().into_builder().set_column_metadata(columns.collect()).build().unwrap()
    });
    let shortened = metadata.clone().into_builder().set_row_groups(shortened.collect()).build();
    with_metadata(bytes, &shortened)
}

/// The file with other numbers in its footer: of the rows of the first row group, and of the values of its columns.
fn with_numbers(bytes: &[u8], of_group: i64, of_columns: &[i64]) -> Vec<u8> {
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from(bytes.to_vec())).unwrap();
    let mut groups = metadata.row_groups().to_vec();
    let columns = groups[0].columns().iter().zip(of_columns);
    let columns = columns
        .map(|(column, &values)| column.clone().into_builder().set_num_values(values).build().unwrap())
        .collect();
    groups[0] =
        groups[0].clone().into_builder().set_num_rows(of_group).set_column_metadata(columns).build().unwrap();
    with_metadata(bytes, &metadata.into_builder().set_row_groups(groups).build())
}

/// The file with another footer.
fn with_metadata(bytes: &[u8], metadata: &ParquetMetaData) -> Vec<u8> {
    let footer = u32::from_le_bytes(*bytes[bytes.len() - 8..].first_chunk().unwrap()) as usize;
    let mut out = bytes[..bytes.len() - 8 - footer].to_vec();
    ParquetMetaDataWriter::new(&mut out, metadata).finish().unwrap();
    out
}

#[test]
fn footers_with_other_numbers_than_the_pages_are_refused() {
    let texts = [Some(&b"a"[..]), Some(b"b"), Some(b"c")].repeat(2);
    let bytes = file(&texts, 3, properties().build());
    assert_eq!(read("s.parquet", &with_numbers(&bytes, 3, &[3, 3])).len(), 6);
    // The writer sums the rows of a file up, so its number is changed in the bytes: an integer before the list of row groups.
    let at = bytes.windows(4).rposition(|four| four == [0x16, 2 * 6, 0x19, 0x2c]).unwrap();
    let [fewer, none] = [5, 0].map(|rows| {
        let mut changed = bytes.clone();
        changed[at + 1] = 2 * rows;
        changed
    });
    // As in repeated_no_annotation.parquet of Apache's test files, which other readers read.
    assert_eq!(read("s.parquet", &none).len(), 6);
    for (changed, before, found) in [
        (fewer, 0, "the footer says that it has 5 rows, and its row groups have 6;"),
        (with_numbers(&bytes, 2, &[2, 3]), 0, "its column \"text\" has 3 values in a row group of 2 rows;"),
        (with_numbers(&bytes, 3, &[3, 2]), 0, "its column \"text\" has 2 values in a row group of 3 rows;"),
        (with_numbers(&bytes, 2, &[2, 2]), 0, "has more values than the 2 of the footer (the page at byte"),
        (with_numbers(&bytes, 4, &[4, 4]), 3, "the pages of a column chunk have 3 values in place of 4;"),
    ] {
        let seen = read("s.parquet", &changed);
        assert!(reason(&seen).contains(found), "{}", reason(&seen));
        assert_eq!(seen.len(), before + 1, "{found}");
        let error = seen[before].error().unwrap();
        assert_eq!((error.error.record, error.rest), (Some(before as u64), AfterError::Lost));
    }
    // A page for each row: the one too many is found behind the others.
    let pages = properties().set_data_page_row_count_limit(1).build();
    let seen = read("s.parquet", &with_numbers(&file(&texts, 3, pages), 2, &[2, 2]));
    assert!(reason(&seen).contains("more values than the 2 of the footer (the page"), "{}", reason(&seen));
    assert_eq!((seen.len(), seen[2].error().unwrap().error.record), (3, Some(2)));
}

#[test]
fn numbers_of_lists_are_those_of_their_pages() {
    let projection = Projection::named(vec!["messages".to_owned()]);
    let options = Arc::new(ReadOptions { projection, ..(*options(1000)).clone() });
    let bytes = conversations();
    for (of_group, of_columns, before, found) in [
        (4, [4, 5, 5], 4, None),
        (3, [3, 5, 5], 3, Some("row group 0 has other rows than the 3 of the footer;")),
        (5, [5, 5, 5], 4, Some("row group 0 ends 1 rows before the number in the footer;")),
        (4, [4, 4, 4], 0, Some("its column chunk has more values than the 4 of the footer (the page")),
        (4, [4, 5, 6], 0, Some("the pages of a column chunk have 5 values in place of 6;")),
    ] {
        let bytes = with_numbers(&bytes, of_group, &of_columns);
        let mut reader =
            RecordReader::from_source(&"s.parquet".into(), Box::new(bytes), &options, &Arc::default())
                .unwrap();
        let mut rows = 0;
        let error = loop {
            match reader.next_raw() {
                Ok(Some(_)) => rows += 1,
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        assert_eq!((rows, error.is_some()), (before, found.is_some()), "{error:?}");
        if let (Some(error), Some(found)) = (error, found) {
            assert!(error.error.reason.contains(found), "{error}");
            assert_eq!((error.error.record, error.rest), (Some(before), AfterError::Lost));
        }
    }
}

#[test]
fn columns_of_old_parquet_mr_go_beyond_their_length() {
    for fewer in [1, 14] {
        let read_by = |writer: &str| {
            let bytes = written_by(writer, WriterVersion::PARQUET_1_0);
            read("s.parquet", &with_short_chunks(&bytes, fewer))
        };
        assert_eq!(read_by("parquet-mr version 1.2.8 (build abc)"), expected(&texts()));
        for writer in ["parquet-mr", "parquet-mr version 1.0.0-t", "parquet-mr version 1.2.0"] {
            assert_eq!(read_by(writer), expected(&texts()), "{writer}");
        }
        for writer in [
            "parquet-mr version 1.2.10",
            "parquet-mr version 1.2.9",
            "parquet-mr version 1.12.3",
            "parquet-mr-like",
            "x",
        ] {
            assert!(reason(&read_by(writer)).contains("corrupt"), "{writer}");
        }
    }
}
