//! The report of a lane, which goes to the consumer with the rows of a step.

use std::sync::Arc;

use crate::error::{Error, ShardError};
use crate::lane::carried::Carried;
use crate::lane::cursor::Cursor;

/// A lane's report. It travels with the rows in a slot of the ring.
///
/// Values that accompany rows and have no memory in the batch, such as columns of records, will be one more member: see
/// [`batch::schema`](crate::batch::schema).
#[derive(Debug)]
pub struct Report {
    /// The kind of the rows.
    pub rows: Rows,
    /// The lane's cursors after these rows, one for each source.
    pub cursors: Vec<Cursor>,
    /// Records quarantined since the lane's last report.
    pub quarantined: Vec<ShardError>,
}

/// The kind of a lane's rows of a step.
#[derive(Debug)]
pub enum Rows {
    /// Tokens; `more` says whether the next step will have some of this lane too.
    Tokens {
        /// Whether the lane continues.
        more: bool,
    },
    /// None, and stale data in their memory: the lane has ended. The consumer pads them if another lane has rows.
    Padding,
    /// None: the lane has reached a border of the stream. The report's cursors are those from which the next interval
    /// continues, each with the documents from there on that were delivered.
    Border(Vec<Option<Arc<Carried>>>),
    /// Stale data: the lane met an error that stops the run.
    Failed(Error),
}
