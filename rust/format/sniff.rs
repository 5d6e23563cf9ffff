//! Codec and format of a shard, recognised by its first bytes, then by its name.

use std::io::{self, Cursor, Read};

use super::Format;
use crate::codec::{Codec, GZIP_MAGIC, read_failed};
use crate::store::ByteStream;

/// What is sometimes found in place of a shard, by its first bytes, with which no line of JSON begins; and what to do.
const OTHERS: [(&[u8], &str); 14] = [
    (b"\x28\xb5", "Zstandard: convert it"),
    (b"\x50\x2a\x4d\x18", "Zstandard: convert it"),
    (b"\xfd7", "xz: convert it"),
    (b"BZh", "bzip2: convert it"),
    (b"PK", "a zip archive: convert it"),
    (b"PAR1", "Parquet: convert it"),
    (b"\xff\xfe\0\0", "UTF-32: convert it"),
    (b"\0\0\xfe\xff", "UTF-32: convert it"),
    (b"\xff\xfe", "UTF-16: convert it"),
    (b"\xfe\xff", "UTF-16: convert it"),
    (b"version https://git-lfs", "a pointer of Git LFS: fetch what it stands for, with git lfs pull"),
    (b"<!doctype html", "a web page: fetch the shard again"),
    (b"<html", "a web page: fetch the shard again"),
    (b"<?xml", "XML, as a store's error is: fetch the shard again"),
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

/// Whether bytes begin with others: markup in any case, behind a byte order mark and space.
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

/// Looks at the first bytes of `source`, then at the extension of `name`. The error says what was expected and found.
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
        return "expected gzip data, found an empty file: it was cut off; fetch it again".to_owned();
    }
    format!(
        "expected gzip data (bytes 1f 8b) because the name ends in .gz, found {}; fetch it again, or rename it if it is \
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
