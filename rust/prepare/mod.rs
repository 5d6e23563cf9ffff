//! From a record to a sample: what a worker does with the raw bytes of a record before it encodes them.
//!
//! Reading is serial within a lane, and this is not: it runs in the same job as encoding, on any worker. Lines are
//! filtered here. A sample of plain text is the string under one key. Other samples become variants of [`Prepare`], so
//! that plain text costs no dynamic call.

pub mod sidecars;

use std::sync::Arc;

use crate::error::ShardError;
use crate::format::{Projection, RawRecord, ReadOptions, Scratch};
use sidecars::{Joined, located};

/// What a record becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepare {
    /// The text of the one column that is projected.
    Text,
}

/// A prepared record, in memory that is used again.
#[derive(Debug, Default)]
pub struct Prepared {
    /// The text of the sample.
    pub text: String,
    scratch: Scratch,
    /// Those of the sidecars.
    joined: Vec<Scratch>,
}

impl Prepare {
    /// Puts the sample of a record of `shard` in place of what `prepared` holds. Returns false if the record is left out
    /// by the filter.
    pub fn record(
        self,
        options: &ReadOptions,
        shard: &Arc<str>,
        record: RawRecord<'_>,
        prepared: &mut Prepared,
    ) -> Result<bool, ShardError> {
        let Prepared { text, scratch, .. } = prepared;
        text.clear();
        match self {
            Self::Text => options.extract(shard, record, text, scratch),
        }
    }
    /// Like [`record`](Self::record) of a record with sidecars, whose paths come after its own.
    pub fn joined_record(
        self,
        projection: &Projection,
        shard: &Arc<str>,
        record: RawRecord<'_>,
        sidecars: Joined<'_>,
        prepared: &mut Prepared,
    ) -> Result<bool, ShardError> {
        let Prepared { text, scratch, joined } = prepared;
        text.clear();
        let bad = |reason| located(shard, record.position, reason);
        let lines = sidecars.values(joined).map_err(bad)?;
        let mut checked = Ok(());
        let is_kept = projection.extract_if(shard, record, text, scratch, |values| {
            let values = values.with_sidecars(&lines);
            checked = sidecars.check(&values, shard, record.position.record);
            checked.is_ok() && sidecars.sidecars.keep.as_ref().is_none_or(|keep| keep.keeps(&values))
        });
        checked.map_err(bad)?;
        is_kept
    }
}
