//! Rows that train something: those with a label, as the layout's loss sees it.
//!
//! ```text
//! trained        . x x . | . . . . | x . . .        rows of 4 tokens of one document
//! maxtext        x x .     . . . x   . . .          the target of a row's last token is in the next row
//! hf, grain        x x .     . . .     . . .        a row's first token has none before it that predicts it
//! ```
//!
//! In any layout a token has no label if the one before it in its row is not that before it in its document: the first of
//! a document, one behind a cut, or where a long document continues behind another one.

use std::ops::Range;

use crate::lane::block::Document;
use crate::spec::{Layout, Packing, SourceSpec};

/// Whether some label of consecutive tokens of a document is trained on, of which `trained` says which are, and `next` of
/// the token that follows them in the next row.
pub(super) fn has_label(layout: Layout, trained: &[bool], next: bool) -> bool {
    trained.iter().skip(1).any(|trained| *trained) || next && layout.has_targets()
}

/// The parts of a document, each of which has a row or shares it with other documents, and whether they train something.
/// `concat` has one part, since where its rows end depends on the documents before.
pub fn parts(
    spec: &SourceSpec,
    document: &Document,
    trained: &[bool],
) -> impl Iterator<Item = (Range<usize>, bool)> {
    let (count, length) = (document.tokens, spec.rows.sequence_length);
    let cut = spec.rows.cut(document).filter(|cut| *cut > 0);
    let is_one = spec.rows.packing == Packing::Concat && length > 1;
    let size = if is_one { count.max(1) } else { length };
    // With boundary targets the first token may be the target of a document before it.
    let first = usize::from(!spec.rows.boundary_targets);
    let after = usize::from(spec.rows.layout.has_targets());
    (0..count).step_by(size).map(move |start| {
        let end = count.min(start + size);
        let mut labels = start + first..count.min(end + after);
        (start..end, labels.any(|token| trained[token] && Some(token) != cut))
    })
}
