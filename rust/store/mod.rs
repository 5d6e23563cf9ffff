//! Bytes by name: of local files, and of objects of stores on the network.
//!
//! A store finds the bytes of a [`Shard`], as a [`Source`], and reports when they are no longer those of the manifest.

mod access;
mod local;
mod piece;
mod remote;

use std::io;
use std::sync::Arc;

pub use access::{Access, Connection};
pub use local::{LocalFile, open_regular};
pub use piece::{Piece, borders};
pub use remote::Stores;

/// The schemes of the URLs of stores on the network.
pub const SCHEMES: [&str; 12] =
    ["gs", "gcs", "s3", "s3a", "az", "azure", "abfs", "abfss", "adl", "http", "https", "hf"];

/// Whether a name is a URL of a store on the network, and not a path.
pub fn is_remote(name: &str) -> bool {
    name.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// The path that a URL such as `file:///a%20b.png` stands for. None: it is no such URL, or names a host.
pub fn local_path(url: &str) -> Option<String> {
    let rest = url.strip_prefix("file://")?;
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    let mut bytes = Vec::with_capacity(path.len());
    let mut parts = path.starts_with('/').then(|| path.split('%'))?;
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => bytes.extend([&[byte], &part.as_bytes()[2..]].concat()),
            None => bytes.extend([b"%", part.as_bytes()].concat()),
        }
    }
    String::from_utf8(bytes).ok()
}

/// One input file, as the manifest lists it, or a piece of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Path of the file.
    pub path: Arc<str>,
    /// Its size in the store when the manifest was created.
    pub size: u64,
    /// The version that its store gives it, if it is in a store that has versions: an `ETag`.
    pub e_tag: Option<Arc<str>>,
    /// The part that is read. `None`: the whole file.
    pub piece: Option<Piece>,
}

/// The bytes of a shard. All stores have random access: formats that are read from start to end skip what they need
/// not read.
pub trait Source: Send {
    /// Number of bytes.
    fn size(&self) -> u64;

    /// Reads some bytes from `offset` on, at least one unless that is the end.
    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize>;
}

/// Reads exactly as many bytes as `out` has, from `offset` on.
pub fn read_exact_at(source: &mut dyn Source, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match source.read_at(offset, out) {
            Ok(0) => {
                return Err(io::Error::other(format!("its end after {offset} of {} bytes", source.size())));
            }
            Ok(length) => {
                offset += length as u64;
                out = &mut out[length..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A shard in memory.
impl Source for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let rest = &self[usize::try_from(offset).unwrap_or(usize::MAX).min(self.len())..];
        let length = rest.len().min(out.len());
        out[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::{is_remote, local_path};

    #[test]
    fn urls_of_files_are_paths() {
        for (url, path) in [
            ("file:///a/b.png", Some("/a/b.png")),
            ("file://localhost/a%20b%25/%C3%BC", Some("/a b%/ü")),
            ("file:///100%/%zz%+1é%", Some("/100%/%zz%+1é%")),
            ("file:///%FF", None),
            ("file://host/a", None),
            ("file://", None),
            ("/a%20b", None),
        ] {
            assert_eq!(local_path(url).as_deref(), path, "{url}");
        }
    }

    #[test]
    fn paths_are_not_remote() {
        for path in ["a", "/a/b", "a:b", "c://x", "file:///a", ""] {
            assert!(!is_remote(path), "{path}");
        }
        assert!(is_remote("gs://b/x") && is_remote("https://h/x") && is_remote("hf://datasets/o/n/x"));
    }
}
