//! JSON written.

use std::io::Write;

use crate::packed::{Packed, Typed};
use crate::view::{Held, View, Written};

/// Appends a string.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    _ = serde_json::to_writer(out, text);
}

/// Appends a value, with the nearest one that JSON has in place of those whose type it lacks: what Python's `json.dumps`
/// makes of the rows that pyarrow's `to_pylist` returns. Infinite numbers are so large that every parser reads them as
/// such.
pub fn write_json(value: View<'_>, out: &mut Vec<u8>) {
    write(value, out, Form::Nearest);
}

/// Appends a value as `gristmill._prompts.exact` reads it: an object of one key in place of a value whose type JSON
/// lacks. Returns whether there is one.
pub fn write_exact(value: View<'_>, out: &mut Vec<u8>) -> bool {
    write(value, out, Form::Exact)
}

/// Appends a value as JSON, with bytes that are no text as an object of their number, as in `{"bytes": 143}`.
pub fn write_sized(value: View<'_>, out: &mut Vec<u8>) {
    write(value, out, Form::Sized);
}

/// How a value whose type JSON lacks is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Nearest,
    Exact,
    Sized,
}

fn write(value: View<'_>, out: &mut Vec<u8>, form: Form) -> bool {
    let packed = match value.0 {
        Held::Written(value) => {
            write_without_space(value, out);
            return false;
        }
        Held::Packed(bytes) => Packed::of(bytes),
    };
    // Writing to memory does not fail.
    match packed {
        Packed::Null | Packed::Filled => out.extend_from_slice(b"null"),
        Packed::Bool(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
        Packed::Int(number) => _ = serde_json::to_writer(out, &number),
        Packed::BigInt(digits) => out.extend_from_slice(digits.as_bytes()),
        Packed::Float(number) => write_float(number, out),
        Packed::Text(text) => write_string(text, out),
        Packed::Json(text) => write_without_space(Written { text, at: 0 }, out),
        Packed::Typed(value) if form == Form::Exact => {
            value.write_exact(out);
            return true;
        }
        Packed::Typed(Typed::Bytes(bytes)) if form == Form::Sized && Typed::Bytes(bytes).is_lost() => {
            out.extend_from_slice(format!("{{\"bytes\":{}}}", bytes.len()).as_bytes());
        }
        Packed::Typed(value) => value.write_json(out),
        Packed::List(items) | Packed::Map(items) => {
            out.push(b'[');
            let mut has_typed = false;
            for (index, item) in items.enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                has_typed |= write(View::packed(item), out, form);
            }
            out.push(b']');
            return has_typed;
        }
        Packed::Object(members) => {
            out.push(b'{');
            let mut has_typed = false;
            for (index, (key, value)) in members.enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_string(key, out);
                out.push(b':');
                has_typed |= write(View::packed(value), out, form);
            }
            out.push(b'}');
            return has_typed;
        }
    }
    false
}

pub(crate) fn write_float(number: f64, out: &mut Vec<u8>) {
    if number.is_finite() {
        _ = serde_json::to_writer(out, &number);
    } else {
        _ = write!(out, "{}1e999", if number < 0.0 { "-" } else { "" });
    }
}

fn write_without_space(value: Written<'_>, out: &mut Vec<u8>) {
    let mut rest = value.json();
    let is_kept = |byte: &u8| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    while let Some(start) = rest.find('"') {
        let string = Written { text: rest, at: start }.json();
        out.extend(rest[..start].bytes().filter(is_kept));
        out.extend_from_slice(string.as_bytes());
        rest = &rest[start + string.len()..];
    }
    out.extend(rest.bytes().filter(is_kept));
}
