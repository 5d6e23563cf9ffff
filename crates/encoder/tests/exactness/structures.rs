//! Structures of tokenizer.json, on small vocabularies: which the fast engine takes, with the ids of the reference, and
//! which it leaves to the reference, with a reason.

use gristmill_encoder::{Encoder, Engine};
use serde_json::{Value, json};

use crate::chars_map::some_entries;
use crate::support::{
    Compared, Model, added, added_tokens, after, as_unigram, as_word_piece, bert, byte_level, fallback,
    metaspace, prepend, replace, replace_and_double, steps, texts,
};

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

/// Characters as they are, behind steps some of which remove what is between words, or behind none.
#[test]
fn characters_without_markers() {
    let split = |pattern: &str, behavior: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": false});
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "pretokenizers": steps});
    let (whitespace, digits) =
        (json!({"type": "Whitespace"}), json!({"type": "Digits", "individual_digits": true}));
    let unknown = |fuse: bool| json!({"unk_token": "[UNK]", "fuse_unk": fuse});
    let nfkc = json!({"type": "NFKC"});
    let lowercase = json!({"type": "Lowercase"});
    let mut model = Model::of_characters(300);
    // Tokens that are never made, or only of what is removed.
    for (left, right) in [("a", " "), (" ", "b"), ("\n", "\n"), (" ", " ")] {
        model.add_merge(left, right);
    }
    let mut with_bytes = Model::of_characters(300);
    with_bytes.vocab.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    let fallback = json!({"byte_fallback": true, "unk_token": "[UNK]"});
    let forms = [
        (unknown(false), Value::Null, whitespace.clone()),
        (unknown(true), Value::Null, whitespace.clone()),
        (json!({}), Value::Null, whitespace.clone()),
        (unknown(false), nfkc.clone(), json!({"type": "WhitespaceSplit"})),
        (unknown(false), after(&nfkc, &lowercase), json!({"type": "BertPreTokenizer"})),
        (unknown(false), Value::Null, json!({"type": "CharDelimiterSplit", "delimiter": " "})),
        (unknown(true), Value::Null, sequence(vec![whitespace, digits])),
        (unknown(false), Value::Null, split(r"\s", "Removed")),
        (unknown(false), Value::Null, split("\n", "Isolated")),
        (unknown(true), Value::Null, split(r"\w+| ?[^\w\s]+|\s+(?!\S)", "Isolated")),
        (unknown(false), Value::Null, Value::Null),
        (unknown(true), Value::Null, Value::Null),
        (json!({}), lowercase, Value::Null),
    ];
    for (options, normalizer, pre_tokenizer) in forms {
        for added_tokens in [json!([]), added_tokens()] {
            let file =
                model.tokenizer(options.clone(), normalizer.clone(), pre_tokenizer.clone(), added_tokens);
            Compared::new(&file).check(texts());
            if options != json!({}) {
                let file = with_bytes.tokenizer(
                    fallback.clone(),
                    normalizer.clone(),
                    pre_tokenizer.clone(),
                    json!([]),
                );
                Compared::new(&file).check(texts());
            }
        }
    }
    // The same characters as bytes.
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    for step in ["Whitespace", "WhitespaceSplit", "BertPreTokenizer"] {
        let pre_tokenizer = sequence(vec![json!({"type": step}), byte_level.clone()]);
        let model = Model::byte_level(300);
        for options in [json!({}), json!({"ignore_merges": true})] {
            Compared::new(&model.tokenizer(options, Value::Null, pre_tokenizer.clone(), added_tokens()))
                .check(texts());
        }
    }
    // A pattern that goes step by step, so that words are cut first.
    let steps = vec![
        json!({"type": "WhitespaceSplit"}),
        split(r"(?:ab)+|[aeiou][a-z]*(?=\w)", "Isolated"),
        byte_level,
    ];
    Compared::new(&Model::byte_level(300).tokenizer(json!({}), Value::Null, sequence(steps), added_tokens()))
        .check(texts());
}

/// Words by `WordPiece`, of which some cannot be taken apart or are too long, behind the pre-tokenizers and normalizers
/// that such models have.
#[test]
fn word_pieces() {
    let step = |kind: &str| json!({"type": kind});
    let nfkc_lowercase = after(&json!({"type": "NFKC"}), &json!({"type": "Lowercase"}));
    let model = Model::word_pieces();
    for (prefix, most, normalizer, pre_tokenizer) in [
        ("##", 100, bert(None, true), step("BertPreTokenizer")),
        ("##", 6, bert(None, false), step("BertPreTokenizer")),
        ("##", 100, bert(Some(true), false), step("Whitespace")),
        ("", 9, nfkc_lowercase, step("WhitespaceSplit")),
        ("no such", 100, Value::Null, step("Whitespace")),
        ("##", 100, prepend(), step("Punctuation")),
        ("##", 300, Value::Null, Value::Null),
    ] {
        for added_tokens in [json!([]), added_tokens()] {
            let file = model.tokenizer(json!({}), normalizer.clone(), pre_tokenizer.clone(), added_tokens);
            let compared = Compared::new(&as_word_piece(file, prefix, most));
            compared.check(texts());
            for text in ["naïve theme", "a日本 b", ""] {
                compared.check_starts(text);
            }
        }
    }
}

/// Unigram behind the pre-tokenizers and normalizers that such models have, and others.
#[test]
fn unigrams() {
    let step = |kind: &str| json!({"type": kind});
    let steps = |steps: &[&Value]| json!({"type": "Sequence", "pretokenizers": steps});
    let words = step("WhitespaceSplit");
    let digits = json!({"type": "Digits", "individual_digits": true});
    let map = some_entries();
    let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"});
    let strip = json!({"type": "Strip", "strip_left": false, "strip_right": true});
    let albert = after(&after(&step("NFKD"), &step("StripAccents")), &after(&step("Lowercase"), &map));
    let model = Model::unigrams();
    let mut poor = Model::unigrams();
    poor.vocab.retain(|token| token != "▁" && token != "<0xE2>");
    let forms = [
        (map.clone(), steps(&[&words, &metaspace("always", true)])),
        (albert, steps(&[&words, &metaspace("always", true)])),
        (Value::Null, steps(&[&words, &metaspace("never", true)])),
        (Value::Null, steps(&[&digits, &metaspace("always", false)])),
        (after(&map, &after(&strip, &spaces)), metaspace("always", true)),
        (spaces, metaspace("never", true)),
        (Value::Null, metaspace("first", true)),
        (json!({"type": "NFC"}), metaspace("always", false)),
        (prepend(), Value::Null),
        (prepend(), digits),
        (Value::Null, step("Whitespace")),
        (map, Value::Null),
    ];
    for (normalizer, pre_tokenizer) in forms {
        for (model, byte_fallback, added_tokens) in
            [(&model, false, json!([])), (&model, true, added_tokens()), (&poor, true, added_tokens())]
        {
            let file = model.tokenizer(json!({}), normalizer.clone(), pre_tokenizer.clone(), added_tokens);
            let compared = Compared::new(&as_unigram(file, byte_fallback));
            compared.check(texts());
            for text in ["naïve theme", "a日本 b", ""] {
                compared.check_starts(text);
            }
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
        (digits(true), json!({"unk_token": "<unk>", "fuse_unk": true}), "fuses unknown"),
    ] {
        let file = model.tokenizer(options, replace(), separator, json!([]));
        let encoder = Encoder::from_bytes(file.to_string().as_bytes()).unwrap();
        assert_eq!(encoder.engine(), Engine::Reference);
        assert!(encoder.engine_reason().contains(reason), "{}", encoder.engine_reason());
    }
}

/// The form that `transformers` 5 writes for a SentencePiece model of Llama 2's kind: text that begins with a marker
/// gets another one from the normalizer, any other from Metaspace.
#[test]
fn a_marker_from_either_normalizer_or_metaspace() {
    let model = Model::sentence_piece(300);
    let marks = replace_and_double();
    for (normalizer, split) in
        [(marks.clone(), false), (marks.clone(), true), (after(&json!({"type": "NFKC"}), &marks), false)]
    {
        let raw = [added("<s>", &["special"]), added("HELLO", &["lstrip", "rstrip"])];
        let normalized = [added("<s>", &["special"]), added("HELLO", &["normalized"])];
        let spaces = [added("<s>", &["normalized"]), added(" HELLO", &["normalized", "rstrip"])];
        // The last entry counts, and none is searched for.
        let again = [added("HELLO", &["normalized"]), added("HELLO", &[])];
        for tokens in [json!([]), json!(raw), json!(normalized), json!(spaces), json!(again)] {
            let step = json!({"type": "Sequence", "pretokenizers": [metaspace("always", split)]});
            let file = model.tokenizer(fallback(), normalizer.clone(), step, tokens);
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
                "HELLO",
                " HELLO",
                "aHELLOa HELLO a",
                "<s>HELLO<s> HELLO",
            ]);
            compared.check(texts());
        }
    }
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

/// Normalizers, by the library or not, with tokens that are found before and after them.
#[test]
fn normalizers_of_all_kinds() {
    let one = |kind: &str| json!({"type": kind});
    let strip = |left: bool, right: bool| json!({"type": "Strip", "strip_left": left, "strip_right": right});
    let replaced = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": content});
    let normalizers = [
        one("Lowercase"),
        after(&one("NFKC"), &one("Lowercase")),
        after(&one("NFD"), &one("StripAccents")),
        strip(true, true),
        strip(false, true),
        after(&after(&one("NFKD"), &one("StripAccents")), &after(&one("Lowercase"), &strip(true, false))),
        json!({"type": "Replace", "pattern": {"String": "the"}, "content": "HELLO "}),
        json!({"type": "Replace", "pattern": {"String": ""}, "content": ""}),
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

/// Files that the reference reads otherwise than they look at first.
#[test]
fn odd_files_have_the_ids_of_the_reference() {
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
            assert_eq!(*encoder.encode(text).unwrap(), expected, "{text:?} {}", encoder.engine_reason());
        }
    }
}

/// A structure that the fast engine does not take goes to the reference, with a reason.
#[test]
fn other_structures_use_the_reference() {
    let spm = Model::sentence_piece(50);
    let bytes = Model::byte_level(50);
    // The type decides, whatever else stands there.
    let leftover = json!({"type": "UnicodeScripts", "pretokenizers": [byte_level()]});
    let one_spelling = json!([added("e\u{301}", &["normalized"]), added("é", &["normalized"])]);
    // In "<s>   ", where the reference panics.
    let stripped_twice = json!([added("<s>", &["rstrip"]), added("  ", &["lstrip"])]);
    let unicode_scripts = json!({"type": "Sequence", "pretokenizers": [metaspace("always", false), {"type": "UnicodeScripts"}]});
    let behind = json!({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, metaspace("always", false)]});
    let cases = [
        (spm.tokenizer(fallback(), Value::Null, behind, json!([])), "comes before Metaspace"),
        (
            spm.tokenizer(
                fallback(),
                json!({"type": "NFKC"}),
                metaspace("first", true),
                json!([added("HELLO", &["normalized"])]),
            ),
            "with an added token that is normalized may move",
        ),
        (spm.tokenizer(json!({"dropout": 0.5}), prepend(), Value::Null, json!([])), "dropout"),
        (spm.tokenizer(json!({"end_of_word_suffix": "</w>"}), Value::Null, Value::Null, json!([])), "words"),
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
            "at an empty match",
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
            "at an empty match",
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
        (bytes.tokenizer(json!({}), Value::Null, leftover, json!([])), "UnicodeScripts"),
        (bytes.tokenizer(json!({}), json!({"type": "NFC"}), byte_level(), one_spelling), "same spelling"),
        (bytes.tokenizer(json!({}), Value::Null, byte_level(), stripped_twice), "strips space"),
        // The reference tells these by their fields.
        (json!({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}), "WordLevel"),
    ];
    for (file, expected) in cases {
        check_reference(&file, expected);
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

#[test]
fn other_words_use_the_reference() {
    let word_piece = |pre_tokenizer: Value, unknown: &str| {
        json!({"pre_tokenizer": pre_tokenizer, "model": {"vocab": {"a": 0, "b": 2, "[UNK]": 1},
            "unk_token": unknown, "continuing_subword_prefix": "##", "max_input_chars_per_word": 3}})
    };
    let unigram = |pre_tokenizer: Value, third: &str, unknown: Value| {
        json!({"pre_tokenizer": pre_tokenizer,
               "model": {"vocab": [["a", -1.0], ["b", -1.0], [third, -1.0]], "unk_id": unknown}})
    };
    let (words, whitespace) = (json!({"type": "WhitespaceSplit"}), json!({"type": "Whitespace"}));
    let first_behind = json!({"type": "Sequence", "pretokenizers": [words, metaspace("first", true)]});
    for (file, expected) in [
        (word_piece(whitespace.clone(), "<none>"), "<none>"),
        (word_piece(byte_level(), "[UNK]"), "byte-level"),
        (unigram(whitespace, "c", Value::Null), "no unknown token"),
        (unigram(Value::Null, "a", json!(0)), "twice"),
        (unigram(first_behind, "c", json!(0)), "only at the start, and comes after"),
        (unigram(byte_level(), "c", json!(0)), "byte-level"),
    ] {
        check_reference(&file, expected);
    }
}

/// Loads a tokenizer.json, which must be one for the reference, with a reason that has these words.
fn check_reference(file: &Value, expected: &str) {
    let encoder = Encoder::from_bytes(file.to_string().as_bytes()).unwrap();
    assert_eq!(encoder.engine(), Engine::Reference, "{}", encoder.engine_reason());
    assert!(encoder.engine_reason().contains(expected), "{}", encoder.engine_reason());
    let mut ids = Vec::new();
    encoder.worker().encode("a b", &mut ids).unwrap();
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
