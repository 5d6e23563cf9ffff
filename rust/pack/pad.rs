//! `pad`: one document a row. A longer one was cut when it was encoded, or is split here.
//!
//! ```text
//! document    abcdefghijE                 length 8
//! right       a b c d e f g h             the target of h is 0: nothing is trained over a cut
//! left        d e f g h i j E
//! middle      a b c d h i j E             the target of d is 0
//! split       a b c d e f g h             the target of h is i: the next row continues
//!             i j E . . . . .
//! ```

use super::step::StepWriter;
use super::tokens::TokenSlice;

/// Writes one row of a document, and returns how many tokens it has.
pub(super) fn write(step: &mut StepWriter, rest: &TokenSlice) -> usize {
    let tokens = rest.len().min(step.free());
    step.begin_row();
    step.write(rest, tokens);
    step.close_row();
    tokens
}
