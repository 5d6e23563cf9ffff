//! The wanted columns of a record, and their extraction.

use std::sync::Arc;

use super::{Format, Path, RawRecord, Values, jsonl, located};
use crate::error::ShardError;

/// The columns that are wanted of each record: its text or all columns, and the values of some paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    columns: Columns,
    paths: Vec<Path>,
    /// The paths in JSON.
    selector: jsonl::Selector,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Columns {
    /// The string under this key or in this column.
    Text(String),
    /// All of them. Formats with columns give each record as a JSON object.
    All,
}

/// Memory that is reused for each record.
#[derive(Debug, Default)]
pub struct Scratch(jsonl::Offsets);

impl Projection {
    /// The string under the key or in the column `column`.
    pub fn text(column: impl Into<String>) -> Self {
        Self::new(Columns::Text(column.into()))
    }

    /// All columns, for [`next_members`](super::RecordReader::next_members).
    pub fn all() -> Self {
        Self::new(Columns::All)
    }

    fn new(columns: Columns) -> Self {
        Self { columns, paths: Vec::new(), selector: jsonl::Selector::default() }
    }

    /// Also the values of some paths, each of which leads to one value.
    #[must_use]
    pub fn with_paths(self, paths: Vec<Path>) -> Self {
        Self { selector: jsonl::Selector::new(&paths), paths, ..self }
    }

    /// The paths of the values that are wanted beside the text.
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    pub(super) fn columns(&self) -> &Columns {
        &self.columns
    }

    fn text_column(&self) -> &str {
        match &self.columns {
            Columns::Text(column) => column,
            Columns::All => "",
        }
    }

    /// Appends the wanted string of a record of `shard` to `text`, and returns its bytes. Validates the whole record. On
    /// error `text` is as it was.
    pub fn extract(
        &self,
        shard: &Arc<str>,
        record: RawRecord<'_>,
        text: &mut String,
    ) -> Result<usize, ShardError> {
        let extracted = match record.format {
            Format::Jsonl => jsonl::extract(record, self.text_column(), text),
            Format::Parquet => extract_text(record.bytes, self.text_column(), text),
        };
        extracted.map_err(|reason| located(shard, record.position, reason))
    }

    /// Like [`extract`](Self::extract) of a record that `is_kept`, which gets the values of the paths. A record that is
    /// not kept must be valid, but needs no text. Returns whether it is kept; if not, `text` is as it was.
    pub fn extract_if(
        &self,
        shard: &Arc<str>,
        record: RawRecord<'_>,
        text: &mut String,
        scratch: &mut Scratch,
        is_kept: impl FnOnce(&Values<'_>) -> bool,
    ) -> Result<bool, ShardError> {
        let extracted = match record.format {
            Format::Jsonl => {
                jsonl::extract_if(record, self.text_column(), text, &self.selector, &mut scratch.0, is_kept)
            }
            Format::Parquet => extract_text(record.bytes, self.text_column(), text).map(|_| true),
        };
        extracted.map_err(|reason| located(shard, record.position, reason))
    }
}

/// Appends a record that is the wanted string itself.
fn extract_text(bytes: &[u8], column: &str, text: &mut String) -> Result<usize, String> {
    match simdutf8::compat::from_utf8(bytes) {
        Ok(string) => {
            text.push_str(string);
            Ok(string.len())
        }
        Err(error) => {
            let at = error.valid_up_to();
            Err(format!(
                "expected UTF-8 in the column {column:?}, found byte 0x{:02x} at byte {at} of the text",
                bytes[at]
            ))
        }
    }
}
