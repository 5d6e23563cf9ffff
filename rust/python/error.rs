//! The one conversion from the core's errors, and its panics, to Python's exceptions.

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;

use crate::error::{Error, Result, ShardError, caught};

/// Does work without the GIL, turning a panic into an error: in Python, a panic is not an `Exception`.
pub fn guarded<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    py.detach(|| caught(work))
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        Python::attach(|py| {
            let message = error.to_string();
            match error {
                Error::Shard(ShardError { shard, record, byte, reason }) => {
                    exception(py, "ShardError", (&*shard, record, byte, reason))
                }
                Error::Tokenizer(_) => exception(py, "TokenizerError", (message,)),
                Error::Image(_) => exception(py, "ImageError", (message,)),
                Error::Template(_) => exception(py, "TemplateError", (message,)),
                Error::State(_) => exception(py, "StateError", (message,)),
                Error::Argument(_) | Error::Closed => exception(py, "ArgumentError", (message,)),
                Error::System(_) | Error::Forked | Error::Bug(_) => {
                    exception(py, "GristmillError", (message,))
                }
            }
        })
    }
}

/// The exception classes are defined in Python: they need several bases and pickling.
fn exception<'py>(py: Python<'py>, name: &str, arguments: impl PyCallArgs<'py>) -> PyErr {
    let made = || py.import("gristmill.errors")?.getattr(name)?.call1(arguments);
    made().map_or_else(|error| error, PyErr::from_value)
}
