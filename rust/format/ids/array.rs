//! Arrays of ids in one axis, as NumPy saves them, or without a head: a token ends each document.

use super::{
    Found, IdFiles, IdKind, Position, RawKind, RawRecord, Reader, Sequential, Unreadable, lost, too_long,
};
use crate::store::{Piece, Source};

/// The first bytes of a file that NumPy has saved.
pub const MAGIC: &[u8] = b"\x93NUMPY";
/// The most bytes of the head that NumPy reads without being told to.
const LONGEST_HEAD: usize = 10_000;

/// The documents of a file in order.
pub struct ArrayReader {
    file: Sequential,
    kind: IdKind,
    border: u32,
    limit: u64,
    position: Position,
    /// The first document starts there.
    start: u64,
    /// Documents that start behind this byte belong to the next piece.
    piece_end: u64,
    end: u64,
    document: Vec<u8>,
}

impl ArrayReader {
    /// Reads a file, or the documents that start in a piece of it. Records of more than `limit` bytes are errors.
    pub fn new(
        source: Box<dyn Source>,
        piece: Option<&Piece>,
        options: &IdFiles,
        limit: u64,
    ) -> Result<Self, String> {
        let mut file = Sequential::new(source);
        let size = file.size();
        let (kind, ids) = array(&mut file, options.kind)?;
        let Some(border) = options.border else {
            return Err(
                "expected eos=, the token that ends each document of such a file, found none".to_owned()
            );
        };
        let mut reader = Self {
            file,
            kind,
            border,
            limit,
            position: Position { record: 0, byte: ids.start },
            start: ids.start,
            piece_end: size,
            end: ids.end,
            document: Vec::new(),
        };
        if let Some(Piece { bytes, .. }) = piece {
            reader.piece_end = bytes.end;
            if bytes.start > ids.start {
                // The document that starts at the first number, or behind the first border from the one before it on.
                let width = kind.size() as u64;
                let first = ids.start + (bytes.start - ids.start).div_ceil(width) * width;
                reader.start = reader.pass(first - width, false)?;
                reader.position.byte = reader.start;
            }
        }
        Ok(reader)
    }

    /// Where the first border from a byte on ends; else the end. The bytes up to there become the document if they are to be
    /// kept, as far as it may be read.
    fn pass(&mut self, mut from: u64, is_kept: bool) -> Result<u64, String> {
        let width = self.kind.size();
        let mut wanted = [0; 8];
        wanted[..4].copy_from_slice(&self.border.to_le_bytes());
        // No number of a smaller type is the border.
        let has_border = wanted[width..].iter().all(|byte| *byte == 0);
        self.document.clear();
        while from < self.end {
            let left = usize::try_from(self.end - from).unwrap_or(usize::MAX);
            let bytes = self.file.from(from, width)?;
            let bytes = &bytes[..bytes.len().min(left) / width * width];
            if bytes.is_empty() {
                return Err(format!(
                    "expected numbers up to byte {}, found fewer: it is truncated",
                    self.end
                ));
            }
            let found = find(bytes, &wanted[..width]).filter(|_| has_border);
            let length = found.map_or(bytes.len(), |index| (index + 1) * width);
            if is_kept && (self.document.len() as u64) <= self.limit {
                self.document.extend_from_slice(&bytes[..length]);
            }
            from += length as u64;
            if found.is_some() {
                break;
            }
        }
        Ok(from)
    }

    /// The next document. None at the end.
    pub fn next(&mut self) -> Result<Option<RawRecord<'_>>, Unreadable> {
        let position = self.position;
        if position.byte >= self.end || position.byte >= self.piece_end {
            return Ok(None);
        }
        let end = self.pass(position.byte, true).map_err(|reason| lost(position, reason))?;
        self.position = Position { record: position.record + 1, byte: end };
        let length = end - position.byte;
        if length > self.limit {
            return Err(too_long(position, length, self.limit));
        }
        // The border is not added again, nor to a rest without one.
        let kind = RawKind::Ids { kind: self.kind, is_ended: true };
        Ok(Some(RawRecord::new(kind, position, &self.document)))
    }
}

impl Reader for ArrayReader {
    fn position(&self) -> Position {
        self.position
    }

    fn skip_to(&mut self, target: Position) -> Result<Found, Unreadable> {
        let width = self.kind.size() as u64;
        let is_start = target.byte == self.start
            || target.byte >= self.start + width
                && target.byte <= self.end
                && (target.byte - self.start).is_multiple_of(width)
                && self.pass(target.byte - width, false).map_err(|reason| lost(target, reason))?
                    == target.byte;
        if !is_start {
            return Ok(Found::Elsewhere("no document starts there".to_owned()));
        }
        self.position = target;
        Ok(Found::Target)
    }

    fn skip_records(&mut self, number: u64) -> Result<Found, Unreadable> {
        while self.position.record < number && self.position.byte < self.end.min(self.piece_end) {
            let position = self.position;
            let end = self.pass(position.byte, false).map_err(|reason| lost(position, reason))?;
            self.position = Position { record: position.record + 1, byte: end };
        }
        Ok(Found::Target)
    }
}

/// The index of the first number that equals `wanted`.
fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    match wanted.len() {
        1 => memchr::memchr(wanted[0], bytes),
        2 => position::<2>(bytes, wanted),
        4 => position::<4>(bytes, wanted),
        _ => position::<8>(bytes, wanted),
    }
}

fn position<const N: usize>(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let wanted = wanted.first_chunk::<N>()?;
    bytes.as_chunks().0.iter().position(|number| number == wanted)
}

/// The type of the numbers of a file, and the bytes that they lie in.
fn array(file: &mut Sequential, given: Option<IdKind>) -> Result<(IdKind, std::ops::Range<u64>), String> {
    let size = file.size();
    let head = file.from(0, LONGEST_HEAD)?;
    if !head.starts_with(MAGIC) {
        let Some(kind) = given else {
            return Err("expected an array that NumPy has saved, found another file; name the type of numbers without a head \
                        with dtype= of gm.Tokens"
                .to_owned());
        };
        if !size.is_multiple_of(kind.size() as u64) {
            return Err(format!(
                "expected numbers of {} bytes, found {size} bytes: it is truncated, or of another type",
                kind.size()
            ));
        }
        return Ok((kind, 0..size));
    }
    let (kind, start, count) = numpy_head(head)?;
    if let Some(given) = given.filter(|given| *given != kind) {
        let (expected, found) = (given.name(), kind.name());
        return Err(format!(
            "expected {expected}, as dtype= of gm.Tokens says, found {found}; leave dtype= out"
        ));
    }
    let end = count.checked_mul(kind.size() as u64).and_then(|bytes| bytes.checked_add(start));
    if end != Some(size) {
        return Err(format!(
            "expected {count} numbers from byte {start} on, found a file of {size} bytes: it is truncated"
        ));
    }
    Ok((kind, start..size))
}

/// Type, start and number of the elements of an array, by the head that NumPy writes: magic, version, length, and the
/// text of a dict, `{'descr': '<u2', 'fortran_order': False, 'shape': (12,), }`.
fn numpy_head(head: &[u8]) -> Result<(IdKind, u64, u64), String> {
    let damaged = || {
        "expected the head of an array that NumPy has saved, found a damaged one; save it again".to_owned()
    };
    let (length, start) = match head.get(6) {
        Some(1) => (usize::from(u16::from_le_bytes([head[8], head[9]])), 10),
        Some(2 | 3) => (
            head.get(8..12)
                .map_or(0, |four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]) as usize),
            12,
        ),
        _ => return Err(damaged()),
    };
    let text = head.get(start..start + length).ok_or_else(damaged)?;
    let text = String::from_utf8_lossy(text);
    let value = |key: &str| {
        let rest = text.split_once(&format!("'{key}':"))?.1.trim_start();
        Some(rest)
    };
    let descr =
        value("descr").and_then(|rest| rest.strip_prefix('\'')?.split('\'').next()).ok_or_else(damaged)?;
    let kind = match descr {
        "|u1" => IdKind::Uint8,
        "|i1" => IdKind::Int8,
        "<u2" => IdKind::Uint16,
        "<i2" => IdKind::Int16,
        "<u4" => IdKind::Uint32,
        "<i4" => IdKind::Int32,
        "<u8" => IdKind::Uint64,
        "<i8" => IdKind::Int64,
        other => {
            return Err(format!(
                "expected an array of integers, the lowest byte first, found the type {other:?}; save it as uint32"
            ));
        }
    };
    let shape =
        value("shape").and_then(|rest| rest.strip_prefix('(')?.split(')').next()).ok_or_else(damaged)?;
    let axes: Vec<&str> = shape.split(',').map(str::trim).filter(|axis| !axis.is_empty()).collect();
    let [count] = *axes else {
        return Err(format!("expected an array of one axis, found the shape ({shape}); save it flat"));
    };
    let count = count.trim_end_matches('L').parse().map_err(|_| damaged())?;
    Ok((kind, (start + length) as u64, count))
}
