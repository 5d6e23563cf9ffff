//! The pixels of models, as bytes or normalized.

use super::{ImageModel, ImagePlan, ModelError, Patches, Shape, size};
use crate::{Image, Resize, Scratch, Size, Window};

impl ImageModel {
    /// Writes an image's pixels as bytes.
    ///
    /// Fixed size: `[height, width, 3]`. Patches: `[patches, 3 * temporal * patch * patch]`, the channels of a patch after
    /// one another, and patches of one token after one another; or by pixels. Tiles: `[tiles, side, side, 3]`, row by row,
    /// and the whole image.
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
        if let Shape::Fixed { size, shortest, pads: false, .. } = self.settings.shape {
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
            Shape::Fixed { size, shortest, pads, .. } => {
                let square = self.pad(image, pads, twice);
                let pixels = if square == image.size { &image.pixels } else { &*twice };
                resize(self.fixed(square, size, shortest), pixels, square, resized);
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
                if patches.by_pixels {
                    write_by_pixels(patches, resized, plan.size, out, value);
                } else {
                    write_patches(patches, resized, plan.size, out, value);
                }
            }
            Shape::Tiles { side, tiling, .. } => {
                let tile = 3 * (side * side) as usize;
                let covered = tile * (plan.tiles[0] * plan.tiles[1]) as usize;
                let canvas = tiling.canvas(image.size, side);
                let (mut pixels, mut from) = (&image.pixels, image.size);
                if let Some(before) = canvas.before {
                    resize(whole(before), pixels, from, resized);
                    resize(whole(canvas.image.size), resized, before, twice);
                    (pixels, from) = (twice, canvas.image.size);
                }
                let (first, rest) = out.split_at_mut(if tiling.is_whole_first() { tile } else { covered });
                let (of_canvas, of_whole) =
                    if tiling.is_whole_first() { (rest, first) } else { (first, rest) };
                resize(whole(canvas.image.size), pixels, from, resized);
                write_tiles(resized, canvas.image, side, plan.tiles[1], of_canvas, &value);
                if !of_whole.is_empty() {
                    resize(whole(Size { width: side, height: side }), pixels, from, resized);
                    write_pixels(resized, of_whole, value);
                }
            }
        }
        Ok(())
    }

    /// Writes the image, in the middle of a square of the mean's colour, to `out`, if it `pads` and is none. Returns its size.
    fn pad(&self, Image { size, pixels }: &Image, pads: bool, out: &mut Vec<u8>) -> Size {
        if !pads || size.width == size.height {
            return *size;
        }
        let side = size.width.max(size.height);
        let colour = self.settings.mean.map(|mean| (mean * 255.0) as u8);
        out.clear();
        out.extend(colour.iter().cycle().take(3 * (side as usize).pow(2)));
        let [left, top] = [size.width, size.height].map(|length| ((side - length) / 2) as usize);
        let (stride, width) = (3 * side as usize, 3 * size.width as usize);
        for (row, pixels) in pixels.chunks_exact(width).enumerate() {
            out[(top + row) * stride + 3 * left..][..width].copy_from_slice(pixels);
        }
        Size { width: side, height: side }
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

/// `[height / patch, width / patch, patch, patch, channel]`.
fn write_by_pixels<T: Copy>(
    patches: Patches,
    pixels: &[u8],
    size: Size,
    out: &mut [T],
    value: impl Fn(usize, u8) -> T,
) {
    let (patch, width) = (patches.patch as usize, 3 * size.width as usize);
    let across = size.width as usize / patch;
    for (index, out) in out.chunks_exact_mut(patches.values()).enumerate() {
        let (top, left) = (index / across * patch, index % across * patch);
        for (y, out) in out.chunks_exact_mut(3 * patch).enumerate() {
            write_pixels(&pixels[(top + y) * width + 3 * left..][..3 * patch], out, &value);
        }
    }
}

/// The tiles of a canvas with the image on it, and zeros around that.
fn write_tiles<T: Copy>(
    pixels: &[u8],
    image: Window,
    side: u32,
    across: u32,
    out: &mut [T],
    value: impl Fn(usize, u8) -> T,
) {
    let Window { left, top, size: Size { width, height } } = image;
    let [left, top, width, height] = [left, top, width, height].map(|number| number as usize);
    let [side, across] = [side, across].map(|number| number as usize);
    let zeros = std::array::from_fn::<_, 3, _>(|channel| value(channel, 0));
    for (index, tile) in out.chunks_exact_mut(3 * side * side).enumerate() {
        let (tile_top, tile_left) = (index / across * side, index % across * side);
        // The columns of the tile that the image covers.
        let start = left.saturating_sub(tile_left).min(side);
        let end = (left + width).saturating_sub(tile_left).min(side);
        for (y, row) in tile.chunks_exact_mut(3 * side).enumerate() {
            let is_covered = (top..top + height).contains(&(tile_top + y)) && start < end;
            let (start, end) = if is_covered { (start, end) } else { (side, side) };
            let (before, rest) = row.split_at_mut(3 * start);
            let (covered, after) = rest.split_at_mut(3 * (end - start));
            if is_covered {
                let first = 3 * ((tile_top + y - top) * width + tile_left + start - left);
                write_pixels(&pixels[first..][..covered.len()], covered, &value);
            }
            for pixel in before.chunks_exact_mut(3).chain(after.chunks_exact_mut(3)) {
                pixel.copy_from_slice(&zeros);
            }
        }
    }
}
