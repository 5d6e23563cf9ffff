//! Cursors of saved states, for Python.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Error;
use crate::lane::cursor::Cursor;
use crate::state;

/// The numbers of a lane's text by the names of its sources and their own, and the text in its one form. Numbers of no
/// mixture have the name "".
#[pyfunction]
pub fn read_lane<'py>(py: Python<'py>, lane: &str, text: &str) -> PyResult<(Bound<'py, PyDict>, String)> {
    let mut cursors = state::read_lane(text).map_err(|reason| cannot_be_read(lane, &reason))?;
    let form = state::write_lane(
        cursors.iter().map(|(name, (cursor, carried))| (&**name, cursor, carried.as_deref())),
    );
    if cursors.is_empty() {
        cursors.push((String::new(), (Cursor::default(), None)));
    }
    let sources = PyDict::new(py);
    for (name, (cursor, _)) in cursors {
        let numbers = PyDict::new(py);
        for (name, number) in cursor.numbers() {
            numbers.set_item(name, number)?;
        }
        sources.set_item(name, numbers)?;
    }
    Ok((sources, form))
}

/// The text of a lane where its run began, of which `text` is a later one.
#[pyfunction]
pub fn lane_start(lane: &str, text: &str) -> PyResult<String> {
    Ok(state::lane_start(text).map_err(|reason| cannot_be_read(lane, &reason))?)
}

fn cannot_be_read(lane: &str, reason: &str) -> Error {
    Error::State(format!("the state of lane {lane} cannot be read: {reason}"))
}

/// Whether a source may have this name.
#[pyfunction]
pub fn is_source_name(name: &str) -> bool {
    state::is_source_name(name)
}
