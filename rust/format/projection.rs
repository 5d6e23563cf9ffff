//! The wanted columns of a record, and their extraction.

use std::sync::Arc;

use super::{Format, RawRecord, jsonl, located};
use crate::error::ShardError;

/// The columns that are wanted of each record: today one string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    column: String,
}

impl Projection {
    /// The string under the key `column`.
    pub fn text(column: impl Into<String>) -> Self {
        Self { column: column.into() }
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
}
