//! What the arrays of a batch are called and what stands in them.

use crate::feed::ring::LaneWriter;

/// A set of int32 arrays `[rows, sequence_length]`, named after the library that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `inputs`, `targets` and their segmentations and positions.
    MaxText,
    /// `tokens`, `tokens_segment_ids`, `tokens_positions`, as Grain's packers name them.
    Grain,
    /// `input_ids`, `attention_mask`, `position_ids`, `labels`, as Hugging Face models take them.
    Hf,
}

/// Tokens of one document that follow one another in a row.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// Number of their segment in its row, from 1.
    pub number: i32,
    /// The row's place of its first token.
    pub at: usize,
    /// Position of that token in its segment: not 0 where a cut in the row divides the segment.
    pub position: usize,
    /// Its tokens.
    pub tokens: &'a [u32],
    /// Whether the document begins here, rather than in an earlier row.
    pub opens: bool,
    /// The token of the same document that follows, if it goes on in a later row.
    pub next: Option<u32>,
}

/// What `hf` labels hold where nothing is to be learnt.
const IGNORED_LABEL: i32 = -100;

impl Layout {
    /// The arrays' names, in the order in which they stand in a batch's buffer.
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
    pub fn write<R>(self, writer: &mut LaneWriter<R>, row: usize, segment: &Segment) {
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
                // A label is learnt from the token before it in the row: never from one of another
                // document, nor from one over a cut.
                if opens || at > 0 {
                    labels[0] = IGNORED_LABEL;
                }
            }
        }
    }

    /// Makes `token`, the first of the next document, the target of the token at `at`, the last of
    /// its own. Only `maxtext` has targets; the other layouts stay as they are.
    pub fn write_boundary_target<R>(self, writer: &mut LaneWriter<R>, row: usize, at: usize, token: u32) {
        if self == Self::MaxText {
            let [_, segmentation, _, targets, targets_segmentation] = writer.row(row);
            targets[at] = token as i32;
            targets_segmentation[at] = segmentation[at];
        }
    }

    /// Fills a row with padding from place `from` on.
    pub fn pad<R>(self, writer: &mut LaneWriter<R>, row: usize, from: usize) {
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
