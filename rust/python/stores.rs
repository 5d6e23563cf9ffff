//! Listing stores on the network: `_core.Stores`.

use std::sync::{Arc, Mutex, PoisonError};

use gristmill_remote::{Client, Failure, Listed, Options};
use pyo3::prelude::*;

use super::error::guarded;
use super::signals::Signals;
use crate::error::{Error, Result};
use crate::store::Stores as Core;

/// Key and size of an object.
type Object = (String, u64);

/// The stores that URLs name, while they are listed.
#[pyclass(frozen, module = "gristmill._core")]
pub struct Stores(Arc<Client>);

#[pymethods]
impl Stores {
    /// Reaches stores with these options.
    #[new]
    fn new(py: Python<'_>, storage: Vec<(String, String)>) -> PyResult<Self> {
        let client = guarded(py, || Core::new(Options { storage, ..Options::default() }).client())?;
        Ok(Self(client))
    }

    /// The objects below a URL.
    fn list_below(&self, py: Python<'_>, url: String) -> PyResult<Vec<Object>> {
        Ok(self.run(py, |client, stop| client.list(&url, stop))?.into_iter().map(object).collect())
    }

    /// The folders directly below a URL, and the objects.
    fn list_folder(&self, py: Python<'_>, url: String) -> PyResult<(Vec<String>, Vec<Object>)> {
        let (folders, objects) = self.run(py, |client, stop| client.list_folder(&url, stop))?;
        Ok((folders, objects.into_iter().map(object).collect()))
    }

    /// The sizes of objects in bytes; None for one that is not there.
    fn sizes(&self, py: Python<'_>, urls: Vec<String>) -> PyResult<Vec<Option<u64>>> {
        let found = self.run(py, |client, stop| client.sizes(&urls, stop))?;
        Ok(found.into_iter().map(|found| found.map(|found| found.size)).collect())
    }
}

impl Stores {
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Client, &(dyn Fn() -> bool + Sync)) -> std::result::Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let signals = Mutex::new(Signals::new());
        let have_raised = || signals.lock().unwrap_or_else(PoisonError::into_inner).have_raised();
        let found: Result<T> =
            guarded(py, || work(&self.0, &have_raised).map_err(|failure| Error::System(failure.to_string())));
        signals.into_inner().unwrap_or_else(PoisonError::into_inner).raised()?;
        Ok(found?)
    }
}

fn object(listed: Listed) -> Object {
    (listed.key, listed.size)
}
