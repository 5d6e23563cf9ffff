//! `_core.ImageFunction`: a model whose pixels a Python function makes.
//!
//! Workers call it under the GIL, which no thread holds that waits for workers: the pipeline's calls release it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use numpy::{Element, IntoPyArray, PyArrayMethods, PyReadonlyArrayDyn};
use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::images::MAX_PIXELS;
use crate::image::{self, Fault, FilePlan, PixelShape, Pixels, Plan, Scratch};

/// The most sizes whose plans are kept.
const KEPT_PLANS: usize = 1 << 16;

/// A model whose pixels a Python function makes.
#[pyclass(frozen, module = "gristmill._core")]
pub struct ImageFunction {
    inner: Arc<Function>,
}

/// The settings that Python has of it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Given {
    /// The function from height and width, or from bytes, to tokens, tiles, a grid of patches, a text and the number of groups
    /// in it.
    plan: Py<PyAny>,
    /// The function from an image, a dtype and a number of tiles or patches to the array.
    pixels: Py<PyAny>,
    shape: Vec<usize>,
    /// "fixed", "tiles" or "patches".
    kind: String,
    max_tiles: usize,
    /// The input of plans: "nothing", "size" or "file".
    planned_by: String,
    takes_bytes: bool,
    has_tokens: bool,
}

struct Function {
    given: Given,
    plans: Mutex<HashMap<(u32, u32), Result<Plan, String>>>,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Function").field("shape", &self.given.shape).finish_non_exhaustive()
    }
}

#[pymethods]
impl ImageFunction {
    #[new]
    fn new(given: Given) -> Self {
        Self { inner: Arc::new(Function { given, plans: Mutex::default() }) }
    }

    /// Whether images take tokens of a text.
    #[getter]
    fn has_tokens(&self) -> bool {
        self.inner.given.has_tokens
    }
}

impl ImageFunction {
    /// The rules of the model.
    pub fn core(&self) -> Arc<dyn image::ImageModel> {
        Arc::clone(&self.inner) as Arc<dyn image::ImageModel>
    }

    /// The shape of the pixels that rows hold of its images.
    pub fn pixel_shape(&self, sequence_length: usize, max_patches: Option<usize>) -> PixelShape {
        let Given { shape, kind, max_tiles, .. } = &self.inner.given;
        match kind.as_str() {
            "patches" => {
                let length = shape.iter().product();
                PixelShape::Patches { most: max_patches.unwrap_or(sequence_length), length }
            }
            "tiles" => PixelShape::Tiles { most: *max_tiles, shape: shape.clone() },
            _ => PixelShape::Fixed(shape.clone()),
        }
    }

    /// Whether it can do without the sizes of images.
    pub fn takes_any_size(&self) -> bool {
        self.inner.given.takes_bytes && self.inner.given.planned_by != "size"
    }
}

impl image::ImageModel for Function {
    fn plan(&self, width: u32, height: u32) -> Result<Plan, String> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels > MAX_PIXELS {
            return Err(format!("expected at most {MAX_PIXELS} pixels, found {pixels}"));
        }
        let size = if self.given.planned_by == "size" { (width, height) } else { (0, 0) };
        if let Some(known) = self.plans().get(&size) {
            return known.clone();
        }
        // Not under the lock: the function may release the GIL, and another thread that has it wait for the lock.
        let found = attached(|py| self.given.plan.call1(py, (size.1, size.0))?.extract::<Planned>(py));
        let found = found.map(|planned| planned.plan).map_err(Fault::into_reason);
        let mut plans = self.plans();
        if plans.len() == KEPT_PLANS {
            plans.clear();
        }
        plans.insert(size, found.clone());
        found
    }

    fn plans_files(&self) -> bool {
        self.given.planned_by == "file"
    }

    fn plan_file(&self, bytes: &[u8]) -> Result<FilePlan, Fault> {
        let planned =
            attached(|py| self.given.plan.call1(py, (PyBytes::new(py, bytes),))?.extract::<Planned>(py))?;
        Ok(FilePlan { plan: planned.plan, text: planned.text.map(Into::into), groups: planned.groups })
    }

    fn write(&self, bytes: &[u8], out: Pixels<'_>, _: &mut Scratch) -> Result<(), Fault> {
        let image = if self.given.takes_bytes { None } else { Some(decoded(bytes)?) };
        attached(|py| {
            let argument = match image {
                None => PyBytes::new(py, bytes).into_any(),
                Some((pixels, shape)) => pixels.into_pyarray(py).reshape(shape)?.into_any(),
            };
            match out {
                Pixels::Uint8(out) => self.copy(py, argument, "uint8", out),
                Pixels::Float32(out) => self.copy(py, argument, "float32", out),
            }
        })
    }
}

impl Function {
    fn plans(&self) -> std::sync::MutexGuard<'_, HashMap<(u32, u32), Result<Plan, String>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the array that the function makes of an image.
    fn copy<T: Element + Copy>(
        &self,
        py: Python<'_>,
        image: Bound<'_, PyAny>,
        dtype: &str,
        out: &mut [T],
    ) -> PyResult<()> {
        let Given { shape, kind, pixels, .. } = &self.given;
        let tile = shape.iter().product::<usize>();
        let tiles = if kind == "fixed" { 0 } else { out.len() / tile };
        let made = pixels.bind(py).call1((image, dtype, tiles))?;
        let made: PyReadonlyArrayDyn<'_, T> = made.extract()?;
        out.copy_from_slice(made.as_slice()?);
        Ok(())
    }
}

/// The result of the function that plans.
struct Planned {
    plan: Plan,
    text: Option<String>,
    groups: u32,
}

impl<'py> FromPyObject<'_, 'py> for Planned {
    type Error = PyErr;

    fn extract(planned: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let (tokens, tiles, grid, text, groups): (u32, u32, [u32; 3], Option<String>, u32) =
            planned.extract()?;
        let patches = grid.iter().product();
        Ok(Self { plan: Plan { tokens, patches, tiles, grid, merge: 1 }, text, groups })
    }
}

/// Height, width and channels of decoded pixels come last.
fn decoded(bytes: &[u8]) -> Result<(Vec<u8>, [usize; 3]), Fault> {
    let image = gristmill_images::decode(bytes, gristmill_images::MAX_PIXELS);
    let image = image.map_err(|error| Fault::Damaged(error.to_string()))?;
    Ok((image.pixels, [image.size.height as usize, image.size.width as usize, 3]))
}

/// Calls Python.
pub(super) fn attached<T>(call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, Fault> {
    Python::try_attach(|py| {
        call(py).map_err(|error| {
            let is_named = |wanted| error.get_type(py).name().is_ok_and(|name| name == wanted);
            // It says itself which file is damaged, and how.
            if is_named("ImageError") {
                return Fault::Damaged(error.value(py).to_string());
            }
            let reason = format!("the function raised {error}");
            let is_ours = is_named("ArgumentError");
            let is_of_image =
                error.is_instance_of::<PyException>(py) && !error.is_instance_of::<PyMemoryError>(py);
            if is_of_image && !is_ours { Fault::Damaged(reason) } else { Fault::Failed(reason) }
        })
    })
    .unwrap_or_else(|| Err(Fault::Failed("Python is ending".to_owned())))
}
