//! The fast engine against the reference: tables of traps, on small tokenizers made for them.

use _core::encode::{Encoder, EncoderOptions, Engine, SpecialTokens};
use serde_json::{Value, json};

use crate::mixtures;
use crate::support::{
    Compared, Model, TEXT, added, added_tokens, after, byte_level, byte_spelling, fallback, metaspace,
    prepend, replace, steps,
};

/// The texts that every tokenizer here is tried on.
fn texts() -> Vec<String> {
    let mut texts: Vec<String> = mixtures::FRAGMENTS.iter().map(|fragment| (*fragment).to_owned()).collect();
    for pair in mixtures::FRAGMENTS.windows(2) {
        texts.push(pair.concat());
        texts.push(format!("x{} {}y", pair[0], pair[1]));
    }
    texts.push(String::new());
    texts.push(TEXT.to_owned());
    texts.push(TEXT.replace(' ', ""));
    texts.extend(["a", " ", "日", "=", "ab", "▁", "\n"].map(|unit| unit.repeat(700)));
    texts
}

#[test]
fn sentence_piece_forms() {
    let model = Model::sentence_piece(300);
    let forms = [
        (prepend(), Value::Null),
        (replace(), Value::Null),
        (json!({"type": "Sequence", "normalizers": [replace()]}), Value::Null),
        (json!({"type": "Replace", "pattern": {"Regex": " "}, "content": "▁"}), Value::Null),
        (Value::Null, metaspace("first", false)),
        (Value::Null, metaspace("always", false)),
        (Value::Null, metaspace("never", false)),
        (Value::Null, metaspace("first", true)),
        (Value::Null, json!({"type": "Sequence", "pretokenizers": [metaspace("always", true)]})),
        (Value::Null, json!({"type": "Metaspace", "replacement": "▁", "add_prefix_space": true})),
        (replace(), metaspace("first", false)),
        (replace(), metaspace("always", true)),
        (replace(), metaspace("never", false)),
        (after(&json!({"type": "NFC"}), &prepend()), Value::Null),
        (after(&json!({"type": "NFKC"}), &replace()), metaspace("always", false)),
        (json!({"type": "NFKC"}), metaspace("always", true)),
        (json!({"type": "NFD"}), metaspace("never", false)),
        (
            replace(),
            json!({"type": "Split", "pattern": {"String": " "},
                           "behavior": "MergedWithPrevious", "invert": false}),
        ),
    ];
    for (normalizer, pre_tokenizer) in forms {
        for added_tokens in [json!([]), added_tokens()] {
            let file = model.tokenizer(fallback(), normalizer.clone(), pre_tokenizer.clone(), added_tokens);
            Compared::new(&file).check(texts());
        }
    }
}

/// Splits between certain characters, which some tokens of the vocabulary have inside and some have not.
#[test]
fn separators_after_markers() {
    let split = |pattern: Value, behavior: &str| json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": false});
    let digits = |individual: bool| json!({"type": "Digits", "individual_digits": individual});
    let punctuation = |behavior: &str| json!({"type": "Punctuation", "behavior": behavior});
    let steps = |steps: &[&Value]| json!({"type": "Sequence", "pretokenizers": steps});
    let model = Model::sentence_piece(300);
    for separator in [
        digits(true),
        digits(false),
        split(json!({"Regex": r"\p{N}"}), "Isolated"),
        split(json!({"Regex": "[0-9]"}), "MergedWithPrevious"),
        split(json!({"Regex": r"\p{N}"}), "Contiguous"),
        punctuation("Isolated"),
        punctuation("MergedWithNext"),
        split(json!({"String": "a"}), "Isolated"),
        split(json!({"String": "▁"}), "MergedWithNext"),
        split(json!({"String": "\n"}), "Contiguous"),
        split(json!({"String": " "}), "MergedWithPrevious"),
    ] {
        for (normalizer, pre_tokenizer) in [
            (Value::Null, steps(&[&metaspace("always", true), &separator])),
            (Value::Null, steps(&[&metaspace("never", false), &separator, &digits(false)])),
            (replace(), steps(&[&metaspace("first", false), &separator])),
            (prepend(), separator.clone()),
        ] {
            for added_tokens in [json!([]), added_tokens()] {
                let file =
                    model.tokenizer(fallback(), normalizer.clone(), pre_tokenizer.clone(), added_tokens);
                Compared::new(&file).check(texts().into_iter().step_by(4));
            }
        }
    }
    for (separator, options, reason) in [
        (split(json!({"Regex": "[0-9]+"}), "Isolated"), fallback(), "is not recognised"),
        (split(json!({"Regex": "(?i)s"}), "Isolated"), fallback(), "is not recognised"),
        (split(json!({"String": "ab"}), "Isolated"), fallback(), "is not recognised"),
        (split(json!({"String": "\n"}), "Removed"), fallback(), "is not recognised"),
        (punctuation("Removed"), fallback(), "is not recognised"),
        // Unknown tokens fuse, but not across a split.
        (digits(true), json!({"unk_token": "<unk>", "fuse_unk": true}), "lacks byte tokens"),
    ] {
        let file = model.tokenizer(options, replace(), separator, json!([]));
        let encoder = Encoder::from_bytes(file.to_string().as_bytes()).unwrap();
        assert_eq!(encoder.engine(), Engine::Reference);
        assert!(encoder.engine_reason().contains(reason), "{}", encoder.engine_reason());
    }
}

/// What `transformers` 5 writes for a SentencePiece model of Llama 2's kind: text that begins with a marker gets another
/// one from the normalizer, any other from Metaspace.
#[test]
fn a_marker_from_either_normalizer_or_metaspace() {
    let doubled = json!({"type": "Replace", "pattern": {"Regex": r"\A▁"}, "content": "▁▁"});
    let model = Model::sentence_piece(300);
    let marks = after(&replace(), &doubled);
    for (normalizer, split) in
        [(marks.clone(), false), (marks.clone(), true), (after(&json!({"type": "NFKC"}), &marks), false)]
    {
        for raw in [json!([]), json!([added("<s>", &["special"]), added("HELLO", &["lstrip", "rstrip"])])] {
            let step = json!({"type": "Sequence", "pretokenizers": [metaspace("always", split)]});
            let file = model.tokenizer(fallback(), normalizer.clone(), step, raw);
            let compared = Compared::new(&file);
            compared.check([
                "",
                " ",
                "▁",
                "  a",
                "▁▁a",
                "\u{A0}a",
                "<s> a",
                "<s>▁a",
                "a<s>",
                " <s> ",
                "HELLO  HELLO",
            ]);
            compared.check(texts());
        }
    }
    // Behind a token that is found after the normalizer there is only Metaspace.
    let tokens = json!([added("HELLO", &["normalized"])]);
    let file = model.tokenizer(fallback(), marks, metaspace("always", false), tokens);
    let encoder = Encoder::from_bytes(file.to_string().as_bytes()).unwrap();
    assert_eq!(encoder.engine(), Engine::Reference);
    assert!(encoder.engine_reason().contains("before Metaspace"), "{}", encoder.engine_reason());
}

#[test]
fn byte_level_forms() {
    let model = Model::byte_level(300);
    let prefix = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true});
    for (normalizer, pre_tokenizer, options) in [
        (Value::Null, byte_level(), json!({})),
        (json!({"type": "NFC"}), byte_level(), json!({"continuing_subword_prefix": ""})),
        (json!({"type": "NFD"}), byte_level(), json!({})),
        (json!({"type": "NFKC"}), steps(), json!({})),
        (json!({"type": "NFKD"}), byte_level(), json!({})),
        (Value::Null, prefix, json!({"end_of_word_suffix": ""})),
        (json!({"type": "Sequence", "normalizers": []}), byte_level(), json!({"ignore_merges": true})),
        (Value::Null, byte_level(), json!({"unk_token": "<unk>", "byte_fallback": true, "dropout": 0.0})),
        (Value::Null, steps(), json!({})),
    ] {
        for added_tokens in
            [json!([]), json!([added("HELLO", &["normalized"]), added("  ", &["normalized"])])]
        {
            let file =
                model.tokenizer(options.clone(), normalizer.clone(), pre_tokenizer.clone(), added_tokens);
            Compared::new(&file).check(texts());
        }
    }
}

/// Normalizers that the fast engine leaves to the reference, with tokens that are found before and after them.
#[test]
fn normalizers_by_the_library() {
    let one = |kind: &str| json!({"type": kind});
    let strip = |left: bool, right: bool| json!({"type": "Strip", "strip_left": left, "strip_right": right});
    let replaced = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": content});
    let normalizers = [
        one("Lowercase"),
        after(&one("NFKC"), &one("Lowercase")),
        after(&one("NFD"), &one("StripAccents")),
        strip(true, true),
        strip(false, true),
        one("Nmt"),
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
               "lowercase": true}),
        replaced(" {2,}", " "),
        replaced("e", ""),
        replaced("x*", ""),
        replaced("[0-9]", "▁ "),
        json!({"type": "Prepend", "prepend": "the "}),
        one("ByteLevel"),
    ];
    let (bytes, characters) = (Model::byte_level(200), Model::sentence_piece(200));
    let tokens = json!([
        added("<S>", &["special"]),
        added("HELLO", &["normalized", "lstrip"]),
        added("\u{c9}t\u{e9}", &["normalized", "single_word"])
    ]);
    let special =
        ["<S>", " <S>  the <S>", "HELLO  <S>HELLO", "  ", "e", "eee<S>e <S> \u{e9}T\u{c9} \t", "<s> hello"];
    for normalizer in normalizers {
        let styles = [
            (&bytes, normalizer.clone(), byte_level()),
            (
                &bytes,
                normalizer.clone(),
                json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true}),
            ),
            (&characters, after(&normalizer, &prepend()), Value::Null),
            (&characters, after(&normalizer, &replace()), metaspace("always", true)),
            (&characters, normalizer.clone(), metaspace("never", false)),
        ];
        for (model, normalizer, pre_tokenizer) in styles {
            for added_tokens in [json!([]), tokens.clone()] {
                let file =
                    model.tokenizer(fallback(), normalizer.clone(), pre_tokenizer.clone(), added_tokens);
                let compared = Compared::new(&file);
                compared.check(special);
                compared.check(texts().into_iter().step_by(5));
            }
        }
    }
}

/// Tokens whose own id is not what their merges give, alone and as parts of pieces.
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

/// Files that the reference reads otherwise than they look at first.
#[test]
fn what_the_reference_makes_of_odd_files() {
    let bytes = Model::byte_level(20);
    let in_map = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Punctuation", "behavior": {"Removed": null}}, byte_level()]});
    let mut files = vec![bytes.tokenizer(json!({}), Value::Null, in_map, json!([])).to_string()];
    let characters = Model::sentence_piece(20);
    for scheme in ["first", "never"] {
        let mut marks = metaspace("always", true);
        marks["prepend_scheme"] = json!({scheme: null});
        let added = json!([added("<s>", &["special"])]);
        files.push(characters.tokenizer(fallback(), Value::Null, marks, added).to_string());
    }
    // With its type given twice, a normalizer goes by its fields.
    let normal = bytes.tokenizer(json!({}), json!({"type": "NFC"}), byte_level(), json!([])).to_string();
    let twice = r#"{"type":"NFC","type":"NFC","strip_left":true,"strip_right":true}"#;
    files.push(normal.replace(r#"{"type":"NFC"}"#, twice));
    // The vocabulary's ids have gaps, and the first added token gets the id of the second.
    let added = json!([added("e\u{301}", &["normalized"]), added("c@", &["normalized"])]);
    let mut gaps = bytes.tokenizer(json!({}), json!({"type": "NFC"}), byte_level(), added);
    let next = bytes.vocab.len() + 2;
    gaps["model"]["vocab"]["c@"] = json!(next);
    gaps["model"]["vocab"]["zz"] = json!(next + 50);
    files.push(gaps.to_string());
    for file in files {
        let encoder = Encoder::from_bytes(file.as_bytes()).unwrap();
        for text in ["a.b", "<s>a", " a ", "a b", "é", "e\u{301}", "c@", "the c@ é", "▁the"] {
            let mut expected = Vec::new();
            encoder.encode_with_reference(text, &mut expected).unwrap();
            assert_eq!(encoder.encode(text).unwrap(), expected, "{text:?} {}", encoder.engine_reason());
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
            .map(|(place, token)| added(token, if place % 2 == 0 { &set } else { &[] }))
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
        "-".repeat(5000) + ">",
        "<<x>x><x".repeat(700),
        "a  b   c".repeat(900),
    ]);
    let short = ["<x>", "<xx", "日", "\n"].into_iter().chain(runs.iter().map(String::as_str));
    for tokens in
        [short.clone().collect::<Vec<_>>(), short.chain([&*long]).collect(), vec!["<x>", "日"], vec![&*long]]
    {
        let list: Vec<Value> = tokens.iter().map(|token| added(token, &[])).collect();
        let file = Model::byte_level(100).tokenizer(json!({}), Value::Null, byte_level(), json!(list));
        Compared::new(&file).check(&texts);
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
        let place = expected.iter().rposition(|id| *id == 257).expect("the token");
        expected.splice(place..place, vec![257; 1_000_000 - 2]);
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

/// What the fast engine does not take goes to the reference, with a reason.
#[test]
fn other_structures_use_the_reference() {
    let spm = Model::sentence_piece(50);
    let bytes = Model::byte_level(50);
    // The type decides, whatever else stands there.
    let leftover = json!({"type": "Whitespace", "pretokenizers": [byte_level()]});
    let one_spelling = json!([added("e\u{301}", &["normalized"]), added("é", &["normalized"])]);
    // In "<s>   ", where the reference panics.
    let stripped_twice = json!([added("<s>", &["rstrip"]), added("  ", &["lstrip"])]);
    let unicode_scripts = json!({"type": "Sequence", "pretokenizers": [metaspace("always", false), {"type": "UnicodeScripts"}]});
    let cases = [
        (spm.tokenizer(json!({"dropout": 0.5}), prepend(), Value::Null, json!([])), "dropout"),
        (spm.tokenizer(json!({"end_of_word_suffix": "</w>"}), Value::Null, Value::Null, json!([])), "words"),
        (
            spm.tokenizer(fallback(), json!({"type": "Lowercase"}), Value::Null, json!([])),
            "spaces into markers",
        ),
        (spm.tokenizer(fallback(), Value::Null, Value::Null, json!([])), "markers"),
        (
            spm.tokenizer(fallback(), json!({"type": "StripAccents"}), metaspace("first", true), json!([])),
            "only at the start",
        ),
        (
            bytes.tokenizer(
                json!({}),
                json!({"type": "Replace", "pattern": {"Regex": "b|$"}, "content": " "}),
                byte_level(),
                json!([]),
            ),
            "in place of nothing",
        ),
        (
            // For Oniguruma both or none, and not two as few times as possible.
            bytes.tokenizer(
                json!({}),
                json!({"type": "Replace", "pattern": {"Regex": "q{2}?"}, "content": "-"}),
                byte_level(),
                json!([]),
            ),
            "a pattern that is not known",
        ),
        (
            bytes.tokenizer(
                json!({}),
                after(&json!({"type": "NFC"}), &json!({"type": "Prepend", "prepend": ""})),
                byte_level(),
                json!([]),
            ),
            "in place of nothing",
        ),
        (spm.tokenizer(fallback(), prepend(), json!({"type": "Whitespace"}), json!([])), "Whitespace"),
        (spm.tokenizer(fallback(), Value::Null, unicode_scripts, json!([])), "UnicodeScripts"),
        (spm.tokenizer(fallback(), prepend(), metaspace("always", false), json!([])), "before Metaspace"),
        (spm.tokenizer(json!({"ignore_merges": true}), prepend(), Value::Null, json!([])), "ignores merges"),
        (spm.tokenizer(json!({"unk_token": "<none>"}), prepend(), Value::Null, json!([])), "<none>"),
        (
            spm.tokenizer(fallback(), after(&prepend(), &json!({"type": "NFC"})), Value::Null, json!([])),
            "after those that turn spaces into markers",
        ),
        (bytes.tokenizer(json!({}), Value::Null, leftover, json!([])), "Whitespace"),
        (bytes.tokenizer(json!({}), json!({"type": "NFC"}), byte_level(), one_spelling), "same spelling"),
        (bytes.tokenizer(json!({}), Value::Null, byte_level(), stripped_twice), "strips space"),
        // The reference tells these by their fields.
        (json!({"model": {"vocab": [["a", -1.0], ["b", -1.0]], "unk_id": 0}}), "Unigram, not BPE"),
        (
            json!({"model": {"vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                             "max_input_chars_per_word": 100}}),
            "WordPiece, not BPE",
        ),
        (json!({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}), "WordLevel"),
    ];
    for (file, expected) in cases {
        let encoder = Encoder::from_bytes(file.to_string().as_bytes()).unwrap();
        assert_eq!(encoder.engine(), Engine::Reference);
        assert!(encoder.engine_reason().contains(expected), "{}", encoder.engine_reason());
        let mut ids = Vec::new();
        encoder.worker().encode("a b", &mut ids).unwrap();
    }
    let mut joined_bytes = Model::sentence_piece(20);
    joined_bytes.add_merge("<0x0A>", "a");
    let mut missing_byte = Model::byte_level(0);
    missing_byte.vocab[65] = "unused token".into();
    for (model, pre_tokenizer, normalizer) in
        [(joined_bytes, Value::Null, prepend()), (missing_byte, byte_level(), Value::Null)]
    {
        let file = model.tokenizer(fallback(), normalizer, pre_tokenizer, json!([]));
        let encoder = Encoder::from_bytes(file.to_string().as_bytes()).unwrap();
        assert_eq!(encoder.engine(), Engine::Reference, "{}", encoder.engine_reason());
    }
}

/// A file that the reference refuses is refused, in its words.
#[test]
fn broken_files_are_refused() {
    let mut merges = Model::byte_level(10);
    merges.merges.push(("a".into(), "no such token".into()));
    let merges = merges.tokenizer(json!({}), Value::Null, byte_level(), json!([]));
    let mut version = Model::byte_level(10).tokenizer(json!({}), Value::Null, byte_level(), json!([]));
    version["version"] = json!("3.0");
    for (file, expected) in [(merges, "out of vocabulary"), (version, "3.0"), (json!({}), "Model")] {
        let error = Encoder::from_bytes(file.to_string().as_bytes()).err().expect("a refusal").to_string();
        assert!(error.contains("cannot load") && error.contains(expected), "{error}");
    }
    assert!(Encoder::from_bytes(b"not json").is_err());
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

/// A template may have the text twice or not at all, and without special tokens too.
#[test]
fn templates_that_change_ids_are_for_the_reference() {
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let special = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let template = |single: &[&Value]| {
        json!({"type": "TemplateProcessing", "single": single, "pair": [text],
               "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}})
    };
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let both = |last: Value| json!({"type": "Sequence", "processors": [bytes, last]});
    // The reference goes by the fields: the type may be missing, or another one.
    let typed = |mut processor: Value, name: Value| {
        processor["type"] = name;
        processor
    };
    let untyped = |mut processor: Value| {
        processor.as_object_mut().unwrap().remove("type");
        processor
    };
    let unnamed = json!({"Sequence": ["A", 0]});
    for (processor, engine) in [
        (bytes.clone(), Engine::Fast),
        (template(&[&text]), Engine::Fast),
        (both(template(&[&special, &text, &special])), Engine::Fast),
        (template(&[&text, &text]), Engine::Reference),
        (template(&[&special]), Engine::Reference),
        (both(template(&[])), Engine::Reference),
        (untyped(template(&[&special, &text])), Engine::Fast),
        (untyped(template(&[&text, &text])), Engine::Reference),
        (both(untyped(template(&[]))), Engine::Reference),
        (typed(template(&[&text, &text]), json!("BertProcessing")), Engine::Reference),
        (template(&[&text, &unnamed]), Engine::Reference),
    ] {
        let mut file = Model::byte_level(100).tokenizer(
            json!({}),
            Value::Null,
            byte_level(),
            json!([added("<s>", &["special"])]),
        );
        file["post_processor"] = processor;
        let encoder = Encoder::from_bytes(file.to_string().as_bytes()).unwrap();
        assert_eq!(encoder.engine(), engine, "{}", file["post_processor"]);
        let reference = tokenizers::Tokenizer::from_bytes(file.to_string()).unwrap();
        let mut ids = Vec::new();
        encoder.worker().encode("some text <s> here", &mut ids).unwrap();
        assert_eq!(ids, reference.encode("some text <s> here", false).unwrap().get_ids());
    }
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
