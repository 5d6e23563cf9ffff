//! Local files: opening, random access, and whether a file is still that of the manifest.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::Shard;
use crate::error::{Error, Result, ShardError};

/// What opening fails with when the process, or the system, has as many files open as it may; Linux and macOS agree.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// A shard's file. Reading fails as soon as its size or modification time differs from what it was at opening, so that
/// a file that is being written to gives that error and not a puzzling one about gzip.
pub struct LocalFile {
    file: File,
    size: u64,
    consumed: u64,
    modified: Option<SystemTime>,
}

impl LocalFile {
    /// Opens the file if it is the one in the manifest; otherwise says what differs.
    pub fn open(shard: &Shard, folder: &Path) -> Result<Self> {
        let path = folder.join(&*shard.path);
        let bad = |reason: String| {
            Error::Shard(ShardError { shard: Arc::clone(&shard.path), record: None, byte: None, reason })
        };
        let open = || {
            // Checked before opening, too: opening a pipe blocks until there is a writer.
            if !std::fs::metadata(&path)?.is_file() {
                return Ok(None);
            }
            let file = File::open(&path)?;
            let metadata = file.metadata()?;
            Ok(Some((file, metadata)).filter(|(_, metadata)| metadata.is_file()))
        };
        let opened = open().map_err(|error: io::Error| match (error.kind(), lacking(&error)) {
            // Not the shard's fault: if it were left out, the stream would depend on the machine.
            (_, Some(advice)) => Error::System(format!(
                "{}: expected to open the file, found: {error}; {advice}, or use fewer lanes=",
                shard.path
            )),
            (io::ErrorKind::NotFound, _) => {
                let is_as_named = path.as_os_str() == &*shard.path;
                let place = if is_as_named { String::new() } else { format!(" at {}", path.display()) };
                bad(format!(
                    "expected the file of the manifest, found none{place}; restore it, or create the dataset again"
                ))
            }
            _ => bad(format!(
                "expected a readable file, found: {error}; make it readable, or create the dataset without it"
            )),
        })?;
        let Some((file, metadata)) = opened else {
            return Err(bad(
                "expected a regular file, found a directory, a pipe or a device; restore it, or \
                            create the dataset again"
                    .to_owned(),
            ));
        };
        if metadata.len() != shard.size {
            return Err(bad(format!(
                "expected the {} bytes of the manifest, found {}: the file has changed since; restore it, or \
                 create the dataset again",
                shard.size,
                metadata.len()
            )));
        }
        let modified = metadata.modified().ok();
        Ok(Self { file, size: shard.size, consumed: 0, modified })
    }

    fn check_unchanged(&self, now: &Metadata) -> io::Result<()> {
        if now.len() != self.size {
            return Err(io::Error::other(format!(
                "its size changed from {} to {} bytes while it was read",
                self.size,
                now.len()
            )));
        }
        if now.modified().ok() != self.modified {
            return Err(io::Error::other("it was written to while it was read"));
        }
        Ok(())
    }
}

impl Read for LocalFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read(out)?;
        // After the read, so that what was read is known to be unchanged. One fstat per buffer.
        self.check_unchanged(&self.file.metadata()?)?;
        self.consumed += length as u64;
        if length == 0 && !out.is_empty() && self.consumed != self.size {
            let (consumed, size) = (self.consumed, self.size);
            return Err(io::Error::other(format!("its end after {consumed} of {size} bytes")));
        }
        Ok(length)
    }
}

/// What to do where it is the system that has too little of something to open a file.
fn lacking(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        EMFILE => Some("raise the limit of open files (ulimit -n)"),
        ENFILE => Some("raise the system's limit of open files"),
        _ if error.kind() == io::ErrorKind::OutOfMemory => Some("free memory"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_lacks_is_told_from_a_bad_shard() {
        let lacking = |code| lacking(&io::Error::from_raw_os_error(code));
        assert!(lacking(EMFILE).unwrap().contains("ulimit -n"));
        assert!(lacking(ENFILE).unwrap().contains("the system's limit of open files"));
        assert!(lacking(12).unwrap().contains("free memory"));
        // ENOENT, EIO, EACCES and Linux's ESTALE.
        for code in [2, 5, 13, 116] {
            assert_eq!(lacking(code), None, "{code}");
        }
    }
}
