//! The names and contents of a batch's arrays.

use crate::batch::ring::LaneWriter;
use crate::spec::Layout;

/// Consecutive tokens of one document in a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment<'a> {
    /// Number of their segment in its row, from 1.
    pub number: i32,
    /// The place in the row of the first token.
    pub at: usize,
    /// Position of that token in its segment: not 0 after a cut inside a segment.
    pub position: usize,
    /// Its tokens.
    pub tokens: &'a [u32],
    /// Whether the document begins here rather than in an earlier row.
    pub opens: bool,
    /// The token of the same document that follows, if it continues in a later row.
    pub next: Option<u32>,
}

/// The value of `hf` labels where nothing is learned.
const IGNORED_LABEL: i32 = -100;

impl Layout {
    /// The arrays' names, in the order of the arrays in a batch's buffer.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::MaxText => &[
                "inputs",
                "inputs_segmentation",
                "inputs_position",
                "targets",
                "targets_segmentation",
                "targets_position",
            ],
            Self::Grain => &["tokens", "tokens_segment_ids", "tokens_positions"],
            Self::Hf => &["input_ids", "attention_mask", "position_ids", "labels"],
        }
    }

    /// Writes a segment into a row of the lane's current step.
    pub(crate) fn write<R>(self, writer: &mut LaneWriter<R>, row: usize, segment: &Segment) {
        let Segment { number, at, position: first, tokens, opens, next } = *segment;
        let places = at..at + tokens.len();
        match self {
            Self::MaxText => {
                let [inputs, segmentation, position, targets, targets_segmentation, targets_position] =
                    writer.row(row).map(|array| &mut array[places.clone()]);
                copy(inputs, tokens);
                segmentation.fill(number);
                count_up(position, first);
                // Each token's target is the one after it; the last one's is what follows, if
                // anything of this document does.
                let last = tokens.len() - 1;
                copy(&mut targets[..last], &tokens[1..]);
                targets_segmentation[..last].fill(number);
                targets[last] = next.unwrap_or(0) as i32;
                targets_segmentation[last] = if next.is_some() { number } else { 0 };
                count_up(targets_position, first);
            }
            Self::Grain => {
                let [ids, segments, positions] = writer.row(row).map(|array| &mut array[places.clone()]);
                copy(ids, tokens);
                segments.fill(number);
                count_up(positions, first);
            }
            Self::Hf => {
                let [ids, mask, positions, labels] = writer.row(row).map(|array| &mut array[places.clone()]);
                copy(ids, tokens);
                mask.fill(1);
                count_up(positions, first);
                copy(labels, tokens);
                // A label is predicted from the token before it in the row, which must neither belong to another
                // document nor lie before a cut.
                if opens || at > 0 {
                    labels[0] = IGNORED_LABEL;
                }
            }
        }
    }

    /// Makes `token`, the first of the next document, the target of the token at `at`, the last of
    /// its own. Only `maxtext` has targets; the other layouts stay as they are.
    pub(crate) fn write_boundary_target<R>(
        self,
        writer: &mut LaneWriter<R>,
        row: usize,
        at: usize,
        token: u32,
    ) {
        if self == Self::MaxText {
            let [_, segmentation, _, targets, targets_segmentation] = writer.row(row);
            targets[at] = token as i32;
            targets_segmentation[at] = segmentation[at];
        }
    }

    /// Fills a row with padding from place `from` on.
    pub(crate) fn pad<R>(self, writer: &mut LaneWriter<R>, row: usize, from: usize) {
        match self {
            Self::MaxText => zero_from::<6>(writer.row(row), from),
            Self::Grain => zero_from::<3>(writer.row(row), from),
            Self::Hf => {
                let [ids, mask, positions, labels] = writer.row(row);
                zero_from([ids, mask, positions], from);
                labels[from..].fill(IGNORED_LABEL);
            }
        }
    }
}

fn zero_from<const N: usize>(arrays: [&mut [i32]; N], from: usize) {
    for array in arrays {
        array[from..].fill(0);
    }
}

fn copy(places: &mut [i32], tokens: &[u32]) {
    for (place, &token) in places.iter_mut().zip(tokens) {
        *place = token as i32;
    }
}

fn count_up(places: &mut [i32], first: usize) {
    for (position, place) in (first as i32..).zip(places) {
        *place = position;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::buffers::{Pool, Shape};
    use crate::batch::ring::{LaneWriter, ring};

    /// What `write` leaves in the arrays of a row of `length` places.
    fn row(layout: Layout, length: usize, write: impl FnOnce(&mut LaneWriter<()>)) -> Vec<Vec<i32>> {
        let shape = Shape { arrays: layout.names().len(), rows: 1, length, entries: 0 };
        let pool = Pool::new(shape, 1);
        let (_consumer, mut writers) = ring(shape, 1, vec![pool.get().unwrap()], 0, 0);
        write(&mut writers[0]);
        match layout {
            Layout::MaxText => writers[0].row::<6>(0).map(|array| array.to_vec()).to_vec(),
            Layout::Grain => writers[0].row::<3>(0).map(|array| array.to_vec()).to_vec(),
            Layout::Hf => writers[0].row::<4>(0).map(|array| array.to_vec()).to_vec(),
        }
    }

    /// The end of a document that began earlier, a whole one, and the start of one that continues.
    fn three_documents(layout: Layout, boundary: bool) -> Vec<Vec<i32>> {
        let segment =
            |number, at, tokens, opens, next| Segment { number, at, position: 0, tokens, opens, next };
        row(layout, 6, |writer| {
            layout.write(writer, 0, &segment(1, 0, &[11, 12], false, None));
            if boundary {
                layout.write_boundary_target(writer, 0, 1, 21);
            }
            layout.write(writer, 0, &segment(2, 2, &[21], true, None));
            layout.write(writer, 0, &segment(3, 3, &[31, 32], true, Some(33)));
            layout.pad(writer, 0, 5);
        })
    }

    #[test]
    fn maxtext() {
        let [inputs, segments, positions] = [[11, 12, 21, 31, 32, 0], [1, 1, 2, 3, 3, 0], [0, 1, 0, 0, 1, 0]];
        let targets = [[12, 0, 0, 32, 33, 0], [1, 0, 0, 3, 3, 0]];
        assert_eq!(
            three_documents(Layout::MaxText, false),
            [inputs, segments, positions, targets[0], targets[1], positions]
        );
        let targets = [[12, 21, 0, 32, 33, 0], [1, 1, 0, 3, 3, 0]];
        assert_eq!(
            three_documents(Layout::MaxText, true),
            [inputs, segments, positions, targets[0], targets[1], positions]
        );
    }

    #[test]
    fn grain() {
        let expected = [[11, 12, 21, 31, 32, 0], [1, 1, 2, 3, 3, 0], [0, 1, 0, 0, 1, 0]];
        assert_eq!(three_documents(Layout::Grain, true), expected);
    }

    #[test]
    fn hf() {
        let expected =
            [[11, 12, 21, 31, 32, 0], [1, 1, 1, 1, 1, 0], [0, 1, 0, 0, 1, 0], [11, 12, -100, -100, 32, -100]];
        assert_eq!(three_documents(Layout::Hf, true), expected);
    }

    #[test]
    fn nothing_is_learnt_over_a_cut() {
        let halves = |layout: Layout| {
            let part = |at, tokens, opens| Segment { number: 1, at, position: at, tokens, opens, next: None };
            row(layout, 4, |writer| {
                layout.write(writer, 0, &part(0, &[1, 2], true));
                layout.write(writer, 0, &part(2, &[8, 9], false));
            })
        };
        let maxtext = halves(Layout::MaxText);
        assert_eq!(maxtext[1..5], [[1, 1, 1, 1], [0, 1, 2, 3], [2, 0, 9, 0], [1, 0, 1, 0]]);
        assert_eq!(halves(Layout::Hf)[2..], [[0, 1, 2, 3], [-100, 2, -100, 9]]);
    }
}
