//! `_core.Records`: the contents of a shard's records, for `gristmill inspect`.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use super::error::guarded;
use super::signals::interruptible;
use crate::error::Result;
use crate::read::{Member, ReadOptions, Shard, ShardReader};

/// Reads the records of a shard, by the same rules as a run.
#[pyclass(frozen, module = "gristmill._core")]
pub struct Records {
    reader: Mutex<ShardReader>,
    stop: Arc<AtomicBool>,
}

/// Key, kind and characters of a member.
type Item = (String, &'static str, usize);

#[pymethods]
impl Records {
    #[new]
    fn new(py: Python<'_>, path: String, size: u64, max_document_bytes: u64) -> PyResult<Self> {
        let shard = Shard { path: path.into(), size };
        let options =
            Arc::new(ReadOptions { folder: PathBuf::new(), text_field: String::new(), max_document_bytes });
        let stop = Arc::default();
        let reader = guarded(py, || ShardReader::open(&shard, &options, &stop))?;
        Ok(Self { reader: Mutex::new(reader), stop })
    }

    /// The members of the next record, or None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Vec<Item>>> {
        let members = self.with(py, |reader| Ok(reader.next_members()?))?;
        let item = |Member { key, kind, characters }| (key, kind, characters);
        Ok(members.map(|members| members.into_iter().map(item).collect()))
    }

    /// Number of lines read, blank ones counted, and of their bytes.
    fn position(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let position = self.with(py, |reader| Ok(reader.position()))?;
        Ok((position.record, position.byte))
    }
}

impl Records {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&mut ShardReader) -> Result<T>,
    ) -> PyResult<T> {
        let reader = || self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        interruptible(py, &self.stop, || work(&mut reader()))
    }
}
