//! Marks: the white space in front of a value of a row says what its JSON cannot.
//!
//! ```text
//! {"role":"user","tool_calls": null,"at":<tab>"2026-01-31","scores":<tab>[["a",1]]}
//! ```
//!
//! A space: a struct fills in null for a record without the key. A tab: the value has a type that JSON lacks; an array is
//! a map, another value is the nearest one that JSON has. JSON that a column itself holds is written without white space,
//! so that it has no marks. Readers of JSON pass over them; conversations, which templates print, do not.

use std::borrow::Cow;

use memchr::memchr2;

/// In front of a null that a struct fills in.
pub(super) const FILLED: u8 = b' ';
/// In front of a value whose type JSON lacks.
pub(super) const TYPED: u8 = b'\t';
/// A character that no text has. Every part of a string of it shows that there was one.
const STAND_IN: &str = "\u{fdd0}";
/// The same in JSON of ASCII.
const ESCAPED_STAND_IN: &str = "\\ufdd0";

/// A value of a record as templates take it.
#[derive(Debug, Default)]
pub struct Plain<'a> {
    /// Its JSON.
    pub json: Cow<'a, str>,
    /// The keys of values whose type JSON lacks, in place of which there are stand-ins.
    typed: Vec<String>,
}

impl<'a> Plain<'a> {
    /// A value without marks.
    pub fn new(json: impl Into<Cow<'a, str>>) -> Self {
        Self { json: json.into(), typed: Vec::new() }
    }

    /// A value of a row as JSON: keys that structs fill in are left out unless `keeps_filled`, and maps are objects. The
    /// error says what was expected and found.
    pub(super) fn of_row(json: &'a str, keeps_filled: bool) -> Result<Self, String> {
        let mut reader = Reader { json, copied: 0, out: String::new(), typed: Vec::new() };
        reader.read(keeps_filled)?;
        let Reader { copied, mut out, typed, .. } = reader;
        if copied == 0 {
            return Ok(Self::new(json));
        }
        out.push_str(&json[copied..]);
        Ok(Self { json: Cow::Owned(out), typed })
    }

    /// The same with other JSON, made of this one.
    #[must_use]
    pub fn with_json(self, json: String) -> Self {
        Self { json: Cow::Owned(json), ..self }
    }

    /// Checks that no stand-in is in a text that a template made of some values. The error says what was expected and found.
    pub fn check<'b>(values: impl IntoIterator<Item = &'b Self>, text: &str) -> Result<(), String>
    where
        'a: 'b,
    {
        let keys: Vec<_> = values.into_iter().flat_map(|value| &value.typed).map(String::as_str).collect();
        if keys.is_empty() || ![STAND_IN, ESCAPED_STAND_IN].iter().any(|found| text.contains(found)) {
            return Ok(());
        }
        Err(format!(
            "expected values that JSON has where the template prints them, found a date, a time, a duration, a decimal, bytes or NaN \
             under {}; write them as strings or numbers",
            keys.join(", ")
        ))
    }
}

struct Reader<'a> {
    json: &'a str,
    /// How much of it is in `out`, or left out.
    copied: usize,
    out: String,
    typed: Vec<String>,
}

impl Reader<'_> {
    fn read(&mut self, keeps_filled: bool) -> Result<(), String> {
        let bytes = self.json.as_bytes();
        // The last key with its colon, open brackets, and how many were open outside of each map.
        let (mut key, mut depth, mut maps) = (0..0, 0_usize, Vec::new());
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let in_map = maps.last().is_some_and(|outside| depth - outside == 1);
            let in_pair = maps.last().is_some_and(|outside| depth - outside == 2);
            match byte {
                b'"' => {
                    let end = string_end(bytes, at);
                    if bytes.get(end) == Some(&b':') {
                        key = at..end + 1;
                    }
                    at = end;
                    continue;
                }
                b'[' if in_map => {
                    let end = string_end(bytes, at + 1);
                    if bytes.get(at + 1) != Some(&b'"') || bytes.get(end) != Some(&b',') {
                        return Err(format!(
                            "expected a map with strings as its keys under {}, found another; write it as a struct",
                            self.name(&key)
                        ));
                    }
                    self.copy(at, at + 1);
                    self.copy(end, end + 1);
                    self.out.push(':');
                    depth += 1;
                    at = end + 1;
                    continue;
                }
                b'[' | b'{' => depth += 1,
                b']' if in_pair => {
                    self.copy(at, at + 1);
                    depth -= 1;
                }
                b']' | b'}' => {
                    if in_map {
                        self.copy(at, at + 1);
                        self.out.push('}');
                        maps.pop();
                    }
                    depth -= 1;
                }
                FILLED if !keeps_filled => {
                    self.copy(at, at + 1 + "null".len());
                    self.out.truncate(self.out.len() - key.len());
                    at = self.copied;
                    if bytes.get(at) == Some(&b',') {
                        self.copied += 1;
                        at += 1;
                    } else if self.out.ends_with(',') {
                        self.out.pop();
                    }
                    continue;
                }
                TYPED if bytes.get(at + 1) == Some(&b'[') => {
                    self.copy(at, at + 2);
                    self.out.push('{');
                    maps.push(depth);
                    depth += 1;
                    at += 1;
                }
                TYPED => {
                    let end = scalar_end(bytes, at + 1);
                    self.copy(at, end);
                    self.out.push('"');
                    self.out.push_str(STAND_IN);
                    self.out.push('"');
                    let name = self.name(&key);
                    if !self.typed.contains(&name) {
                        self.typed.push(name);
                    }
                    at = end;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        Ok(())
    }

    /// Copies what is before `end`, and leaves out what is from there to `next`.
    fn copy(&mut self, end: usize, next: usize) {
        self.out.push_str(&self.json[self.copied..end]);
        self.copied = next;
    }

    /// A key as it is written.
    fn name(&self, key: &std::ops::Range<usize>) -> String {
        self.json[key.start..key.end.saturating_sub(1).max(key.start)].to_owned()
    }
}

/// Behind the string that begins at `at`.
pub(super) fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while let Some(found) = memchr2(b'"', b'\\', bytes.get(at..).unwrap_or_default()) {
        at += found;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

/// Behind the string, number or word that begins at `at`.
fn scalar_end(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at) == Some(&b'"') {
        return string_end(bytes, at);
    }
    let rest = bytes.get(at..).unwrap_or_default();
    let end = rest.iter().position(|byte| matches!(byte, b',' | b']' | b'}'));
    end.map_or(bytes.len(), |end| at + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(json: &str) -> String {
        Plain::of_row(json, false).unwrap().json.into_owned()
    }

    #[test]
    fn filled_keys_are_left_out_at_any_depth() {
        for (row, expected) in [
            (r#"[{"a": null}]"#, "[{}]"),
            (r#"[{"a": null,"b":1}]"#, r#"[{"b":1}]"#),
            (r#"[{"b":1,"a": null}]"#, r#"[{"b":1}]"#),
            (
                r#"[{"b":"x, \" null}","a\"": null,"c": null,"d":{"e": null,"f":[null]}}]"#,
                r#"[{"b":"x, \" null}","d":{"f":[null]}}]"#,
            ),
            (r#"[{"a":null,"b":{"c":null}}]"#, r#"[{"a":null,"b":{"c":null}}]"#),
        ] {
            assert_eq!(plain(row), expected);
            assert!(serde_json::from_str::<serde_json::Value>(expected).is_ok());
            let kept = Plain::of_row(row, true).unwrap().json;
            assert!(matches!(kept, Cow::Borrowed(json) if json == row));
        }
        assert!(matches!(Plain::of_row(r#"[{"a":" ,\t"}]"#, false).unwrap().json, Cow::Borrowed(_)));
    }

    #[test]
    fn maps_are_objects() {
        for (row, expected) in [
            ("[{\"m\":\t[]}]", "[{\"m\":{}}]"),
            (
                "[{\"m\":\t[[\"k\",[1,[2]]],[\"a\\\"]\",null]],\"n\":[[\"k\",1]]}]",
                "[{\"m\":{\"k\":[1,[2]],\"a\\\"]\":null},\"n\":[[\"k\",1]]}]",
            ),
            (
                "{\"m\":\t[[\"k\",\t[[\"l\",{\"x\": null}]]],[\"o\",\t[]]]}",
                "{\"m\":{\"k\":{\"l\":{}},\"o\":{}}}",
            ),
        ] {
            assert_eq!(plain(row), expected);
        }
        let error = Plain::of_row("[{\"m\":\t[[1,2]]}]", false).unwrap_err();
        assert!(error.contains("strings as its keys under \"m\", found another"), "{error}");
    }

    #[test]
    fn values_whose_type_json_lacks_must_not_be_printed() {
        let row = "[{\"at\":\t\"2026-01-31\",\"of\":[\t1.50,\t2,\tnull],\"at\":\t\"x\\\",\"}]";
        let found = Plain::of_row(row, true).unwrap();
        assert_eq!(found.json.replace(STAND_IN, "."), r#"[{"at":".","of":[".",".","."],"at":"."}]"#);
        assert_eq!(Plain::check([&found], "a"), Ok(()));
        for text in [STAND_IN, ESCAPED_STAND_IN] {
            let error = Plain::check([&found, &Plain::new("[]")], &format!("a{text}b")).unwrap_err();
            assert!(error.contains("NaN under \"at\", \"of\"; write"), "{error}");
            assert_eq!(Plain::check([&Plain::new("[]")], text), Ok(()));
        }
    }
}
