//! Megabytes a second of one thread beside Dynamo's default: `encode TOKENIZER_JSON TEXT_FILE`.

use std::time::Instant;

use dynamo_tokenizers::traits::Encoder;
use dynamo_tokenizers::{FastTokenizer, HuggingFaceTokenizer};
use gristmill_dynamo::GristmillTokenizer;

fn main() {
    let [path, file] =
        std::env::args().skip(1).collect::<Vec<_>>().try_into().expect("TOKENIZER_JSON TEXT_FILE");
    let text = std::fs::read_to_string(file).expect("a file of UTF-8");
    let documents: Vec<&str> = text.split("\n\n").collect();
    let measure = |name: &str, tokenizer: &dyn Encoder| {
        let mut ids = Vec::new();
        for round in ["first", "second"] {
            let start = Instant::now();
            ids = documents
                .iter()
                .map(|one| tokenizer.encode(one).expect("ids").token_ids().to_vec())
                .collect();
            let speed = text.len() as f64 / 1e6 / start.elapsed().as_secs_f64();
            println!("{name:10} {round:6} pass: {speed:8.1} MB/s");
        }
        ids
    };
    let wanted = measure("default", &HuggingFaceTokenizer::from_file(&path).expect("a tokenizer.json"));
    if let Ok(fastokens) = FastTokenizer::from_file(&path) {
        measure("fastokens", &fastokens);
    }
    let found =
        measure("gristmill", &GristmillTokenizer::from_file(&path).expect("a tokenizer of the fast engine"));
    assert_eq!(found, wanted, "the ids differ");
}
