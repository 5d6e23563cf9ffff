//! Seek indexes of gzip files: seek points at which inflating can start, in a file of their own.
//!
//! ```text
//! header      HEADER_BYTES: magic, size of the shard, its last bytes (the CRC-32 and length of its text), CRC-32
//! seek point  ENTRY_BYTES, one after another: numbers, the window of 32 KiB, CRC-32
//! ```
//!
//! The stream does not depend on whether there is an index: it only saves inflating the file up to a piece.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use memchr::memchr_iter;

use super::gzip::Member;
use super::gzip_blocks::GzipBlocks;
use super::inflater::{WINDOW_BYTES, crc_of};
use super::{CHUNK_BYTES, Input};
use crate::store::{Source, open_regular, read_exact_at};

/// Compressed bytes between two seek points: the index has less than a hundredth of its shard, and inflating up to a
/// piece takes some hundredths of a second.
const SPACING: u64 = 4 << 20;

const MAGIC: [u8; 24] = *b"gristmill gzip index 1\n\0";
const TAIL_BYTES: usize = 8;
const HEADER_BYTES: usize = 24 + 8 + TAIL_BYTES + 4;
const ENTRY_BYTES: usize = 5 * 8 + 4 + 4 + 4 + WINDOW_BYTES + 4;

/// A point between two blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeekPoint {
    /// The offset of the first byte that has no bit of the block before.
    pub(super) offset: u64,
    /// How many bits of the byte before it are the next block's.
    pub(super) bits: u8,
    /// Bytes inflated up to here, newlines among them, and the last of them.
    pub(super) inflated: u64,
    pub(super) lines: u64,
    pub(super) before: Option<u8>,
    pub(super) member: Member,
    /// The checksum of the member's text up to here.
    pub(super) crc: u32,
    /// Whether the next block is not the first one of a member.
    pub(super) is_in_member: bool,
    /// The last bytes of the member up to here.
    pub(super) window: Vec<u8>,
}

/// The index of a shard.
pub struct GzipIndex {
    file: File,
    entries: u64,
}

/// The environment variable that names the folder of all indexes, for shards in folders that cannot be written.
pub const INDEX_FOLDER_VARIABLE: &str = "GRISTMILL_INDEX_FOLDER";

/// The path of a shard's index: a hidden file, which globs do not match, beside the shard, or at the shard's absolute path
/// below the folder that `INDEX_FOLDER_VARIABLE` names.
pub fn index_path(shard: &Path) -> PathBuf {
    let folder = std::env::var_os(INDEX_FOLDER_VARIABLE).filter(|folder| !folder.is_empty());
    index_path_in(folder.as_ref().map(Path::new), shard)
}

fn index_path_in(folder: Option<&Path>, shard: &Path) -> PathBuf {
    let name = shard.file_name().unwrap_or_default().to_string_lossy();
    let beside = shard.with_file_name(format!(".{name}.gristmill-index"));
    let Some(folder) = folder else { return beside };
    let absolute = std::path::absolute(&beside).unwrap_or(beside);
    folder.join(absolute.strip_prefix("/").unwrap_or(&absolute))
}

impl GzipIndex {
    /// Opens the index of a shard, if there is one. The error is a message.
    pub fn open(shard: &Path, source: &mut dyn Source) -> Result<Option<Self>, String> {
        let path = index_path(shard);
        let (file, length) = match open_regular(&path) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Err(unusable(&path, "it is not a regular file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(&path, &error.to_string())),
        };
        let expected = header(source).map_err(|error| unusable(&path, &error.to_string()))?;
        let mut found = [0; HEADER_BYTES];
        let rest = length.saturating_sub(HEADER_BYTES as u64);
        if file.read_exact_at(&mut found, 0).is_err() || found != expected || rest % ENTRY_BYTES as u64 > 0 {
            return Err(unusable(&path, "it is not the index of this file"));
        }
        Ok(Some(Self { file, entries: rest / ENTRY_BYTES as u64 }))
    }

    /// The last seek point at `offset` or before it.
    pub(super) fn before(&self, offset: u64) -> Result<Option<SeekPoint>, String> {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut start = [0; 8];
            self.read(&mut start, middle)?;
            if u64::from_le_bytes(start) <= offset { low = middle + 1 } else { high = middle }
        }
        let Some(index) = low.checked_sub(1) else { return Ok(None) };
        let mut entry = vec![0; ENTRY_BYTES];
        self.read(&mut entry, index)?;
        let seek_point = SeekPoint::from_bytes(&entry);
        seek_point.map(Some).ok_or_else(|| failed("a wrong checksum"))
    }

    fn read(&self, out: &mut [u8], index: u64) -> Result<(), String> {
        let offset = HEADER_BYTES as u64 + index * ENTRY_BYTES as u64;
        self.file.read_exact_at(out, offset).map_err(|error| failed(&error.to_string()))
    }
}

/// Reads a gzip file to its end and writes its index. The error is a message; there is no index of a damaged file.
pub fn write_index(
    source: Box<dyn Source>,
    out: &mut dyn Write,
    stop: &Arc<AtomicBool>,
) -> Result<(), String> {
    write_index_every(SPACING, source, out, stop)
}

fn write_index_every(
    spacing: u64,
    mut source: Box<dyn Source>,
    out: &mut dyn Write,
    stop: &Arc<AtomicBool>,
) -> Result<(), String> {
    let cannot_write = |error: io::Error| format!("expected to write the index, found: {error}");
    let mut out = BufWriter::new(out);
    let header = header(&mut *source).map_err(|error| super::read_failed(&error))?;
    out.write_all(&header).map_err(cannot_write)?;
    let (mut input, mut blocks) = (Input::new(source, stop), GzipBlocks::new());
    let mut chunk = vec![0; CHUNK_BYTES];
    let (mut lines, mut before, mut end) = (0, None, spacing);
    loop {
        let length = blocks.read(&mut input, end, &mut chunk).map_err(|damage| damage.reason)?;
        if let Some(last) = chunk[..length].last() {
            before = Some(*last);
            lines += memchr_iter(b'\n', &chunk[..length]).count() as u64;
            continue;
        }
        let Some(seek_point) = blocks.seek_point(&input, lines, before) else { break };
        out.write_all(&seek_point.to_bytes()).map_err(cannot_write)?;
        end = seek_point.offset + spacing;
    }
    out.flush().map_err(cannot_write)
}

fn header(source: &mut dyn Source) -> io::Result<[u8; HEADER_BYTES]> {
    let size = source.size();
    let mut tail = [0; TAIL_BYTES];
    let length = TAIL_BYTES.min(usize::try_from(size).unwrap_or(TAIL_BYTES));
    read_exact_at(source, size - length as u64, &mut tail[..length])?;
    let mut header = [0; HEADER_BYTES];
    header[..24].copy_from_slice(&MAGIC);
    header[24..32].copy_from_slice(&size.to_le_bytes());
    header[32..32 + TAIL_BYTES].copy_from_slice(&tail);
    let crc = crc_of(0, &header[..HEADER_BYTES - 4]);
    header[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    Ok(header)
}

impl SeekPoint {
    fn to_bytes(&self) -> Vec<u8> {
        let Member { start, inflated_start } = self.member;
        let mut bytes = Vec::with_capacity(ENTRY_BYTES);
        for number in [self.offset, self.inflated, self.lines, start, inflated_start] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.crc.to_le_bytes());
        bytes.extend((self.window.len() as u32).to_le_bytes());
        let before = self.before.map_or([0, 0], |byte| [1, byte]);
        bytes.extend([self.bits, u8::from(self.is_in_member), before[0], before[1]]);
        bytes.extend(&self.window);
        bytes.resize(ENTRY_BYTES - 4, 0);
        let crc = crc_of(0, &bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// None: the checksum is wrong.
    fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let (content, crc) = bytes.split_last_chunk()?;
        if bytes.len() != ENTRY_BYTES || crc_of(0, content) != u32::from_le_bytes(*crc) {
            return None;
        }
        let mut number = || {
            let mut number = [0; 8];
            bytes.read_exact(&mut number).ok()?;
            Some(u64::from_le_bytes(number))
        };
        let [offset, inflated, lines, start, inflated_start] =
            [number()?, number()?, number()?, number()?, number()?];
        let (crc, rest) = bytes.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let ([bits, is_in_member, has_before, before], window) = rest.split_first_chunk()?;
        Some(Self {
            offset,
            bits: *bits,
            inflated,
            lines,
            before: (*has_before > 0).then_some(*before),
            member: Member { start, inflated_start },
            crc: u32::from_le_bytes(*crc),
            is_in_member: *is_in_member > 0,
            window: window.get(..u32::from_le_bytes(*length) as usize)?.to_vec(),
        })
    }
}

fn unusable(path: &Path, found: &str) -> String {
    format!(
        "{}: expected the index of the shard, found: {found}; make it again with gristmill index, or remove it",
        path.display()
    )
}

fn failed(found: &str) -> String {
    format!(
        "expected a seek point of its index, found: {found}; make it again with gristmill index, or remove it"
    )
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn member(text: &[u8], level: u32) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn index(spacing: u64, file: &[u8]) -> Result<Vec<u8>, String> {
        let mut index = Vec::new();
        write_index_every(spacing, Box::new(file.to_vec()), &mut index, &Arc::default())?;
        Ok(index)
    }

    fn seek_points(index: &[u8]) -> Vec<SeekPoint> {
        index[HEADER_BYTES..].chunks(ENTRY_BYTES).map(|entry| SeekPoint::from_bytes(entry).unwrap()).collect()
    }

    /// The bytes before a piece, its inflated bytes, and the error that ends it.
    fn piece(
        file: &[u8],
        bytes: Range<u64>,
        from: Option<&SeekPoint>,
    ) -> (super::super::gzip_blocks::BlockStart, Vec<u8>, Option<String>) {
        let mut input = Input::new(Box::new(file.to_vec()), &Arc::default());
        let mut blocks = GzipBlocks::new();
        let start = blocks.find(&mut input, bytes.start, from).unwrap();
        let (mut text, mut chunk) = (Vec::new(), vec![0; 1000]);
        loop {
            match blocks.read(&mut input, bytes.end, &mut chunk) {
                Ok(0) => return (start, text, None),
                Ok(length) => text.extend_from_slice(&chunk[..length]),
                Err(damage) => {
                    text.extend_from_slice(&chunk[..damage.written]);
                    return (start, text, Some(damage.reason));
                }
            }
        }
    }

    /// Text that compresses to several blocks.
    fn text(seed: u32, length: usize) -> Vec<u8> {
        let mut number = seed;
        let mut next = || {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            number >> 24
        };
        let mut text = Vec::new();
        while text.len() < length {
            let word = next() << 8 | next();
            text.extend(format!("word{} ", word % 5000).into_bytes());
            if next() % 8 == 0 {
                text.push(b'\n');
            }
        }
        text.truncate(length);
        text
    }

    fn files() -> Vec<(Vec<u8>, Vec<u8>)> {
        let texts = [text(1, 400_000), text(2, 100_000), Vec::new(), text(3, 200_000)];
        let one = |level| (texts[0].clone(), member(&texts[0], level));
        let many = texts.iter().zip([6, 0, 9, 1]).flat_map(|(text, level)| member(text, level)).collect();
        let padded = [&member(&texts[1], 6)[..], &[0; 700], &member(&texts[3], 6)[..], &[0; 9]].concat();
        vec![
            one(6),
            one(1),
            one(0),
            (texts.concat(), many),
            ([&texts[1][..], &texts[3][..]].concat(), padded),
            (Vec::new(), member(b"", 6)),
        ]
    }

    #[test]
    fn index_path_mirrors_shards_below_the_folder() {
        let shard = Path::new("/data/web/a.json.gz");
        assert_eq!(index_path_in(None, shard), Path::new("/data/web/.a.json.gz.gristmill-index"));
        let inside = Path::new("/cache/data/web/.a.json.gz.gristmill-index");
        assert_eq!(index_path_in(Some(Path::new("/cache")), shard), inside);
        let relative = index_path_in(Some(Path::new("/cache")), Path::new("a.gz"));
        let working = std::env::current_dir().unwrap();
        let expected =
            Path::new("/cache").join(working.strip_prefix("/").unwrap()).join(".a.gz.gristmill-index");
        assert_eq!(relative, expected);
    }

    #[test]
    fn pieces_are_the_text_with_and_without_an_index() {
        for (number, (text, file)) in files().iter().enumerate() {
            let size = file.len() as u64;
            let seek_points = seek_points(&index(1 + size / 20, file).unwrap());
            assert!(!seek_points.is_empty() || number == 5, "{number}: {}", seek_points.len());
            for pieces in [1, 2, 3, 7, 40] {
                let mut found = Vec::new();
                for piece_number in 0..pieces {
                    let bytes = size * piece_number / pieces..size * (piece_number + 1) / pieces;
                    let whole = piece(file, bytes.clone(), None);
                    assert_eq!(whole.2, None);
                    assert_eq!(whole.0.inflated, found.len() as u64);
                    assert_eq!(whole.0.before, found.last().copied());
                    let before = seek_points.iter().filter(|seek_point| seek_point.offset <= bytes.start);
                    for seek_point in before {
                        let resumed = piece(file, bytes.clone(), Some(seek_point));
                        assert!(resumed == whole, "{number}: {bytes:?} from {}", seek_point.offset);
                    }
                    found.extend(whole.1);
                }
                assert!(found == *text, "{number} in {pieces}");
            }
        }
    }

    #[test]
    fn seek_points_are_found_and_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.gz");
        let (_, mut file) = files().swap_remove(0);
        let mut bytes = index(10_000, &file).unwrap();
        let seek_points = seek_points(&bytes);
        std::fs::write(index_path(&path), &bytes).unwrap();
        let open = |file: &Vec<u8>| GzipIndex::open(&path, &mut file.clone());
        let found = open(&file).unwrap().unwrap();
        assert_eq!(found.before(seek_points[0].offset - 1), Ok(None));
        for seek_point in &seek_points {
            assert_eq!(found.before(seek_point.offset), Ok(Some(seek_point.clone())));
        }
        assert_eq!(found.before(u64::MAX), Ok(seek_points.last().cloned()));
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(index_path(&path), &bytes).unwrap();
        assert!(found.before(u64::MAX).unwrap_err().contains("a wrong checksum"));
        *file.last_mut().unwrap() ^= 1;
        assert!(open(&file).err().unwrap().contains("it is not the index of this file"));
        std::fs::remove_file(index_path(&path)).unwrap();
        assert!(open(&file).unwrap().is_none());
    }

    #[test]
    fn wrong_checksums_are_found_from_a_seek_point_too() {
        let (text, file) = files().swap_remove(0);
        let seek_points = seek_points(&index(10_000, &file).unwrap());
        for (place, expected) in
            [(8, "the CRC-32 in the gzip trailer"), (4, "the length in the gzip trailer")]
        {
            let mut damaged = file.clone();
            let at = damaged.len() - place;
            damaged[at] ^= 1;
            assert!(index(10_000, &damaged).unwrap_err().contains(expected));
            let (start, found, error) = piece(&damaged, 15_000..u64::MAX, Some(&seek_points[0]));
            assert_eq!(start.inflated as usize + found.len(), text.len());
            assert!(error.unwrap().contains(expected));
        }
        let (_, _, error) = piece(&file[..file.len() - 5], 15_000..u64::MAX, Some(&seek_points[0]));
        assert!(error.unwrap().contains("the file is truncated"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]

        #[test]
        fn mutated_files_are_read_as_whole_or_refused(
            at in any::<prop::sample::Index>(),
            bit in 0..8,
            start in 0..200_000_u64,
        ) {
            let (text, mut file) = files().swap_remove(3);
            let seek_points = seek_points(&index(20_000, &file).unwrap());
            let at = at.index(file.len());
            file[at] ^= 1_u8 << bit;
            for seek_point in seek_points.iter().filter(|seek_point| seek_point.offset <= start) {
                let mut input = Input::new(Box::new(file.clone()), &Arc::default());
                let mut blocks = GzipBlocks::new();
                let Ok(found) = blocks.find(&mut input, start, Some(seek_point)) else { continue };
                let (mut read, mut chunk) = (Vec::new(), vec![0; 70_000]);
                let is_whole = loop {
                    match blocks.read(&mut input, u64::MAX, &mut chunk) {
                        Ok(0) => break true,
                        Ok(length) => read.extend_from_slice(&chunk[..length]),
                        Err(_) => break false,
                    }
                };
                prop_assert!(!is_whole || read == text[found.inflated as usize..]);
            }
        }
    }
}
