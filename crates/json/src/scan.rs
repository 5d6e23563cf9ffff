//! Validates one line of JSON and extracts the string under one key of its object.
//!
//! A scanner of our own, because no library implements the rule (docs/formats.md): the last of several equal keys
//! counts, whatever the others hold, and values that are not wanted may hold lone surrogates. It also reports where a
//! line is wrong and what was expected there.

mod fault;
mod members;
mod nesting;
mod select;
mod sink;
mod stop;
#[cfg(test)]
mod tests;

use crate::view::{Line, View};
use fault::Kind;
pub use fault::{Fault, keys};
pub use members::{Member, members};
use nesting::{Container, Nesting};
pub use select::{Offsets, Selector};
pub(crate) use sink::{Append, Skip};
use sink::{Match, Sink};
pub(crate) use stop::find_stop;

/// The character of an escape by the one after its backslash; 0 if it is not a simple escape. A table, because a branch for each
/// kind of escape is mispredicted too often: that cost 8 % on English text.
const UNESCAPED: [u8; 256] = {
    let mut table = [0; 256];
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table[b'/' as usize] = b'/';
    table[b'b' as usize] = 0x08;
    table[b'f' as usize] = 0x0c;
    table[b'n' as usize] = b'\n';
    table[b'r' as usize] = b'\r';
    table[b't' as usize] = b'\t';
    table
};

const AFTER_OBJECT: &str = "the end of the line after the object";

/// Appends the string under `key` of the object that `line` holds to `text` and returns its length.
/// On error `text` is as it was.
pub fn extract(line: &[u8], key: &str, text: &mut String) -> Result<usize, Fault> {
    let start = text.len();
    let result = extract_last(line, key, text);
    if result.is_err() {
        text.truncate(start);
    }
    result.map(|()| text.len() - start)
}

/// Like [`extract`] of a record that `is_kept`, which gets the values that the selector finds in the same pass over the
/// line; nothing is extracted of others, and they need no text. Returns whether it is kept.
pub fn extract_if(
    line: &[u8],
    key: &str,
    text: &mut String,
    selector: &Selector,
    offsets: &mut Offsets,
    is_kept: impl FnOnce(Line<'_>) -> bool,
) -> Result<bool, Fault> {
    let start = text.len();
    let selected = select_and_extract(line, key, text, selector, offsets);
    let found =
        selected.and_then(
            |(line, extracted)| {
                if is_kept(Line { line, offsets }) { extracted.map(|()| true) } else { Ok(false) }
            },
        );
    if found != Ok(true) {
        text.truncate(start);
    }
    found
}

/// Finds the values of the selector's paths in a line that must hold an object, and returns it.
pub fn select<'a>(line: &'a [u8], selector: &Selector, offsets: &mut Offsets) -> Result<&'a str, Fault> {
    let line = simdutf8::basic::from_utf8(line).map_err(|_| Fault::utf8(line))?;
    let mut scanner = Scanner { line, at: 0 };
    scanner.space();
    if scanner.peek() != Some(b'{') {
        return Err(scanner.fault(Kind::NotAnObject));
    }
    selector.select(&mut scanner, offsets)?;
    scanner.end_of_line(AFTER_OBJECT)?;
    Ok(line)
}

/// Validates a text that holds one value of any kind, and returns that.
pub fn value(text: &[u8]) -> Result<View<'_>, Fault> {
    let line = simdutf8::basic::from_utf8(text).map_err(|_| Fault::utf8(text))?;
    let mut scanner = Scanner { line, at: 0 };
    scanner.space();
    let at = scanner.at;
    scanner.value()?;
    scanner.end_of_line("the end after the value")?;
    Ok(View::written(line, at))
}

/// The inner result says whether there is a text, the outer whether the line is valid.
fn select_and_extract<'a>(
    line: &'a [u8],
    key: &str,
    text: &mut String,
    selector: &Selector,
    offsets: &mut Offsets,
) -> Result<(&'a str, Result<(), Fault>), Fault> {
    let start = text.len();
    selector.reset(offsets);
    let mut extracted = Err(Fault { at: 0, kind: Kind::NoSuchKey });
    let line = for_each_member(line, |scanner| {
        let member = scanner.unescaped_key()?;
        let wanted = member.as_deref().and_then(|member| selector.member(member));
        if member.as_deref() != Some(key) {
            return match wanted {
                Some(node) => node.select(scanner, offsets),
                None => scanner.value(),
            };
        }
        let at = scanner.at;
        text.truncate(start);
        extracted = scanner.text(text)?;
        if let Some(node) = wanted
            && !node.note(at, offsets)
        {
            scanner.at = at;
            node.select(scanner, offsets)?;
        }
        Ok(())
    })?;
    selector.note_object(line, offsets);
    Ok((line, or_inside(extracted, line.as_bytes(), key, text)))
}

/// Calls `each` with the keys of the object that a valid `line` holds, as written there.
pub fn for_each_key<'a>(line: &'a [u8], mut each: impl FnMut(&'a str)) {
    let valid = for_each_member(line, |scanner| {
        each(scanner.key(&mut Skip)?);
        scanner.value()
    });
    debug_assert!(valid.is_ok());
}

fn extract_last(line: &[u8], key: &str, text: &mut String) -> Result<(), Fault> {
    let start = text.len();
    let mut found = Err(Fault { at: 0, kind: Kind::NoSuchKey });
    for_each_member(line, |scanner| {
        let mut wanted = Match { rest: Some(key.as_bytes()) };
        scanner.key(&mut wanted)?;
        if wanted.rest == Some(&[]) {
            text.truncate(start);
            found = scanner.text(text)?;
            Ok(())
        } else {
            scanner.value()
        }
    })?;
    or_inside(found, line, key, text)
}

/// `found`, unless there is no such key: the string under `a.b` may be that under `b` in the object under `a`, as it is of
/// a struct in Parquet.
fn or_inside(found: Result<(), Fault>, line: &[u8], key: &str, text: &mut String) -> Result<(), Fault> {
    let (Err(Fault { kind: Kind::NoSuchKey, .. }), Some((outer, inner))) = (&found, key.split_once('.'))
    else {
        return found;
    };
    let mut object = None;
    for_each_member(line, |scanner| {
        let mut wanted = Match { rest: Some(outer.as_bytes()) };
        scanner.key(&mut wanted)?;
        let start = scanner.at;
        scanner.value()?;
        if wanted.rest == Some(&[]) {
            object = (line[start] == b'{').then_some(start..scanner.at);
        }
        Ok(())
    })?;
    let Some(object) = object else { return found };
    match extract_last(&line[object.clone()], inner, text) {
        Err(Fault { kind: Kind::NoSuchKey, .. }) => found,
        Err(Fault { at, kind }) => Err(Fault { at: object.start + at, kind }),
        Ok(()) => Ok(()),
    }
}

/// Validates a line that must hold an object, and returns it. `take` is called for each member, and must take its key and
/// its value.
#[inline(always)]
fn for_each_member<'a>(
    line: &'a [u8],
    mut take: impl FnMut(&mut Scanner<'a>) -> Result<(), Fault>,
) -> Result<&'a str, Fault> {
    let line = simdutf8::basic::from_utf8(line).map_err(|_| Fault::utf8(line))?;
    let mut scanner = Scanner { line, at: 0 };
    let mut more = scanner.open_object()?;
    while more {
        take(&mut scanner)?;
        more = scanner.next_member()?;
    }
    scanner.end_of_line(AFTER_OBJECT)?;
    Ok(line)
}

/// A position in a line. Each method starts at its token and stops after it.
pub(crate) struct Scanner<'a> {
    pub(crate) line: &'a str,
    pub(crate) at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn peek(&self) -> Option<u8> {
        self.line.as_bytes().get(self.at).copied()
    }

    pub(crate) fn expected(&self, what: &'static str) -> Fault {
        self.fault(Kind::Expected(what))
    }

    fn fault(&self, kind: Kind) -> Fault {
        Fault { at: self.at, kind }
    }

    pub(crate) fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Opens an object; returns whether a member follows.
    pub(crate) fn open_object(&mut self) -> Result<bool, Fault> {
        self.space();
        if self.peek() != Some(b'{') {
            return Err(self.fault(Kind::NotAnObject));
        }
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(false);
        }
        Ok(true)
    }

    /// Opens an array; returns whether an item follows.
    pub(crate) fn open_array(&mut self) -> bool {
        self.at += 1;
        self.space();
        let is_empty = self.peek() == Some(b']');
        self.at += usize::from(is_empty);
        !is_empty
    }

    /// Reads to the next member of an object or past its end; returns whether there is a next one.
    pub(crate) fn next_member(&mut self) -> Result<bool, Fault> {
        self.next_item(b'}', "',' or '}' after a member")
    }

    /// Reads to the next item of a container that `close` closes, or past its end; returns whether there is a next one.
    pub(crate) fn next_item(&mut self, close: u8, expected: &'static str) -> Result<bool, Fault> {
        self.space();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                self.space();
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            _ => Err(self.expected(expected)),
        }
    }

    pub(crate) fn end_of_line(&mut self, expected: &'static str) -> Result<(), Fault> {
        self.space();
        if self.at < self.line.len() {
            return Err(self.expected(expected));
        }
        Ok(())
    }

    /// A key and its colon. Returns the key as written.
    pub(crate) fn key(&mut self, sink: &mut impl Sink) -> Result<&'a str, Fault> {
        if self.peek() != Some(b'"') {
            return Err(self.expected("a key ('\"')"));
        }
        let from = self.at + 1;
        self.string(sink)?;
        let key = &self.line[from..self.at - 1];
        self.colon()?;
        Ok(key)
    }

    /// The colon behind a key, and the space around it.
    pub(crate) fn colon(&mut self) -> Result<(), Fault> {
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.expected("':' after a key"));
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    /// The value under the wanted key. The inner result says whether it is text, the outer whether the line is valid: a
    /// later value under the same key may still be text.
    pub(crate) fn text(&mut self, text: &mut String) -> Result<Result<(), Fault>, Fault> {
        let at = self.at;
        if self.peek() != Some(b'"') {
            self.value()?;
            return Ok(Err(Fault { at, kind: Kind::NotText }));
        }
        let mut sink = Append { text, lone_surrogate: None };
        self.string(&mut sink)?;
        Ok(match sink.lone_surrogate {
            None => Ok(()),
            Some(at) => Err(Fault { at, kind: Kind::LoneSurrogate }),
        })
    }

    /// Any value, with everything in it.
    pub(crate) fn value(&mut self) -> Result<(), Fault> {
        let mut nesting = Nesting::default();
        loop {
            match self.peek() {
                Some(b'"') => self.string(&mut Skip)?,
                Some(b'{') => {
                    if self.open_object()? {
                        nesting.open(Container::Object);
                        self.key(&mut Skip)?;
                        continue;
                    }
                }
                Some(b'[') => {
                    if self.open_array() {
                        nesting.open(Container::Array);
                        continue;
                    }
                }
                Some(b'-' | b'0'..=b'9') => {
                    if nesting.innermost() == Some(Container::Array) {
                        self.pass_integers();
                    }
                    self.number()?;
                }
                Some(b't') => self.word("true")?,
                Some(b'f') => self.word("false")?,
                Some(b'n') => self.word("null")?,
                _ => return Err(self.expected("a value")),
            }
            if !self.after_value(&mut nesting)? {
                return Ok(());
            }
        }
    }

    /// Reads on after a value inside `nesting` and closes the containers that end there; returns whether another value
    /// follows.
    fn after_value(&mut self, nesting: &mut Nesting) -> Result<bool, Fault> {
        while let Some(container) = nesting.innermost() {
            let more = match container {
                Container::Object => self.next_member()?,
                Container::Array => self.next_item(b']', "',' or ']' after an element")?,
            };
            if more {
                if container == Container::Object {
                    self.key(&mut Skip)?;
                }
                return Ok(true);
            }
            nesting.close();
        }
        Ok(false)
    }

    pub(crate) fn word(&mut self, word: &'static str) -> Result<(), Fault> {
        if !self.line.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.expected("a value"));
        }
        self.at += word.len();
        Ok(())
    }

    pub(crate) fn number(&mut self) -> Result<(), Fault> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// Passes over integers that follow one another in an array, up to the last of them: lists of ids have very many.
    fn pass_integers(&mut self) {
        let bytes = self.line.as_bytes();
        let mut at = self.at;
        loop {
            let mut end = at + 1;
            match bytes.get(at) {
                Some(b'0') => {}
                Some(b'1'..=b'9') => {
                    while bytes.get(end).is_some_and(u8::is_ascii_digit) {
                        end += 1;
                    }
                }
                _ => return,
            }
            // The number counts only if another one follows it.
            self.at = at;
            if bytes.get(end) != Some(&b',') {
                return;
            }
            at = end + 1 + usize::from(bytes.get(end + 1) == Some(&b' '));
        }
    }

    pub(crate) fn digits(&mut self) -> Result<(), Fault> {
        if !self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.expected("a digit"));
        }
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    /// A string, whose content goes to `sink`.
    pub(crate) fn string(&mut self, sink: &mut impl Sink) -> Result<(), Fault> {
        self.at += 1;
        loop {
            let stop = find_stop(self.line.as_bytes(), self.at);
            sink.literal(&self.line[self.at..stop]);
            self.at = stop;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.escape(sink)?,
                Some(_) => return Err(self.expected("control characters in a string to be escaped")),
                None => return Err(self.expected("'\"' at the end of a string")),
            }
        }
    }

    #[inline]
    pub(crate) fn escape(&mut self, sink: &mut impl Sink) -> Result<(), Fault> {
        let start = self.at;
        self.at += 1;
        let kind = self.peek().unwrap_or_default();
        let char = UNESCAPED[usize::from(kind)];
        if char != 0 {
            self.at += 1;
            sink.char(char::from(char));
            return Ok(());
        }
        if kind != b'u' {
            return Err(self.expected("one of \" \\ / b f n r t u after a backslash"));
        }
        self.at += 1;
        let unit = self.hex4()?;
        match char::from_u32(unit).or_else(|| self.low_surrogate(unit)) {
            Some(char) => sink.char(char),
            None => sink.lone_surrogate(start),
        }
        Ok(())
    }

    pub(crate) fn hex4(&mut self) -> Result<u32, Fault> {
        let mut unit = 0;
        for _ in 0..4 {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(16)) else {
                return Err(self.expected("four hexadecimal digits after \\u"));
            };
            unit = unit << 4 | digit;
            self.at += 1;
        }
        Ok(unit)
    }

    /// The character that the surrogate `high` forms with an escaped low surrogate after it. If there is none, nothing
    /// is consumed: the next escape is read by itself.
    pub(crate) fn low_surrogate(&mut self, high: u32) -> Option<char> {
        let rest = &self.line.as_bytes()[self.at..];
        if !(0xd800..0xdc00).contains(&high) || !rest.starts_with(b"\\u") {
            return None;
        }
        let mut ahead = Scanner { line: self.line, at: self.at + 2 };
        let low = ahead.hex4().ok().filter(|unit| (0xdc00..0xe000).contains(unit))?;
        self.at = ahead.at;
        char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))
    }
}
