//! `_core.Records`: the contents of a shard's records, for `gristmill inspect`.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use super::error::guarded;
use super::signals::Signals;
use crate::error::Result;
use crate::format::{Member, Projection, ReadOptions, RecordReader};
use crate::store::{LocalFile, Shard};

/// Reads the records of a shard, by the same rules as a run.
#[pyclass(frozen, module = "gristmill._core")]
pub struct Records {
    reader: Mutex<RecordReader>,
    signals: Arc<Mutex<Signals>>,
}

/// A shard's file whose reader stops when a signal's handler raises: it may read on for long where there are no records.
struct Interruptible {
    file: LocalFile,
    signals: Arc<Mutex<Signals>>,
    stop: Arc<AtomicBool>,
}

impl Read for Interruptible {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        self.stop.store(signals.have_raised(), Ordering::Relaxed);
        self.file.read(out)
    }
}

/// Key, kind and characters of a member.
type Item = (String, &'static str, usize);

#[pymethods]
impl Records {
    #[new]
    fn new(py: Python<'_>, path: String, size: u64, max_document_bytes: u64) -> PyResult<Self> {
        let shard = Shard { path: path.into(), size };
        let options = Arc::new(ReadOptions {
            folder: PathBuf::new(),
            projection: Projection::text(""),
            max_document_bytes,
        });
        let signals = Arc::new(Mutex::new(Signals::new()));
        let reader = guarded(py, || {
            let (file, stop) = (LocalFile::open(&shard, &options.folder)?, Arc::default());
            let source = Interruptible { file, signals: Arc::clone(&signals), stop: Arc::clone(&stop) };
            Ok(RecordReader::from_source(&shard.path, Box::new(source), &options, &stop)?)
        })?;
        Ok(Self { reader: Mutex::new(reader), signals })
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
        work: impl Send + FnOnce(&mut RecordReader) -> Result<T>,
    ) -> PyResult<T> {
        let (read, signals) = guarded(py, || {
            let read = work(&mut self.reader.lock().unwrap_or_else(PoisonError::into_inner));
            let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
            Ok((read, std::mem::replace(&mut *signals, Signals::new())))
        })?;
        signals.raised()?;
        Ok(read?)
    }
}
