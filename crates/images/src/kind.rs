//! The kind of a file by its first bytes, of images that [`decode`](crate::decode) does not know, too.

use crate::Format;

/// The first bytes of formats that are not decoded.
const OTHERS: [(&str, &[u8]); 16] = [
    ("TIFF", b"II*\0"),
    ("TIFF", b"MM\0*"),
    ("TIFF", b"II+\0\x08\0"),
    ("TIFF", b"MM\0+\0\x08"),
    ("JPEG 2000", b"\0\0\0\x0cjP  \r\n\x87\n"),
    ("JPEG 2000", b"\xff\x4f\xff\x51"),
    ("JPEG XL", b"\0\0\0\x0cJXL \r\n\x87\n"),
    ("JPEG XL", b"\xff\x0a"),
    ("JPEG XR", b"II\xbc"),
    ("Photoshop", b"8BPS\0"),
    ("OpenEXR", b"\x76\x2f\x31\x01"),
    ("DDS", b"DDS \x7c\0\0\0"),
    ("QOI", b"qoif"),
    ("Radiance", b"#?RADIANCE\n"),
    ("icon", b"\0\0\x01\0\x01\0"),
    ("SVG", b"<svg"),
];

/// The brands of files in the container of MP4 that are images.
const BRANDS: [(&str, &[&[u8]]); 2] = [
    ("AVIF", &[b"avif", b"avis"]),
    ("HEIF", &[b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"]),
];

/// The name of the image format that a file has, if its first 32 bytes show one: `"JPEG"`, `"TIFF"`, `"AVIF"`.
pub fn kind(data: &[u8]) -> Option<&'static str> {
    if let Some(format) = Format::of(data) {
        return Some(format.name());
    }
    match data {
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => {
            let is_of = |brands: &[&[u8]]| brands.iter().any(|known| brand.starts_with(known));
            BRANDS.iter().find(|(_, brands)| is_of(brands)).map(|(name, _)| *name)
        }
        _ => OTHERS.iter().find(|(_, magic)| data.starts_with(magic)).map(|(name, _)| *name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_first_bytes() {
        let bmp = b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x02\0\0\0";
        for (data, expected) in [
            (&b"\xff\xd8\xff\xe0"[..], Some("JPEG")),
            (b"RIFF\x10\0\0\0WEBPVP8 ", Some("WebP")),
            (b"\0\0\0\x20ftypavif\0\0\0\0", Some("AVIF")),
            (b"\0\0\0\x18ftypheic\0\0\0\0", Some("HEIF")),
            (b"\0\0\0\x18ftypisom\0\0\0\0", None),
            (bmp, Some("BMP")),
            (b"BMW is a car, and this is a caption.", None),
            (b"II*\0\x08\0\0\0", Some("TIFF")),
            (b"<svg xmlns=\"http://www.w3.org/2000/svg\">", Some("SVG")),
            (b"RIFF\x10\0\0\0WAVEfmt ", None),
            (b"A caption.", None),
            (b"", None),
        ] {
            assert_eq!(kind(data), expected, "{data:?}");
        }
    }
}
