//! The sizes that images are resized to, in the arithmetic of transformers.

use super::{ModelError, Patches};
use crate::{Size, Window};

/// The aspect ratio above which Qwen's processors refuse an image.
const MOST_ASPECT: u32 = 200;

impl Patches {
    /// The size of the resized image.
    pub(super) fn size(self, source: Size) -> Result<Size, ModelError> {
        let between = self.size_before(source)?.unwrap_or(source);
        smart_resize(between, self.patch * self.merge, self.min_pixels, self.max_pixels)
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
