//! The sizes that images are resized to, in the arithmetic of transformers.

use super::{ModelError, Patches};
use crate::{Size, Window};

/// The aspect ratio above which Qwen's processors refuse an image.
const MOST_ASPECT: u32 = 200;

/// The limits of the size of an image in patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limits {
    /// Qwen: the pixels.
    Pixels {
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
    /// GLM-4.1V and later: the pixels of all frames, of which a still image has as many as a patch.
    Video {
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
    /// Pixtral and Mistral 3: the longer side, which is never enlarged to it; sides are rounded up.
    Longest(u32),
    /// Gemma 4: the tokens; sides are rounded down.
    Tokens(u32),
    /// `SigLIP` 2: the patches; sides are rounded up, and images enlarged.
    Count(u32),
}

impl Patches {
    /// The size of the resized image.
    pub(super) fn size(self, source: Size) -> Result<Size, ModelError> {
        let between = self.size_before(source)?.unwrap_or(source);
        let factor = self.patch * self.merge;
        match self.limits {
            Limits::Pixels { least, most } => smart_resize(between, factor, least, most),
            Limits::Video { least, most } => video_resize(between, factor, self.temporal, least, most),
            Limits::Longest(side) => Ok(at_most(between, side, factor)),
            Limits::Tokens(most) => within_tokens(between, factor, self.merge, most),
            Limits::Count(most) => Ok(most_patches(between, factor, most)),
        }
    }

    /// The size after the first of two resizes.
    pub(super) fn size_before(self, source: Size) -> Result<Option<Size>, ModelError> {
        self.before.map(|(factor, least, most)| smart_resize(source, factor, least, most)).transpose()
    }
}

/// Both sides become multiples of `factor`, the pixels at least `least` and at most `most`, and the aspect ratio nearly
/// stays.
fn smart_resize(source: Size, factor: u32, least: u32, most: u32) -> Result<Size, ModelError> {
    let [height, width, factor, least, most] =
        [source.height, source.width, factor, least, most].map(f64::from);
    if height.max(width) / height.min(width) > f64::from(MOST_ASPECT) {
        return Err(ModelError::AspectRatio { size: source, most: MOST_ASPECT });
    }
    let mut sides = [height, width].map(|side| (side / factor).round_ties_even() * factor);
    let pixels = sides[0] * sides[1];
    if pixels > most {
        let shrink = (height * width / most).sqrt();
        sides = [height, width].map(|side| factor.max((side / shrink / factor).floor() * factor));
    } else if pixels < least {
        let stretch = (least / (height * width)).sqrt();
        sides = [height, width].map(|side| (side * stretch / factor).ceil() * factor);
    }
    Ok(Size { width: sides[1] as u32, height: sides[0] as u32 })
}

/// The same for as many equal frames as a patch has, whose pixels all count; a side below `factor` is enlarged first.
fn video_resize(source: Size, factor: u32, frames: u32, least: u32, most: u32) -> Result<Size, ModelError> {
    let [factor, frames, least, most] = [factor, frames, least, most].map(f64::from);
    let mut sides = [source.height, source.width].map(f64::from);
    if sides[0] < factor || sides[1] < factor {
        let scale = (factor / sides[0]).max(factor / sides[1]);
        sides = sides.map(|side| (side * scale).floor());
    }
    let [height, width] = sides;
    if height.max(width) / height.min(width) > f64::from(MOST_ASPECT) {
        return Err(ModelError::AspectRatio { size: source, most: MOST_ASPECT });
    }
    let mut rounded = sides.map(|side| (side / factor).round_ties_even() * factor);
    let pixels = frames * rounded[0] * rounded[1];
    if pixels > most {
        let shrink = (frames * height * width / most).sqrt();
        rounded = sides.map(|side| factor.max((side / shrink / factor).floor() * factor));
    } else if pixels < least {
        let stretch = (least / (frames * height * width)).sqrt();
        rounded = sides.map(|side| (side * stretch / factor).ceil() * factor);
    }
    Ok(Size { width: rounded[1] as u32, height: rounded[0] as u32 })
}

/// Both sides at most `most`, and then rounded up to multiples of `factor`.
fn at_most(source: Size, most: u32, factor: u32) -> Size {
    let sides = [source.height, source.width];
    let ratio = f64::from(sides[0].max(sides[1])) / f64::from(most);
    let [height, width] = sides.map(|side| {
        let side = if ratio > 1.0 { (f64::from(side) / ratio).floor() as u32 } else { side };
        side.div_ceil(factor).max(1) * factor
    });
    Size { width, height }
}

/// Both sides multiples of `factor`, rounded down, of at most so many tokens.
fn within_tokens(source: Size, factor: u32, merge: u32, most: u32) -> Result<Size, ModelError> {
    let [height, width] = [source.height, source.width].map(f64::from);
    let patch = f64::from(factor / merge);
    let pixels = f64::from(most * merge * merge) * patch * patch;
    let scale = (pixels / (height * width)).sqrt();
    let [mut rows, mut columns] =
        [height, width].map(|side| (scale * side / f64::from(factor)).floor() as u32);
    // A side that would be nothing becomes one token, and the other one as many as the aspect ratio says.
    if rows == 0 && columns > 0 {
        rows = 1;
        columns = ((width / height).floor() as u32).min(most);
    } else if columns == 0 && rows > 0 {
        columns = 1;
        rows = ((height / width).floor() as u32).min(most);
    }
    if rows == 0 || columns == 0 || u64::from(rows) * u64::from(columns) > u64::from(most) {
        return Err(ModelError::AspectRatio { size: source, most });
    }
    Ok(Size { width: columns * factor, height: rows * factor })
}

/// The largest size, with nearly the image's aspect ratio, of at most `most` patches; by halving an interval, as
/// transformers does.
fn most_patches(source: Size, patch: u32, most: u32) -> Size {
    const PRECISION: f64 = 1e-5;
    let side = f64::from(patch);
    let scaled = |scale: f64| {
        [source.height, source.width]
            .map(|length| ((f64::from(length) * scale / side).ceil() * side).max(side))
    };
    let (mut low, mut high) = (PRECISION / 10.0, 100.0);
    while high - low >= PRECISION {
        let middle = f64::midpoint(low, high);
        let [height, width] = scaled(middle);
        if (height / side) * (width / side) <= f64::from(most) { low = middle } else { high = middle }
    }
    let [height, width] = scaled(low).map(|length| length as u32);
    Size { width, height }
}

/// The longer side when the shorter one becomes `shortest`.
pub(super) fn longer(source: Size, shortest: u32) -> f64 {
    let (short, long) = (source.width.min(source.height), source.width.max(source.height));
    f64::from(shortest) * f64::from(long) / f64::from(short)
}

/// The size whose shorter side is `shortest`, and the window of `size` in its middle.
pub(super) fn centre(source: Size, shortest: u32, size: Size) -> (Size, Window) {
    let longer = longer(source, shortest) as u32;
    let whole = if source.width <= source.height {
        Size { width: shortest, height: longer }
    } else {
        Size { width: longer, height: shortest }
    };
    let window = Window { left: (whole.width - size.width) / 2, top: (whole.height - size.height) / 2, size };
    (whole, window)
}
