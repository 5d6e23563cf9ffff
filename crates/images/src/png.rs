//! PNG: Pillow keeps the colour of alpha and transparent colours, and the high byte of 16 bits a sample, but in 16-bit
//! greyscale values above 255 become 255.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, Limits, Transformations};

use crate::{Alpha, Error, Format, Size, bytes_from};

/// The bytes that chunks beside the pixels may take.
const CHUNKS: usize = 64 << 20;

pub(crate) fn size(data: &[u8]) -> Result<Size, Error> {
    match bytes_from::<16>(data, 8) {
        Some([_, _, _, _, b'I', b'H', b'D', b'R', w0, w1, w2, w3, h0, h1, h2, h3]) => {
            Size::new(Format::Png, u32::from_be_bytes([w0, w1, w2, w3]), u32::from_be_bytes([h0, h1, h2, h3]))
        }
        Some(_) => Err(damaged("byte 12: expected the chunk IHDR, found another")),
        None => Err(damaged(&format!(
            "expected the chunk IHDR, found the end of the data at byte {}",
            data.len()
        ))),
    }
}

pub(crate) fn decode(data: &[u8], alpha: Alpha) -> Result<Vec<u8>, Error> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(data), Limits { bytes: CHUNKS });
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(|error| damaged(&error.to_string()))?;
    let bytes = reader.output_buffer_size().ok_or_else(|| damaged("its pixels do not fit into memory"))?;
    let mut samples = vec![0; bytes];
    let output = reader.next_frame(&mut samples).map_err(|error| damaged(&error.to_string()))?;
    let width = output.width as usize;
    let lines = samples.chunks_exact(output.line_size);
    let (palette, transparency) = (reader.info().palette.as_deref(), reader.info().trns.as_deref());
    let mut pixels = Vec::with_capacity(3 * width * output.height as usize);
    match (output.color_type, output.bit_depth) {
        (ColorType::Rgb, BitDepth::Eight) => pixels = samples,
        (ColorType::Grayscale, BitDepth::Sixteen) => pixels.extend(
            samples
                .chunks_exact(2)
                .flat_map(|grey| [u16::from_be_bytes([grey[0], grey[1]]).min(255) as u8; 3]),
        ),
        (ColorType::Grayscale, depth) => {
            let largest = (1_u16 << depth as u8) - 1;
            let scale = (255 / largest) as u8;
            for line in lines {
                unpack(line, width, depth, |grey| pixels.extend([grey * scale; 3]));
            }
        }
        (ColorType::Indexed, depth) => {
            let mut colors = table(palette.unwrap_or_default());
            for (color, &opacity) in colors.iter_mut().zip(transparency.unwrap_or_default()) {
                *color = alpha.apply(*color, opacity);
            }
            for line in lines {
                unpack(line, width, depth, |index| pixels.extend(colors[usize::from(index)]));
            }
            return Ok(pixels);
        }
        (color, depth) => {
            let step = depth as usize / 8;
            let kept = if color == ColorType::GrayscaleAlpha { [0, 0, 0] } else { [0, step, 2 * step] };
            let size = color.samples() * step;
            for sample in samples.chunks_exact(size) {
                let opacity = if color == ColorType::Rgb { 255 } else { sample[size - step] };
                pixels.extend(alpha.apply(kept.map(|offset| sample[offset]), opacity));
            }
        }
    }
    if let (Some(transparency), Alpha::White) = (transparency, alpha) {
        clear(&mut pixels, transparency);
    }
    Ok(pixels)
}

/// Makes the pixels of the transparent colour white. As Pillow does, compares the low byte of its values with what the
/// pixels have become, whatever the bits of a sample.
fn clear(pixels: &mut [u8], transparency: &[u8]) {
    let step = transparency.len() / if transparency.len() < 3 { 1 } else { 3 };
    let low: Vec<u8> = transparency.chunks_exact(step.max(1)).map(|value| value[value.len() - 1]).collect();
    let transparent = match *low {
        [grey] => [grey; 3],
        [red, green, blue, ..] => [red, green, blue],
        _ => return,
    };
    for pixel in pixels.as_chunks_mut::<3>().0.iter_mut().filter(|pixel| **pixel == transparent) {
        *pixel = [255; 3];
    }
}

/// Calls `each` with every sample of a line of at most 8 bits a sample.
fn unpack(line: &[u8], width: usize, depth: BitDepth, each: impl FnMut(u8)) {
    let bits = depth as u8;
    let mask = 0xFF >> (8 - bits);
    let in_byte = |byte: u8| (1..=8 / bits).map(move |i| byte.rotate_left(u32::from(i * bits)) & mask);
    line.iter().flat_map(|&byte| in_byte(byte)).take(width).for_each(each);
}

/// The palette's colours; black for the indices that it has no colour for.
fn table(palette: &[u8]) -> [[u8; 3]; 256] {
    let mut colors = [[0; 3]; 256];
    for (color, entry) in colors.iter_mut().zip(palette.chunks_exact(3)) {
        color.copy_from_slice(entry);
    }
    colors
}

fn damaged(reason: &str) -> Error {
    Error::Damaged { format: Format::Png, reason: reason.to_owned() }
}
