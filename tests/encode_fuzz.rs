//! Random texts through small tokenizers, the fast engine against the reference. `GRISTMILL_CASES` sets
//! how many; `benches/differential.rs` does the same with real tokenizers.

mod encode_support;
#[path = "../benches/mixtures.rs"]
#[allow(dead_code)] // shared with other tests
mod mixtures;

use std::sync::LazyLock;

use encode_support::{Compared, Model, added};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Tokenizers of both styles and one of odd merges.
static TOKENIZERS: LazyLock<Vec<Compared>> = LazyLock::new(|| {
    let prepend = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true});
    let fallback = json!({"byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true});
    let tokens = json!([
        added("<s>", &["special"]),
        added("[INST]", &["lstrip"]),
        added("<mask>", &["lstrip", "rstrip", "normalized"]),
        added("the", &["single_word", "normalized"]),
        added("   ", &["rstrip"])
    ]);
    let mut odd = Model::sentence_piece(120);
    odd.merges.reverse();
    for (left, right) in [("a", "▁"), ("▁", "▁"), ("▁▁", "▁▁"), ("-", "-"), ("--", "a"), ("日", "本")]
    {
        odd.add_merge(left, right);
    }
    let mut poor = Model::sentence_piece(120);
    poor.vocab.retain(|token| token != "<0xF0>" && token != "<0x0A>");
    let spm = Model::sentence_piece(400);
    let bytes = Model::byte_level(400);
    [
        spm.tokenizer(fallback.clone(), prepend.clone(), Value::Null, tokens.clone()),
        spm.tokenizer(fallback.clone(), Value::Null, metaspace, tokens.clone()),
        odd.tokenizer(fallback.clone(), prepend.clone(), Value::Null, json!([])),
        poor.tokenizer(fallback, prepend, Value::Null, tokens.clone()),
        bytes.tokenizer(json!({}), json!({"type": "NFC"}), byte_level.clone(), tokens.clone()),
        bytes.tokenizer(json!({"ignore_merges": true}), Value::Null, byte_level, tokens),
    ]
    .iter()
    .map(Compared::new)
    .collect()
});

/// How many cases to generate: `GRISTMILL_CASES`, or a few.
fn cases() -> u32 {
    std::env::var("GRISTMILL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200)
}

fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(mixtures::FRAGMENTS).prop_map(String::from),
        1 => prop::sample::select(mixtures::FRAGMENTS).prop_flat_map(|unit| {
            (1usize..80).prop_map(move |times| unit.repeat(times))
        }),
        2 => "[ -~]{1,8}",
        1 => any::<char>().prop_map(String::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn any_text_gives_the_ids_of_the_reference(fragments in prop::collection::vec(fragment(), 0..25)) {
        let text = fragments.concat();
        for tokenizer in TOKENIZERS.iter() {
            tokenizer.check([&text]);
        }
    }
}
