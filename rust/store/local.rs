//! Local files: opening, random access, and whether a file is still that of the manifest.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::{Shard, Source};
use crate::error::{Error, Result, ShardError};

/// Errors of opening where the process, or the system, has as many files open as it may; Linux and macOS agree.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// A shard's file. It counts as that of the manifest while it has its size. A modification time proves nothing: backups,
/// `touch` against purges of scratch file systems and some mounts change it and no byte. The checksums of a codec, where
/// it has some, prove the bytes.
pub struct LocalFile {
    file: File,
    size: u64,
}

impl LocalFile {
    /// Opens the file if it is the one in the manifest; otherwise the error says what differs.
    pub fn open(shard: &Shard, folder: &Path) -> Result<Self> {
        let path = folder.join(&*shard.path);
        let bad = |reason: String| {
            Error::Shard(ShardError { shard: Arc::clone(shard.name()), record: None, byte: None, reason })
        };
        let (file, size) = match open_regular(&path) {
            Ok(Some(opened)) => opened,
            Ok(None) => {
                let found = "expected a regular file, found a directory, a pipe or a device; restore it, or create \
                             the dataset again";
                return Err(bad(found.to_owned()));
            }
            Err(error) => {
                // Not the shard's fault: if it were quarantined, the stream would depend on the machine.
                return Err(match lacking(&error) {
                    Some(advice) => Error::System(format!(
                        "{}: expected to open the file, found: {error}; {advice}, or use fewer lanes=",
                        shard.name()
                    )),
                    None => bad(cannot_open(&error, &path, &shard.path)),
                });
            }
        };
        if size != shard.size {
            return Err(bad(format!(
                "expected the {} bytes of the manifest, found {size}: the file has changed since; restore it, or \
                 create the dataset again",
                shard.size
            )));
        }
        Ok(Self { file, size })
    }
}

impl Source for LocalFile {
    fn size(&self) -> u64 {
        self.size
    }

    /// Fails as soon as the file no longer has the manifest's size, so that one that is being written is reported as such
    /// and not as damaged.
    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read_at(out, offset)?;
        // After the read, so that these bytes are known to precede a change. One fstat a buffer.
        let size = self.file.metadata()?.len();
        if size != self.size {
            let was = self.size;
            return Err(io::Error::other(format!(
                "its size changed from {was} to {size} bytes while it was read"
            )));
        }
        if length == 0 && !out.is_empty() && offset != size {
            return Err(io::Error::other(format!("its end after {offset} of {size} bytes")));
        }
        Ok(length)
    }
}

/// Opens a file and returns its size. None: there is something else at this path.
pub fn open_regular(path: &Path) -> io::Result<Option<(File, u64)>> {
    // Checked before opening, too: opening some devices has effects.
    if !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    open_at_once(path)
}

fn open_at_once(path: &Path) -> io::Result<Option<(File, u64)>> {
    // A pipe that has come to the path since opens at once, and does not wait for a writer.
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        // Another process holds a lease on the file, as file servers do, and must release it first.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => File::open(path)?,
        opened => opened?,
    };
    let metadata = file.metadata()?;
    Ok(metadata.is_file().then_some((file, metadata.len())))
}

fn cannot_open(error: &io::Error, path: &Path, name: &str) -> String {
    if error.kind() != io::ErrorKind::NotFound {
        return format!(
            "expected a readable file, found: {error}; make it readable, or create the dataset without it"
        );
    }
    let at = if path.as_os_str() == name { String::new() } else { format!(" at {}", path.display()) };
    format!("expected the file of the manifest, found none{at}; restore it, or create the dataset again")
}

/// Advice if a file cannot be opened because the system has too little of something.
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
    fn reads_from_any_offset() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("s"), b"0123456789").unwrap();
        let mut file = LocalFile::open(&Shard::whole("s", 10), folder.path()).unwrap();
        let mut two = [0; 2];
        for offset in [4, 6, 0, 8] {
            assert_eq!(file.read_at(offset, &mut two).unwrap(), 2);
            assert_eq!(usize::from(two[0] - b'0'), offset as usize);
        }
        assert_eq!(file.read_at(10, &mut two).unwrap(), 0, "the end");
        assert!(file.read_at(11, &mut two).is_err(), "past the end");
    }

    #[test]
    fn pipes_and_folders_are_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), folder.path(), Path::new("/dev/null")] {
            assert!(open_regular(path).unwrap().is_none(), "{path:?}");
        }
        // One that came to the path after the first look.
        assert!(open_at_once(&pipe).unwrap().is_none());
    }

    #[test]
    fn lack_of_resources_is_not_a_bad_shard() {
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
