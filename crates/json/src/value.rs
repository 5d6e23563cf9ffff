//! Values in memory.

use std::borrow::Cow;

use crate::read::{Begin, MAX_DEPTH, Read, ReadError, Text};

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
    /// A value whose type JSON lacks, such as a date: templates see that there is one, and must not print it.
    Typed,
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
    /// A dict. The last one of two entries with one key counts, at the index of the first.
    Object(Vec<(Cow<'v, str>, Value<'v>)>),
}

impl<'v> Value<'v> {
    /// Reads a value, with the keys that structs fill in with null if `keeps_filled`.
    pub fn read(reader: &mut impl Read<'v>, keeps_filled: bool) -> Result<Self, ReadError> {
        let begin = reader.begin()?;
        Self::read_from(begin, reader, keeps_filled, 0)
    }

    fn read_from<R: Read<'v>>(
        begin: Begin<'v, R::Inside>,
        reader: &mut R,
        keeps_filled: bool,
        depth: u32,
    ) -> Result<Self, ReadError> {
        Ok(match begin {
            Begin::Null | Begin::Filled => Self::Null,
            Begin::Typed => Self::Typed,
            Begin::Bool(value) => Self::Bool(value),
            Begin::Int(value) => Self::Int(value),
            Begin::BigInt(digits) => Self::BigInt(digits),
            Begin::Float(value) => Self::Float(value),
            Begin::Str(text) => Self::Str(text),
            Begin::Json(text) => {
                let mut text = Text::new(text);
                let begin = text.begin()?;
                Self::read_from(begin, &mut text, keeps_filled, depth)?
            }
            Begin::List(_) | Begin::Object(_) if depth == MAX_DEPTH => return Err(ReadError::too_deep()),
            Begin::List(mut list) => {
                let mut items = Vec::new();
                while reader.next_item(&mut list)? {
                    let begin = reader.begin()?;
                    items.push(Self::read_from(begin, reader, keeps_filled, depth + 1)?);
                }
                Self::List(items)
            }
            Begin::Object(mut object) => {
                let mut members = Vec::new();
                while let Some(key) = reader.next_key(&mut object)? {
                    let begin = reader.begin()?;
                    if keeps_filled || !matches!(begin, Begin::Filled) {
                        members.push((key, Self::read_from(begin, reader, keeps_filled, depth + 1)?));
                    }
                }
                Self::Object(members)
            }
        })
    }

    /// The same without anything borrowed.
    pub fn into_owned(self) -> Value<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        match self {
            Self::Null => Value::Null,
            Self::Typed => Value::Typed,
            Self::Bool(value) => Value::Bool(value),
            Self::Int(value) => Value::Int(value),
            Self::BigInt(digits) => Value::BigInt(owned(digits)),
            Self::Float(value) => Value::Float(value),
            Self::Str(text) => Value::Str(owned(text)),
            Self::List(items) => Value::List(items.into_iter().map(Self::into_owned).collect()),
            Self::Object(members) => Value::Object(
                members.into_iter().map(|(key, value)| (owned(key), value.into_owned())).collect(),
            ),
        }
    }

    /// The string that it is.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Str(text) = self { Some(text) } else { None }
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
