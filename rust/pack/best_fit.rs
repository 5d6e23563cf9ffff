//! `best_fit`: rows of whole documents, placed and ordered by [`pack::placement`](crate::pack::placement).

use super::Written;
use super::queue::Upcoming;
use super::step::StepWriter;

/// Writes the piece of a document that its row has room for, and closes the row after its last one.
pub(super) fn write(step: &mut StepWriter, next: &Upcoming) -> Written {
    step.write(&next.rest, 0..next.piece, true);
    if next.ends_row {
        step.close_row();
    }
    Written { tokens: next.piece, dropped: 0 }
}
