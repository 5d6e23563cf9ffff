//! Codec and format of a shard, recognised by its first bytes, then by its name.

use std::io;

use super::ids::MAGIC;
use super::{Format, IdFiles, arrow, parquet, tar};
use crate::codec::{Codec, GZIP_MAGIC, ZSTD_MAGIC, is_skippable_frame, read_failed};
use crate::store::Source;

/// Other kinds of files that people pass as shards: their first bytes, where `?` is any byte, and how a message names them
/// and advises. No line of JSON or of a row list begins so.
const OTHERS: &[(&[u8], &str)] = &[
    (b"\xfd7zXZ", "xz; convert it to gzip"),
    (b"BZh?1AY&SY", "bzip2; convert it to gzip"),
    (b"BZh?\x17rE8P", "bzip2; convert it to gzip"),
    (b"\x04\x22\x4d\x18", "LZ4; convert it to gzip"),
    (b"\x02\x21\x4c\x18", "LZ4; convert it to gzip"),
    (b"\xff\x06\0\0sNaPpY", "Snappy; convert it to gzip"),
    (b"\x1f\x9d", "data of compress; convert it to gzip"),
    (b"\x89LZO\0", "lzop; convert it to gzip"),
    (b"]\0\0", "LZMA; convert it to gzip"),
    (b"x\x01", ZLIB),
    (b"x\x9c", ZLIB),
    (b"x\xda", ZLIB),
    (b"PK\x05\x06", "a zip archive; pass the files that it holds"),
    (b"7z\xbc\xaf", "a 7z archive; pass the files that it holds"),
    (b"Rar!\x1a", "a RAR archive; pass the files that it holds"),
    (b"Obj\x01", "Avro; convert it to Parquet"),
    (b"FEA1\0", "Feather of version 1; write it again with version=2"),
    (b"\x89HDF", "HDF5; convert it to Parquet"),
    (b"SQLite format 3\0", "a database of SQLite; export its table to Parquet"),
    (b"\x80\x02", PICKLE),
    (b"\x80\x03", PICKLE),
    (b"\x80\x04", PICKLE),
    (b"\x80\x05", PICKLE),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of Excel or Word; export it to Parquet or JSON lines"),
    (b"??????\0\0{", "safetensors, which hold weights; pass the text that a model is trained on"),
    (b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f", "Riegeli or ArrayRecord; convert it to Parquet or JSON lines"),
    (b"????????????????\xde\xc0\xef\xbe", "a database of LMDB; convert it to Parquet or JSON lines"),
    (b"%PDF-", "a PDF; extract its text to Parquet or JSON lines"),
    (b"WARC/1.", "WARC; extract its texts to Parquet or JSON lines"),
    (b"\xff\xd8\xff", IMAGE),
    (b"\x89PNG", IMAGE),
    (b"\0\0??ftyp", MEDIA),
    (b"\x1aE\xdf\xa3", MEDIA),
    (b"HTTP/1.", "an answer of a web server; download the shard again"),
    (b"\xff\xfe\0\0", "UTF-32; convert it to UTF-8"),
    (b"\0\0\xfe\xff", "UTF-32; convert it to UTF-8"),
    (b"\xff\xfe", "UTF-16; convert it to UTF-8"),
    (b"\xfe\xff", "UTF-16; convert it to UTF-8"),
    (b"{\0\0\0", "UTF-32; convert it to UTF-8"),
    (b"\0\0\0{", "UTF-32; convert it to UTF-8"),
    (b"{\0", "UTF-16; convert it to UTF-8"),
    (b"\0{", "UTF-16; convert it to UTF-8"),
    (b"version https://git-lfs", "a Git LFS pointer; download the file itself with git lfs pull"),
    (b"<!doctype html", "a web page; download the shard again"),
    (b"<html", "a web page; download the shard again"),
    (b"<head", "a web page; download the shard again"),
    (b"<body", "a web page; download the shard again"),
    (MAGIC, NOT_IDS),
    (b"MMIDIDX", "the index of a file of ids; name the .bin beside it alone"),
    (b"<?xml", XML),
    (b"<error>", XML),
];
const ZLIB: &str = "data of zlib without a head of gzip; convert it to gzip";
const PICKLE: &str = "a pickle, which is never loaded; convert it to JSON lines";
const IMAGE: &str = "an image; put images into tars, or name them in records";
const MEDIA: &str = "a video or a recording; put videos into tars, or name them in records";
const XML: &str = "XML, in which object stores report errors; download the shard again";

/// The same, where a text may begin so, too: a control byte follows.
const BINARY: [(&[u8], &str); 8] = [
    (b"ORC", "ORC; convert it to Parquet"),
    (b"????????DUCK", "a database of DuckDB; export its table to Parquet"),
    (b"LZIP", "lzip; convert it to gzip"),
    (b"GGUF", "GGUF, which holds weights; pass the text that a model is trained on"),
    (b"GIF8", IMAGE),
    (b"RIFF", MEDIA),
    (b"OggS", MEDIA),
    (b"ID3", MEDIA),
];

/// The first bytes of a member of a zip, and where its name begins.
const ZIP: (&[u8], usize) = (b"PK\x03\x04", 30);
/// Kinds of zips, by the end of the name of their first member. The last one is any zip.
const ZIPS: [(&str, &str); 6] = [
    ("/data.pkl", "a file of torch.save, which is never loaded; convert it to JSON lines"),
    ("/.format_version", "a file of torch.save, which is never loaded; convert it to JSON lines"),
    (".npy", "an .npz of NumPy; save each array as .npy, or convert it to Parquet"),
    ("[Content_Types].xml", "a document of Excel or Word; export it to Parquet or JSON lines"),
    ("_rels/.rels", "a document of Excel or Word; export it to Parquet or JSON lines"),
    ("", "a zip archive; pass the files that it holds"),
];

/// The names that promise something: the extension, how a message describes that, and the first bytes it has.
const NAMED: [(&str, &str, &str); 6] = [
    (".gz", "gzip data", "1f 8b"),
    (".zst", "Zstandard data", "28 b5 2f fd"),
    (".zstd", "Zstandard data", "28 b5 2f fd"),
    (".parquet", "a Parquet file", "50 41 52 31"),
    (".arrow", "an Arrow file", "ff ff ff ff"),
    (".tgz", "gzip data", "1f 8b"),
];

/// The name of a compression without first bytes of its own, and how a message names it and advises.
const NAMED_OTHER: (&str, &str) = (".br", "Brotli, by its name; convert it to gzip");

/// The names of tars. The contents of compressed files are known by their names alone.
const TARS: [&str; 6] = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tzst"];

/// Enough of a file to recognise it.
const HEAD: usize = 512;

/// Whether `bytes` begin with `beginning`. Markup may be in any case, and after a byte order mark and white space.
fn begins_with(bytes: &[u8], beginning: &[u8]) -> bool {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let markup = || text.trim_ascii_start().get(..beginning.len());
    let fits =
        |start: &[u8]| start.iter().zip(beginning).all(|(byte, wanted)| [byte, &b'?'].contains(&wanted));
    bytes.get(..beginning.len()).is_some_and(fits)
        || beginning[0] == b'<' && markup().is_some_and(|start| start.eq_ignore_ascii_case(beginning))
}

/// How a message names a file that begins with `head` and is read in no format, and advises.
fn other(head: &[u8]) -> Option<&'static str> {
    if tar::is_header(head) {
        return None;
    }
    // The head of a tar has a name, and zero bytes.
    let is_control = |byte: &u8| (1..8).contains(byte);
    let binary = BINARY.iter().filter(|_| head.iter().any(is_control));
    let named = OTHERS.iter().chain(binary).find(|(beginning, _)| begins_with(head, beginning));
    named
        .map(|(_, other)| *other)
        .or_else(|| zip(head))
        .or_else(|| is_tf_record(head).then_some("TFRecord; convert it to Parquet or JSON lines"))
}

fn zip(head: &[u8]) -> Option<&'static str> {
    let (magic, start) = ZIP;
    if !head.starts_with(magic) {
        return None;
    }
    let length = head.get(start - 4..).and_then(|rest| rest.first_chunk());
    let length = length.map_or(0, |length| u16::from_le_bytes(*length));
    let name = head.get(start..).and_then(|rest| rest.get(..length.into())).unwrap_or_default();
    ZIPS.iter().find(|(ending, _)| name.ends_with(ending.as_bytes())).map(|(_, what)| *what)
}

/// Whether the file begins with the length of a record, and a checksum of that: its CRC-32C, turned by 15 bits, plus a
/// constant. So TensorFlow writes them.
fn is_tf_record(head: &[u8]) -> bool {
    let (Some(length), Some(&sum)) = (head.get(..8), head.get(8..).and_then(|rest| rest.first_chunk()))
    else {
        return false;
    };
    let crc = crc_fast::crc32_iscsi(length);
    crc.rotate_right(15).wrapping_add(0xa282_ead8) == u32::from_le_bytes(sum)
}

/// Recognises a shard by the first bytes of `source`, then by the extension of `name`. The error says what was expected
/// and what was found.
pub(super) fn sniff(source: &mut dyn Source, name: &str) -> Result<(Codec, Format), String> {
    let mut head = [0; HEAD];
    let (length, failure) = read_head(source, &mut head);
    let head = &head[..length];
    let named = NAMED.iter().find(|(extension, ..)| has_extension(name, extension));
    let expected =
        named.map_or("JSON lines (plain, gzip or Zstandard), Parquet, Arrow or tar", |(_, what, _)| what);
    let is_tar = TARS.iter().any(|extension| has_extension(name, extension));
    let inflated = if is_tar { Format::Tar } else { Format::Jsonl };
    let of_name = || {
        Some(NAMED_OTHER).filter(|(extension, _)| has_extension(name, extension) && !head.starts_with(b"{"))
    };
    if let Some(other) = other(head).or_else(|| Some(of_name()?.1)) {
        return Err(format!("expected {expected}, found {other}"));
    }
    if head.starts_with(&GZIP_MAGIC) {
        return Ok((Codec::Gzip, inflated));
    }
    if head.starts_with(&ZSTD_MAGIC) || is_skippable_frame(head) {
        return Ok((Codec::Zstd, inflated));
    }
    if parquet::MAGICS.iter().any(|magic| head.starts_with(magic)) {
        return Ok((Codec::None, Format::Parquet));
    }
    if is_arrow(head) {
        return Ok((Codec::None, Format::Arrow));
    }
    // The reader says what is wrong with an empty or damaged one.
    if tar::is_header(head) || has_extension(name, ".tar") {
        return Ok((Codec::None, Format::Tar));
    }
    match (named, failure) {
        // A failure to read more comes again, after the bytes before it.
        (None, _) => Ok((Codec::None, Format::Jsonl)),
        (Some(_), Some(failure)) => Err(read_failed(&failure)),
        (Some((extension, what, magic)), None) => Err(not_as_named(head, extension, what, magic)),
    }
}

/// The format of a file of ids, if samples are ready ids and this is one.
pub(super) fn ids_format(source: &mut dyn Source, name: &str, ids: &IdFiles) -> Option<Format> {
    let mut head = [0; MAGIC.len()];
    let (length, _) = read_head(source, &mut head);
    if head[..length] == *MAGIC {
        return Some(Format::Array);
    }
    let [is_bin, is_array] = [".bin", ".npy"].map(|extension| has_extension(name, extension));
    match ids.kind {
        Some(_) if is_bin || is_array => Some(Format::Array),
        None if is_bin => Some(Format::Megatron),
        None if is_array => Some(Format::Array),
        _ => None,
    }
}

/// How a message names a file of ids where samples are no ids, and advises.
pub(super) const NOT_IDS: &str = "an array of NumPy; read its ids with sample=gm.Tokens()";

/// How a message names a file that is compressed, whose inflated bytes begin with `head`, and advises. None: it may hold
/// lines.
pub(super) fn not_lines(head: &[u8]) -> Option<&'static str> {
    if let Some(other) = other(head) {
        Some(other)
    } else if head.starts_with(&GZIP_MAGIC) || head.starts_with(&ZSTD_MAGIC) {
        Some("a compressed file again; inflate it once")
    } else if parquet::MAGICS.iter().any(|magic| head.starts_with(magic)) {
        Some("a Parquet file; inflate it, and pass it by itself")
    } else if is_arrow(head) {
        Some("an Arrow file; inflate it, and pass it by itself")
    } else {
        tar::is_header(head).then_some("a tar; let its name end in .tar.gz or .tar.zst")
    }
}

fn is_arrow(head: &[u8]) -> bool {
    head.starts_with(arrow::FILE_MAGIC) || head.starts_with(arrow::STREAM_MAGIC) || arrow::is_old_stream(head)
}

/// Reads the first bytes into `head`. Returns their number, and the failure that ended reading.
fn read_head(source: &mut dyn Source, head: &mut [u8]) -> (usize, Option<io::Error>) {
    let mut length = 0;
    while length < head.len() {
        match source.read_at(length as u64, &mut head[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (length, Some(error)),
        }
    }
    (length, None)
}

fn has_extension(name: &str, extension: &str) -> bool {
    let at = name.len().saturating_sub(extension.len());
    name.as_bytes()[at..].eq_ignore_ascii_case(extension.as_bytes())
}

/// The message about a file whose name promises what it is not, and that is none of [`OTHERS`].
fn not_as_named(head: &[u8], extension: &str, what: &str, magic: &str) -> String {
    if head.is_empty() {
        return format!("expected {what}, found an empty file: it is truncated; download it again");
    }
    let length = magic.split(' ').count();
    format!(
        "expected {what} (bytes {magic}) because the name ends in {extension}, found {}; download it again, or rename it if it \
         is plain JSON lines",
        hex(&head[..head.len().min(length)])
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}
