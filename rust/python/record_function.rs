//! A Python function from the parts of a record to the record that is read.

use std::sync::Arc;

use pyo3::prelude::*;

use super::image_function::attached;
use crate::prepare::record_function::Make;

/// Parts by their names: of each the first of some members that a record has, with keys into its JSON.
type Parts = Vec<(String, Vec<Vec<String>>)>;

/// The function as `gristmill._sample` describes it.
#[derive(FromPyObject)]
pub struct FunctionPlan {
    /// From the record, as JSON, its key and the members that are images to the one that is read, or None.
    call: Py<PyAny>,
    /// The parts that it is given.
    given: Parts,
}

#[derive(Debug)]
struct Function(Py<PyAny>);

impl FunctionPlan {
    /// The function as workers call it, and the parts that it is given.
    pub fn function(self) -> (Arc<dyn Make>, Parts) {
        (Arc::new(Function(self.call)), self.given)
    }
}

impl Make for Function {
    fn make(&self, record: &str, key: &str, members: &[&str]) -> Result<Option<String>, String> {
        attached(|py| self.0.call1(py, (record, key, members))?.extract(py))
            .map_err(crate::image::Fault::into_reason)
    }
}
