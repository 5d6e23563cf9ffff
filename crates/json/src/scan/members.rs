//! The members of a record, for `gristmill inspect`.

use super::fault::Fault;
use super::sink::Sink;
use super::{Scanner, for_each_member};
use crate::view::View;

/// A key of a record, and the kind of its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The key; lone surrogates in it stay escaped.
    pub key: String,
    /// The kind of its value, or that the key cannot be that of a text.
    pub kind: &'static str,
    /// The number of characters if it is a string.
    pub characters: usize,
}

/// The members of the object that `line` holds, in order. The whole line is validated.
pub fn members(line: &[u8]) -> Result<Vec<Member>, Fault> {
    let mut members = Vec::new();
    for_each_member(line, |scanner| {
        let mut key = Key { line, text: String::new(), is_text: true };
        scanner.key(&mut key)?;
        let (kind, characters) = scanner.kind()?;
        let kind = if key.is_text { kind } else { "under a key with lone surrogates" };
        members.push(Member { key: key.text, kind, characters });
        Ok(())
    })?;
    Ok(members)
}

impl View<'_> {
    /// Its kind, for people.
    pub fn kind(self) -> &'static str {
        Scanner { line: &self.json(), at: 0 }.kind().map_or("", |(kind, _)| kind)
    }

    /// The members of an object; none of any other value.
    pub fn members(self) -> Vec<Member> {
        members(self.json().as_bytes()).unwrap_or_default()
    }
}

impl Scanner<'_> {
    /// Any value: its kind, and the number of characters if it is a string.
    fn kind(&mut self) -> Result<(&'static str, usize), Fault> {
        let kind = match self.peek() {
            Some(b'"') => {
                let mut count = Count::default();
                self.string(&mut count)?;
                // A run does not accept such a string as text.
                let kind = if count.lone_surrogates { "string with lone surrogates" } else { "string" };
                return Ok((kind, count.characters));
            }
            Some(b'{') => "object",
            Some(b'[') => "array",
            Some(b't' | b'f') => "boolean",
            Some(b'n') => "null",
            _ => "number",
        };
        self.value()?;
        Ok((kind, 0))
    }
}

/// A key that is shown.
struct Key<'a> {
    line: &'a [u8],
    text: String,
    is_text: bool,
}

impl Sink for Key<'_> {
    fn literal(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn char(&mut self, c: char) {
        self.text.push(c);
    }

    fn lone_surrogate(&mut self, at: usize) {
        let escape = &self.line[at..at + r"\ud800".len()];
        self.text.push_str(&String::from_utf8_lossy(escape));
        self.is_text = false;
    }
}

/// Content that is counted.
#[derive(Default)]
struct Count {
    characters: usize,
    lone_surrogates: bool,
}

impl Sink for Count {
    fn literal(&mut self, text: &str) {
        self.characters += text.chars().count();
    }

    fn char(&mut self, _: char) {
        self.characters += 1;
    }

    fn lone_surrogate(&mut self, _: usize) {
        self.characters += 1;
        self.lone_surrogates = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_members_have_key_kind_and_length() {
        let line = br#" {"a\u0062": "\u00e9\n\ud83d\ude00x", "n": -1.5e3, "n": null, "": [{}], "o": {"a": 1}, "t": true,
            "s": "\ud800", "\uDC00k": "xy"} "#;
        let found: Vec<_> =
            members(line).unwrap().into_iter().map(|m| (m.key, m.kind, m.characters)).collect();
        let expected = [
            ("ab", "string", 4),
            ("n", "number", 0),
            ("n", "null", 0),
            ("", "array", 0),
            ("o", "object", 0),
            ("t", "boolean", 0),
            ("s", "string with lone surrogates", 1),
            (r"\uDC00k", "under a key with lone surrogates", 2),
        ];
        assert_eq!(found, expected.map(|(key, kind, characters)| (key.to_owned(), kind, characters)));
        assert_eq!(members(b"{}").unwrap(), []);
    }

    #[test]
    fn invalid_lines_have_the_faults_of_extraction() {
        for line in [
            "",
            "[]",
            "{\"text\": NaN}",
            "{\"text\": \"a\"} x",
            "{\"text\": \"a\", }",
            "{\"text\": \"\u{1}\"}",
        ] {
            let expected = super::super::extract(line.as_bytes(), "text", &mut String::new()).unwrap_err();
            assert_eq!(members(line.as_bytes()).unwrap_err(), expected, "{line}");
        }
    }
}
