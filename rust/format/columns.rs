//! Shared by the formats with columns: bounds, the text of a row, and messages.

use std::collections::HashSet;

use gristmill_json::Packer;

use super::{AfterError, RawKind};

/// Whatever the longest record is, pages and record batches up to this size are read: they hold many rows.
const SMALLEST_LIMIT: u64 = 128 << 20;
/// Room for lengths, levels and nulls beside the text.
const OVERHEAD: u64 = 1 << 20;
const COLUMNS_SHOWN: usize = 8;

/// Why a row cannot be used, and whether the rows after it can.
pub(super) type RowFault = (AfterError, String);

/// The most bytes of a page or a record batch, if the longest record has `longest`.
pub(super) fn inflated_limit(longest: u64) -> u64 {
    longest.max(SMALLEST_LIMIT).saturating_add(OVERHEAD)
}

/// A row that is the text of a column, unless that is null or has more than `longest` bytes. `column` names it in errors.
pub(super) fn text_of_row(
    bytes: Option<&[u8]>,
    column: impl FnOnce() -> String,
    longest: u64,
) -> Result<(RawKind, &[u8]), RowFault> {
    match bytes {
        Some(bytes) if bytes.len() as u64 <= longest => Ok((RawKind::Text, bytes)),
        Some(bytes) => Err(too_long(bytes.len() as u64, longest)),
        None => {
            Err((AfterError::Readable, format!("expected a string in the column {:?}, found null", column())))
        }
    }
}

/// The fault of a row with a text of so many bytes.
pub(super) fn too_long(length: u64, longest: u64) -> RowFault {
    let reason = format!(
        "expected a text of at most {longest} bytes, found one of {length}; raise max_document_bytes= to read it"
    );
    (AfterError::Readable, reason)
}

/// Checks the length of a row while it is packed: lists and dictionaries may repeat a value any number of times.
pub(super) fn check_row_length(row: &Packer, longest: u64) -> Result<(), RowFault> {
    // The bracket in front of the row's value is none.
    if row.json_bytes() <= longest.saturating_add(1) {
        return Ok(());
    }
    let reason = format!(
        "expected a row of at most {longest} bytes as JSON, found a longer one; raise max_document_bytes= to read it"
    );
    Err((AfterError::Readable, reason))
}

/// Checks that no column that is read, nor a field inside of it, has the name of another one beside it: readers differ in
/// which one they mean. `parts` are the name of a field, and the fields in it.
pub(super) fn check_names<T>(
    fields: &[T],
    parts: fn(&T) -> (&str, &[T]),
    is_read: &dyn Fn(&str) -> bool,
) -> Result<(), String> {
    let mut seen = HashSet::new();
    for field in fields {
        let (name, inside) = parts(field);
        if !is_read(name) {
            continue;
        }
        if !seen.insert(name) {
            return Err(format!(
                "expected one column named {name:?}, found several; write the file again with other names for them"
            ));
        }
        check_names(inside, parts, &|_| true)?;
    }
    Ok(())
}

/// The columns of a file, for a message.
pub(super) fn shown(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(COLUMNS_SHOWN);
    let shown: Vec<String> = names.take(COLUMNS_SHOWN).map(|name| format!("{name:?}")).collect();
    match more {
        _ if shown.is_empty() => "no columns".to_owned(),
        0 => format!("the columns {}", shown.join(", ")),
        more => format!("the columns {} and {more} more", shown.join(", ")),
    }
}
