//! JSON written.

/// Appends a string.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    _ = serde_json::to_writer(out, text);
}
