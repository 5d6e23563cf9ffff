//! The pixels of models, as bytes or normalized.

use super::{ImageModel, ImagePlan, ModelError, Patches, Shape, size, tile_count, tiles};
use crate::{Image, Resize, Scratch, Size};

impl ImageModel {
    /// Writes an image's pixels as bytes.
    ///
    /// Fixed size: `[height, width, 3]`. Patches: `[patches, 3 * temporal * patch * patch]`, the channels of a patch after
    /// one another, and patches of one token after one another. Tiles: `[tiles, side, side, 3]`, row by row, and last the
    /// whole image if there are several.
    ///
    /// # Panics
    ///
    /// If `out` has another length than [`Self::pixels_len`].
    pub fn write_u8(
        &self,
        image: &Image,
        plan: &ImagePlan,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), ModelError> {
        if let Shape::Fixed { size, shortest, .. } = self.settings.shape {
            self.check(image, plan, out.len())?;
            self.fixed(image.size, size, shortest).write(image, out, scratch);
            return Ok(());
        }
        self.write(image, plan, out, scratch, |_, value| value)
    }

    /// Writes an image's pixels normalized: bit for bit the values of transformers' PIL processors, in the order of
    /// [`Self::write_u8`].
    ///
    /// # Panics
    ///
    /// If `out` has another length than [`Self::pixels_len`].
    pub fn write_f32(
        &self,
        image: &Image,
        plan: &ImagePlan,
        out: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), ModelError> {
        self.write(image, plan, out, scratch, |channel, value| self.normalized[channel][usize::from(value)])
    }

    fn write<T: Copy>(
        &self,
        image: &Image,
        plan: &ImagePlan,
        out: &mut [T],
        scratch: &mut Scratch,
        value: impl Fn(usize, u8) -> T,
    ) -> Result<(), ModelError> {
        self.check(image, plan, out.len())?;
        let Scratch { passes, resized, twice } = scratch;
        let mut resize = |resize: Resize, pixels: &[u8], from, to: &mut Vec<u8>| {
            to.resize(3 * resize.window.size.pixels(), 0);
            resize.run(pixels, from, to, passes);
        };
        let whole = |size| Resize::whole(size, self.settings.filter, self.pillow);
        match self.settings.shape {
            Shape::Fixed { size, shortest, .. } => {
                resize(self.fixed(image.size, size, shortest), &image.pixels, image.size, resized);
                write_pixels(resized, out, value);
            }
            Shape::Patches(patches) => {
                match patches.size_before(image.size)? {
                    Some(first) => {
                        resize(whole(first), &image.pixels, image.size, twice);
                        resize(whole(plan.size), twice, first, resized);
                    }
                    None => resize(whole(plan.size), &image.pixels, image.size, resized),
                }
                write_patches(patches, resized, plan.size, out, value);
            }
            Shape::Tiles { side, .. } => {
                let tile = 3 * (side * side) as usize;
                let (on_canvas, global) = out.split_at_mut(tile * (plan.tiles[0] * plan.tiles[1]) as usize);
                let size = tiles::size_on_canvas(image.size, side, plan.tiles);
                resize(whole(size), &image.pixels, image.size, resized);
                write_tiles(resized, size, side, plan.tiles[1], on_canvas, &value);
                if tile_count(plan.tiles) > 1 {
                    resize(whole(Size { width: side, height: side }), &image.pixels, image.size, resized);
                    write_pixels(resized, global, value);
                }
            }
        }
        Ok(())
    }

    /// The resize of a model of a fixed size.
    fn fixed(&self, source: Size, size: Size, shortest: Option<u32>) -> Resize {
        let mut request = Resize::whole(size, self.settings.filter, self.pillow);
        if let Some(shortest) = shortest {
            (request.size, request.window) = size::centre(source, shortest, size);
        }
        request
    }

    fn check(&self, image: &Image, plan: &ImagePlan, room: usize) -> Result<(), ModelError> {
        assert_eq!(room, self.pixels_len(plan), "room for the pixels");
        if image.size == plan.source {
            return Ok(());
        }
        Err(ModelError::OtherSize { plan: plan.source, found: image.size })
    }
}

fn write_pixels<T>(pixels: &[u8], out: &mut [T], value: impl Fn(usize, u8) -> T) {
    for (out, pixel) in out.chunks_exact_mut(3).zip(pixels.chunks_exact(3)) {
        for (channel, out) in out.iter_mut().enumerate() {
            *out = value(channel, pixel[channel]);
        }
    }
}

/// `[height / step, width / step, merge, merge, channel, temporal, patch, patch]`, where `step` is `merge * patch`.
fn write_patches<T: Copy>(
    patches: Patches,
    pixels: &[u8],
    size: Size,
    out: &mut [T],
    value: impl Fn(usize, u8) -> T,
) {
    let Patches { patch, merge, temporal, .. } = patches;
    let [patch, merge, temporal] = [patch, merge, temporal].map(|number| number as usize);
    let stride = 3 * size.width as usize;
    let tokens_across = size.width as usize / (merge * patch);
    for (index, out) in out.chunks_exact_mut(patches.values()).enumerate() {
        let (token, within) = (index / (merge * merge), index % (merge * merge));
        let top = (token / tokens_across * merge + within / merge) * patch;
        let left = (token % tokens_across * merge + within % merge) * patch;
        for (channel, out) in out.chunks_exact_mut(temporal * patch * patch).enumerate() {
            let (first, others) = out.split_at_mut(patch * patch);
            for (y, out) in first.chunks_exact_mut(patch).enumerate() {
                let row = &pixels[(top + y) * stride + 3 * left..][..3 * patch];
                for (out, pixel) in out.iter_mut().zip(row.chunks_exact(3)) {
                    *out = value(channel, pixel[channel]);
                }
            }
            others.chunks_exact_mut(patch * patch).for_each(|again| again.copy_from_slice(first));
        }
    }
}

/// The tiles of a canvas with the image at its top left, and zeros around it.
fn write_tiles<T: Copy>(
    pixels: &[u8],
    Size { width, height }: Size,
    side: u32,
    across: u32,
    out: &mut [T],
    value: impl Fn(usize, u8) -> T,
) {
    let [width, height, side, across] = [width, height, side, across].map(|number| number as usize);
    let zeros = std::array::from_fn::<_, 3, _>(|channel| value(channel, 0));
    for (index, tile) in out.chunks_exact_mut(3 * side * side).enumerate() {
        let (top, left) = (index / across * side, index % across * side);
        for (y, row) in tile.chunks_exact_mut(3 * side).enumerate() {
            let filled = if top + y < height { width.saturating_sub(left).min(side) } else { 0 };
            let (image, around) = row.split_at_mut(3 * filled);
            if filled > 0 {
                write_pixels(&pixels[3 * ((top + y) * width + left)..][..3 * filled], image, &value);
            }
            around.chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&zeros));
        }
    }
}
