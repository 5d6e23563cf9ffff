//! Compares the fast engine's ids with the reference's.
//!
//!     cargo run --release -p gristmill-encoder --example differential -- tokenizer.json... [--corpus FOLDER]
//!         [--strings FILE.json] [--cases 100000] [--seed 1] [--skip-runs]
//!
//! For each tokenizer: every text of the corpus, a JSON list of (naughty) strings, every Unicode scalar value alone and
//! between letters, random mixtures, runs of a million equal characters, added tokens inside text. Prints how many
//! documents and bytes were compared and how many differ; exits with 1 if any does or a file is refused. A tokenizer
//! for the reference engine has nothing to compare, as the output says. Every document goes through the fast engine
//! with each kernel that this processor supports.
#![allow(clippy::unwrap_used)] // a developer tool: any failure may abort it

#[path = "../tests/support/corpus.rs"]
mod corpus;
#[path = "../tests/support/mixtures.rs"]
mod mixtures;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use gristmill_encoder::{EncodeWorker, Encoder, EncoderOptions, Engine, Simd};
use mixtures::Random;

struct Arguments {
    tokenizers: Vec<PathBuf>,
    corpus: Option<PathBuf>,
    strings: Option<PathBuf>,
    cases: usize,
    seed: u64,
    runs: bool,
}

fn main() -> ExitCode {
    let arguments = arguments();
    let mut succeeded = true;
    for path in &arguments.tokenizers {
        succeeded &= compare(path, &arguments);
    }
    if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn arguments() -> Arguments {
    let mut arguments =
        Arguments { tokenizers: vec![], corpus: None, strings: None, cases: 100_000, seed: 1, runs: true };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--corpus" => arguments.corpus = Some(value().into()),
            "--strings" => arguments.strings = Some(value().into()),
            "--cases" => arguments.cases = value().parse().expect("a number of cases"),
            "--seed" => arguments.seed = value().parse().expect("a number"),
            "--skip-runs" => arguments.runs = false,
            _ => arguments.tokenizers.push(word.into()),
        }
    }
    arguments
}

/// Compares one tokenizer on everything; false if a document differs or the file is refused.
fn compare(path: &Path, arguments: &Arguments) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let json = corpus::read(path);
    let began = Instant::now();
    let encoder = match Encoder::from_bytes(&json) {
        Ok(encoder) => encoder,
        Err(error) => {
            println!("{name}: refused: {error}");
            return false;
        }
    };
    println!("{name}: loaded in {:.0} ms, {}", began.elapsed().as_secs_f64() * 1e3, encoder.engine_reason());
    if encoder.engine() == Engine::Reference {
        println!("{name}: nothing compared");
        return true;
    }
    let simds = Simd::all().into_iter();
    let encoders = simds
        .map(|simd| Encoder::with_options(&json, EncoderOptions { simd, ..Default::default() }).unwrap());
    let comparison = Comparison::new(name, encoders.collect());
    for shard in arguments.corpus.iter().flat_map(|folder| corpus::shards(folder)) {
        comparison.all("corpus", &corpus::texts(&shard));
    }
    if let Some(strings) = &arguments.strings {
        let strings: Vec<String> = serde_json::from_slice(&corpus::read(strings)).expect("a list of strings");
        comparison.all("strings", &strings);
    }
    comparison.all("scalars", &scalars());
    comparison.all("added tokens", &comparison.added_tokens());
    comparison.all("mixtures", &comparison.mixtures(arguments.cases, arguments.seed));
    if arguments.runs {
        comparison.all("runs", &runs());
    }
    comparison.report()
}

/// Every scalar value alone, between letters, and after a space.
fn scalars() -> Vec<String> {
    ('\0'..=char::MAX).flat_map(|c| [c.to_string(), format!("a{c}b"), format!(" {c} x")]).collect()
}

fn runs() -> Vec<String> {
    let units = [
        "a", "A", " ", "\n", "\t", ".", "-", "=", "0", "é", "я", "日", "あ", "▁", "😀", "\u{301}", "\0",
        "ab", "a ", " \n", "1a", "'s", "\u{a0}",
    ];
    units.iter().map(|unit| unit.repeat(1_000_000 / unit.len())).collect()
}

struct Comparison {
    name: String,
    /// One for each kernel.
    encoders: Vec<Encoder>,
    documents: AtomicUsize,
    bytes: AtomicUsize,
    different: AtomicUsize,
}

impl Comparison {
    fn new(name: String, encoders: Vec<Encoder>) -> Self {
        let zero = || AtomicUsize::new(0);
        Self { name, encoders, documents: zero(), bytes: zero(), different: zero() }
    }

    /// Compares texts on as many threads as there are processors.
    fn all(&self, what: &str, texts: &[String]) {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut workers: Vec<_> = self.encoders.iter().map(Encoder::worker).collect();
                    loop {
                        let from = next.fetch_add(64, Ordering::Relaxed);
                        if from >= texts.len() {
                            return;
                        }
                        for text in &texts[from..(from + 64).min(texts.len())] {
                            self.one(what, text, &mut workers);
                        }
                    }
                });
            }
        });
    }

    fn one(&self, what: &str, text: &str, workers: &mut [EncodeWorker]) {
        let mut expected = Vec::new();
        self.encoders[0].encode_with_reference(text, &mut expected).expect("the reference encodes any text");
        let mut equal = true;
        for worker in workers {
            let mut ids = Vec::new();
            worker.encode(text, &mut ids).expect("the fast engine encodes any text");
            equal &= ids == expected;
        }
        self.documents.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(text.len(), Ordering::Relaxed);
        if !equal && self.different.fetch_add(1, Ordering::Relaxed) < 10 {
            let start: String = text.chars().take(100).collect();
            println!("  {}: differs on {what}: {start:?} ({} bytes)", self.name, text.len());
        }
    }

    fn added_token_spellings(&self) -> Vec<String> {
        let json: serde_json::Value = serde_json::from_slice(self.encoders[0].json()).unwrap();
        let tokens = json["added_tokens"].as_array().cloned().unwrap_or_default();
        tokens.iter().filter_map(|token| Some(token["content"].as_str()?.to_owned())).collect()
    }

    /// Each added token alone, between words, with spaces, twice, truncated.
    fn added_tokens(&self) -> Vec<String> {
        let forms = |token: &String| {
            let short: String = token.chars().skip(1).collect();
            let around = [("", ""), ("a", "b"), (" ", " "), ("a \n ", "  b"), ("▁", "▁"), (" x", "x ")];
            let mut forms: Vec<String> =
                around.iter().map(|(before, after)| format!("{before}{token}{after}")).collect();
            forms.push(format!("x{token}{token} {token}\u{301}y"));
            forms.push(format!("{token}{short} {short}{token}"));
            forms
        };
        self.added_token_spellings().iter().flat_map(forms).collect()
    }

    /// Random texts of fragments, some of them this tokenizer's own tokens.
    fn mixtures(&self, cases: usize, seed: u64) -> Vec<String> {
        let mut random = Random::new(seed);
        let mut more = self.added_token_spellings();
        for _ in 0..3000 {
            more.extend(self.encoders[0].id_to_token(random.below(self.encoders[0].vocab_size()) as u32));
            let id = random.below(self.encoders[0].vocab_size()) as u32;
            more.extend(self.encoders[0].decode(&[id]).ok());
        }
        (0..cases).map(|_| mixtures::mixture(&mut random, &more)).collect()
    }

    fn report(&self) -> bool {
        let different = self.different.load(Ordering::Relaxed);
        println!(
            "{}: {} documents, {} bytes compared: {different} differ",
            self.name,
            self.documents.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed)
        );
        different == 0
    }
}
