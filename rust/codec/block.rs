//! Blocks that are inflated as a whole: pages of Parquet, buffers of Arrow. How long one gets is known in advance, and
//! never exceeded.

use std::io::Read;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::{Decompress, FlushDecompress, Status};
use gristmill_system::catch_expected_panic;
use zstd_safe::DCtx;

/// How a block is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockCodec {
    /// Snappy without framing.
    Snappy,
    /// Gzip, of one member or several.
    Gzip,
    /// Brotli.
    Brotli,
    /// Zstandard.
    Zstd,
    /// One LZ4 block.
    Lz4,
    /// LZ4 blocks, each after its two lengths, as Hadoop writes them.
    Lz4Hadoop,
    /// An LZ4 frame.
    Lz4Frame,
}

/// Inflates blocks. Keeps what the codecs need.
#[derive(Default)]
pub struct BlockDecoder {
    zstd: Option<DCtx<'static>>,
}

impl BlockDecoder {
    /// Inflates a block to exactly `out`. None: the block is corrupt, or has another length.
    pub fn inflate(&mut self, codec: BlockCodec, block: &[u8], out: &mut [u8]) -> Option<()> {
        let length = match codec {
            BlockCodec::Snappy => {
                // The decoder takes the length from the block.
                let length = snap::raw::decompress_len(block).ok().filter(|&length| length == out.len())?;
                snap::raw::Decoder::new().decompress(block, out).ok().filter(|&written| written == length)?
            }
            BlockCodec::Gzip => gzip(block, out)?,
            BlockCodec::Brotli => brotli(block, out)?,
            BlockCodec::Zstd => self.zstd(block, out)?,
            BlockCodec::Lz4 => lz4_flex::block::decompress_into(block, out).ok()?,
            BlockCodec::Lz4Hadoop => lz4_hadoop(block, out)?,
            BlockCodec::Lz4Frame => lz4_frame(block, out)?,
        };
        (length == out.len()).then_some(())
    }

    fn zstd(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        let context = self.zstd.get_or_insert_with(DCtx::create);
        match context.decompress(out, block) {
            Ok(length) => Some(length),
            Err(code) => {
                super::zstd::abort_without_memory(code, 0);
                None
            }
        }
    }
}

/// Inflates gzip members one after another.
fn gzip(mut block: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut length = 0;
    while !block.is_empty() {
        let mut member = Decompress::new_gzip(15);
        let status = member.decompress(block, &mut out[length..], FlushDecompress::Finish);
        length += member.total_out() as usize;
        block = &block[member.total_in() as usize..];
        if !matches!(status, Ok(Status::StreamEnd)) {
            return None;
        }
    }
    Some(length)
}

/// Inflates a stream of Brotli with a window of at most 16 MiB, as its standard has it.
fn brotli(block: &[u8], out: &mut [u8]) -> Option<usize> {
    let inflate = || {
        let [bytes, numbers, codes] = [(); 3].map(|()| StandardAlloc::default());
        let mut state = BrotliState::new_strict(bytes, numbers, codes);
        let (mut left, mut read, mut room, mut written, mut total) = (block.len(), 0, out.len(), 0, 0);
        let result = BrotliDecompressStream(
            &mut left,
            &mut read,
            block,
            &mut room,
            &mut written,
            out,
            &mut total,
            &mut state,
        );
        (matches!(result, BrotliResult::ResultSuccess) && left == 0).then_some(written)
    };
    catch_expected_panic(inflate).ok().flatten()
}

/// Inflates blocks that each follow their inflated and compressed lengths. Early writers of Parquet left these out.
fn lz4_hadoop(block: &[u8], out: &mut [u8]) -> Option<usize> {
    let framed = |mut block: &[u8], out: &mut [u8]| {
        let mut length = 0;
        while !block.is_empty() {
            let (inflated, rest) = block.split_first_chunk()?;
            let (compressed, rest) = rest.split_first_chunk()?;
            let content = rest.get(..u32::from_be_bytes(*compressed) as usize)?;
            let room = out.get_mut(length..)?.get_mut(..u32::from_be_bytes(*inflated) as usize)?;
            length +=
                lz4_flex::block::decompress_into(content, room).ok().filter(|&read| read == room.len())?;
            block = &rest[content.len()..];
        }
        Some(length)
    };
    framed(block, out).or_else(|| lz4_flex::block::decompress_into(block, out).ok())
}

fn lz4_frame(block: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut frame = lz4_flex::frame::FrameDecoder::new(block);
    frame.read_exact(out).ok()?;
    // Behind the content there is only the end mark.
    matches!(frame.read(&mut [0]), Ok(0)).then_some(out.len())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn text() -> Vec<u8> {
        (0..20_000_u32).flat_map(|i| format!("line {}\n", i * i).into_bytes()).collect()
    }

    fn compressed(codec: BlockCodec, text: &[u8]) -> Vec<u8> {
        match codec {
            BlockCodec::Snappy => snap::raw::Encoder::new().compress_vec(text).unwrap(),
            BlockCodec::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            // Stored in blocks: the length less one, and a bit that says so; the first one is after the bit of the window.
            BlockCodec::Brotli => {
                let stored = |(number, chunk): (usize, &[u8])| {
                    let head = ((chunk.len() as u32 - 1) << 3 | 1 << 19) << u32::from(number == 0);
                    [&head.to_le_bytes()[..3], chunk].concat()
                };
                let mut block: Vec<u8> = text.chunks(50_000).enumerate().flat_map(stored).collect();
                block.push(3);
                block
            }
            BlockCodec::Zstd => {
                let mut block = Vec::with_capacity(zstd_safe::compress_bound(text.len()));
                zstd_safe::compress(&mut block, text, 3).unwrap();
                block
            }
            BlockCodec::Lz4 => lz4_flex::block::compress(text),
            BlockCodec::Lz4Hadoop => text
                .chunks(50_000)
                .flat_map(|chunk| {
                    let block = lz4_flex::block::compress(chunk);
                    let lengths = [chunk.len(), block.len()].map(|length| (length as u32).to_be_bytes());
                    [lengths.concat(), block].concat()
                })
                .collect(),
            BlockCodec::Lz4Frame => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
        }
    }

    const CODECS: [BlockCodec; 7] = [
        BlockCodec::Snappy,
        BlockCodec::Gzip,
        BlockCodec::Brotli,
        BlockCodec::Zstd,
        BlockCodec::Lz4,
        BlockCodec::Lz4Hadoop,
        BlockCodec::Lz4Frame,
    ];

    #[test]
    fn inflates_to_exactly_the_length() {
        let text = text();
        let mut decoder = BlockDecoder::default();
        for codec in CODECS {
            let block = compressed(codec, &text);
            for length in [text.len(), text.len() - 1, text.len() + 1, 0] {
                let mut out = vec![0; length];
                let inflated = decoder.inflate(codec, &block, &mut out);
                assert_eq!(inflated.is_some(), length == text.len(), "{codec:?} to {length} bytes");
                assert!(inflated.is_none() || out == text, "{codec:?}");
            }
            let mut out = vec![0; text.len()];
            assert!(
                decoder.inflate(codec, &block[..block.len() / 2], &mut out).is_none(),
                "{codec:?} truncated"
            );
        }
    }

    #[test]
    fn several_gzip_members_and_old_lz4_blocks() {
        let text = text();
        let (first, second) = text.split_at(7777);
        let mut decoder = BlockDecoder::default();
        let mut out = vec![0; text.len()];
        let members = [compressed(BlockCodec::Gzip, first), compressed(BlockCodec::Gzip, second)].concat();
        assert!(decoder.inflate(BlockCodec::Gzip, &members, &mut out).is_some() && out == text);
        out.fill(0);
        let block = compressed(BlockCodec::Lz4, &text);
        assert!(decoder.inflate(BlockCodec::Lz4Hadoop, &block, &mut out).is_some() && out == text);
    }

    #[test]
    fn windows_of_brotli_are_those_of_its_standard() {
        let inflated = |block: &[u8]| {
            let mut out = [0; 2];
            BlockDecoder::default().inflate(BlockCodec::Brotli, block, &mut out).map(|()| out)
        };
        assert_eq!(inflated(b"\x8f\x00\x80ab\x03"), Some(*b"ab"), "16 MiB, the largest");
        assert_eq!(inflated(b"\x8f\x00\x80ab\x03\0"), None, "other bytes behind the end");
        // Windows of an extension, of 32 MiB and of 1 GiB.
        for head in [b"\x11\x19\x02\x00\x02", b"\x11\x1e\x02\x00\x02"] {
            assert_eq!(inflated(&[&head[..], b"ab\x03"].concat()), None);
        }
    }
}
