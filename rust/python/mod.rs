//! The Python extension module `gristmill._core`: the only part of the core that uses PyO3.
//!
//! Each function takes typed arguments, does its work with the GIL released, and turns the core's error into the
//! matching Python exception.

// PyO3 creates arguments from Python objects: functions own their arguments.
#![allow(clippy::needless_pass_by_value)]

mod array_owner;
mod audit;
mod build_info;
mod chat_template;
mod choices;
mod encoder;
mod error;
mod fields;
mod gzip_index;
mod image_function;
mod image_rows;
mod images;
mod inflate;
mod inspect;
mod keep;
mod pipeline;
mod prompts;
mod record_function;
mod rows;
mod sample;
mod signals;
mod spec;
mod state;
mod stores;

use pyo3::prelude::*;

/// gristmill's core. Not a public interface: use the names of the `gristmill` package.
///
/// A free-threaded interpreter turns its lock on for it, and says so: Grain has no wheels for such interpreters, so
/// nothing was tested there without the lock.
#[pymodule(gil_used = true)]
mod _core {
    use numpy::PyArray1;

    use super::choices::{LAYOUTS, ON_ERRORS, ON_EXHAUSTED, PACKINGS, TRUNCATIONS, WEIGHTS_BY, names};
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use super::audit::audit_conversations;
    #[pymodule_export]
    use super::build_info::build_info;
    #[pymodule_export]
    use super::chat_template::ChatTemplate;
    #[pymodule_export]
    use super::encoder::Encoder;
    #[pymodule_export]
    use super::fields::{Field, layout_fields};
    #[pymodule_export]
    use super::gzip_index::{has_index, index_path, write_index};
    #[pymodule_export]
    use super::image_function::ImageFunction;
    #[pymodule_export]
    use super::images::{ImageModel, decode_image, image_size, resize_image};
    #[pymodule_export]
    use super::inflate::{inflate, shard_parts};
    #[pymodule_export]
    use super::inspect::{Records, untrained_of};
    #[pymodule_export]
    use super::pipeline::{Pipeline, Taken, deal, piece_borders, usable_cores};
    #[pymodule_export]
    use super::prompts::{count_records, prompt_order, prompt_sources, read_prompts, write_quarantined};
    #[pymodule_export]
    use super::record_function::Files;
    #[pymodule_export]
    use super::rows::RowList;
    #[pymodule_export]
    use super::state::{is_source_name, lane_start, read_lane};
    #[pymodule_export]
    use super::stores::Stores;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // NumPy's C API is loaded with the first array. If it cannot be, or is interrupted, that would be a panic: so
        // NumPy is imported before.
        module.py().import("numpy")?;
        drop(PyArray1::<i32>::zeros(module.py(), 0, false));
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("TOKENIZERS_VERSION", crate::encode::TOKENIZERS_VERSION)?;
        module.add("PACKINGS", names(&PACKINGS))?;
        module.add("TRUNCATIONS", names(&TRUNCATIONS))?;
        module.add("ON_ERRORS", names(&ON_ERRORS))?;
        module.add("ON_EXHAUSTED", names(&ON_EXHAUSTED))?;
        module.add("WEIGHTS_BY", names(&WEIGHTS_BY))?;
        module.add("LAYOUTS", names(&LAYOUTS))?;
        module.add("MAX_PIXELS", super::images::MAX_PIXELS)?;
        module.add("AUDIT_COUNTS", crate::audit::Count::NAMES)?;
        module.add("IMAGE_MODELS", super::images::models())?;
        module.add("RESAMPLES", super::images::filters())?;
        module.add("MOST_LISTED", crate::quarantine::delivered::MOST_LISTED)?;
        module.add("STORE_SCHEMES", crate::store::SCHEMES)?;
        module.add("STATE_VERSION", crate::state::VERSION)?;
        module.add("MIXTURE_STATE_VERSION", crate::state::MIXTURE_VERSION)?;
        module.add("CURSOR_LARGEST", crate::lane::cursor::LARGEST)
    }
}
