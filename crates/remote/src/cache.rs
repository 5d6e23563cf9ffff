//! Objects kept as files of a folder that several processes share.
//!
//! A file holds the bytes of one object and, behind them, its key and a checksum; its name is a hash of the key. It is
//! written under another name while the object's ranges arrive in any order, and renamed once all are there, so that a
//! file with its final name is whole. Who writes one holds a lock on it: a file without, left by a process that was
//! killed, is removed by the next one that makes room.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::counters::{Counters, lock};

/// The names of files that are whole, and of those that are written.
const WHOLE: &str = ".shard";
const UNFINISHED: &str = ".unfinished";
/// The bytes at the end of a file, after its checksum.
const MARK: &[u8; 8] = b"gmcache1";
const CHUNK_BYTES: usize = 1 << 20;

/// Where objects are kept, and how many bytes of them at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOptions {
    /// The folder, which is created.
    pub folder: PathBuf,
    /// The most bytes of all files in it.
    pub bytes: u64,
}

/// A folder of objects.
pub(crate) struct Cache {
    options: CacheOptions,
    counters: Arc<Counters>,
    /// Files that were used since then stay: with the oldest of them removed first, a run over more bytes than the cache
    /// holds would find none of its shards again.
    since: SystemTime,
    /// A line in the log is enough.
    has_failed: AtomicBool,
    written: AtomicU64,
}

/// The object that is kept: what changes if its bytes do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) url: String,
    pub(crate) size: u64,
    pub(crate) e_tag: String,
}

impl Key {
    fn text(&self) -> String {
        format!("{}\n{}\n{}", self.url, self.size, self.e_tag)
    }

    /// A name that is the same in all versions: 64-bit FNV-1a. The file itself says which object it holds.
    fn name(&self) -> String {
        let hash = self.text().bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

impl Cache {
    pub(crate) fn new(options: &CacheOptions, counters: &Arc<Counters>) -> Self {
        Self {
            options: options.clone(),
            counters: Arc::clone(counters),
            since: SystemTime::now(),
            has_failed: AtomicBool::new(false),
            written: AtomicU64::new(0),
        }
    }

    /// The file of an object, if it is there and undamaged.
    pub(crate) fn find(&self, key: &Key) -> Option<File> {
        let path = self.path(key);
        let file = File::open(&path).ok()?;
        match is_whole(&file, key) {
            Ok(true) => {
                // When it was used. Where that cannot be written it is an old file, which may make room.
                let _ = file.set_modified(SystemTime::now());
                Some(file)
            }
            Ok(false) => {
                let path = path.display();
                self.counters
                    .note(Some(format!("{}: damaged in the cache at {path}; fetching it again", key.url)));
                let _ = fs::remove_file(self.path(key));
                None
            }
            Err(error) => {
                self.report(&error);
                None
            }
        }
    }

    /// Whether an object seems to be there; [`find`](Self::find) knows.
    pub(crate) fn may_have(&self, key: &Key) -> bool {
        self.path(key).exists()
    }

    /// Removes the file of an object, whose bytes turned out to be damaged.
    pub(crate) fn forget(&self, key: &Key) {
        let _ = fs::remove_file(self.path(key));
    }

    /// A file for an object whose ranges arrive. None: there is no room, or the folder cannot be written.
    pub(crate) fn begin(self: &Arc<Self>, key: Key) -> Option<Tee> {
        let created = self.make_room(key.size).and_then(|has_room| {
            if !has_room {
                return Ok(None);
            }
            let number = self.written.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{}-{number}{UNFINISHED}", key.name(), std::process::id());
            let path = self.options.folder.join(name);
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
            let tee =
                Tee { cache: Arc::clone(self), key, path, file: Mutex::new(Some((file, BTreeMap::new()))) };
            if let Some((file, _)) = &*lock(&tee.file) {
                file.lock()?;
                // Counted by other processes from now on.
                file.set_len(tee.key.size)?;
            }
            Ok(Some(tee))
        });
        created.unwrap_or_else(|error| {
            self.report(&error);
            None
        })
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.options.folder.join(key.name() + WHOLE)
    }

    /// Removes files that were not used lately until there is room for so many more bytes; whether there is.
    fn make_room(&self, size: u64) -> io::Result<bool> {
        fs::create_dir_all(&self.options.folder)?;
        let (mut total, mut old) = (size, Vec::new());
        for entry in fs::read_dir(&self.options.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Ok(found) = path.metadata() else { continue };
            if name.ends_with(UNFINISHED) && is_left_behind(&path) {
                let _ = fs::remove_file(&path);
            } else if name.ends_with(UNFINISHED) || name.ends_with(WHOLE) {
                total += found.len();
                let used = found.modified()?;
                if name.ends_with(WHOLE) && used < self.since {
                    old.push((used, found.len(), path.clone()));
                }
            }
        }
        old.sort_unstable();
        let mut old = old.into_iter();
        while total > self.options.bytes {
            let Some((_, length, path)) = old.next() else { return Ok(false) };
            let _ = fs::remove_file(path);
            total -= length;
        }
        Ok(true)
    }

    /// The cache is of no use: the run continues without it.
    fn report(&self, error: &io::Error) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            let folder = self.options.folder.display();
            self.counters
                .note(Some(format!("cannot write into cache_dir={folder}: {error}; continuing without it")));
        }
    }
}

/// Whether a file's process has ended. A file system without locks never says so.
fn is_left_behind(path: &Path) -> bool {
    let is_left_behind = |file: File| -> io::Result<bool> {
        // One that is created at this moment has no lock yet.
        let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
        Ok(age > Duration::from_secs(60) && file.try_lock().is_ok())
    };
    File::open(path).and_then(is_left_behind).unwrap_or(false)
}

/// Whether a file holds the bytes of an object as they were written.
fn is_whole(file: &File, key: &Key) -> io::Result<bool> {
    let end = ending(key, checksum(file, key.size)?);
    let mut found = vec![0; end.len()];
    let is_long = file.metadata()?.len() == key.size + end.len() as u64;
    Ok(is_long && file.read_exact_at(&mut found, key.size).is_ok() && found == end)
}

/// The bytes after an object's own.
fn ending(key: &Key, checksum: u32) -> Vec<u8> {
    [key.text().as_bytes(), &checksum.to_le_bytes(), MARK].concat()
}

/// The CRC-32 of the first bytes of a file, fewer if it has fewer.
fn checksum(file: &File, size: u64) -> io::Result<u32> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let (mut crc, mut offset) = (crc32fast::Hasher::new(), 0);
    while offset < size {
        let most = buffer.len().min((size - offset) as usize);
        let length = file.read_at(&mut buffer[..most], offset)?;
        if length == 0 {
            break;
        }
        crc.update(&buffer[..length]);
        offset += length as u64;
    }
    Ok(crc.finalize())
}

/// The file of an object whose ranges arrive. One that is not finished is removed.
pub(crate) struct Tee {
    cache: Arc<Cache>,
    key: Key,
    path: PathBuf,
    /// None once it is finished, or has failed. The ranges that are written, from start to end, none of which touch.
    file: Mutex<Option<(File, BTreeMap<u64, u64>)>>,
}

impl Tee {
    /// Adds a range, and finishes the file with the last one. Blocks.
    pub(crate) fn write(&self, start: u64, bytes: &[u8]) {
        let mut held = lock(&self.file);
        let Some((file, ranges)) = &mut *held else { return };
        let written = file.write_all_at(bytes, start).and_then(|()| {
            join(ranges, start..start + bytes.len() as u64);
            let is_whole = ranges.get(&0).is_some_and(|end| *end >= self.key.size);
            if is_whole { self.finish(file).map(|()| true) } else { Ok(false) }
        });
        match written {
            Ok(false) => {}
            Ok(true) => *held = None,
            Err(error) => {
                *held = None;
                let _ = fs::remove_file(&self.path);
                self.cache.report(&error);
            }
        }
    }

    /// Gives the file up: some bytes in it are damaged.
    pub(crate) fn give_up(&self) {
        if lock(&self.file).take().is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }

    fn finish(&self, file: &File) -> io::Result<()> {
        let crc = checksum(file, self.key.size)?;
        file.write_all_at(&ending(&self.key, crc), self.key.size)?;
        file.sync_all()?;
        fs::rename(&self.path, self.cache.path(&self.key))
    }
}

impl Drop for Tee {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Adds a range to ranges of which none touch.
fn join(ranges: &mut BTreeMap<u64, u64>, mut range: Range<u64>) {
    let touching: Vec<_> =
        ranges.range(..=range.end).filter(|(_, end)| **end >= range.start).map(|(start, _)| *start).collect();
    for start in touching {
        let end = ranges.remove(&start).unwrap_or_default();
        range = range.start.min(start)..range.end.max(end);
    }
    ranges.insert(range.start, range.end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(url: &str, size: u64) -> Key {
        Key { url: url.into(), size, e_tag: "\"1\"".into() }
    }

    fn cache(folder: &Path, bytes: u64) -> Arc<Cache> {
        let options = CacheOptions { folder: folder.into(), bytes };
        Arc::new(Cache::new(&options, &Arc::default()))
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn ranges_in_any_order_make_a_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1 << 20);
        let tee = cache.begin(key("s3://b/x", 10)).unwrap();
        for start in [4, 0, 8, 2, 4] {
            assert!(cache.find(&key("s3://b/x", 10)).is_none());
            tee.write(start, &[start as u8; 2]);
        }
        assert!(cache.find(&key("s3://b/x", 10)).is_none());
        tee.write(6, &[6; 2]);
        let mut found = [0; 10];
        cache.find(&key("s3://b/x", 10)).unwrap().read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]);
        let other = Key { e_tag: "\"2\"".into(), ..key("s3://b/x", 10) };
        assert!(cache.find(&other).is_none());
        drop(tee);
        assert_eq!(files(folder.path()), 1);
    }

    #[test]
    fn damaged_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1 << 20);
        let path = cache.path(&key("x", 4));
        for damage in 0..3 {
            cache.begin(key("x", 4)).unwrap().write(0, b"data");
            let mut bytes = fs::read(&path).unwrap();
            match damage {
                0 => bytes[1] ^= 1,
                1 => bytes.truncate(3),
                _ => bytes[5] ^= 1,
            }
            fs::write(&path, bytes).unwrap();
            assert!(cache.find(&key("x", 4)).is_none());
            assert!(!path.exists());
        }
    }

    #[test]
    fn room_is_made_of_files_that_were_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let old = cache(folder.path(), 1000);
        for name in ["a", "b", "c"] {
            old.begin(key(name, 200)).unwrap().write(0, &[1; 200]);
        }
        let new = cache(folder.path(), 800);
        assert!(new.find(&key("a", 200)).is_some());
        new.begin(key("d", 300)).unwrap().write(0, &[1; 300]);
        assert!(new.find(&key("a", 200)).is_some() && new.find(&key("d", 300)).is_some());
        assert!(new.find(&key("b", 200)).is_none());
        assert!(new.begin(key("e", 600)).is_none(), "those of this run stay");
    }

    #[test]
    fn unfinished_files_of_others_are_removed_unless_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1 << 20);
        let old = File::create(folder.path().join("0-1-0.unfinished")).unwrap();
        old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let one = cache.begin(key("x", 4)).unwrap();
        let two = cache.begin(key("y", 4)).unwrap();
        assert_eq!(files(folder.path()), 2);
        one.write(0, b"data");
        drop(two);
        assert_eq!(files(folder.path()), 1);
    }

    #[test]
    fn folder_that_cannot_be_written_is_noted_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = cache(file.path(), 1 << 20);
        assert!(cache.begin(key("x", 4)).is_none() && cache.begin(key("x", 4)).is_none());
        assert_eq!(cache.counters.take_notes().len(), 1);
    }
}
