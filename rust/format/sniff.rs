//! Codec and format of a shard, recognised by its first bytes, then by its name.

use std::io::{self, Cursor, Read};

use super::Format;
use crate::codec::{Codec, GZIP_MAGIC, read_failed};
use crate::store::ByteStream;

/// Other kinds of files that people pass as shards: their first bytes, with which no line of JSON begins, and how a
/// message names them and advises.
const OTHERS: [(&[u8], &str); 14] = [
    (b"\x28\xb5", "Zstandard; convert it to gzip"),
    (b"\x50\x2a\x4d\x18", "Zstandard; convert it to gzip"),
    (b"\xfd7", "xz; convert it to gzip"),
    (b"BZh", "bzip2; convert it to gzip"),
    (b"PK", "a zip archive; pass the files that it holds"),
    (b"PAR1", "Parquet; convert it to JSON lines"),
    (b"\xff\xfe\0\0", "UTF-32; convert it to UTF-8"),
    (b"\0\0\xfe\xff", "UTF-32; convert it to UTF-8"),
    (b"\xff\xfe", "UTF-16; convert it to UTF-8"),
    (b"\xfe\xff", "UTF-16; convert it to UTF-8"),
    (b"version https://git-lfs", "a Git LFS pointer; download the file itself with git lfs pull"),
    (b"<!doctype html", "a web page; download the shard again"),
    (b"<html", "a web page; download the shard again"),
    (b"<?xml", "XML, in which object stores report errors; download the shard again"),
];

/// The length of the longest of these.
const HEAD: usize = {
    let (mut longest, mut at) = (0, 0);
    while at < OTHERS.len() {
        if OTHERS[at].0.len() > longest {
            longest = OTHERS[at].0.len();
        }
        at += 1;
    }
    longest
};

/// Whether `bytes` begin with `beginning`. Markup may be in any case, and after a byte order mark and white space.
fn begins_with(bytes: &[u8], beginning: &[u8]) -> bool {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let markup = || text.trim_ascii_start().get(..beginning.len());
    bytes.starts_with(beginning)
        || beginning[0] == b'<' && markup().is_some_and(|start| start.eq_ignore_ascii_case(beginning))
}

/// A shard whose codec and format are known.
pub(super) struct Sniffed {
    pub(super) codec: Codec,
    pub(super) format: Format,
    /// All bytes of the shard.
    pub(super) bytes: ByteStream,
}

/// Recognises a shard by the first bytes of `source`, then by the extension of `name`. The error says what was expected
/// and what was found.
pub(super) fn sniff(mut source: ByteStream, name: &str) -> Result<Sniffed, String> {
    let mut head = Vec::new();
    let looked = source.by_ref().take(HEAD as u64).read_to_end(&mut head);
    let named_gz = has_extension(name, ".gz");
    let expected = if named_gz { "gzip data" } else { "gzip data or plain JSON lines" };
    let codec = match OTHERS.iter().find(|(beginning, _)| begins_with(&head, beginning)) {
        Some((_, other)) => return Err(format!("expected {expected}, found {other}")),
        None if head.starts_with(&GZIP_MAGIC) => Codec::Gzip,
        None if !named_gz => Codec::None,
        None => {
            looked.map_err(|error| read_failed(&error))?;
            return Err(not_gzip(&head));
        }
    };
    if let Err(error) = looked {
        // It comes again after the bytes before it.
        source = Box::new(Failing(error.to_string()));
    }
    Ok(Sniffed { codec, format: Format::Jsonl, bytes: Box::new(Cursor::new(head).chain(source)) })
}

fn has_extension(name: &str, extension: &str) -> bool {
    let at = name.len().saturating_sub(extension.len());
    name.as_bytes()[at..].eq_ignore_ascii_case(extension.as_bytes())
}

/// The message about a file that is named `.gz`, is not gzip, and is none of [`OTHERS`].
fn not_gzip(head: &[u8]) -> String {
    if head.is_empty() {
        return "expected gzip data, found an empty file: it is truncated; download it again".to_owned();
    }
    format!(
        "expected gzip data (bytes 1f 8b) because the name ends in .gz, found {}; download it again, or rename it if it is \
         plain JSON lines",
        hex(&head[..head.len().min(GZIP_MAGIC.len())])
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// A source that failed to be read.
struct Failing(String);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other(self.0.clone()))
    }
}
