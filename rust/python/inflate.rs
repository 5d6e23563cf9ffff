//! `_core.inflate`: inflating and nothing else, as a lane does it: the baseline of the benchmark.

use pyo3::prelude::*;

use super::error::guarded;
use crate::format::inflated_bytes;
use crate::store::{Access, Shard};

/// How many bytes a shard of a size on disk inflates to.
#[pyfunction]
pub fn inflate(py: Python<'_>, path: String, size: u64) -> PyResult<u64> {
    let shard = Shard::whole(path, size);
    Ok(guarded(py, || inflated_bytes(&shard, &Access::default()))?)
}
