//! Values in memory.

use std::borrow::Cow;

use crate::read::{Begin, MAX_DEPTH, Read, ReadError};

/// A value as JSON has it, in memory.
///
/// ```
/// use gristmill_json::Value;
/// let message = Value::Object(vec![
///     ("role".into(), "user".into()),
///     ("content".into(), "Hello".into()),
/// ]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'v> {
    /// Python's None.
    Null,
    /// True or False.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond i64: its decimal digits, with a `-` if it is negative.
    BigInt(Cow<'v, str>),
    /// A float; infinities and NaN are allowed.
    Float(f64),
    /// A string.
    Str(Cow<'v, str>),
    /// A list.
    List(Vec<Value<'v>>),
    /// A dict. The last one of two entries with one key counts, at the place of the first.
    Object(Vec<(Cow<'v, str>, Value<'v>)>),
}

impl<'v> Value<'v> {
    /// Reads a value.
    pub fn read(reader: &mut impl Read<'v>) -> Result<Self, ReadError> {
        Self::read_at(reader, 0)
    }

    fn read_at(reader: &mut impl Read<'v>, depth: u32) -> Result<Self, ReadError> {
        Ok(match reader.begin()? {
            Begin::Null => Self::Null,
            Begin::Bool(value) => Self::Bool(value),
            Begin::Int(value) => Self::Int(value),
            Begin::BigInt(digits) => Self::BigInt(digits),
            Begin::Float(value) => Self::Float(value),
            Begin::Str(text) => Self::Str(text),
            Begin::List(_) | Begin::Object(_) if depth == MAX_DEPTH => return Err(ReadError::too_deep()),
            Begin::List(mut list) => {
                let mut items = Vec::new();
                while reader.next_item(&mut list)? {
                    items.push(Self::read_at(reader, depth + 1)?);
                }
                Self::List(items)
            }
            Begin::Object(mut object) => {
                let mut members = Vec::new();
                while let Some(key) = reader.next_key(&mut object)? {
                    members.push((key, Self::read_at(reader, depth + 1)?));
                }
                Self::Object(members)
            }
        })
    }

    /// The value of a key of an object; of one that is there twice the last.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The string that it is.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Str(text) = self { Some(text) } else { None }
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}

impl<'v> From<&'v str> for Value<'v> {
    fn from(text: &'v str) -> Self {
        Self::Str(Cow::Borrowed(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Str(Cow::Owned(text))
    }
}
