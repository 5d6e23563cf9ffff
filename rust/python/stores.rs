//! Listing stores on the network: `_core.Stores`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use gristmill_remote::{Client, Failure, Hub, Listed, Listing, Options};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::error::guarded;
use super::signals::Signals;
use crate::error::{Error, Result};
use crate::store::Stores as Core;

/// Key and size of an object.
type Object = (String, u64);

/// The stores that URLs name, while they are listed.
#[pyclass(frozen, module = "gristmill._core")]
pub struct Stores {
    stores: Core,
    client: Arc<Client>,
}

#[pymethods]
impl Stores {
    /// Reaches stores with these options.
    #[new]
    fn new(py: Python<'_>, storage: Vec<(String, String)>) -> PyResult<Self> {
        let stores = Core::new(Options { storage, ..Options::default() });
        let client = guarded(py, || stores.client())?;
        Ok(Self { stores, client })
    }

    /// The objects below a URL, and the keys there that no request can name.
    fn list_below(&self, py: Python<'_>, url: String) -> PyResult<(Vec<Object>, Vec<String>)> {
        let Listing { objects, odd, .. } = self.run(py, |client, stop| client.list(&url, stop))?;
        Ok((objects.into_iter().map(object).collect(), odd))
    }

    /// The folders directly below a URL, the objects, and the keys there that no request can name.
    #[allow(clippy::type_complexity)] // as Python unpacks it
    fn list_folder(&self, py: Python<'_>, url: String) -> PyResult<(Vec<String>, Vec<Object>, Vec<String>)> {
        let Listing { folders, objects, odd } =
            self.run(py, |client, stop| client.list_folder(&url, stop))?;
        Ok((folders, objects.into_iter().map(object).collect(), odd))
    }

    /// The `ETag` of each object that was found; None where its store has none.
    fn e_tags(&self, urls: Vec<String>) -> Vec<Option<String>> {
        urls.iter().map(|url| self.client.e_tag(url).map(|found| found.to_string())).collect()
    }

    /// The sizes of objects in bytes; None for one that is not there.
    fn sizes(&self, py: Python<'_>, urls: Vec<String>) -> PyResult<Vec<Option<u64>>> {
        let found = self.run(py, |client, stop| client.sizes(&urls, stop))?;
        Ok(found.into_iter().map(|found| found.map(|found| found.size)).collect())
    }

    /// All bytes of an object; None if there is none.
    fn read<'py>(&self, py: Python<'py>, url: String) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.run(py, |client, stop| client.read(&url, stop))?;
        Ok(found.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Makes a local file of an object of `size` bytes.
    fn download(&self, py: Python<'_>, url: String, size: u64, file: PathBuf) -> PyResult<()> {
        self.run(py, |client, stop| client.download(&url, size, &file, stop))
    }

    /// Makes an object of bytes, in place of one that is there.
    fn write(&self, py: Python<'_>, url: String, data: Vec<u8>) -> PyResult<()> {
        self.run(py, |client, stop| client.write(&url, &data.into(), stop))
    }

    /// Makes an object of a local file, which appears when all of it has arrived.
    fn upload(&self, py: Python<'_>, url: String, file: PathBuf) -> PyResult<()> {
        self.run(py, |client, stop| client.upload(&url, &file, stop))
    }

    /// The URL of the Hugging Face Hub, and the token with which it is asked, if there is one.
    fn hub(&self) -> (String, Option<String>) {
        let Hub { endpoint, token } = self.client.hub();
        (endpoint, token)
    }
}

impl Stores {
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Client, &(dyn Fn() -> bool + Sync)) -> std::result::Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let signals = Mutex::new(Signals::new());
        let have_raised = || {
            let notes = self.stores.counters().take_notes();
            if !notes.is_empty() {
                // The work is more than its log.
                let _ = Python::attach(|py| log(py, &notes));
            }
            signals.lock().unwrap_or_else(PoisonError::into_inner).have_raised()
        };
        let found: Result<T> = guarded(py, || {
            work(&self.client, &have_raised).map_err(|failure| Error::System(failure.to_string()))
        });
        signals.into_inner().unwrap_or_else(PoisonError::into_inner).raised()?;
        Ok(found?)
    }
}

/// Logs what is waited out on the network.
pub fn log(py: Python<'_>, notes: &[String]) -> PyResult<()> {
    for note in notes {
        py.import("logging")?
            .call_method1("getLogger", ("gristmill",))?
            .call_method1("warning", ("%s", note))?;
    }
    Ok(())
}

fn object(listed: Listed) -> Object {
    (listed.key, listed.size)
}
