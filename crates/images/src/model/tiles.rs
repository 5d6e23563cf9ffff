//! Tiles: the canvas of equal squares that an image is put on, by the rule of each model.

use crate::{Size, Window};

/// How an image becomes tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tiling {
    /// Llama 4: the canvas that the image fits into without distortion, at its top left; the whole image last.
    Fit {
        /// The most tiles, without that of the whole image.
        most: u32,
    },
    /// `InternVL`: the canvas of the nearest aspect ratio, which the image is stretched to; the whole image last.
    Stretch {
        /// The most tiles, without that of the whole image.
        most: u32,
    },
    /// LLaVA-NeXT and LLaVA-OneVision: one of some canvases, with the image in its middle; the whole image first, always.
    AnyResolution {
        /// The canvases.
        canvases: Canvases,
        /// More tokens than those of so many tiles are pooled.
        pooled_above: Option<u32>,
    },
    /// Idefics 3 and `SmolVLM`: the longer side becomes `longest`, and both sides the next multiple of a tile's; the whole
    /// image last.
    Split {
        /// The longer side of the first resize.
        longest: u32,
    },
}

/// The most canvases.
const MOST_CANVASES: usize = 64;

/// Canvases, as tiles down and across. Among equals the first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Canvases {
    count: usize,
    tiles: [[u8; 2]; MOST_CANVASES],
}

impl Canvases {
    /// Canvases of so many tiles down and across. None: there are none or too many, or one is not of 1 to 64 by 1 to 64 tiles.
    pub fn new(tiles: &[[u32; 2]]) -> Option<Self> {
        let mut found = Self { count: tiles.len(), tiles: [[0; 2]; MOST_CANVASES] };
        if tiles.is_empty() || tiles.len() > MOST_CANVASES {
            return None;
        }
        for (slot, canvas) in found.tiles.iter_mut().zip(tiles) {
            if canvas.iter().any(|&side| !(1..=64).contains(&side)) {
                return None;
            }
            *slot = canvas.map(|side| side as u8);
        }
        Some(found)
    }

    fn iter(&self) -> impl Iterator<Item = [u32; 2]> {
        self.tiles[..self.count].iter().map(|canvas| canvas.map(u32::from))
    }
}

/// The canvas of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Canvas {
    /// Tiles down and across.
    pub tiles: [u32; 2],
    /// The size of a resize before the last one; tiles and the whole image are made of its result.
    pub before: Option<Size>,
    /// The image on the canvas, and where it is; around it are zeros.
    pub image: Window,
}

impl Tiling {
    /// The most tiles of an image, with that of the whole image.
    pub fn most(self, side: u32) -> u32 {
        match self {
            Self::Fit { most } | Self::Stretch { most } => most + u32::from(most > 1),
            Self::AnyResolution { canvases, .. } => {
                1 + canvases.iter().map(|[down, across]| down * across).max().unwrap_or(1)
            }
            Self::Split { longest } => {
                let along = longest.min(MOST_SIDE).div_ceil(side);
                along * along + u32::from(along > 1)
            }
        }
    }

    /// How many tiles an image of this canvas has, with that of the whole image.
    pub(super) fn count(self, [down, across]: [u32; 2]) -> u32 {
        let is_always_whole = matches!(self, Self::AnyResolution { .. });
        down * across + u32::from(is_always_whole || down * across > 1)
    }

    /// Whether the whole image is the first tile.
    pub(super) fn is_whole_first(self) -> bool {
        matches!(self, Self::AnyResolution { .. })
    }

    /// The canvas of an image, of tiles of `side`.
    pub(super) fn canvas(self, source: Size, side: u32) -> Canvas {
        let at_top_left = |size| Window { left: 0, top: 0, size };
        let on = |[down, across]: [u32; 2]| Size { width: across * side, height: down * side };
        match self {
            Self::Fit { most } => {
                let tiles = fit(source, side, most);
                Canvas { tiles, before: None, image: at_top_left(size_on_canvas(source, side, tiles)) }
            }
            Self::Stretch { most } => {
                let tiles = nearest(source, side, most);
                Canvas { tiles, before: None, image: at_top_left(on(tiles)) }
            }
            Self::AnyResolution { canvases, .. } => {
                let tiles = fullest(source, side, &canvases);
                let canvas = on(tiles);
                let inner = inside(source, canvas);
                let [left, top] = [(canvas.width, inner.width), (canvas.height, inner.height)]
                    .map(|(canvas, image)| (canvas - image) / 2);
                Canvas { tiles, before: None, image: Window { left, top, size: inner } }
            }
            Self::Split { longest } => {
                let before = longest_of(source, longest);
                let covered = next_multiples(before, side);
                let tiles = [covered.height / side, covered.width / side];
                Canvas { tiles, before: Some(before), image: at_top_left(covered) }
            }
        }
    }

    /// The tokens of an image, of tiles of so many tokens.
    pub(super) fn tokens(self, source: Size, tiles: [u32; 2], each: u32) -> u32 {
        match self {
            Self::AnyResolution { pooled_above, .. } => {
                each + without_padding(source, tiles, each.isqrt(), pooled_above)
            }
            _ => each * self.count(tiles),
        }
    }
}

/// Llama 4: tiles down and across, those that enlarge the image least, or else shrink it least; among equals the fewest.
fn fit(source: Size, side: u32, most: u32) -> [u32; 2] {
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
fn size_on_canvas(source: Size, side: u32, tiles: [u32; 2]) -> Size {
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

/// `InternVL`: tiles down and across of the nearest aspect ratio; among equals more of them, unless the image has at most
/// half as many pixels.
fn nearest(source: Size, side: u32, most: u32) -> [u32; 2] {
    let [width, height] = [source.width, source.height].map(f64::from);
    let (aspect, area) = (width / height, width * height);
    let mut best = ([1, 1], f64::INFINITY);
    // In the order of transformers: by their number, and then by their width.
    let shapes = (1..=most).flat_map(|count| {
        (1..=count).filter(move |across| count % across == 0).map(move |across| [count / across, across])
    });
    for [down, across] in shapes {
        let difference = (aspect - f64::from(across) / f64::from(down)).abs();
        let is_filled = || area > 0.5 * f64::from(side * side) * f64::from(down * across);
        if difference < best.1 || difference.total_cmp(&best.1).is_eq() && is_filled() {
            best = ([down, across], difference);
        }
    }
    best.0
}

/// LLaVA-NeXT: the canvas on which most pixels of the image are kept; among equals that with the least around it.
fn fullest(source: Size, side: u32, canvases: &Canvases) -> [u32; 2] {
    let [width, height] = [source.width, source.height].map(f64::from);
    let pixels = u64::from(source.width) * u64::from(source.height);
    let mut best = ([1, 1], 0, u64::MAX);
    for [down, across] in canvases.iter() {
        let [canvas_height, canvas_width] = [down * side, across * side];
        let scale = (f64::from(canvas_width) / width).min(f64::from(canvas_height) / height);
        let kept = ((width * scale) as u64 * (height * scale) as u64).min(pixels);
        let around = (u64::from(canvas_width) * u64::from(canvas_height)).saturating_sub(kept);
        if kept > best.1 || kept == best.1 && around < best.2 {
            best = ([down, across], kept, around);
        }
    }
    best.0
}

/// The size of an image that fills a canvas on one side, with its aspect ratio.
fn inside(source: Size, canvas: Size) -> Size {
    let [width, height] = [source.width, source.height].map(f64::from);
    let (by_width, by_height) = (f64::from(canvas.width) / width, f64::from(canvas.height) / height);
    if by_width < by_height {
        Size { width: canvas.width, height: ((height * by_width).ceil() as u32).clamp(1, canvas.height) }
    } else {
        Size { width: ((width * by_height).ceil() as u32).clamp(1, canvas.width), height: canvas.height }
    }
}

/// LLaVA-NeXT: the tokens of the tiles without those of the padding, and one for each of their rows.
fn without_padding(source: Size, [down, across]: [u32; 2], along: u32, pooled_above: Option<u32>) -> u32 {
    let (mut rows, mut columns) = (along * down, along * across);
    let [width, height] = [source.width, source.height].map(f64::from);
    let kept = |side: f64, canvas: u32, other: f64| {
        // Rounded to 7 digits, as transformers does.
        ((side * (f64::from(canvas) / other) * 1e7).round_ties_even() / 1e7) as u32
    };
    if width / height > f64::from(columns) / f64::from(rows) {
        rows -= (rows - kept(height, columns, width).min(rows)) / 2 * 2;
    } else {
        columns -= (columns - kept(width, rows, height).min(columns)) / 2 * 2;
    }
    if let Some(most) = pooled_above {
        let ratio = (f64::from(rows * columns) / f64::from(most * along * along)).sqrt();
        if ratio > 1.1 {
            [rows, columns] = [rows, columns].map(|side| floor_division(f64::from(side), ratio) as u32);
        }
    }
    rows * columns + rows
}

/// Python's `//` of floats.
fn floor_division(dividend: f64, divisor: f64) -> f64 {
    let quotient = (dividend - dividend % divisor) / divisor;
    let floor = quotient.floor();
    if quotient - floor > 0.5 { floor + 1.0 } else { floor }
}

/// The longest side that Idefics 3 resizes to.
const MOST_SIDE: u32 = 4096;

/// Idefics 3: the longer side becomes `longest`, and the other one an even number.
fn longest_of(source: Size, longest: u32) -> Size {
    let [width, height] = [source.width, source.height].map(f64::from);
    let aspect = width / height;
    let even = |side: f64| {
        let side = side as u32;
        (side + side % 2).max(1)
    };
    let size = if source.width >= source.height {
        Size { width: longest, height: even(f64::from(longest) / aspect) }
    } else {
        Size { width: even(f64::from(longest) * aspect), height: longest }
    };
    let [width, height] = [size.width, size.height].map(f64::from);
    let aspect = width / height;
    if size.width >= size.height && size.width > MOST_SIDE {
        Size { width: MOST_SIDE, height: ((f64::from(MOST_SIDE) / aspect) as u32).max(1) }
    } else if size.height > size.width && size.height > MOST_SIDE {
        Size { width: ((f64::from(MOST_SIDE) * aspect) as u32).max(1), height: MOST_SIDE }
    } else {
        size
    }
}

/// Idefics 3: sides that tiles of `side` cover.
fn next_multiples(source: Size, side: u32) -> Size {
    let aspect = f64::from(source.width) / f64::from(source.height);
    let next = |length: u32| length.div_ceil(side).max(1) * side;
    if source.width >= source.height {
        let width = next(source.width);
        Size { width, height: next((f64::from(width) / aspect) as u32) }
    } else {
        let height = next(source.height);
        Size { width: next((f64::from(height) * aspect) as u32), height }
    }
}
