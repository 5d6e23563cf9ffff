//! What a lane reports to the consumer with the rows of a step.

use crate::error::{Error, ShardError};
use crate::lane::cursor::Cursor;

/// A lane's message that travels with its rows in a slot of the ring.
#[derive(Debug)]
pub struct Report {
    /// What the rows are.
    pub rows: Rows,
    /// The lane's place after these rows.
    pub cursor: Cursor,
    /// Records left out since the lane's last report.
    pub quarantined: Vec<ShardError>,
}

/// What a lane's rows of a step are.
#[derive(Debug)]
pub enum Rows {
    /// Tokens; `more` says whether the next step will have some of this lane too.
    Tokens {
        /// Whether the lane continues.
        more: bool,
    },
    /// Nothing but padding: the lane has ended.
    Padding,
    /// Stale data: the lane met an error that stops the run.
    Failed(Error),
}
