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
use crate::error::ShardError;
use crate::pack::queue::TokenSlice;
use crate::spec::Truncation;

/// Writes one row of a document.
pub(super) fn write(
    step: &mut StepWriter,
    run: &TokenSlice,
    truncation: Truncation,
) -> Result<Written, ShardError> {
    let (count, length) = (run.tokens.len(), step.free());
    let kept = count.min(length);
    match truncation {
        _ if count <= length => step.write(run, 0..count, None),
        Truncation::Right => step.write(run, 0..kept, None),
        Truncation::Middle if length > 1 => {
            // The left half is the smaller one, as in veRL: empty in a row of one token.
            let left = length / 2;
            step.write(run, 0..left, None);
            step.write_behind_cut(run, count - (length - left)..count);
        }
        Truncation::Left | Truncation::Middle => step.write(run, count - kept..count, None),
        Truncation::Split => step.write(run, 0..kept, Some(run.tokens[kept])),
        Truncation::Error => return Err(step.error(run, too_long(run, length))),
    }
    step.close_row();
    let dropped = if truncation == Truncation::Split { 0 } else { count - kept };
    Ok(Written { tokens: kept, dropped })
}

fn too_long(run: &TokenSlice, length: usize) -> String {
    format!(
        "expected a document of at most sequence_length={length} tokens, BOS and EOS included, as \
         truncation=\"error\" demands, found one of {}; raise sequence_length=, cut it with truncation=\"right\", \
         \"left\" or \"middle\", or keep all of it with \"split\" or another packing=",
        run.tokens.len()
    )
}
