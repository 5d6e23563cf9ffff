//! Files that differ from the manifest, or change while they are read.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use _core::store::Shard;

use super::resume::shard_file;
use super::*;

fn open_error(shard: &Shard) -> ShardError {
    let error = match RecordReader::open(shard, &options(1000), &Arc::default()) {
        Err(Error::Shard(error)) => error,
        other => panic!("{:?}", other.err()),
    };
    assert_eq!((error.record, error.byte), (None, None));
    error
}

#[test]
fn missing_file_or_other_size_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let shard = shard_file(&folder, "s.jsonl", b"12345");
    let path = &shard.path;
    assert_eq!(
        open_error(&Shard { size: 7, ..shard.clone() }).to_string(),
        format!(
            "{path}: expected the 7 bytes of the manifest, found 5: the file has changed since; restore it, or create \
             the dataset again"
        )
    );
    std::fs::remove_file(&**path).unwrap();
    assert_eq!(
        open_error(&shard).to_string(),
        format!(
            "{path}: expected the file of the manifest, found none; restore it, or create the dataset again"
        )
    );
    let directory = Shard::whole(folder.path().to_str().unwrap(), 0);
    assert!(
        open_error(&directory)
            .to_string()
            .ends_with("expected a regular file, found a directory, a pipe or a device; restore it, or create the dataset again")
    );
    let no_path = Shard::whole("a\0b", 0);
    assert!(open_error(&no_path).to_string().contains("expected a readable file, found: "));
}

/// A shard of some megabytes whose file `change` changes after the first document: the records read before and after,
/// and those of the unchanged shard.
fn changed_while_read(compressed: bool, change: impl Fn(&mut File)) -> (Vec<Seen>, Vec<Seen>) {
    let folder = tempfile::tempdir().unwrap();
    let mut number = 1_u64;
    let mut lines = Vec::new();
    for _ in 0..100_000 {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        writeln!(lines, r#"{{"text": "{number}"}}"#).unwrap();
    }
    let bytes = if compressed { gzip(&lines) } else { lines };
    let shard = shard_file(&folder, "shard", &bytes);
    let mut file = OpenOptions::new().write(true).open(&*shard.path).unwrap();
    let whole = read_on(&mut RecordReader::open(&shard, &options(1000), &Arc::default()).unwrap());
    let mut reader = RecordReader::open(&shard, &options(1000), &Arc::default()).unwrap();
    let mut text = String::new();
    let (position, _) = reader.next_text(&mut text).unwrap().unwrap();
    change(&mut file);
    let mut seen = vec![Seen::Document(position, text)];
    seen.extend(read_on(&mut reader));
    (seen, whole)
}

#[test]
fn changed_size_is_an_error() {
    let resize = |change: i64| {
        move |file: &mut File| {
            let length = file.metadata().unwrap().len();
            file.set_len(length.checked_add_signed(change).unwrap()).unwrap();
        }
    };
    for (compressed, change) in [(false, 10), (false, -10), (true, 10), (true, -10)] {
        let (seen, whole) = changed_while_read(compressed, resize(change));
        let (last, documents) = seen.split_last().unwrap();
        let error = last.error().unwrap();
        assert!(error.error.reason.contains("its size changed from "), "{error}");
        assert_eq!(error.rest, AfterError::Lost);
        assert!(documents.len() < whole.len(), "{change}, compressed: {compressed}");
        assert_eq!(documents, &whole[..documents.len()], "the documents before the error are right");
    }
}

#[test]
fn changed_modification_time_is_no_error() {
    for compressed in [false, true] {
        for time in [SystemTime::UNIX_EPOCH, SystemTime::now() + Duration::from_secs(1000)] {
            let (seen, whole) = changed_while_read(compressed, |file| file.set_modified(time).unwrap());
            assert!(seen == whole, "compressed: {compressed}");
        }
    }
}

#[test]
fn gzip_trailer_reveals_bytes_rewritten_in_place() {
    let rewrite = |file: &mut File| {
        file.seek(SeekFrom::Start(500_000)).unwrap();
        file.write_all(b"other bytes").unwrap();
    };
    let (seen, _) = changed_while_read(true, rewrite);
    let error = seen.last().unwrap().error().unwrap();
    assert_eq!(error.rest, AfterError::Lost);
    assert!(error.error.reason.contains("gzip"), "{error}");
}

/// The first buffer holds all of the file, so the stop must be seen while it is inflated.
#[test]
fn stop_ends_reading_within_a_small_file() {
    let folder = tempfile::tempdir().unwrap();
    let record = b"{\"text\": \"a\"}\n";
    let shard = shard_file(&folder, "s.json.gz", &gzip(&[record, &*vec![b'\n'; 1 << 20], record].concat()));
    let stop = Arc::new(AtomicBool::new(false));
    let mut reader = RecordReader::open(&shard, &options(1000), &stop).unwrap();
    let mut text = String::new();
    assert!(reader.next_text(&mut text).unwrap().is_some());
    stop.store(true, Ordering::Relaxed);
    let error = reader.next_text(&mut text).unwrap_err().error;
    assert_eq!((error.reason.as_str(), &*text), ("reading was stopped", "a"));
}

/// An unlinked file can still be read, and is still that of the manifest.
#[test]
fn file_unlinked_while_open_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let shard = shard_file(&folder, "s.jsonl", &valid_shard());
    let mut reader = RecordReader::open(&shard, &options(1000), &Arc::default()).unwrap();
    std::fs::remove_file(&*shard.path).unwrap();
    assert_eq!(read_on(&mut reader), read("s.jsonl", &valid_shard()));
}

/// Files under /proc have content and a size of 0, like those of a file system that reports wrong sizes.
#[cfg(target_os = "linux")]
#[test]
fn end_at_another_byte_than_the_size_is_an_error() {
    let shard = Shard::whole("/proc/self/status", 0);
    let Ok(mut reader) = RecordReader::open(&shard, &options(1000), &Arc::default()) else { panic!("opens") };
    let seen = read_on(&mut reader);
    let reason = &seen.last().unwrap().error().unwrap().error.reason;
    assert!(reason.contains("found: its end after ") && reason.contains(" of 0 bytes"), "{reason}");
}
