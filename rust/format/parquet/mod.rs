//! Parquet: a row a record.
//!
//! The library `parquet` decodes footers, levels and values; pages are read, checked and inflated here, so that memory
//! is bounded by the largest page. Row groups and column chunks are never held.

mod deltas;
mod footer;
mod leaf;
mod pages;
mod rows;
mod text;
mod thrift;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::TypePtr;

use super::columns::{RowFault, check_names, inflated_limit, text_of_row};
use super::projection::Columns;
use super::reader::{Column, Found, Reader, Unreadable};
use super::{AfterError, Position, RawKind, RawRecord, ReadOptions, Scratch};
use crate::store::{Piece, Source};
pub(super) use footer::MAGICS;
use footer::{group_rows, groups_in, metadata};
use leaf::Leaf;
use pages::PageSource;
use rows::Rows;

/// Reads the rows of a file.
pub(super) struct ParquetReader {
    shard: Arc<str>,
    file: PageSource,
    options: Arc<ReadOptions>,
    /// The columns that the filter looks at.
    filter: Option<Filter>,
    values: Values,
    schema: TypePtr,
    /// How many rows each row group has, up to the last one of the piece.
    groups: Vec<u64>,
    /// Index of the current row group, and its rows that were not read.
    group: usize,
    rows_left: u64,
    /// The next row.
    row: u64,
}

/// How many row groups a file has.
pub(super) fn count_groups(source: &mut dyn Source) -> Result<u64, String> {
    Ok(group_rows(&metadata(source)?)?.len() as u64)
}

struct Filter {
    columns: Rows,
    scratch: Scratch,
}

/// The wanted columns.
enum Values {
    Text(Box<Leaf>),
    /// The text column of this name, which the filter reads anyway.
    TextOfFilter(String),
    Rows(Rows),
}

impl ParquetReader {
    /// Reads the row groups of a piece; None: all.
    pub(super) fn new(
        shard: &Arc<str>,
        mut source: Box<dyn Source>,
        piece: Option<&Piece>,
        options: &Arc<ReadOptions>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, String> {
        let metadata = metadata(&mut *source)?;
        let schema = metadata.file_metadata().schema_descr().root_schema_ptr();
        check_names(schema.get_fields(), parts, &|name| options.projection.reads(name))?;
        let mut groups = group_rows(&metadata)?;
        let own = match piece {
            Some(piece) => groups_in(&metadata, &piece.bytes, source.size())?,
            None => 0..groups.len(),
        };
        groups.truncate(own.end);
        let (size, longest) = (source.size(), options.max_document_bytes);
        let filter = match &options.keep {
            Some(_) => {
                let wanted = |name: &str| options.projection.is_in_paths(name);
                let columns = Rows::new(&metadata, size, longest, wanted)?;
                Some(Filter { columns, scratch: Scratch::default() })
            }
            None => None,
        };
        let values = Values::new(&metadata, size, options, filter.as_ref())?;
        let page_limit = inflated_limit(longest);
        let rows_left = groups.get(own.start).copied().unwrap_or_default();
        let row = groups[..own.start].iter().sum();
        let file = PageSource::new(source, page_limit, stop);
        Ok(Self {
            shard: Arc::clone(shard),
            file,
            options: Arc::clone(options),
            filter,
            values,
            schema,
            groups,
            group: own.start,
            rows_left,
            row,
        })
    }

    /// The next row. None at the end.
    pub(super) fn next(&mut self) -> Result<Option<RawRecord<'_>>, Unreadable> {
        let position = self.position();
        let unreadable = |(rest, reason)| Unreadable { position, rest, reason };
        while self.rows_left == 0 {
            if !self.next_group().map_err(unreadable)? {
                return Ok(None);
            }
        }
        let is_kept = self.read_row().map_err(unreadable);
        if !matches!(&is_kept, Err(error) if error.rest == AfterError::Lost) {
            self.advance(1);
        }
        if !is_kept? {
            return Ok(Some(RawRecord::new(RawKind::Filtered, position, &[])));
        }
        let (kind, bytes) = self.values().map_err(unreadable)?;
        Ok(Some(RawRecord::new(kind, position, bytes)))
    }

    /// Advances to the next row group; returns whether there is one.
    fn next_group(&mut self) -> Result<bool, RowFault> {
        let filter_ends = self.filter.as_mut().map_or(Ok(true), |filter| filter.columns.close());
        let ends = filter_ends.and_then(|ends| Ok(self.values.close()? && ends));
        if !ends.map_err(lost)? {
            let (group, rows) = (self.group, self.groups.get(self.group).copied().unwrap_or_default());
            return Err(lost(corrupt(&format!(
                "row group {group} has other rows than the {rows} of the footer"
            ))));
        }
        self.group += 1;
        let rows = self.groups.get(self.group);
        self.rows_left = rows.copied().unwrap_or_default();
        Ok(rows.is_some())
    }

    /// Leaves out the next rows of the row group.
    fn skip(&mut self, rows: u64) {
        if let Some(filter) = &mut self.filter {
            filter.columns.skip(rows);
        }
        self.values.skip(rows);
        self.advance(rows);
    }

    fn advance(&mut self, rows: u64) {
        self.row += rows;
        self.rows_left -= rows;
    }

    /// Reads the next row, or if the filter leaves it out only the columns that the filter looks at. Returns whether it is
    /// kept.
    fn read_row(&mut self) -> Result<bool, RowFault> {
        let is_kept = self.is_kept();
        if matches!(is_kept, Ok(true)) {
            let found = self.values.read(&self.file, self.group);
            self.check(found)?;
        } else {
            self.values.skip(1);
        }
        is_kept
    }

    /// Whether the filter, if there is one, keeps the next row.
    fn is_kept(&mut self) -> Result<bool, RowFault> {
        let Some(filter) = &mut self.filter else { return Ok(true) };
        let found = filter.columns.read(&self.file, self.group);
        self.check(found)?;
        let Some(Filter { columns, scratch }) = &mut self.filter else { return Ok(true) };
        let kept = self.options.keeps(&self.shard, columns.pack()?, scratch);
        kept.map_err(|reason| (AfterError::Readable, reason))
    }

    /// Checks that there was a row to be read.
    fn check(&self, found: Result<bool, String>) -> Result<(), RowFault> {
        let (left, group) = (self.rows_left, self.group);
        let missing = || format!("row group {group} ends {left} rows before the number in the footer");
        let found = found.and_then(|found| found.then_some(()).ok_or_else(|| corrupt(&missing())));
        found.map_err(lost)
    }

    /// The wanted columns of the row that was read last.
    fn values(&mut self) -> Result<(RawKind, &[u8]), RowFault> {
        let leaf = match &mut self.values {
            Values::Rows(rows) => return Ok((RawKind::Row, rows.pack()?)),
            Values::Text(leaf) => Some(&**leaf),
            Values::TextOfFilter(name) => self.filter.as_ref().and_then(|filter| filter.columns.leaf(name)),
        };
        let name = || leaf.map(Leaf::name).unwrap_or_default();
        text_of_row(leaf.and_then(Leaf::bytes), name, self.options.max_document_bytes)
    }
}

impl Reader for ParquetReader {
    /// The position of the next row. There is no hint: pages are found by their headers.
    fn position(&self) -> Position {
        Position { record: self.row, byte: 0 }
    }

    fn skip_to(&mut self, target: Position) -> Result<Found, Unreadable> {
        let rows: u64 = self.groups.iter().sum();
        if target.byte > 0 {
            return Ok(Found::Elsewhere("rows of Parquet have no byte".to_owned()));
        }
        if target.record > rows {
            return Ok(Found::Elsewhere(format!("the shard has {rows} rows")));
        }
        if target.record < self.row {
            return Ok(Found::Elsewhere(format!("the piece begins at row {}", self.row)));
        }
        while target.record - self.row >= self.rows_left && self.group < self.groups.len() {
            self.skip(self.rows_left);
            let position = self.position();
            self.next_group().map_err(|(rest, reason)| Unreadable { position, rest, reason })?;
        }
        self.skip(target.record - self.row);
        Ok(Found::Target)
    }

    fn columns(&self) -> Option<Vec<Column>> {
        let column = |field: &TypePtr| Column { name: field.name().to_owned(), kind: rows::type_name(field) };
        Some(self.schema.get_fields().iter().map(column).collect())
    }

    fn row_groups(&self) -> Option<&[u64]> {
        Some(&self.groups)
    }
}

impl Values {
    fn new(
        metadata: &ParquetMetaData,
        size: u64,
        options: &ReadOptions,
        filter: Option<&Filter>,
    ) -> Result<Self, String> {
        let longest = options.max_document_bytes;
        let names = match options.projection.columns() {
            Columns::Text(name) => {
                let leaf = text::find(metadata, name, size)?.filter(|_| !options.wants_values());
                let Some(leaf) = leaf else {
                    let wanted = |column: &str| options.projection.is_wanted(column);
                    return Ok(Self::Rows(Rows::new(metadata, size, longest, wanted)?));
                };
                let is_read = filter.is_some_and(|filter| filter.columns.leaf(name).is_some());
                return Ok(if is_read {
                    Self::TextOfFilter(name.clone())
                } else {
                    Self::Text(Box::new(leaf))
                });
            }
            Columns::All => return Ok(Self::Rows(Rows::new(metadata, size, longest, |_| true)?)),
            Columns::Named(names) => names,
        };
        let rows = Rows::new(metadata, size, longest, |name| names.iter().any(|wanted| wanted == name))?;
        if rows.is_empty() {
            let found = text::names(metadata.file_metadata().schema_descr().columns());
            return Err(format!(
                "expected one of the columns {names:?}, found {found}; name others in sample="
            ));
        }
        Ok(Self::Rows(rows))
    }

    fn read(&mut self, file: &PageSource, group: usize) -> Result<bool, String> {
        match self {
            Self::Text(leaf) => leaf.read(file, group),
            Self::TextOfFilter(_) => Ok(true),
            Self::Rows(rows) => rows.read(file, group),
        }
    }

    fn skip(&mut self, rows: u64) {
        match self {
            Self::Text(leaf) => leaf.skip(rows),
            Self::TextOfFilter(_) => {}
            Self::Rows(columns) => columns.skip(rows),
        }
    }

    /// Ends the current row group. Returns whether the columns have no more rows of it.
    fn close(&mut self) -> Result<bool, String> {
        match self {
            Self::Text(leaf) => leaf.close(),
            Self::TextOfFilter(_) => Ok(true),
            Self::Rows(rows) => rows.close(),
        }
    }
}

/// The name of a field, and the fields in it.
fn parts(field: &TypePtr) -> (&str, &[TypePtr]) {
    (field.name(), if field.is_primitive() { &[] } else { field.get_fields() })
}

fn lost(reason: String) -> RowFault {
    (AfterError::Lost, reason)
}

/// The message about a file that is not valid Parquet.
fn corrupt(found: &str) -> String {
    format!("expected a valid Parquet file, found a corrupt one: {found}; download the shard again")
}

/// The message about a file that is newer than this, or not valid.
fn unknown(found: &str) -> String {
    format!(
        "expected a Parquet file of which all is known, found {found}; if pyarrow reads the file, write it again with that, \
         else download the shard again"
    )
}
