//! Pillow's `Image.resize`, bit for bit.
//!
//! Each pass, along the rows and down the columns, adds up 8-bit values times weights of 22 bits, and rounds to 8 bits
//! again. So the order of the passes counts, which Pillow 13 changed.

mod filter;
mod passes;

pub use filter::Filter;
use filter::Weights;
use passes::View;

use crate::{Image, Size};

/// The version of Pillow whose pixels a resize gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pillow {
    /// 9.5 to 12.3: rows first, but for images more than 100 times as high as wide whose height shrinks.
    V12,
    /// From 13.0 on: rows first, but for images whose height shrinks by more than twice what the width does.
    V13,
}

/// A part of a resized image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Columns of the resized image before the window.
    pub left: u32,
    /// Rows of the resized image before the window.
    pub top: u32,
    /// Columns and rows of the window.
    pub size: Size,
}

/// A resize to `size`, of which `window` is computed: what is outside costs neither time nor memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// Columns and rows of the whole resized image.
    pub size: Size,
    /// The part of it that is wanted.
    pub window: Window,
    /// How values are computed.
    pub filter: Filter,
    /// Whose pixels they are.
    pub pillow: Pillow,
}

/// Memory that one resize leaves to the next.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) passes: PassScratch,
    pub(crate) resized: Vec<u8>,
    pub(crate) twice: Vec<u8>,
}

/// The part of it that one resize needs.
#[derive(Debug, Default)]
pub(crate) struct PassScratch {
    between: Vec<u8>,
    tiles: [Vec<u8>; 2],
}

impl Resize {
    /// A resize of which everything is wanted.
    pub fn whole(size: Size, filter: Filter, pillow: Pillow) -> Self {
        Self { size, window: Window { left: 0, top: 0, size }, filter, pillow }
    }

    /// Writes the window's pixels to `out`: 3 bytes for each, row by row.
    ///
    /// # Panics
    ///
    /// If `out` has another length.
    pub fn write(&self, image: &Image, out: &mut [u8], scratch: &mut Scratch) {
        self.run(&image.pixels, image.size, out, &mut scratch.passes);
    }

    pub(crate) fn run(&self, pixels: &[u8], from: Size, out: &mut [u8], scratch: &mut PassScratch) {
        let PassScratch { between, tiles } = scratch;
        let Self { size, window, filter, pillow } = *self;
        assert_eq!(out.len(), 3 * window.size.pixels(), "room for the pixels of the window");
        let stride = 3 * from.width as usize;
        let whole = View { pixels, stride, width: stride, rows: from.height as usize };
        // A pass that changes nothing is left out.
        let columns = (size.width != from.width || window.size.width != size.width).then(|| {
            Weights::new(filter, from.width, size.width, window.left..window.left + window.size.width)
        });
        let rows = (size.height != from.height || window.size.height != size.height).then(|| {
            Weights::new(filter, from.height, size.height, window.top..window.top + window.size.height)
        });
        match (columns, rows) {
            (None, None) => out.copy_from_slice(pixels),
            (Some(columns), None) => passes::across(whole, &columns, 0, out, tiles),
            (None, Some(rows)) => passes::down(whole, &rows, 0, out),
            (Some(columns), Some(rows)) if columns_first(pillow, from, size) => {
                let needed = columns.needed();
                let part = View { pixels: &pixels[3 * needed.start..], width: 3 * needed.len(), ..whole };
                between.resize(part.width * rows.len(), 0);
                passes::down(part, &rows, 0, between);
                let between =
                    View { pixels: between, stride: part.width, width: part.width, rows: rows.len() };
                passes::across(between, &columns, needed.start, out, tiles);
            }
            (Some(columns), Some(rows)) => {
                let needed = rows.needed();
                let part = View { pixels: &pixels[needed.start * stride..], rows: needed.len(), ..whole };
                let width = 3 * columns.len();
                between.resize(width * needed.len(), 0);
                passes::across(part, &columns, 0, between, tiles);
                let between = View { pixels: between, stride: width, width, rows: needed.len() };
                passes::down(between, &rows, needed.start, out);
            }
        }
    }
}

/// Whether columns come before rows.
fn columns_first(pillow: Pillow, from: Size, to: Size) -> bool {
    let [from_width, from_height, width, height] =
        [from.width, from.height, to.width, to.height].map(i64::from);
    height < from_height
        && match pillow {
            Pillow::V12 => from_height > 100 * from_width,
            Pillow::V13 => from_height - height > 2 * (from_width - width),
        }
}
