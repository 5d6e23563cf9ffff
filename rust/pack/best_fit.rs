//! `best_fit`: rows of whole documents, placed and ordered by [`pack::placement`](crate::pack::placement).

use super::queue::Upcoming;
use super::step::StepWriter;

/// Writes the piece of a document that its row has room for, and closes the row after its last one. Returns the number of
/// its tokens.
pub(super) fn write(step: &mut StepWriter, next: &Upcoming) -> usize {
    step.write(&next.rest, next.piece);
    if next.ends_row {
        step.close_row();
    }
    next.piece
}
