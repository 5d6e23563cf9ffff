//! Values on their way to bytes.

use super::{
    BIG_INT, BYTES, DATE, DECIMAL, DURATION, FALSE, FILLED, FLOAT, INT, JSON, LENGTH_BYTES, LIST, MAP,
    NOT_A_NUMBER, NULL, OBJECT, TEXT, TIME, TIMESTAMP, TRUE, Typed, UNKNOWN, UUID, ZONED,
};
use crate::scan;
use crate::write::{write_float, write_json};

/// Digits of an integer of 256 bits, the longest decimal that Arrow has.
const LARGEST_DECIMAL_BYTES: usize = 32;
/// The largest scale of a decimal that is packed: no writer has one above 76.
const LARGEST_SCALE: u32 = 1000;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Packs a value, whose parts are given in order.
#[derive(Debug, Default)]
pub struct Packer {
    bytes: Vec<u8>,
    /// Each value counts one more, the comma or bracket in front of it. No value has more than eight times as many
    /// bytes as its JSON.
    json_bytes: u64,
    /// The JSON of the last value that was written to be counted.
    written: Vec<u8>,
}

/// Why a string cannot be packed.
pub struct TextFault {
    expected: &'static str,
    found: String,
}

impl TextFault {
    /// The message about the column that has the string.
    pub fn describe(&self, column: &str) -> String {
        format!("expected {} in the column {column:?}{}", self.expected, self.found)
    }
}

impl Packer {
    /// Begins another value.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.json_bytes = 0;
    }

    /// The value.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many bytes the JSON of what was packed has.
    pub fn json_bytes(&self) -> u64 {
        self.json_bytes
    }

    /// Null, where a key is not what is missing.
    pub fn null(&mut self) {
        self.begin(NULL, 4);
    }

    /// Null that a struct fills in for a record without the key.
    pub fn filled(&mut self) {
        self.begin(FILLED, 4);
    }

    /// True or false.
    pub fn boolean(&mut self, value: bool) {
        self.begin(if value { TRUE } else { FALSE }, if value { 4 } else { 5 });
    }

    /// Any integer.
    pub fn integer(&mut self, number: impl Into<i128>) {
        let number: i128 = number.into();
        let Ok(number) = i64::try_from(number) else {
            let digits = number.to_string();
            return self.tagged(BIG_INT, digits.as_bytes(), digits.len());
        };
        let digits = number.unsigned_abs().checked_ilog10().unwrap_or(0) as usize + 1;
        self.begin(INT, digits + usize::from(number < 0));
        // The sign is the lowest bit, so that small numbers are short.
        self.number(number.cast_unsigned() << 1 ^ (number >> 63).cast_unsigned());
    }

    /// A number, which may be infinite or not defined.
    pub fn float(&mut self, number: f64) {
        if number.is_nan() {
            self.typed(NOT_A_NUMBER, Typed::NotANumber);
        } else {
            self.written.clear();
            write_float(number, &mut self.written);
            self.begin(FLOAT, self.written.len());
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// A string, which must be UTF-8; or if `is_json` the JSON value that it holds.
    pub fn text(&mut self, bytes: &[u8], is_json: bool) -> Result<(), TextFault> {
        if is_json {
            return self.json(bytes).map_err(|found| TextFault { expected: "JSON", found });
        }
        match simdutf8::compat::from_utf8(bytes) {
            Ok(_) => {
                self.tagged(TEXT, bytes, written_bytes(bytes));
                Ok(())
            }
            Err(error) => {
                let (at, byte) = (error.valid_up_to(), bytes[error.valid_up_to()]);
                let found = format!(", found byte 0x{byte:02x} at byte {at} of a value");
                Err(TextFault { expected: "UTF-8", found })
            }
        }
    }

    fn json(&mut self, text: &[u8]) -> Result<(), String> {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        match scan::value(text) {
            Ok(value) => {
                self.written.clear();
                write_json(value, &mut self.written);
                self.tagged(JSON, text.trim_ascii(), self.written.len());
                Ok(())
            }
            Err(fault) => {
                Err(format!(": {}", fault.describe(text, 0, "").replace(" of the line", " of the value")))
            }
        }
    }

    /// A value that JSON has nothing for.
    pub fn unknown(&mut self) {
        self.typed(UNKNOWN, Typed::Unknown);
    }

    /// Bytes, which need not be UTF-8.
    pub fn binary(&mut self, bytes: &[u8]) {
        self.typed(BYTES, Typed::Bytes(bytes));
        self.sized(bytes);
    }

    /// The bytes of a UUID.
    pub fn uuid(&mut self, bytes: &[u8]) {
        self.typed(UUID, Typed::Uuid(bytes));
        self.sized(bytes);
    }

    /// An integer of big-endian bytes divided by 10^`scale`, with all its digits.
    pub fn decimal(&mut self, bytes: &[u8], scale: i32) {
        if bytes.len() > LARGEST_DECIMAL_BYTES || scale.unsigned_abs() > LARGEST_SCALE {
            return self.unknown();
        }
        let digits = decimal(bytes, scale);
        self.begin(DECIMAL, digits.len());
        self.bytes.extend_from_slice(&scale.to_le_bytes());
        self.sized(digits.as_bytes());
    }

    /// A day since 1970.
    pub fn date(&mut self, days: i64) {
        self.typed(DATE, Typed::Date(days));
        self.fixed(days);
    }

    /// A time of the day, in units of which a second has `per_second`.
    pub fn time(&mut self, time: i64, per_second: i64) {
        self.typed(TIME, Typed::Time { time, per_second });
        self.fixed(time);
        self.number(per_second.cast_unsigned());
    }

    /// A time since 1970, in units of which a second has `per_second`; in UTC, and shown in a zone, if it has one.
    pub fn timestamp(&mut self, time: i64, per_second: i64, zone: Option<&str>) {
        let tag = if zone.is_some() { ZONED } else { TIMESTAMP };
        self.typed(tag, Typed::Timestamp { time, per_second, zone });
        self.fixed(time);
        self.number(per_second.cast_unsigned());
        if let Some(zone) = zone {
            self.sized(zone.as_bytes());
        }
    }

    /// A time span, in units of which a second has `per_second`.
    pub fn duration(&mut self, time: i64, per_second: i64) {
        self.typed(DURATION, Typed::Duration { time, per_second });
        self.fixed(time);
        self.number(per_second.cast_unsigned());
    }

    /// Begins a list, whose items are next. Returns what [`close`](Self::close) needs.
    pub fn open_list(&mut self) -> usize {
        self.open(LIST)
    }

    /// Begins a map, whose items are pairs: lists of two.
    pub fn open_map(&mut self) -> usize {
        self.open(MAP)
    }

    /// Begins an object, whose keys and values are next.
    pub fn open_object(&mut self) -> usize {
        self.open(OBJECT)
    }

    /// The key of the next value.
    pub fn key(&mut self, key: &str) {
        self.json_bytes += written_bytes(key.as_bytes()) as u64 + 1;
        self.sized(key.as_bytes());
    }

    /// Ends a list, map or object.
    pub fn close(&mut self, opened: usize) {
        let length = (self.bytes.len() - opened) as u64;
        self.json_bytes += if length == 0 { 2 } else { 1 };
        self.bytes[opened - LENGTH_BYTES..opened].copy_from_slice(&length.to_le_bytes());
    }

    fn open(&mut self, tag: u8) -> usize {
        self.begin(tag, 0);
        self.bytes.extend_from_slice(&[0; LENGTH_BYTES]);
        self.bytes.len()
    }

    fn begin(&mut self, tag: u8, json_bytes: usize) {
        self.bytes.push(tag);
        self.json_bytes += 1 + json_bytes as u64;
    }

    fn typed(&mut self, tag: u8, value: Typed<'_>) {
        self.written.clear();
        value.write_json(&mut self.written);
        self.begin(tag, self.written.len());
    }

    fn fixed(&mut self, number: i64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8], json_bytes: usize) {
        self.begin(tag, json_bytes);
        self.sized(bytes);
    }

    fn sized(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A number in base 128, the lowest digit first; all but the last one have the high bit.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

/// How many bytes JSON has of a string.
fn written_bytes(text: &[u8]) -> usize {
    let escaped = count(text, |byte| byte < 0x20 || byte == b'"' || byte == b'\\');
    if escaped == 0 {
        return text.len() + 2;
    }
    // As \u0001, where there is no shorter escape.
    let long = count(text, |byte| byte < 0x20 && !matches!(byte, b'\x08' | b'\t' | b'\n' | b'\x0c' | b'\r'));
    text.len() + 2 + escaped + 4 * long
}

/// How many bytes are such ones, counted in bytes, many at a time.
fn count(text: &[u8], is_one: impl Fn(u8) -> bool) -> usize {
    let in_chunk = |chunk: &[u8]| chunk.iter().map(|&byte| u8::from(is_one(byte))).sum::<u8>();
    text.chunks(255).map(|chunk| usize::from(in_chunk(chunk))).sum()
}

/// An integer of big-endian bytes divided by 10^`scale`.
fn decimal(bytes: &[u8], scale: i32) -> String {
    let is_negative = bytes.first().is_some_and(|&byte| byte >= 0x80);
    let mut digits = decimal_digits(magnitude(bytes, is_negative));
    let fraction = usize::try_from(scale).unwrap_or(0);
    if digits.len() <= fraction {
        digits.insert_str(0, &"0".repeat(fraction + 1 - digits.len()));
    }
    if fraction > 0 {
        digits.insert(digits.len() - fraction, '.');
    } else if digits != "0" {
        digits.push_str(&"0".repeat(scale.unsigned_abs() as usize));
    }
    if is_negative {
        digits.insert(0, '-');
    }
    digits
}

/// The absolute value of an integer in two's complement.
fn magnitude(bytes: &[u8], is_negative: bool) -> Vec<u8> {
    if !is_negative {
        return bytes.to_vec();
    }
    let mut magnitude: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    for byte in magnitude.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    magnitude
}

fn decimal_digits(mut number: Vec<u8>) -> String {
    let mut digits = Vec::new();
    loop {
        let mut rest = 0_u32;
        for byte in &mut number {
            let value = rest << 8 | u32::from(*byte);
            *byte = (value / 10) as u8;
            rest = value % 10;
        }
        digits.push(b'0' + rest as u8);
        if number.iter().all(|&byte| byte == 0) {
            break;
        }
    }
    digits.iter().rev().map(|&digit| char::from(digit)).collect()
}
