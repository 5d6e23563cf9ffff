//! The orientation that an Exif tag of a JPEG, or of a PNG before its pixels, asks for; those behind pixels are not read.

use crate::{Format, Image, Size, bytes_from};

/// The number of the tag.
const TAG: u16 = 0x0112;

/// The orientation of an image, 1 to 8 as Exif numbers them: 1 where none is asked for.
pub(crate) fn of(data: &[u8]) -> u8 {
    let exif = match Format::of(data) {
        Some(Format::Jpeg) => of_jpeg(data),
        Some(Format::Png) => of_png(data),
        _ => None,
    };
    exif.and_then(in_tiff).unwrap_or(1)
}

/// The size of an image that is turned.
pub(crate) fn turned_size(Size { width, height }: Size, orientation: u8) -> Size {
    if orientation >= 5 { Size { width: height, height: width } } else { Size { width, height } }
}

/// The image that is turned, as by Pillow's `ImageOps.exif_transpose`.
pub(crate) fn turned(image: Image, orientation: u8) -> Image {
    if !(2..=8).contains(&orientation) {
        return image;
    }
    let Size { width, height } = image.size;
    let [width, height] = [width, height].map(|side| side as usize);
    let size = turned_size(image.size, orientation);
    let mut pixels = Vec::with_capacity(image.pixels.len());
    for y in 0..size.height as usize {
        for x in 0..size.width as usize {
            let (row, column) = match orientation {
                2 => (y, width - 1 - x),
                3 => (height - 1 - y, width - 1 - x),
                4 => (height - 1 - y, x),
                5 => (x, y),
                6 => (height - 1 - x, y),
                7 => (height - 1 - x, width - 1 - y),
                _ => (x, width - 1 - y),
            };
            let at = 3 * (row * width + column);
            pixels.extend_from_slice(&image.pixels[at..at + 3]);
        }
    }
    Image { size, pixels }
}

/// The TIFF of the first Exif segment, before the scan.
fn of_jpeg(data: &[u8]) -> Option<&[u8]> {
    let mut at = 2;
    loop {
        let [first, marker] = bytes_from(data, at)?;
        if first != 0xFF {
            return None;
        }
        match marker {
            0xFF => at += 1,
            0xDA | 0xD9 => return None,
            _ => {
                let length = usize::from(u16::from_be_bytes(bytes_from(data, at + 2)?));
                let segment = data.get(at + 4..at + 2 + length);
                if let (0xE1, Some([b'E', b'x', b'i', b'f', 0, 0, tiff @ ..])) = (marker, segment) {
                    return Some(tiff);
                }
                at += 2 + length.max(2);
            }
        }
    }
}

/// The TIFF of a chunk `eXIf` before the pixels.
fn of_png(data: &[u8]) -> Option<&[u8]> {
    let mut at = 8;
    loop {
        let length = u32::from_be_bytes(bytes_from(data, at)?) as usize;
        match &bytes_from::<4>(data, at + 4)? {
            b"IDAT" | b"IEND" => return None,
            b"eXIf" => return data.get(at + 8..at.checked_add(8)?.checked_add(length)?),
            _ => at = at.checked_add(length)?.checked_add(12)?,
        }
    }
}

/// The orientation in the first directory of a TIFF.
fn in_tiff(tiff: &[u8]) -> Option<u8> {
    let is_little = match tiff.get(..2)? {
        b"II" => true,
        b"MM" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = bytes_from(tiff, at)?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes = bytes_from(tiff, at)?;
        Some(if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = long(4)? as usize;
    let entries = usize::from(short(directory)?);
    let entry = (0..entries).map(|entry| directory + 2 + 12 * entry).find(|&at| short(at) == Some(TAG))?;
    u8::try_from(short(entry + 8)?).ok().filter(|orientation| (1..=8).contains(orientation))
}
