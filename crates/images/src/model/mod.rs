//! The results of models for images: sizes and tokens from the headers, and pixels.

mod expansion;
mod named;
mod size;
mod tiles;
mod write;

pub use named::NAMES;
pub use size::Limits;
pub use tiles::{Canvases, Tiling};

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::{Alpha, Error, Filter, Image, Pillow, Size};

/// The longest side that is resized. Weights of longer ones would take more memory than their pixels.
pub const LONGEST_SIDE: u32 = 1 << 24;

/// How a model wants its images.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageModel {
    settings: Settings,
    pillow: Pillow,
    /// For each channel, what its 256 values become.
    normalized: Box<[[f32; 256]; 3]>,
}

/// The settings that make a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The sizes that it accepts.
    pub shape: Shape,
    /// How images are resized.
    pub filter: Filter,
    /// A value v of channel c becomes `(v / 255 - mean[c]) / std[c]`, in the arithmetic of transformers.
    pub mean: [f64; 3],
    /// See `mean`.
    pub std: [f64; 3],
    /// The treatment of transparent pixels.
    pub alpha: Alpha,
    /// Whether images are turned as their Exif tags say.
    pub applies_exif: bool,
    /// The strings around and in place of an image.
    pub markup: Markup,
}

/// The sizes that a model accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One size: images are resized to it, whatever their aspect ratio, or cut to it.
    Fixed {
        /// Columns and rows of the result.
        size: Size,
        /// None: the image is resized to `size`. Otherwise its shorter side is resized to that, with its aspect ratio
        /// kept, and `size` is cut out of the middle.
        shortest: Option<u32>,
        /// Tokens of the sequence that one image takes.
        tokens: u32,
        /// Whether it is padded to a square before that, with the colour of the mean.
        pads: bool,
    },
    /// The image's own aspect ratio, in patches.
    Patches(Patches),
    /// Square tiles that cover the image, and the whole image as one more tile.
    Tiles {
        /// Columns and rows of a tile.
        side: u32,
        /// How an image becomes tiles.
        tiling: Tiling,
        /// Tokens of the sequence that one tile takes.
        tokens: u32,
    },
}

/// Sizes in steps of `patch * merge`, with a limited number of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patches {
    /// Columns and rows of a patch.
    pub patch: u32,
    /// A square of `merge * merge` patches is one token; they follow one another.
    pub merge: u32,
    /// How often a still image is repeated in time.
    pub temporal: u32,
    /// The size of the resized image.
    pub limits: Limits,
    /// Whether the values of a patch are those of its pixels, row by row, and patches are in the order of the image's rows.
    /// Otherwise the channels of a patch come after one another, and the patches of one token.
    pub by_pixels: bool,
    /// A resize before that: to multiples of the first number, within the pixels that follow.
    pub before: Option<(u32, u32, u32)>,
}

/// The strings around and in place of an image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Markup {
    /// The text that stands for an image.
    pub placeholder: String,
    /// The token whose embeddings an image's features replace.
    pub token: String,
    /// The text before an image's tokens.
    pub before: String,
    /// The text after an image's tokens.
    pub after: String,
    /// The text around an image in a caption, where chat templates write it.
    pub around: [String; 2],
    /// The tokens after a row of an image's tokens, and after the last one.
    pub row_ends: Option<[String; 2]>,
}

/// The result of a model for an image of a certain size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImagePlan {
    /// The size of the image itself.
    pub source: Size,
    /// The size of the resized image; with tiles, of the canvas that they cover.
    pub size: Size,
    /// Patches in time, down and across; zeros if the model has no patches.
    pub grid_thw: [u32; 3],
    /// Embeddings of the sequence that the image takes; without separators.
    pub tokens: u32,
    /// The rows of its array of patches; 0 if the model has none.
    pub patches: u32,
    /// Tiles down and across; 1 and 1 if the model has none.
    pub tiles: [u32; 2],
    /// How many tiles there are with that of the whole image; 1 if the model has none.
    pub tile_count: u32,
}

/// Why a model does not take an image, or cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// There is no model of this name.
    #[error("expected one of {}, found {found:?}", NAMES.join(", "))]
    UnknownName {
        /// The name.
        found: String,
    },
    /// One side is too long next to the other.
    #[error("expected an aspect ratio of at most {most}, found {} x {}", size.width, size.height)]
    AspectRatio {
        /// Columns and rows.
        size: Size,
        /// The limit: of Qwen's and GLM's models, or of what 32 bits can count.
        most: u32,
    },
    /// One side is longer than [`LONGEST_SIDE`].
    #[error("expected at most {LONGEST_SIDE} columns and rows, found {} x {}", size.width, size.height)]
    SideTooLong {
        /// Columns and rows.
        size: Size,
    },
    /// The decoded image has not the size of its plan.
    #[error(
        "expected an image of {} x {}, as its plan says, found {} x {}",
        plan.width, plan.height, found.width, found.height
    )]
    OtherSize {
        /// The size that was planned.
        plan: Size,
        /// The size of the decoded image.
        found: Size,
    },
    /// A setting that is out of its range.
    #[error("{name}={found}: expected {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// The values that are allowed.
        expected: String,
        /// The value that was set.
        found: String,
    },
}

impl ImageModel {
    /// The model of a name of [`NAMES`], with the pixels that `pillow` gives.
    pub fn named(name: &str, pillow: Pillow) -> Result<Self, ModelError> {
        Self::new(Settings::named(name)?, pillow)
    }

    /// A model of one's own.
    pub fn new(settings: Settings, pillow: Pillow) -> Result<Self, ModelError> {
        settings.check()?;
        let normalized = Box::new(std::array::from_fn(|channel| {
            let (mean, std) = (settings.mean[channel] as f32, settings.std[channel] as f32);
            std::array::from_fn(|value| ((value as f64 * (1.0 / 255.0)) as f32 - mean) / std)
        }));
        Ok(Self { settings, pillow, normalized })
    }

    /// The settings that make the model.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Decodes an image as the model wants it.
    pub fn decode(&self, data: &[u8], max_pixels: u64) -> Result<Image, Error> {
        let image = crate::decode_with(data, max_pixels, self.settings.alpha)?;
        Ok(if self.settings.applies_exif {
            crate::orientation::turned(image, crate::orientation::of(data))
        } else {
            image
        })
    }

    /// Reads the size that [`decode`](Self::decode) gives an image from its headers.
    pub fn size_of(&self, data: &[u8]) -> Result<Size, Error> {
        if self.settings.applies_exif { crate::oriented_size(data) } else { crate::size(data) }
    }

    /// The most tiles of an image, with that of the whole image; 1 if the model has none.
    pub fn most_tiles(&self) -> u32 {
        match self.settings.shape {
            Shape::Tiles { side, tiling, .. } => tiling.most(side),
            _ => 1,
        }
    }

    /// The plan for an image of this size.
    pub fn plan(&self, source: Size) -> Result<ImagePlan, ModelError> {
        if source.width.max(source.height) > LONGEST_SIDE {
            return Err(ModelError::SideTooLong { size: source });
        }
        let plan = ImagePlan {
            source,
            size: source,
            grid_thw: [0; 3],
            tokens: 0,
            patches: 0,
            tiles: [1, 1],
            tile_count: 1,
        };
        match self.settings.shape {
            Shape::Fixed { shortest: Some(side), pads: false, .. }
                if size::longer(source, side) > f64::from(u32::MAX) =>
            {
                Err(ModelError::AspectRatio { size: source, most: u32::MAX / side })
            }
            Shape::Fixed { size, tokens, .. } => Ok(ImagePlan { size, tokens, ..plan }),
            Shape::Patches(patches) => {
                let size = patches.size(source)?;
                let grid_thw = [1, size.height / patches.patch, size.width / patches.patch];
                let count = grid_thw[1] * grid_thw[2];
                let tokens = count / (patches.merge * patches.merge);
                Ok(ImagePlan { size, grid_thw, tokens, patches: count, ..plan })
            }
            Shape::Tiles { side, tiling, tokens } => {
                let tiles = tiling.canvas(source, side).tiles;
                let size = Size { width: tiles[1] * side, height: tiles[0] * side };
                let tokens = tiling.tokens(source, tiles, tokens);
                Ok(ImagePlan { size, tiles, tokens, tile_count: tiling.count(tiles), ..plan })
            }
        }
    }

    /// The shape of an image's pixels: `[height, width, 3]`, `[patches, values]` or `[tiles, height, width, 3]`.
    pub fn pixels_shape(&self, plan: &ImagePlan) -> Vec<usize> {
        match self.settings.shape {
            Shape::Fixed { size, .. } => vec![size.height as usize, size.width as usize, 3],
            Shape::Patches(patches) => vec![plan.patches as usize, patches.values()],
            Shape::Tiles { side, .. } => {
                vec![plan.tile_count as usize, side as usize, side as usize, 3]
            }
        }
    }

    /// How many values an image's pixels have.
    pub fn pixels_len(&self, plan: &ImagePlan) -> usize {
        self.pixels_shape(plan).into_iter().product()
    }
}

impl Settings {
    /// The settings of a name of [`NAMES`].
    pub fn named(name: &str) -> Result<Self, ModelError> {
        named::settings(name).ok_or_else(|| ModelError::UnknownName { found: name.to_owned() })
    }

    fn check(&self) -> Result<(), ModelError> {
        self.shape.check()?;
        let numbers = |name, values: [f64; 3], allowed: fn(f32) -> bool, expected| match values
            .into_iter()
            .find(|&value| !allowed(value as f32))
        {
            Some(value) => Err(setting(name, expected, value)),
            None => Ok(()),
        };
        numbers("image_mean", self.mean, f32::is_finite, "finite numbers")?;
        numbers(
            "image_std",
            self.std,
            |value| value.is_finite() && value != 0.0,
            "finite numbers other than 0",
        )
    }
}

impl Shape {
    fn check(self) -> Result<(), ModelError> {
        const SIDES: RangeInclusive<u32> = 1..=1 << 14;
        const TOKENS: RangeInclusive<u32> = 0..=1 << 20;
        let within = |name, value, range: RangeInclusive<u32>| {
            if range.contains(&value) {
                return Ok(());
            }
            Err(setting(name, &format!("{} to {}", range.start(), range.end()), value))
        };
        match self {
            Self::Fixed { size, shortest, tokens, .. } => {
                within("tokens", tokens, TOKENS)?;
                within("size", size.width, SIDES)?;
                within("size", size.height, SIDES)?;
                // Transformers would pad with zeros.
                shortest.map_or(Ok(()), |side| {
                    within("shortest_edge", side, size.width.max(size.height)..=1 << 14)
                })
            }
            Self::Patches(Patches { patch, merge, temporal, limits, before, .. }) => {
                within("patch_size", patch, 1..=1 << 10)?;
                within("merge_size", merge, 1..=16)?;
                within("temporal_patch_size", temporal, 1..=16)?;
                match limits {
                    Limits::Pixels { least, most } | Limits::Video { least, most } => {
                        within("max_pixels", most, (patch * merge).pow(2)..=1 << 28)?;
                        within("min_pixels", least, 1..=most)?;
                    }
                    Limits::Longest(side) => within("longest_edge", side, patch * merge..=1 << 14)?,
                    Limits::Tokens(most) | Limits::Count(most) => within("max_tokens", most, 1..=1 << 20)?,
                }
                before.map_or(Ok(()), |(factor, least, most)| {
                    within("factor", factor, 1..=1 << 10)?;
                    within("max_pixels", most, factor * factor..=1 << 28)?;
                    within("min_pixels", least, 1..=most)
                })
            }
            Self::Tiles { side, tiling, tokens } => {
                within("tokens", tokens, TOKENS)?;
                within("size", side, 1..=1 << 12)?;
                match tiling {
                    Tiling::Fit { most } | Tiling::Stretch { most } => within("max_tiles", most, 1..=64),
                    Tiling::Split { longest } => within("longest_edge", longest, side..=16 * side),
                    Tiling::AnyResolution { pooled_above, .. } => {
                        pooled_above.map_or(Ok(()), |most| within("max_tiles", most, 1..=1 << 10))
                    }
                }
            }
        }
    }
}

impl Patches {
    /// Values of one patch.
    fn values(self) -> usize {
        (3 * self.temporal * self.patch * self.patch) as usize
    }
}

fn setting(name: &'static str, expected: &str, found: impl Display) -> ModelError {
    ModelError::Setting { name, expected: expected.to_owned(), found: found.to_string() }
}
