//! `_core.Field`: an array of a batch, as Python announces it before the first one.

use numpy::PyArrayDescr;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::choices::{self, LAYOUTS};
use super::sample::ImageTextPlan;
use crate::batch::layouts::{provenance_field, source_fields};
use crate::batch::schema::{self, with_element_type};

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

    /// The meaning of the elements.
    #[getter]
    fn content(&self) -> &'static str {
        self.0.content.name()
    }
}

/// The fields of a layout, in the order of a batch's arrays. `max_segments`: the most segments of a row.
/// `provenance`: its entries in a row, and whether records may become several samples. `has_mask`: of
/// samples that say which of their tokens are trained on. `source_arrays`: with those that say which source a row is
/// of. `images`: with those of images.
#[pyfunction]
#[pyo3(signature = (layout, sequence_length, max_segments, provenance, has_mask=false, source_arrays=false, images=None))]
pub fn layout_fields(
    layout: &str,
    sequence_length: usize,
    max_segments: usize,
    provenance: (usize, bool),
    has_mask: bool,
    source_arrays: bool,
    images: Option<ImageTextPlan>,
) -> PyResult<Vec<Field>> {
    let layout = choices::find("layout", layout, &LAYOUTS)?;
    let mut fields = layout.fields(sequence_length, max_segments, has_mask);
    fields.extend(provenance_field(provenance.0, provenance.1));
    if source_arrays {
        fields.extend(source_fields());
    }
    if let Some(images) = images {
        images.rows(sequence_length).extend(&mut fields);
    }
    Ok(fields.into_iter().map(Field).collect())
}
