//! Arrow: the streams and files of record batches that `datasets` and pyarrow write.
//!
//! Only the buffers of wanted columns are read, of one batch at a time, and the text only where the filter keeps a row.
//! Memory is bounded by the wanted columns of a batch, whose size is known before it is taken.

mod array;
mod flatbuffer;
mod message;
mod pack;
mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gristmill_json::{Packer, base64};

use super::columns::{RowFault, check_names, inflated_limit, shown, text_of_row, too_long};
use super::projection::Columns;
use super::reader::{Column, Found, Reader, Unreadable};
use super::{AfterError, Position, RawKind, RawRecord, ReadOptions, Scratch};
use crate::codec::BlockDecoder;
use crate::store::{Piece, Source};
use array::{Array, Data, Dictionary, FieldStart, Loader, Unread};
use flatbuffer::Damaged;
use message::{BatchHeader, Content, Message, Messages, message};
pub(super) use message::{FILE_MAGIC, STREAM_MAGIC, is_old_stream};
use pack::Writer;
pub(super) use schema::{Field, Kind};

/// Reads the rows of a stream or file.
pub(super) struct ArrowReader {
    shard: Arc<str>,
    source: Box<dyn Source>,
    stop: Arc<AtomicBool>,
    options: Arc<ReadOptions>,
    decoder: BlockDecoder,
    fields: Vec<Field>,
    /// The indices of the columns that the filter looks at.
    filter: Option<Arc<[usize]>>,
    values: Values,
    dictionaries: BTreeMap<i64, Dictionary>,
    /// The size of each dictionary.
    dictionary_bytes: BTreeMap<i64, u64>,
    /// The fields of the wanted columns, with the types of their values.
    wanted: BTreeMap<i64, Field>,
    batch: Batch,
    /// Where the batches of the piece begin.
    own: Range<u64>,
    messages: Messages,
    /// The next row, and those left of the batch.
    row: u64,
    rows_left: u64,
    /// The most bytes of a batch.
    limit: u64,
    packed: Packer,
    scratch: Scratch,
}

/// How many record batches a stream or file has.
pub(super) fn count_batches(source: &mut dyn Source) -> Result<u64, String> {
    let (_, mut messages) = message::open(source)?;
    let mut batches = 0;
    while let Some(offset) = messages.next() {
        let Some(Message { content, end, .. }) = message(source, offset)? else { break };
        batches += u64::from(matches!(content, Content::Batch(_)));
        messages.pass(end);
    }
    Ok(batches)
}

/// The wanted columns.
enum Values {
    /// A column of strings, or one in structs: its index, and those of the members that lead to it.
    Text {
        name: String,
        column: usize,
        members: Vec<usize>,
    },
    Rows(Arc<[usize]>),
}

/// The current batch.
#[derive(Default)]
struct Batch {
    header: BatchHeader,
    body: Range<u64>,
    /// Where each column begins.
    starts: Vec<FieldStart>,
    /// The columns that were loaded.
    columns: Vec<Option<Array>>,
    /// How many bytes may still be loaded.
    left: u64,
}

impl ArrowReader {
    pub(super) fn new(
        shard: &Arc<str>,
        mut source: Box<dyn Source>,
        piece: Option<&Piece>,
        options: &Arc<ReadOptions>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, String> {
        let (fields, messages) = message::open(&mut *source)?;
        check_names(&fields, |field| (&field.name, &field.children), &|name| options.projection.reads(name))?;
        let filter = options.keep.as_ref().map(|_| {
            let wanted = |index: &usize| options.projection.is_in_paths(&fields[*index].name);
            (0..fields.len()).filter(wanted).collect()
        });
        let values = Values::new(&fields, options)?;
        let filter: Option<Arc<[usize]>> = filter;
        let wanted = wanted_dictionaries(&fields, filter.as_deref(), &values)?;
        let mut reader = Self {
            shard: Arc::clone(shard),
            own: piece.map_or(0..source.size(), |piece| piece.bytes.clone()),
            source,
            stop: Arc::clone(stop),
            options: Arc::clone(options),
            decoder: BlockDecoder::default(),
            fields,
            filter,
            values,
            dictionaries: BTreeMap::new(),
            dictionary_bytes: BTreeMap::new(),
            wanted,
            batch: Batch::default(),
            messages,
            row: 0,
            rows_left: 0,
            limit: inflated_limit(options.max_document_bytes),
            packed: Packer::default(),
            scratch: Scratch::default(),
        };
        if piece.is_some() {
            // The rows before the piece are counted.
            reader.next_batch()?;
        }
        Ok(reader)
    }

    /// The next row. None at the end.
    pub(super) fn next(&mut self) -> Result<Option<RawRecord<'_>>, Unreadable> {
        let position = self.position();
        let unreadable = |(rest, reason)| Unreadable { position, rest, reason };
        while self.rows_left == 0 {
            if !self.next_batch().map_err(lost).map_err(unreadable)? {
                return Ok(None);
            }
        }
        let index = (self.batch.header.rows - self.rows_left) as usize;
        let is_kept = self.read_row(index).map_err(unreadable);
        if !matches!(&is_kept, Err(error) if error.rest == AfterError::Lost) {
            self.row += 1;
            self.rows_left -= 1;
        }
        if !is_kept? {
            return Ok(Some(RawRecord::new(RawKind::Filtered, position, &[])));
        }
        let (kind, bytes) = self.value(index).map_err(unreadable)?;
        Ok(Some(RawRecord::new(kind, position, bytes)))
    }

    /// Goes to the next batch of the piece, which may be empty, and loads dictionaries on the way. Returns whether there is
    /// one.
    fn next_batch(&mut self) -> Result<bool, String> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err("reading was stopped".to_owned());
            }
            let Some(offset) = self.messages.next() else { return Ok(false) };
            let Some(Message { content, body, end }) = message(&mut *self.source, offset)? else {
                return Ok(false);
            };
            let is_behind = matches!(content, Content::Batch(_)) && offset >= self.own.end;
            if !is_behind {
                self.messages.pass(end);
            }
            let body = body..end;
            match content {
                Content::Batch(_) if is_behind => return Ok(false),
                Content::Batch(header) if offset < self.own.start => self.row += header.rows,
                Content::Batch(header) => {
                    self.open(header, body)?;
                    return Ok(true);
                }
                Content::Dictionary { id, is_delta, batch } => {
                    if let Some(field) = self.wanted.get(&id).cloned() {
                        self.load_dictionary(id, is_delta, &batch, body, &field)?;
                    }
                }
                Content::Schema(_) => return Err(corrupt("it has two schemas")),
                Content::Other => {}
            }
        }
    }

    fn open(&mut self, header: BatchHeader, body: Range<u64>) -> Result<(), String> {
        self.rows_left = header.rows;
        let mut start = FieldStart::default();
        let mut starts = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            if start.length(&header) != Some(header.rows) {
                return Err(corrupt("a column has another number of rows than its batch"));
            }
            starts.push(start);
            start
                .pass(field, &header)
                .map_err(|_| corrupt("the buffers of a record batch do not fit its schema"))?;
        }
        let columns = self.fields.iter().map(|_| None).collect();
        self.batch = Batch { header, body, starts, columns, left: self.limit };
        Ok(())
    }

    fn load_dictionary(
        &mut self,
        id: i64,
        is_delta: bool,
        header: &BatchHeader,
        body: Range<u64>,
        field: &Field,
    ) -> Result<(), String> {
        if !is_delta {
            self.dictionaries.remove(&id);
            self.dictionary_bytes.remove(&id);
        }
        let used: u64 = self.dictionary_bytes.values().sum();
        let mut left = self.limit.saturating_sub(used);
        let before = left;
        let array = Loader {
            source: &mut *self.source,
            decoder: &mut self.decoder,
            header,
            body,
            dictionaries: &self.dictionaries,
            left: &mut left,
            limit: self.limit,
            by_rows: false,
            next: FieldStart::default(),
        }
        .load(field)?;
        self.dictionaries.entry(id).or_default().push(Arc::new(array));
        *self.dictionary_bytes.entry(id).or_default() += before - left;
        Ok(())
    }

    /// Loads what is needed of a row. Returns whether the filter keeps it.
    fn read_row(&mut self, index: usize) -> Result<bool, RowFault> {
        if let Some(columns) = self.filter.clone() {
            self.load(&columns, index)?;
            self.pack(&columns, index)?;
            let kept = self.options.keeps(&self.shard, self.packed.bytes(), &mut self.scratch);
            if !kept.map_err(|reason| (AfterError::Readable, reason))? {
                return Ok(false);
            }
        }
        match &self.values {
            Values::Text { column, .. } => self.load(&[*column], index)?,
            Values::Rows(columns) => {
                let columns = Arc::clone(columns);
                self.load(&columns, index)?;
                self.pack(&columns, index)?;
            }
        }
        Ok(true)
    }

    /// Loads columns of the batch that were not, and what a row has in them.
    fn load(&mut self, columns: &[usize], row: usize) -> Result<(), RowFault> {
        for &column in columns {
            let Batch { header, body, starts, columns, left } = &mut self.batch;
            let array = match columns[column].as_mut() {
                Some(array) => array,
                None if self.stop.load(Ordering::Relaxed) => {
                    return Err(lost("reading was stopped".to_owned()));
                }
                None => {
                    let loader = Loader {
                        source: &mut *self.source,
                        decoder: &mut self.decoder,
                        header,
                        body: body.clone(),
                        dictionaries: &self.dictionaries,
                        left,
                        limit: self.limit,
                        by_rows: true,
                        next: starts[column],
                    }
                    .load(&self.fields[column]);
                    columns[column].insert(loader.map_err(lost)?)
                }
            };
            array.reach(&mut *self.source, row..row + 1, self.limit).map_err(|unread| match unread {
                Unread::Damaged => Damaged.into(),
                Unread::Failed(reason) => lost(reason),
                Unread::Long(found) => too_long(found, self.options.max_document_bytes),
            })?;
        }
        Ok(())
    }

    /// Packs columns of a row, which are loaded, as an object.
    fn pack(&mut self, columns: &[usize], index: usize) -> Result<(), RowFault> {
        let Self { packed, batch, fields, options, .. } = self;
        packed.clear();
        let columns =
            columns.iter().filter_map(|&column| Some((&fields[column], batch.columns[column].as_ref()?)));
        Writer { out: packed, longest: options.max_document_bytes }.pack_object(columns, index)
    }

    /// The wanted columns of a row that was read.
    fn value(&self, index: usize) -> Result<(RawKind, &[u8]), RowFault> {
        let Values::Text { name, column, members } = &self.values else {
            return Ok((RawKind::Row, self.packed.bytes()));
        };
        let column = self.batch.columns[*column].as_ref();
        let bytes = column.map_or(Ok(None), |column| text(column, members, index))?;
        text_of_row(bytes, || name.clone(), self.options.max_document_bytes)
    }
}

impl Reader for ArrowReader {
    /// The position of the next row. There is no hint: batches are found by their headers.
    fn position(&self) -> Position {
        Position { record: self.row, byte: 0 }
    }

    fn skip_to(&mut self, target: Position) -> Result<Found, Unreadable> {
        if target.byte > 0 {
            return Ok(Found::Elsewhere("rows of Arrow have no byte".to_owned()));
        }
        if target.record < self.row {
            return Ok(Found::Elsewhere(format!("the piece begins with row {}", self.row)));
        }
        loop {
            let skipped = self.rows_left.min(target.record - self.row);
            self.row += skipped;
            self.rows_left -= skipped;
            if self.row == target.record {
                return Ok(Found::Target);
            }
            let position = self.position();
            let next = self.next_batch();
            if !next.map_err(|reason| Unreadable { position, rest: AfterError::Lost, reason })? {
                return Ok(Found::Elsewhere(format!("the shard has {} rows", self.row)));
            }
        }
    }

    fn columns(&self) -> Option<Vec<Column>> {
        let column = |field: &Field| Column { name: field.name.clone(), kind: field.type_name() };
        Some(self.fields.iter().map(column).collect())
    }
}

/// The dictionaries of the wanted columns: those of others are not loaded. Dictionaries of dictionaries are refused: in a
/// damaged file they may refer to one another, as often as there are any.
fn wanted_dictionaries(
    fields: &[Field],
    filter: Option<&[usize]>,
    values: &Values,
) -> Result<BTreeMap<i64, Field>, String> {
    let mut columns: BTreeSet<usize> = filter.unwrap_or_default().iter().copied().collect();
    match values {
        Values::Text { column, .. } => _ = columns.insert(*column),
        Values::Rows(rows) => columns.extend(&rows[..]),
    }
    let mut found = BTreeMap::new();
    let mut nested = None;
    for column in columns {
        fields[column].for_each(&mut |field| {
            if let Some((id, _)) = field.dictionary {
                field.children.iter().for_each(|child| {
                    child.for_each(&mut |inner| nested = nested.or(inner.dictionary.map(|_| &field.name)));
                });
                found.insert(id, field.of_values());
            }
        });
    }
    match nested {
        None => Ok(found),
        Some(name) => Err(format!(
            "expected a dictionary without others in it, found one in the column {name:?}; write it again without"
        )),
    }
}

/// The text in a row of a column, or in the struct that it is.
fn text<'a>(
    column: &'a Array,
    members: &[usize],
    index: usize,
) -> Result<Option<&'a [u8]>, flatbuffer::Damaged> {
    let Some((&member, rest)) = members.split_first() else { return column.bytes(index) };
    match &column.data {
        _ if column.is_null(index) => Ok(None),
        Data::Struct(arrays) => text(arrays.get(member).ok_or(flatbuffer::Damaged)?, rest, index),
        _ => Err(flatbuffer::Damaged),
    }
}

impl Values {
    fn new(fields: &[Field], options: &ReadOptions) -> Result<Self, String> {
        match options.projection.columns() {
            Columns::Text(name) => match Self::text(fields, name)? {
                Some(text) if !options.wants_values() => Ok(text),
                _ => {
                    let wanted = |index: &usize| options.projection.is_wanted(&fields[*index].name);
                    Ok(Self::Rows((0..fields.len()).filter(wanted).collect()))
                }
            },
            Columns::All => Ok(Self::Rows((0..fields.len()).collect())),
            Columns::Named(names) => {
                let columns: Arc<[usize]> = (0..fields.len())
                    .filter(|&column| names.iter().any(|name| *name == fields[column].name))
                    .collect();
                if columns.is_empty() {
                    return Err(format!(
                        "expected one of the columns {names:?}, found {}; name others in sample=",
                        shown_fields(fields)
                    ));
                }
                Ok(Self::Rows(columns))
            }
        }
    }

    /// Finds the column whose path is `name`: its name, or those of the structs around it and its own, with dots between
    /// them. None: the text is, or is inside of, the JSON that a column holds.
    fn text(fields: &[Field], name: &str) -> Result<Option<Self>, String> {
        let expected = format!("expected a column of strings named {name:?}");
        let Some((field, mut path)) = find(fields, name) else {
            return Err(format!("{expected}, found {}; set text_field=", shown_fields(fields)));
        };
        if field.is_json {
            return Ok(None);
        }
        if !matches!(field.kind, Kind::Bytes { .. } | Kind::View { .. }) {
            return Err(format!("{expected}, found one of type {}; set text_field=", field.type_name()));
        }
        let column = path.remove(0);
        Ok(Some(Self::Text { name: name.to_owned(), column, members: path }))
    }
}

/// The field with this path, or around it with JSON, and the indices that lead to it.
fn find<'a>(fields: &'a [Field], name: &str) -> Option<(&'a Field, Vec<usize>)> {
    fields.iter().enumerate().find_map(|(index, field)| {
        if field.name == name {
            return Some((field, vec![index]));
        }
        let rest = name.strip_prefix(&field.name)?.strip_prefix('.')?;
        if field.is_json {
            return Some((field, vec![index]));
        }
        let inside = field.kind == Kind::Struct && field.dictionary.is_none();
        let (found, mut path) = find(if inside { &field.children } else { &[] }, rest)?;
        path.insert(0, index);
        Some((found, path))
    })
}

/// The schema that Arrow's writers store in other formats: a message in base64. None: it is damaged.
pub(super) fn stored_fields(text: &str) -> Option<Vec<Field>> {
    match message(&mut base64(text), 0).ok()??.content {
        Content::Schema(fields) => Some(fields),
        _ => None,
    }
}

/// Columns of a file, for a message.
fn shown_fields(fields: &[Field]) -> String {
    shown(fields.iter().map(|field| field.name.clone()))
}

fn lost(reason: String) -> RowFault {
    (AfterError::Lost, reason)
}

/// The message about a batch whose wanted columns are larger than `limit`.
fn too_large(limit: u64, offset: u64) -> String {
    format!(
        "expected the columns of a record batch to have at most {limit} bytes, found more in the one at byte {offset} of the \
         file; write the file again with fewer rows in each (pyarrow: max_chunksize=), or raise max_document_bytes="
    )
}

/// The message about a file that is not valid Arrow.
fn corrupt(found: &str) -> String {
    format!("expected a valid Arrow file, found a corrupt one: {found}; download the shard again")
}
