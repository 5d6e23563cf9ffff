//! `_core.image_size` and `_core.decode_image`: images in memory.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

#[cfg(feature = "images")]
mod decoding {
    use numpy::{IntoPyArray, PyArray3, PyArrayMethods};

    use super::{Bound, PyBackedBytes, PyResult, Python, pyfunction};
    use crate::error::Error;
    use crate::python::error::guarded;

    /// The pixels above which Pillow refuses an image.
    pub const MAX_PIXELS: u64 = gristmill_images::MAX_PIXELS;

    /// Width and height.
    #[pyfunction]
    pub fn image_size(py: Python<'_>, data: PyBackedBytes) -> PyResult<(u32, u32)> {
        let size = guarded(py, || gristmill_images::size(&data).map_err(to_error))?;
        Ok((size.width, size.height))
    }

    /// `uint8 [height, width, 3]`.
    #[pyfunction]
    pub fn decode_image(
        py: Python<'_>,
        data: PyBackedBytes,
        max_pixels: u64,
    ) -> PyResult<Bound<'_, PyArray3<u8>>> {
        let image = guarded(py, || gristmill_images::decode(&data, max_pixels).map_err(to_error))?;
        image.pixels.into_pyarray(py).reshape([image.size.height as usize, image.size.width as usize, 3])
    }

    fn to_error(error: gristmill_images::Error) -> Error {
        Error::Image(error.to_string())
    }
}

#[cfg(not(feature = "images"))]
mod decoding {
    use super::{Py, PyAny, PyBackedBytes, PyResult, pyfunction};
    use crate::error::Error;

    pub const MAX_PIXELS: u64 = 0;

    #[pyfunction]
    pub fn image_size(data: PyBackedBytes) -> PyResult<(u32, u32)> {
        drop(data);
        Err(left_out().into())
    }

    #[pyfunction]
    pub fn decode_image(data: PyBackedBytes, max_pixels: u64) -> PyResult<Py<PyAny>> {
        drop((data, max_pixels));
        Err(left_out().into())
    }

    fn left_out() -> Error {
        Error::Image(
            "this build of gristmill leaves images out; build it with the Cargo feature `images`".to_owned(),
        )
    }
}

pub use decoding::{MAX_PIXELS, decode_image, image_size};
