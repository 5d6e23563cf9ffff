//! Rows as JSON objects.

use super::array::{Array, Data, integer, slot, width};
use super::corrupt;
use super::flatbuffer::Damaged;
use super::schema::{Field, Integer, Kind};
use crate::format::AfterError;
use crate::format::columns::{RowFault, check_row_length};
use crate::format::exact::{Exact, Typed};
use crate::format::to_json::{
    open_map, write_bytes, write_date, write_decimal, write_duration, write_filled, write_float,
    write_integer, write_null, write_string, write_text, write_time, write_timestamp, write_uuid,
};

impl From<Damaged> for RowFault {
    fn from(_: Damaged) -> Self {
        (AfterError::Lost, corrupt("a value does not lie in its buffer"))
    }
}

/// A row on its way to JSON, and the most bytes that it may have.
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut Vec<u8>,
    /// Where to note the values that JSON lacks.
    pub(super) exact: Option<&'a mut Exact>,
    pub(super) longest: u64,
}

impl Writer<'_> {
    /// The values at an index of columns, as an object.
    pub(super) fn write_object<'a>(
        &mut self,
        columns: impl Iterator<Item = (&'a Field, &'a Array)>,
        index: usize,
    ) -> Result<(), RowFault> {
        self.out.push(b'{');
        for (number, (field, array)) in columns.enumerate() {
            if number > 0 {
                self.out.push(b',');
            }
            write_string(&field.name, self.out);
            self.out.push(b':');
            self.write(field, array, index, write_filled)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    /// The value at an index of an array; `write_absent` writes null.
    fn write(
        &mut self,
        field: &Field,
        array: &Array,
        index: usize,
        write_absent: fn(&mut Vec<u8>),
    ) -> Result<(), RowFault> {
        check_row_length(self.out, self.longest)?;
        if array.is_null(index) {
            write_absent(self.out);
            return Ok(());
        }
        let start = self.out.len();
        match &array.data {
            Data::Null => write_absent(self.out),
            Data::Bits(bits) => {
                let value = Array::bit(bits, index)?;
                self.out.extend_from_slice(if value { b"true" } else { b"false" });
            }
            Data::Fixed(bytes) => self.write_fixed(field.kind, bytes, index)?,
            Data::Bytes { .. } | Data::Views { .. } => {
                self.write_bytes(field, array.bytes(index)?.unwrap_or_default())?;
            }
            Data::List { offsets, items } => self.write_list(field, items, offsets.range(index)?)?,
            Data::FixedList { size, items } => {
                let start = index.checked_mul(*size).ok_or(Damaged)?;
                let end = start.checked_add(*size).ok_or(Damaged)?;
                self.write_list(field, items, start..end)?;
            }
            Data::Struct(members) => self.write_object(field.children.iter().zip(members), index)?,
            Data::Indices { .. } => {
                let (array, index) = array.resolve(index)?;
                self.write(field, array, index, write_absent)?;
            }
        }
        self.note(start, field, array, index)
    }

    /// Notes what the value is that was written from `start` on, if JSON lacks it.
    fn note(&mut self, start: usize, field: &Field, array: &Array, index: usize) -> Result<(), RowFault> {
        let Some(exact) = &mut self.exact else { return Ok(()) };
        let part = start..self.out.len();
        let bytes = match &array.data {
            Data::Fixed(bytes) => slot(bytes, width(field.kind), index)?,
            Data::Bytes { .. } | Data::Views { .. } => array.bytes(index)?.unwrap_or_default(),
            _ => return Ok(()),
        };
        let whole = || {
            let mut wide = [0; 8];
            wide[..bytes.len()].copy_from_slice(bytes);
            let unused = 8 * (8 - bytes.len());
            i64::from_le_bytes(wide) << unused >> unused
        };
        let big_endian: Vec<u8>;
        let value = match field.kind {
            Kind::Bytes { is_text: false, .. } | Kind::View { is_text: false } | Kind::FixedBytes(_) => {
                Typed::Bytes(bytes)
            }
            Kind::Uuid => Typed::Uuid(bytes),
            Kind::Float(_) if self.out[part.clone()].ends_with(b"null") => Typed::NotANumber,
            Kind::Decimal { scale, .. } => {
                big_endian = bytes.iter().rev().copied().collect();
                Typed::Decimal { bytes: &big_endian, scale }
            }
            Kind::Date { in_milliseconds: true } => Typed::Date(whole().div_euclid(86_400_000)),
            Kind::Date { .. } => Typed::Date(whole()),
            Kind::Time { per_second, .. } => Typed::Time { time: whole(), per_second },
            Kind::Timestamp { per_second, .. } => {
                Typed::Timestamp { time: whole(), per_second, zone: field.zone.as_deref() }
            }
            Kind::Duration { per_second } => Typed::Duration { time: whole(), per_second },
            _ => return Ok(()),
        };
        exact.note(part, &value);
        Ok(())
    }

    /// Items of a list; those of a map are pairs of Python, arrays of two.
    fn write_list(
        &mut self,
        field: &Field,
        items: &Array,
        indices: std::ops::Range<usize>,
    ) -> Result<(), RowFault> {
        let item = field.children.first().ok_or(Damaged)?;
        if field.kind == Kind::Map {
            open_map(self.out);
        } else {
            self.out.push(b'[');
        }
        for index in indices.clone() {
            if index > indices.start {
                self.out.push(b',');
            }
            match (&items.data, &item.children[..]) {
                (Data::Struct(entry), [key, value]) if field.kind == Kind::Map && entry.len() == 2 => {
                    self.out.push(b'[');
                    self.write(key, &entry[0], index, write_null)?;
                    self.out.push(b',');
                    self.write(value, &entry[1], index, write_null)?;
                    self.out.push(b']');
                }
                _ => self.write(item, items, index, write_null)?,
            }
        }
        self.out.push(b']');
        Ok(())
    }

    fn write_bytes(&mut self, field: &Field, bytes: &[u8]) -> Result<(), RowFault> {
        if let Kind::Bytes { is_text: false, .. } | Kind::View { is_text: false } = field.kind {
            write_bytes(bytes, self.out);
            return Ok(());
        }
        write_text(bytes, field.is_json, self.out)
            .map_err(|fault| (AfterError::Readable, fault.describe(&field.name)))
    }

    fn write_fixed(&mut self, kind: Kind, bytes: &[u8], index: usize) -> Result<(), RowFault> {
        let slot = slot(bytes, width(kind), index)?;
        let whole = |width| -> Result<i64, Damaged> {
            let number = integer(bytes, Integer { width, is_signed: true }, index)?;
            i64::try_from(number).map_err(|_| Damaged)
        };
        match (kind, slot) {
            (Kind::Integer(kind), _) => write_integer(integer(bytes, kind, index)?, self.out),
            (Kind::Float(_), &[a, b]) => write_float(half::f16::from_le_bytes([a, b]).into(), self.out),
            (Kind::Float(_), &[a, b, c, d]) => write_float(f32::from_le_bytes([a, b, c, d]).into(), self.out),
            (Kind::Float(_), _) => {
                write_float(f64::from_le_bytes(slot.try_into().map_err(|_| Damaged)?), self.out);
            }
            (Kind::Decimal { scale, .. }, _) => {
                let digits: Vec<u8> = slot.iter().rev().copied().collect();
                write_decimal(&digits, scale, self.out);
            }
            (Kind::Date { in_milliseconds: true }, _) => {
                write_date(whole(8)?.div_euclid(86_400_000), self.out);
            }
            (Kind::Date { .. }, _) => write_date(whole(4)?, self.out),
            (Kind::Time { width, per_second }, _) => write_time(whole(width)?, per_second, self.out),
            (Kind::Timestamp { per_second, is_utc }, _) => {
                write_timestamp(whole(8)?, per_second, is_utc, self.out);
            }
            (Kind::Uuid, _) => write_uuid(slot, self.out),
            (Kind::Duration { .. }, _) => write_duration(whole(8)?, self.out),
            _ => write_bytes(slot, self.out),
        }
        Ok(())
    }
}
