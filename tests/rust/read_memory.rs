//! Reading takes bounded memory, whatever the shard holds: counted by the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use _core::format::{AfterError, Projection, ReadOptions, RecordReader};
use flate2::Compression;
use flate2::write::GzEncoder;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// Counts the bytes that are allocated, and the most there were.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator as it comes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: usize = 1 << 20;

/// The buffers that every reader has, with room to spare.
const FIXED: usize = 3 * MIB;

/// A buffer of this size, and the half as large one from which it grew: the system's allocator mostly grows a buffer where
/// it is, the one here never does.
fn grown(size: usize) -> usize {
    size + size / 2
}

/// Numbers of records read, and bytes of memory held at most and at the end.
struct Outcome {
    documents: u64,
    bad: u64,
    peak: usize,
    held: usize,
}

fn read(compressed: &[u8], max_document_bytes: usize) -> Outcome {
    let options = Arc::new(ReadOptions {
        access: _core::store::Access::default(),
        projection: Projection::text("text"),
        keep: None,
        max_document_bytes: max_document_bytes as u64,
        ids: None,
    });
    let source = Box::new(compressed.to_vec());
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let mut reader =
        RecordReader::from_source(&"bomb".into(), source, &options, &Arc::default()).expect("opens");
    let (mut documents, mut bad) = (0, 0);
    loop {
        // A string of its own, so that memory held at the end is the reader's.
        match reader.next_text(&mut String::new()) {
            Ok(None) => break,
            Ok(Some(_)) => documents += 1,
            Err(error) => {
                assert_eq!(error.rest, AfterError::Readable, "{error}");
                assert!(error.to_string().len() < 1000, "{} bytes of message", error.to_string().len());
                bad += 1;
            }
        }
    }
    let (peak, held) = (PEAK.load(Relaxed) - before, HELD.load(Relaxed) - before);
    Outcome { documents, bad, peak, held }
}

/// `before`, then `times` times `unit`, then `after`, compressed.
fn bomb(before: &str, unit: &str, times: usize, after: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(before.as_bytes()).expect("fits");
    let block = unit.repeat(MIB / unit.len());
    for _ in 0..times / (MIB / unit.len()) {
        encoder.write_all(block.as_bytes()).expect("fits");
    }
    encoder.write_all(after.as_bytes()).expect("fits");
    encoder.finish().expect("fits")
}

/// A Parquet file of one row group.
fn parquet_file(texts: impl Iterator<Item = String>) -> Vec<u8> {
    let schema = parse_message_type("message rows { required binary text (UTF8); }").expect("parses");
    let properties = WriterProperties::builder()
        .set_compression(parquet::basic::Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_write_batch_size(1);
    let mut writer =
        SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties.build())).expect("opens");
    let mut rows = writer.next_row_group().expect("opens");
    let mut column = rows.next_column().expect("opens").expect("is there");
    for text in texts {
        let value = parquet::data_type::ByteArray::from(text.into_bytes());
        column.typed::<parquet::data_type::ByteArrayType>().write_batch(&[value], None, None).expect("fits");
    }
    column.close().expect("fits");
    rows.close().expect("fits");
    writer.into_inner().expect("fits")
}

/// One test, because the memory counted is that of the whole process.
#[test]
fn memory_is_bounded() {
    const INFLATED: usize = 128 * MIB;
    let limit = 4 * MIB;
    let document = "\n{\"text\":\"a\"}\n";

    // One line of zeros that never ends, a thousand times its compressed size.
    let shard = bomb(document, "0", INFLATED, document);
    assert!(INFLATED / shard.len() > 900);
    // And one more of zeros in Zstandard, ten thousand times its compressed size.
    let frames = [document.as_bytes(), &vec![b'0'; INFLATED], document.as_bytes()].map(|part| {
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(part.len()));
        zstd_safe::compress(&mut frame, part, 3).expect("fits");
        frame
    });
    let frames = frames.concat();
    assert!(INFLATED / frames.len() > 9_000);
    for shard in [&shard, &frames] {
        let seen = read(shard, limit);
        assert_eq!((seen.documents, seen.bad), (2, 1));
        assert!(seen.peak < grown(limit) + FIXED, "{} bytes for an endless line", seen.peak);
    }

    // A row group of 200 MB of text, in pages of 1 MiB: those of a value are held, and what inflates them.
    let texts = (0..2000).map(|i: u32| i.to_string().repeat(100_000 / i.to_string().len()));
    let shard = parquet_file(texts);
    let seen = read(&shard, limit);
    assert_eq!((seen.documents, seen.bad), (2000, 0));
    assert!(seen.peak < FIXED + 3 * MIB, "{} bytes for a large row group", seen.peak);

    for (unit, bad_lines) in [("\n", false), (" \r\n", false), ("{}\n", true), ("{\"text\":\"\"}\n", false)] {
        let seen = read(&bomb("", unit, INFLATED / 8 / unit.len(), document), limit);
        assert!(seen.documents > 0 && (seen.bad > 0) == bad_lines);
        assert!(seen.peak < FIXED, "{} bytes for many {unit:?}", seen.peak);
    }

    // A line as long as it may be: the line, its text, and a bit for each of its brackets.
    let limit = 32 * MIB;
    for (before, unit, after, valid) in [
        ("{\"text\":\"", "x", "\"}", true),
        ("{\"text\":\"", "\\n", "\"}", true),
        ("{\"x\":", "[", "}", false),
        ("{\"text\":", "{\"text\":", "}", false),
        ("{", "\"\":0,", "\"\":0}", false),
    ] {
        let times = (limit - MIB) / unit.len();
        let small = document.repeat(50_000);
        let seen = read(&bomb(before, unit, times, &format!("{after}{small}")), limit);
        assert_eq!(seen.documents, 50_000 + u64::from(valid), "{unit}");
        let besides = if valid { 3 * limit } else { limit / 4 };
        assert!(seen.peak < grown(limit) + besides + FIXED, "{} bytes for a line of {unit}", seen.peak);
        assert!(seen.held < FIXED, "{} bytes are still held after a line of {unit}", seen.held);
    }
}
