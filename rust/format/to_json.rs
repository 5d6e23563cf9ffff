//! Values of columns as JSON: what Python's `json.dumps` makes of the rows that pyarrow's `to_pylist` returns. Some
//! types are not in JSON: times are strings as their `isoformat()`, decimals are numbers, and bytes are read as UTF-8;
//! they have [marks](super::marks).

use std::borrow::Cow;
use std::io::Write;

use super::jsonl;
use super::marks::{FILLED, TYPED, string_end};

/// Digits of an integer of 256 bits, the longest decimal that Arrow has.
pub(super) const LARGEST_DECIMAL_BYTES: usize = 32;
/// The largest scale of a decimal that is written: no writer has one above 76.
const LARGEST_SCALE: u32 = 1000;
const SECONDS_A_DAY: i64 = 86_400;

/// A string.
pub(super) fn write_string(text: &str, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    _ = serde_json::to_writer(out, text);
}

/// Bytes, which need not be UTF-8.
pub(super) fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(bytes);
    if matches!(text, Cow::Owned(_)) {
        out.push(TYPED);
    }
    write_string(&text, out);
}

/// The 16 bytes of a UUID, as `"00000000-0000-0000-0000-000000000007"`.
pub(super) fn write_uuid(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for (index, byte) in bytes.iter().enumerate() {
        let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
        // Writing to memory does not fail.
        _ = write!(out, "{dash}{byte:02x}");
    }
    out.push(b'"');
}

/// Why a value of a column of texts cannot be used.
pub(super) struct TextFault {
    expected: &'static str,
    found: String,
}

impl TextFault {
    /// The message about the column.
    pub(super) fn describe(&self, column: &str) -> String {
        format!("expected {} in the column {column:?}{}", self.expected, self.found)
    }
}

/// A string, which must be UTF-8; or if `is_json` the JSON value that it holds.
pub(super) fn write_text(bytes: &[u8], is_json: bool, out: &mut Vec<u8>) -> Result<(), TextFault> {
    if is_json {
        return write_json(bytes, out)
            .map_err(|fault| TextFault { expected: "JSON", found: format!(": {fault}") });
    }
    match simdutf8::compat::from_utf8(bytes) {
        Ok(text) => {
            write_string(text, out);
            Ok(())
        }
        Err(error) => {
            let (at, byte) = (error.valid_up_to(), bytes[error.valid_up_to()]);
            let found = format!(", found byte 0x{byte:02x} at byte {at} of a value");
            Err(TextFault { expected: "UTF-8", found })
        }
    }
}

/// The value of a JSON text, without white space.
fn write_json(text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let value = jsonl::value(text).map_err(|fault| fault.replace(" of the line", " of the value"))?;
    let mut rest = value.json();
    while let Some(start) = rest.find('"') {
        let end = string_end(rest.as_bytes(), start);
        write_without_space(&rest[..start], out);
        out.extend_from_slice(&rest.as_bytes()[start..end]);
        rest = &rest[end..];
    }
    write_without_space(rest, out);
    Ok(())
}

fn write_without_space(json: &str, out: &mut Vec<u8>) {
    out.extend(json.bytes().filter(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r')));
}

/// Null, where a key is not what is missing.
pub(super) fn write_null(out: &mut Vec<u8>) {
    out.extend_from_slice(b"null");
}

/// Null that a struct fills in for a record without the key.
pub(super) fn write_filled(out: &mut Vec<u8>) {
    out.push(FILLED);
    write_null(out);
}

/// Any integer.
pub(super) fn write_integer(number: impl Into<i128>, out: &mut Vec<u8>) {
    let number: i128 = number.into();
    match i64::try_from(number) {
        Ok(number) => _ = serde_json::to_writer(out, &number),
        Err(_) => _ = write!(out, "{number}"),
    }
}

/// A time span, in units of its type.
pub(super) fn write_duration(units: i64, out: &mut Vec<u8>) {
    out.push(TYPED);
    write_integer(units, out);
}

/// A value that JSON has nothing for.
pub(super) fn write_unknown(out: &mut Vec<u8>) {
    out.push(TYPED);
    write_null(out);
}

/// The start of a map's pairs.
pub(super) fn open_map(out: &mut Vec<u8>) {
    out.extend_from_slice(&[TYPED, b'[']);
}

/// A number. One that is not defined is null; infinite ones are written so large that every parser reads them as such.
pub(super) fn write_float(number: f64, out: &mut Vec<u8>) {
    match number {
        _ if number.is_finite() => _ = serde_json::to_writer(out, &number),
        _ if number.is_nan() => write_unknown(out),
        _ => _ = write!(out, "{}1e999", if number < 0.0 { "-" } else { "" }),
    }
}

/// An integer of big-endian bytes divided by 10^`scale`, with all its digits.
pub(super) fn write_decimal(bytes: &[u8], scale: i32, out: &mut Vec<u8>) {
    if bytes.len() > LARGEST_DECIMAL_BYTES || scale.unsigned_abs() > LARGEST_SCALE {
        return write_unknown(out);
    }
    out.push(TYPED);
    write_digits(bytes, scale, out);
}

/// The same of a decimal that is neither longer nor of another scale than JSON gets, without a mark.
pub(super) fn write_digits(bytes: &[u8], scale: i32, out: &mut Vec<u8>) {
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
    let sign = if is_negative { "-" } else { "" };
    _ = write!(out, "{sign}{digits}");
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

/// A day since 1970 as `"2026-01-31"`.
pub(super) fn write_date(days: i64, out: &mut Vec<u8>) {
    out.push(TYPED);
    _ = write!(out, "\"{}\"", Date(days));
}

/// A time of the day, in units of which a second has `per_second`, as `"12:30:00"`.
pub(super) fn write_time(time: i64, per_second: i64, out: &mut Vec<u8>) {
    let clock = Clock::new(time, per_second);
    out.push(TYPED);
    _ = write!(out, "\"{clock}\"");
}

/// A time since 1970, in units of which a second has `per_second`, as `"2026-01-31T12:30:00"`, with `+00:00` if it is in
/// UTC.
pub(super) fn write_timestamp(time: i64, per_second: i64, is_utc: bool, out: &mut Vec<u8>) {
    let days = time.div_euclid(per_second * SECONDS_A_DAY);
    let clock = Clock::new(time.rem_euclid(per_second * SECONDS_A_DAY), per_second);
    let zone = if is_utc { "+00:00" } else { "" };
    out.push(TYPED);
    _ = write!(out, "\"{}T{clock}{zone}\"", Date(days));
}

/// A day since 1970.
struct Date(i64);

impl std::fmt::Display for Date {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // In years that begin in March, a leap day is the last day.
        let days = i128::from(self.0) + 719_468;
        let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year_of_era + i128::from(month <= 2);
        write!(out, "{year:04}-{month:02}-{day:02}")
    }
}

/// A time of a day.
struct Clock {
    seconds: i64,
    nanoseconds: i64,
}

impl Clock {
    fn new(time: i64, per_second: i64) -> Self {
        let nanoseconds = time.rem_euclid(per_second) * (1_000_000_000 / per_second);
        Self { seconds: time.div_euclid(per_second), nanoseconds }
    }
}

impl std::fmt::Display for Clock {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seconds, nanoseconds } = *self;
        write!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
        match nanoseconds {
            0 => Ok(()),
            _ if nanoseconds % 1000 == 0 => write!(out, ".{:06}", nanoseconds / 1000),
            _ => write!(out, ".{nanoseconds:09}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    /// The text of a value whose type JSON lacks, behind its mark.
    fn typed(write: impl FnOnce(&mut Vec<u8>)) -> String {
        written(write).strip_prefix('\t').unwrap().to_owned()
    }

    #[test]
    fn decimals_have_all_digits() {
        let decimal = |number: i128, scale| typed(|out| write_decimal(&number.to_be_bytes(), scale, out));
        let cases = [
            (0, 0, "0"),
            (0, 2, "0.00"),
            (5, 3, "0.005"),
            (-5, 3, "-0.005"),
            (12345, 2, "123.45"),
            (-12345, 0, "-12345"),
            (7, -3, "7000"),
            (0, -3, "0"),
            (i128::MIN, 1, "-17014118346046923173168730371588410572.8"),
        ];
        for (number, scale, expected) in cases {
            assert_eq!(decimal(number, scale), expected);
        }
        assert_eq!(typed(|out| write_decimal(&[0xff], 1, out)), "-0.1");
        assert_eq!(typed(|out| write_decimal(&[], 0, out)), "0");
        assert_eq!(typed(|out| write_decimal(&[0; 33], 0, out)), "null");
        assert_eq!(typed(|out| write_decimal(&[1], i32::MIN, out)), "null");
    }

    #[test]
    fn times_are_iso_8601() {
        let stamp = |time, per, utc| typed(|out| write_timestamp(time, per, utc, out));
        assert_eq!(stamp(0, 1, true), "\"1970-01-01T00:00:00+00:00\"");
        assert_eq!(stamp(-1, 1000, false), "\"1969-12-31T23:59:59.999000\"");
        assert_eq!(stamp(951_782_400_000_000_001, 1_000_000_000, false), "\"2000-02-29T00:00:00.000000001\"");
        for extreme in [i64::MIN, i64::MAX] {
            assert!(!stamp(extreme, 1, false).is_empty());
            assert!(!typed(|out| write_date(extreme, out)).is_empty());
            assert!(!typed(|out| write_time(extreme, 1000, out)).is_empty());
        }
        assert_eq!(typed(|out| write_date(11_016, out)), "\"2000-02-29\"");
        assert_eq!(typed(|out| write_date(-719_162, out)), "\"0001-01-01\"");
        assert_eq!(typed(|out| write_time(86_399_000_500, 1_000_000, out)), "\"23:59:59.000500\"");
    }

    #[test]
    fn numbers_are_exact() {
        assert_eq!(written(|out| write_integer(u64::MAX, out)), "18446744073709551615");
        assert_eq!(written(|out| write_integer(i64::MIN, out)), "-9223372036854775808");
        assert_eq!(written(|out| write_float(f64::from(0.1_f32), out)), "0.10000000149011612");
        assert_eq!(written(|out| write_float(f64::NEG_INFINITY, out)), "-1e999");
        assert_eq!(typed(|out| write_float(f64::NAN, out)), "null");
    }

    #[test]
    fn json_of_columns_has_no_white_space() {
        let json = |text: &str| {
            let mut out = Vec::new();
            write_text(text.as_bytes(), true, &mut out).map_err(|fault| fault.describe("a.b"))?;
            Ok::<_, String>(String::from_utf8(out).unwrap())
        };
        assert_eq!(
            json(" {\"a \\\" b\" : [ 1,\t\"\\ud800 \" ,\n null ] }\r").unwrap(),
            r#"{"a \" b":[1,"\ud800 ",null]}"#
        );
        assert_eq!(json("\"x  y\"").unwrap(), "\"x  y\"");
        for (text, expected) in [
            ("", "expected JSON in the column \"a.b\": expected a value, found the end of the value"),
            ("{\"a\": 1", "found the end of the value at byte 7 of the value"),
            ("NaN", "found NaN, which is not JSON, at byte 0 of the value"),
            ("1 2", "at byte 2 of the value"),
        ] {
            let error = json(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
