//! Values whose types JSON lacks.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;

use crate::view::Content;
use crate::write::write_string;

const SECONDS_A_DAY: i64 = 86_400;
/// The first character of the key of an object that stands for a value. Names of columns are UTF-8, so none has it.
const KEY: &str = r"\ud800";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A value whose type JSON lacks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Typed<'a> {
    /// A number that is not defined.
    NotANumber,
    /// A value that nothing is known of.
    Unknown,
    /// Bytes.
    Bytes(&'a [u8]),
    /// The bytes of a UUID.
    Uuid(&'a [u8]),
    /// A decimal number.
    Decimal {
        /// How many of its digits are behind the point.
        scale: i32,
        /// The number in decimal digits.
        digits: &'a str,
    },
    /// Days since 1970.
    Date(i64),
    /// A time of the day.
    Time {
        /// In units.
        time: i64,
        /// How many of them a second has.
        per_second: i64,
    },
    /// A time since 1970.
    Timestamp {
        /// In units.
        time: i64,
        /// How many of them a second has.
        per_second: i64,
        /// The zone in which it is shown, if it is in UTC.
        zone: Option<&'a str>,
    },
    /// A time span.
    Duration {
        /// In units.
        time: i64,
        /// How many of them a second has.
        per_second: i64,
    },
}

impl<'a> Typed<'a> {
    /// The nearest value that JSON has: times are strings as their `isoformat()` in Python, decimals are numbers, and
    /// bytes are read as UTF-8.
    pub fn content(self) -> Content<'a> {
        match self {
            Self::NotANumber | Self::Unknown => Content::Null,
            Self::Decimal { digits, .. } => digits.parse().map_or(Content::Null, Content::Number),
            Self::Duration { time, .. } => Content::Number(time as f64),
            Self::Bytes(bytes) => Content::Text(String::from_utf8_lossy(bytes)),
            _ => Content::Text(Cow::Owned(self.to_string())),
        }
    }

    /// Whether the nearest value that JSON has says less than it.
    pub fn is_lost(self) -> bool {
        match self {
            Self::Bytes(bytes) => simdutf8::basic::from_utf8(bytes).is_err(),
            Self::Uuid(_) => false,
            _ => true,
        }
    }

    /// Appends the nearest value that JSON has.
    pub(crate) fn write_json(self, out: &mut Vec<u8>) {
        match self {
            Self::NotANumber | Self::Unknown => out.extend_from_slice(b"null"),
            Self::Decimal { digits, .. } => out.extend_from_slice(digits.as_bytes()),
            // Writing to memory does not fail.
            Self::Duration { time, .. } => _ = write!(out, "{time}"),
            Self::Bytes(bytes) => write_string(&String::from_utf8_lossy(bytes), out),
            _ => _ = write!(out, "\"{self}\""),
        }
    }

    /// Appends an object of one key, which says how its value is to be read, for `gristmill._prompts.exact`; or Python's
    /// word for NaN.
    pub(crate) fn write_exact(self, out: &mut Vec<u8>) {
        // Writing to memory does not fail.
        _ = match self {
            Self::NotANumber => write!(out, "NaN"),
            Self::Unknown => write!(out, "null"),
            Self::Bytes(bytes) => write!(out, r#"{{"{KEY}bytes":"{}"}}"#, Base64(bytes)),
            Self::Uuid(bytes) => write!(out, r#"{{"{KEY}uuid":"{}"}}"#, Base64(bytes)),
            // The zeros that a negative scale adds are no digits of its own.
            Self::Decimal { scale: scale @ ..0, digits } => {
                let zeros = if digits == "0" { 0 } else { scale.unsigned_abs() as usize };
                let own = &digits[..digits.len() - zeros];
                write!(out, r#"{{"{KEY}decimal":"{own}E{}"}}"#, scale.unsigned_abs())
            }
            Self::Decimal { digits, .. } => write!(out, r#"{{"{KEY}decimal":"{digits}"}}"#),
            Self::Date(days) => write!(out, r#"{{"{KEY}date":{days}}}"#),
            Self::Time { time, per_second } => write!(out, r#"{{"{KEY}time":[{time},{per_second}]}}"#),
            Self::Timestamp { time, per_second, zone } => {
                _ = write!(out, r#"{{"{KEY}timestamp":[{time},{per_second},"#);
                match zone {
                    Some(zone) => write_string(zone, out),
                    None => out.extend_from_slice(b"null"),
                }
                write!(out, "]}}")
            }
            Self::Duration { time, per_second } => {
                write!(out, r#"{{"{KEY}duration":[{time},{per_second}]}}"#)
            }
        };
    }
}

/// The value as a string of JSON has it.
impl fmt::Display for Typed<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotANumber | Self::Unknown => out.write_str("null"),
            Self::Bytes(bytes) => out.write_str(&String::from_utf8_lossy(bytes)),
            Self::Uuid(bytes) => bytes.iter().enumerate().try_for_each(|(index, byte)| {
                let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
                write!(out, "{dash}{byte:02x}")
            }),
            Self::Decimal { digits, .. } => out.write_str(digits),
            Self::Date(days) => write!(out, "{}", Date(days)),
            Self::Time { time, per_second } => write!(out, "{}", Clock::new(time, per_second)),
            Self::Timestamp { time, per_second, zone } => {
                let a_day = per_second * SECONDS_A_DAY;
                let clock = Clock::new(time.rem_euclid(a_day), per_second);
                let zone = if zone.is_some() { "+00:00" } else { "" };
                write!(out, "{}T{clock}{zone}", Date(time.div_euclid(a_day)))
            }
            Self::Duration { time, .. } => write!(out, "{time}"),
        }
    }
}

/// Bytes in base64.
struct Base64<'a>(&'a [u8]);

impl fmt::Display for Base64<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;

        for group in self.0.chunks(3) {
            let bits = group.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte));
            let bits = bits << (8 * (3 - group.len()));
            for digit in 0..4 {
                let index = (bits >> (18 - 6 * digit)) as usize % 64;
                out.write_char(if digit <= group.len() { char::from(ALPHABET[index]) } else { '=' })?;
            }
        }
        Ok(())
    }
}

/// The bytes of a text in base64, up to the first character that is none of its digits.
pub fn base64(text: &str) -> Vec<u8> {
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

/// A day since 1970.
struct Date(i64);

impl fmt::Display for Date {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
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

impl fmt::Display for Clock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, nanoseconds } = *self;
        write!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
        match nanoseconds {
            0 => Ok(()),
            _ if nanoseconds % 1000 == 0 => write!(out, ".{:06}", nanoseconds / 1000),
            _ => write!(out, ".{nanoseconds:09}"),
        }
    }
}
