//! Shards as a whole, without their records: `_core.inflate`, the baseline of the benchmark, and `_core.shard_parts`.

use pyo3::prelude::*;

use super::error::guarded;
use crate::format::{inflated_bytes, parts};
use crate::store::{Access, Shard};

/// How many bytes a shard of a size on disk inflates to.
#[pyfunction]
pub fn inflate(py: Python<'_>, path: String, size: u64) -> PyResult<u64> {
    let shard = Shard::whole(path, size);
    Ok(guarded(py, || inflated_bytes(&shard, &Access::default()))?)
}

/// The parts of a local shard that begin in pieces of it: their number and their name; None if it can be divided anywhere.
#[pyfunction]
pub fn shard_parts(py: Python<'_>, path: String, size: u64) -> PyResult<Option<(u64, &'static str)>> {
    let shard = Shard::whole(path, size);
    Ok(guarded(py, || parts(&shard, &Access::default()))?)
}
