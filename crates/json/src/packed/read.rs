//! Packed values looked at, and read.

use std::borrow::Cow;

use super::{
    BIG_INT, BYTES, DATE, DECIMAL, DURATION, FALSE, FILLED, FLOAT, INT, JSON, LENGTH_BYTES, LIST, MAP,
    NOT_A_NUMBER, NULL, OBJECT, TEXT, TIME, TIMESTAMP, TRUE, Typed, UNKNOWN, UUID, ZONED,
};
use crate::read::{Begin, Read, ReadError};
use crate::view::LARGEST_ID;
use crate::write::write_string;

/// A packed value.
#[derive(Debug)]
pub(crate) enum Packed<'a> {
    Null,
    Filled,
    Bool(bool),
    Int(i64),
    BigInt(&'a str),
    Float(f64),
    Text(&'a str),
    List(Items<'a>),
    Map(Items<'a>),
    Object(Members<'a>),
    Json(&'a str),
    Typed(Typed<'a>),
}

/// The items of a list, as far as they are left.
#[derive(Debug)]
pub(crate) struct Items<'a>(Bytes<'a>);

/// The members of an object, as far as they are left.
#[derive(Debug)]
pub(crate) struct Members<'a>(Bytes<'a>);

/// Bytes from which parts are taken. Damaged ones have an end where a part is wrong.
#[derive(Debug)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Packed<'a> {
    /// The value that some bytes begin with; null if they are none.
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Bytes(bytes).value().unwrap_or(Self::Null)
    }
}

/// See [`View::append_ids`](crate::View::append_ids).
pub(crate) fn append_ids(bytes: &[u8], out: &mut Vec<u32>) -> Option<()> {
    let Packed::List(Items(Bytes(mut left))) = Packed::of(bytes) else { return None };
    while let Some((&tag, rest)) = left.split_first() {
        let mut number = Bytes(rest);
        let id = number.number().filter(|_| tag == INT)?;
        // The sign is the lowest bit.
        if id & 1 == 1 || id >> 1 > LARGEST_ID {
            return None;
        }
        out.push((id >> 1) as u32);
        left = number.0;
    }
    Some(())
}

impl<'a> Iterator for Items<'a> {
    /// The bytes that begin with the item.
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let item = self.0.0;
        self.0.pass()?;
        Some(item)
    }
}

impl<'a> Iterator for Members<'a> {
    /// The key, and the bytes that begin with the value.
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.0.text()?;
        let value = self.0.0;
        self.0.pass()?;
        Some((key, value))
    }
}

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    fn number(&mut self) -> Option<u64> {
        let (mut number, mut shift) = (0, 0);
        loop {
            let [byte] = self.array()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(number);
            }
            shift += 7;
        }
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let count = self.number()?;
        self.take(usize::try_from(count).ok()?)
    }

    fn text(&mut self) -> Option<&'a str> {
        simdutf8::basic::from_utf8(self.sized()?).ok()
    }

    fn fixed(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    fn per_second(&mut self) -> Option<i64> {
        i64::try_from(self.number()?).ok().filter(|per_second| *per_second > 0)
    }

    fn inside(&mut self) -> Option<Self> {
        let count = u64::from_le_bytes(self.array::<LENGTH_BYTES>()?);
        self.take(usize::try_from(count).ok()?).map(Self)
    }

    /// Passes over a value. Strings are not looked at.
    fn pass(&mut self) -> Option<()> {
        match *self.0.first()? {
            LIST | MAP | OBJECT => {
                self.take(1)?;
                self.inside().map(|_| ())
            }
            BIG_INT | TEXT | JSON | BYTES | UUID => {
                self.take(1)?;
                self.sized().map(|_| ())
            }
            _ => self.value().map(|_| ()),
        }
    }

    fn value(&mut self) -> Option<Packed<'a>> {
        let [tag] = self.array()?;
        Some(match tag {
            NULL => Packed::Null,
            FILLED => Packed::Filled,
            FALSE => Packed::Bool(false),
            TRUE => Packed::Bool(true),
            INT => {
                let number = self.number()?;
                Packed::Int((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
            }
            BIG_INT => Packed::BigInt(self.text()?),
            FLOAT => Packed::Float(f64::from_le_bytes(self.array()?)),
            TEXT => Packed::Text(self.text()?),
            LIST => Packed::List(Items(self.inside()?)),
            MAP => Packed::Map(Items(self.inside()?)),
            OBJECT => Packed::Object(Members(self.inside()?)),
            JSON => Packed::Json(self.text().filter(|json| !json.is_empty())?),
            NOT_A_NUMBER => Packed::Typed(Typed::NotANumber),
            UNKNOWN => Packed::Typed(Typed::Unknown),
            BYTES => Packed::Typed(Typed::Bytes(self.sized()?)),
            UUID => Packed::Typed(Typed::Uuid(self.sized()?)),
            DECIMAL => {
                let scale = i32::from_le_bytes(self.array()?);
                Packed::Typed(Typed::Decimal { scale, digits: self.text()? })
            }
            DATE => Packed::Typed(Typed::Date(self.fixed()?)),
            TIME => Packed::Typed(Typed::Time { time: self.fixed()?, per_second: self.per_second()? }),
            TIMESTAMP | ZONED => {
                let (time, per_second) = (self.fixed()?, self.per_second()?);
                let zone = if tag == ZONED { Some(self.text()?) } else { None };
                Packed::Typed(Typed::Timestamp { time, per_second, zone })
            }
            DURATION => {
                Packed::Typed(Typed::Duration { time: self.fixed()?, per_second: self.per_second()? })
            }
            _ => return None,
        })
    }
}

/// Reads a packed value. Maps are objects.
pub struct PackedReader<'a> {
    next: &'a [u8],
    /// The key that was read last.
    key: &'a str,
}

/// The rest of a list, map or object that is read.
pub struct Rest<'a>(Packed<'a>);

impl<'a> PackedReader<'a> {
    pub(crate) fn new(value: &'a [u8]) -> Self {
        Self { next: value, key: "" }
    }

    /// The key and the value of an item of a map. The key must be a string.
    fn pair(&self, pair: &'a [u8]) -> Result<(&'a str, &'a [u8]), ReadError> {
        if let Packed::List(mut pair) = Packed::of(pair)
            && let (Some(key), Some(value)) = (pair.next(), pair.next())
            && let Packed::Text(key) = Packed::of(key)
        {
            return Ok((key, value));
        }
        // A map that no key leads to is an input, or an item of one, which its reader names.
        let under = if self.key.is_empty() {
            String::new()
        } else {
            let mut name = b" under ".to_vec();
            write_string(self.key, &mut name);
            String::from_utf8_lossy(&name).into_owned()
        };
        Err(ReadError::new(format!(
            "expected a map with strings as its keys{under}, found another; write it as a struct"
        )))
    }
}

impl<'a> Read<'a> for PackedReader<'a> {
    type Inside = Rest<'a>;

    #[inline]
    fn begin(&mut self) -> Result<Begin<'a, Rest<'a>>, ReadError> {
        let packed = Packed::of(self.next);
        Ok(match packed {
            Packed::Null => Begin::Null,
            Packed::Filled => Begin::Filled,
            Packed::Bool(value) => Begin::Bool(value),
            Packed::Int(value) => Begin::Int(value),
            Packed::BigInt(digits) => Begin::BigInt(Cow::Borrowed(digits)),
            Packed::Float(value) => Begin::Float(value),
            Packed::Text(text) => Begin::Str(Cow::Borrowed(text)),
            Packed::List(_) => Begin::List(Rest(packed)),
            Packed::Map(_) | Packed::Object(_) => Begin::Object(Rest(packed)),
            Packed::Json(text) => Begin::Json(text),
            Packed::Typed(value) if value.is_lost() => Begin::Typed,
            Packed::Typed(Typed::Bytes(bytes)) => Begin::Str(String::from_utf8_lossy(bytes)),
            Packed::Typed(value) => Begin::Str(Cow::Owned(value.to_string())),
        })
    }

    #[inline]
    fn next_item(&mut self, list: &mut Rest<'a>) -> Result<bool, ReadError> {
        let Rest(Packed::List(items)) = list else { return Ok(false) };
        let next = items.next();
        self.next = next.unwrap_or_default();
        Ok(next.is_some())
    }

    #[inline]
    fn next_key(&mut self, object: &mut Rest<'a>) -> Result<Option<Cow<'a, str>>, ReadError> {
        let (key, value) = match &mut object.0 {
            Packed::Object(members) => match members.next() {
                Some((key, value)) => {
                    self.key = key;
                    (key, value)
                }
                None => return Ok(None),
            },
            Packed::Map(items) => match items.next() {
                Some(pair) => self.pair(pair)?,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        self.next = value;
        Ok(Some(Cow::Borrowed(key)))
    }
}
