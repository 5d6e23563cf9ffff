//! Megatron's files of tokens: `.bin` with the ids, `.idx` with where sequences and documents lie.
//!
//! ```text
//! .idx   MMIDIDX, two zeros; version 1 (u64); type (u8); sequences n (u64); borders of documents d (u64)
//!        lengths of sequences (i32 x n); offsets in the .bin (i64 x n); first sequences of documents (i64 x d)
//! ```
//!
//! As `indexed_dataset.py` of Megatron-LM writes it. The sequences of a document are joined.

use super::{Found, IdKind, Position, RawKind, RawRecord, Reader, Sequential, Unreadable, lost, too_long};
use crate::store::{Piece, Source};

const MAGIC: &[u8] = b"MMIDIDX\0\0";
const HEADER_BYTES: u64 = 34;

/// The documents of a file in order.
pub struct MegatronReader {
    bin: Sequential,
    index: Index,
    limit: u64,
    /// The documents that are read, and the one that is next.
    documents: std::ops::Range<u64>,
    next: u64,
    /// Where that starts in the file.
    byte: u64,
    /// A document of several sequences.
    joined: Vec<u8>,
}

/// The index beside the ids.
struct Index {
    kind: IdKind,
    sequences: u64,
    documents: u64,
    lengths: Table<4>,
    offsets: Table<8>,
    borders: Table<8>,
    /// Bytes of the ids.
    size: u64,
}

/// Integers in a file.
struct Table<const N: usize> {
    file: Sequential,
    start: u64,
}

impl<const N: usize> Table<N> {
    fn get(&mut self, index: u64) -> Result<u64, String> {
        let at = self.start + index * N as u64;
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(self.file.range(at..at + N as u64)?);
        let number = if N == 4 {
            i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into()
        } else {
            i64::from_le_bytes(bytes)
        };
        u64::try_from(number)
            .map_err(|_| format!("expected no negative number in the .idx, found {number} at byte {at}"))
    }
}

impl Index {
    /// Reads the head of an index. Three tables are read from start to end, each from a source of its own.
    fn open(mut files: [Box<dyn Source>; 3], size: u64) -> Result<Self, String> {
        let found = files[0].size();
        let damaged = |what: &str| {
            format!(
                "expected an index of Megatron in the .idx beside it, found {what}; write both files again"
            )
        };
        let mut head = Sequential::new(std::mem::replace(&mut files[0], Box::new(Vec::new())));
        let bytes = head.from(0, HEADER_BYTES as usize)?;
        if !bytes.starts_with(MAGIC) {
            return Err(damaged(if bytes.starts_with(b"TNTIDX") {
                "one of fairseq's old format"
            } else {
                "another file"
            }));
        }
        let Some(bytes) = bytes.first_chunk::<{ HEADER_BYTES as usize }>() else {
            return Err(damaged("a truncated one"));
        };
        let number = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| bytes[at + byte]));
        let (version, code, sequences, borders) = (number(9), bytes[17], number(18), number(26));
        if version != 1 {
            return Err(damaged(&format!("version {version}, not 1")));
        }
        let kind = match code {
            1 => IdKind::Uint8,
            2 => IdKind::Int8,
            3 => IdKind::Int16,
            4 => IdKind::Int32,
            5 => IdKind::Int64,
            8 => IdKind::Uint16,
            6 | 7 => return Err(damaged("floats, which are no ids")),
            _ => return Err(damaged(&format!("the type {code}, which is none of 1 to 8"))),
        };
        let expected = (u128::from(sequences) * 12) + u128::from(borders) * 8 + u128::from(HEADER_BYTES);
        if u128::from(found) == expected + u128::from(sequences) && sequences > 0 {
            return Err(damaged(
                "modes of sequences, as multimodal sets have them, whose images are not read",
            ));
        }
        if u128::from(found) != expected {
            return Err(damaged(&format!(
                "{found} bytes where {sequences} sequences and {borders} borders take {expected}"
            )));
        }
        let [_, second, third] = files;
        let offsets = HEADER_BYTES + 4 * sequences;
        let mut index = Self {
            kind,
            sequences,
            documents: borders.saturating_sub(1),
            lengths: Table { file: head, start: HEADER_BYTES },
            offsets: Table { file: Sequential::new(second), start: offsets },
            borders: Table { file: Sequential::new(third), start: offsets + 8 * sequences },
            size,
        };
        let (first, last) = match borders {
            0 => (0, 0),
            _ => (index.borders.get(0)?, index.borders.get(borders - 1)?),
        };
        if (first, last) != (0, sequences) {
            return Err(damaged(&format!(
                "documents that hold the sequences {first} to {last} of {sequences}"
            )));
        }
        Ok(index)
    }

    /// The sequences of a document.
    fn sequences_of(&mut self, document: u64) -> Result<std::ops::Range<u64>, String> {
        let (first, end) = (self.borders.get(document)?, self.borders.get(document + 1)?);
        if first > end || end > self.sequences {
            return Err(format!(
                "expected documents in order in the .idx, found one of the sequences {first} to {end}"
            ));
        }
        Ok(first..end)
    }

    /// The bytes of a sequence.
    fn bytes_of(&mut self, sequence: u64) -> Result<std::ops::Range<u64>, String> {
        let (start, length) = (self.offsets.get(sequence)?, self.lengths.get(sequence)?);
        let end = start.saturating_add(length * self.kind.size() as u64);
        if end > self.size {
            return Err(format!(
                "expected the ids of sequence {sequence} at the bytes {start} to {end}, as the .idx says, found a file of {} \
                 bytes: it is truncated, or of another .idx",
                self.size
            ));
        }
        Ok(start..end)
    }

    /// Where a document starts.
    fn start_of(&mut self, document: u64) -> Result<u64, String> {
        let first = if document < self.documents { self.borders.get(document)? } else { self.sequences };
        if first < self.sequences { self.offsets.get(first) } else { Ok(self.size) }
    }

    /// The first document that starts at a byte or behind it.
    fn first_from(&mut self, byte: u64) -> Result<u64, String> {
        let (mut least, mut most) = (0, self.documents);
        while least < most {
            let middle = least.midpoint(most);
            if self.start_of(middle)? < byte {
                least = middle + 1;
            } else {
                most = middle;
            }
        }
        Ok(least)
    }
}

impl MegatronReader {
    /// Reads ids with their index, which is given three times. Records of more than `limit` bytes are errors.
    pub fn new(
        bin: Box<dyn Source>,
        index: [Box<dyn Source>; 3],
        piece: Option<&Piece>,
        limit: u64,
    ) -> Result<Self, String> {
        let size = bin.size();
        let mut index = Index::open(index, size)?;
        let documents = match piece {
            None => 0..index.documents,
            Some(Piece { bytes, .. }) => {
                let first = if bytes.start == 0 { 0 } else { index.first_from(bytes.start)? };
                let end = if bytes.end == size { index.documents } else { index.first_from(bytes.end)? };
                first..end.max(first)
            }
        };
        let next = documents.start;
        let byte = index.start_of(next)?;
        Ok(Self { bin: Sequential::new(bin), index, limit, documents, next, byte, joined: Vec::new() })
    }

    /// The next document. None at the end.
    pub fn next(&mut self) -> Result<Option<RawRecord<'_>>, Unreadable> {
        if self.next >= self.documents.end {
            return Ok(None);
        }
        let position = self.position();
        let found = self.find().map_err(|reason| lost(position, reason))?;
        self.go_to(self.next + 1).map_err(|reason| lost(position, reason))?;
        let kind = RawKind::Ids { kind: self.index.kind, is_ended: false };
        match found {
            Document::TooLong(bytes) => Err(too_long(position, bytes, self.limit)),
            Document::One(bytes) => {
                let bytes = self.bin.range(bytes).map_err(|reason| lost(position, reason))?;
                Ok(Some(RawRecord::new(kind, position, bytes)))
            }
            Document::Joined => Ok(Some(RawRecord::new(kind, position, &self.joined))),
        }
    }

    fn go_to(&mut self, document: u64) -> Result<(), String> {
        self.byte = self.index.start_of(document)?;
        self.next = document;
        Ok(())
    }

    fn find(&mut self) -> Result<Document, String> {
        let sequences = self.index.sequences_of(self.next)?;
        let is_one = sequences.end == sequences.start + 1;
        self.joined.clear();
        let mut total = 0;
        for sequence in sequences {
            let bytes = self.index.bytes_of(sequence)?;
            total += bytes.end - bytes.start;
            if total > self.limit {
                continue;
            }
            if is_one {
                return Ok(Document::One(bytes));
            }
            self.joined.extend_from_slice(self.bin.range(bytes)?);
        }
        Ok(if total > self.limit { Document::TooLong(total) } else { Document::Joined })
    }
}

/// Where the ids of a document are.
enum Document {
    /// In these bytes of the file.
    One(std::ops::Range<u64>),
    /// In memory.
    Joined,
    /// It has so many bytes.
    TooLong(u64),
}

impl Reader for MegatronReader {
    fn position(&self) -> Position {
        Position { record: self.next - self.documents.start, byte: self.byte }
    }

    fn skip_to(&mut self, target: Position) -> Result<Found, Unreadable> {
        let count = self.documents.end - self.documents.start;
        if target.record > count {
            return Ok(Found::Elsewhere(format!("there are {count} documents")));
        }
        self.go_to(self.documents.start + target.record).map_err(|reason| lost(target, reason))?;
        Ok(if self.byte == target.byte {
            Found::Target
        } else {
            Found::Elsewhere(format!("it starts at byte {}", self.byte))
        })
    }

    fn skip_records(&mut self, number: u64) -> Result<Found, Unreadable> {
        let document = self.documents.end.min(self.documents.start.saturating_add(number));
        self.go_to(document).map_err(|reason| lost(self.position(), reason))?;
        Ok(Found::Target)
    }
}
