//! `pad`: one document a row, cut or split where it is longer.
//!
//! ```text
//! document    abcdefghijE                 length 8
//! right       a b c d e f g h             the target of h is 0: nothing is trained over a cut
//! left        d e f g h i j E
//! middle      a b c d h i j E             the target of d is 0
//! split       a b c d e f g h             the target of h is i: the next row continues
//!             i j E . . . . .
//! ```

use super::Written;
use super::step::StepWriter;
use super::tokens::TokenSlice;
use crate::error::ShardError;
use crate::spec::Truncation;

/// Writes one row of a document.
pub(super) fn write(
    step: &mut StepWriter,
    rest: &TokenSlice,
    truncation: Truncation,
) -> Result<Written, ShardError> {
    let (count, length) = (rest.len(), step.free());
    let kept = count.min(length);
    if count > length && truncation == Truncation::Error {
        return Err(step.error(rest, too_long(count, length)));
    }
    step.begin_row_of(kept);
    match truncation {
        // The left half is the smaller one, as in veRL: empty in a row of one token.
        Truncation::Middle if count > length && length > 1 => {
            let left = length / 2;
            step.write(rest, 0..left, false);
            step.write_after_cut(rest, count - (length - left)..count);
        }
        Truncation::Left | Truncation::Middle => step.write(rest, count - kept..count, false),
        Truncation::Split => step.write(rest, 0..kept, true),
        Truncation::Right | Truncation::Error | Truncation::Drop => step.write(rest, 0..kept, false),
    }
    step.close_row();
    let dropped = if truncation == Truncation::Split { 0 } else { count - kept };
    Ok(Written { tokens: kept, dropped })
}

fn too_long(found: usize, length: usize) -> String {
    format!(
        "expected a document of at most sequence_length={length} tokens, BOS and EOS included, as \
         truncation=\"error\" demands, found one of {found}; raise sequence_length=, cut it with truncation=\"right\", \
         \"left\" or \"middle\", or keep all of it with \"split\" or another packing="
    )
}
