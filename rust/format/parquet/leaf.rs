//! A column of values: one leaf of the schema, a row at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gristmill_system::catch_expected_panic;
use parquet::basic::Type;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type,
    Int64Type, Int96Type,
};
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::ColumnDescPtr;

use super::corrupt;
use super::footer::{Chunk, chunk};
use super::pages::{PageSource, Pages, describe};

/// A leaf column, through all row groups.
pub(super) struct Leaf {
    descriptor: ColumnDescPtr,
    /// Its part of each row group.
    chunks: Vec<Chunk>,
    column: Column,
    /// Rows of the current row group to be skipped before the next one is read.
    skipped: u64,
    /// How much the pages of one row may still take.
    row_budget: Arc<AtomicU64>,
    /// The levels of the row that was read last.
    definition: Vec<i16>,
    repetition: Vec<i16>,
    /// How many of its levels and values were taken.
    levels_taken: usize,
    values_taken: usize,
}

/// The values of the row that was read last, by their type in the file.
pub(super) enum Column {
    Boolean(Typed<BoolType>),
    Int32(Typed<Int32Type>),
    Int64(Typed<Int64Type>),
    Int96(Typed<Int96Type>),
    Float(Typed<FloatType>),
    Double(Typed<DoubleType>),
    Bytes(Typed<ByteArrayType>),
    FixedBytes(Typed<FixedLenByteArrayType>),
}

pub(super) struct Typed<T: DataType> {
    /// The current row group, once a row of it was read.
    reader: Option<ColumnReaderImpl<T>>,
    pub(super) values: Vec<T::T>,
}

macro_rules! each_type {
    ($column:expr, $typed:ident => $body:expr) => {
        match $column {
            Column::Boolean($typed) => $body,
            Column::Int32($typed) => $body,
            Column::Int64($typed) => $body,
            Column::Int96($typed) => $body,
            Column::Float($typed) => $body,
            Column::Double($typed) => $body,
            Column::Bytes($typed) => $body,
            Column::FixedBytes($typed) => $body,
        }
    };
}

impl Leaf {
    /// The leaf with this index in the schema, of a file of `size` bytes.
    pub(super) fn new(metadata: &ParquetMetaData, index: usize, size: u64) -> Result<Self, String> {
        let descriptor = metadata.file_metadata().schema_descr().column(index);
        let chunks = metadata.row_groups().iter().map(|group| chunk(metadata, group, index, size));
        Ok(Self {
            chunks: chunks.collect::<Result<_, _>>()?,
            column: Column::new(descriptor.physical_type()),
            descriptor,
            skipped: 0,
            row_budget: Arc::default(),
            definition: Vec::new(),
            repetition: Vec::new(),
            levels_taken: 0,
            values_taken: 0,
        })
    }

    /// Its name with those of the structs around it, for messages.
    pub(super) fn name(&self) -> String {
        self.descriptor.path().string()
    }

    /// Ends the current row group, whose rows were all read or left out. Returns whether it has no more of them, as far as
    /// that is known without inflating a page of which no row is read.
    pub(super) fn close(&mut self) -> Result<bool, String> {
        self.clear();
        let skipped = std::mem::take(&mut self.skipped);
        let Self { column, row_budget, descriptor, .. } = self;
        row_budget.store(u64::MAX, Ordering::Relaxed);
        if skipped > 0 && descriptor.max_rep_level() > 0 {
            each_type!(column, typed => typed.reader = None);
            return Ok(true);
        }
        decoded(|| each_type!(column, typed => typed.ends_after(skipped)))
    }

    /// Leaves out the next rows of the row group. Pages of which no row is read are never inflated.
    pub(super) fn skip(&mut self, rows: u64) {
        self.skipped += rows;
    }

    /// Reads the next row of a row group; returns whether there is one. One at a time, so that errors are located, and no
    /// more than the pages of one row are held.
    pub(super) fn read(&mut self, file: &PageSource, group: usize) -> Result<bool, String> {
        // The last values hold their page.
        self.clear();
        let Self { descriptor, chunks, column, skipped, row_budget, definition, repetition, .. } = self;
        let pages = || file.pages(chunks[group], row_budget);
        let rows = decoded(|| {
            each_type!(column, typed => {
                typed.open(descriptor, pages);
                row_budget.store(u64::MAX, Ordering::Relaxed);
                if !typed.skip(std::mem::take(skipped))? {
                    return Ok(0);
                }
                row_budget.store(file.limit(), Ordering::Relaxed);
                typed.read(definition, repetition)
            })
        })?;
        if self.descriptor.max_def_level() == 0 {
            let values = each_type!(&self.column, typed => typed.values.len());
            self.definition.resize(values, 0);
        }
        Ok(rows == 1)
    }

    /// The row's value, if it is a string. None: null.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match &self.column {
            Column::Bytes(typed) => typed.values.first().map(ByteArray::data),
            _ => None,
        }
    }

    /// The definition level of the row's next value. None: there is none.
    pub(super) fn next_definition(&self) -> Option<i16> {
        self.definition.get(self.levels_taken).copied()
    }

    /// The repetition level of the row's next value: 0 if there is none.
    pub(super) fn next_repetition(&self) -> i16 {
        self.repetition.get(self.levels_taken).copied().unwrap_or(0)
    }

    /// Takes a level without a value.
    pub(super) fn take_level(&mut self) {
        self.levels_taken += 1;
    }

    /// Takes the row's next value: its index among those that are not null.
    pub(super) fn take_value(&mut self) -> (&Column, usize) {
        self.levels_taken += 1;
        self.values_taken += 1;
        (&self.column, self.values_taken - 1)
    }

    /// Whether all levels of the row were taken.
    pub(super) fn is_taken(&self) -> bool {
        self.levels_taken == self.definition.len()
    }

    fn clear(&mut self) {
        self.definition.clear();
        self.repetition.clear();
        each_type!(&mut self.column, typed => typed.values.clear());
        (self.levels_taken, self.values_taken) = (0, 0);
    }
}

/// The result of the library, which panics where files are damaged.
fn decoded<T>(read: impl FnOnce() -> ParquetResult<T>) -> Result<T, String> {
    catch_expected_panic(read).map_err(|panic| corrupt(&panic))?.map_err(|error| describe(&error))
}

impl Column {
    fn new(kind: Type) -> Self {
        match kind {
            Type::BOOLEAN => Self::Boolean(Typed::default()),
            Type::INT32 => Self::Int32(Typed::default()),
            Type::INT64 => Self::Int64(Typed::default()),
            Type::INT96 => Self::Int96(Typed::default()),
            Type::FLOAT => Self::Float(Typed::default()),
            Type::DOUBLE => Self::Double(Typed::default()),
            Type::BYTE_ARRAY => Self::Bytes(Typed::default()),
            Type::FIXED_LEN_BYTE_ARRAY => Self::FixedBytes(Typed::default()),
        }
    }
}

impl<T: DataType> Default for Typed<T> {
    fn default() -> Self {
        Self { reader: None, values: Vec::new() }
    }
}

impl<T: DataType> Typed<T> {
    fn open(&mut self, descriptor: &ColumnDescPtr, pages: impl FnOnce() -> Pages) {
        self.reader.get_or_insert_with(|| ColumnReaderImpl::new(Arc::clone(descriptor), Box::new(pages())));
    }

    /// Returns whether there were so many rows.
    fn skip(&mut self, rows: u64) -> ParquetResult<bool> {
        let Some(reader) = self.reader.as_mut().filter(|_| rows > 0) else { return Ok(true) };
        Ok(reader.skip_records(rows as usize)? as u64 == rows)
    }

    /// Closes the row group. Returns whether so many rows were left, and no more.
    fn ends_after(&mut self, rows: u64) -> ParquetResult<bool> {
        let Some(mut reader) = self.reader.take() else { return Ok(true) };
        Ok(reader.skip_records(rows as usize + 1)? as u64 == rows)
    }

    fn read(&mut self, definition: &mut Vec<i16>, repetition: &mut Vec<i16>) -> ParquetResult<usize> {
        let Some(reader) = &mut self.reader else { return Ok(0) };
        Ok(reader.read_records(1, Some(definition), Some(repetition), &mut self.values)?.0)
    }
}
