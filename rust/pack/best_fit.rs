//! `best_fit`: rows of whole documents, in the rows and the order that [`pack::placement`](crate::pack::placement) gives.

use super::Written;
use super::step::StepWriter;
use crate::pack::queue::TokenSlice;

/// Writes a piece, and closes the row after its last one.
pub(super) fn write(step: &mut StepWriter, run: &TokenSlice) -> Written {
    let written = run.piece;
    step.write(run, 0..written, run.tokens.get(written).copied());
    if run.ends_row {
        step.close_row();
    }
    Written { tokens: written, dropped: 0 }
}
