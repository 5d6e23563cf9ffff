//! zlib's inflate with what pieces of a gzip member need and `flate2` lacks: stops between the blocks of deflate, and a
//! start at one of them.

use std::ffi::{CStr, c_int};

use libz_rs_sys::{
    Z_BLOCK, Z_BUF_ERROR, Z_OK, Z_STREAM_END, crc32, inflate, inflateEnd, inflateGetDictionary,
    inflateInit2_, inflatePrime, inflateReset2, inflateSetDictionary, z_stream, zlibVersion,
};

/// How far back a block may refer.
pub(super) const WINDOW_BYTES: usize = 32 << 10;

/// `windowBits` of a whole gzip member, and of blocks alone.
const GZIP: c_int = 15 + 16;
const BLOCKS: c_int = -15;

/// One inflater, which is started again for each member.
pub(super) struct Inflater {
    /// In a box, because the library's state points back to it.
    stream: Box<z_stream>,
}

// SAFETY: the stream's pointers are to memory that it alone owns, but for input and output, which are set in each call.
unsafe impl Send for Inflater {}

/// The outcome of a call.
pub(super) struct Inflated {
    pub(super) read: usize,
    pub(super) written: usize,
    pub(super) stop: Stop,
}

/// Why a call ended.
pub(super) enum Stop {
    /// Input or output is used up.
    Used,
    /// At the end of a block that is not the last one, with so many bits of the bytes read left.
    Block(u8),
    /// At the end of the last block.
    LastBlock,
    /// At the end of the member, or of the last block of blocks alone.
    End,
    /// The data is invalid, in the library's words.
    Invalid(String),
}

impl Inflater {
    /// For a whole gzip member.
    pub(super) fn new() -> Self {
        let mut stream = Box::<z_stream>::default();
        // SAFETY: the stream is initialized, and stays where it is until `drop`.
        let code =
            unsafe { inflateInit2_(&raw mut *stream, GZIP, zlibVersion(), size_of::<z_stream>() as c_int) };
        assert_eq!(code, Z_OK, "zlib takes these arguments, and memory that is lacking aborts");
        Self { stream }
    }

    /// Starts again, at a gzip member.
    pub(super) fn start_member(&mut self) {
        self.reset(GZIP);
    }

    /// Starts again, at a block whose first `bits` bits are in `byte`, after the bytes of `window`.
    pub(super) fn start_block(&mut self, bits: u8, byte: u8, window: &[u8]) {
        self.reset(BLOCKS);
        if bits > 0 {
            let value = c_int::from(byte) >> (8 - bits);
            // SAFETY: the stream was initialized by `new`.
            let code = unsafe { inflatePrime(&raw mut *self.stream, bits.into(), value) };
            assert_eq!(code, Z_OK, "fewer than 8 bits are accepted");
        }
        // SAFETY: as above, and the window has this length.
        let code =
            unsafe { inflateSetDictionary(&raw mut *self.stream, window.as_ptr(), window.len() as u32) };
        assert_eq!(code, Z_OK, "blocks alone accept any window");
    }

    /// The last bytes that were inflated, as far as a block may refer.
    pub(super) fn window(&self) -> Vec<u8> {
        let mut window = vec![0; WINDOW_BYTES];
        let mut length = 0;
        // SAFETY: the stream was initialized by `new`; a window is not longer than this.
        unsafe { inflateGetDictionary(&raw const *self.stream, window.as_mut_ptr(), &raw mut length) };
        window.truncate(length as usize);
        window
    }

    /// Inflates up to the end of a block, of the input or of the output.
    pub(super) fn inflate(&mut self, input: &[u8], out: &mut [u8]) -> Inflated {
        let most = u32::MAX as usize;
        let (length, room) = (input.len().min(most), out.len().min(most));
        let stream = &mut *self.stream;
        (stream.next_in, stream.avail_in) = (input.as_ptr(), length as u32);
        (stream.next_out, stream.avail_out) = (out.as_mut_ptr(), room as u32);
        // SAFETY: the stream was initialized by `new`; input and output have these lengths, and the call keeps neither.
        let code = unsafe { inflate(&raw mut *stream, Z_BLOCK) };
        let (read, written) = (length - stream.avail_in as usize, room - stream.avail_out as usize);
        let bits = stream.data_type as u8 & 63;
        // Bit 7 is set between blocks, bit 6 in the last block and after it.
        let stop = match (code, stream.data_type & (128 | 64)) {
            (Z_OK | Z_BUF_ERROR, 128) => Stop::Block(bits),
            (Z_OK | Z_BUF_ERROR, 192) => Stop::LastBlock,
            (Z_OK | Z_BUF_ERROR, _) => Stop::Used,
            (Z_STREAM_END, _) => Stop::End,
            _ => Stop::Invalid(self.message()),
        };
        Inflated { read, written, stop }
    }

    fn message(&self) -> String {
        if self.stream.msg.is_null() {
            return String::new();
        }
        // SAFETY: the library's messages are constant strings that end in NUL.
        unsafe { CStr::from_ptr(self.stream.msg) }.to_string_lossy().into_owned()
    }

    fn reset(&mut self, window_bits: c_int) {
        // SAFETY: the stream was initialized by `new`.
        let code = unsafe { inflateReset2(&raw mut *self.stream, window_bits) };
        assert_eq!(code, Z_OK, "zlib takes these arguments");
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        // SAFETY: the stream was initialized by `new`, and is not used again.
        unsafe { inflateEnd(&raw mut *self.stream) };
    }
}

/// The CRC-32 of some bytes and `more`, given that of the former.
pub fn crc_of(crc: u32, more: &[u8]) -> u32 {
    more.chunks(1 << 30).fold(crc, |crc, more| {
        // SAFETY: the bytes have this length.
        unsafe { crc32(crc.into(), more.as_ptr(), more.len() as u32) as u32 }
    })
}
