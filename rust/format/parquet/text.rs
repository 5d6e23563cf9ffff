//! A column of strings.

use std::sync::Arc;

use gristmill_system::catch_panic;
use parquet::basic::Type;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::ColumnDescPtr;

use super::corrupt;
use super::footer::{Chunk, chunk};
use super::pages::{PageSource, describe};

const COLUMNS_SHOWN: usize = 8;

/// The text column of a file.
pub(super) struct TextColumn {
    descriptor: ColumnDescPtr,
    /// Its part of each row group.
    chunks: Vec<Chunk>,
    /// The values of the current row group, once one was read.
    values: Option<ColumnReaderImpl<ByteArrayType>>,
    /// The value that was read last; empty if that was null.
    value: Vec<ByteArray>,
    levels: Vec<i16>,
}

impl TextColumn {
    /// Finds the column whose path is `name`: its name, or those of the structs around it and its own, with dots between
    /// them.
    pub(super) fn find(metadata: &ParquetMetaData, name: &str, size: u64) -> Result<Self, String> {
        let columns = metadata.file_metadata().schema_descr().columns();
        let expected = format!("expected a column of strings named {name:?}");
        let Some(index) = columns.iter().position(|column| column.path().string() == name) else {
            return Err(format!("{expected}, found {}; set text_field=", names(columns)));
        };
        let descriptor = Arc::clone(&columns[index]);
        let other = match descriptor.physical_type() {
            _ if descriptor.max_rep_level() > 0 => "lists".to_owned(),
            Type::BYTE_ARRAY => String::new(),
            other => format!("{other} values"),
        };
        if !other.is_empty() {
            return Err(format!("{expected}, found one of {other}; set text_field="));
        }
        let chunks =
            metadata.row_groups().iter().map(|group| chunk(group, index, size)).collect::<Result<_, _>>()?;
        Ok(Self { descriptor, chunks, values: None, value: Vec::new(), levels: Vec::new() })
    }

    /// Its name, for messages.
    pub(super) fn name(&self) -> String {
        self.descriptor.path().string()
    }

    /// Ends the current row group.
    pub(super) fn close(&mut self) {
        self.values = None;
        self.value.clear();
    }

    /// Skips whole pages of a row group before its first row is read, at most `rows` rows. Returns how many.
    pub(super) fn skip_pages(&mut self, file: &PageSource, group: usize, rows: u64) -> Result<u64, String> {
        let mut pages = file.pages(self.chunks[group]);
        let skipped = pages.skip_rows(rows)?;
        self.values = Some(ColumnReaderImpl::new(Arc::clone(&self.descriptor), Box::new(pages)));
        Ok(skipped)
    }

    /// Reads the next value of a row group; returns whether there is one. One at a time, so that errors are located, and
    /// no more than the pages of one value are held.
    pub(super) fn read(&mut self, file: &PageSource, group: usize) -> Result<bool, String> {
        let Self { descriptor, chunks, values, value, levels } = self;
        // The last value holds its page.
        value.clear();
        levels.clear();
        let values = values.get_or_insert_with(|| {
            ColumnReaderImpl::new(Arc::clone(descriptor), Box::new(file.pages(chunks[group])))
        });
        match catch_panic(|| values.read_records(1, Some(levels), None, value)) {
            Ok(Ok((rows, ..))) => Ok(rows == 1),
            Ok(Err(error)) => Err(describe(&error)),
            Err(panic) => Err(corrupt(&panic)),
        }
    }

    /// The value that was read last. None: null.
    pub(super) fn value(&self) -> Option<&[u8]> {
        self.value.first().map(ByteArray::data)
    }
}

fn names(columns: &[ColumnDescPtr]) -> String {
    let shown: Vec<String> =
        columns.iter().take(COLUMNS_SHOWN).map(|column| format!("{:?}", column.path().string())).collect();
    match columns.len().saturating_sub(COLUMNS_SHOWN) {
        _ if shown.is_empty() => "no columns".to_owned(),
        0 => format!("the columns {}", shown.join(", ")),
        more => format!("the columns {} and {more} more", shown.join(", ")),
    }
}
