//! Values packed as bytes, with types that JSON lacks: rows of files with columns, which no text is written or parsed of.
//!
//! ```text
//! {"role": "user", "at": 2026-01-31}     OBJECT, bytes of its members, 4 role TEXT 4 user, 2 at DATE, its day
//! ```
//!
//! A value is a tag, and what that says. Lengths are numbers in base 128, but those of lists and objects, which are known
//! only at their end. A map is a list of pairs, and JSON that a column holds stays as it is.

mod pack;
mod read;
#[cfg(test)]
mod tests;
mod typed;

pub use pack::{Packer, TextFault};
pub use read::PackedReader;
pub(crate) use read::{Items, Packed, append_ids};
pub use typed::{Typed, base64};

/// Null, where a key is not what is missing.
const NULL: u8 = 1;
/// Null that a struct fills in for a record without the key.
const FILLED: u8 = 2;
const FALSE: u8 = 3;
const TRUE: u8 = 4;
const INT: u8 = 5;
const BIG_INT: u8 = 6;
const FLOAT: u8 = 7;
const TEXT: u8 = 8;
const LIST: u8 = 9;
const MAP: u8 = 10;
const OBJECT: u8 = 11;
const JSON: u8 = 12;
const NOT_A_NUMBER: u8 = 13;
const UNKNOWN: u8 = 14;
const BYTES: u8 = 15;
const UUID: u8 = 16;
const DECIMAL: u8 = 17;
const DATE: u8 = 18;
const TIME: u8 = 19;
const TIMESTAMP: u8 = 20;
const ZONED: u8 = 21;
const DURATION: u8 = 22;

/// Bytes of the length of a list or object.
const LENGTH_BYTES: usize = 8;
