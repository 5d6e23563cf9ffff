//! `best_fit`: rows of whole documents, in the order and the rows that [`placement`](crate::lane::placement) gave.

use super::Taken;
use super::step::StepWriter;
use crate::lane::documents::Run;

/// Writes a piece, and closes the row behind the last one.
pub(super) fn write(step: &mut StepWriter, run: &Run) -> Taken {
    let given = run.piece;
    step.write(run, 0..given, run.tokens.get(given).copied());
    if run.ends_row {
        step.close_row();
    }
    Taken { given, dropped: 0 }
}
