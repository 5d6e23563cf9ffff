//! A lane's two ends together, over shards in a folder: its documents, cursors and counts.
//!
//! In place of a tokenizer, each byte of a text is a token.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use proptest::sample::Index;
use tempfile::TempDir;

use super::queue::{DocumentQueue, Next};
use crate::error::{Error, ShardError};
use crate::format::keep::{Expression, Instruction};
use crate::format::{Projection, ReadOptions, Step};
use crate::lane::admission::Admission;
use crate::lane::assignment::Plan;
use crate::lane::block::{Document, RawBlock, ReadEnd, SampleBlock};
use crate::lane::cursor::{Cursor, RecordPosition};
use crate::lane::id_buffer::IdBuffer;
use crate::lane::reader::LaneReader;
use crate::pipeline::block_samples::{Encoded, samples_of};
use crate::prepare::values::SourceFields;
use crate::prepare::{Prepare, Prepared, Sample};
use crate::spec::sidecars::Sidecars;
use crate::spec::{Layout, OnError, Packing, RowSpec, Shuffle, SourceSpec, Truncation, UntrainedRows};
use crate::store::Shard;

/// The shards of one lane, in a folder that lives as long as this.
pub(crate) struct Folder {
    pub(crate) spec: SourceSpec,
    _folder: TempDir,
}

fn folder(shards: &[&str]) -> Folder {
    folder_of(shards.iter().enumerate().map(|(number, lines)| (format!("{number:03}.jsonl"), lines)))
}

pub(crate) fn folder_of(files: impl Iterator<Item = (String, impl AsRef<[u8]>)>) -> Folder {
    let folder = tempfile::tempdir().unwrap();
    let shards = files.map(|(name, bytes)| {
        let path = folder.path().join(name);
        std::fs::write(&path, &bytes).unwrap();
        Shard::whole(path.to_str().unwrap(), bytes.as_ref().len() as u64)
    });
    let shards: Vec<Shard> = shards.collect();
    let sizes = shards.iter().map(|shard| shard.size).collect();
    let spec = SourceSpec {
        name: String::new(),
        number: 0,
        first_piece: 0,
        log_name: String::new(),
        shards,
        plan: Plan::new(sizes, 1, None),
        read: Arc::new(ReadOptions {
            access: crate::store::Access::default(),
            projection: Projection::text("text"),
            keep: None,
            max_document_bytes: 1 << 25,
            ids: None,
        }),
        sidecars: Sidecars::default(),
        drop: Arc::default(),
        prepare: Prepare::Text,
        fields: SourceFields::default(),
        on_error: OnError::Quarantine { max_error_rate: 1.0 },
        shuffle: None,
        adds_at: None,
        epochs: Some(1),
        bos: None,
        eos: None,
        untrained_rows: UntrainedRows::Deliver,
        balance: None,
        rows: RowSpec {
            sequence_length: 8,
            packing: Packing::Concat,
            truncation: Truncation::Split,
            max_segments: None,
            layout: Layout::MaxText,
            segment_multiple: 1,
            boundary_targets: false,
            rows_per_lane: 1,
        },
    };
    Folder { spec, _folder: folder }
}

impl Folder {
    /// With a filter that leaves out the records that have `"left_out": true`.
    fn filtered(mut self) -> Self {
        let projection = Projection::text("text").with_paths(vec![vec![Step::Key("left_out".into())]]);
        let keep = Some(Expression(vec![Instruction::Path(0), Instruction::Not]));
        self.spec.read = Arc::new(ReadOptions { projection, keep, ..(*self.spec.read).clone() });
        self
    }
}

/// A record that the filter leaves out. It needs no text.
const LEFT_OUT: &str = "{\"text\": null, \"left_out\": true}\n";

pub(crate) fn line(text: &str) -> String {
    format!("{{\"text\": \"{text}\"}}\n")
}

pub(crate) fn lines(texts: &[&str]) -> String {
    texts.iter().map(|text| line(text)).collect()
}

/// The rows and events that a lane delivered from some cursor on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trace {
    pub(crate) delivered: Vec<Delivered>,
    pub(crate) quarantined: Vec<ShardError>,
    pub(crate) error: Option<String>,
    pub(crate) end: Cursor,
}

/// Some tokens, and the cursor before them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Delivered {
    pub(crate) before: Cursor,
    pub(crate) tokens: String,
    opens: bool,
    starts_row: bool,
    pub(crate) quarantined: usize,
}

/// Drives a lane from `cursor` on, at most `steps` times, taking at most `most` tokens at once.
pub(crate) fn run(
    spec: &Arc<SourceSpec>,
    cursor: Cursor,
    block_bytes: usize,
    most: usize,
    steps: usize,
) -> Trace {
    let mut reader = LaneReader::new(Arc::clone(spec), 0, &cursor);
    reader.block_bytes = block_bytes;
    let read = || {
        assert!(!reader.is_done(), "starved behind the last block");
        samples(spec, &mut reader, |_| Ok(()))
    };
    drive(spec, cursor, read, most, steps)
}

/// The lane's next samples, with a token for each byte. `fails` may return an error in place of a text's tokens.
fn samples(
    spec: &SourceSpec,
    reader: &mut LaneReader,
    fails: impl Fn(&str) -> Result<(), Error>,
) -> SampleBlock {
    let mut raw = RawBlock::default();
    reader.read(&mut raw);
    samples_of(
        spec,
        &mut raw,
        IdBuffer::default(),
        &mut Prepared::default(),
        |Sample { text, .. }, document, ids| {
            fails(text)?;
            ids.extend(text.bytes().map(u32::from));
            Ok(Encoded::Document(Document { tokens: text.len(), ..document }))
        },
    )
}

fn drive(
    spec: &Arc<SourceSpec>,
    cursor: Cursor,
    mut read: impl FnMut() -> SampleBlock,
    most: usize,
    steps: usize,
) -> Trace {
    let mut documents = DocumentQueue::new(Arc::clone(spec), 0, cursor);
    let mut admission = Admission::new(Arc::clone(spec), 0, &cursor, None);
    let (mut delivered, mut quarantined, mut error) = (Vec::new(), Vec::new(), None);
    let mut starts_row = true;
    while delivered.len() < steps {
        let next = match documents.peek() {
            Next::Starved => {
                match admission.next_block() {
                    Some(block) => documents.push(block),
                    None => admission.add(read()),
                }
                continue;
            }
            Next::Tokens(next) => next,
            Next::Ended => break,
            Next::Failed(failure) => {
                error = Some(failure.to_string());
                break;
            }
        };
        let placed = matches!(spec.rows.packing, Packing::BestFit { .. });
        let count = if placed { next.piece } else { next.rest.len().min(most) };
        let tokens = next.rest.ids[..count].iter().map(|&token| char::from(token as u8)).collect();
        let (opens, ends_row) = (next.rest.offset == 0, next.ends_row);
        delivered.push(Delivered {
            before: documents.cursor(),
            tokens,
            opens,
            starts_row,
            quarantined: quarantined.len(),
        });
        starts_row = !placed || ends_row;
        quarantined.extend(documents.take_quarantined());
        delivered.last_mut().unwrap().quarantined = quarantined.len();
        documents.advance(count);
    }
    quarantined.extend(documents.take_quarantined());
    Trace { delivered, quarantined, error, end: documents.cursor() }
}

pub(crate) const NO_LIMIT: usize = usize::MAX;

pub(crate) fn texts(trace: &Trace) -> Vec<&str> {
    trace.delivered.iter().map(|delivered| delivered.tokens.as_str()).collect()
}

pub(crate) fn all(spec: SourceSpec) -> Trace {
    run(&Arc::new(spec), Cursor::default(), 64, NO_LIMIT, NO_LIMIT)
}

#[test]
fn empty_shards_and_documents_are_passed_over() {
    let mut folder = folder(&["", &lines(&["a", "", "bb"]), "\n\n", &lines(&["ccc"]), ""]);
    folder.spec.epochs = Some(2);
    let trace = all(folder.spec);
    assert_eq!(texts(&trace), ["a", "bb", "ccc", "a", "bb", "ccc"]);
    let totals = trace.end.totals;
    assert_eq!((totals.records, totals.documents, totals.tokens, totals.text_bytes), (8, 8, 12, 12));
    assert_eq!(trace.end.window, RecordPosition { epoch: 2, ..RecordPosition::default() });
}

#[test]
fn lane_of_empty_shards_ends_or_is_refused_when_endless() {
    for (window, epochs) in [(None, Some(3)), (Some(2), Some(3)), (None, None), (Some(2), None)] {
        let mut folder = folder(&["", "\n", "{\"no\": 1}\n"]);
        folder.spec.epochs = epochs;
        folder.spec.shuffle = window.map(|window| Shuffle { seed: 1, window });
        let trace = all(folder.spec);
        assert!(trace.delivered.is_empty());
        match epochs {
            Some(_) => assert_eq!((trace.error, trace.end.totals.quarantined), (None, 3)),
            None => {
                assert!(trace.error.unwrap().contains("no valid document with a token in its 3 shards"));
            }
        }
    }
}

#[test]
fn lane_whose_filter_keeps_nothing_ends_or_is_refused_when_endless() {
    for (window, epochs) in [(None, Some(3)), (Some(2), Some(3)), (None, None), (Some(2), None)] {
        let mut folder = folder(&[&LEFT_OUT.repeat(3), "{\"no\": 1}\n", LEFT_OUT]).filtered();
        folder.spec.epochs = epochs;
        folder.spec.shuffle = window.map(|window| Shuffle { seed: 1, window });
        let trace = all(folder.spec);
        assert!(trace.delivered.is_empty());
        let totals = trace.end.totals;
        let counts = (totals.filtered, totals.quarantined, totals.records);
        if epochs.is_some() {
            assert_eq!((trace.error, counts), (None, (12, 3, 15)));
            continue;
        }
        let error = trace.error.unwrap();
        assert!(error.contains("no valid document with a token in its 3 shards"), "{error}");
        assert!(
            error.contains("; keep= filtered 4 records; 1 record quarantined, the last one: "),
            "{error}"
        );
        assert!(error.ends_with(". Let keep= pass more, or remove these shards"), "{error}");
    }
}

#[test]
fn filtered_records_are_no_errors() {
    let bad = "{\"text\": 1}\n";
    let mut folder = folder(&[&[&LEFT_OUT.repeat(99), bad, &line("a")].concat()]).filtered();
    folder.spec.on_error = OnError::Quarantine { max_error_rate: 0.01 };
    let totals = all(folder.spec).end.totals;
    assert_eq!((totals.records, totals.filtered, totals.quarantined, totals.documents), (101, 99, 1, 1));
}

#[test]
fn endless_lane_without_tokens_is_refused() {
    for packing in [Packing::Concat, Packing::BestFit { window: 2 }] {
        for window in [None, Some(2)] {
            let mut folder = folder(&["", &lines(&["", "", ""])]);
            folder.spec.epochs = None;
            folder.spec.rows.packing = packing;
            folder.spec.shuffle = window.map(|window| Shuffle { seed: 1, window });
            assert!(all(folder.spec).error.unwrap().contains("no valid document with a token"));
        }
    }
}

#[test]
fn endless_lane_needs_one_document_an_epoch() {
    let mut folder = folder(&["", &lines(&["only"]), ""]);
    folder.spec.epochs = None;
    let spec = Arc::new(folder.spec);
    let trace = run(&spec, Cursor::default(), 64, NO_LIMIT, 50);
    assert_eq!(texts(&trace), ["only"; 50]);
    assert_eq!(trace.delivered[49].before.window.epoch, 49);
}

#[test]
fn window_ends_at_its_bytes() {
    // Three documents of 8 MiB: every second one reaches the bound of 16 MiB.
    let texts = ["a", "b", "c"].map(|char| char.repeat(8 << 20));
    let mut folder = folder(&[&lines(&[&texts[0], &texts[1], &texts[2]])]);
    folder.spec.rows.packing = Packing::BestFit { window: 100 };
    folder.spec.rows.sequence_length = 8 << 20;
    let trace = all(folder.spec);
    let windows: Vec<u64> = trace.delivered.iter().map(|delivered| delivered.before.window.record).collect();
    assert_eq!(windows, [0, 0, 2]);
}

#[test]
fn shuffling_permutes_within_windows_of_an_epoch() {
    let texts_in = ["a", "b", "c", "d", "e", "f", "g"];
    let mut folder = folder(&[&lines(&texts_in[..5]), &lines(&texts_in[5..])]);
    folder.spec.shuffle = Some(Shuffle { seed: 5, window: 3 });
    folder.spec.epochs = Some(20);
    let trace = all(folder.spec);
    let mut orders = Vec::new();
    for epoch in texts(&trace).chunks(7) {
        for (window, expected) in epoch.chunks(3).zip(texts_in.chunks(3)) {
            let mut sorted = window.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, expected);
        }
        orders.push(epoch.to_vec());
    }
    orders.sort();
    orders.dedup();
    assert!(orders.len() > 10, "{} orders in 20 epochs", orders.len());
}

#[test]
fn best_fit_restarts_inside_a_window_by_rows() {
    let mut folder = folder(&[&lines(&["aaaaaa", "", "bb", "cccccccccccc", "dddd", "e"])]);
    folder.spec.rows.packing = Packing::BestFit { window: 6 };
    let trace = all(folder.spec);
    assert_eq!(texts(&trace), ["aaaaaa", "bb", "cccccccc", "cccc", "dddd", "e"]);
    let delivered: Vec<u64> = trace.delivered.iter().map(|delivered| delivered.before.delivered).collect();
    assert_eq!(delivered, [0, 0, 1, 2, 2, 3]);
    assert_eq!(trace.end.totals.documents, 6);
}

#[test]
fn bad_record_stops_the_lane_after_the_documents_before_it() {
    let mut folder = folder(&[&lines(&["a", "b"]), "{\"text\": 1}\n"]);
    folder.spec.on_error = OnError::Raise;
    let spec = Arc::new(folder.spec);
    let trace = run(&spec, Cursor::default(), 1, NO_LIMIT, NO_LIMIT);
    assert_eq!(texts(&trace), ["a", "b"]);
    assert!(trace.error.as_ref().unwrap().contains("001.jsonl: record 0, byte 0: expected a string"));
    assert_eq!(trace.end.window, RecordPosition { shard: 1, ..RecordPosition::default() });
    let again = run(&spec, trace.end, 1, NO_LIMIT, NO_LIMIT);
    assert_eq!(again, Trace { delivered: Vec::new(), ..trace });
}

#[test]
fn error_budget_raises_the_same_error_after_a_restore() {
    let bad = [LEFT_OUT, &"{\"text\": 1}\n".repeat(2), LEFT_OUT, "{}\n"].concat();
    for window in [None, Some(4)] {
        let mut folder = folder(&[&lines(&["a", "b", "c", "d"]), &bad, &lines(&["e"])]).filtered();
        folder.spec.on_error = OnError::Quarantine { max_error_rate: 0.3 };
        folder.spec.shuffle = window.map(|window| Shuffle { seed: 1, window });
        let spec = Arc::new(folder.spec);
        let trace = run(&spec, Cursor::default(), 1, NO_LIMIT, NO_LIMIT);
        assert_eq!(trace.delivered.len(), 4);
        let error = trace.error.unwrap();
        assert!(error.contains("3 of the 9 records that lane 0 has read so far are bad"), "{error}");
        assert_eq!((trace.end.totals.quarantined, trace.end.totals.filtered), (0, 0));
        let again = run(&spec, trace.end, 64, NO_LIMIT, NO_LIMIT);
        assert_eq!(again.error, Some(error));
    }
}

#[test]
fn failed_document_counts_only_records_before_it() {
    let bad = "{\"text\": 1}\n";
    let shard = [bad, LEFT_OUT, &line("a"), LEFT_OUT, LEFT_OUT, bad, &line("b"), bad, LEFT_OUT].concat();
    let folder = folder(&[&shard]).filtered();
    let spec = Arc::new(folder.spec);
    let mut reader = LaneReader::new(Arc::clone(&spec), 0, &Cursor::default());
    let fails = |text: &str| if text == "b" { Err(Error::Tokenizer("no".into())) } else { Ok(()) };
    let read = || samples(&spec, &mut reader, fails);
    let trace = drive(&spec, Cursor::default(), read, NO_LIMIT, NO_LIMIT);
    assert_eq!(trace.error.as_deref(), Some("no"));
    let totals = trace.end.totals;
    assert_eq!((totals.records, totals.quarantined, totals.filtered, trace.quarantined.len()), (6, 2, 3, 2));
    assert_eq!(trace.end.window.record, 6);
}

#[test]
fn reading_after_a_stop_ends_and_quarantines_nothing() {
    let shard = lines(&["a", "b", "c"]);
    let folder = folder(&[&shard, &shard]);
    let spec = Arc::new(folder.spec);
    let stop = Arc::new(AtomicBool::new(true));
    let window = RecordPosition { record: 2, byte: 2 * line("a").len() as u64, ..RecordPosition::default() };
    for cursor in [Cursor::default(), Cursor { window, ..Cursor::default() }] {
        let mut raw = RawBlock::default();
        LaneReader::new(Arc::clone(&spec), 0, &cursor).stopped_by(&stop).read(&mut raw);
        assert!(matches!(raw.end, ReadEnd::Failed(Error::Closed)), "{:?}", raw.end);
        assert!(raw.entries.is_empty(), "{:?}", raw.entries);
    }
}

#[test]
fn cursor_that_does_not_fit_is_an_error() {
    let shard = lines(&["abc", "def"]);
    let at = |record, delivered, offset| Cursor {
        window: RecordPosition { record, byte: record * 16, ..RecordPosition::default() },
        delivered,
        offset,
        ..Cursor::default()
    };
    // Both records, with their shard, number and tokens.
    let inside = |record, delivered, offset| Cursor {
        window_hash: crate::random::hash([0, 0, 3, 0, 1, 3]),
        ..at(record, delivered, offset)
    };
    let windowed = Some(Shuffle { seed: 1, window: 2 });
    for (shuffle, cursor, expected) in [
        (
            None,
            at(0, 0, 3),
            "000.jsonl: record 0, byte 0: the state of lane 0 is at token 3 of a document, but the document here has 3",
        ),
        (
            None,
            at(2, 0, 1),
            "000.jsonl: record 2, byte 32: the state of lane 0 is at token 1 of a document, but the document",
        ),
        (None, at(3, 0, 1), "expected record 3 to start at byte 48"),
        (
            windowed,
            inside(0, 3, 0),
            "000.jsonl: record 0, byte 0: the state of lane 0 counts more delivered documents or rows than the window",
        ),
        (windowed, inside(0, 0, 9), "record 1, byte 16: the state of lane 0 is at token 9"),
        (
            windowed,
            at(0, 1, 1),
            "byte 0: the state of lane 0 is inside the window of documents that begins here",
        ),
        (None, at(1, 0, 1), ""),
        (windowed, inside(0, 1, 1), ""),
        // At its beginning a window may be any.
        (windowed, Cursor { window_hash: 5, ..at(0, 0, 0) }, ""),
    ] {
        let mut folder = folder(&[&shard]);
        folder.spec.shuffle = shuffle;
        let trace = run(&Arc::new(folder.spec), cursor, 64, NO_LIMIT, NO_LIMIT);
        match trace.error {
            Some(error) => assert!(!expected.is_empty() && error.contains(expected), "{error}"),
            None => assert!(expected.is_empty() && trace.delivered.len() < 3, "{cursor:?}"),
        }
    }
}

#[derive(Debug, Clone)]
enum Record {
    Text(usize),
    Blank,
    Bad,
    LeftOut,
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let record = prop_oneof![
        6 => (0usize..12).prop_map(Record::Text),
        1 => (20usize..60).prop_map(Record::Text),
        1 => Just(Record::Blank),
        2 => Just(Record::Bad),
        2 => Just(Record::LeftOut),
    ];
    prop::collection::vec(record, 0..9)
}

/// The shard of some records, and the texts in it; each text is of one letter.
fn shard(records: &[Record], letter: &mut u8) -> (String, Vec<String>) {
    let (mut shard, mut texts) = (String::new(), Vec::new());
    for record in records {
        match record {
            Record::Text(length) => {
                let text = char::from(b'a' + *letter % 26).to_string().repeat(*length);
                *letter = letter.wrapping_add(1);
                shard.push_str(&line(&text));
                texts.push(text);
            }
            Record::Blank => shard.push('\n'),
            Record::LeftOut => shard.push_str(LEFT_OUT),
            Record::Bad => writeln!(shard, "{{\"text\": {}}}", shard.len()).unwrap(),
        }
    }
    (shard, texts)
}

fn packing() -> impl Strategy<Value = Packing> {
    prop_oneof![
        Just(Packing::Concat),
        Just(Packing::Pad),
        (1usize..8).prop_map(|window| Packing::BestFit { window }),
    ]
}

proptest! {
    /// The same documents and counts, whatever the size of blocks and from any cursor.
    #[test]
    fn every_cursor_gives_the_same_rest(
        shards in prop::collection::vec(records(), 1..5),
        packing in packing(),
        shuffle in prop::option::of((any::<u64>(), 1usize..9)),
        epochs in 1u64..4,
        block_bytes in 1usize..200,
        most in 1usize..20,
        stop in any::<Index>(),
    ) {
        let mut letter = 0;
        let (files, texts): (Vec<String>, Vec<Vec<String>>) =
            shards.iter().map(|records| shard(records, &mut letter)).unzip();
        let mut folder = folder(&files.iter().map(String::as_str).collect::<Vec<_>>()).filtered();
        folder.spec.rows.packing = packing;
        folder.spec.shuffle = shuffle.map(|(seed, window)| Shuffle { seed, window });
        folder.spec.epochs = Some(epochs);
        let spec = Arc::new(folder.spec);

        let whole = run(&spec, Cursor::default(), 1, most, NO_LIMIT);
        prop_assert_eq!(&run(&spec, Cursor::default(), block_bytes, most, NO_LIMIT), &whole);

        // Everything once an epoch.
        let texts: Vec<&String> = texts.iter().flatten().collect();
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let bad = shards.iter().flatten().filter(|record| matches!(record, Record::Bad)).count();
        let left_out = shards.iter().flatten().filter(|record| matches!(record, Record::LeftOut)).count();
        let totals = whole.end.totals;
        prop_assert_eq!(totals.documents, texts.len() as u64 * epochs);
        prop_assert_eq!(totals.quarantined, bad as u64 * epochs);
        prop_assert_eq!(totals.filtered, left_out as u64 * epochs);
        prop_assert_eq!(totals.records, totals.documents + totals.quarantined + totals.filtered);
        prop_assert_eq!(totals.text_bytes, bytes as u64 * epochs);
        prop_assert_eq!(totals.tokens, totals.text_bytes);
        prop_assert_eq!(whole.quarantined.len() as u64, totals.quarantined);
        let mut delivered: Vec<u8> = whole.delivered.iter().flat_map(|delivered| delivered.tokens.bytes()).collect();
        let mut expected = texts.iter().flat_map(|text| text.bytes()).collect::<Vec<u8>>().repeat(epochs as usize);
        if shuffle.is_some() || matches!(packing, Packing::BestFit { .. }) {
            delivered.sort_unstable();
            expected.sort_unstable();
        }
        prop_assert_eq!(delivered, expected);

        // The same rest from any place where a row may begin.
        let places: Vec<usize> = (0..whole.delivered.len()).filter(|&at| whole.delivered[at].starts_row).collect();
        if !places.is_empty() {
            let at = *stop.get(&places);
            let from = &whole.delivered[at];
            let rest = run(&spec, from.before, block_bytes, most, NO_LIMIT);
            prop_assert_eq!(&rest.end, &whole.end);
            prop_assert_eq!(&rest.quarantined[..], &whole.quarantined[from.quarantined..]);
            for (now, then) in rest.delivered.iter().zip(&whole.delivered[at..]) {
                prop_assert_eq!((&now.tokens, now.before, now.opens), (&then.tokens, then.before, then.opens));
            }
            prop_assert_eq!(rest.delivered.len(), whole.delivered.len() - at);
        }
        prop_assert_eq!(run(&spec, whole.end, block_bytes, most, NO_LIMIT).end, whole.end);
    }
}
