//! Parquet: a row a record.
//!
//! The library `parquet` decodes footers, levels and values; pages are read, checked and inflated here, so that memory
//! is bounded by the largest page. Row groups and column chunks are never held.

mod footer;
mod pages;
mod rows;
mod text;
mod thrift;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::projection::{Columns, Projection};
use super::reader::{Found, Unreadable};
use super::{AfterError, Format, Position, RawRecord};
use crate::store::Source;
pub(super) use footer::MAGICS;
use footer::{group_rows, metadata};
use pages::PageSource;
use rows::Rows;
use text::TextColumn;

/// Whatever the longest record is, pages up to this size are read: a page has many records.
const SMALLEST_PAGE_LIMIT: u64 = 128 << 20;
/// Room for the lengths and levels of a page beside its text.
const PAGE_OVERHEAD: u64 = 1 << 20;

/// Reads the rows of a file.
pub(super) struct ParquetReader {
    file: PageSource,
    values: Values,
    max_record_bytes: u64,
    /// How many rows each row group has.
    groups: Vec<u64>,
    /// Index of the current row group, and its rows that were not read.
    group: usize,
    rows_left: u64,
    /// The next row.
    row: u64,
}

/// The wanted columns.
enum Values {
    Text(Box<TextColumn>),
    All(Box<Rows>),
}

impl ParquetReader {
    pub(super) fn new(
        mut source: Box<dyn Source>,
        projection: &Projection,
        max_record_bytes: u64,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, String> {
        let metadata = metadata(&mut *source)?;
        let groups = group_rows(&metadata)?;
        let values = match projection.columns() {
            Columns::Text(_) if !projection.paths().is_empty() => {
                return Err("keep= cannot filter Parquet yet; filter the file before".to_owned());
            }
            Columns::Text(name) => Values::Text(Box::new(TextColumn::find(&metadata, name, source.size())?)),
            Columns::All => Values::All(Box::new(Rows::new(metadata, source.size()))),
        };
        let page_limit = max_record_bytes.max(SMALLEST_PAGE_LIMIT).saturating_add(PAGE_OVERHEAD);
        let rows_left = groups.first().copied().unwrap_or_default();
        let file = PageSource::new(source, page_limit, stop);
        Ok(Self { file, values, max_record_bytes, groups, group: 0, rows_left, row: 0 })
    }

    /// The next row. None at the end.
    pub(super) fn next(&mut self) -> Result<Option<RawRecord<'_>>, Unreadable> {
        while self.rows_left == 0 {
            if !self.next_group() {
                return Ok(None);
            }
        }
        let position = self.position();
        self.read_row()?;
        let (format, bytes) = match &self.values {
            Values::Text(column) => (Format::Parquet, column.value().ok_or_else(|| column.name())),
            Values::All(rows) => (Format::Jsonl, Ok(rows.line())),
        };
        let bad = |reason| Err(Unreadable { position, rest: AfterError::Readable, reason });
        match bytes {
            Ok(bytes) if bytes.len() as u64 > self.max_record_bytes => bad(format!(
                "expected a text of at most {} bytes, found one of {}; raise max_document_bytes= to read it",
                self.max_record_bytes,
                bytes.len()
            )),
            Ok(bytes) => Ok(Some(RawRecord { format, position, bytes })),
            Err(name) => bad(format!("expected a string in the column {name:?}, found null")),
        }
    }

    /// The position of the next row. There is no hint: pages are found by their headers.
    pub(super) fn position(&self) -> Position {
        Position { record: self.row, byte: 0 }
    }

    /// Goes to a row. Only allowed before the first one is read.
    pub(super) fn skip_to(&mut self, target: Position) -> Result<Found, Unreadable> {
        let rows: u64 = self.groups.iter().sum();
        if target.byte > 0 {
            return Ok(Found::Elsewhere("rows of Parquet have no byte".to_owned()));
        }
        if target.record > rows {
            return Ok(Found::Elsewhere(format!("the shard has {rows} rows")));
        }
        while target.record - self.row >= self.rows_left && self.group < self.groups.len() {
            self.row += self.rows_left;
            self.next_group();
        }
        if let Values::Text(column) = &mut self.values
            && target.record > self.row
        {
            let skipped = column.skip_pages(&self.file, self.group, target.record - self.row);
            let skipped = skipped.map_err(|reason| self.lost(reason))?;
            self.row += skipped;
            self.rows_left -= skipped;
        }
        while self.row < target.record {
            self.read_row()?;
        }
        Ok(Found::Target)
    }

    /// Advances to the next row group; returns whether there is one.
    fn next_group(&mut self) -> bool {
        match &mut self.values {
            Values::Text(column) => column.close(),
            Values::All(rows) => rows.close(),
        }
        self.group += 1;
        let rows = self.groups.get(self.group);
        self.rows_left = rows.copied().unwrap_or_default();
        rows.is_some()
    }

    fn read_row(&mut self) -> Result<(), Unreadable> {
        let read = match &mut self.values {
            Values::Text(column) => column.read(&self.file, self.group),
            Values::All(rows) => rows.read(&self.file, self.group),
        };
        let read = read.and_then(|found| {
            let (left, group) = (self.rows_left, self.group);
            let missing =
                || corrupt(&format!("row group {group} ends {left} rows before the number in the footer"));
            found.then_some(()).ok_or_else(missing)
        });
        read.map_err(|reason| self.lost(reason))?;
        self.row += 1;
        self.rows_left -= 1;
        Ok(())
    }

    /// The next row and those after it cannot be read.
    fn lost(&self, reason: String) -> Unreadable {
        Unreadable { position: self.position(), rest: AfterError::Lost, reason }
    }
}

/// The message about a file that is not valid Parquet.
fn corrupt(found: &str) -> String {
    format!("expected a valid Parquet file, found a corrupt one: {found}; download the shard again")
}
