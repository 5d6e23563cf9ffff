//! Values of a validated line, which are parsed when they are looked at.

use std::borrow::Cow;

use super::sink::Append;
use super::{Fault, Scanner};
use crate::format::marks::TYPED;
use crate::format::{Plain, Step};

/// The wanted values of a record and its sidecars.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    record: Line<'a>,
    sidecars: &'a [Line<'a>],
    /// Whether the record is a row, whose JSON has marks.
    has_marks: bool,
}

/// A validated line, and where the wanted values are in it.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    pub(in crate::format) line: &'a str,
    pub(in crate::format) offsets: &'a [Option<usize>],
}

/// A value of a record.
#[derive(Debug, Clone, Copy)]
pub struct Value<'a> {
    pub(super) line: &'a str,
    pub(super) at: usize,
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

impl<'a> Values<'a> {
    /// The values of a record without sidecars.
    pub(in crate::format) fn of(record: Line<'a>) -> Self {
        Self { record, sidecars: &[], has_marks: false }
    }

    /// The same of a row, if `has_marks`.
    pub(in crate::format) fn with_marks(self, has_marks: bool) -> Self {
        Self { has_marks, ..self }
    }

    /// The first `own` of them together with those of sidecars, whose paths are numbered after these.
    #[must_use]
    pub fn with_sidecars<'b>(&self, own: usize, sidecars: &'b [Line<'b>]) -> Values<'b>
    where
        'a: 'b,
    {
        let Line { line, offsets } = self.record;
        let offsets = offsets.get(..own).unwrap_or(offsets);
        Values { record: Line { line, offsets }, sidecars, ..*self }
    }

    /// The value of the path with this index in the projection.
    pub fn get(&self, mut path: usize) -> Option<Value<'a>> {
        let mut line = &self.record;
        let mut sidecars = self.sidecars.iter();
        while path >= line.offsets.len() {
            path -= line.offsets.len();
            line = sidecars.next()?;
        }
        let at = line.offsets[path]?;
        Some(Value { line: line.line, at })
    }

    /// The string that one of them is. The error names what it is instead; of a type that JSON lacks it has the nearest
    /// string.
    pub fn text(&self, value: Value<'a>) -> Result<Cow<'a, str>, &'static str> {
        match value.content() {
            _ if self.has_marks && value.is_typed() => {
                Err("bytes that are not UTF-8, a date, a time, a duration, a decimal or NaN")
            }
            Content::Text(text) => Ok(text),
            found => Err(found.name()),
        }
    }

    /// One of them as templates take it, with or without the keys that structs fill in with null. The error says what was
    /// expected and found.
    pub fn plain(&self, value: Value<'a>, keeps_filled: bool) -> Result<Plain<'a>, String> {
        let json = value.json();
        if self.has_marks { Plain::of_row(json, keeps_filled) } else { Ok(Plain::new(json)) }
    }
}

impl<'a> Value<'a> {
    /// Parses it.
    pub fn content(self) -> Content<'a> {
        match self.line.as_bytes()[self.at] {
            b'{' => Content::Object,
            b'[' => Content::Array,
            b'"' => self.text().map_or(Content::Null, Content::Text),
            b't' => Content::Boolean(true),
            b'f' => Content::Boolean(false),
            b'n' => Content::Null,
            _ => self.number().map_or(Content::Null, Content::Number),
        }
    }

    /// It as it is written.
    pub fn json(self) -> &'a str {
        let mut scanner = self.scanner();
        let end = scanner.value().map_or(self.line.len(), |()| scanner.at);
        &self.line[self.at..end]
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
    pub(in crate::format) fn inside(self, name: &str) -> Option<Self> {
        self.member(name).or_else(|| {
            let (outer, inner) = name.split_once('.')?;
            self.member(outer)?.inside(inner)
        })
    }

    /// A string, or a number as it is written: what may be an id.
    pub fn id(self) -> Option<Cow<'a, str>> {
        match self.content() {
            Content::Text(text) => Some(text),
            Content::Number(_) => {
                let mut scanner = self.scanner();
                scanner.number().ok()?;
                Some(Cow::Borrowed(&self.line[self.at..scanner.at]))
            }
            _ => None,
        }
    }

    /// Whether it is an array.
    pub fn is_array(self) -> bool {
        self.is(b'[')
    }

    /// The items of an array; none of any other value.
    pub fn items(self) -> Items<'a> {
        let mut scanner = self.scanner();
        let more = self.is_array() && scanner.open_array();
        Items { scanner, more }
    }

    /// Whether it is an object without members, or no object.
    pub fn has_no_members(self) -> bool {
        !self.is(b'{') || !self.scanner().open_object().unwrap_or(false)
    }

    /// Whether it stands in a row for one whose type JSON lacks.
    pub(in crate::format) fn is_typed(self) -> bool {
        self.line.as_bytes()[..self.at].ends_with(&[TYPED])
    }

    fn is(self, first: u8) -> bool {
        self.line.as_bytes()[self.at] == first
    }

    fn scanner(self) -> Scanner<'a> {
        Scanner { line: self.line, at: self.at }
    }

    fn text(self) -> Option<Cow<'a, str>> {
        self.scanner().unescaped().ok()?
    }

    fn number(self) -> Option<f64> {
        let mut scanner = self.scanner();
        scanner.number().ok()?;
        self.line[self.at..scanner.at].parse().ok()
    }

    fn item(self, index: i64) -> Option<Self> {
        let before = match usize::try_from(index) {
            Ok(index) => index,
            Err(_) => self.items().count().checked_sub(usize::try_from(index.unsigned_abs()).ok()?)?,
        };
        let mut items = self.items();
        for _ in 0..before {
            items.pass()?;
        }
        items.first()
    }

    fn member(self, key: &str) -> Option<Self> {
        let mut found = None;
        let mut scanner = self.scanner();
        let mut more = self.is(b'{') && scanner.open_object().ok()?;
        while more {
            if scanner.unescaped_key().ok()?.is_some_and(|other| other == key) {
                found = Some(Value { line: self.line, at: scanner.at });
            }
            scanner.value().ok()?;
            more = scanner.next_member().ok()?;
        }
        found
    }
}

/// The items of an array.
pub struct Items<'a> {
    scanner: Scanner<'a>,
    more: bool,
}

impl<'a> Items<'a> {
    /// The first of those left.
    fn first(&self) -> Option<Value<'a>> {
        self.more.then_some(Value { line: self.scanner.line, at: self.scanner.at })
    }

    /// Passes over the first of those left.
    fn pass(&mut self) -> Option<()> {
        if self.more {
            self.scanner.value().ok()?;
            self.more = self.scanner.next_item(b']', "").ok()?;
        }
        Some(())
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let item = self.first()?;
        self.pass()?;
        Some(item)
    }
}

impl<'a> Scanner<'a> {
    /// A key and its colon. Returns the key; none if it has lone surrogates.
    pub(super) fn unescaped_key(&mut self) -> Result<Option<Cow<'a, str>>, Fault> {
        let start = self.at;
        let written = self.key(&mut super::Skip)?;
        if !written.contains('\\') {
            return Ok(Some(Cow::Borrowed(written)));
        }
        Scanner { line: self.line, at: start }.unescaped()
    }

    /// A string; none if it has lone surrogates.
    fn unescaped(&mut self) -> Result<Option<Cow<'a, str>>, Fault> {
        let start = self.at;
        self.string(&mut super::Skip)?;
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
