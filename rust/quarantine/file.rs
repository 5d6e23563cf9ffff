//! The quarantine file: one line of JSON for each quarantined record, and for each delivered sample of which an image
//! cannot be decoded.
//!
//! Lines are appended as the lanes read, some batches before a batch is delivered without the record. A restored run
//! reads some records again: lines after the restored position that are already in the file are not written twice. The
//! content of a line depends on the stream and the shards' paths alone, so that the files of several hosts, or of a run that
//! moved between hosts, can be merged with `sort -u` where the paths are alike.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, ShardError};
use crate::spec::QuarantineFileSpec;

/// The most lines after the restored position that are remembered, 8 bytes each. Beyond that, lines may be listed twice,
/// but none is missing.
const REMEMBERED: usize = 1 << 20;

/// Linux's errors of file systems that do not have a call: ENOSYS, EOPNOTSUPP and EINVAL.
const NOT_SUPPORTED: [i32; 3] = [38, 95, 22];

/// Further errors of a folder that can be written and not synced, or not be read: EBADF, EACCES, EPERM and EISDIR.
const NO_SYNC_OF_FOLDERS: [i32; 4] = [9, 13, 1, 21];

/// The start of every line.
const HEAD: &[u8] = br#"{"shard":"#;

/// A file of entries, appended to by all lanes of a pipeline.
pub struct QuarantineFile {
    spec: QuarantineFileSpec,
    /// The process that opened it: in a forked child the lock may be held forever.
    process: u32,
    state: Mutex<State>,
}

struct State {
    file: File,
    /// Hashes of the lines in the file that may come up again.
    known: HashSet<u64>,
    /// Whether the file's last line may be incomplete: truncated by a kill or a full disk, or, when the file was opened,
    /// just being written by another process.
    was_torn: bool,
    is_synced: bool,
    /// Whether the file system counts a file's names: some report 0 for every file.
    counts_names: bool,
    /// Why it could not be synced. Syncing is not retried: a later attempt would not report what was lost.
    lost: Option<Error>,
}

/// A line of the file.
#[derive(Serialize)]
struct Line<'a> {
    shard: &'a str,
    record: Option<u64>,
    byte: Option<u64>,
    reason: &'a str,
    epoch: u64,
    lane: usize,
    /// Counts the lane's entries of this kind from 1, as `quarantined` or `undecodable` in a saved state does.
    number: u64,
    stream: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    undecodable: bool,
}

/// The fields of a line that say whether it is after a restored position.
#[derive(Deserialize)]
struct Known {
    lane: usize,
    number: u64,
    stream: String,
    #[serde(default)]
    undecodable: bool,
}

/// A lane, and how many records are quarantined and how many samples undecodable before its cursor.
pub type Before = (usize, [u64; 2]);

impl QuarantineFile {
    /// Opens the file for lanes at their cursors.
    pub fn open(spec: &QuarantineFileSpec, lanes: &[Before]) -> Result<Self> {
        let open = || {
            let file = OpenOptions::new().read(true).append(true).create(true).open(&spec.path)?;
            let (known, was_torn) = read_known(&file, &spec.stream, lanes)?;
            if file.metadata()?.len() == 0 {
                // New, or its name was not synced by the process that made it.
                sync_folder(Path::new(&spec.path))?;
            }
            let counts_names = !is_nameless(&file);
            // Its content may be of a run that was killed before the content was on disk.
            Ok(State { file, known, was_torn, is_synced: false, counts_names, lost: None })
        };
        let state = open().map_err(|error| failed(spec, "open", &error))?;
        Ok(Self { spec: spec.clone(), process: std::process::id(), state: Mutex::new(state) })
    }

    /// Writes the entry of a quarantined record unless it is already in the file.
    pub fn append(&self, lane: usize, number: u64, epoch: u64, error: &ShardError) -> Result<()> {
        self.write(lane, number, epoch, error, false)
    }

    /// Writes the entry of a delivered sample of which an image cannot be decoded, unless it is already in the file.
    pub fn append_undecodable(&self, lane: usize, number: u64, epoch: u64, error: &ShardError) -> Result<()> {
        self.write(lane, number, epoch, error, true)
    }

    fn write(
        &self,
        lane: usize,
        number: u64,
        epoch: u64,
        error: &ShardError,
        undecodable: bool,
    ) -> Result<()> {
        let ShardError { shard, record, byte, reason } = error;
        let (record, byte, stream) = (*record, *byte, &*self.spec.stream);
        let entry = Line { shard, record, byte, reason, epoch, lane, number, stream, undecodable };
        let text = serde_json::to_string(&entry).map_err(|error| Error::Bug(error.to_string()))?;
        let mut state = self.lock();
        if state.known.remove(&hash(text.as_bytes())) {
            return Ok(());
        }
        state.is_synced = false;
        let mut write = || {
            let is_torn = std::mem::take(&mut state.was_torn) && lacks_end(&mut state.file)?;
            let end = if is_torn { "\n" } else { "" };
            // One write to a file opened for appending: lines of several processes do not mix.
            state.file.write_all(format!("{end}{text}\n").as_bytes())
        };
        let written = write();
        state.was_torn = written.is_err();
        written.map_err(|error| failed(&self.spec, "write to", &error))
    }

    /// Returns once everything written is on disk.
    pub fn sync(&self) -> Result<()> {
        if self.process != std::process::id() {
            return Ok(());
        }
        let mut state = self.lock();
        if state.lost.is_none() && state.counts_names && is_nameless(&state.file) {
            let error = io::Error::other("the file was removed during the run, and its lines are lost");
            state.lost = Some(failed(&self.spec, "write to", &error));
        }
        if !state.is_synced && state.lost.is_none() {
            match ignoring(&[&NOT_SUPPORTED], state.file.sync_data()) {
                Ok(()) => state.is_synced = true,
                Err(error) => state.lost = Some(failed(&self.spec, "write to", &error)),
            }
        }
        state.lost.clone().map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hashes of the lines of `stream` that are after the cursors of `lanes`, and whether the last line of the file is
/// incomplete.
fn read_known(file: &File, stream: &str, lanes: &[Before]) -> io::Result<(HashSet<u64>, bool)> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("expected a regular file"));
    }
    let listed: HashMap<usize, [u64; 2]> = lanes.iter().copied().collect();
    let other = || Err(io::Error::other("it does not hold quarantined records"));
    let (mut known, mut line) = (HashSet::new(), Vec::new());
    let (mut is_torn, mut has_lines, mut has_entries) = (false, false, false);
    let mut reader = BufReader::new(file);
    // A mistyped path must neither corrupt other data nor make this read an endless line.
    let first_line = reader.fill_buf()?.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if first_line.iter().zip(HEAD).any(|(found, expected)| found != expected) {
        return other();
    }
    while reader.read_until(b'\n', &mut line)? > 0 {
        is_torn = line.pop_if(|last| *last == b'\n').is_none();
        let entry = serde_json::from_slice::<Known>(&line).ok();
        has_lines |= !is_torn;
        has_entries |= entry.is_some();
        let is_ahead = entry.is_some_and(|entry| {
            let kind = usize::from(entry.undecodable);
            entry.stream == stream
                && listed.get(&entry.lane).is_some_and(|before| entry.number > before[kind])
        });
        if is_ahead && !is_torn && known.len() < REMEMBERED {
            known.insert(hash(&line));
        }
        line.clear();
    }
    // Lines that were torn are followed by an entry, or by one that is torn as well.
    if has_lines && !has_entries && !is_torn {
        return other();
    }
    Ok((known, is_torn))
}

/// Whether a file has no name: it was removed, and will be gone when it is closed.
fn is_nameless(file: &File) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }
    #[cfg(not(unix))]
    false
}

/// The name of a new file is durable only once its folder is synced too. CIFS, sshfs, gocryptfs and `VirtualBox`'s
/// shared folders cannot do that.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ignoring(&[&NOT_SUPPORTED, &NO_SYNC_OF_FOLDERS], File::open(folder).and_then(|folder| folder.sync_all()))
}

/// A result in which some of the system's errors, by their numbers, count as success.
fn ignoring(errors: &[&[i32]], result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| match error.raw_os_error() {
        Some(number) if errors.iter().any(|some| some.contains(&number)) => Ok(()),
        _ => Err(error),
    })
}

fn lacks_end(file: &mut File) -> io::Result<bool> {
    let mut last = [0];
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

fn hash(line: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish()
}

fn failed(spec: &QuarantineFileSpec, what: &str, error: &io::Error) -> Error {
    Error::System(format!(
        "cannot {what} quarantine_file={:?}: {error}; fix this, then resume from the last saved state, with a \
         new iterator or the same command",
        spec.path
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(record: u64) -> ShardError {
        ShardError { shard: "a/b.gz".into(), record: Some(record), byte: Some(9), reason: "no \"x\"".into() }
    }

    fn spec(folder: &tempfile::TempDir, stream: &str) -> QuarantineFileSpec {
        let path = folder.path().join("quarantine.jsonl").to_str().unwrap().into();
        QuarantineFileSpec { path, stream: stream.into() }
    }

    fn lines(spec: &QuarantineFileSpec) -> Vec<String> {
        std::fs::read_to_string(&spec.path).unwrap().lines().map(String::from).collect()
    }

    #[test]
    fn entry_read_again_is_listed_once() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(&folder, "s1");
        let file = QuarantineFile::open(&spec, &[(3, [0, 0])]).unwrap();
        for number in 1..=4 {
            file.append(3, number, 0, &entry(number)).unwrap();
        }
        file.sync().unwrap();
        let before = lines(&spec);
        assert_eq!(
            before[0],
            r#"{"shard":"a/b.gz","record":1,"byte":9,"reason":"no \"x\"","epoch":0,"lane":3,"number":1,"stream":"s1"}"#
        );
        // Restored after the second entry: the third and the fourth come up again, then one is new, and one has
        // changed.
        let file = QuarantineFile::open(&spec, &[(3, [2, 0]), (4, [0, 0])]).unwrap();
        for number in 3..=4 {
            file.append(3, number, 0, &entry(number)).unwrap();
        }
        assert_eq!(lines(&spec), before);
        file.append(3, 5, 0, &entry(5)).unwrap();
        file.append(4, 1, 0, &entry(1)).unwrap();
        let file = QuarantineFile::open(&spec, &[(3, [4, 0])]).unwrap();
        file.append(3, 5, 0, &entry(6)).unwrap();
        assert_eq!(lines(&spec).len(), 7);
    }

    #[test]
    fn undecodable_samples_are_counted_apart() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(&folder, "s1");
        let file = QuarantineFile::open(&spec, &[(0, [0, 0])]).unwrap();
        file.append(0, 1, 0, &entry(1)).unwrap();
        file.append_undecodable(0, 1, 0, &entry(1)).unwrap();
        file.append_undecodable(0, 2, 0, &entry(2)).unwrap();
        let before = lines(&spec);
        assert!(before[1].ends_with(r#""number":1,"stream":"s1","undecodable":true}"#), "{}", before[1]);
        assert_eq!(before.len(), 3);
        let file = QuarantineFile::open(&spec, &[(0, [1, 1])]).unwrap();
        file.append_undecodable(0, 2, 0, &entry(2)).unwrap();
        assert_eq!(lines(&spec), before);
        file.append(0, 2, 0, &entry(2)).unwrap();
        assert_eq!(lines(&spec).len(), 4);
    }

    #[test]
    fn entries_of_an_earlier_run_are_synced_before_a_state_is_saved() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(&folder, "s1");
        // Killed before the file was synced.
        QuarantineFile::open(&spec, &[(0, [0, 0])]).unwrap().append(0, 1, 0, &entry(1)).unwrap();
        let file = QuarantineFile::open(&spec, &[(0, [0, 0])]).unwrap();
        file.append(0, 1, 0, &entry(1)).unwrap();
        assert!(!file.lock().is_synced);
        file.sync().unwrap();
        assert!(file.lock().is_synced);
        // Opened behind it, where nothing comes up again, as by an iterator that an interrupt takes back a batch.
        assert!(!QuarantineFile::open(&spec, &[(0, [1, 0])]).unwrap().lock().is_synced);
    }

    #[test]
    fn streams_share_a_file_and_torn_lines_are_rewritten() {
        let folder = tempfile::tempdir().unwrap();
        let config1 = spec(&folder, "s1");
        QuarantineFile::open(&config1, &[(0, [0, 0])]).unwrap().append(0, 1, 0, &entry(1)).unwrap();
        let whole = std::fs::read(&config1.path).unwrap();
        let config2 = spec(&folder, "s2");
        QuarantineFile::open(&config2, &[(0, [0, 0])]).unwrap().append(0, 1, 0, &entry(1)).unwrap();
        assert_eq!(lines(&config1).len(), 2);
        for cut in 1..whole.len() {
            std::fs::write(&config1.path, &whole[..cut]).unwrap();
            QuarantineFile::open(&config1, &[(0, [0, 0])]).unwrap().append(0, 1, 0, &entry(1)).unwrap();
            let text = std::fs::read(&config1.path).unwrap();
            assert_eq!(text, [&whole[..cut], b"\n", &whole[..]].concat());
            let again = QuarantineFile::open(&config1, &[(0, [0, 0])]).unwrap();
            again.append(0, 1, 0, &entry(1)).unwrap();
            assert_eq!(std::fs::read(&config1.path).unwrap(), text);
        }
        // Another process was just writing the line, and has since written the rest of it.
        std::fs::write(&config1.path, &whole[..9]).unwrap();
        let file = QuarantineFile::open(&config1, &[(0, [0, 0])]).unwrap();
        OpenOptions::new().append(true).open(&config1.path).unwrap().write_all(&whole[9..]).unwrap();
        file.append(0, 2, 0, &entry(2)).unwrap();
        assert_eq!(lines(&config1)[0].len() + 1, whole.len());
        assert_eq!(lines(&config1).len(), 2);
    }

    /// A disk that was full for a moment holds the beginning of an entry, which the next one must not continue.
    #[test]
    fn partial_line_is_ended_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(&folder, "s1");
        let file = QuarantineFile::open(&spec, &[(0, [0, 0])]).unwrap();
        for begun in ["", "{\"shard\":\"a/"] {
            let read_only = File::open(&spec.path).unwrap();
            let writable = std::mem::replace(&mut file.lock().file, read_only);
            assert!(file.append(0, 1, 0, &entry(1)).is_err());
            file.lock().file = writable;
            OpenOptions::new().append(true).open(&spec.path).unwrap().write_all(begun.as_bytes()).unwrap();
            file.append(0, 2, 0, &entry(2)).unwrap();
        }
        let lines = lines(&spec);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1], "{\"shard\":\"a/");
        assert_eq!(lines[0], lines[2]);
    }

    #[test]
    fn unusable_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let shard = folder.path().join("shard.jsonl");
        std::fs::write(&shard, "{\"text\": \"a\"}\n").unwrap();
        let state = folder.path().join("state.json");
        std::fs::write(&state, "{\"version\": 1}").unwrap();
        let of_another = folder.path().join("of_another.jsonl");
        std::fs::write(&of_another, "{\"shard\":\"a\",\"size\":1}\n{\"shard\":\"b\",\"size\":2}\n").unwrap();
        for (path, reason) in [
            ("/dev/full", "expected a regular file"),
            (shard.to_str().unwrap(), "it does not hold quarantined records"),
            // No newline at its end either: it is not a truncated entry.
            (state.to_str().unwrap(), "it does not hold quarantined records"),
            (of_another.to_str().unwrap(), "it does not hold quarantined records"),
            ("/nowhere/q.jsonl", "No such file or directory"),
        ] {
            let spec = QuarantineFileSpec { path: path.into(), stream: "s".into() };
            let error = QuarantineFile::open(&spec, &[]).err().unwrap().to_string();
            assert!(
                error.starts_with(&format!("cannot open quarantine_file=\"{path}\": {reason}")),
                "{error}"
            );
        }
        assert_eq!(std::fs::read(&shard).unwrap().len(), 14);
    }
}
