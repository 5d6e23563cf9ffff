//! Cursors of saved states, for Python.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Error;
use crate::state;

/// The numbers of a cursor's text by their names, and the text in its one form.
#[pyfunction]
pub fn read_cursor<'py>(py: Python<'py>, lane: &str, text: &str) -> PyResult<(Bound<'py, PyDict>, String)> {
    let cursor = state::read_cursor(text)
        .map_err(|reason| Error::State(format!("the state of lane {lane} cannot be read: {reason}")))?;
    let numbers = PyDict::new(py);
    for (name, number) in cursor.numbers() {
        numbers.set_item(name, number)?;
    }
    Ok((numbers, state::write_cursor(&cursor)))
}
