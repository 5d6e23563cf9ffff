#![doc = include_str!("../README.md")]

mod bmp;
mod gif;
mod jpeg;
#[cfg(target_arch = "x86_64")]
mod jpeg_kernels;
mod kind;
mod model;
mod orientation;
mod png;
mod resize;
mod webp;

pub use jpeg::has_vector_code as jpeg_has_vector_code;
pub use kind::kind;
pub use model::{
    Canvases, ImageModel, ImagePlan, LONGEST_SIDE, Limits, Markup, ModelError, NAMES as MODEL_NAMES, Patches,
    Settings, Shape, Tiling,
};
pub use resize::{Filter, Pillow, Resize, Scratch, Window};

use std::fmt;

/// The pixels above which Pillow refuses an image, in its default configuration.
pub const MAX_PIXELS: u64 = 178_956_970;

/// An image of the colours red, green and blue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Columns and rows.
    pub size: Size,
    /// 3 bytes for each pixel, row by row: `height * width * 3` in all.
    pub pixels: Vec<u8>,
}

/// Columns and rows of an image; at least one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// The treatment of transparent pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpha {
    /// The colour is kept, as by Pillow's `convert("RGB")`.
    Drop,
    /// The image is put on white, as transformers' processors do.
    White,
}

impl Alpha {
    /// The names of both.
    pub const ALL: [(&'static str, Self); 2] = [("drop", Self::Drop), ("white", Self::White)];

    /// The pixel that one with this alpha becomes; on white as by Pillow's `alpha_composite`.
    fn apply(self, color: [u8; 3], alpha: u8) -> [u8; 3] {
        if self == Self::Drop || alpha == 255 {
            return color;
        }
        color.map(|value| {
            let [value, alpha] = [value, alpha].map(u32::from);
            let sum = 128 * (value * alpha + 255 * (255 - alpha)) + (1 << 14);
            ((((sum >> 8) + sum) >> 8) >> 7) as u8
        })
    }
}

/// The formats that [`decode`] knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Baseline, progressive and arithmetic-coded files of 8 bits a sample.
    Jpeg,
    /// All colour types and bit depths.
    Png,
    /// Lossy and lossless; the first frame of an animation.
    WebP,
    /// The first frame, on its canvas.
    Gif,
    /// Without compression.
    Bmp,
}

/// Why bytes are not an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The first bytes are of no known format.
    #[error("expected a JPEG, PNG, WebP, GIF or BMP image, found {found}")]
    UnknownFormat {
        /// The format, or the first bytes.
        found: String,
    },
    /// The header declares more pixels than are allowed.
    #[error(
        "{format} image: expected at most {max_pixels} pixels, found {} x {}; raise max_pixels to decode it",
        size.width, size.height
    )]
    TooLarge {
        /// The format.
        format: Format,
        /// The size that the header declares.
        size: Size,
        /// The limit.
        max_pixels: u64,
    },
    /// The bytes are damaged, end early, or use a part of the format that is not supported.
    #[error("{format} image: {reason}")]
    Damaged {
        /// The format.
        format: Format,
        /// The value that was expected, and the one that was found.
        reason: String,
    },
}

/// Reads an image's size from its headers; no pixels are decoded.
pub fn size(data: &[u8]) -> Result<Size, Error> {
    size_of(Format::known(data)?, data)
}

/// The same of the image as its Exif tag turns it.
pub fn oriented_size(data: &[u8]) -> Result<Size, Error> {
    size(data).map(|size| orientation::turned_size(size, orientation::of(data)))
}

/// Decodes an image to RGB.
///
/// Nothing is decoded if the headers declare more than `max_pixels`; [`MAX_PIXELS`] is Pillow's limit.
pub fn decode(data: &[u8], max_pixels: u64) -> Result<Image, Error> {
    decode_with(data, max_pixels, Alpha::Drop)
}

/// Decodes an image to RGB, with a choice of what becomes of transparent pixels.
pub fn decode_with(data: &[u8], max_pixels: u64, alpha: Alpha) -> Result<Image, Error> {
    let format = Format::known(data)?;
    let size = size_of(format, data)?;
    if u64::from(size.width) * u64::from(size.height) > max_pixels {
        return Err(Error::TooLarge { format, size, max_pixels });
    }
    let pixels = match format {
        Format::Jpeg => jpeg::decode(data),
        Format::Png => png::decode(data, alpha),
        Format::WebP => webp::decode(data, alpha),
        Format::Gif => gif::decode(data, alpha),
        Format::Bmp => bmp::decode(data, alpha),
    }?;
    Ok(Image { size, pixels })
}

fn size_of(format: Format, data: &[u8]) -> Result<Size, Error> {
    match format {
        Format::Jpeg => jpeg::size(data),
        Format::Png => png::size(data),
        Format::WebP => webp::size(data),
        Format::Gif => gif::size(data),
        Format::Bmp => bmp::size(data),
    }
}

impl Format {
    /// The format of a file that begins with these bytes.
    pub fn of(data: &[u8]) -> Option<Self> {
        match data {
            [0xFF, 0xD8, 0xFF, ..] => Some(Self::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Some(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            _ if bmp::is_one(data) => Some(Self::Bmp),
            _ => None,
        }
    }

    /// The same, where another one is an error.
    fn known(data: &[u8]) -> Result<Self, Error> {
        Self::of(data).ok_or_else(|| Error::UnknownFormat {
            found: match kind(data) {
                Some(name) => format!("{name}; convert it to one of these"),
                None if data.is_empty() => "no bytes".to_owned(),
                None => format!("bytes that begin with {:02x?}", &data[..data.len().min(12)]),
            },
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Size {
    fn new(format: Format, width: u32, height: u32) -> Result<Self, Error> {
        if width == 0 || height == 0 {
            let reason = format!("expected at least one pixel, found {width} x {height}");
            return Err(Error::Damaged { format, reason });
        }
        Ok(Self { width, height })
    }

    fn pixels(self) -> usize {
        self.width as usize * self.height as usize
    }
}

/// `N` bytes from `position` on, if there are as many.
fn bytes_from<const N: usize>(data: &[u8], position: usize) -> Option<[u8; N]> {
    data.get(position..)?.first_chunk().copied()
}
