//! The structures of tokenizers in use (normalizer, pre-tokenizer, model options, flags of added tokens),
//! put on small vocabularies: the fast engine takes them and gives the ids of the reference.
//!
//! The structures are in a file that is not part of the project.
//! `GRISTMILL_CASES` sets how many random texts are tried with each.

use std::path::PathBuf;

use gristmill_encoder::{Encoder, Engine};
use serde_json::{Value, json};

use crate::mixtures;
use crate::number;
use crate::support::{Compared, Model, TEXT, added};

fn families() -> serde_json::Map<String, Value> {
    let folder = std::env::var("GRISTMILL_SHARED").map_or_else(
        |_| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")),
        PathBuf::from,
    );
    let bytes = std::fs::read(folder.join("families.json")).unwrap();
    serde_json::from_slice::<Value>(&bytes).unwrap().as_object().unwrap().clone()
}

/// Words between spaces as added tokens, one for each set of flags that the family has.
fn added_tokens(family: &Value) -> Value {
    let flags = ["single_word", "lstrip", "rstrip", "normalized", "special"];
    let partition = family["added_token_kinds"].as_array().unwrap();
    let tokens = partition.iter().enumerate().map(|(index, kind)| {
        let set: Vec<&str> = flags.into_iter().filter(|flag| kind[flag] == true).collect();
        added(["<s>", "[INST]", "</s>", "<mask>", "HELLO"][index % 5], &set)
    });
    tokens.collect()
}

#[test]
#[ignore = "needs the shared folder"]
fn families_are_taken_and_exact() {
    let tokens = ["<s>", "[INST]", "</s>", "<mask>", "HELLO", TEXT].map(String::from);
    let fragments: Vec<String> = mixtures::FRAGMENTS.iter().map(|fragment| fragment.repeat(3)).collect();
    let cases = number("GRISTMILL_CASES", 150_usize);
    let (bytes, characters) = (Model::byte_level(400), Model::sentence_piece(400));
    for (name, family) in families() {
        let is_bytes = family["pre_tokenizer"].to_string().contains("ByteLevel");
        let model = if is_bytes { &bytes } else { &characters };
        let mut options = family["model"].clone();
        if is_bytes {
            options["unk_token"] = json!(null);
        }
        let part = |part: &str| family[part].clone();
        let file = model.tokenizer(options, part("normalizer"), part("pre_tokenizer"), added_tokens(&family));
        let encoder = Encoder::from_bytes(file.to_string().as_bytes()).unwrap();
        println!("{name}: {:?}, {}", encoder.engine(), encoder.engine_reason());
        // An affix, and a split at a word: no other tokenizer for pretraining has these.
        if ["clip", "chatglm"].contains(&name.as_str()) {
            assert_eq!(encoder.engine(), Engine::Reference);
        } else {
            let compared = Compared::new(&file);
            compared.check(&fragments);
            let mut random = mixtures::Random::new(5);
            let mut left = cases;
            while left > 0 {
                let texts: Vec<String> =
                    (0..left.min(1000)).map(|_| mixtures::mixture(&mut random, &tokens)).collect();
                compared.check(&texts);
                left -= texts.len();
            }
            println!("{name}: {} texts are equal", cases + fragments.len());
        }
    }
}
