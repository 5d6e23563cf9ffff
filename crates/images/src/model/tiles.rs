//! Llama 4's tiles: a canvas of tiles that the image fits into without distortion.

use crate::Size;

/// Tiles down and across: those that enlarge the image least, or else shrink it least; among equals the fewest.
pub(super) fn choose(source: Size, side: u32, most: u32) -> [u32; 2] {
    // In 32 bits, as transformers computes it.
    let scale = |[down, across]: [u32; 2]| {
        let [by_height, by_width] = [(down, source.height), (across, source.width)]
            .map(|(tiles, of)| (tiles * side) as f32 / of as f32);
        by_height.min(by_width)
    };
    // Fewer tiles come first.
    let shapes = || {
        (1..=most).flat_map(|count| {
            (1..=count).filter(move |down| count % down == 0).map(move |down| [down, count / down])
        })
    };
    let least_enlarged = shapes().map(scale).filter(|&scale| scale >= 1.0).reduce(f32::min);
    let wanted = least_enlarged.unwrap_or_else(|| shapes().map(scale).fold(0.0, f32::max));
    shapes().find(|&shape| scale(shape).total_cmp(&wanted).is_eq()).unwrap_or([1, 1])
}

/// The size of the image on its canvas, whose remaining pixels are zeros. Up to the side of one tile it is enlarged.
pub(super) fn size_on_canvas(source: Size, side: u32, tiles: [u32; 2]) -> Size {
    let height = source.height.max(side).min(tiles[0] * side);
    let width = source.width.max(side).min(tiles[1] * side);
    let by_width = f64::from(width) / f64::from(source.width);
    let by_height = f64::from(height) / f64::from(source.height);
    if by_width < by_height {
        let scaled = (f64::from(source.height) * by_width).floor() as u32;
        Size { width, height: scaled.min(height).max(1) }
    } else {
        let scaled = (f64::from(source.width) * by_height).floor() as u32;
        Size { width: scaled.min(width).max(1), height }
    }
}

/// The tokens between the tiles of a row, after one, and before the whole image.
pub const SEPARATORS: [&str; 3] = ["<|tile_x_separator|>", "<|tile_y_separator|>", "<|image|>"];

/// The tokens of the tiles with separators, and those of the whole image.
pub(super) fn expansion(token: &str, tokens: u32, [down, across]: [u32; 2]) -> Vec<(&str, u32)> {
    let mut parts = Vec::new();
    if down * across > 1 {
        for _ in 0..down {
            for _ in 1..across {
                parts.extend([(token, tokens), (SEPARATORS[0], 1)]);
            }
            parts.extend([(token, tokens), (SEPARATORS[1], 1)]);
        }
    }
    parts.extend([(SEPARATORS[2], 1), (token, tokens)]);
    parts
}
