//! GIF: the first frame on its canvas. Around the frame, Pillow paints the transparent colour, or else colour 0.

use gif::{ColorOutput, DecodeOptions, Decoder, DecodingError, MemoryLimit};

use crate::{Alpha, Error, Format, Size};

pub(crate) fn size(data: &[u8]) -> Result<Size, Error> {
    canvas(&mut open(data)?)
}

pub(crate) fn decode(data: &[u8], alpha: Alpha) -> Result<Vec<u8>, Error> {
    let mut decoder = open(data)?;
    let size = canvas(&mut decoder)?;
    let mut colors = table(decoder.palette().map_err(|error| damaged(&error))?);
    let Some(frame) = decoder.current_frame_info() else { return Err(no_frame()) };
    let [left, top, width] = [frame.left, frame.top, frame.width].map(usize::from);
    if let Some(index) = frame.transparent {
        let color = &mut colors[usize::from(index)];
        *color = alpha.apply(*color, 0);
    }
    let around = colors[usize::from(frame.transparent.unwrap_or(0))];
    let mut indices = vec![0; decoder.buffer_size()];
    decoder.read_into_buffer(&mut indices).map_err(|error| damaged(&error))?;
    let mut pixels = around.repeat(size.pixels());
    for (y, line) in indices.chunks_exact(width.max(1)).enumerate() {
        let start = 3 * ((top + y) * size.width as usize + left);
        for (pixel, &index) in pixels[start..start + 3 * width].chunks_exact_mut(3).zip(line) {
            pixel.copy_from_slice(&colors[usize::from(index)]);
        }
    }
    Ok(pixels)
}

fn open(data: &[u8]) -> Result<Decoder<&[u8]>, Error> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // The pixels are limited before.
    options.set_memory_limit(MemoryLimit::Unlimited);
    options.read_info(data).map_err(|error| damaged(&error))
}

/// The size of the screen, and of the first frame where that goes beyond it.
fn canvas(decoder: &mut Decoder<&[u8]>) -> Result<Size, Error> {
    let [screen_width, screen_height] = [decoder.width(), decoder.height()].map(u32::from);
    let frame = decoder.next_frame_info().map_err(|error| damaged(&error))?.ok_or_else(no_frame)?;
    let width = screen_width.max(u32::from(frame.left) + u32::from(frame.width));
    let height = screen_height.max(u32::from(frame.top) + u32::from(frame.height));
    Size::new(Format::Gif, width, height)
}

/// The palette's colours; black for the indices that it has no colour for. A palette that is a ramp of greys, however
/// short, makes Pillow take the indices for greys.
fn table(palette: &[u8]) -> [[u8; 3]; 256] {
    let mut colors = std::array::from_fn(|i| [i as u8; 3]);
    if palette.chunks_exact(3).zip(&colors).any(|(entry, grey)| entry != grey) {
        colors = [[0; 3]; 256];
        for (color, entry) in colors.iter_mut().zip(palette.chunks_exact(3)) {
            color.copy_from_slice(entry);
        }
    }
    colors
}

fn no_frame() -> Error {
    Error::Damaged { format: Format::Gif, reason: "expected a frame, found none".to_owned() }
}

fn damaged(error: &DecodingError) -> Error {
    let reason = match error {
        DecodingError::UnexpectedEof | DecodingError::Io(_) => {
            "expected more bytes, found the end of the data".to_owned()
        }
        error => error.to_string(),
    };
    Error::Damaged { format: Format::Gif, reason }
}
