//! Random texts through small tokenizers, the fast engine against the reference. `GRISTMILL_CASES` sets
//! how many; `examples/differential.rs` does the same with real tokenizers.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::chars_map::some_entries;
use crate::mixtures;
use crate::number;
use crate::support::{
    Compared, Model, added, added_tokens, after, as_unigram, as_word_piece, bert, byte_level, fallback,
    metaspace, prepend, replace, replace_and_double, steps,
};

/// Tokenizers of both styles and one of odd merges.
static TOKENIZERS: LazyLock<Vec<Compared>> = LazyLock::new(|| {
    let tokens = added_tokens();
    let control = json!([added("<s>", &["special"]), added("[INST]", &[])]);
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
    let strip = json!({"type": "Strip", "strip_left": true, "strip_right": true});
    let words = Model::of_characters(400);
    let pieces = Model::word_pieces();
    let unigrams = Model::unigrams();
    let words_marked = json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always", true)]});
    let unknown = |fuse: bool| json!({"unk_token": "[UNK]", "fuse_unk": fuse});
    let ignores_merges = || json!({"ignore_merges": true});
    [
        spm.tokenizer(fallback(), prepend(), Value::Null, tokens.clone()),
        spm.tokenizer(fallback(), Value::Null, metaspace("first", false), tokens.clone()),
        spm.tokenizer(fallback(), Value::Null, metaspace("never", true), tokens.clone()),
        spm.tokenizer(fallback(), replace(), metaspace("first", false), tokens.clone()),
        spm.tokenizer(fallback(), replace_and_double(), metaspace("always", false), tokens.clone()),
        spm.tokenizer(fallback(), json!({"type": "NFKC"}), metaspace("always", true), tokens.clone()),
        spm.tokenizer(fallback(), after(&json!({"type": "NFC"}), &prepend()), Value::Null, tokens.clone()),
        spm.tokenizer(fallback(), after(&strip, &prepend()), Value::Null, tokens.clone()),
        odd.tokenizer(fallback(), prepend(), Value::Null, json!([])),
        poor.tokenizer(fallback(), prepend(), Value::Null, tokens.clone()),
        bytes.tokenizer(json!({}), json!({"type": "NFC"}), byte_level(), tokens.clone()),
        bytes.tokenizer(json!({}), json!({"type": "NFD"}), byte_level(), tokens.clone()),
        bytes.tokenizer(json!({}), json!({"type": "NFKC"}), byte_level(), tokens.clone()),
        bytes.tokenizer(json!({}), json!({"type": "Lowercase"}), byte_level(), tokens.clone()),
        bytes.tokenizer(json!({}), json!({"type": "NFC"}), byte_level(), control.clone()),
        bytes.tokenizer(json!({}), json!({"type": "NFKD"}), steps(), control),
        bytes.tokenizer(ignores_merges(), Value::Null, byte_level(), tokens.clone()),
        bytes.tokenizer(json!({}), Value::Null, steps(), tokens.clone()),
        bytes.tokenizer(ignores_merges(), Value::Null, steps(), tokens.clone()),
        words.tokenizer(unknown(true), Value::Null, json!({"type": "Whitespace"}), tokens.clone()),
        words.tokenizer(
            unknown(false),
            json!({"type": "NFKC"}),
            json!({"type": "BertPreTokenizer"}),
            tokens.clone(),
        ),
        words.tokenizer(unknown(false), Value::Null, Value::Null, tokens.clone()),
        as_word_piece(
            pieces.tokenizer(
                json!({}),
                bert(None, true),
                json!({"type": "BertPreTokenizer"}),
                tokens.clone(),
            ),
            "##",
            20,
        ),
        as_word_piece(
            pieces.tokenizer(json!({}), bert(None, false), json!({"type": "Whitespace"}), tokens.clone()),
            "",
            100,
        ),
        as_unigram(unigrams.tokenizer(json!({}), some_entries(), words_marked, tokens.clone()), false),
        as_unigram(
            unigrams.tokenizer(json!({}), Value::Null, metaspace("always", true), tokens.clone()),
            true,
        ),
        as_unigram(unigrams.tokenizer(json!({}), prepend(), Value::Null, tokens), false),
    ]
    .iter()
    .map(Compared::new)
    .collect()
});

/// How many cases to generate: `GRISTMILL_CASES`, or a few.
fn cases() -> u32 {
    number("GRISTMILL_CASES", 200)
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

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn tokens_start_where_the_reference_says(fragments in prop::collection::vec(fragment(), 0..12)) {
        for tokenizer in TOKENIZERS.iter() {
            tokenizer.check_starts(&fragments.concat());
        }
    }
}

proptest! {
    // A text that is long.
    #![proptest_config(ProptestConfig { cases: cases().div_ceil(8), ..ProptestConfig::default() })]

    /// Several batches of pre-tokens, of which some, or many, are met for the first time, some of these twice: new
    /// pre-tokens are held back and merged side by side.
    #[test]
    fn a_text_of_known_and_new_words_gives_the_ids_of_the_reference(
        seed in any::<u64>(),
        words in 1usize..2000,
        one_new_in in 1usize..100,
        letters in prop::sample::select(vec!["abcdefghij", "aeé日本🙂", "0123456789"]),
    ) {
        let mut random = mixtures::Random::new(seed);
        let letters: Vec<char> = letters.chars().collect();
        let mut known = vec!["the".to_owned()];
        let mut text = String::new();
        for _ in 0..words {
            if random.below(one_new_in) == 0 {
                let length = 1 + random.below(20);
                known.push((0..length).map(|_| letters[random.below(letters.len())]).collect());
            }
            let word = &known[random.below(known.len())];
            text.push_str(word);
            text.push(' ');
        }
        for tokenizer in TOKENIZERS.iter() {
            tokenizer.check([&text]);
        }
    }
}
