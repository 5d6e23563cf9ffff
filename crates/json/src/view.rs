//! Values that are looked at where they are: in a valid text, which is parsed as far as that needs, or packed.

use std::borrow::Cow;

use crate::packed::{self, Packed, PackedReader, Typed};
use crate::path::Step;
use crate::read::{ReadError, Text};
use crate::scan::{Append, Fault, Scanner, Skip};
use crate::value::Value;
use crate::write::write_json;

/// A validated line, and where the wanted values are in it.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The line.
    pub line: &'a str,
    /// For each wanted path the offset of its value, if there is one.
    pub offsets: &'a [Option<usize>],
}

impl<'a> Line<'a> {
    /// The value of the wanted path with this index.
    pub fn get(&self, path: usize) -> Option<View<'a>> {
        Some(View::written(self.line, (*self.offsets.get(path)?)?))
    }
}

/// A value of a record, as it is held: written in a text, or packed.
#[derive(Debug, Clone, Copy)]
pub struct View<'a>(pub(crate) Held<'a>);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Held<'a> {
    Written(Written<'a>),
    /// The bytes that begin with it.
    Packed(&'a [u8]),
}

/// A value in a text that is valid, and its first byte.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written<'a> {
    pub(crate) text: &'a str,
    pub(crate) at: usize,
}

/// The reader of a value.
pub enum Source<'a> {
    /// It is written.
    Text(Text<'a>),
    /// It is packed.
    Packed(PackedReader<'a>),
}

/// The content of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Content<'a> {
    /// Null; or a string with lone surrogates, which is no text.
    Null,
    /// True or false.
    Boolean(bool),
    /// A number, rounded to the nearest that 64 bits can hold; infinite if it is too large.
    Number(f64),
    /// A string.
    Text(Cow<'a, str>),
    /// An array.
    Array,
    /// An object.
    Object,
}

impl Content<'_> {
    /// The name of the content's type, for a message.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Null => "null, or a string with lone surrogates",
            Self::Boolean(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::Array => "a list",
            Self::Object => "an object",
        }
    }
}

impl<'a> View<'a> {
    /// A packed value.
    pub fn packed(bytes: &'a [u8]) -> Self {
        match Packed::of(bytes) {
            Packed::Json(text) => Self::written(text, 0),
            _ => Self(Held::Packed(bytes)),
        }
    }

    /// The value at a byte of a valid text.
    pub(crate) fn written(text: &'a str, at: usize) -> Self {
        Self(Held::Written(Written { text, at }))
    }

    /// Parses it.
    pub fn content(self) -> Content<'a> {
        match self.0 {
            Held::Written(value) => value.content(),
            Held::Packed(bytes) => match Packed::of(bytes) {
                Packed::Null | Packed::Filled | Packed::Json(_) => Content::Null,
                Packed::Bool(value) => Content::Boolean(value),
                Packed::Int(number) => Content::Number(number as f64),
                Packed::BigInt(digits) => digits.parse().map_or(Content::Null, Content::Number),
                Packed::Float(number) => Content::Number(number),
                Packed::Text(text) => Content::Text(Cow::Borrowed(text)),
                Packed::List(_) | Packed::Map(_) => Content::Array,
                Packed::Object(_) => Content::Object,
                Packed::Typed(value) => value.content(),
            },
        }
    }

    /// It as JSON.
    pub fn json(self) -> Cow<'a, str> {
        match self.0 {
            Held::Written(value) => Cow::Borrowed(value.json()),
            Held::Packed(_) => {
                let mut json = Vec::new();
                write_json(self, &mut json);
                Cow::Owned(String::from_utf8(json).unwrap_or_default())
            }
        }
    }

    /// A reader of it.
    pub fn source(self) -> Source<'a> {
        match self.0 {
            Held::Written(Written { text, at }) => Source::Text(Text::at(text, at)),
            Held::Packed(bytes) => Source::Packed(PackedReader::new(bytes)),
        }
    }

    /// Reads it, with the keys that structs fill in with null if `keeps_filled`.
    pub fn to_value(self, keeps_filled: bool) -> Result<Value<'a>, ReadError> {
        match self.source() {
            Source::Text(mut text) => Value::read(&mut text, keeps_filled),
            Source::Packed(mut packed) => Value::read(&mut packed, keeps_filled),
        }
    }

    /// The value that a step leads to; none if there is no such member or item.
    pub fn step(self, step: &Step) -> Option<Self> {
        match step {
            Step::Key(key) => self.member(key),
            Step::Index(index) => self.item(*index),
            Step::All => None,
        }
    }

    /// The value under a key, or with dots in its name in the objects in it.
    pub fn inside(self, name: &str) -> Option<Self> {
        self.member(name).or_else(|| {
            let (outer, inner) = name.split_once('.')?;
            self.member(outer)?.inside(inner)
        })
    }

    /// A string, or a number as it is written: what may be an id.
    pub fn id(self) -> Option<Cow<'a, str>> {
        match self.content() {
            Content::Text(text) => Some(text),
            Content::Number(_) => Some(self.json()),
            _ => None,
        }
    }

    /// Appends the items of an array of nothing but integers from 0 to 2^31 - 1. Returns false, and leaves `out` as it is, if
    /// it is another value, or may be one: this is the fast way for lists of ids.
    pub fn append_ids(self, out: &mut Vec<u32>) -> bool {
        let before = out.len();
        let are_ids = match self.0 {
            Held::Written(Written { text, at }) => append_written(&text.as_bytes()[at..], out),
            Held::Packed(bytes) => packed::append_ids(bytes, out),
        };
        if are_ids.is_none() {
            out.truncate(before);
        }
        are_ids.is_some()
    }

    /// Whether it is an array.
    pub fn is_array(self) -> bool {
        match self.0 {
            Held::Written(value) => value.is(b'['),
            Held::Packed(bytes) => matches!(Packed::of(bytes), Packed::List(_) | Packed::Map(_)),
        }
    }

    /// The items of an array; none of any other value.
    pub fn items(self) -> Items<'a> {
        Items(match self.0 {
            Held::Written(value) => {
                let mut scanner = value.scanner();
                let more = value.is(b'[') && scanner.open_array();
                Left::Written(scanner, more)
            }
            Held::Packed(bytes) => match Packed::of(bytes) {
                Packed::List(items) | Packed::Map(items) => Left::Packed(items),
                _ => Left::None,
            },
        })
    }

    /// Whether it is an object without members, or no object.
    pub fn has_no_members(self) -> bool {
        match self.0 {
            Held::Written(value) => !value.is(b'{') || !value.scanner().open_object().unwrap_or(false),
            Held::Packed(bytes) => match Packed::of(bytes) {
                Packed::Object(mut members) => members.next().is_none(),
                _ => true,
            },
        }
    }

    /// The members of a packed object: keys and values.
    pub fn packed_members(self) -> impl Iterator<Item = (&'a str, Self)> {
        let members = match self.0 {
            Held::Packed(bytes) => match Packed::of(bytes) {
                Packed::Object(members) => Some(members),
                _ => None,
            },
            Held::Written(_) => None,
        };
        members.into_iter().flatten().map(|(key, value)| (key, Self::packed(value)))
    }

    /// The value, if JSON lacks its type.
    pub fn typed(self) -> Option<Typed<'a>> {
        match self.0 {
            Held::Packed(bytes) => match Packed::of(bytes) {
                Packed::Typed(value) => Some(value),
                _ => None,
            },
            Held::Written(_) => None,
        }
    }

    fn item(self, index: i64) -> Option<Self> {
        let before = match usize::try_from(index) {
            Ok(index) => index,
            Err(_) => self.items().count().checked_sub(usize::try_from(index.unsigned_abs()).ok()?)?,
        };
        self.items().nth(before)
    }

    fn member(self, key: &str) -> Option<Self> {
        match self.0 {
            Held::Written(value) => value.member(key),
            Held::Packed(_) => {
                self.packed_members().filter(|(name, _)| *name == key).last().map(|(_, value)| value)
            }
        }
    }
}

impl<'a> Written<'a> {
    fn content(self) -> Content<'a> {
        match self.text.as_bytes()[self.at] {
            b'{' => Content::Object,
            b'[' => Content::Array,
            b'"' => self.scanner().unescaped().ok().flatten().map_or(Content::Null, Content::Text),
            b't' => Content::Boolean(true),
            b'f' => Content::Boolean(false),
            b'n' => Content::Null,
            _ => self.number().map_or(Content::Null, Content::Number),
        }
    }

    /// It as it is written.
    pub(crate) fn json(self) -> &'a str {
        let mut scanner = self.scanner();
        let end = scanner.value().map_or(self.text.len(), |()| scanner.at);
        &self.text[self.at..end]
    }

    fn is(self, first: u8) -> bool {
        self.text.as_bytes()[self.at] == first
    }

    pub(crate) fn scanner(self) -> Scanner<'a> {
        Scanner { line: self.text, at: self.at }
    }

    fn number(self) -> Option<f64> {
        let mut scanner = self.scanner();
        scanner.number().ok()?;
        self.text[self.at..scanner.at].parse().ok()
    }

    fn member(self, key: &str) -> Option<View<'a>> {
        let mut found = None;
        let mut scanner = self.scanner();
        let mut more = self.is(b'{') && scanner.open_object().ok()?;
        while more {
            if scanner.unescaped_key().ok()?.is_some_and(|other| other == key) {
                found = Some(View::written(self.text, scanner.at));
            }
            scanner.value().ok()?;
            more = scanner.next_member().ok()?;
        }
        found
    }
}

/// The largest id.
pub(crate) const LARGEST_ID: u64 = i32::MAX as u64;

/// See [`View::append_ids`]; the bytes begin with a valid value.
fn append_written(bytes: &[u8], out: &mut Vec<u32>) -> Option<()> {
    let mut at = 1;
    let space = |at: &mut usize| {
        while matches!(bytes.get(*at), Some(b' ' | b'\t')) {
            *at += 1;
        }
    };
    if bytes.first() != Some(&b'[') {
        return None;
    }
    space(&mut at);
    if bytes.get(at) == Some(&b']') {
        return Some(());
    }
    loop {
        let (mut id, start) = (0, at);
        while let Some(digit @ b'0'..=b'9') = bytes.get(at) {
            id = id * 10 + u64::from(digit - b'0');
            at += 1;
            // Ten digits and more are looked at elsewhere.
            if at - start > 10 {
                return None;
            }
        }
        if at == start || id > LARGEST_ID {
            return None;
        }
        out.push(id as u32);
        space(&mut at);
        match bytes.get(at) {
            Some(b',') => at += 1,
            Some(b']') => return Some(()),
            _ => return None,
        }
        space(&mut at);
    }
}

/// The items of an array.
pub struct Items<'a>(Left<'a>);

enum Left<'a> {
    None,
    /// At the next item, if there is more.
    Written(Scanner<'a>, bool),
    Packed(packed::Items<'a>),
}

impl<'a> Iterator for Items<'a> {
    type Item = View<'a>;

    fn next(&mut self) -> Option<View<'a>> {
        match &mut self.0 {
            Left::None | Left::Written(_, false) => None,
            Left::Written(scanner, more) => {
                let item = View::written(scanner.line, scanner.at);
                scanner.value().ok()?;
                *more = scanner.next_item(b']', "").ok()?;
                Some(item)
            }
            Left::Packed(items) => items.next().map(View::packed),
        }
    }
}

impl<'a> Scanner<'a> {
    /// A key and its colon. Returns the key; none if it has lone surrogates.
    pub(crate) fn unescaped_key(&mut self) -> Result<Option<Cow<'a, str>>, Fault> {
        let start = self.at;
        let written = self.key(&mut Skip)?;
        if !written.contains('\\') {
            return Ok(Some(Cow::Borrowed(written)));
        }
        Scanner { line: self.line, at: start }.unescaped()
    }

    /// A string; none if it has lone surrogates.
    fn unescaped(&mut self) -> Result<Option<Cow<'a, str>>, Fault> {
        let start = self.at;
        self.string(&mut Skip)?;
        let written = &self.line[start + 1..self.at - 1];
        if !written.contains('\\') {
            return Ok(Some(Cow::Borrowed(written)));
        }
        let mut text = String::new();
        let mut sink = Append { text: &mut text, lone_surrogate: None };
        Scanner { line: self.line, at: start }.string(&mut sink)?;
        Ok(sink.lone_surrogate.is_none().then_some(Cow::Owned(text)))
    }
}
