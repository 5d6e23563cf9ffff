//! The fast engine against the reference: tables of traps, on small tokenizers made for them.

use gristmill_encoder::{Encoder, EncoderOptions, Engine, SpecialTokens};
use serde_json::{Value, json};

use crate::support::{
    Compared, Model, TEXT, added, byte_level, byte_spelling, fallback, metaspace, prepend, steps, texts,
};

/// Tokens whose own id is not what their merges give, alone and as parts of pre-tokens.
#[test]
fn ignoring_merges_looks_the_whole_piece_up_first() {
    let mut model = Model::byte_level(100);
    let spelling = byte_spelling();
    for word in ["the", "Ġtheme", "hand", "xyzzy", "Ġquick", "aaaa"] {
        model.vocab.push(word.into());
    }
    for text in ["日本", "です", "これは", "日"] {
        model.vocab.push(text.bytes().map(|byte| spelling[usize::from(byte)]).collect());
    }
    for (ignore_merges, pre_tokenizer) in
        [(true, byte_level()), (false, byte_level()), (true, steps()), (false, steps())]
    {
        let options = json!({"ignore_merges": ignore_merges});
        let file = model.tokenizer(options, Value::Null, pre_tokenizer, json!([]));
        let compared = Compared::new(&file);
        compared.check([
            "the theme hand xyzzy aaaa",
            "(the theme), hand-hand; xyzzy! the, theme. hand123 aaaa",
            "日本です",
            "これは日本",
            "これは日本です日",
            "日本",
            "日",
        ]);
        compared.check(texts());
    }
}

/// Behind the byte level a step may cut inside characters, and `ignore_merges` looks a half one up.
#[test]
fn half_a_character_may_be_a_token_that_no_merges_make() {
    let spelling = byte_spelling();
    for half in [&[0xE3, 0x83_u8][..], &[0x81, 0x82], &[0x83, 0x82, 0x83]] {
        let mut model = Model::byte_level(20);
        model.vocab.push(half.iter().map(|byte| spelling[usize::from(*byte)]).collect());
        // In the spelling of bytes, ¼ is a digit.
        let behind = json!({"type": "Sequence", "pretokenizers": [byte_level(),
            {"type": "Split", "pattern": {"Regex": "ã"}, "behavior": "Isolated", "invert": false}]});
        for pre_tokenizer in [steps(), behind] {
            let options = json!({"ignore_merges": true});
            let compared = Compared::new(&model.tokenizer(options, Value::Null, pre_tokenizer, json!([])));
            compared.check(["アー", "ーア", "あ什", "什あ", "ああ", "アアーー1", "ア", "アメリカーー"]);
            compared.check(texts());
        }
    }
}

/// Runs of spaces are cut where no merge joins two, and a part must not be taken for a whole pre-token.
#[test]
fn a_token_that_no_merges_make_may_begin_or_end_with_a_space() {
    let split_at_digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "[0-9]"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
    for token in [None, Some("Ġb"), Some("bĠ"), Some("aĠb"), Some("ĠĠ"), Some("bĠĠĠ")] {
        let mut model = Model::byte_level(10);
        assert!(model.merges.iter().all(|(left, right)| !format!("{left}{right}").contains("ĠĠ")));
        model.vocab.extend(token.map(String::from));
        for (ignore_merges, pre_tokenizer) in
            [(true, split_at_digits.clone()), (false, split_at_digits.clone()), (true, byte_level())]
        {
            let options = json!({"ignore_merges": ignore_merges});
            let compared = Compared::new(&model.tokenizer(options, Value::Null, pre_tokenizer, json!([])));
            for spaces in (0..14).map(|spaces| " ".repeat(spaces)) {
                for front in ["", "a", "b", "\n", "ab", "1b", "xx1", "日"] {
                    let text = [front, &spaces, "b1", &spaces, "\n", &spaces, "a", &spaces].concat();
                    compared.check([text.as_str()]);
                }
            }
        }
    }
}

/// Characters without a byte token, with and without an unknown token to fuse.
#[test]
fn unknown_characters() {
    let mut model = Model::sentence_piece(200);
    model.vocab.retain(|token| !["<0x0A>", "<0xF0>", "<0xE2>", "<0xC3>"].contains(&token.as_str()));
    let texts_of_unknown = ["½½", "a½\n½b", "½é\n", "\n\n\n", "x\ny", "½\t½", "\t½\t\t½½", "a👩b", "ab\nab"];
    for options in [
        json!({"byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true}),
        json!({"byte_fallback": true, "unk_token": "<unk>", "fuse_unk": false}),
        json!({"byte_fallback": true}),
        json!({"byte_fallback": false, "unk_token": "<unk>", "fuse_unk": true}),
        json!({"byte_fallback": false, "unk_token": "<unk>"}),
        json!({}),
    ] {
        for (normalizer, pre_tokenizer) in [(prepend(), Value::Null), (Value::Null, metaspace("first", true))]
        {
            let compared =
                Compared::new(&model.tokenizer(options.clone(), normalizer, pre_tokenizer, json!([])));
            compared.check(texts_of_unknown);
            compared.check(texts());
        }
    }
}

/// As in Gemma's vocabulary, which has a tab in place of its byte token.
#[test]
fn a_character_with_a_token_needs_no_byte_token() {
    let mut model = Model::sentence_piece(200);
    model.vocab.retain(|token| token != "<0x09>");
    let lacking = model.tokenizer(fallback(), prepend(), Value::Null, json!([]));
    model.vocab.push("\t".into());
    let complete = model.tokenizer(fallback(), prepend(), Value::Null, json!([]));
    for (file, is_cut) in [(lacking, false), (complete, true)] {
        let encoder = Encoder::from_bytes(file.to_string().as_bytes()).unwrap();
        assert_eq!(!encoder.engine_reason().contains("uncut"), is_cut, "{}", encoder.engine_reason());
        let compared = Compared::new(&file);
        compared.check(["\t", "a\tb", "\t\t the\t", "½\t½ the"]);
        compared.check(texts());
    }
}

/// Byte-level vocabularies that were trained without the whole alphabet.
#[test]
fn unknown_bytes() {
    let mut model = Model::byte_level(300);
    let spelling = byte_spelling();
    let missing: Vec<String> = [b'z', b'Q', b'7', 0xA0, 0x9F, 0xE3, b'\n', 0]
        .map(|byte| spelling[usize::from(byte)].to_string())
        .to_vec();
    let lacks = |token: &String| missing.iter().any(|byte| token.contains(byte.as_str()));
    model.vocab.retain(|token| !lacks(token));
    model.merges.retain(|(left, right)| !lacks(left) && !lacks(right));
    model.vocab.push("<unk>".into());
    let texts_of_unknown =
        ["z", "zz", "azzb", "thze", "tzhe", "zQ7", "a7b7z c", "日本zです", "\n\n", "QQ the Qthe", "é\u{a0}z"];
    for options in [
        json!({}),
        json!({"unk_token": "<unk>", "fuse_unk": true}),
        json!({"unk_token": "<unk>"}),
        json!({"ignore_merges": true}),
    ] {
        for pre_tokenizer in [byte_level(), steps()] {
            let compared =
                Compared::new(&model.tokenizer(options.clone(), Value::Null, pre_tokenizer, json!([])));
            compared.check(texts_of_unknown);
            compared.check(texts());
        }
    }
}

#[test]
fn duplicate_merges_and_merges_in_any_order() {
    for shuffle in 0..6 {
        let mut model = Model::sentence_piece(150);
        let repeated: Vec<_> = model.merges.iter().step_by(3).cloned().collect();
        model.merges.extend(repeated);
        if shuffle % 2 == 1 {
            model.merges.reverse();
        }
        model.merges.rotate_left(shuffle * 20);
        for (left, right) in
            [("▁", "▁"), ("▁▁", "▁"), ("a", "▁"), ("-", "a"), (".", "1"), ("語", "日"), ("日", "本")]
        {
            if model.vocab.contains(&left.to_owned()) && model.vocab.contains(&right.to_owned()) {
                model.add_merge(left, right);
            }
        }
        Compared::new(&model.tokenizer(fallback(), prepend(), Value::Null, json!([]))).check(texts());
    }
}

#[test]
fn added_tokens_with_all_flags() {
    let tokens =
        ["<x>", "<x", "x>", "the", "▁the", " ", "  ", "\n", "e\u{301}", "é", "日", "-", "<s>", "</s>"];
    let flags = ["single_word", "lstrip", "rstrip", "normalized", "special"];
    let texts: Vec<String> =
        ["{}", "a{}b", " {} ", "a {} b", "  \n{}\t\u{3000} x", "{}{}", "{} {}", "_{}", "{}1", "▁{}▁"]
            .iter()
            .flat_map(|form| tokens.iter().map(|token| form.replace("{}", token)))
            .chain(texts())
            .collect();
    let spm = Model::sentence_piece(100);
    let bytes = Model::byte_level(100);
    for set in 0..1 << flags.len() {
        let set: Vec<&str> =
            flags.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1).map(|(_, flag)| *flag).collect();
        // All tokens with one set of flags, then every second one with none.
        let all: Vec<Value> = tokens.iter().map(|token| added(token, &set)).collect();
        let some: Vec<Value> = (tokens.iter().enumerate())
            .map(|(index, token)| added(token, if index % 2 == 0 { &set } else { &[] }))
            .collect();
        for list in [all, some] {
            for (model, normalizer, pre_tokenizer) in [
                (&spm, prepend(), Value::Null),
                (&spm, Value::Null, metaspace("first", false)),
                (&bytes, json!({"type": "NFC"}), byte_level()),
                (&bytes, json!({"type": "NFKD"}), byte_level()),
                (&bytes, Value::Null, byte_level()),
            ] {
                // Normalized, both ways to write é are one: such a file is left to the reference.
                let is_unicode = matches!(normalizer["type"].as_str(), Some("NFC" | "NFKD"));
                let list: Vec<Value> = list
                    .iter()
                    .filter(|token| !is_unicode || token["content"] != "e\u{301}")
                    .cloned()
                    .collect();
                let file = model.tokenizer(fallback(), normalizer, pre_tokenizer, json!(list));
                Compared::new(&file).check(&texts);
            }
        }
    }
}

/// Found by their first two bytes, unless one of them is too long for that.
#[test]
fn added_tokens_anywhere_in_a_long_text() {
    let runs: Vec<String> = (2..32).map(|length| " ".repeat(length)).collect();
    let long = "-".repeat(300) + ">";
    let spread = |token: &str| {
        // At every distance from the end of a block of 64 bytes, and of the 32 of them that are searched at once.
        let texts =
            (0..200).map(|gap| format!("{}{token}{}{token}", "ab ".repeat(gap), "é".repeat(gap % 70)));
        texts.chain((2040..2056).map(|gap| format!("{}{token}", "x".repeat(gap)))).collect::<Vec<_>>()
    };
    let mut texts: Vec<String> =
        ["<x>", "  ", "   ", "\n", "日", &long].iter().flat_map(|token| spread(token)).collect();
    texts.extend([
        long[1..].repeat(20),
        "<|a b <|a|> |a| <|a".to_owned(),
        "-".repeat(5000) + ">",
        "<<x>x><x".repeat(700),
        "a  b   c".repeat(900),
    ]);
    // One of them inside another.
    let short = ["<x>", "<xx", "日", "\n", "<|a|>", "|a"].into_iter().chain(runs.iter().map(String::as_str));
    for tokens in
        [short.clone().collect::<Vec<_>>(), short.chain([&*long]).collect(), vec!["<x>", "日"], vec![&*long]]
    {
        let list: Vec<Value> = tokens.iter().map(|token| added(token, &[])).collect();
        let file = Model::byte_level(100).tokenizer(json!({}), Value::Null, byte_level(), json!(list));
        Compared::new(&file).check(&texts);
    }
}

/// Stretches between tokens are looked up together, some kilobytes at a time.
#[test]
fn stretches_between_many_added_tokens() {
    let by_automata = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"[a-z]+(?=[0-9])|\s?[a-z]|\s+(?!\S)|\s|[^a-z\s]+"},
         "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
    let (bytes, spm) = (Model::byte_level(100), Model::sentence_piece(100));
    let mut poor = Model::sentence_piece(100);
    poor.vocab.retain(|token| token != "<0x0A>");
    let tokens = json!([added("<s>", &[]), added("  ", &["normalized"]), added("日", &["lstrip"])]);
    let nothing = || Value::Null;
    for (file, way) in [
        (bytes.tokenizer(json!({}), nothing(), byte_level(), tokens.clone()), "GPT-2-style split"),
        (bytes.tokenizer(json!({}), json!({"type": "NFC"}), steps(), tokens.clone()), "into runs"),
        (bytes.tokenizer(json!({}), nothing(), by_automata, tokens.clone()), "words first"),
        (spm.tokenizer(fallback(), prepend(), nothing(), tokens.clone()), "before each stretch"),
        (
            spm.tokenizer(fallback(), nothing(), metaspace("always", true), tokens.clone()),
            "before each marker",
        ),
        (poor.tokenizer(fallback(), prepend(), nothing(), tokens.clone()), "uncut"),
    ] {
        let encoder = Encoder::from_bytes(file.to_string().as_bytes()).unwrap();
        assert!(encoder.engine_reason().contains(way), "{way}: {}", encoder.engine_reason());
        let unit = format!("<s>the  quick\n brown fox{TEXT}<s><s> e\u{301}日\n");
        Compared::new(&file).check([
            unit.repeat(60_000 / unit.len()),
            "<s>".repeat(20_000),
            "a  ".repeat(9000),
        ]);
    }
}

/// Each token of a run of space strips the whole run; to go through it each time would take minutes here. The
/// reference does, and so it is asked for a short run only.
#[test]
fn a_long_run_of_space_tokens_that_strip() {
    let model = Model::byte_level(0);
    for (token, flag) in [("\n", "rstrip"), ("\n", "lstrip"), ("  ", "lstrip"), ("  ", "rstrip")] {
        let tokens = json!([added("<s>", &[]), added(token, &[flag])]);
        let file = model.tokenizer(json!({}), Value::Null, byte_level(), tokens);
        let run = |count: usize| format!("a <s>{}b", token.repeat(count));
        Compared::new(&file).check([run(1), run(2), run(30)]);
        let encoder = Encoder::from_bytes(file.to_string().as_bytes()).unwrap();
        let ids = |text: String| {
            let mut ids = Vec::new();
            encoder.worker().encode(&text, &mut ids).unwrap();
            ids
        };
        let mut expected = ids(run(2));
        let index = expected.iter().rposition(|id| *id == 257).expect("the token");
        expected.splice(index..index, vec![257; 1_000_000 - 2]);
        assert_eq!(ids(run(1_000_000)), expected, "{token:?} {flag}");
    }
}

#[test]
fn ids_and_spellings_of_tokens_are_those_of_the_reference() {
    let added_tokens = json!([
        added("<s>", &["special"]),
        added("HELLO", &["normalized"]),
        added("new", &[]),
        added("", &[]),
        added("new", &["special"]),
        added(" é", &["normalized"])
    ]);
    let spm = Model::sentence_piece(50).tokenizer(fallback(), prepend(), Value::Null, added_tokens.clone());
    let bytes = Model::byte_level(50).tokenizer(json!({}), Value::Null, byte_level(), added_tokens);
    for file in [spm, bytes] {
        let json = file.to_string();
        let fast = Encoder::from_bytes(json.as_bytes()).unwrap();
        let options = EncoderOptions { engine: Engine::Reference, ..Default::default() };
        let reference = Encoder::with_options(json.as_bytes(), options).unwrap();
        assert_eq!((fast.engine(), reference.engine()), (Engine::Fast, Engine::Reference));
        assert_eq!(fast.vocab_size(), reference.vocab_size());
        assert_eq!(fast.largest_id(), reference.largest_id());
        for id in 0..fast.vocab_size() as u32 + 3 {
            assert_eq!(fast.id_to_token(id), reference.id_to_token(id), "{id}");
            let token = fast.id_to_token(id).unwrap_or_default();
            assert_eq!(fast.token_to_id(&token), reference.token_to_id(&token), "{token:?}");
        }
        assert_eq!(fast.token_to_id("new"), reference.token_to_id("new"));
        assert_eq!(fast.decode(&[5, 300, 301]).unwrap(), reference.decode(&[5, 300, 301]).unwrap());
    }
}

/// Blocks that would cut or pad documents change nothing.
#[test]
fn truncation_and_padding_are_off() {
    let mut file = Model::byte_level(50).tokenizer(json!({}), Value::Null, byte_level(), json!([]));
    file["truncation"] =
        json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
    file["padding"] = json!({"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": null,
                             "pad_id": 0, "pad_type_id": 0, "pad_token": "a"});
    Compared::new(&file).check(["one two three four five six seven", ""]);
}

#[test]
fn special_tokens_are_text_when_asked() {
    let tokens = json!([added("<s>", &["special"]), added("<t>", &[])]);
    let file = Model::sentence_piece(50).tokenizer(fallback(), prepend(), Value::Null, tokens).to_string();
    let count = |special_tokens_in_text, text: &str| {
        let options = EncoderOptions { special_tokens_in_text, ..Default::default() };
        let mut ids = Vec::new();
        let encoder = Encoder::with_options(file.as_bytes(), options).unwrap();
        encoder.worker().encode(text, &mut ids).unwrap();
        ids.len()
    };
    assert_eq!(count(SpecialTokens::Id, "<s>"), 1);
    assert!(count(SpecialTokens::Text, "<s>") > 1);
    assert_eq!(count(SpecialTokens::Text, "<t>"), 1);
}
