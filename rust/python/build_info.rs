//! The sources that this extension was built from, and the machine that it runs on.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::encode::Simd;

/// The build of this extension, and the machine that it runs on.
///
/// Returns:
///   A dict: `commit` that it was built from, None if the build named none; `system`, operating system and processor;
///   `optimised`, whether it is a release build; `instructions` that the hot loops use on this processor; `tokenizers_crate`, the
///   version of the reference; and `jpeg_vector_code`, whether JPEG is decoded by vector code on this
///   processor: at half the speed without.
#[pyfunction]
pub fn build_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let info = PyDict::new(py);
    info.set_item("commit", option_env!("GRISTMILL_COMMIT").filter(|commit| !commit.is_empty()))?;
    info.set_item("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH))?;
    info.set_item("optimised", !cfg!(debug_assertions))?;
    info.set_item("instructions", Simd::detect().name())?;
    info.set_item("tokenizers_crate", crate::encode::TOKENIZERS_VERSION)?;
    info.set_item("jpeg_vector_code", gristmill_images::jpeg_has_vector_code())?;
    Ok(info)
}
