//! The values of a column in a batch.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::flatbuffer::Damaged;
use super::message::{BatchHeader, read};
use super::schema::{Field, Integer, Kind};
use super::{corrupt, too_large};
use crate::codec::{BlockCodec, BlockDecoder};
use crate::store::Source;

/// The values of a column, or of a part of one.
pub(super) struct Array {
    length: usize,
    /// A bit for each value: whether it is not null. None: none is.
    validity: Option<Vec<u8>>,
    pub(super) data: Data,
}

pub(super) enum Data {
    /// Nothing but nulls.
    Null,
    Bits(Vec<u8>),
    /// Values of one size.
    Fixed(Vec<u8>),
    Bytes {
        offsets: Offsets,
        values: Window,
    },
    Views {
        views: Vec<u8>,
        buffers: Vec<Window>,
    },
    List {
        offsets: Offsets,
        items: Box<Array>,
    },
    FixedList {
        size: usize,
        items: Box<Array>,
    },
    Struct(Vec<Array>),
    Indices {
        indices: Vec<u8>,
        kind: Integer,
        dictionary: Dictionary,
    },
}

/// Where each value begins, and the last one ends.
pub(super) struct Offsets {
    bytes: Vec<u8>,
    width: usize,
}

/// The values that indices stand for. Later parts continue earlier ones.
pub(super) type Dictionary = Vec<Arc<Array>>;

/// The source of the data that arrays are loaded from.
pub(super) struct Loader<'a> {
    pub(super) source: &'a mut dyn Source,
    pub(super) decoder: &'a mut BlockDecoder,
    pub(super) header: &'a BatchHeader,
    /// The body in the file.
    pub(super) body: Range<u64>,
    pub(super) dictionaries: &'a BTreeMap<i64, Dictionary>,
    /// How many bytes may still be loaded, of so many.
    pub(super) left: &'a mut u64,
    pub(super) limit: u64,
    /// Whether values are read row by row: not those of dictionaries, which any row may need.
    pub(super) by_rows: bool,
    /// The next field's node, buffer and number of buffers.
    pub(super) next: FieldStart,
}

/// Where a field begins among the nodes and buffers of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FieldStart {
    node: usize,
    buffer: usize,
    variadic: usize,
}

impl FieldStart {
    /// How many values the field here has.
    pub(super) fn length(self, header: &BatchHeader) -> Option<u64> {
        u64::try_from(header.nodes.get(self.node)?.0).ok()
    }

    /// Continues behind a field.
    pub(super) fn pass(&mut self, field: &Field, header: &BatchHeader) -> Result<(), Damaged> {
        self.node += 1;
        if field.dictionary.is_some() {
            self.buffer += 2;
            return Ok(());
        }
        self.buffer += match field.kind {
            Kind::Null => 0,

            Kind::FixedList(_) | Kind::Struct => 1,
            Kind::Bytes { .. } => 3,
            Kind::View { .. } => {
                let buffers = header.variadic.get(self.variadic).ok_or(Damaged)?;
                self.variadic += 1;
                2 + usize::try_from(*buffers)
                    .ok()
                    .filter(|&buffers| buffers <= header.buffers.len())
                    .ok_or(Damaged)?
            }
            Kind::Other { buffers, .. } => buffers,
            _ => 2,
        };
        field.children.iter().try_for_each(|child| self.pass(child, header))
    }
}

impl Loader<'_> {
    /// Loads the next field.
    pub(super) fn load(&mut self, field: &Field) -> Result<Array, String> {
        let damaged = || corrupt("the buffers of a record batch do not fit its schema");
        let node = self.header.nodes.get(self.next.node).copied();
        let (length, nulls) = node.ok_or_else(damaged)?;
        let length = usize::try_from(length).map_err(|_| damaged())?;
        if let (Kind::Other { name, .. }, None) = (field.kind, field.dictionary) {
            return Err(format!(
                "expected a column of a type that JSON can say, found {:?} of type {name}; leave it out, or write it as \
                 another type",
                field.name
            ));
        }
        self.next.node += 1;
        let has_values = field.kind != Kind::Null || field.dictionary.is_some();
        let validity = if has_values { self.validity(length, nulls)? } else { None };
        let data = self.data(field, length)?;
        let array = Array { length, validity, data };
        if array.is_complete(field) { Ok(array) } else { Err(damaged()) }
    }

    fn validity(&mut self, length: usize, nulls: i64) -> Result<Option<Vec<u8>>, String> {
        if nulls == 0 || length == 0 {
            self.next.buffer += 1;
            return Ok(None);
        }
        let bits = self.buffer()?;
        if bits.len() < length.div_ceil(8) {
            return Err(corrupt("a column has fewer bits than values"));
        }
        Ok(Some(bits))
    }

    fn data(&mut self, field: &Field, length: usize) -> Result<Data, String> {
        if let Some((id, kind)) = field.dictionary {
            let indices = self.buffer()?;
            let dictionary = self.dictionaries.get(&id).cloned().unwrap_or_default();
            if dictionary.is_empty() && length > 0 {
                return Err(corrupt(&format!("it has no dictionary {id} before the batch that needs it")));
            }
            return Ok(Data::Indices { indices, kind, dictionary });
        }
        Ok(match field.kind {
            Kind::Null | Kind::Other { .. } => Data::Null,
            Kind::Boolean => Data::Bits(self.buffer()?),
            Kind::Bytes { offset, .. } => {
                let offsets = Offsets { bytes: self.buffer()?, width: offset };
                Data::Bytes { offsets, values: self.window()? }
            }
            Kind::View { .. } => {
                let views = self.buffer()?;
                let buffers = self.header.variadic.get(self.next.variadic).copied().unwrap_or_default();
                self.next.variadic += 1;
                let buffers = (0..buffers).map(|_| self.window()).collect::<Result<_, _>>()?;
                Data::Views { views, buffers }
            }
            Kind::List(_) | Kind::Map => {
                let width = if let Kind::List(width) = field.kind { width } else { 4 };
                let offsets = Offsets { bytes: self.buffer()?, width };
                Data::List { offsets, items: Box::new(self.items(&field.children[0])?) }
            }
            Kind::FixedList(size) => {
                Data::FixedList { size, items: Box::new(self.items(&field.children[0])?) }
            }
            Kind::Struct => {
                Data::Struct(field.children.iter().map(|child| self.load(child)).collect::<Result<_, _>>()?)
            }
            _ => Data::Fixed(self.buffer()?),
        })
    }

    /// Loads the items of lists, those of a row being many.
    fn items(&mut self, field: &Field) -> Result<Array, String> {
        // The values of several views lie anywhere.
        let by_rows = self.by_rows;
        self.by_rows &= !field.has_views();
        let items = self.load(field);
        self.by_rows = by_rows;
        items
    }

    /// The next buffer, of values: all of it, or, of a large one that is not compressed, what rows will need.
    fn window(&mut self) -> Result<Window, String> {
        let (start, length) = self.place()?;
        if self.header.codec.is_some() || !self.by_rows || length <= WINDOW_BYTES {
            return Ok(Window { start, length, first: 0, bytes: self.content(start, length)? });
        }
        Ok(Window { start, length, first: 0, bytes: Vec::new() })
    }

    /// Reads the next buffer, and inflates it.
    fn buffer(&mut self) -> Result<Vec<u8>, String> {
        let (start, length) = self.place()?;
        self.content(start, length)
    }

    /// Start and length of the next buffer in the file.
    fn place(&mut self) -> Result<(u64, u64), String> {
        let damaged = || corrupt("a buffer of a record batch does not lie in its body");
        let &(offset, length) = self.header.buffers.get(self.next.buffer).ok_or_else(damaged)?;
        self.next.buffer += 1;
        let start = u64::try_from(offset).ok().and_then(|offset| self.body.start.checked_add(offset));
        let start = start.ok_or_else(damaged)?;
        let length = u64::try_from(length).map_err(|_| damaged())?;
        if start.checked_add(length).is_none_or(|end| end > self.body.end) {
            return Err(damaged());
        }
        Ok((start, length))
    }

    fn content(&mut self, start: u64, length: u64) -> Result<Vec<u8>, String> {
        match self.header.codec {
            Some(codec) if length > 0 => self.inflated(codec, start, length),
            _ => self.raw(start, length),
        }
    }

    fn raw(&mut self, start: u64, length: u64) -> Result<Vec<u8>, String> {
        self.take(length)?;
        let mut bytes = vec![0; length as usize];
        read(self.source, start, &mut bytes)?;
        Ok(bytes)
    }

    fn inflated(&mut self, codec: BlockCodec, start: u64, length: u64) -> Result<Vec<u8>, String> {
        let damaged = || corrupt(&format!("the buffer at byte {start} is not valid {codec:?} data"));
        let mut prefix = [0; 8];
        let compressed = length.checked_sub(prefix.len() as u64).ok_or_else(damaged)?;
        read(self.source, start, &mut prefix)?;
        let start = start + prefix.len() as u64;
        // Minus one: the buffer was not compressed, since that would not have made it smaller.
        let inflated = match i64::from_le_bytes(prefix) {
            -1 => return self.raw(start, compressed),
            inflated => u64::try_from(inflated).map_err(|_| damaged())?,
        };
        self.take(inflated)?;
        self.take(compressed)?;
        let mut block = vec![0; compressed as usize];
        read(self.source, start, &mut block)?;
        let mut out = vec![0; inflated as usize];
        self.decoder.inflate(codec, &block, &mut out).ok_or_else(damaged)?;
        *self.left += compressed;
        Ok(out)
    }

    fn take(&mut self, bytes: u64) -> Result<(), String> {
        *self.left = self.left.checked_sub(bytes).ok_or_else(|| too_large(self.limit, self.body.start))?;
        Ok(())
    }
}

/// The part of a buffer of values that was read.
pub(super) struct Window {
    /// Where the buffer begins in the file, and its length.
    start: u64,
    length: u64,
    /// The offset in the buffer of the bytes that were read.
    first: u64,
    bytes: Vec<u8>,
}

/// Why the values of a row cannot be read.
pub(super) enum Unread {
    Damaged,
    /// They have so many bytes, which is too much.
    Long(u64),
    Failed(String),
}

impl From<Damaged> for Unread {
    fn from(_: Damaged) -> Self {
        Self::Damaged
    }
}

impl Window {
    fn get(&self, range: Range<usize>) -> Result<&[u8], Damaged> {
        // A buffer that is inflated has all bytes.
        let first = usize::try_from(self.first).map_err(|_| Damaged)?;
        let start = range.start.checked_sub(first).ok_or(Damaged)?;
        self.bytes.get(start..).and_then(|rest| rest.get(..range.len())).ok_or(Damaged)
    }

    /// Reads a range, unless it is there, and what follows it.
    fn reach(&mut self, source: &mut dyn Source, range: Range<usize>, limit: u64) -> Result<(), Unread> {
        if self.get(range.clone()).is_ok() {
            return Ok(());
        }
        let (start, end) = (range.start as u64, range.end as u64);
        if end > self.length {
            return Err(Unread::Damaged);
        }
        if end - start > limit {
            return Err(Unread::Long(end - start));
        }
        let end = end.max(start + WINDOW_BYTES).min(self.length);
        self.bytes.clear();
        self.bytes.shrink_to(WINDOW_BYTES as usize);
        self.bytes.resize((end - start) as usize, 0);
        self.first = start;
        read(source, self.start + start, &mut self.bytes).map_err(|reason| {
            self.bytes.clear();
            Unread::Failed(reason)
        })
    }
}

impl Array {
    /// Reads the values of rows, of which a row may have `limit` bytes, where they were not loaded.
    pub(super) fn reach(
        &mut self,
        source: &mut dyn Source,
        rows: Range<usize>,
        limit: u64,
    ) -> Result<(), Unread> {
        if rows.is_empty() || rows.len() == 1 && self.is_null(rows.start) {
            return Ok(());
        }
        match &mut self.data {
            Data::Bytes { offsets, values } => {
                let range = offsets.range(rows.start)?.start..offsets.range(rows.end - 1)?.end;
                if range.is_empty() { Ok(()) } else { values.reach(source, range, limit) }
            }
            Data::Views { views, buffers } if rows.len() == 1 => match place_of_view(views, rows.start)? {
                (length, Some((buffer, start))) => {
                    let end = start.checked_add(length).ok_or(Damaged)?;
                    buffers.get_mut(buffer).ok_or(Damaged)?.reach(source, start..end, limit)
                }
                _ => Ok(()),
            },
            Data::List { offsets, items } => {
                let range = offsets.range(rows.start)?.start..offsets.range(rows.end - 1)?.end;
                items.reach(source, range, limit)
            }
            Data::FixedList { size, items } => {
                let at = |row: usize| row.checked_mul(*size).ok_or(Damaged);
                items.reach(source, at(rows.start)?..at(rows.end)?, limit)
            }
            Data::Struct(members) => {
                members.iter_mut().try_for_each(|member| member.reach(source, rows.clone(), limit))
            }
            _ => Ok(()),
        }
    }

    /// Whether it has as many values as its length says.
    fn is_complete(&self, field: &Field) -> bool {
        let length = self.length;
        let fits =
            |bytes: &[u8], width: usize| length.checked_mul(width).is_some_and(|size| size <= bytes.len());
        match &self.data {
            Data::Null | Data::Struct(_) => true,
            Data::Bits(bits) => length.div_ceil(8) <= bits.len(),
            Data::Fixed(bytes) => fits(bytes, width(field.kind)),
            Data::Indices { indices, kind, .. } => fits(indices, kind.width),
            Data::Bytes { offsets, .. } | Data::List { offsets, .. } => {
                length == 0
                    || (length + 1).checked_mul(offsets.width).is_some_and(|size| size <= offsets.bytes.len())
            }
            Data::Views { views, .. } => fits(views, VIEW_BYTES),
            Data::FixedList { size, items } => length.checked_mul(*size) == Some(items.length),
        }
    }

    /// Whether it has a value at an index that is null.
    pub(super) fn is_null(&self, index: usize) -> bool {
        let bit = |bits: &Vec<u8>| bits.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1);
        matches!(self.data, Data::Null) || !self.validity.as_ref().is_none_or(bit)
    }

    /// The boolean at an index.
    pub(super) fn bit(bits: &[u8], index: usize) -> Result<bool, Damaged> {
        bits.get(index / 8).map(|byte| byte >> (index % 8) & 1 == 1).ok_or(Damaged)
    }

    /// The bytes of the value at an index. None: it is null.
    pub(super) fn bytes(&self, index: usize) -> Result<Option<&[u8]>, Damaged> {
        if self.is_null(index) {
            return Ok(None);
        }
        match &self.data {
            Data::Bytes { offsets, values } => values.get(offsets.range(index)?).map(Some),
            Data::Views { views, buffers } => view(views, buffers, index).map(Some),
            Data::Indices { .. } => {
                // There are no dictionaries of dictionaries.
                let (array, index) = self.resolve(index)?;
                array.bytes(index)
            }
            _ => Err(Damaged),
        }
    }

    /// The value of a dictionary that the index at `index` stands for.
    pub(super) fn resolve(&self, index: usize) -> Result<(&Array, usize), Damaged> {
        let Data::Indices { indices, kind, dictionary } = &self.data else { return Err(Damaged) };
        let number = integer(indices, *kind, index)?;
        let mut left = usize::try_from(number).map_err(|_| Damaged)?;
        for part in dictionary {
            if left < part.length {
                return Ok((part, left));
            }
            left -= part.length;
        }
        Err(Damaged)
    }
}

impl Offsets {
    /// The range of a value.
    pub(super) fn range(&self, index: usize) -> Result<Range<usize>, Damaged> {
        let kind = Integer { width: self.width, is_signed: true };
        let at = |index| usize::try_from(integer(&self.bytes, kind, index)?).map_err(|_| Damaged);
        let range = at(index)?..at(index + 1)?;
        if range.start <= range.end { Ok(range) } else { Err(Damaged) }
    }
}

/// The bytes of values that are read at once, where not all of a buffer are.
const WINDOW_BYTES: u64 = 8 << 20;
const VIEW_BYTES: usize = 16;
/// The longest value that lies in its view.
const LONGEST_INLINE: usize = 12;

fn view<'a>(views: &'a [u8], buffers: &'a [Window], index: usize) -> Result<&'a [u8], Damaged> {
    let (length, place) = place_of_view(views, index)?;
    match place {
        None => slot(views, VIEW_BYTES, index)?.get(4..4 + length).ok_or(Damaged),
        Some((buffer, start)) => {
            let end = start.checked_add(length).ok_or(Damaged)?;
            buffers.get(buffer).ok_or(Damaged)?.get(start..end)
        }
    }
}

/// The length of a value, and the buffer and offset of one that does not lie in its view.
fn place_of_view(views: &[u8], index: usize) -> Result<(usize, Option<(usize, usize)>), Damaged> {
    let view = slot(views, VIEW_BYTES, index)?;
    let number = |at: usize| {
        let bytes = view.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Damaged)?;
        usize::try_from(i32::from_le_bytes(*bytes)).map_err(|_| Damaged)
    };
    let length = number(0)?;
    Ok((length, if length <= LONGEST_INLINE { None } else { Some((number(8)?, number(12)?)) }))
}

/// The bytes of a value of one size.
pub(super) fn slot(bytes: &[u8], width: usize, index: usize) -> Result<&[u8], Damaged> {
    let start = index.checked_mul(width).ok_or(Damaged)?;
    bytes.get(start..).and_then(|rest| rest.get(..width)).ok_or(Damaged)
}

/// The integer at an index.
pub(super) fn integer(bytes: &[u8], kind: Integer, index: usize) -> Result<i128, Damaged> {
    let slot = slot(bytes, kind.width, index)?;
    let is_negative = kind.is_signed && slot.last().is_some_and(|&byte| byte >= 0x80);
    let mut all = [if is_negative { 0xff } else { 0 }; 16];
    all.get_mut(..slot.len()).ok_or(Damaged)?.copy_from_slice(slot);
    Ok(i128::from_le_bytes(all))
}

/// The bytes of each value of a type.
pub(super) fn width(kind: Kind) -> usize {
    match kind {
        Kind::Integer(Integer { width, .. })
        | Kind::Float(width)
        | Kind::Decimal { width, .. }
        | Kind::Time { width, .. }
        | Kind::FixedBytes(width) => width,
        Kind::Date { in_milliseconds: false } => 4,
        Kind::Uuid => 16,
        Kind::Date { .. } | Kind::Timestamp { .. } | Kind::Duration { .. } => 8,
        _ => 0,
    }
}
