//! The parts of encoding, each in isolation: cache hits, cache misses, words without a cut, and loading.
//!
//! With a real tokenizer: `GRISTMILL_TOKENIZER=tokenizer.json cargo bench -p gristmill-encoder --bench encode`. Without one, a small
//! tokenizer is trained first.

#[path = "../tests/support/mixtures.rs"]
#[allow(dead_code)] // shared with the tests
mod mixtures;
#[path = "../tests/exactness/support.rs"]
#[allow(dead_code)] // shared with the tests
mod support;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use gristmill_encoder::{EncodeWorker, Encoder};
use mixtures::Random;
use serde_json::json;
use support::Model;

fn tokenizer() -> Vec<u8> {
    if let Ok(path) = std::env::var("GRISTMILL_TOKENIZER") {
        return std::fs::read(path).expect("GRISTMILL_TOKENIZER names a file");
    }
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true});
    Model::byte_level(500).tokenizer(json!({}), json!(null), byte_level, json!([])).to_string().into()
}

/// Random lower-case letters; `break_at` sets the length of words.
fn letters(bytes: usize, break_at: usize) -> String {
    let mut random = Random::new(1);
    (0..bytes)
        .map(|index| if index % break_at == 0 { ' ' } else { char::from(b'a' + random.below(26) as u8) })
        .collect()
}

fn count(worker: &mut EncodeWorker, text: &str, ids: &mut Vec<u32>) -> usize {
    ids.clear();
    worker.encode(text, ids).expect("any text can be encoded");
    ids.len()
}

fn parts(criterion: &mut Criterion) {
    let json = tokenizer();
    let encoder = Encoder::from_bytes(&json).expect("a sound tokenizer.json");
    let mut ids = Vec::with_capacity(1 << 20);
    let prose = support::TEXT.repeat(200);
    let mut group = criterion.benchmark_group("encode");
    group.throughput(Throughput::Bytes(prose.len() as u64));
    let mut worker = encoder.worker();
    group.bench_function("hits", |bencher| bencher.iter(|| count(&mut worker, &prose, &mut ids)));
    for (name, break_at) in [("misses of 8 bytes", 8), ("misses of 12 bytes", 12), ("misses of 24 bytes", 24)]
    {
        let words = letters(200_000, break_at);
        group.throughput(Throughput::Bytes(words.len() as u64));
        group.bench_function(name, |bencher| {
            let fresh = || encoder.worker();
            bencher.iter_batched_ref(
                fresh,
                |worker| count(worker, &words, &mut ids),
                BatchSize::PerIteration,
            );
        });
    }
    for (name, word) in
        [("a word of random letters", letters(1 << 20, usize::MAX)), ("a run", "a".repeat(1 << 20))]
    {
        group.throughput(Throughput::Bytes(word.len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| count(&mut worker, &word, &mut ids)));
    }
    group.finish();
    criterion.bench_function("load", |bencher| bencher.iter(|| Encoder::from_bytes(&json).map(|_| ())));
}

criterion_group!(benches, parts);
criterion_main!(benches);
