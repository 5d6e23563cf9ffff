//! How fast the encoder is: first and second passes over the same texts, on one thread.
//!
//!     cargo run --release -p gristmill-encoder --example encode_speed -- tokenizer.json [FOLDER or SHARD.json.gz]... [--kernel=portable]
//!         [--engine=reference] [--megabytes=10] [--workers=3]
//!
//! Without texts: the worst cases, each a document of as many megabytes. Prints megabytes of text and millions of
//! tokens per second of the thread's processor time, which other programs disturb less than wall-clock time, as medians
//! of several fresh workers. A kernel is selected by a prefix of its name: see `gristmill --version`.
#![allow(clippy::unwrap_used)] // a developer tool: any failure may abort it

#[path = "../tests/support/corpus.rs"]
mod corpus;
#[path = "../tests/support/mixtures.rs"]
#[allow(dead_code)] // shared with the comparison of ids
mod mixtures;

use std::path::Path;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use gristmill_encoder::{Encoder, EncoderOptions, Engine, Simd};

use mixtures::Random;

fn main() {
    let (flags, paths): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let [tokenizer, shards @ ..] = paths.as_slice() else { panic!("a tokenizer.json") };
    for flag in &flags {
        let known = ["--kernel=", "--engine=", "--megabytes=", "--workers="];
        assert!(known.iter().any(|known| flag.starts_with(known)), "no such option: {flag}");
    }
    let value = |name: &str| flags.iter().find_map(|flag| flag.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| value(name).map(|value| value.parse::<usize>().unwrap());
    let simd = value("--kernel").map_or(Simd::detect(), |name| {
        let mut simds = Simd::all().into_iter();
        simds.find(|simd| simd.name().starts_with(name)).expect("a kernel of this processor")
    });
    let engine = match value("--engine") {
        None | Some("fast") => Engine::Fast,
        Some("reference") => Engine::Reference,
        Some(other) => panic!("an engine {other}"),
    };
    let began = Instant::now();
    let options = EncoderOptions { simd, engine, ..Default::default() };
    let encoder = Encoder::with_options(&corpus::read(Path::new(tokenizer)), options).unwrap();
    println!(
        "{tokenizer}: {}, loaded in {:.0} ms",
        encoder.engine_reason(),
        began.elapsed().as_secs_f64() * 1e3
    );

    let megabytes = number("--megabytes");
    let workers = number("--workers").unwrap_or(3);
    if shards.is_empty() {
        for (name, text) in worst_cases(megabytes.unwrap_or(10) * 1_000_000) {
            measure(&encoder, name, &[text], workers);
        }
    }
    for path in shards {
        let most = megabytes.unwrap_or(usize::MAX).saturating_mul(1_000_000);
        measure(&encoder, path, &read(Path::new(path), most), workers);
    }
}

/// Texts of a shard, or of those below a folder, up to some bytes.
fn read(path: &Path, most: usize) -> Vec<String> {
    let shards = if path.is_dir() { corpus::shards(path) } else { vec![path.to_owned()] };
    let mut bytes = 0;
    let mut is_wanted = |text: &String| {
        let is_wanted = bytes < most;
        bytes += text.len();
        is_wanted
    };
    shards.iter().flat_map(|shard| corpus::texts(shard)).take_while(|text| is_wanted(text)).collect()
}

/// Documents of about so many bytes in which hardly anything is a word.
fn worst_cases(bytes: usize) -> Vec<(&'static str, String)> {
    let mut random = Random::new(1);
    let mut some = |low: char, high: char| {
        let mut text = String::with_capacity(bytes + 4);
        while text.len() < bytes {
            let code = u32::from(low) + random.below((u32::from(high) - u32::from(low) + 1) as usize) as u32;
            text.extend(char::from_u32(code));
        }
        text
    };
    let mut cases = vec![
        ("random lower-case letters", some('a', 'z')),
        ("random Latin-1", some('\u{1}', '\u{FF}')),
        ("random Chinese characters", some('\u{4E00}', '\u{9FA5}')),
    ];
    let noise: Vec<u8> = (0..bytes / 2).map(|_| random.below(256) as u8).collect();
    cases.push(("random bytes as text", String::from_utf8_lossy(&noise).into_owned()));
    let line = |first: &str, unit: &str, length| first.to_owned() + &unit.repeat(length) + "\n";
    let mut lines = String::new();
    while lines.len() < bytes {
        lines += &line("", " ", random.below(80));
    }
    cases.push(("lines of 0 to 79 spaces", lines));
    for (name, unit) in
        [("lines of 500 spaces", line("", " ", 500)), ("lines of 100 dashes", line("//", "-", 100))]
    {
        cases.push((name, unit.repeat(bytes / unit.len())));
    }
    let repeated =
        [("letters", "a"), ("spaces", " "), ("newlines", "\n"), ("digits", "7"), ("apostrophes", "'")];
    cases.extend(repeated.map(|(name, unit)| (name, unit.repeat(bytes))));
    cases
}

/// Prints the speed on some texts.
fn measure(encoder: &Encoder, name: &str, texts: &[String], workers: usize) {
    let bytes: usize = texts.iter().map(String::len).sum();
    let mut passes = [Vec::new(), Vec::new()];
    let mut tokens = 0;
    for _ in 0..workers {
        let mut worker = encoder.worker();
        let mut ids = Vec::with_capacity(4 << 20);
        for pass in &mut passes {
            tokens = 0;
            let began = ThreadTime::now();
            for text in texts {
                ids.clear();
                worker.encode(text, &mut ids).unwrap();
                tokens += ids.len();
            }
            pass.push(began.elapsed());
        }
    }
    let [first, second] = passes.map(|mut pass| {
        pass.sort_unstable();
        let per_second =
            |count: usize| count as f64 / 1e6 / pass[workers / 2].max(Duration::from_nanos(1)).as_secs_f64();
        format!("{:4.0} MB/s ({:3.0} M tokens/s)", per_second(bytes), per_second(tokens))
    });
    println!("first {first}, second {second}: {name}");
}
