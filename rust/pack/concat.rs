//! `concat`: documents joined and cut every `sequence_length` tokens.
//!
//! ```text
//! documents   aaaaaE bbE ccccccccE        length 8
//! row 0       a a a a a E b b             segments 1 1 1 1 1 1 2 2
//! row 1       E c c c c c c c             segments 1 2 2 2 2 2 2 2   (b continues: positions from 0)
//! row 2       c E . . . . . .             padding only after a lane's last token
//! ```
//!
//! With `pad_segments_to`, the next document begins at a multiple, or where there is none left in the next row.
//!
//! With `max_segments`, padding also closes a row whose last allowed segment has ended. The next
//! document then begins the next row, rather than being cut to a few tokens that fit by chance.

use super::step::StepWriter;
use super::tokens::TokenSlice;

/// Writes as much of a document as the row holds, and returns how many tokens that is.
pub(super) fn write(step: &mut StepWriter, rest: &TokenSlice, max_segments: Option<usize>) -> usize {
    let tokens = rest.len().min(step.free());
    step.write(rest, tokens);
    if (max_segments == Some(step.segments()) || step.free() == 0) && !step.row_is_full() {
        step.close_row();
    }
    tokens
}
