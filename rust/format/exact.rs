//! Values of a row that JSON lacks: bytes, dates, times, decimals and NaN, as Python is to have them.
//!
//! Templates and filters read a row as JSON, where these are strings, numbers and null. If a row is kept for Python,
//! the reader also notes what they are, and [`Exact::write`] puts that in their place, for `gristmill._prompts.exact`.

use std::io::Write;
use std::ops::Range;

use super::to_json::{write_digits, write_string};

/// The first byte of a row that has such values: no JSON begins with it.
const MARK: u8 = 0;
/// The first character of the key of an object that stands for a value. Names of columns are UTF-8, so none has it.
const KEY: &str = r"\ud800";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The values of one row.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Exact {
    /// The part of the row's JSON that each replaces, and where it ends in `json`.
    parts: Vec<(Range<usize>, usize)>,
    json: Vec<u8>,
}

/// A value.
pub(super) enum Typed<'a> {
    Bytes(&'a [u8]),
    Uuid(&'a [u8]),
    /// An integer of big-endian bytes, divided by 10^`scale`.
    Decimal {
        bytes: &'a [u8],
        scale: i32,
    },
    /// Days since 1970.
    Date(i64),
    Time {
        time: i64,
        per_second: i64,
    },
    Timestamp {
        time: i64,
        per_second: i64,
        zone: Option<&'a str>,
    },
    Duration {
        time: i64,
        per_second: i64,
    },
    NotANumber,
}

impl Exact {
    /// Forgets all values.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.json.clear();
    }

    /// Notes the value that a part of the row's JSON stands for, behind those that were noted before.
    pub(super) fn note(&mut self, part: Range<usize>, value: &Typed<'_>) {
        value.write(&mut self.json);
        self.parts.push((part, self.json.len()));
    }

    /// The values, if there are any. Afterwards there are none.
    pub(super) fn take(&mut self) -> Option<Box<Self>> {
        (!self.parts.is_empty()).then(|| Box::new(std::mem::take(self)))
    }

    /// Appends a row, given as JSON, with its values.
    pub fn write(&self, row: &[u8], out: &mut Vec<u8>) {
        out.push(MARK);
        let (mut from, mut start) = (0, 0);
        for (part, end) in &self.parts {
            out.extend_from_slice(&row[from..part.start]);
            out.extend_from_slice(&self.json[start..*end]);
            (from, start) = (part.end, *end);
        }
        out.extend_from_slice(&row[from..]);
    }
}

impl Typed<'_> {
    /// Appends an object of one key, which says how its value is to be read; or Python's word for NaN.
    fn write(&self, out: &mut Vec<u8>) {
        // Writing to memory does not fail.
        _ = match self {
            Self::NotANumber => write!(out, "NaN"),
            Self::Bytes(_) => write!(out, r#"{{"{KEY}bytes":""#),
            Self::Uuid(_) => write!(out, r#"{{"{KEY}uuid":""#),
            Self::Decimal { .. } => write!(out, r#"{{"{KEY}decimal":""#),
            Self::Date(days) => write!(out, r#"{{"{KEY}date":{days}}}"#),
            Self::Time { time, per_second } => write!(out, r#"{{"{KEY}time":[{time},{per_second}]}}"#),
            Self::Timestamp { time, per_second, .. } => {
                write!(out, r#"{{"{KEY}timestamp":[{time},{per_second},"#)
            }
            Self::Duration { time, per_second } => {
                write!(out, r#"{{"{KEY}duration":[{time},{per_second}]}}"#)
            }
        };
        match self {
            Self::Bytes(bytes) | Self::Uuid(bytes) => {
                write_base64(bytes, out);
                out.extend_from_slice(b"\"}");
            }
            Self::Decimal { bytes, scale } => {
                write_digits(bytes, 0, out);
                _ = write!(out, "E{}\"}}", -i64::from(*scale));
            }
            Self::Timestamp { zone, .. } => {
                match zone {
                    Some(zone) => write_string(zone, out),
                    None => out.extend_from_slice(b"null"),
                }
                out.extend_from_slice(b"]}");
            }
            _ => {}
        }
    }
}

fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) as usize % 64;
            out.push(if digit <= group.len() { ALPHABET[index] } else { b'=' });
        }
    }
}

/// The bytes of a text in base64, up to the first character that is none of its digits.
pub(super) fn base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in text.bytes().map_while(|digit| ALPHABET.iter().position(|&known| known == digit)) {
        (bits, count) = (bits << 6 | digit as u32, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_replace_their_parts() {
        let mut exact = Exact::default();
        let row = br#"{"a":"?","b":null,"c":1.10,"d":[0]}"#;
        exact.note(5..8, &Typed::Bytes(b"\x00\xff"));
        exact.note(13..17, &Typed::NotANumber);
        exact.note(22..26, &Typed::Decimal { bytes: &[110], scale: 2 });
        let time = Typed::Timestamp { time: -1, per_second: 1000, zone: Some("UTC") };
        exact.note(32..33, &time);
        let taken = exact.take().unwrap();
        assert_eq!((exact.take(), exact), (None, Exact::default()));
        let mut out = Vec::new();
        taken.write(row, &mut out);
        let expected = [
            "\0{\"a\":{\"\\ud800bytes\":\"AP8=\"},\"b\":NaN,\"c\":{\"\\ud800decimal\":\"110E-2\"},",
            "\"d\":[{\"\\ud800timestamp\":[-1,1000,\"UTC\"]}]}",
        ];
        assert_eq!(String::from_utf8(out).unwrap(), expected.concat());
    }

    #[test]
    fn base64_is_read_as_written() {
        for length in 0..9 {
            let bytes: Vec<u8> =
                (0..length).map(|index: u8| index.wrapping_mul(41).wrapping_add(200)).collect();
            let mut text = Vec::new();
            write_base64(&bytes, &mut text);
            assert_eq!(text.len(), bytes.len().div_ceil(3) * 4);
            assert_eq!(base64(str::from_utf8(&text).unwrap()), bytes);
        }
    }
}
