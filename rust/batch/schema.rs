//! The fields of a batch: name, dtype, shape of a row, content, and where each lies in the batch's memory.
//!
//! ```text
//! inputs            int32 [rows, 1024]     ┐
//! inputs_position   int32 [rows, 1024]     │ in one buffer, one after another, each aligned
//! provenance        int32 [rows, 16, 4]    ┘
//! ```
//!
//! Everything else about arrays follows from the schema: the buffers' size, the rows that the ring lends to lanes, the
//! NumPy arrays, and the shapes that Python announces before the first batch. A layout is a list of fields, in
//! `layouts`; packing fills them by their content, in `pack::rows`.
//!
//! Rows of one field have one size. A field whose rows differ in size (ids without padding), or whose values are Python
//! objects (columns of a record), has no memory here. It will be listed in the schema with its name and without a
//! dtype; each lane collects its values while it writes the rows, and they travel in the lane's
//! [`Report`](crate::pack::report::Report), one value for each row, until Python makes an array of them beside the
//! others. No layout has such a field yet.

/// Alignment of every field in bytes: a cache line, and what JAX requires of memory it can use in place on CPU.
const ALIGNMENT: usize = 64;

/// The type of a field's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// Pixels.
    Uint8,
    /// Ids, positions, counts.
    Int32,
    /// The same for libraries that index with 64 bits.
    Int64,
    /// Weights.
    Float32,
    /// Values of fields, in half the bytes.
    Float16,
    /// The same with the range of `Float32`.
    BFloat16,
}

impl DType {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Float16 | Self::BFloat16 => 2,
            Self::Int32 | Self::Float32 => 4,
            Self::Int64 => 8,
        }
    }
}

/// The Rust type of a [`DType`].
///
/// # Safety
///
/// Every pattern of as many bytes as `DTYPE` has must be a value of the type, which must not be more aligned than a
/// cache line.
pub unsafe trait Element: Copy {
    /// The type's name in a schema.
    const DTYPE: DType;
    /// Converts as Rust's `as` does.
    fn from_i32(value: i32) -> Self;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),+) => {
        $(
            // SAFETY: a primitive number, whose size is that of the dtype.
            unsafe impl Element for $type {
                const DTYPE: DType = DType::$dtype;
                #[allow(clippy::cast_lossless)]
                fn from_i32(value: i32) -> Self {
                    value as Self
                }
            }
            const _: () = assert!(size_of::<$type>() == DType::$dtype.size());
        )+
    };
}
elements!(u8 => Uint8, i32 => Int32, i64 => Int64, f32 => Float32);

macro_rules! half_elements {
    ($($type:ty => $dtype:ident),+) => {
        $(
            // SAFETY: a number of 16 bits, all of whose patterns are values.
            unsafe impl Element for $type {
                const DTYPE: DType = DType::$dtype;
                fn from_i32(value: i32) -> Self {
                    Self::from_f32(value as f32)
                }
            }
            const _: () = assert!(size_of::<$type>() == DType::$dtype.size());
        )+
    };
}
half_elements!(half::f16 => Float16, half::bf16 => BFloat16);

/// Evaluates an expression with `$element` as the Rust type of a [`DType`].
macro_rules! with_element_type {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            $crate::batch::schema::DType::Uint8 => {
                type $element = u8;
                $body
            }
            $crate::batch::schema::DType::Int32 => {
                type $element = i32;
                $body
            }
            $crate::batch::schema::DType::Int64 => {
                type $element = i64;
                $body
            }
            $crate::batch::schema::DType::Float32 => {
                type $element = f32;
                $body
            }
            $crate::batch::schema::DType::Float16 => {
                type $element = half::f16;
                $body
            }
            $crate::batch::schema::DType::BFloat16 => {
                type $element = half::bf16;
                $body
            }
        }
    };
}
pub(crate) use with_element_type;

/// The meaning of the elements of a field's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The id of each token.
    Token,
    /// The number of each token's segment in the row, from 1.
    Segment,
    /// 1 for each token.
    Mask,
    /// The index of each token in its segment.
    Position,
    /// The id that follows each token in its document.
    Target,
    /// The number of each token's segment if its target is trained on.
    TargetSegment,
    /// The id of each token if it is trained on given the one before it in the row.
    Label,
    /// 1 for each token that is trained on.
    Trained,
    /// 1 for each token whose target is trained on.
    TargetMask,
    /// The number of tokens of each segment, and zeros behind the last.
    SegmentLength,
    /// The number of elements from the start of each segment to where the next one may begin, and zeros behind the last.
    SegmentRoom,
    /// The id that follows the row's last token in its document, which continues in a later row.
    NextToken,
    /// The number of the pair that each segment is one of, and zeros behind the last.
    Pair,
    /// For each run of tokens that are consecutive in their document: shard, record, offset, length.
    Provenance,
    /// The number of the row's source.
    Source,
    /// The weight of that source in the row's step.
    Weight,
    /// The index of each token in its segment on three axes, of which those of an image's tokens are its frames, rows and
    /// columns.
    RotaryPosition,
    /// The pixels of the row's images.
    Pixels,
    /// 1 for each image.
    ImageMask,
    /// The frames, rows and columns of patches of each image.
    ImageGrid,
    /// The number of each image's segment.
    ImageSegment,
    /// The index in the row of each image's first token.
    ImageIndex,
    /// The values of a field that travels with tokens or samples.
    Value(Value),
}

/// The values that an array holds of a field of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// The index of the field among those of the stream.
    pub field: usize,
    /// Whose values they are.
    pub of: ValueOf,
    /// Whether they say how much a token is trained on: 0 where it is not.
    pub is_weight: bool,
}

/// Whose values an array of a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueOf {
    /// Each token's own.
    Token,
    /// Each token's own, if it is trained on given the one before it in the row.
    Label,
    /// The values of the token that follows each token in its document.
    Target,
    /// The values of the token that follows the row's last one in its document.
    NextToken,
    /// The values of each segment's sample, and zeros behind the last.
    Sample,
}

impl Content {
    /// Whether a row has one element for each of its tokens, and padding where it has none.
    pub fn is_per_token(self) -> bool {
        let is_of_row = matches!(
            self,
            Self::Provenance
                | Self::Source
                | Self::Weight
                | Self::SegmentLength
                | Self::SegmentRoom
                | Self::NextToken
                | Self::Pair
                | Self::Value(Value { of: ValueOf::NextToken | ValueOf::Sample, .. })
        );
        !is_of_row && !self.is_per_image()
    }

    /// Whether a row has some elements for each of its images, and padding after them.
    pub fn is_per_image(self) -> bool {
        matches!(
            self,
            Self::Pixels | Self::ImageMask | Self::ImageGrid | Self::ImageSegment | Self::ImageIndex
        )
    }

    /// Its name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Segment => "segment",
            Self::Mask => "mask",
            Self::Position => "position",
            Self::Target => "target",
            Self::TargetSegment => "target_segment",
            Self::Label => "label",
            Self::Trained => "trained",
            Self::TargetMask => "target_mask",
            Self::SegmentLength => "segment_length",
            Self::SegmentRoom => "segment_room",
            Self::NextToken => "next_token",
            Self::Pair => "pair",
            Self::Provenance => "provenance",
            Self::Source => "source",
            Self::Weight => "weight",
            Self::RotaryPosition => "rotary_position",
            Self::Pixels => "pixels",
            Self::ImageMask => "image_mask",
            Self::ImageGrid => "image_grid",
            Self::ImageSegment => "image_segment",
            Self::ImageIndex => "image_index",
            Self::Value(Value { of, .. }) => match of {
                ValueOf::Token | ValueOf::Label => "value",
                ValueOf::Target => "target_value",
                ValueOf::NextToken => "next_value",
                ValueOf::Sample => "sample_value",
            },
        }
    }
}

/// An array of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The array's name.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// The shape of one row.
    pub row_shape: Vec<usize>,
    /// The meaning of the elements.
    pub content: Content,
    /// The value of elements that hold nothing.
    pub padding: i32,
    /// Where the first row starts in the buffer, in bytes.
    offset: usize,
    /// Elements and bytes of a row.
    row_len: usize,
    row_bytes: usize,
}

impl Field {
    /// A field with nothing before it.
    pub fn new(name: &str, dtype: DType, row_shape: Vec<usize>, content: Content, padding: i32) -> Self {
        let row_len = row_shape.iter().fold(1, |product: usize, size| product.saturating_mul(*size));
        let row_bytes = row_len.saturating_mul(dtype.size());
        Self { name: name.into(), dtype, row_shape, content, padding, offset: 0, row_len, row_bytes }
    }

    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// Where a row starts in the buffer, in bytes.
    pub fn row_offset(&self, row: usize) -> usize {
        self.offset + row * self.row_bytes
    }
}

/// The fields of a batch and the number of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchSchema {
    rows: usize,
    fields: Vec<Field>,
    bytes: Option<usize>,
}

impl BatchSchema {
    /// Lays out `rows` rows of these fields.
    pub fn new(rows: usize, mut fields: Vec<Field>) -> Self {
        let mut bytes = Some(0);
        for field in &mut fields {
            // Without a number of bytes there is no buffer, and the offset is not used.
            field.offset = bytes.unwrap_or(0);
            let of_rows = field.row_bytes.checked_mul(rows);
            bytes = bytes
                .zip(of_rows)
                .and_then(|(before, more)| before.checked_add(more)?.checked_next_multiple_of(ALIGNMENT));
        }
        Self { rows, fields, bytes }
    }

    /// Rows of a batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The fields, in the order of their arrays.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Bytes of a batch, unless their number overflows.
    pub fn bytes(&self) -> Option<usize> {
        self.bytes
    }
}

#[cfg(all(test, feature = "loom"))]
impl BatchSchema {
    /// One element in each row, for models of the ring.
    pub fn of_one_element(rows: usize) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self::new(rows, vec![Field::new("", DType::Int32, vec![1], Content::Token, 0)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(rows: usize) -> BatchSchema {
        let field = |name, dtype, row_shape: &[usize], content| {
            Field::new(name, dtype, row_shape.to_vec(), content, 0)
        };
        BatchSchema::new(
            rows,
            vec![
                field("ids", DType::Int32, &[5], Content::Token),
                field("wide", DType::Int64, &[5], Content::Position),
                field("weight", DType::Float32, &[], Content::Trained),
                field("pixels", DType::Uint8, &[2, 3, 3], Content::Token),
                field("provenance", DType::Int32, &[3, 4], Content::Provenance),
            ],
        )
    }

    #[test]
    fn fields_are_aligned_and_do_not_overlap() {
        for rows in [1, 3, 30_000] {
            let schema = schema(rows);
            let mut end = 0;
            for field in schema.fields() {
                assert!(field.row_offset(0) >= end && field.row_offset(0).is_multiple_of(ALIGNMENT));
                for row in 0..rows {
                    assert!(row == 0 || field.row_offset(row) == end);
                    end = field.row_offset(row) + field.row_len() * field.dtype.size();
                }
            }
            let bytes = schema.bytes().unwrap();
            assert!(bytes >= end && bytes < end + ALIGNMENT);
        }
    }

    #[test]
    fn row_length_is_the_product_of_its_shape() {
        let lengths: Vec<_> = schema(1).fields().iter().map(Field::row_len).collect();
        assert_eq!(lengths, [5, 5, 1, 18, 12]);
    }

    #[test]
    fn sizes_that_overflow_have_no_bytes() {
        for (rows, row_shape) in [(1 << 30, vec![1 << 32]), (1, vec![1 << 62, 8]), (1 << 62, vec![1])] {
            let field = Field::new("ids", DType::Int32, row_shape, Content::Token, 0);
            assert_eq!(BatchSchema::new(rows, vec![field]).bytes(), None);
        }
    }
}
