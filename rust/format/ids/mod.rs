//! Files of ready ids: those of Megatron, which have an index beside them, and arrays of NumPy, or bare numbers, whose
//! documents end with a token.
//!
//! A record is a document: its ids as the file holds them.

mod array;
mod megatron;

use std::ops::Range;

use super::reader::{Found, Reader, Unreadable};
use super::{AfterError, Position, RawKind, RawRecord};
use crate::codec::read_failed;
use crate::store::{Source, read_exact_at};

pub(super) use array::{ArrayReader, MAGIC};
pub(super) use megatron::MegatronReader;

/// Bytes requested at once.
const CHUNK_BYTES: usize = 256 << 10;

/// How files of ids are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdFiles {
    /// The type of the numbers of files that do not say it.
    pub kind: Option<IdKind>,
    /// The token that ends a document in files without an index.
    pub border: Option<u32>,
    /// Whether nothing but the ids is wanted, which is all that files of ids have.
    pub are_alone: bool,
}

/// The type of the numbers in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdKind {
    /// One byte.
    Uint8,
    /// One byte with a sign.
    Int8,
    /// Two bytes, the lowest first, as all.
    Uint16,
    /// Two bytes with a sign.
    Int16,
    /// Four bytes.
    Uint32,
    /// Four bytes with a sign.
    Int32,
    /// Eight bytes.
    Uint64,
    /// Eight bytes with a sign.
    Int64,
}

impl IdKind {
    /// All of them, with their names in NumPy.
    pub const ALL: [(&'static str, Self); 8] = [
        ("uint8", Self::Uint8),
        ("int8", Self::Int8),
        ("uint16", Self::Uint16),
        ("int16", Self::Int16),
        ("uint32", Self::Uint32),
        ("int32", Self::Int32),
        ("uint64", Self::Uint64),
        ("int64", Self::Int64),
    ];

    /// Its name in NumPy.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Bytes of a number.
    pub const fn size(self) -> usize {
        match self {
            Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 => 2,
            Self::Uint32 | Self::Int32 => 4,
            Self::Uint64 | Self::Int64 => 8,
        }
    }

    /// Appends the numbers that bytes hold as ids. The error is the index of one that is none, and its value.
    pub fn ids(self, bytes: &[u8], out: &mut Vec<u32>) -> Result<(), (usize, i128)> {
        match self {
            Self::Uint8 => all(bytes, |[byte]| byte, out),
            Self::Int8 => all(bytes, i8::from_le_bytes, out),
            Self::Uint16 => all(bytes, u16::from_le_bytes, out),
            Self::Int16 => all(bytes, i16::from_le_bytes, out),
            Self::Uint32 => all(bytes, u32::from_le_bytes, out),
            Self::Int32 => all(bytes, i32::from_le_bytes, out),
            Self::Uint64 => all(bytes, u64::from_le_bytes, out),
            Self::Int64 => all(bytes, i64::from_le_bytes, out),
        }
    }
}

/// See [`IdKind::ids`].
fn all<const N: usize, T: Copy + Into<i128> + TryInto<i32>>(
    bytes: &[u8],
    read: impl Fn([u8; N]) -> T,
    out: &mut Vec<u32>,
) -> Result<(), (usize, i128)> {
    let (numbers, _) = bytes.as_chunks::<N>();
    let before = out.len();
    out.resize(before + numbers.len(), 0);
    let mut is_id = true;
    for (id, number) in out[before..].iter_mut().zip(numbers) {
        let found = read(*number).try_into().unwrap_or(-1);
        is_id &= found >= 0;
        *id = found as u32;
    }
    if is_id {
        return Ok(());
    }
    let is_no_id = |number: &i128| !(0..=i128::from(i32::MAX)).contains(number);
    let values = numbers.iter().map(|number| read(*number).into());
    Err(values.enumerate().find(|(_, number)| is_no_id(number)).unwrap_or_default())
}

/// A file that is read from start to end, in chunks.
struct Sequential {
    source: Box<dyn Source>,
    chunk: Vec<u8>,
    /// The offset in the file of the chunk.
    start: u64,
}

impl Sequential {
    fn new(source: Box<dyn Source>) -> Self {
        Self { source, chunk: Vec::new(), start: 0 }
    }

    fn size(&self) -> u64 {
        self.source.size()
    }

    /// The bytes from an offset on: a chunk of them, or as many as are asked for, or those that the file has.
    fn from(&mut self, offset: u64, least: usize) -> Result<&[u8], String> {
        let held = self.start..self.start + self.chunk.len() as u64;
        let end = (offset + least as u64).min(self.size());
        if !held.contains(&offset) || held.end < end {
            let left = usize::try_from(self.size().saturating_sub(offset)).unwrap_or(usize::MAX);
            self.chunk.resize(left.min(least.max(CHUNK_BYTES)), 0);
            self.start = offset;
            read_exact_at(&mut *self.source, offset, &mut self.chunk).map_err(|error| {
                self.chunk.clear();
                read_failed(&error)
            })?;
        }
        Ok(&self.chunk[(offset - self.start).min(self.chunk.len() as u64) as usize..])
    }

    /// The bytes of a range of the file.
    fn range(&mut self, bytes: Range<u64>) -> Result<&[u8], String> {
        let length = (bytes.end - bytes.start) as usize;
        let found = self.from(bytes.start, length)?;
        found
            .get(..length)
            .ok_or_else(|| format!("expected {} bytes, found fewer: it is truncated", bytes.end))
    }
}

/// The error of a file that cannot be read any further.
fn lost(position: Position, reason: String) -> Unreadable {
    Unreadable { position, rest: AfterError::Lost, reason }
}

/// The error of a document that is longer than what is accepted.
fn too_long(position: Position, bytes: u64, limit: u64) -> Unreadable {
    let reason = format!(
        "expected a document of at most {limit} bytes, found one of {bytes}; raise max_document_bytes= to read it"
    );
    Unreadable { position, rest: AfterError::Readable, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_integers_of_31_bits() {
        let read = |kind: IdKind, bytes: &[u8]| {
            let mut ids = Vec::new();
            kind.ids(bytes, &mut ids).map(|()| ids)
        };
        assert_eq!(read(IdKind::Uint8, &[0, 255]), Ok(vec![0, 255]));
        assert_eq!(read(IdKind::Int8, &[0, 255]), Err((1, -1)));
        assert_eq!(read(IdKind::Uint16, &[1, 0, 255, 255]), Ok(vec![1, 65535]));
        assert_eq!(read(IdKind::Int16, &[0, 128]), Err((0, -32768)));
        assert_eq!(read(IdKind::Int32, &[255, 255, 255, 127]), Ok(vec![i32::MAX as u32]));
        assert_eq!(read(IdKind::Uint32, &[0, 0, 0, 0, 0, 0, 0, 128]), Err((1, 1 << 31)));
        assert_eq!(read(IdKind::Int64, &[7, 0, 0, 0, 0, 0, 0, 0]), Ok(vec![7]));
        assert_eq!(read(IdKind::Uint64, &[255; 8]), Err((0, u64::MAX.into())));
    }
}
