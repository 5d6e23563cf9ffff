//! The footer of a Parquet file: its columns, and where their chunks lie.

use std::ops::Range;

use gristmill_system::catch_expected_panic;
use parquet::basic::{CompressionCodec, Type};
use parquet::file::metadata::{
    ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy, RowGroupMetaData,
};

use super::thrift::{Fault, STRUCT, Thrift};
use super::{corrupt, unknown};
use crate::codec::{BlockCodec, read_failed};
use crate::store::{Source, read_exact_at};

/// The first and last bytes of a file, the latter where its footer is encrypted.
pub(in crate::format) const MAGICS: [[u8; 4]; 2] = [*b"PAR1", *b"PARE"];
/// The length of the footer, and the magic.
const TAIL_BYTES: u64 = 8;
/// Parsed, a footer takes some times its size in memory. The footer of a file of 2 GB of text has some hundred KB.
const LARGEST_FOOTER: u64 = 32 << 20;
/// The deepest accepted schema: the library recurses through it.
const DEEPEST_SCHEMA: usize = 64;

/// The head of a list of no elements and no kind.
const EMPTY_LIST: u8 = 0;

/// The most bytes of the header of a dictionary that parquet-mr wrote.
const LARGEST_OLD_HEADER: u64 = 100;

/// A column's part of a row group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    /// Its place in the file.
    pub(super) start: u64,
    pub(super) end: u64,
    /// How far its last page may go beyond that.
    pub(super) beyond: u64,
    /// None: its pages are not compressed.
    pub(super) codec: Option<BlockCodec>,
    pub(super) values: Type,
    /// How many values its pages have, nulls and empty lists counted.
    pub(super) count: u64,
    pub(super) has_lists: bool,
    /// Whether a value may be null, or lies in something that may be.
    pub(super) has_nulls: bool,
}

/// How many rows each row group has.
pub(super) fn group_rows(metadata: &ParquetMetaData) -> Result<Vec<u64>, String> {
    let rows = metadata.row_groups().iter().map(|group| u64::try_from(group.num_rows()));
    let rows = rows.collect::<Result<Vec<_>, _>>().ok();
    let sum = |rows: &[u64]| rows.iter().try_fold(0_u64, |sum, &rows| sum.checked_add(rows));
    let Some((rows, sum)) = rows.and_then(|rows| sum(&rows).map(|sum| (rows, sum))) else {
        return Err(corrupt("the number of rows of a row group is not valid"));
    };
    let all = metadata.file_metadata().num_rows();
    // Some writers note 0 rows of the file, whose row groups are read.
    if all != 0 && u64::try_from(all) != Ok(sum) {
        return Err(corrupt(&format!(
            "the footer says that it has {all} rows, and its row groups have {sum}"
        )));
    }
    Ok(rows)
}

/// The row groups of a piece of the file: those whose middle lies in it, so that of equal row groups equal pieces have
/// equally many.
pub(super) fn groups_in(
    metadata: &ParquetMetaData,
    piece: &Range<u64>,
    size: u64,
) -> Result<Range<usize>, String> {
    let mut groups = Range::default();
    let mut last = 0;
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let middle = middle(group).filter(|middle| (last..size).contains(middle));
        last = middle.ok_or_else(|| corrupt("its row groups do not follow one another in the file"))?;
        if last < piece.start {
            groups.start = index + 1;
        }
        if last < piece.end {
            groups.end = index + 1;
        }
    }
    groups.end = groups.end.max(groups.start);
    Ok(groups)
}

/// The middle of the bytes of a row group.
fn middle(group: &RowGroupMetaData) -> Option<u64> {
    let starts = group.columns().iter().map(|column| {
        let data = column.data_page_offset();
        column.dictionary_page_offset().filter(|&start| start > 0 && start < data).unwrap_or(data)
    });
    let ends = starts
        .clone()
        .zip(group.columns())
        .map(|(start, column)| start.checked_add(column.compressed_size()));
    let start = u64::try_from(starts.min().unwrap_or_default()).ok()?;
    let end = u64::try_from(ends.max().flatten().unwrap_or_default()).ok()?;
    Some(start + end.checked_sub(start)? / 2)
}

/// The part that a row group has of a column, in a file of `size` bytes.
pub(super) fn chunk(
    metadata: &ParquetMetaData,
    group: &RowGroupMetaData,
    column: usize,
    size: u64,
) -> Result<Chunk, String> {
    let Some(column) = group.columns().get(column) else {
        return Err(corrupt("a row group lacks a column"));
    };
    if let Some(path) = column.file_path() {
        return Err(format!(
            "expected a Parquet file with rows of its own, found one about {path:?} and perhaps others; leave it out, and name \
             those"
        ));
    }
    let data = column.data_page_offset();
    // Some writers note 0 if there is no dictionary.
    let start = column.dictionary_page_offset().filter(|&start| start > 0 && start < data).unwrap_or(data);
    let end = start.checked_add(column.compressed_size()).and_then(|end| u64::try_from(end).ok());
    let (rows, count) = (group.num_rows(), column.num_values());
    let has_lists = column.column_descr().max_rep_level() > 0;
    if !has_lists && rows != count {
        let name = column.column_path().string();
        return Err(corrupt(&format!(
            "its column {name:?} has {count} values in a row group of {rows} rows"
        )));
    }
    match (u64::try_from(start), end) {
        (Ok(start), Some(end)) if start <= end && end <= size => Ok(Chunk {
            start,
            end,
            beyond: beyond(metadata).min(size - end),
            codec: codec(column.compression_codec())?,
            values: column.column_type(),
            count: u64::try_from(count).map_err(|_| corrupt("a column has a negative number of values"))?,
            has_lists,
            has_nulls: column.column_descr().max_def_level() > 0,
        }),
        _ => Err(corrupt("a column chunk does not lie in the file")),
    }
}

/// How far the last page of a column may go beyond its part of a row group: parquet-mr up to 1.2.8 left the header of the
/// dictionary out of the length. Its first releases named no version.
fn beyond(metadata: &ParquetMetaData) -> u64 {
    let writer = metadata.file_metadata().created_by().unwrap_or_default();
    let version = writer.strip_prefix("parquet-mr").and_then(|rest| match rest {
        "" => Some(rest),
        _ => rest.strip_prefix(" version "),
    });
    let is_old = version.is_some_and(|version| {
        let numbers =
            version.split(|char: char| !char.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
        numbers.lt([1, 2, 9])
    });
    if is_old { LARGEST_OLD_HEADER } else { 0 }
}

fn codec(codec: CompressionCodec) -> Result<Option<BlockCodec>, String> {
    Ok(Some(match codec {
        CompressionCodec::UNCOMPRESSED => return Ok(None),
        CompressionCodec::SNAPPY => BlockCodec::Snappy,
        CompressionCodec::GZIP => BlockCodec::Gzip,
        CompressionCodec::BROTLI => BlockCodec::Brotli,
        CompressionCodec::ZSTD => BlockCodec::Zstd,
        CompressionCodec::LZ4_RAW => BlockCodec::Lz4,
        CompressionCodec::LZ4 => BlockCodec::Lz4Hadoop,
        CompressionCodec::LZO => {
            return Err("expected pages compressed with Snappy, Zstandard, gzip, Brotli, LZ4 or not at all, found LZO; write \
                        the file again with one of these"
                .to_owned());
        }
    }))
}

/// Reads the footer.
pub(super) fn metadata(source: &mut dyn Source) -> Result<ParquetMetaData, String> {
    let mut footer = footer(source)?;
    check(&mut footer)?;
    let options = ParquetMetaDataOptions::new()
        .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll);
    catch_expected_panic(|| ParquetMetaDataReader::decode_metadata_with_options(&footer, Some(&options)))
        .and_then(|decoded| decoded.map_err(|error| error.to_string()))
        .map_err(|error| unknown(&format!("a footer that cannot be decoded: {error}")))
}

fn footer(source: &mut dyn Source) -> Result<Vec<u8>, String> {
    let size = source.size();
    let mut tail = [0; TAIL_BYTES as usize];
    let tail_start = size.checked_sub(TAIL_BYTES).filter(|&start| start >= MAGICS[0].len() as u64);
    let read = |source: &mut dyn Source, offset, out: &mut [u8]| {
        read_exact_at(source, offset, out).map_err(|error| read_failed(&error))
    };
    match tail_start {
        Some(start) => read(source, start, &mut tail)?,
        None => return Err(truncated(size)),
    }
    let [length @ .., _, _, _, _] = tail;
    if tail.ends_with(&MAGICS[1]) {
        return Err(encrypted());
    }
    if !tail.ends_with(&MAGICS[0]) {
        return Err(truncated(size));
    }
    let length = u64::from(u32::from_le_bytes(length));
    let start = size.checked_sub(TAIL_BYTES + length).filter(|&start| start >= MAGICS[0].len() as u64);
    let Some(start) = start else {
        return Err(corrupt(&format!("its footer has {length} bytes, and the file {size}")));
    };
    if length > LARGEST_FOOTER {
        return Err(format!(
            "expected a Parquet footer of at most {LARGEST_FOOTER} bytes, found one of {length}; write the file again with \
             larger row groups or fewer columns"
        ));
    }
    let mut footer = vec![0; length as usize];
    read(source, start, &mut footer)?;
    Ok(footer)
}

/// Checks what the library trusts: it takes memory for as many children as an element of the schema claims to have, and
/// recurses as deep as they go. Also finds encrypted columns, which it would report as damage. A list of the file without
/// elements becomes one of structs, as all of them are: fastparquet gives it no kind, which the library refuses.
fn check(footer: &mut [u8]) -> Result<(), String> {
    let (length, mut children, mut untyped) = (footer.len(), Vec::new(), Vec::new());
    let mut is_encrypted = false;
    let read = Thrift::new(footer).fields(|file, id, kind| {
        if kind == super::thrift::LIST && file.peek() == Some(EMPTY_LIST) {
            untyped.push(length - file.left());
        }
        match id {
            2 => children = schema(file)?,
            8 => is_encrypted = true,
            _ => {}
        }
        Ok(id == 2 && kind == super::thrift::LIST)
    });
    read.map_err(|_| corrupt("its footer is not a Thrift struct"))?;
    if is_encrypted {
        return Err(encrypted());
    }
    for at in untyped {
        footer[at] = STRUCT;
    }
    // The elements are the schema's tree in order: how many are still missing, at each level around the current one.
    let mut missing = vec![1_u64];
    for &count in &children {
        while missing.pop_if(|left| *left == 0).is_some() {}
        let Some(left) = missing.last_mut() else { return Err(corrupt("its schema has several roots")) };
        *left -= 1;
        missing.push(count);
        if count > children.len() as u64 || missing.len() > DEEPEST_SCHEMA {
            return Err(corrupt("its schema is not a tree of the elements that it has"));
        }
    }
    Ok(())
}

/// How many children each element of a schema has.
fn schema(file: &mut Thrift<'_>) -> Result<Vec<u64>, Fault> {
    let (count, kind) = file.list()?;
    if kind != STRUCT {
        return Err(Fault::Invalid);
    }
    let mut children = Vec::new();
    for _ in 0..count {
        let mut own = 0;
        file.fields(|element, id, kind| {
            if id == 5 {
                own = element.size(kind)?.into();
            }
            Ok(id == 5)
        })?;
        children.push(own);
    }
    Ok(children)
}

fn truncated(size: u64) -> String {
    format!(
        "expected the bytes PAR1 at the end of the Parquet file, found others after {size} bytes: the file is truncated; \
         download it again"
    )
}

fn encrypted() -> String {
    "expected a Parquet file without encryption, found an encrypted one; decrypt it and write it again"
        .to_owned()
}
