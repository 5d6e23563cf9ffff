//! A Python function from the parts of a record to the record that is read, and `_core.Files`, by which it reads files.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::error::guarded;
use super::image_function::attached;
use crate::error::{Error, Result};
use crate::prepare::image_columns::{self, Missing};
use crate::prepare::record_function::Make;
use crate::store::{Access, Shard, is_remote, read_exact_at};

/// Parts by their names: of each the first of some members that a record has, with keys into its JSON.
type Parts = Vec<(String, Vec<Vec<String>>)>;

/// The function as `gristmill._sample` describes it.
#[derive(FromPyObject)]
pub struct FunctionPlan {
    /// From the record, as JSON, its key, the members that are images, and the files that it may read, or None, to the one
    /// that is read, or None.
    call: Py<PyAny>,
    /// The parts that it is given.
    given: Parts,
    /// Whether it reads files.
    reads_files: bool,
}

#[derive(Debug)]
struct Function {
    call: Py<PyAny>,
    reads_files: bool,
}

impl FunctionPlan {
    /// The function as workers call it, and the parts that it is given.
    pub fn function(self) -> (Arc<dyn Make>, Parts) {
        let Self { call, given, reads_files } = self;
        (Arc::new(Function { call, reads_files }), given)
    }
}

impl Make for Function {
    fn make(
        &self,
        record: &str,
        key: &str,
        members: &[&str],
        files: image_columns::Files<'_>,
    ) -> std::result::Result<Option<String>, Missing> {
        let files = self.reads_files.then(|| Files::new(files));
        let made = attached(|py| self.call.call1(py, (record, key, members, files.clone()))?.extract(py));
        // Also if the function has caught it: on another machine, or at another time, the file may be there.
        if let Some(error) = files.and_then(|files| files.failure()) {
            return Err(Missing::Failed(error));
        }
        made.map_err(|fault| Missing::Bad(fault.into_reason()))
    }
}

/// The files that a function may read for a record, through the stores of its run.
#[pyclass(frozen, module = "gristmill._core")]
#[derive(Clone)]
pub struct Files {
    access: Access,
    stop: Arc<AtomicBool>,
    longest: u64,
    /// Why a file could not be read that may be there.
    failed: Arc<Mutex<Option<Error>>>,
}

#[pymethods]
impl Files {
    /// Size and `ETag` of a file; None if there is none.
    fn find(&self, py: Python<'_>, path: String) -> PyResult<Option<(u64, Option<String>)>> {
        self.run(py, || {
            if !is_remote(&path) && !self.access.folder.join(&path).is_file() {
                return Ok(None);
            }
            let found = self.access.find(&path, &self.stop)?;
            Ok(Some((found.size, found.e_tag.map(|e_tag| e_tag.to_string()))))
        })
    }

    /// Some bytes of a file of a size and an `ETag`; None if it is another one, or gone.
    fn read<'py>(
        &self,
        py: Python<'py>,
        path: String,
        size: u64,
        e_tag: Option<String>,
        offset: u64,
        length: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.run(py, || {
            if length > self.longest {
                return Ok(None);
            }
            let file = Shard { e_tag: e_tag.map(Into::into), ..Shard::whole(&*path, size) };
            let mut source = self.access.open(&file, &self.stop)?;
            let mut found = vec![0; length as usize];
            let read = read_exact_at(&mut *source, offset, &mut found);
            Ok(read.is_ok().then_some(found))
        })?;
        Ok(found.map(|found| PyBytes::new(py, &found)))
    }

    /// The most bytes that are read at once.
    #[getter]
    fn longest(&self) -> u64 {
        self.longest
    }
}

impl Files {
    fn new(files: image_columns::Files<'_>) -> Self {
        let image_columns::Files { access, stop, longest, .. } = files;
        Self { access: access.clone(), stop: Arc::clone(stop), longest, failed: Arc::default() }
    }

    /// Works without the GIL. A file that is not there is None; other failures are kept.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<Option<T>> + Send,
    ) -> PyResult<Option<T>> {
        let found = guarded(py, || {
            let found = work();
            self.access.outage().map_or(found, Err)
        });
        match found {
            Err(Error::Shard(_)) => Ok(None),
            Err(error) => {
                let message = error.to_string();
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Err(Error::System(message).into())
            }
            Ok(found) => Ok(found),
        }
    }

    fn failure(&self) -> Option<Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
