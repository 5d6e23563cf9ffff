//! The messages of a file: a schema, dictionaries, and batches of rows.

use super::corrupt;
use super::flatbuffer::{Damaged, Table, Vector};
use super::schema::{Field, fields};
use crate::codec::{BlockCodec, read_failed};
use crate::store::{Source, read_exact_at};

/// The first bytes of a file, and of a stream.
pub(in crate::format) const FILE_MAGIC: &[u8] = b"ARROW1";
pub(in crate::format) const STREAM_MAGIC: &[u8] = b"\xff\xff\xff\xff";
/// The metadata of a file begin behind its magic and padding.
const FILE_START: u64 = 8;
/// Metadata of a thousand columns take some 100 KB.
const LARGEST_METADATA: usize = 32 << 20;
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

/// Where the first message begins. Checks that a file is complete.
pub(super) fn start(source: &mut dyn Source) -> Result<u64, String> {
    let mut magic = [0; FILE_MAGIC.len()];
    read(source, 0, &mut magic)?;
    if magic != FILE_MAGIC {
        return Ok(0);
    }
    let size = source.size();
    if let Some(at) = size.checked_sub(magic.len() as u64) {
        read(source, at, &mut magic)?;
    }
    if size >= 2 * FILE_START && magic == FILE_MAGIC { Ok(FILE_START) } else { Err(truncated(size)) }
}

/// Reads the metadata of the message at `offset`. None: the end of the file.
pub(super) fn message(source: &mut dyn Source, offset: u64) -> Result<Option<Message>, String> {
    let size = source.size();
    let mut head = [0; 8];
    let Some(left) = size.checked_sub(offset).and_then(|left| left.checked_sub(head.len() as u64)) else {
        return Err(truncated(size));
    };
    read(source, offset, &mut head)?;
    let (mark, length) = (&head[..4], u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
    if mark != STREAM_MAGIC {
        return Err(corrupt(&format!("no message begins at byte {offset}")));
    }
    if length == 0 {
        return Ok(None);
    }
    let damaged = || corrupt(&format!("the message at byte {offset} is not valid"));
    if u64::from(length) > left {
        return Err(truncated(size));
    }
    if length as usize > LARGEST_METADATA {
        return Err(damaged());
    }
    let mut metadata = vec![0; length as usize];
    read(source, offset + head.len() as u64, &mut metadata)?;
    let table = Table::root(&metadata).map_err(|_| damaged())?;
    let content = content(table).map_err(|_| damaged())??;
    let body = offset + head.len() as u64 + u64::from(length);
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
        1 if header.i16(0, 0)? != 0 => {
            Ok(Err("expected little-endian numbers in the Arrow file, found big-endian ones; write it again"
                .to_owned()))
        }
        1 => Ok(Ok(Content::Schema(fields(header)?))),
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
        variadic: table.vector(4, 8)?.map_or(Ok(Vec::new()), Vector::numbers)?,
        codec,
    }))
}

pub(super) fn read(source: &mut dyn Source, offset: u64, out: &mut [u8]) -> Result<(), String> {
    read_exact_at(source, offset, out).map_err(|error| read_failed(&error))
}

fn truncated(size: u64) -> String {
    format!(
        "expected more messages or an end mark in the Arrow file, found its end after {size} bytes: the file is \
         truncated; download it again"
    )
}
