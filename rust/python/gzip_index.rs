//! Seek indexes of gzip shards, for `gristmill index`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use super::error::guarded;
use super::inspect::Interruptible;
use super::signals::Signals;
use crate::codec;
use crate::error::{Error, ShardError};
use crate::store::{LocalFile, Shard};

/// The path of a shard's index.
#[pyfunction]
pub fn index_path(path: PathBuf) -> PathBuf {
    codec::index_path(&path)
}

/// Whether a shard has an index that is its own.
#[pyfunction]
pub fn has_index(py: Python<'_>, path: String, size: u64) -> PyResult<bool> {
    let shard = Shard::whole(path, size);
    let found = guarded(py, || {
        let mut source = LocalFile::open(&shard, Path::new(""))?;
        Ok(codec::GzipIndex::open(Path::new(&*shard.path), &mut source))
    })?;
    Ok(matches!(found, Ok(Some(_))))
}

/// Writes the index of a gzip shard into a file.
#[pyfunction]
pub fn write_index(py: Python<'_>, path: String, size: u64, out: PathBuf) -> PyResult<()> {
    let shard = Shard::whole(path, size);
    let signals = Arc::new(Mutex::new(Signals::new()));
    let written = guarded(py, || {
        let source = LocalFile::open(&shard, Path::new(""))?;
        let (source, stop) = Interruptible::new(Box::new(source), &signals);
        let failed = |reason| {
            Error::Shard(ShardError { shard: Arc::clone(&shard.path), record: None, byte: None, reason })
        };
        let create = |error| Error::System(format!("{}: {error}", out.display()));
        let mut out = File::create(&out).map_err(create)?;
        codec::write_index(Box::new(source), &mut out, &stop).map_err(failed)
    });
    let mut signals = signals.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *signals, Signals::new()).raised()?;
    Ok(written?)
}
