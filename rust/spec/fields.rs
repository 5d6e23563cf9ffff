//! Fields of a stream: values that travel with tokens or samples, such as weights, and become arrays beside the ids.

use crate::batch::schema::DType;

/// A field of a stream. A source that lacks it has zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSpec {
    /// Its name, of which a layout makes that of the array.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// The shape of a value; empty: one element.
    pub shape: Vec<usize>,
    /// The owner of a value.
    pub per: Per,
    /// Whether it says how much each token is trained on. Its values are those of the mask.
    pub is_weight: bool,
}

/// The owner of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// Each token.
    Token,
    /// Each sample.
    Sample,
}

impl FieldSpec {
    /// Elements of a value.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of a value.
    pub fn width(&self) -> usize {
        self.elements() * self.dtype.size()
    }
}
