//! Tests that need no reference: errors, limits, and bytes at random. Pixels are compared with Pillow in
//! tests/python/images.

use gristmill_images::{Error, Format, MAX_PIXELS, Size, decode, size};
use proptest::prelude::*;

/// 2 x 1 pixels, red and green.
fn png() -> Vec<u8> {
    let mut data = Vec::new();
    let mut encoder = png::Encoder::new(&mut data, 2, 1);
    encoder.set_color(png::ColorType::Rgb);
    encoder
        .write_header()
        .expect("a valid image")
        .write_image_data(&[255, 0, 0, 0, 255, 0])
        .expect("a valid image");
    data
}

/// A grey frame of 2 x 1 pixels, and a canvas of the same size.
fn gif() -> Vec<u8> {
    let mut data = Vec::new();
    let mut encoder = gif::Encoder::new(&mut data, 2, 1, &[0, 0, 0, 7, 8, 9]).expect("a valid image");
    encoder.write_frame(&gif::Frame::from_indexed_pixels(2, 1, vec![1, 0], None)).expect("a valid image");
    drop(encoder);
    data
}

#[test]
fn pixels_are_red_green_blue_row_by_row() {
    let image = decode(&png(), MAX_PIXELS).unwrap();
    assert_eq!(image.size, Size { width: 2, height: 1 });
    assert_eq!(image.pixels, [255, 0, 0, 0, 255, 0]);
    assert_eq!(decode(&gif(), MAX_PIXELS).unwrap().pixels, [7, 8, 9, 0, 0, 0]);
}

#[test]
fn one_pixel_too_many_is_refused() {
    let size = Size { width: 2, height: 1 };
    assert_eq!(decode(&png(), 1), Err(Error::TooLarge { format: Format::Png, size, max_pixels: 1 }));
    assert_eq!(decode(&gif(), 1), Err(Error::TooLarge { format: Format::Gif, size, max_pixels: 1 }));
}

#[test]
fn truncated_at_any_byte_of_the_headers_is_an_error() {
    for data in [&png()[..33], &gif()[..29]] {
        for length in 0..data.len() {
            assert!(decode(&data[..length], MAX_PIXELS).is_err(), "{length} bytes");
        }
    }
}

const BEGINNINGS: [&[u8]; 7] = [
    b"\xff\xd8\xff",
    b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x01\x00\x01\x01\x01\x11\x00\xff\xda",
    b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0",
    b"RIFF\xff\x00\x00\x00WEBPVP8 ",
    b"RIFF\xff\x00\x00\x00WEBPVP8L",
    b"RIFF\xff\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00",
    b"GIF89a\x02\x00\x02\x00",
];

proptest! {
    #[test]
    fn bytes_at_random_are_an_image_or_an_error(
        beginning in prop::sample::select(&BEGINNINGS[..]),
        rest in prop::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(1), Just(0xFF)], 0..200),
    ) {
        let data = [beginning, &rest].concat();
        if let Ok(image) = decode(&data, 1 << 20) {
            prop_assert_eq!(size(&data), Ok(image.size));
            prop_assert_eq!(image.pixels.len(), 3 * image.size.width as usize * image.size.height as usize);
        }
    }
}
