//! Values read part by part, whatever holds them.

use std::borrow::Cow;
use std::fmt;

use crate::scan::{Append, Fault, Scanner, find_stop};
use crate::value::Value;

/// How deep a value may nest that is read.
pub const MAX_DEPTH: u32 = 200;

/// Reads one value.
///
/// ```
/// use gristmill_json::{Begin, Read, Text};
/// let mut text = Text::new("[1, 2]");
/// let Begin::List(mut list) = text.begin().unwrap() else { panic!() };
/// let mut sum = 0;
/// while text.next_item(&mut list).unwrap() {
///     let Begin::Int(number) = text.begin().unwrap() else { panic!() };
///     sum += number;
/// }
/// assert_eq!(sum, 3);
/// ```
pub trait Read<'a> {
    /// A list or object that is being read.
    type Inside;

    /// The next value, or the beginning of one.
    fn begin(&mut self) -> Result<Begin<'a, Self::Inside>, ReadError>;

    /// Whether a list has another item, which is the next value.
    fn next_item(&mut self, list: &mut Self::Inside) -> Result<bool, ReadError>;

    /// The next key of an object, whose value is the next one.
    fn next_key(&mut self, object: &mut Self::Inside) -> Result<Option<Cow<'a, str>>, ReadError>;
}

/// A value without others in it, or the beginning of one.
#[derive(Debug)]
pub enum Begin<'a, I> {
    /// Null.
    Null,
    /// Null that a struct fills in for a record without the key.
    Filled,
    /// A value whose type JSON lacks.
    Typed,
    /// A value that is written in a text of its own.
    Json(&'a str),
    /// True or false.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond i64: its decimal digits, with a `-` if it is negative.
    BigInt(Cow<'a, str>),
    /// A float.
    Float(f64),
    /// A string.
    Str(Cow<'a, str>),
    /// A list.
    List(I),
    /// An object.
    Object(I),
}

/// Why a value cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError(String);

impl ReadError {
    #[cold]
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// The error of a value that nests too deep.
    pub fn too_deep() -> Self {
        Self::new(format!("nested deeper than {MAX_DEPTH} levels"))
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for ReadError {}

impl From<Fault> for ReadError {
    #[cold]
    fn from(fault: Fault) -> Self {
        Self(fault.in_text())
    }
}

/// Reads JSON, by the rules of Python's `json.loads`; lone surrogates are errors.
pub struct Text<'a>(Scanner<'a>);

impl<'a> Text<'a> {
    /// Reads the value that a text begins with.
    pub fn new(text: &'a str) -> Self {
        Self::at(text, 0)
    }

    /// Reads the value at a byte of a text.
    pub(crate) fn at(line: &'a str, at: usize) -> Self {
        Self(Scanner { line, at })
    }

    /// Checks that nothing is behind the value.
    pub fn end(&mut self) -> Result<(), ReadError> {
        Ok(self.0.end_of_line("the end")?)
    }

    fn number<I>(&mut self) -> Result<Begin<'a, I>, ReadError> {
        let Scanner { line, at: start } = self.0;
        if line[start..].starts_with("-I") {
            self.0.at += 1;
            self.0.word("Infinity")?;
            return Ok(Begin::Float(f64::NEG_INFINITY));
        }
        self.0.number()?;
        let text = &line[start..self.0.at];
        if text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
            return Ok(Begin::Float(text.parse().unwrap_or(f64::NAN)));
        }
        Ok(text.parse().map_or_else(|_| Begin::BigInt(Cow::Borrowed(text)), Begin::Int))
    }

    /// The string that starts here: a part of the text, if nothing in it is escaped.
    fn string(&mut self) -> Result<Cow<'a, str>, ReadError> {
        let Scanner { line, at } = self.0;
        let stop = find_stop(line.as_bytes(), at + 1);
        if line.as_bytes().get(stop) == Some(&b'"') {
            self.0.at = stop + 1;
            return Ok(Cow::Borrowed(&line[at + 1..stop]));
        }
        // Room up to the next quote, which ends most strings, and is in the line whatever that holds.
        let quote = line.get(stop + 2..).and_then(|rest| rest.find('"'));
        let mut text = String::with_capacity(stop - at + quote.unwrap_or_default());
        let mut sink = Append { text: &mut text, lone_surrogate: None };
        self.0.string(&mut sink)?;
        match sink.lone_surrogate {
            None => Ok(Cow::Owned(text)),
            Some(at) => Err(Fault::lone_surrogate(at).into()),
        }
    }
}

impl<'a> Read<'a> for Text<'a> {
    /// Whether nothing in it was read yet.
    type Inside = bool;

    #[inline]
    fn begin(&mut self) -> Result<Begin<'a, bool>, ReadError> {
        let scanner = &mut self.0;
        scanner.space();
        Ok(match scanner.peek() {
            Some(b'"') => Begin::Str(self.string()?),
            Some(b'{') => {
                scanner.at += 1;
                Begin::Object(true)
            }
            Some(b'[') => {
                scanner.at += 1;
                Begin::List(true)
            }
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => scanner.word("true").map(|()| Begin::Bool(true))?,
            Some(b'f') => scanner.word("false").map(|()| Begin::Bool(false))?,
            Some(b'n') => scanner.word("null").map(|()| Begin::Null)?,
            Some(b'N') => scanner.word("NaN").map(|()| Begin::Float(f64::NAN))?,
            Some(b'I') => scanner.word("Infinity").map(|()| Begin::Float(f64::INFINITY))?,
            _ => return Err(scanner.expected("a value").into()),
        })
    }

    #[inline]
    fn next_item(&mut self, is_first: &mut bool) -> Result<bool, ReadError> {
        let scanner = &mut self.0;
        if !std::mem::take(is_first) {
            return Ok(scanner.next_item(b']', "',' or ']' after an element")?);
        }
        scanner.space();
        let is_empty = scanner.peek() == Some(b']');
        scanner.at += usize::from(is_empty);
        Ok(!is_empty)
    }

    #[inline]
    fn next_key(&mut self, is_first: &mut bool) -> Result<Option<Cow<'a, str>>, ReadError> {
        let scanner = &mut self.0;
        let has_next = if std::mem::take(is_first) {
            scanner.space();
            let is_empty = scanner.peek() == Some(b'}');
            scanner.at += usize::from(is_empty);
            !is_empty
        } else {
            scanner.next_member()?
        };
        if !has_next {
            return Ok(None);
        }
        if scanner.peek() != Some(b'"') {
            return Err(scanner.expected("a key ('\"')").into());
        }
        let key = self.string()?;
        self.0.colon()?;
        Ok(Some(key))
    }
}

/// Reads a value in memory.
pub struct Tree<'v>(pub &'v Value<'v>);

/// The rest of a list or object in memory.
pub enum Rest<'v> {
    /// The items of a list.
    Items(std::slice::Iter<'v, Value<'v>>),
    /// The members of an object.
    Members(std::slice::Iter<'v, (Cow<'v, str>, Value<'v>)>),
}

impl<'v> Read<'v> for Tree<'v> {
    type Inside = Rest<'v>;

    fn begin(&mut self) -> Result<Begin<'v, Rest<'v>>, ReadError> {
        Ok(match self.0 {
            Value::Null => Begin::Null,
            Value::Typed => Begin::Typed,
            Value::Bool(value) => Begin::Bool(*value),
            Value::Int(value) => Begin::Int(*value),
            Value::BigInt(digits) => Begin::BigInt(Cow::Borrowed(digits)),
            Value::Float(value) => Begin::Float(*value),
            Value::Str(text) => Begin::Str(Cow::Borrowed(text)),
            Value::List(items) => Begin::List(Rest::Items(items.iter())),
            Value::Object(members) => Begin::Object(Rest::Members(members.iter())),
        })
    }

    fn next_item(&mut self, list: &mut Rest<'v>) -> Result<bool, ReadError> {
        let Rest::Items(items) = list else { return Ok(false) };
        let next = items.next();
        self.0 = next.unwrap_or(self.0);
        Ok(next.is_some())
    }

    fn next_key(&mut self, object: &mut Rest<'v>) -> Result<Option<Cow<'v, str>>, ReadError> {
        let Rest::Members(members) = object else { return Ok(None) };
        Ok(members.next().map(|(key, value)| {
            self.0 = value;
            Cow::Borrowed(&**key)
        }))
    }
}
