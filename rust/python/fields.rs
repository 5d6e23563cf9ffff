//! `_core.Field`: an array of a batch, as Python announces it before the first one.

use numpy::PyArrayDescr;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::choices::{self, DTYPES, LAYOUTS};
use super::sample::ImageTextPlan;
use crate::batch::layouts::{pair_field, provenance_field, room_field, source_fields};
use crate::batch::schema::{self, Content, with_element_type};
use crate::error::Error;
use crate::spec::fields::{FieldSpec, Per};

/// An array of a batch.
#[pyclass(frozen, module = "gristmill._core")]
pub struct Field(schema::Field);

#[pymethods]
impl Field {
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyArrayDescr> {
        with_element_type!(self.0.dtype, E => numpy::dtype::<E>(py))
    }

    /// The shape of one row.
    #[getter]
    fn row_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.row_shape)
    }

    /// Whether the first axis of a row is that of its tokens.
    #[getter]
    fn is_per_token(&self) -> bool {
        self.0.content.is_per_token() && self.0.content != Content::RotaryPosition
    }

    /// The value of its elements in padding.
    #[getter]
    fn padding(&self) -> i32 {
        self.0.padding
    }

    /// The meaning of the elements.
    #[getter]
    fn content(&self) -> &'static str {
        self.0.content.name()
    }
}

/// A field that travels with tokens or samples, as `gristmill._sample.fields` has it.
#[derive(FromPyObject)]
pub struct FieldPlan {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    per: String,
    is_weight: bool,
}

/// The fields as the core has them.
pub fn field_specs(plans: Vec<FieldPlan>) -> Result<Vec<FieldSpec>, Error> {
    let spec = |FieldPlan { name, dtype, shape, per, is_weight }| {
        let dtype = choices::find("dtype", &dtype, &DTYPES)?;
        let per = if per == "sample" { Per::Sample } else { Per::Token };
        Ok(FieldSpec { name, dtype, shape, per, is_weight })
    };
    plans.into_iter().map(spec).collect()
}

/// The fields of a layout, in the order of a batch's arrays. `max_segments`: the most segments of a row.
/// `provenance`: its entries in a row, and the numbers of each. `has_mask`: of
/// samples that say which of their tokens are trained on. `source_arrays`: with those that say which source a row is
/// of. `images`: with those of images. `fields`: with
/// those that travel with tokens or samples. `has_pairs`: with the one that tells pairs. `pad_segments_to`: the multiple
/// at which segments begin.
#[pyfunction]
#[pyo3(signature = (layout, sequence_length, max_segments, provenance, has_mask=false, source_arrays=false, images=None, fields=Vec::new(), has_pairs=false, pad_segments_to=None))]
#[allow(clippy::too_many_arguments)] // one for each of Python's
pub fn layout_fields(
    layout: &str,
    sequence_length: usize,
    max_segments: usize,
    provenance: (usize, usize),
    has_mask: bool,
    source_arrays: bool,
    images: Option<ImageTextPlan>,
    fields: Vec<FieldPlan>,
    has_pairs: bool,
    pad_segments_to: Option<usize>,
) -> PyResult<Vec<Field>> {
    let carried = field_specs(fields)?;
    let layout = choices::find("layout", layout, &LAYOUTS)?;
    let mut fields = layout.fields(sequence_length, max_segments, has_mask);
    fields.extend(layout.value_fields(&carried, sequence_length, max_segments));
    fields.extend(room_field(layout, pad_segments_to.unwrap_or(1), max_segments));
    if has_pairs {
        fields.push(pair_field(max_segments));
    }
    fields.extend(provenance_field(provenance.0, provenance.1));
    if source_arrays {
        fields.extend(source_fields());
    }
    if let Some(images) = images {
        images.rows(sequence_length).extend(&mut fields);
    }
    Ok(fields.into_iter().map(Field).collect())
}
