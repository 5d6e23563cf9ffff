//! Bytes by name: today names are paths of local files.
//!
//! A store finds the bytes of a [`Shard`] and reports when they are no longer those of the manifest. Formats that are
//! read from start to end take them as a [`ByteStream`]; those that need random access use [`LocalFile::read_at`].

mod local;

use std::io::Read;
use std::sync::Arc;

pub use local::LocalFile;

/// One input file, as the manifest lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Path of the file.
    pub path: Arc<str>,
    /// Its size in the store when the manifest was created.
    pub size: u64,
}

/// The bytes of a shard, from first to last.
pub type ByteStream = Box<dyn Read + Send>;
