//! `best_fit`: rows of whole documents, in the rows and the order that [`lane::best_fit`](crate::lane::best_fit) gives.

use super::Taken;
use super::step::StepWriter;
use crate::lane::documents::Run;

/// Writes a piece, and closes the row after its last one.
pub(super) fn write(step: &mut StepWriter, run: &Run) -> Taken {
    let given = run.piece;
    step.write(run, 0..given, run.tokens.get(given).copied());
    if run.ends_row {
        step.close_row();
    }
    Taken { given, dropped: 0 }
}
