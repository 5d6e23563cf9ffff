//! The models of `gristmill_images`.

use gristmill_images::{Format, ImageModel, Shape, Size};

use super::{Fault, ImageModel as Model, PixelShape, Pixels, Plan, Scratch};

/// Width and height of an image that begins with these bytes. The error says what was expected and found.
pub fn size(header: &[u8]) -> Result<(u32, u32), String> {
    gristmill_images::size(header)
        .map(|Size { width, height }| (width, height))
        .map_err(|error| error.to_string())
}

/// The same as its Exif tag turns it.
pub fn oriented_size(header: &[u8]) -> Result<(u32, u32), String> {
    gristmill_images::oriented_size(header)
        .map(|Size { width, height }| (width, height))
        .map_err(|error| error.to_string())
}

/// The name of the format of an image that begins with these bytes.
pub fn kind(header: &[u8]) -> Option<&'static str> {
    gristmill_images::kind(header)
}

/// Whether an image that begins with these bytes has a format that is decoded.
pub fn is_decoded(header: &[u8]) -> bool {
    Format::of(header).is_some()
}

/// As [`size`], and zeros of an image whose size is not known.
pub fn any_size(header: &[u8]) -> Result<(u32, u32), String> {
    Ok(size(header).unwrap_or_default())
}

/// The shape of the pixels that rows of `sequence_length` tokens hold for a model's images. Without `max_patches` a row
/// has as many as its tokens can stand for.
pub fn pixel_shape(model: &ImageModel, sequence_length: usize, max_patches: Option<usize>) -> PixelShape {
    match model.settings().shape {
        Shape::Fixed { size, .. } => PixelShape::Fixed(vec![size.height as usize, size.width as usize, 3]),
        Shape::Patches(patches) => {
            let of_tokens = sequence_length * (patches.merge * patches.merge) as usize;
            let length = (3 * patches.temporal * patches.patch * patches.patch) as usize;
            PixelShape::Patches { most: max_patches.unwrap_or(of_tokens), length }
        }
        Shape::Tiles { side, .. } => PixelShape::Tiles {
            most: model.most_tiles() as usize,
            shape: vec![side as usize, side as usize, 3],
        },
    }
}

impl Model for ImageModel {
    fn plan(&self, width: u32, height: u32) -> Result<Plan, String> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels > gristmill_images::MAX_PIXELS {
            return Err(format!("expected at most {} pixels, found {pixels}", gristmill_images::MAX_PIXELS));
        }
        let plan = self.plan(Size { width, height }).map_err(|error| error.to_string())?;
        let [down, across] = plan.tiles;
        let (tiles, grid, merge) = match self.settings().shape {
            Shape::Patches(patches) => (0, plan.grid_thw, patches.merge),
            Shape::Fixed { .. } => (0, plan.grid_thw, 1),
            Shape::Tiles { .. } => (plan.tile_count, [1, down, across], 1),
        };
        Ok(Plan { tokens: plan.tokens, patches: plan.patches, tiles, grid, merge })
    }

    fn expansion(&self, width: u32, height: u32, plan: &Plan) -> Vec<(usize, u32)> {
        let found = self.plan(Size { width, height });
        found.map_or_else(|_| vec![(0, plan.tokens)], |plan| self.expansion(&plan))
    }

    fn write(&self, bytes: &[u8], out: Pixels<'_>, scratch: &mut Scratch) -> Result<(), Fault> {
        let image = self.decode(bytes, gristmill_images::MAX_PIXELS);
        let image = image.map_err(|error| Fault::Damaged(error.to_string()))?;
        let plan = self.plan(image.size).map_err(|error| Fault::Damaged(error.to_string()))?;
        let written = match out {
            Pixels::Uint8(out) if out.len() == self.pixels_len(&plan) => {
                self.write_u8(&image, &plan, out, &mut scratch.resize)
            }
            Pixels::Float32(out) if out.len() == self.pixels_len(&plan) => {
                self.write_f32(&image, &plan, out, &mut scratch.resize)
            }
            _ => {
                let found = "expected the size that its header had before, found another";
                return Err(Fault::Damaged(found.to_owned()));
            }
        };
        written.map_err(|error| Fault::Damaged(error.to_string()))
    }
}
