//! Rows as packed objects.

use gristmill_json::Packer;

use super::array::{Array, Data, integer, slot, width};
use super::corrupt;
use super::flatbuffer::Damaged;
use super::schema::{Field, Integer, Kind};
use crate::format::AfterError;
use crate::format::columns::{RowFault, check_row_length};

impl From<Damaged> for RowFault {
    fn from(_: Damaged) -> Self {
        (AfterError::Lost, corrupt("a value does not lie in its buffer"))
    }
}

/// A row on its way to a packed object, and the most bytes that it may have as JSON.
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut Packer,
    pub(super) longest: u64,
}

impl Writer<'_> {
    /// The values at an index of columns, as an object.
    pub(super) fn pack_object<'a>(
        &mut self,
        columns: impl Iterator<Item = (&'a Field, &'a Array)>,
        index: usize,
    ) -> Result<(), RowFault> {
        let opened = self.out.open_object();
        for (field, array) in columns {
            self.out.key(&field.name);
            self.pack(field, array, index, Packer::filled)?;
        }
        self.out.close(opened);
        Ok(())
    }

    /// The value at an index of an array; `pack_absent` packs null.
    fn pack(
        &mut self,
        field: &Field,
        array: &Array,
        index: usize,
        pack_absent: fn(&mut Packer),
    ) -> Result<(), RowFault> {
        check_row_length(self.out, self.longest)?;
        if array.is_null(index) {
            pack_absent(self.out);
            return Ok(());
        }
        match &array.data {
            Data::Null => pack_absent(self.out),
            Data::Bits(bits) => self.out.boolean(Array::bit(bits, index)?),
            Data::Fixed(bytes) => self.pack_fixed(field, bytes, index)?,
            Data::Bytes { .. } | Data::Views { .. } => {
                self.pack_bytes(field, array.bytes(index)?.unwrap_or_default())?;
            }
            Data::List { offsets, items } => self.pack_list(field, items, offsets.range(index)?)?,
            Data::FixedList { size, items } => {
                let start = index.checked_mul(*size).ok_or(Damaged)?;
                let end = start.checked_add(*size).ok_or(Damaged)?;
                self.pack_list(field, items, start..end)?;
            }
            Data::Struct(members) => self.pack_object(field.children.iter().zip(members), index)?,
            Data::Indices { .. } => {
                let (array, index) = array.resolve(index)?;
                self.pack(field, array, index, pack_absent)?;
            }
        }
        Ok(())
    }

    /// Items of a list; those of a map are pairs.
    fn pack_list(
        &mut self,
        field: &Field,
        items: &Array,
        indices: std::ops::Range<usize>,
    ) -> Result<(), RowFault> {
        let item = field.children.first().ok_or(Damaged)?;
        let is_map = field.kind == Kind::Map;
        let opened = if is_map { self.out.open_map() } else { self.out.open_list() };
        for index in indices {
            match (&items.data, &item.children[..]) {
                (Data::Struct(entry), [key, value]) if is_map && entry.len() == 2 => {
                    let pair = self.out.open_list();
                    self.pack(key, &entry[0], index, Packer::null)?;
                    self.pack(value, &entry[1], index, Packer::null)?;
                    self.out.close(pair);
                }
                _ => self.pack(item, items, index, Packer::null)?,
            }
        }
        self.out.close(opened);
        Ok(())
    }

    fn pack_bytes(&mut self, field: &Field, bytes: &[u8]) -> Result<(), RowFault> {
        if let Kind::Bytes { is_text: false, .. } | Kind::View { is_text: false } = field.kind {
            self.out.binary(bytes);
            return Ok(());
        }
        self.out
            .text(bytes, field.is_json)
            .map_err(|fault| (AfterError::Readable, fault.describe(&field.name)))
    }

    fn pack_fixed(&mut self, field: &Field, bytes: &[u8], index: usize) -> Result<(), RowFault> {
        let slot = slot(bytes, width(field.kind), index)?;
        let whole = |width| -> Result<i64, Damaged> {
            let number = integer(bytes, Integer { width, is_signed: true }, index)?;
            i64::try_from(number).map_err(|_| Damaged)
        };
        match (field.kind, slot) {
            (Kind::Integer(kind), _) => self.out.integer(integer(bytes, kind, index)?),
            (Kind::Float(_), &[a, b]) => self.out.float(half::f16::from_le_bytes([a, b]).into()),
            (Kind::Float(_), &[a, b, c, d]) => self.out.float(f32::from_le_bytes([a, b, c, d]).into()),
            (Kind::Float(_), _) => {
                self.out.float(f64::from_le_bytes(slot.try_into().map_err(|_| Damaged)?));
            }
            (Kind::Decimal { scale, .. }, _) => {
                let digits: Vec<u8> = slot.iter().rev().copied().collect();
                self.out.decimal(&digits, scale);
            }
            (Kind::Date { in_milliseconds: true }, _) => self.out.date(whole(8)?.div_euclid(86_400_000)),
            (Kind::Date { .. }, _) => self.out.date(whole(4)?),
            (Kind::Time { width, per_second }, _) => self.out.time(whole(width)?, per_second),
            (Kind::Timestamp { per_second, .. }, _) => {
                self.out.timestamp(whole(8)?, per_second, field.zone.as_deref());
            }
            (Kind::Uuid, _) => self.out.uuid(slot),
            (Kind::Duration { per_second }, _) => self.out.duration(whole(8)?, per_second),
            _ => self.out.binary(slot),
        }
        Ok(())
    }
}
