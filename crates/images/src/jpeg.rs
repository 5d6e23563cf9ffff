//! JPEG, by libjpeg-turbo with its defaults, which are those of Pillow: the accurate integer DCT (`JDCT_ISLOW`) and
//! smooth upsampling of colours.

use std::ffi::{CStr, c_char, c_int};

use mozjpeg_sys as _;

use crate::{Error, Format, Size, bytes_from};

/// The samples of an image as the frame header declares them.
#[derive(Debug, Clone, Copy)]
struct Frame {
    size: Size,
    components: usize,
}

pub(crate) fn size(data: &[u8]) -> Result<Size, Error> {
    Ok(read_frame(data)?.size)
}

pub(crate) fn decode(data: &[u8]) -> Result<Vec<u8>, Error> {
    decode_by(data, false)
}

/// Decodes with the vector code of `jpeg_kernels`, or with the C code alone.
fn decode_by(data: &[u8], plain: bool) -> Result<Vec<u8>, Error> {
    let Frame { size, components } = read_frame(data)?;
    let mut samples = vec![0; size.pixels() * components];
    let mut request = Request {
        data: data.as_ptr(),
        size: data.len(),
        pixels: samples.as_mut_ptr(),
        width: size.width,
        height: size.height,
        components: components as u32,
        rows: 0,
        position: 0,
        message: [0; MESSAGE],
        plain: plain.into(),
    };
    // SAFETY: `data` and `samples` outlive the call and have the lengths that the request states; the C code keeps no
    // pointer to either, writes whole rows of the declared shape only, and has no state that threads share.
    let outcome = unsafe { gristmill_jpeg_decode(&raw mut request) };
    let Request { rows, position, message, .. } = request;
    match outcome {
        DECODED => Ok(to_rgb(samples, components)),
        TRUNCATED => {
            Err(damaged(format!("expected {} rows of pixels, found {rows} before its end", size.height)))
        }
        TOO_MANY_SCANS => Err(damaged("expected at most 500 scans, found more".to_owned())),
        OTHER_SHAPE => Err(damaged("expected one frame header, found several that differ".to_owned())),
        _ => {
            let message = message.map(|c| c as u8);
            let reason = CStr::from_bytes_until_nul(&message).map(CStr::to_string_lossy).unwrap_or_default();
            Err(damaged(format!("byte {position}, row {rows} of {}: {reason}", size.height)))
        }
    }
}

/// Reads the markers up to the first scan.
fn read_frame(data: &[u8]) -> Result<Frame, Error> {
    let mut frame = None;
    let mut position = 2;
    loop {
        let marker = next_marker(data, &mut position).ok_or_else(|| ends_early(data))?;
        match marker {
            // Markers without a length.
            0xC8 | 0xD0..=0xD9 | 0xF0..=0xFD => continue,
            0xC0.. => {}
            _ => return Err(damaged(format!("byte {position}: expected a marker, found 0xFF{marker:02X}"))),
        }
        let length = bytes_from(data, position).map(u16::from_be_bytes).ok_or_else(|| ends_early(data))?;
        if length < 2 {
            return Err(damaged(format!(
                "byte {position}: expected the length of a segment, found {length}"
            )));
        }
        if matches!(marker, 0xC0..=0xCF if !matches!(marker, 0xC4 | 0xCC)) {
            frame = Some(parse_frame(data, position)?);
        } else if marker == 0xDA {
            return frame.ok_or_else(|| {
                damaged("expected a frame header before the first scan, found none".to_owned())
            });
        }
        position += usize::from(length);
    }
}

/// The next marker's second byte; bytes between markers are skipped.
fn next_marker(data: &[u8], position: &mut usize) -> Option<u8> {
    loop {
        while *data.get(*position)? != 0xFF {
            *position += 1;
        }
        while *data.get(*position)? == 0xFF {
            *position += 1;
        }
        let marker = data[*position];
        *position += 1;
        if marker != 0 {
            return Some(marker);
        }
    }
}

fn parse_frame(data: &[u8], position: usize) -> Result<Frame, Error> {
    let [_, _, bits, h0, h1, w0, w1, components] =
        bytes_from(data, position).ok_or_else(|| ends_early(data))?;
    if bits != 8 {
        return Err(damaged(format!("expected 8 bits a sample, found {bits}")));
    }
    if !matches!(components, 1 | 3 | 4) {
        return Err(damaged(format!("expected 1, 3 or 4 components, found {components}")));
    }
    let size =
        Size::new(Format::Jpeg, u16::from_be_bytes([w0, w1]).into(), u16::from_be_bytes([h0, h1]).into())?;
    Ok(Frame { size, components: components.into() })
}

fn to_rgb(mut samples: Vec<u8>, components: usize) -> Vec<u8> {
    match components {
        1 => {
            let mut pixels = vec![0; 3 * samples.len()];
            pixels.chunks_exact_mut(3).zip(samples).for_each(|(pixel, grey)| pixel.fill(grey));
            pixels
        }
        4 => {
            let pixels = samples.len() / 4;
            for i in 0..pixels {
                let [c, m, y, k] = [0, 1, 2, 3].map(|j| samples[4 * i + j]);
                for (j, ink) in [c, m, y].into_iter().enumerate() {
                    samples[3 * i + j] = paint(ink, k);
                }
            }
            samples.truncate(3 * pixels);
            samples
        }
        _ => samples,
    }
}

/// A colour of an inverted CMYK file, as Adobe's programs write it and Pillow takes every CMYK file to be.
fn paint(ink: u8, black: u8) -> u8 {
    let product = u32::from(255 - ink) * u32::from(black) + 128;
    black.saturating_sub((((product >> 8) + product) >> 8) as u8)
}

fn ends_early(data: &[u8]) -> Error {
    damaged(format!("expected a scan, found the end of the data at byte {}", data.len()))
}

fn damaged(reason: String) -> Error {
    Error::Damaged { format: Format::Jpeg, reason }
}

/// `JMSG_LENGTH_MAX` of libjpeg.
const MESSAGE: usize = 200;
const DECODED: c_int = 0;
const TRUNCATED: c_int = 2;
const TOO_MANY_SCANS: c_int = 3;
const OTHER_SHAPE: c_int = 4;

/// `struct request` of jpeg.c.
#[repr(C)]
struct Request {
    data: *const u8,
    size: usize,
    pixels: *mut u8,
    width: u32,
    height: u32,
    components: u32,
    rows: u32,
    position: usize,
    message: [c_char; MESSAGE],
    plain: u32,
}

/// Whether JPEG is decoded by vector code on this processor. On x86-64 it needs AVX2.
pub fn has_vector_code() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    return gristmill_jpeg_has_vector_code() != 0;
}

unsafe extern "C" {
    fn gristmill_jpeg_decode(request: *mut Request) -> c_int;
    #[cfg(not(target_arch = "x86_64"))]
    safe fn gristmill_jpeg_has_vector_code() -> c_int;
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sizes in pixels, sampling factors of luma, kinds of coefficients with their factor, and coded coefficients.
    fn jpeg(size: [u16; 2], sampling: u8, symbols: &[u8], factor: u8, coded: &[u8]) -> Vec<u8> {
        let [width, height] = size.map(u16::to_be_bytes);
        let mut data = vec![0xFF, 0xD8];
        let mut segment = |marker: u8, content: &[&[u8]]| {
            let content = content.concat();
            data.extend([0xFF, marker]);
            data.extend((content.len() as u16 + 2).to_be_bytes());
            data.extend(content);
        };
        segment(0xDB, &[&[0], &[factor; 64]]);
        segment(0xC0, &[&[8], &height, &width, &[3, 1, sampling, 0, 2, 0x11, 0, 3, 0x11, 0]]);
        // Each symbol has a code of 8 bits, so that nearly all bytes are coded coefficients.
        let lengths = [0, 0, 0, 0, 0, 0, 0, symbols.len() as u8, 0, 0, 0, 0, 0, 0, 0, 0];
        let direct: Vec<u8> = symbols.iter().map(|symbol| symbol & 15).collect();
        segment(0xC4, &[&[0], &lengths, &direct]);
        segment(0xC4, &[&[0x10], &lengths, symbols]);
        segment(0xDA, &[&[3, 1, 0, 2, 0, 3, 0, 0, 63, 0]]);
        data.extend(
            coded.iter().flat_map(|byte| [*byte, 0].into_iter().take(if *byte == 0xFF { 2 } else { 1 })),
        );
        data.extend([0xFF, 0xD9]);
        data
    }

    proptest! {
        #[test]
        fn vector_code_gives_the_pixels_of_the_code_in_c(
            width in 1_u16..70,
            height in 1_u16..40,
            sampling in prop::sample::select(&[0x11, 0x21, 0x22, 0x12][..]),
            runs in 1_u8..16,
            bits in 1_u8..5,
            factor in 1_u8..8,
            coded in prop::collection::vec(any::<u8>(), 2_000..8_000),
        ) {
            // Runs of zeros, each with a coefficient of up to so many bits behind it; and the end of a block.
            let symbols: Vec<u8> = (0..255).map(|code| match code % 17 {
                16 => 0,
                run => (run % runs) << 4 | (code % bits + 1),
            }).collect();
            let data = jpeg([width, height], sampling, &symbols, factor, &coded);
            let plain = decode_by(&data, true).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(decode_by(&data, false).unwrap(), plain);
        }
    }
}
