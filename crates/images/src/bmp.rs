//! BMP: palettes of 1, 4 and 8 bits, and colours of 16, 24 and 32 bits, as Pillow reads them. Runs are not read.

use crate::{Alpha, Error, Format, Size, bytes_from};

/// Bytes of the header of the file, in front of that of the image.
const FILE_HEADER: usize = 14;
/// The sizes that the header of an image has.
const HEADERS: [u32; 7] = [12, 40, 52, 56, 64, 108, 124];
/// The compressions that are read: none, and colours by masks.
const RAW: u32 = 0;
const BIT_FIELDS: u32 = 3;
const COMPRESSIONS: [(u32, &str); 4] =
    [(1, "runs of 8 bits"), (2, "runs of 4 bits"), (4, "a JPEG"), (5, "a PNG")];

/// The header of an image.
struct Header {
    size: Size,
    is_top_down: bool,
    bits: u32,
    compression: u32,
    /// Bytes of the header.
    length: u32,
    /// The colours of the palette that the header declares.
    colors: u32,
}

/// Whether a file begins as one.
pub(crate) fn is_one(data: &[u8]) -> bool {
    let starts = data.starts_with(b"BM") && bytes_from(data, 6) == Some([0; 4]);
    starts
        && bytes_from(data, FILE_HEADER).is_some_and(|length| HEADERS.contains(&u32::from_le_bytes(length)))
}

pub(crate) fn size(data: &[u8]) -> Result<Size, Error> {
    header(data).map(|header| header.size)
}

pub(crate) fn decode(data: &[u8], alpha: Alpha) -> Result<Vec<u8>, Error> {
    let header = header(data)?;
    let Size { width, height } = header.size;
    let bits = header.bits as usize;
    let stride = (width as usize * bits).div_ceil(32) * 4;
    let start = long(data, 10)? as usize;
    let rows = data.get(start..).unwrap_or_default();
    let expected = stride * height as usize;
    if rows.len() < expected {
        return Err(damaged(format!("expected {expected} bytes of pixels, found {}", rows.len())));
    }
    let colors = if bits <= 8 { palette(data, &header)? } else { Vec::new() };
    let masks = if bits > 8 { masks(data, &header)? } else { [0; 4] };
    let mut pixels = Vec::with_capacity(3 * header.size.pixels());
    for row in 0..height as usize {
        let row = if header.is_top_down { row } else { height as usize - 1 - row };
        let row = &rows[row * stride..][..stride];
        for column in 0..width as usize {
            let color = if bits <= 8 {
                let index = row[column * bits / 8] >> (8 - bits - column * bits % 8) & (0xFF >> (8 - bits));
                let found = colors.get(usize::from(index)).copied();
                found.ok_or_else(|| {
                    damaged(format!(
                        "expected a palette of more than {index} colours, found {}",
                        colors.len()
                    ))
                })?
            } else {
                let bytes = &row[column * bits / 8..][..bits / 8];
                let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
                let [red, green, blue, transparency] = masks.map(|mask| component(value, mask));
                alpha.apply([red, green, blue], if masks[3] == 0 { 255 } else { transparency })
            };
            pixels.extend_from_slice(&color);
        }
    }
    Ok(pixels)
}

/// The value under a mask, stretched to 8 bits as Pillow does.
fn component(value: u32, mask: u32) -> u8 {
    let most = mask.checked_shr(mask.trailing_zeros()).unwrap_or(0);
    let found = (value & mask).checked_shr(mask.trailing_zeros()).unwrap_or(0);
    (found * 255).checked_div(most).unwrap_or(0) as u8
}

fn header(data: &[u8]) -> Result<Header, Error> {
    let length = long(data, FILE_HEADER)?;
    let at = FILE_HEADER + 4;
    let (size, height, rest) = if length == 12 {
        let size = [short(data, at)?, short(data, at + 2)?].map(u32::from);
        (size, i64::from(size[1]), at + 6)
    } else {
        let height = i64::from(long(data, at + 4)?.cast_signed());
        ([long(data, at)?, height.unsigned_abs() as u32], height, at + 10)
    };
    let bits = u32::from(short(data, rest)?);
    let (compression, colors) =
        if length == 12 { (RAW, 0) } else { (long(data, rest + 2)?, long(data, rest + 18)?) };
    let [width, _] = size;
    if !HEADERS.contains(&length) || i32::try_from(width).is_err() {
        return Err(damaged(format!("expected a header, found one of {length} bytes for {width} columns")));
    }
    let is_read = match compression {
        RAW => [1, 4, 8, 16, 24, 32].contains(&bits),
        BIT_FIELDS => [16, 24, 32].contains(&bits),
        _ => false,
    };
    if !is_read {
        let known = COMPRESSIONS.into_iter().find(|(number, _)| *number == compression);
        let found = known.map_or_else(|| format!("compression {compression}"), |(_, name)| name.to_owned());
        return Err(damaged(format!("expected pixels without compression, found {found} of {bits} bits")));
    }
    let size = Size::new(Format::Bmp, width, size[1])?;
    Ok(Header { size, is_top_down: height < 0, bits, compression, length, colors })
}

/// The colours of the palette behind the header.
fn palette(data: &[u8], header: &Header) -> Result<Vec<[u8; 3]>, Error> {
    let each = if header.length == 12 { 3 } else { 4 };
    let count = if header.colors == 0 { 1 << header.bits } else { header.colors.min(256) };
    let start = FILE_HEADER + header.length as usize;
    (0..count as usize)
        .map(|index| {
            let found = bytes_from::<3>(data, start + index * each);
            found.map(|[blue, green, red]| [red, green, blue]).ok_or_else(cut)
        })
        .collect()
}

/// The masks of red, green, blue and alpha. Pillow knows those of whole bytes, and two of 16 bits.
fn masks(data: &[u8], header: &Header) -> Result<[u32; 4], Error> {
    const FIVE: [u32; 4] = [0x7C00, 0x3E0, 0x1F, 0];
    const BYTES: [u32; 4] = [0xFF_0000, 0xFF00, 0xFF, 0];
    if header.compression == RAW {
        return Ok(if header.bits == 16 { FIVE } else { BYTES });
    }
    let mut masks = [0; 4];
    // A header of 40 bytes is followed by three, and longer ones hold them.
    let count = if header.length >= 56 { 4 } else { 3 };
    for (number, mask) in masks.iter_mut().take(count).enumerate() {
        *mask = long(data, FILE_HEADER + 40 + 4 * number)?;
    }
    let known: &[[u32; 4]] = match header.bits {
        16 => &[FIVE, [0xF800, 0x7E0, 0x1F, 0]],
        24 => &[BYTES],
        _ => &[
            BYTES,
            [0xFF00_0000, 0xFF_0000, 0xFF00, 0],
            [0xFF00_0000, 0xFF00, 0xFF, 0],
            [0xFF00_0000, 0xFF_0000, 0xFF00, 0xFF],
            [0xFF, 0xFF00, 0xFF_0000, 0xFF00_0000],
            [0xFF_0000, 0xFF00, 0xFF, 0xFF00_0000],
            [0xFF00_0000, 0xFF00, 0xFF, 0xFF_0000],
            [0; 4],
        ],
    };
    if !known.contains(&masks) {
        return Err(damaged(format!("expected masks of colours that are known, found {masks:x?}")));
    }
    Ok(if masks == [0; 4] { [0xFF_0000, 0xFF00, 0xFF, 0xFF00_0000] } else { masks })
}

fn short(data: &[u8], at: usize) -> Result<u16, Error> {
    bytes_from(data, at).map(u16::from_le_bytes).ok_or_else(cut)
}

fn long(data: &[u8], at: usize) -> Result<u32, Error> {
    bytes_from(data, at).map(u32::from_le_bytes).ok_or_else(cut)
}

fn cut() -> Error {
    damaged("expected more bytes, found the end of the data".to_owned())
}

fn damaged(reason: String) -> Error {
    Error::Damaged { format: Format::Bmp, reason }
}
