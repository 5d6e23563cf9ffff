//! `_core.RowList`: rows that are left out.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;

use super::error::guarded;
use super::spec::access;
use crate::format::keep::Ids;
use crate::format::{Projection, ReadOptions};
use crate::spec::rows::{Lists, Rows};
use crate::store::{Access, Shard};

/// The longest record of a list.
const LONGEST: u64 = 1 << 27;

/// Rows that are left out, as they stand in some files.
#[pyclass(frozen, module = "gristmill._core")]
pub struct RowList(Listed);

enum Listed {
    Rows(Arc<Rows>),
    Ids(Arc<Ids>),
}

#[pymethods]
impl RowList {
    /// Reads the ids of some files: those in a column, or without one each line. With `shards`, paths from the root in the
    /// order of the manifest, ids name a shard and a row. `storage` says how stores on the network are reached.
    #[new]
    #[pyo3(signature = (folder, files, column, shards, storage=Vec::new()))]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        files: Vec<(String, u64)>,
        column: Option<String>,
        shards: Option<Vec<String>>,
        storage: Vec<(String, String)>,
    ) -> PyResult<Self> {
        let shard = |(path, size): (String, u64)| Shard::whole(path, size);
        let lists = Lists {
            files: files.into_iter().map(shard).collect(),
            has_column: column.is_some(),
            read: Arc::new(ReadOptions {
                access: access(folder, storage, Access::IO_BYTES, None),
                projection: column.map_or_else(Projection::all, Projection::text),
                keep: None,
                max_document_bytes: LONGEST,
                ids: None,
            }),
        };
        let listed = guarded(py, || {
            let (stop, access) = (Arc::default(), &lists.read.access);
            let _connection = access.connect(&lists.files)?;
            let read = match shards {
                Some(shards) => Rows::load(&lists, &shards, &stop).map(|rows| Listed::Rows(Arc::new(rows))),
                None => lists.ids(&stop).map(|ids| Listed::Ids(Arc::new(ids))),
            };
            // An outage is no fault of the list.
            access.outage().map_or(read, Err)
        })?;
        Ok(Self(listed))
    }

    /// These rows of each shard.
    #[staticmethod]
    fn of_rows(rows: Vec<Vec<u32>>) -> Self {
        Self(Listed::Rows(Arc::new(Rows::new(rows))))
    }

    /// How many rows or ids there are.
    #[getter]
    fn count(&self) -> usize {
        match &self.0 {
            Listed::Rows(rows) => rows.count(),
            Listed::Ids(ids) => ids.count(),
        }
    }
}

impl RowList {
    /// The rows by shard; none if it lists ids.
    pub fn rows(&self) -> Arc<Rows> {
        match &self.0 {
            Listed::Rows(rows) => Arc::clone(rows),
            Listed::Ids(_) => Arc::default(),
        }
    }

    /// The ids; none if it lists rows.
    pub fn ids(&self) -> Arc<Ids> {
        match &self.0 {
            Listed::Rows(_) => Arc::default(),
            Listed::Ids(ids) => Arc::clone(ids),
        }
    }
}
