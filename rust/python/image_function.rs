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
use crate::image::{self, Fault, PixelShape, Pixels, Plan, Scratch};

/// The most sizes whose plans are kept.
const KEPT_PLANS: usize = 1 << 16;

/// A model whose pixels a Python function makes.
#[pyclass(frozen, module = "gristmill._core")]
pub struct ImageFunction {
    inner: Arc<Function>,
}

struct Function {
    /// The function from height and width to tokens and tiles.
    plan: Py<PyAny>,
    /// The function from an image, a dtype and a number of tiles to the array.
    pixels: Py<PyAny>,
    shape: Vec<usize>,
    max_tiles: Option<usize>,
    takes_bytes: bool,
    needs_size: bool,
    has_tokens: bool,
    plans: Mutex<HashMap<(u32, u32), Result<Plan, String>>>,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Function").field("shape", &self.shape).finish_non_exhaustive()
    }
}

#[pymethods]
impl ImageFunction {
    #[new]
    fn new(
        plan: Py<PyAny>,
        pixels: Py<PyAny>,
        shape: Vec<usize>,
        max_tiles: Option<usize>,
        takes_bytes: bool,
        needs_size: bool,
        has_tokens: bool,
    ) -> Self {
        let plans = Mutex::default();
        let inner = Function { plan, pixels, shape, max_tiles, takes_bytes, needs_size, has_tokens, plans };
        Self { inner: Arc::new(inner) }
    }

    /// Whether images take tokens of a text.
    #[getter]
    fn has_tokens(&self) -> bool {
        self.inner.has_tokens
    }
}

impl ImageFunction {
    /// The rules of the model.
    pub fn core(&self) -> Arc<dyn image::ImageModel> {
        Arc::clone(&self.inner) as Arc<dyn image::ImageModel>
    }

    /// The shape of the pixels that rows hold of its images.
    pub fn pixel_shape(&self) -> PixelShape {
        let shape = self.inner.shape.clone();
        match self.inner.max_tiles {
            Some(most) => PixelShape::Tiles { most, shape },
            None => PixelShape::Fixed(shape),
        }
    }

    /// Whether it can do without the sizes of images.
    pub fn takes_any_size(&self) -> bool {
        self.inner.takes_bytes && !self.inner.needs_size
    }
}

impl image::ImageModel for Function {
    fn plan(&self, width: u32, height: u32) -> Result<Plan, String> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels > MAX_PIXELS {
            return Err(format!("expected at most {MAX_PIXELS} pixels, found {pixels}"));
        }
        let size = if self.needs_size { (width, height) } else { (0, 0) };
        if let Some(known) = self.plans().get(&size) {
            return known.clone();
        }
        // Not under the lock: the function may release the GIL, and another thread that has it wait for the lock.
        let found = attached(|py| self.plan.call1(py, (size.1, size.0))?.extract::<(u32, u32)>(py));
        let found = match found {
            Ok((tokens, tiles)) => Ok(Plan { tokens, tiles, merge: 1, ..Plan::default() }),
            Err(fault) => Err(fault.into_reason()),
        };
        let mut plans = self.plans();
        if plans.len() == KEPT_PLANS {
            plans.clear();
        }
        plans.insert(size, found.clone());
        found
    }

    fn write(&self, bytes: &[u8], out: Pixels<'_>, _: &mut Scratch) -> Result<(), Fault> {
        let image = if self.takes_bytes { None } else { Some(decoded(bytes)?) };
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
        let tile = self.shape.iter().product::<usize>();
        let tiles = if self.max_tiles.is_some() { out.len() / tile } else { 0 };
        let made = self.pixels.bind(py).call1((image, dtype, tiles))?;
        let made: PyReadonlyArrayDyn<'_, T> = made.extract()?;
        out.copy_from_slice(made.as_slice()?);
        Ok(())
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
            let reason = format!("the function raised {error}");
            let is_ours = error.get_type(py).name().is_ok_and(|name| name == "ArgumentError");
            let is_of_image =
                error.is_instance_of::<PyException>(py) && !error.is_instance_of::<PyMemoryError>(py);
            if is_of_image && !is_ours { Fault::Damaged(reason) } else { Fault::Failed(reason) }
        })
    })
    .unwrap_or_else(|| Err(Fault::Failed("Python is ending".to_owned())))
}
