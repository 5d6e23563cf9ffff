//! Random streams: what defines one, and its shards on disk.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use _core::encode::{Encoder, EncoderOptions, Engine};
use _core::format::keep::{Expression, Instruction};
use _core::format::{Projection, ReadOptions, Step};
use _core::lane::assignment::Plan;
use _core::prepare::Prepare;
use _core::prepare::values::SourceFields;
use _core::spec::sidecars::Sidecars;
use _core::spec::{Layout, OnError, Packing, RowSpec, Shuffle, SourceSpec, Truncation, UntrainedRows};
use _core::store::{Access, Shard};
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::checks::Corpus;

const EOS: u32 = 1;
const BOS: u32 = 2;
const FIRST_WORD: u32 = 3;
const WORDS: u32 = 20_000;
/// Lines in each member of a gzipped shard.
const LINES_OF_MEMBER: usize = 3;

/// A tokenizer for which every word is a token.
pub fn encoder(engine: Engine) -> &'static Encoder {
    static ENCODERS: [OnceLock<Encoder>; 2] = [OnceLock::new(), OnceLock::new()];
    let (made, json): (_, fn() -> String) = match engine {
        Engine::Fast => (&ENCODERS[0], byte_level_bpe),
        Engine::Reference => (&ENCODERS[1], word_level),
    };
    made.get_or_init(|| {
        // A small cache, for each run makes one for each of its threads.
        let options = EncoderOptions { cache_bytes: 1 << 16, ..EncoderOptions::default() };
        let encoder = Encoder::with_options(json().as_bytes(), options).unwrap();
        assert_eq!(encoder.engine(), engine);
        encoder
    })
}

/// An unknown word is an error.
fn word_level() -> String {
    let mut vocab = format!("\"<eos>\": {EOS}, \"<bos>\": {BOS}");
    for id in FIRST_WORD..FIRST_WORD + WORDS {
        write!(vocab, ", \"w{id}\": {id}").unwrap();
    }
    format!(
        "{{\"pre_tokenizer\": {{\"type\": \"WhitespaceSplit\"}},
         \"model\": {{\"type\": \"WordLevel\", \"vocab\": {{{vocab}}}, \"unk_token\": \"<unk>\"}}}}"
    )
}

/// A word is merged from the left, and with the space behind it at last.
fn byte_level_bpe() -> String {
    let (mut vocab, mut merges, mut lasts) = (Vec::new(), Vec::new(), Vec::new());
    let letters = ["w", "Ġ", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let spellings =
        letters.map(str::to_owned).into_iter().chain((1..FIRST_WORD + WORDS).map(|n| format!("w{n}")));
    for (id, spelling) in (FIRST_WORD + WORDS..).zip(spellings) {
        vocab.push(format!("\"{spelling}\": {id}"));
    }
    for number in 1..FIRST_WORD + WORDS {
        let digits = number.to_string();
        let (before, digit) = digits.split_at(digits.len() - 1);
        merges.push(format!("[\"w{before}\", \"{digit}\"]"));
    }
    for id in FIRST_WORD..FIRST_WORD + WORDS {
        vocab.push(format!("\"w{id}Ġ\": {id}"));
        lasts.push(format!("[\"w{id}\", \"Ġ\"]"));
    }
    merges.append(&mut lasts);
    let (vocab, merges) = (vocab.join(", "), merges.join(", "));
    format!(
        "{{\"pre_tokenizer\": {{\"type\": \"Sequence\", \"pretokenizers\": [
         {{\"type\": \"Split\", \"pattern\": {{\"Regex\": \"\\\\S+\\\\s\"}}, \"behavior\": \"Isolated\", \"invert\": false}},
         {{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}}]}},
         \"model\": {{\"type\": \"BPE\", \"vocab\": {{{vocab}}}, \"merges\": [{merges}]}}}}"
    )
}

#[derive(Debug, Clone)]
pub enum Record {
    /// So many words, none of which occurs anywhere else.
    Words(usize),
    Blank,
    Bad,
    /// A record that a filter leaves out; without a filter it has so many words, or is a bad record.
    Filtered(Option<usize>),
    /// A word that the reference engine's tokenizer does not know: stops the run.
    Unknown,
}

/// The damage of a shard's file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Damage {
    None,
    /// Something that is no gzip stands behind its records: they can be read, and then there is an error.
    Tail,
    /// It has another size than the manifest says: nothing of it is read.
    Size,
}

/// The arguments that define a stream.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)]
pub struct Case {
    pub engine: Engine,
    pub shards: Vec<(Vec<Record>, Damage)>,
    pub gzip: bool,
    /// The size above which shards are dealt in pieces; 0: whole.
    pub split_bytes: u64,
    pub lanes: Index,
    pub rows_per_lane: usize,
    pub single_rows: bool,
    pub length: usize,
    pub packing: Packing,
    pub truncation: Truncation,
    pub max_segments: Option<usize>,
    pub layout: Layout,
    pub boundary_targets: bool,
    pub bos: bool,
    pub eos: bool,
    pub shuffle: Option<(u64, usize)>,
    pub epochs: Option<u64>,
    /// Whether a filter leaves out some records.
    pub filter: bool,
    /// The rate of errors that is allowed, if bad records are left out.
    pub quarantine: Option<f64>,
    /// Entries of a row's provenance.
    pub provenance: usize,
}

/// The settings that must not matter.
#[derive(Debug, Clone)]
pub struct Run {
    pub threads: usize,
    pub prefetch: usize,
    pub hosts: Index,
    pub stop: Index,
}

fn record() -> impl Strategy<Value = Record> {
    prop_oneof![
        120 => (0usize..12).prop_map(Record::Words),
        12 => (12usize..90).prop_map(Record::Words),
        12 => Just(Record::Blank),
        12 => Just(Record::Bad),
        24 => prop::option::weighted(0.8, 0usize..12).prop_map(Record::Filtered),
        1 => Just(Record::Unknown),
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![30 => Just(Damage::None), 1 => Just(Damage::Tail), 1 => Just(Damage::Size)]
}

fn packing() -> impl Strategy<Value = Packing> {
    prop_oneof![
        Just(Packing::Concat),
        (1usize..12).prop_map(|window| Packing::BestFit { window }),
        Just(Packing::Pad),
    ]
}

fn truncation() -> impl Strategy<Value = Truncation> {
    use Truncation::{Error, Left, Middle, Right, Split};
    prop_oneof![
        4 => Just(Split),
        4 => prop::sample::select(vec![Left, Middle, Right]),
        1 => Just(Error),
    ]
}

prop_compose! {
    pub fn case()(
        engine in prop::sample::select(vec![Engine::Fast, Engine::Reference]),
        shards in prop::collection::vec((prop::collection::vec(record(), 0..12), damage()), 1..9),
        split_bytes in prop_oneof![2 => Just(0), 1 => 1u64..400],
        (gzip, single_rows, boundary_targets, bos, eos, filter) in any::<(bool, bool, bool, bool, bool, bool)>(),
        lanes in any::<Index>(),
        rows_per_lane in 1usize..4,
        length in 1usize..24,
        packing in packing(),
        truncation in truncation(),
        max_segments in prop::option::weighted(0.3, 1usize..4),
        layout in prop::sample::select(vec![Layout::MaxText, Layout::Grain, Layout::Hf, Layout::Varlen]),
        shuffle in prop::option::of((any::<u64>(), 1usize..9)),
        epochs in (1u64..4).prop_map(Some),
        quarantine in prop::option::weighted(0.8, prop_oneof![4 => Just(1.0), 1 => 0.0..0.5]),
        provenance in 0usize..6,
    ) -> Case {
        let is_varlen = layout == Layout::Varlen;
        // Its lengths do not say where a cut inside a segment is.
        let truncation = match truncation {
            Truncation::Middle if is_varlen => Truncation::Split,
            truncation => truncation,
        };
        Case {
            engine, shards, gzip, split_bytes, lanes, single_rows, length, packing, truncation, max_segments, layout,
            boundary_targets, bos, eos, shuffle, epochs, filter, quarantine, provenance,
            rows_per_lane: if single_rows { 1 } else { rows_per_lane },
        }
    }
}

prop_compose! {
    pub fn other_run()(
        threads in 1usize..5,
        prefetch in 1usize..6,
        hosts in any::<Index>(),
        stop in any::<Index>(),
    ) -> Run {
        Run { threads, prefetch, hosts, stop }
    }
}

/// The outcome of a line of a shard.
enum Outcome {
    Document(Vec<u32>),
    Filtered,
    Bad,
    Nothing,
}

/// The lines of a shard, and for each its first byte and what it becomes. Words count from `word`.
fn lines_of(case: &Case, records: &[Record], word: &mut u32) -> (String, Vec<(u64, Outcome)>) {
    let mut lines = String::new();
    let mut found = Vec::new();
    for record in records {
        let is_filtered = matches!(record, Record::Filtered(_));
        let start = lines.len() as u64;
        let outcome = match record {
            Record::Filtered(_) if case.filter => {
                lines.push_str("{\"text\": null, \"left_out\": true}\n");
                Outcome::Filtered
            }
            Record::Words(count) | Record::Filtered(Some(count)) => {
                let words: Vec<u32> = (*word..).take(*count).collect();
                *word += *count as u32;
                let text: Vec<String> = words.iter().map(|word| format!("w{word} ")).collect();
                writeln!(lines, "{{\"left_out\": {is_filtered}, \"text\": \"{}\"}}", text.concat()).unwrap();
                let bos = case.bos.then_some(BOS);
                let eos = case.eos.then_some(EOS);
                Outcome::Document(bos.into_iter().chain(words).chain(eos).collect())
            }
            Record::Bad | Record::Filtered(None) => {
                lines.push_str("{\"text\": null}\n");
                Outcome::Bad
            }
            Record::Blank => {
                lines.push_str(" \n");
                Outcome::Nothing
            }
            // It has bytes, which all have tokens.
            Record::Unknown if case.engine == Engine::Fast => {
                lines.push('\n');
                Outcome::Nothing
            }
            Record::Unknown => {
                lines.push_str("{\"text\": \"unknown\"}\n");
                Outcome::Nothing
            }
        };
        found.push((start, outcome));
    }
    (lines, found)
}

/// Writes the shards of a case and says what is in them.
pub fn build(case: &Case, folder: &Path) -> (Arc<SourceSpec>, Corpus) {
    let mut corpus = Corpus::default();
    let mut word = FIRST_WORD;
    let mut shards = Vec::new();
    for (number, (records, damage)) in case.shards.iter().enumerate() {
        let (lines, found) = lines_of(case, records, &mut word);
        let path = folder.join(format!("{number}{}", if case.gzip { ".json.gz" } else { ".jsonl" }));
        // Where each record, and what ends the file, starts in it.
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        if case.gzip {
            let ends = found.iter().map(|(start, _)| *start as usize).skip(LINES_OF_MEMBER);
            let mut first = 0;
            for end in ends.step_by(LINES_OF_MEMBER).chain([lines.len()]) {
                starts.extend([bytes.len() as u64; LINES_OF_MEMBER]);
                // At this level a short member is one block.
                let mut gzip = GzEncoder::new(bytes, Compression::default());
                gzip.write_all(&lines.as_bytes()[first..end]).unwrap();
                (bytes, first) = (gzip.finish().unwrap(), end);
            }
        } else {
            bytes = lines.into_bytes();
            starts = found.iter().map(|(start, _)| *start).collect();
        }
        let tail = bytes.len() as u64;
        let has_tail = *damage == Damage::Tail && case.gzip;
        if has_tail {
            bytes.extend_from_slice(b"no gzip");
        }
        std::fs::write(&path, &bytes).unwrap();
        let is_lost = *damage == Damage::Size;
        let size = bytes.len() as u64 + u64::from(is_lost);
        let pieces: Vec<Shard> =
            Shard::whole(path.to_str().unwrap(), size).divided(case.split_bytes).collect();
        let damaged = pieces.iter().filter(|piece| is_lost || has_tail && piece.bytes().end > tail);
        corpus.bad += damaged.count() as u64;
        let mut line = (0, 0);
        for (start, (_, outcome)) in starts.into_iter().zip(found).filter(|_| !is_lost) {
            let is_here = |piece: &Shard| pieces.len() == 1 || piece.bytes().contains(&start);
            let piece = shards.len() + pieces.iter().position(is_here).unwrap();
            // Lines of gzip count from the start of the shard.
            let is_next = line.0 == piece || case.gzip && line.0 >= shards.len();
            line = (piece, if is_next { line.1 } else { 0 });
            match outcome {
                Outcome::Document(ids) => corpus.add(line, ids),
                Outcome::Filtered => corpus.add_filtered(piece, 1),
                Outcome::Bad => corpus.bad += 1,
                Outcome::Nothing => {}
            }
            line.1 += 1;
        }
        shards.extend(pieces);
    }
    assert!(word < FIRST_WORD + WORDS);
    let sizes = shards.iter().map(Shard::dealt_bytes).collect();
    let lanes = 1 + case.lanes.index(shards.len());
    let spec = SourceSpec {
        name: String::new(),
        number: 0,
        first_piece: 0,
        log_name: String::new(),
        plan: Plan::new(sizes, lanes, case.shuffle.map(|(seed, _)| seed)),
        shards,
        read: Arc::new(ReadOptions {
            access: Access::default(),
            projection: Projection::text("text").with_paths(vec![vec![Step::Key("left_out".into())]]),
            keep: case.filter.then(|| Expression(vec![Instruction::Path(0), Instruction::Not])),
            max_document_bytes: 1 << 20,
            ids: None,
        }),
        sidecars: Sidecars::default(),
        drop: Arc::default(),
        prepare: Prepare::Text,
        fields: SourceFields::default(),
        on_error: case
            .quarantine
            .map_or(OnError::Raise, |max_error_rate| OnError::Quarantine { max_error_rate }),
        shuffle: case.shuffle.map(|(seed, window)| Shuffle { seed, window }),
        adds_at: None,
        epochs: case.epochs,
        bos: case.bos.then_some(BOS),
        eos: case.eos.then_some(EOS),
        untrained_rows: UntrainedRows::Deliver,
        balance: None,
        rows: RowSpec {
            sequence_length: case.length,
            packing: case.packing,
            truncation: case.truncation,
            max_segments: case.max_segments,
            layout: case.layout,
            segment_multiple: 1,
            boundary_targets: case.boundary_targets,
            rows_per_lane: case.rows_per_lane,
        },
    };
    (Arc::new(spec), corpus)
}
