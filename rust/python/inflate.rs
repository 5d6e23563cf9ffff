//! `_core.inflate`: inflating and nothing else, with the buffers of a lane: the baseline of the benchmark.

use std::fs::File;
use std::io::{BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use pyo3::prelude::*;

use crate::read::{CHUNK_BYTES, INPUT_BYTES};

/// How many bytes a gzip file inflates to.
#[pyfunction]
pub fn inflate(py: Python<'_>, path: String) -> PyResult<u64> {
    py.detach(|| {
        let mut inflated = MultiGzDecoder::new(BufReader::with_capacity(INPUT_BYTES, File::open(path)?));
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut total = 0;
        loop {
            match inflated.read(&mut buffer)? {
                0 => return Ok(total),
                read => total += read as u64,
            }
        }
    })
}
