//! `_core.image_size`, `_core.decode_image` and `_core.ImageModel`: images in memory.

use gristmill_images::{
    Alpha, Canvases, Filter, Image, ImageModel as Model, ImagePlan, Limits, Markup, ModelError, Patches,
    Pillow, Resize, Scratch, Settings, Shape, Size, Tiling,
};
use numpy::{IntoPyArray, PyArray3, PyArrayMethods, PyReadonlyArray3};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::error::Error;
use crate::python::error::guarded;

/// The pixels above which Pillow refuses an image.
pub const MAX_PIXELS: u64 = gristmill_images::MAX_PIXELS;

/// The names of models.
pub fn models() -> Vec<&'static str> {
    gristmill_images::MODEL_NAMES.to_vec()
}

/// The names of filters.
pub fn filters() -> Vec<&'static str> {
    Filter::ALL.into_iter().map(|(name, _)| name).collect()
}

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

/// `uint8 [height, width, 3]` resized by a filter, as by Pillow.
#[pyfunction]
pub fn resize_image<'py>(
    py: Python<'py>,
    pixels: PyReadonlyArray3<'py, u8>,
    height: u32,
    width: u32,
    resample: &str,
) -> PyResult<Bound<'py, PyArray3<u8>>> {
    let view = pixels.as_array();
    let &[rows, columns, 3] = view.shape() else {
        return Err(Error::Argument("pixels=: expected [height, width, 3]".to_owned()).into());
    };
    if rows * columns == 0 || height == 0 || width == 0 {
        return Err(Error::Argument("pixels=: expected at least one pixel".to_owned()).into());
    }
    let known = Filter::ALL.into_iter().find(|(name, _)| *name == resample);
    let (_, filter) =
        known.ok_or_else(|| Error::Argument(format!("resample={resample:?}: expected a known one")))?;
    let source = Size { width: columns as u32, height: rows as u32 };
    let image = Image { size: source, pixels: view.iter().copied().collect() };
    let size = Size { width, height };
    let mut out = vec![0; 3 * width as usize * height as usize];
    let out = guarded(py, || {
        Resize::whole(size, filter, Pillow::V13).write(&image, &mut out, &mut Scratch::default());
        Ok::<_, Error>(out)
    })?;
    out.into_pyarray(py).reshape([height as usize, width as usize, 3])
}

/// How a model wants its images.
#[pyclass(frozen, module = "gristmill._core")]
pub struct ImageModel {
    inner: Model,
}

/// Settings that differ from those of the name, or from those of a model without one.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Changes {
    size: Option<(u32, u32)>,
    shortest_edge: Option<u32>,
    resample: Option<String>,
    image_mean: Option<[f64; 3]>,
    image_std: Option<[f64; 3]>,
    patch_size: Option<u32>,
    merge_size: Option<u32>,
    temporal_patch_size: Option<u32>,
    min_pixels: Option<u32>,
    max_pixels: Option<u32>,
    longest_edge: Option<u32>,
    max_tokens: Option<u32>,
    max_tiles: Option<u32>,
    image_grid_pinpoints: Option<Vec<[u32; 2]>>,
    tokens: Option<u32>,
    pad: Option<bool>,
    apply_exif: Option<bool>,
    alpha: Option<String>,
}

/// Height and width, grid, tokens, and tiles.
type Plan = ((u32, u32), [u32; 3], u32, [u32; 2]);

#[pymethods]
impl ImageModel {
    #[new]
    fn new(name: Option<&str>, changes: Changes, pillow: u32) -> PyResult<Self> {
        let mut settings = match name {
            Some(name) => Settings::named(name).map_err(to_argument_error)?,
            None => changes.unnamed(),
        };
        changes.apply(&mut settings)?;
        let pillow = if pillow < 13 { Pillow::V12 } else { Pillow::V13 };
        Ok(Self { inner: Model::new(settings, pillow).map_err(to_argument_error)? })
    }

    /// "fixed", "patches" or "tiles": the shape of its images.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.inner.settings().shape {
            Shape::Fixed { .. } => "fixed",
            Shape::Patches(_) => "patches",
            Shape::Tiles { .. } => "tiles",
        }
    }

    /// Whether images take tokens of a text.
    #[getter]
    fn has_tokens(&self) -> bool {
        !matches!(self.inner.settings().shape, Shape::Fixed { tokens: 0, .. })
    }

    /// The placeholder of an image in a text, its token, what comes before and after its tokens, and what is around them in a
    /// caption.
    #[getter]
    fn markup(&self) -> [&str; 6] {
        let Markup { placeholder, token, before, after, around: [first, last], .. } =
            &self.inner.settings().markup;
        [placeholder, token, before, after, first, last]
    }

    /// For models of patches, how many values one has, and the mean and standard deviation of channels.
    #[getter]
    fn patch(&self) -> Option<(u32, [f64; 3], [f64; 3])> {
        let Settings { shape: Shape::Patches(Patches { patch, temporal, .. }), mean, std, .. } =
            self.inner.settings()
        else {
            return None;
        };
        Some((3 * temporal * patch * patch, *mean, *std))
    }

    /// Whether the values of a patch are those of its pixels, row by row.
    #[getter]
    fn by_pixels(&self) -> bool {
        matches!(self.inner.settings().shape, Shape::Patches(patches) if patches.by_pixels)
    }

    /// Whether the whole image is the first tile.
    #[getter]
    fn whole_first(&self) -> bool {
        matches!(self.inner.settings().shape, Shape::Tiles { tiling: Tiling::AnyResolution { .. }, .. })
    }

    /// The words that an image is written with; the first one is its token.
    #[getter]
    fn words(&self) -> Vec<String> {
        self.inner.words()
    }

    /// The text that an image of this size is.
    fn expanded(&self, height: u32, width: u32) -> PyResult<String> {
        let plan = self.inner.plan(Size { width, height }).map_err(to_error)?;
        Ok(self.inner.expanded(&plan))
    }

    fn plan(&self, height: u32, width: u32) -> PyResult<Plan> {
        let plan = self.inner.plan(Size { width, height }).map_err(to_error)?;
        Ok(((plan.size.height, plan.size.width), plan.grid_thw, plan.tokens, plan.tiles))
    }

    /// `uint8`, or `float32` if `normalized`.
    fn pixels<'py>(
        &self,
        py: Python<'py>,
        data: PyBackedBytes,
        max_pixels: u64,
        normalized: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        if normalized {
            let (values, plan) = self.write(py, &data, max_pixels, Model::write_f32)?;
            Ok(values.into_pyarray(py).reshape(self.inner.pixels_shape(&plan))?.into_any())
        } else {
            let (values, plan) = self.write(py, &data, max_pixels, Model::write_u8)?;
            Ok(values.into_pyarray(py).reshape(self.inner.pixels_shape(&plan))?.into_any())
        }
    }
}

impl ImageModel {
    pub fn inner(&self) -> &Model {
        &self.inner
    }
}

type Write<T> = fn(&Model, &Image, &ImagePlan, &mut [T], &mut Scratch) -> Result<(), ModelError>;

impl ImageModel {
    fn write<T: Copy + Default + Send>(
        &self,
        py: Python<'_>,
        data: &[u8],
        max_pixels: u64,
        write: Write<T>,
    ) -> PyResult<(Vec<T>, ImagePlan)> {
        let model = &self.inner;
        Ok(guarded(py, || {
            let plan = model.plan(model.size_of(data).map_err(to_error)?).map_err(to_error)?;
            let image = model.decode(data, max_pixels).map_err(to_error)?;
            let mut values = vec![T::default(); model.pixels_len(&plan)];
            write(model, &image, &plan, &mut values, &mut Scratch::default()).map_err(to_error)?;
            Ok((values, plan))
        })?)
    }
}

impl Changes {
    /// A model of patches if their size is set, else one of a fixed size.
    fn unnamed(&self) -> Settings {
        let name = if self.patch_size.is_some() { "qwen2-vl" } else { "siglip" };
        let settings = Settings::named(name).expect("a model of that name");
        Settings { mean: [0.5; 3], std: [0.5; 3], markup: Markup::default(), ..settings }
    }

    fn apply(self, settings: &mut Settings) -> PyResult<()> {
        set(&mut settings.mean, self.image_mean);
        set(&mut settings.std, self.image_std);
        set(&mut settings.applies_exif, self.apply_exif);
        if let Some(name) = self.resample {
            let filter = Filter::ALL.into_iter().find(|(known, _)| *known == name);
            set(&mut settings.filter, filter.map(|(_, filter)| filter));
        }
        if let Some(name) = self.alpha {
            let alpha = Alpha::ALL.into_iter().find(|(known, _)| *known == name);
            set(&mut settings.alpha, alpha.map(|(_, alpha)| alpha));
        }
        let size = self.size.map(|(height, width)| Size { width, height });
        let of_patches = [
            ("patch_size", self.patch_size),
            ("merge_size", self.merge_size),
            ("temporal_patch_size", self.temporal_patch_size),
        ];
        let pixels = [("min_pixels", self.min_pixels), ("max_pixels", self.max_pixels)];
        let longest = [("longest_edge", self.longest_edge)];
        let max_tokens = [("max_tokens", self.max_tokens)];
        let of_fixed = [("shortest_edge", self.shortest_edge), ("pad", self.pad.map(u32::from))];
        let max_tiles = [("max_tiles", self.max_tiles)];
        let pinpoints = self.image_grid_pinpoints.as_ref();
        let canvases = [("image_grid_pinpoints", pinpoints.map(|pinpoints| pinpoints.len() as u32))];
        let tokens = ("tokens", self.tokens);
        match &mut settings.shape {
            Shape::Fixed { size: fixed, shortest, tokens: count, pads } => {
                let others = of_patches.into_iter().chain(pixels).chain(longest).chain(max_tokens);
                refuse("of a fixed size", others.chain(max_tiles).chain(canvases))?;
                set(fixed, size);
                set(count, self.tokens);
                set(pads, self.pad);
                if let Some(shortest) = shortest {
                    *shortest = fixed.width.max(fixed.height);
                }
                if self.shortest_edge.is_some() {
                    *shortest = self.shortest_edge;
                }
            }
            Shape::Patches(patches) => {
                let width = ("size", size.map(|size| size.width));
                let others = of_fixed.into_iter().chain(max_tiles).chain(canvases).chain([width, tokens]);
                refuse("of patches", others)?;
                let Patches { patch, merge, temporal, limits, .. } = patches;
                for (setting, (_, value)) in [patch, merge, temporal].into_iter().zip(of_patches) {
                    set(setting, value);
                }
                match limits {
                    Limits::Pixels { least, most } | Limits::Video { least, most } => {
                        refuse("limited by pixels", longest.into_iter().chain(max_tokens))?;
                        set(least, self.min_pixels);
                        set(most, self.max_pixels);
                    }
                    Limits::Longest(most) => {
                        refuse("limited by its longer side", pixels.into_iter().chain(max_tokens))?;
                        set(most, self.longest_edge);
                    }
                    Limits::Tokens(most) | Limits::Count(most) => {
                        refuse("limited by tokens", pixels.into_iter().chain(longest))?;
                        set(most, self.max_tokens);
                    }
                }
            }
            Shape::Tiles { side, tiling, tokens } => {
                let others = of_patches.into_iter().chain(pixels).chain(of_fixed).chain(max_tokens);
                refuse("of tiles", others)?;
                if let Some(size) = size.filter(|size| size.width != size.height) {
                    let found = format!("size=({}, {})", size.height, size.width);
                    return Err(Error::Argument(format!("{found}: expected one number for tiles")).into());
                }
                set(side, size.map(|size| size.width));
                set(tokens, self.tokens);
                match tiling {
                    Tiling::Fit { most } | Tiling::Stretch { most } => {
                        refuse("of as many tiles as max_tiles says", longest.into_iter().chain(canvases))?;
                        set(most, self.max_tiles);
                    }
                    Tiling::AnyResolution { canvases, pooled_above } => {
                        refuse("of image_grid_pinpoints", longest)?;
                        if self.max_tiles.is_some() {
                            *pooled_above = self.max_tiles;
                        }
                        if let Some(pinpoints) = pinpoints {
                            *canvases = canvases_of(pinpoints, *side)?;
                        }
                    }
                    Tiling::Split { longest } => {
                        refuse("of tiles that longest_edge says", max_tiles.into_iter().chain(canvases))?;
                        set(longest, self.longest_edge);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Canvases of so many pixels, of tiles of `side`.
fn canvases_of(pinpoints: &[[u32; 2]], side: u32) -> Result<Canvases, Error> {
    let are_whole = pinpoints.iter().flatten().all(|length| length % side == 0);
    let tiles: Vec<_> = pinpoints.iter().map(|sides| sides.map(|length| length / side)).collect();
    Canvases::new(&tiles).filter(|_| are_whole).ok_or_else(|| {
        Error::Argument(format!(
            "image_grid_pinpoints: expected 1 to 64 pairs of multiples of size={side}, found {pinpoints:?}"
        ))
    })
}

fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

/// Settings that have no meaning for a model of this kind.
fn refuse(kind: &str, others: impl IntoIterator<Item = (&'static str, Option<u32>)>) -> Result<(), Error> {
    match others.into_iter().find_map(|(name, value)| Some((name, value?))) {
        Some((name, value)) => {
            Err(Error::Argument(format!("{name}={value}: expected None, as the model is one {kind}")))
        }
        None => Ok(()),
    }
}

fn to_error(error: impl ToString) -> Error {
    Error::Image(error.to_string())
}

fn to_argument_error(error: ModelError) -> Error {
    Error::Argument(error.to_string())
}
