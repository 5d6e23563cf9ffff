//! Thrift's compact protocol, as far as headers of pages and checks of a footer need it.

/// Why bytes cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// They end too early.
    End,
    /// They are not what they should be.
    Invalid,
}

/// Structures deeper than any that Parquet has.
const DEEPEST: usize = 64;

/// Kinds of fields.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
pub(super) const STRUCT: u8 = 12;

/// The bytes that were not read.
pub(super) struct Thrift<'a> {
    rest: &'a [u8],
}

impl<'a> Thrift<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Number of bytes that were not read.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next byte.
    pub(super) fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Reads a struct. `read` gets each field's id and kind, and returns whether it read the field; others are skipped.
    pub(super) fn fields(
        &mut self,
        mut read: impl FnMut(&mut Self, i16, u8) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        let mut id = 0;
        while let Some(kind) = self.field(&mut id)? {
            if !read(self, id, kind)? {
                self.skip(kind, 0)?;
            }
        }
        Ok(())
    }

    /// An integer field of this kind.
    pub(super) fn integer(&mut self, kind: u8) -> Result<i64, Fault> {
        match kind {
            BYTE => Ok(i64::from(self.byte()?.cast_signed())),
            I16 | I32 | I64 => self.zigzag(),
            _ => Err(Fault::Invalid),
        }
    }

    /// A count or size, which is not negative.
    pub(super) fn size(&mut self, kind: u8) -> Result<u32, Fault> {
        u32::try_from(self.integer(kind)?).map_err(|_| Fault::Invalid)
    }

    /// The number of elements of a list, and their kind. Each takes at least a byte.
    pub(super) fn list(&mut self) -> Result<(usize, u8), Fault> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => usize::try_from(self.varint()?).map_err(|_| Fault::Invalid)?,
            count => count.into(),
        };
        if count > self.rest.len() { Err(Fault::End) } else { Ok((count, head & 15)) }
    }

    /// Whether a boolean field of this kind is true.
    pub(super) fn boolean(kind: u8) -> Result<bool, Fault> {
        match kind {
            TRUE => Ok(true),
            FALSE => Ok(false),
            _ => Err(Fault::Invalid),
        }
    }

    /// The kind of the next field of a struct, whose id follows `id`. None at its end.
    fn field(&mut self, id: &mut i16) -> Result<Option<u8>, Fault> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        *id = match head >> 4 {
            0 => i16::try_from(self.zigzag()?).map_err(|_| Fault::Invalid)?,
            step => id.checked_add(step.into()).ok_or(Fault::Invalid)?,
        };
        Ok(Some(head & 15))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Result<(), Fault> {
        if depth > DEEPEST {
            return Err(Fault::Invalid);
        }
        match kind {
            TRUE | FALSE => {}
            BYTE => _ = self.byte()?,
            I16 | I32 | I64 => _ = self.varint()?,
            DOUBLE => self.pass(8)?,
            BINARY => {
                let length = self.varint()?;
                self.pass(length)?;
            }
            LIST | SET => {
                let (count, kind) = self.list()?;
                for _ in 0..count {
                    self.skip_element(kind, depth)?;
                }
            }
            MAP => {
                let count = self.varint()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                for _ in 0..count {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 15, depth)?;
                }
            }
            STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth + 1)?;
                }
            }
            _ => return Err(Fault::Invalid),
        }
        Ok(())
    }

    /// Skips an element of a list or map, where a boolean is a byte.
    fn skip_element(&mut self, kind: u8, depth: usize) -> Result<(), Fault> {
        match kind {
            TRUE | FALSE => self.pass(1),
            _ => self.skip(kind, depth + 1),
        }
    }

    fn pass(&mut self, length: u64) -> Result<(), Fault> {
        let length = usize::try_from(length).map_err(|_| Fault::End)?;
        self.rest = self.rest.get(length..).ok_or(Fault::End)?;
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        let (&byte, rest) = self.rest.split_first().ok_or(Fault::End)?;
        self.rest = rest;
        Ok(byte)
    }

    fn zigzag(&mut self) -> Result<i64, Fault> {
        let number = self.varint()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn varint(&mut self) -> Result<u64, Fault> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Fault::Invalid)
    }
}
