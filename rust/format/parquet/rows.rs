//! Whole rows as JSON objects, which are read as lines are: for records of several columns, of any types.

use std::io::Write;

use gristmill_system::catch_panic;
use parquet::column::page::PageReader;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::{ReaderIter, RowIter, TreeBuilder};
use parquet::record::{Field, Row};
use parquet::schema::types::Type as SchemaType;

use super::corrupt;
use super::footer::{Chunk, chunk};
use super::pages::{PageSource, describe};

/// The columns of a file.
pub(super) struct Rows {
    metadata: ParquetMetaData,
    size: u64,
    /// The rows of the current row group, once one was read.
    current: Option<ReaderIter>,
    /// The row that was read last.
    line: Vec<u8>,
}

impl Rows {
    pub(super) fn new(metadata: ParquetMetaData, size: u64) -> Self {
        Self { metadata, size, current: None, line: Vec::new() }
    }

    /// Ends the current row group.
    pub(super) fn close(&mut self) {
        self.current = None;
    }

    /// Reads the next row of a row group; returns whether there is one.
    pub(super) fn read(&mut self, file: &PageSource, group: usize) -> Result<bool, String> {
        let row = catch_panic(|| self.next(file, group)).map_err(|panic| corrupt(&panic))??;
        self.line.clear();
        if let Some(row) = &row {
            write_object(row, &mut self.line).map_err(|error| corrupt(&error.to_string()))?;
        }
        Ok(row.is_some())
    }

    /// The row that was read last.
    pub(super) fn line(&self) -> &[u8] {
        &self.line
    }

    fn next(&mut self, file: &PageSource, group: usize) -> Result<Option<Row>, String> {
        if self.current.is_none() {
            let metadata = self.metadata.row_group(group);
            let count = metadata.num_columns();
            let chunks =
                (0..count).map(|column| chunk(metadata, column, self.size)).collect::<Result<_, _>>()?;
            let group = Group { file, metadata, chunks };
            // One row at a time, so that no more than a page of each column is held.
            let rows = TreeBuilder::new().with_batch_size(1);
            let rows = rows.as_iter(metadata.schema_descr_ptr(), &group).map_err(|error| describe(&error))?;
            self.current = Some(rows);
        }
        self.current.as_mut().and_then(Iterator::next).transpose().map_err(|error| describe(&error))
    }
}

/// A row group, as the library assembles rows from it.
struct Group<'a> {
    file: &'a PageSource,
    metadata: &'a RowGroupMetaData,
    chunks: Vec<Chunk>,
}

impl RowGroupReader for Group<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata
    }

    fn num_columns(&self) -> usize {
        self.chunks.len()
    }

    fn get_column_page_reader(&self, column: usize) -> ParquetResult<Box<dyn PageReader>> {
        Ok(Box::new(self.file.pages(self.chunks[column])))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&parquet::bloom_filter::Sbbf> {
        None
    }

    fn get_row_iter(&self, _: Option<SchemaType>) -> ParquetResult<RowIter<'_>> {
        Err(ParquetError::NYI("rows are read by Rows".to_owned()))
    }
}

fn write_object(row: &Row, out: &mut Vec<u8>) -> serde_json::Result<()> {
    out.push(b'{');
    for (index, (name, field)) in row.get_column_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        serde_json::to_writer(&mut *out, name)?;
        out.push(b':');
        write_value(field, out)?;
    }
    out.push(b'}');
    Ok(())
}

fn write_value(field: &Field, out: &mut Vec<u8>) -> serde_json::Result<()> {
    match field {
        Field::Null => out.extend_from_slice(b"null"),
        Field::Str(text) => serde_json::to_writer(out, text)?,
        Field::Bytes(bytes) => serde_json::to_writer(out, &String::from_utf8_lossy(bytes.data()))?,
        Field::Group(row) => write_object(row, out)?,
        Field::ListInternal(list) => write_list(list.elements(), out)?,
        Field::MapInternal(map) => {
            let pairs = map.entries().iter();
            let pairs: Vec<Field> = pairs
                .map(|(key, value)| {
                    let fields = vec![("key".to_owned(), key.clone()), ("value".to_owned(), value.clone())];
                    Field::Group(Row::new(fields))
                })
                .collect();
            write_list(&pairs, out)?;
        }
        Field::Float16(number) if !number.is_finite() => out.extend_from_slice(b"null"),
        Field::Float(number) if !number.is_finite() => out.extend_from_slice(b"null"),
        Field::Double(number) if !number.is_finite() => out.extend_from_slice(b"null"),
        Field::Date(_)
        | Field::TimeMillis(_)
        | Field::TimeMicros(_)
        | Field::TimestampMillis(_)
        | Field::TimestampMicros(_) => serde_json::to_writer(out, &field.to_string())?,
        // Numbers and booleans, as JSON writes them.
        _ => write!(out, "{field}").map_err(serde_json::Error::io)?,
    }
    Ok(())
}

fn write_list(elements: &[Field], out: &mut Vec<u8>) -> serde_json::Result<()> {
    out.push(b'[');
    for (index, element) in elements.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_value(element, out)?;
    }
    out.push(b']');
    Ok(())
}
