//! Speed of the splitters, in bytes of text a second: `cargo bench -p gristmill-encoder --bench split`.
//!
//! On a sample of the corpus if `GRISTMILL_SHARED` names a folder with one, else on synthetic text.

#![allow(clippy::unwrap_used, reason = "a benchmark may stop where it cannot continue")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use gristmill_encoder::{Boundaries, PADDING, Pretokenizer, Simd, SplitScratch};

/// Larger than the processor's caches.
const SAMPLE: usize = 16 << 20;

const FAMILIES: [&str; 8] =
    ["phi-2", "llama3.1", "qwen3", "gpt-oss", "mistral-nemo", "deepseek-v3", "starcoder", "falcon"];

fn split(criterion: &mut Criterion) {
    let families: serde_json::Value =
        serde_json::from_str(include_str!("../src/pretokenize/patterns/tests/families.json")).unwrap();
    for (name, documents) in samples() {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(documents.iter().map(|d| (d.len() - PADDING) as u64).sum()));
        for family in FAMILIES {
            for simd in Simd::all() {
                let pretokenizer = Pretokenizer::from_json(&families[family], simd).unwrap();
                let mut scratch = SplitScratch::default();
                let mut boundaries = Boundaries::default();
                group.bench_function(format!("{family}/{}", simd.name()), |bencher| {
                    bencher.iter(|| {
                        for document in &documents {
                            pretokenizer.split(
                                document,
                                document.len() - PADDING,
                                &mut scratch,
                                &mut boundaries,
                            );
                        }
                    });
                });
            }
        }
        group.finish();
    }
}

/// Named lists of documents, each with its padding.
fn samples() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let corpus =
        std::env::var_os("GRISTMILL_SHARED").map(|path| PathBuf::from(path).join("corpus/red_pajama"));
    if let Some(corpus) = corpus.filter(|path| path.is_dir()) {
        return vec![
            ("english", documents(&corpus.join("2023-02/en_head.json.gz"), "classic-books")),
            ("code", documents(&corpus.join("2023-03/en_head.json.gz"), "tokio")),
            ("japanese", documents(&corpus.join("2023-04/multi_head.json.gz"), "python-docs-ja")),
            ("chinese", documents(&corpus.join("2023-02/multi_head.json.gz"), "chinese-poetry")),
            ("german", documents(&corpus.join("2023-04/multi_head.json.gz"), "gesetze")),
        ];
    }
    let made_up = |text: &str| vec![padded(&text.repeat(SAMPLE / text.len()))];
    vec![
        (
            "english",
            made_up("It was the best of times, it was the worst of times; don't say \"never\" in 1859.\n"),
        ),
        (
            "code",
            made_up("    for (int i = 0; i < kMaxItems; ++i) {\n        sum += items[i]->value();\n    }\n"),
        ),
        ("mixed", made_up("日本語のテキスト、中文文本。한국어 텍스트 und deutscher Text über Straßen.\n")),
    ]
}

/// The documents of a shard from one source, up to the size of a sample.
fn documents(shard: &Path, source: &str) -> Vec<Vec<u8>> {
    let lines = BufReader::new(flate2::read::MultiGzDecoder::new(File::open(shard).unwrap())).lines();
    let mut size = 0;
    lines
        .map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap())
        .filter(|record| record["url"].as_str().is_some_and(|url| url.contains(source)))
        .map(|record| padded(record["raw_content"].as_str().unwrap()))
        .take_while(|document| {
            size += document.len();
            size < SAMPLE
        })
        .collect()
}

fn padded(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(text.len() + PADDING, 0);
    bytes
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = split
}
criterion_main!(benches);
