//! The layouts: which fields the rows of a batch have, and what each holds.

use super::schema::{Content, DType, Field, Value, ValueOf};
use crate::spec::Layout;
use crate::spec::fields::{FieldSpec, Per};

/// A field of a layout: name, dtype, content, and the value of padding.
type Entry = (&'static str, DType, Content, i32);

/// The field of the provenance of rows with so many entries of so many numbers, if they have any. The sixth number is the
/// epoch.
pub fn provenance_field(entries: usize, width: usize) -> Option<Field> {
    let row_shape = vec![entries, width];
    (entries > 0).then(|| Field::new("provenance", DType::Int32, row_shape, Content::Provenance, 0))
}

/// The field that says which segments of a row are one pair.
pub fn pair_field(segments: usize) -> Field {
    Field::new("pair", DType::Int32, vec![segments], Content::Pair, 0)
}

/// The field that says how much each segment takes with its filling, of rows that tell segments by their lengths.
pub fn room_field(layout: Layout, segment_multiple: usize, segments: usize) -> Option<Field> {
    let field = || Field::new("seq_lens_padded", DType::Int32, vec![segments], Content::SegmentRoom, 0);
    (layout == Layout::Varlen && segment_multiple > 1).then(field)
}

/// The label of a token that is not trained on, as `torch.nn.CrossEntropyLoss` ignores it.
const IGNORED_LABEL: i32 = -100;

const MAXTEXT: &[Entry] = &[
    ("inputs", DType::Int32, Content::Token, 0),
    ("inputs_segmentation", DType::Int32, Content::Segment, 0),
    ("inputs_position", DType::Int32, Content::Position, 0),
    ("targets", DType::Int32, Content::Target, 0),
    ("targets_segmentation", DType::Int32, Content::TargetSegment, 0),
    ("targets_position", DType::Int32, Content::Position, 0),
];

const GRAIN: &[Entry] = &[
    ("tokens", DType::Int32, Content::Token, 0),
    ("tokens_segment_ids", DType::Int32, Content::Segment, 0),
    ("tokens_positions", DType::Int32, Content::Position, 0),
    ("tokens_loss_mask", DType::Int32, Content::Trained, 0),
];

const HF: &[Entry] = &[
    ("input_ids", DType::Int32, Content::Token, 0),
    ("attention_mask", DType::Int32, Content::Mask, 0),
    ("position_ids", DType::Int32, Content::Position, 0),
    ("labels", DType::Int32, Content::Label, IGNORED_LABEL),
];

const VARLEN: &[Entry] = &[
    ("tokens", DType::Int32, Content::Token, 0),
    ("seq_lens", DType::Int32, Content::SegmentLength, 0),
    ("next_token", DType::Int32, Content::NextToken, NO_TOKEN),
    ("targets_loss_mask", DType::Uint8, Content::TargetMask, 0),
];

/// The number that stands for no token: 0 is an id.
pub const NO_TOKEN: i32 = -1;

/// The number of a row's source where the row is nothing but padding.
const NO_SOURCE: i32 = -1;

/// The fields that say which source a row is of.
pub fn source_fields() -> [Field; 2] {
    [
        Field::new("source", DType::Int32, Vec::new(), Content::Source, NO_SOURCE),
        Field::new("weight", DType::Float32, Vec::new(), Content::Weight, 0),
    ]
}

impl Layout {
    /// The arrays of the fields of a stream.
    pub fn value_fields(self, fields: &[FieldSpec], length: usize, segments: usize) -> Vec<Field> {
        fields
            .iter()
            .enumerate()
            .flat_map(|(number, field)| self.arrays_of(number, field, length, segments))
            .collect()
    }

    fn arrays_of(self, number: usize, field: &FieldSpec, length: usize, segments: usize) -> Vec<Field> {
        let FieldSpec { name, dtype, shape, per, is_weight } = field;
        let array = |name: String, before: &[usize], of| {
            let value = Value { field: number, of, is_weight: *is_weight };
            Field::new(&name, *dtype, [before, &**shape].concat(), Content::Value(value), 0)
        };
        let own = match self {
            Self::Hf if *is_weight => ValueOf::Label,
            _ => ValueOf::Token,
        };
        match (per, self) {
            (Per::Sample, _) => vec![array(name.clone(), &[segments], ValueOf::Sample)],
            (Per::Token, Self::MaxText) => vec![array(format!("targets_{name}"), &[length], ValueOf::Target)],
            (Per::Token, Self::Grain | Self::Hf) => vec![array(name.clone(), &[length], own)],
            (Per::Token, Self::Varlen) => vec![
                array(name.clone(), &[length], own),
                array(format!("next_{name}"), &[], ValueOf::NextToken),
            ],
        }
    }

    /// The fields of rows of `length` tokens in at most `segments` segments.
    ///
    /// `has_mask` says whether samples tell which of their tokens are trained on: fields that hold nothing else are
    /// left out without.
    pub fn fields(self, length: usize, segments: usize, has_mask: bool) -> Vec<Field> {
        let table = match self {
            Self::MaxText => MAXTEXT,
            Self::Grain => GRAIN,
            Self::Hf => HF,
            Self::Varlen => VARLEN,
        };
        table
            .iter()
            .filter(|(_, _, content, _)| {
                has_mask || !matches!(content, Content::Trained | Content::TargetMask)
            })
            .map(|&(name, dtype, content, padding)| {
                let row_shape = match content {
                    Content::SegmentLength => vec![segments],
                    Content::NextToken => vec![],
                    _ => vec![length],
                };
                Field::new(name, dtype, row_shape, content, padding)
            })
            .collect()
    }
}
