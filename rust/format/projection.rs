//! The wanted columns of a record, and their extraction.

use std::sync::Arc;

use super::{Format, Path, RawRecord, Values, jsonl, located};
use crate::error::ShardError;

/// The columns that are wanted of each record: one string, and the values of some paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    column: String,
    paths: Vec<Path>,
    /// The paths in JSON.
    selector: jsonl::Selector,
}

/// Memory that is reused for each record.
#[derive(Debug, Default)]
pub struct Scratch(jsonl::Offsets);

impl Projection {
    /// The string under the key `column`.
    pub fn text(column: impl Into<String>) -> Self {
        Self { column: column.into(), paths: Vec::new(), selector: jsonl::Selector::default() }
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

    /// Appends the wanted string of a record of `shard` to `text`, and returns its bytes. Validates the whole record. On
    /// error `text` is as it was.
    pub fn extract(
        &self,
        shard: &Arc<str>,
        record: RawRecord<'_>,
        text: &mut String,
    ) -> Result<usize, ShardError> {
        let extracted = match record.format {
            Format::Jsonl => jsonl::extract(record, &self.column, text),
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
                jsonl::extract_if(record, &self.column, text, &self.selector, &mut scratch.0, is_kept)
            }
        };
        extracted.map_err(|reason| located(shard, record.position, reason))
    }
}
