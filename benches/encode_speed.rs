//! How fast the encoder is: first and further passes over the texts of a file, on one thread.
//!
//!     cargo run --release --example encode_speed -- tokenizer.json documents.bin [--kernel=portable] [--reference]
//!         [--passes=2] [--workers=3]
//!
//! The documents are length-prefixed: a little-endian u32, then that many bytes of UTF-8. Prints megabytes of text per
//! second of the thread's CPU time, which other programs disturb less than wall-clock time, for several fresh workers.
//! A kernel is selected by a prefix of its name: see `gristmill --version`.
#![allow(clippy::unwrap_used)] // a developer tool: any failure may abort it

use std::time::Instant;

use _core::encode::{Encoder, EncoderOptions, Engine, Kernel};
use cpu_time::ThreadTime;

fn main() {
    let (flags, paths): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let has = |flag: &str| flags.iter().any(|word| word == flag);
    let [tokenizer, documents] = paths.as_slice() else { panic!("a tokenizer.json and a file of documents") };
    let number = |name: &str, default| {
        flags.iter().find_map(|flag| flag.strip_prefix(name)?.parse().ok()).unwrap_or(default)
    };
    let (passes, workers) = (number("--passes=", 2), number("--workers=", 3));
    let kernel =
        flags.iter().find_map(|flag| flag.strip_prefix("--kernel=")).map_or(Kernel::detect(), |name| {
            Kernel::all()
                .into_iter()
                .find(|kernel| kernel.name().starts_with(name))
                .expect("a kernel of this processor")
        });
    let began = Instant::now();
    let options = EncoderOptions {
        kernel,
        engine: if has("--reference") { Engine::Reference } else { Engine::Fast },
        ..Default::default()
    };
    let encoder = Encoder::with_options(&std::fs::read(tokenizer).unwrap(), options).unwrap();
    let load = began.elapsed();
    let bytes = std::fs::read(documents).unwrap();
    let texts = texts(&bytes);
    let total: usize = texts.iter().map(|text| text.len()).sum();
    print!("{} {} load {:.0} ms; MB/s", base(tokenizer), base(documents), load.as_secs_f64() * 1e3);
    for _ in 0..workers {
        let began = Instant::now();
        let mut worker = encoder.worker();
        let made = began.elapsed();
        let mut ids = Vec::with_capacity(4 << 20);
        for _ in 0..passes {
            let began = ThreadTime::now();
            let mut count = 0;
            for text in &texts {
                ids.clear();
                worker.encode(text, &mut ids).unwrap();
                count += ids.len();
            }
            let seconds = began.elapsed().as_secs_f64();
            print!(" {:.0} ({:.0} Mtok/s)", total as f64 / seconds / 1e6, count as f64 / seconds / 1e6);
        }
        print!(" [{:.1} ms, {:.0} MB];", made.as_secs_f64() * 1e3, worker.bytes() as f64 / 1e6);
    }
    println!();
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn texts(mut bytes: &[u8]) -> Vec<&str> {
    let mut texts = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let (text, rest) = rest.split_at(u32::from_le_bytes(*len) as usize);
        texts.push(std::str::from_utf8(text).unwrap());
        bytes = rest;
    }
    texts
}
