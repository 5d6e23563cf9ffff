//! The parts of shards that are read, and the limits that hold.

use std::sync::Arc;

use super::keep::Expression;
use super::{IdFiles, Position, Projection, RawKind, RawRecord, Scratch, Values, located};
use crate::error::ShardError;
use crate::store::Access;

/// The wanted records and columns, and limits of reading.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadOptions {
    /// Where the names of shards lead.
    pub access: Access,
    /// The wanted columns of each record.
    pub projection: Projection,
    /// The filter: only records for which it is true are kept. None: all are. Its paths are in the projection.
    pub keep: Option<Expression>,
    /// The longest record that is read: for JSONL a line, in inflated bytes without its newline; else a text, or a row
    /// as JSON.
    pub max_document_bytes: u64,
    /// How files of ids are read; none: samples are none of ids.
    pub ids: Option<IdFiles>,
}

impl ReadOptions {
    /// Appends the wanted string of a record of `shard` to `text`, if the filter keeps the record; returns whether it does.
    /// A line that is left out must be valid JSON, but needs no text. On error `text` is as it was.
    pub fn extract(
        &self,
        shard: &Arc<str>,
        record: RawRecord<'_>,
        text: &mut String,
        scratch: &mut Scratch,
    ) -> Result<bool, ShardError> {
        match (record.kind, &self.keep) {
            (RawKind::Filtered, _) => Ok(false),
            (RawKind::Line, Some(keep)) => {
                self.projection.extract_if(shard, record, text, scratch, |values| keep.keeps(values))
            }
            _ => self.projection.extract(shard, record, text).map(|_| true),
        }
    }

    /// Calls `take` with the values of the paths of a record of `shard`, if the filter keeps the record; returns whether it
    /// does. Only for [`named`](Projection::named) columns. The whole record is validated.
    pub fn select(
        &self,
        shard: &Arc<str>,
        record: RawRecord<'_>,
        scratch: &mut Scratch,
        take: impl FnOnce(&Values<'_>) -> Result<(), String>,
    ) -> Result<bool, ShardError> {
        if record.kind == RawKind::Filtered {
            return Ok(false);
        }
        // A row is kept already.
        let keep = self.keep.as_ref().filter(|_| record.kind == RawKind::Line);
        let taken = self.projection.values(shard, record, scratch, |values| {
            let is_kept = keep.is_none_or(|keep| keep.keeps(values));
            if is_kept { take(values).map(|()| true) } else { Ok(false) }
        });
        taken.and_then(|taken| taken).map_err(|reason| located(shard, record.position, reason))
    }

    /// Whether rows are wanted with values beside their text: for a filter over sidecars, which is evaluated later.
    pub(super) fn wants_values(&self) -> bool {
        self.keep.is_none() && !self.projection.paths().is_empty()
    }

    /// Whether the filter keeps a row of `shard`, of which the columns that it looks at are given packed. The error is a
    /// message about the row.
    pub(super) fn keeps(&self, shard: &str, row: &[u8], scratch: &mut Scratch) -> Result<bool, String> {
        let Some(keep) = &self.keep else { return Ok(true) };
        let record = RawRecord::new(RawKind::Row, Position::default(), row);
        self.projection.values(shard, record, scratch, |values| keep.keeps(values))
    }
}
