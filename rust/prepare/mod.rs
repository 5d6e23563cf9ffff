//! From a record to a sample: what a worker does with the raw bytes of a record before it encodes them.
//!
//! Reading is serial within a lane, and this is not: it runs in the same job as encoding, on any worker. A sample of
//! plain text is the string under one key. Other samples become variants of [`Prepare`], so that plain text costs no
//! dynamic call.

use std::sync::Arc;

use crate::error::ShardError;
use crate::format::{Projection, RawRecord};

/// What a record becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepare {
    /// The text of the one column that is projected.
    Text,
}

impl Prepare {
    /// Puts the text of a record of `shard` in place of what `text` holds.
    pub fn text(
        self,
        projection: &Projection,
        shard: &Arc<str>,
        record: RawRecord<'_>,
        text: &mut String,
    ) -> Result<(), ShardError> {
        text.clear();
        match self {
            Self::Text => projection.extract(shard, record, text).map(|_| ()),
        }
    }
}
