//! Values of a validated text, which are parsed when they are looked at.

use std::borrow::Cow;

use crate::path::Step;
use crate::scan::{Append, Fault, Scanner, Skip};

/// A validated line, and where the wanted values are in it.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The line.
    pub line: &'a str,
    /// For each wanted path the offset of its value, if there is one.
    pub offsets: &'a [Option<usize>],
}

/// A value of a record.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The text that it is in.
    pub line: &'a str,
    /// Its first byte.
    pub at: usize,
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
                found = Some(View { line: self.line, at: scanner.at });
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
    fn first(&self) -> Option<View<'a>> {
        self.more.then_some(View { line: self.scanner.line, at: self.scanner.at })
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
    type Item = View<'a>;

    fn next(&mut self) -> Option<View<'a>> {
        let item = self.first()?;
        self.pass()?;
        Some(item)
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
