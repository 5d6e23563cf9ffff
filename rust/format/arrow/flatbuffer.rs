//! Tables of the flatbuffer format, as far as Arrow's metadata need them. Each access is checked.

/// The bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damaged;

type Result<T> = std::result::Result<T, Damaged>;

/// A table; its fields are numbered as in the schema of the format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A vector: where its elements begin, and how many there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vector<'a> {
    bytes: &'a [u8],
    at: usize,
    pub(super) length: usize,
}

impl<'a> Table<'a> {
    /// The table that a whole buffer holds.
    pub(super) fn root(bytes: &'a [u8]) -> Result<Self> {
        Ok(Self { bytes, at: follow(bytes, 0)? })
    }

    pub(super) fn boolean(self, field: usize) -> Result<bool> {
        Ok(self.u8(field)? != 0)
    }

    pub(super) fn u8(self, field: usize) -> Result<u8> {
        self.number(field, [0], u8::from_le_bytes)
    }

    pub(super) fn i16(self, field: usize, default: i16) -> Result<i16> {
        self.number(field, default.to_le_bytes(), i16::from_le_bytes)
    }

    pub(super) fn i32(self, field: usize, default: i32) -> Result<i32> {
        self.number(field, default.to_le_bytes(), i32::from_le_bytes)
    }

    pub(super) fn i64(self, field: usize) -> Result<i64> {
        self.number(field, [0; 8], i64::from_le_bytes)
    }

    pub(super) fn table(self, field: usize) -> Result<Option<Self>> {
        let Some(at) = self.field(field)? else { return Ok(None) };
        Ok(Some(Self { bytes: self.bytes, at: follow(self.bytes, at)? }))
    }

    pub(super) fn text(self, field: usize) -> Result<Option<&'a str>> {
        let Some(vector) = self.vector(field, 1)? else { return Ok(None) };
        let bytes = &self.bytes[vector.at..vector.at + vector.length];
        std::str::from_utf8(bytes).map(Some).map_err(|_| Damaged)
    }

    /// A vector whose elements have `size` bytes.
    pub(super) fn vector(self, field: usize, size: usize) -> Result<Option<Vector<'a>>> {
        let Some(at) = self.field(field)? else { return Ok(None) };
        let start = follow(self.bytes, at)?;
        let length = u32::from_le_bytes(read(self.bytes, start)?) as usize;
        let at = start + 4;
        let bytes = length.checked_mul(size).ok_or(Damaged)?;
        if bytes > self.bytes.len() - at {
            return Err(Damaged);
        }
        Ok(Some(Vector { bytes: self.bytes, at, length }))
    }

    fn number<T, const N: usize>(self, field: usize, default: [u8; N], of: fn([u8; N]) -> T) -> Result<T> {
        Ok(of(match self.field(field)? {
            Some(at) => read(self.bytes, at)?,
            None => default,
        }))
    }

    /// Where a field is. None: it has its default.
    fn field(self, field: usize) -> Result<Option<usize>> {
        let back = i64::from(i32::from_le_bytes(read(self.bytes, self.at)?));
        let table = usize::try_from(self.at as i64 - back).map_err(|_| Damaged)?;
        let slot = 4 + 2 * field;
        if slot + 2 > usize::from(u16::from_le_bytes(read(self.bytes, table)?)) {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(read(self.bytes, table + slot)?);
        Ok((offset > 0).then_some(self.at + usize::from(offset)))
    }
}

impl<'a> Vector<'a> {
    /// The numbers of 8 bytes with which elements of `size` bytes begin.
    pub(super) fn numbers(self, size: usize) -> Result<Vec<i64>> {
        (0..self.length).map(|index| self.i64(size * index)).collect()
    }

    /// Elements of two numbers of 8 bytes.
    pub(super) fn pairs(self) -> Result<Vec<(i64, i64)>> {
        (0..self.length).map(|index| Ok((self.i64(16 * index)?, self.i64(16 * index + 8)?))).collect()
    }

    /// Elements that are tables.
    pub(super) fn tables(self) -> impl Iterator<Item = Result<Table<'a>>> {
        let Self { bytes, at, length } = self;
        (0..length).map(move |index| Ok(Table { bytes, at: follow(bytes, at + 4 * index)? }))
    }

    fn i64(self, offset: usize) -> Result<i64> {
        Ok(i64::from_le_bytes(read(self.bytes, self.at + offset)?))
    }
}

/// The position that the offset at `at` points to.
fn follow(bytes: &[u8], at: usize) -> Result<usize> {
    let to = at + u32::from_le_bytes(read(bytes, at)?) as usize;
    if to < bytes.len() { Ok(to) } else { Err(Damaged) }
}

fn read<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Damaged)
}
