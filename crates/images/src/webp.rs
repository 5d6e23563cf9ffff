//! WebP, lossy and lossless, by libwebp; the first frame of an animation.

use std::mem::MaybeUninit;
use std::ptr::{NonNull, null, null_mut};
use std::slice;

use libwebp_sys::{
    VP8StatusCode, WebPAnimDecoder, WebPAnimDecoderDelete, WebPAnimDecoderGetInfo, WebPAnimDecoderGetNext,
    WebPAnimDecoderNew, WebPAnimInfo, WebPBitstreamFeatures, WebPData, WebPGetFeatures,
};

use crate::{Alpha, Error, Format, Size, bytes_from};

pub(crate) fn size(data: &[u8]) -> Result<Size, Error> {
    let features = features(data)?;
    Size::new(Format::WebP, features.width.unsigned_abs(), features.height.unsigned_abs())
}

pub(crate) fn decode(data: &[u8], alpha: Alpha) -> Result<Vec<u8>, Error> {
    let alpha = if features(data)?.has_alpha == 0 { Alpha::Drop } else { alpha };
    let decoder = FrameDecoder::new(data).ok_or_else(|| damaged(data, "chunks"))?;
    let canvas = decoder.first_frame().ok_or_else(|| damaged(data, "pixels"))?;
    let mut pixels = vec![0; canvas.len() / 4 * 3];
    for (pixel, &[red, green, blue, opacity]) in pixels.as_chunks_mut().0.iter_mut().zip(canvas.as_chunks().0)
    {
        *pixel = alpha.apply([red, green, blue], opacity);
    }
    Ok(pixels)
}

fn features(data: &[u8]) -> Result<WebPBitstreamFeatures, Error> {
    let mut features = MaybeUninit::uninit();
    // SAFETY: `data` has the length that is stated, and libwebp fills `features` in or reports an error.
    unsafe {
        match WebPGetFeatures(data.as_ptr(), data.len(), features.as_mut_ptr()) {
            VP8StatusCode::VP8_STATUS_OK => Ok(features.assume_init()),
            _ => Err(damaged(data, "headers")),
        }
    }
}

/// libwebp's decoder of frames, which Pillow uses for still images too.
struct FrameDecoder<'a> {
    decoder: NonNull<WebPAnimDecoder>,
    _data: &'a [u8],
}

impl<'a> FrameDecoder<'a> {
    fn new(data: &'a [u8]) -> Option<Self> {
        let source = WebPData { bytes: data.as_ptr(), size: data.len() };
        // SAFETY: `data` has the length that is stated and outlives the decoder, which refers to it.
        let decoder = unsafe { WebPAnimDecoderNew(&raw const source, null()) };
        Some(Self { decoder: NonNull::new(decoder)?, _data: data })
    }

    /// The canvas with the first frame: 4 bytes for each pixel.
    fn first_frame(&self) -> Option<&[u8]> {
        let mut info = MaybeUninit::<WebPAnimInfo>::uninit();
        let mut canvas = null_mut();
        let mut timestamp = 0;
        let decoder = self.decoder.as_ptr();
        // SAFETY: the decoder is not deleted before `self` ends, and no other reference to it exists. Both functions
        // fill their arguments in if they do not return 0. The canvas belongs to the decoder.
        unsafe {
            if WebPAnimDecoderGetInfo(decoder, info.as_mut_ptr()) == 0
                || WebPAnimDecoderGetNext(decoder, &raw mut canvas, &raw mut timestamp) == 0
            {
                return None;
            }
            let info = info.assume_init();
            Some(slice::from_raw_parts(canvas, 4 * info.canvas_width as usize * info.canvas_height as usize))
        }
    }
}

impl Drop for FrameDecoder<'_> {
    fn drop(&mut self) {
        // SAFETY: the decoder was created by `new`, and nothing else deletes it.
        unsafe { WebPAnimDecoderDelete(self.decoder.as_ptr()) }
    }
}

/// libwebp does not report where it failed.
fn damaged(data: &[u8], part: &str) -> Error {
    let declared = bytes_from(data, 4).map_or(0, u32::from_le_bytes) as usize + 8;
    let reason = if data.len() < declared {
        format!("expected {declared} bytes, found {}", data.len())
    } else {
        format!("expected the {part} of a VP8 or VP8L image, found damaged ones")
    };
    Error::Damaged { format: Format::WebP, reason }
}
