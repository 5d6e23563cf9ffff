//! The messages of a stream or file: a schema, dictionaries, and batches of rows.
//!
//! ```text
//! stream:  schema, dictionaries and batches, end mark
//! file:    ARROW1, the same, then a footer: the schema, and where the dictionaries and batches are; its length, ARROW1
//! ```
//!
//! A file is read by its footer, as other readers do: writers may leave anything else between the messages.

use super::corrupt;
use super::flatbuffer::{Damaged, Table, Vector};
use super::schema::{Field, Kind, fields};
use crate::codec::{BlockCodec, read_failed};
use crate::store::{Source, read_exact_at};

/// The first bytes of a file, and of a stream.
pub(in crate::format) const FILE_MAGIC: &[u8] = b"ARROW1";
pub(in crate::format) const STREAM_MAGIC: &[u8] = b"\xff\xff\xff\xff";
/// Behind the footer of a file: its length, and the magic.
const FILE_END: usize = 4 + FILE_MAGIC.len();
/// The bytes of a dictionary's or batch's offset and lengths in the footer.
const BLOCK: usize = 24;
/// Metadata of a thousand columns take some 100 KB.
const LARGEST_METADATA: u32 = 32 << 20;
/// The fourth and fifth version of metadata, by their numbers. The fourth is that of Arrow 0.8 to 0.17.
const V4: i16 = 3;
const V5: i16 = 4;
/// Values take at least a bit each where they are not null.
const MOST_ROWS: i64 = 1 << 30;

/// A message, and where its body is.
pub(super) struct Message {
    pub(super) content: Content,
    pub(super) body: u64,
    pub(super) end: u64,
}

pub(super) enum Content {
    Schema(Vec<Field>),
    Dictionary {
        id: i64,
        is_delta: bool,
        batch: BatchHeader,
    },
    Batch(BatchHeader),
    /// A tensor, or what later versions have.
    Other,
}

/// Some rows: their number, and where their buffers are.
#[derive(Debug, Clone, Default)]
pub(super) struct BatchHeader {
    pub(super) rows: u64,
    /// Length and nulls of each field, nested ones after theirs.
    pub(super) nodes: Vec<(i64, i64)>,
    /// Offset and length of each buffer in the body.
    pub(super) buffers: Vec<(i64, i64)>,
    /// How many buffers of values each column of views has.
    pub(super) variadic: Vec<i64>,
    pub(super) codec: Option<BlockCodec>,
}

/// Whether a file that begins with `head` is a stream of Arrow before 0.15, which begins with the length of its first
/// message: no text begins so.
pub(in crate::format) fn is_old_stream(head: &[u8]) -> bool {
    let number = |at: usize| head.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    // The message begins with the offset of its table.
    matches!((number(0), number(4)), (Some(length), Some(table)) if length <= LARGEST_METADATA && (4..length).contains(&table))
}

/// The columns, and where the other messages begin: those in the footer of a file, or of a stream the next one.
pub(super) fn open(source: &mut dyn Source) -> Result<(Vec<Field>, Messages), String> {
    let mut magic = [0; FILE_MAGIC.len()];
    if source.size() < magic.len() as u64 {
        return Err(truncated(source.size()));
    }
    read(source, 0, &mut magic)?;
    if magic == FILE_MAGIC {
        return footer(source);
    }
    match message(source, 0)? {
        Some(Message { content: Content::Schema(fields), end, .. }) => Ok((fields, Messages::Next(end))),
        _ => Err(corrupt("its first message is not a schema")),
    }
}

/// Where the messages after the first one begin.
pub(super) enum Messages {
    /// The next one, which ends where the one after it begins.
    Next(u64),
    /// All that are left.
    Listed(std::vec::IntoIter<u64>),
}

impl Messages {
    /// Where the next one begins. None: there is none.
    pub(super) fn next(&mut self) -> Option<u64> {
        match self {
            Self::Next(offset) => Some(*offset),
            Self::Listed(offsets) => offsets.next(),
        }
    }

    /// Continues behind the one that ends here.
    pub(super) fn pass(&mut self, end: u64) {
        if let Self::Next(next) = self {
            *next = end;
        }
    }
}

fn footer(source: &mut dyn Source) -> Result<(Vec<Field>, Messages), String> {
    let size = source.size();
    let mut end = [0; FILE_END];
    let before = size.checked_sub(FILE_END as u64).ok_or_else(|| truncated(size))?;
    read(source, before, &mut end)?;
    let (length, magic) = end.split_at(4);
    if magic != FILE_MAGIC {
        return Err(truncated(size));
    }
    let damaged = || corrupt("its footer is not valid");
    let length = u32::from_le_bytes(length.try_into().map_err(|_| damaged())?);
    let start =
        before.checked_sub(length.into()).filter(|_| length <= LARGEST_METADATA).ok_or_else(damaged)?;
    let mut metadata = vec![0; length as usize];
    read(source, start, &mut metadata)?;
    let parse = || {
        let footer = Table::root(&metadata)?;
        let fields = schema(footer.table(1)?.ok_or(Damaged)?, footer.i16(0, 0)?)?;
        let blocks =
            |slot| footer.vector(slot, BLOCK)?.map_or(Ok(Vec::new()), |blocks| blocks.numbers(BLOCK));
        Ok((fields, blocks(2)?, blocks(3)?))
    };
    let (fields, dictionaries, batches) = parse().map_err(|_: Damaged| damaged())?;
    // The rows of a piece are those of the batches that begin in it.
    if !batches.is_sorted() {
        return Err(corrupt("the record batches in its footer are not in the order of their bytes"));
    }
    let offsets = dictionaries.into_iter().chain(batches).map(u64::try_from).collect::<Result<Vec<_>, _>>();
    Ok((fields?, Messages::Listed(offsets.map_err(|_| damaged())?.into_iter())))
}

/// Reads the metadata of the message at `offset`. None: the end of the stream.
pub(super) fn message(source: &mut dyn Source, offset: u64) -> Result<Option<Message>, String> {
    let size = source.size();
    let (mut start, mut number) = (offset, [0; 4]);
    let mut next = |start: &mut u64| {
        let end = start.checked_add(4).filter(|&end| end <= size).ok_or_else(|| truncated(size))?;
        read(source, std::mem::replace(start, end), &mut number).map(|()| number)
    };
    let mut length = next(&mut start)?;
    // Before Arrow 0.15 there was no mark.
    let has_mark = length == *STREAM_MAGIC;
    if has_mark {
        length = next(&mut start)?;
    }
    let length = u32::from_le_bytes(length);
    if length == 0 {
        return if start == size { Ok(None) } else { Err(goes_on(start, size)) };
    }
    if !has_mark && length > LARGEST_METADATA {
        return Err(corrupt(&format!("no message begins at byte {offset}")));
    }
    let damaged = || corrupt(&format!("the message at byte {offset} is not valid"));
    let body = start + u64::from(length);
    if body > size {
        return Err(truncated(size));
    }
    if length > LARGEST_METADATA {
        return Err(damaged());
    }
    let mut metadata = vec![0; length as usize];
    read(source, start, &mut metadata)?;
    let table = Table::root(&metadata).map_err(|_| damaged())?;
    let content = content(table).map_err(|_| damaged())??;
    let body_length = table.i64(3).ok().and_then(|length| u64::try_from(length).ok()).ok_or_else(damaged)?;
    match body.checked_add(body_length) {
        Some(end) if end <= size => Ok(Some(Message { content, body, end })),
        _ => Err(truncated(size)),
    }
}

/// The inner error is a message about a file that is valid.
fn content(message: Table<'_>) -> Result<Result<Content, String>, Damaged> {
    let Some(header) = message.table(2)? else { return Err(Damaged) };
    let batch = |table| batch(table).map(|batch| batch.map(Content::Batch));
    match message.u8(1)? {
        1 => Ok(schema(header, message.i16(0, 0)?)?.map(Content::Schema)),
        2 => {
            let Some(data) = header.table(1)? else { return Err(Damaged) };
            let (id, is_delta) = (header.i64(0)?, header.boolean(2)?);
            Ok(match batch(data)? {
                Ok(Content::Batch(batch)) => Ok(Content::Dictionary { id, is_delta, batch }),
                other => other,
            })
        }
        3 => batch(header),
        _ => Ok(Ok(Content::Other)),
    }
}

/// The columns of a schema in metadata of a version.
fn schema(table: Table<'_>, version: i16) -> Result<Result<Vec<Field>, String>, Damaged> {
    if table.i16(0, 0)? != 0 {
        let found = "expected little-endian numbers in the Arrow file, found big-endian ones; write it again";
        return Ok(Err(found.to_owned()));
    }
    let fields = fields(table)?;
    let mut has_union = false;
    let mut look = |field: &Field| has_union |= matches!(field.kind, Kind::Other { name: "union", .. });
    for field in &fields {
        field.for_each(&mut look);
    }
    // Unions had one buffer more.
    if version < V4 || version < V5 && has_union {
        return Ok(Err(format!(
            "expected Arrow's metadata of version 5{}, found version {}; write the file again",
            if has_union { " beside a column of type union" } else { " or 4" },
            version + 1
        )));
    }
    Ok(Ok(fields))
}

fn batch(table: Table<'_>) -> Result<Result<BatchHeader, String>, Damaged> {
    let rows = table.i64(0)?;
    if !(0..=MOST_ROWS).contains(&rows) {
        return Err(Damaged);
    }
    let codec = match table.table(3)? {
        None => None,
        Some(compression) => match (compression.u8(0)?, compression.u8(1)?) {
            (0, 0) => Some(BlockCodec::Lz4Frame),
            (1, 0) => Some(BlockCodec::Zstd),
            (codec, _) => {
                return Ok(Err(format!(
                    "expected an Arrow file compressed with LZ4, Zstandard or not at all, found codec {codec}; write it \
                     again with one of these"
                )));
            }
        },
    };
    Ok(Ok(BatchHeader {
        rows: rows as u64,
        nodes: table.vector(1, 16)?.map_or(Ok(Vec::new()), Vector::pairs)?,
        buffers: table.vector(2, 16)?.map_or(Ok(Vec::new()), Vector::pairs)?,
        variadic: table.vector(4, 8)?.map_or(Ok(Vec::new()), |counts| counts.numbers(8))?,
        codec,
    }))
}

pub(super) fn read(source: &mut dyn Source, offset: u64, out: &mut [u8]) -> Result<(), String> {
    read_exact_at(source, offset, out).map_err(|error| read_failed(&error))
}

/// The message about bytes behind the end mark of a stream.
fn goes_on(end: u64, size: u64) -> String {
    format!(
        "expected the end of the Arrow file behind the end mark before byte {end}, found {} more bytes: of several streams in \
         one file only the first is read; make one shard of each, or download the shard again if it is one stream",
        size - end
    )
}

fn truncated(size: u64) -> String {
    format!(
        "expected more messages or an end mark in the Arrow file, found its end after {size} bytes: the file is \
         truncated; download it again"
    )
}
