//! The patterns that are recognised, and how the error names others.

use serde_json::{Value, json};

use super::families;
use crate::pretokenize::patterns::{Method, Pretokenizer};
use crate::simd::Simd;

fn pretokenizer(json: &Value) -> Result<Pretokenizer, String> {
    Pretokenizer::from_json(json, Simd::detect())
}

fn split(regex: &str, behavior: &str, invert: bool) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert})
}

fn before_byte_level(step: &Value) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        step, {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})
}

#[test]
fn steps_that_are_refused() {
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let removing = json!({"type": "WhitespaceSplit"});
    let digits = json!({"type": "Digits", "individual_digits": false});
    for (json, clause) in [
        (json!({"type": "UnicodeScripts"}), "a step of type UnicodeScripts"),
        (json!({"type": "CharDelimiterSplit"}), "a CharDelimiterSplit without a delimiter"),
        (
            before_byte_level(&split(r"\p{L}+|ab", "Removed", true)),
            "a Split with the behaviour Removed and a pattern that neither covers all text nor consists of classes",
        ),
        (
            before_byte_level(&split("ab", "Removed", false)),
            "a Split with the behaviour Removed and a pattern of more than classes",
        ),
        (
            json!({"type": "Sequence", "pretokenizers": [byte_level, removing]}),
            "a step after the ByteLevel that removes text",
        ),
        (
            json!({"type": "Sequence", "pretokenizers": [removing, byte_level, digits]}),
            "a step that removes text, and one after the ByteLevel",
        ),
        (
            before_byte_level(&split("ab", "Contiguous", false)),
            "a Split with the behaviour Contiguous and a pattern of more than classes",
        ),
        (
            before_byte_level(&json!({"type": "ByteLevel", "add_prefix_space": false})),
            "more than one ByteLevel",
        ),
        (
            before_byte_level(&json!({"type": "Sequence", "pretokenizers":
                vec![split("(?:a|b)*a(?:a|b){10}", "Isolated", false); 33]})),
            "more than 32 steps",
        ),
    ] {
        let error = pretokenizer(&json).err();
        assert_eq!(error.as_deref(), Some(clause), "{json}");
    }
}

#[test]
fn patterns_that_are_refused() {
    for (json, clause) in [
        (
            before_byte_level(&split(r"\d{1,3}(?=(?:\d{3})*\b)", "MergedWithNext", false)),
            "a Split with the behaviour MergedWithNext and a lookahead at more than one character",
        ),
        (
            before_byte_level(&split("a*", "Isolated", false)),
            "a split pattern that can match the empty string",
        ),
        (
            before_byte_level(&split("a+?", "Isolated", false)),
            "a lazy or nested repetition in a split pattern",
        ),
        (before_byte_level(&split("[a&&]", "Isolated", false)), "an empty class in a split pattern"),
        (before_byte_level(&split("[a&&[b]", "Isolated", false)), "an unclosed class in a split pattern"),
        (
            before_byte_level(&split("(?i:[a&&b])", "Isolated", false)),
            "an unsupported case-insensitive class in a split pattern",
        ),
        (before_byte_level(&split(r"[[a]-z]", "Isolated", false)), "an unsupported range in a split pattern"),
        (before_byte_level(&split(r"[a-[z]]", "Isolated", false)), "an unsupported range in a split pattern"),
        (
            before_byte_level(&split(r"[[:graph:]]", "Isolated", false)),
            "an unsupported nested class in a split pattern",
        ),
        (
            before_byte_level(&split(r"\p{N}{0,3}+", "Isolated", false)),
            "a repetition of a possibly empty match in a split pattern",
        ),
        (before_byte_level(&split(r"\bx", "Isolated", false)), r"'\b' in a split pattern"),
        (
            before_byte_level(&split("(?i:s(?:t))", "Isolated", false)),
            "a group in a case-insensitive one in a split pattern",
        ),
        (before_byte_level(&split("(?i:s{1}t)", "Isolated", false)), "an unsupported '{' in a split pattern"),
        (before_byte_level(&split(r"\x80", "Isolated", false)), r"an unsupported \x in a split pattern"),
        (
            before_byte_level(&split(r"\x{110000}", "Isolated", false)),
            r"an unsupported \x in a split pattern",
        ),
        (before_byte_level(&split(r"\x{+61}", "Isolated", false)), r"an unsupported \x in a split pattern"),
        (before_byte_level(&split(r"\ud800", "Isolated", false)), r"an unsupported \u in a split pattern"),
        (before_byte_level(&split(r"\u41", "Isolated", false)), r"an unsupported \u in a split pattern"),
        (before_byte_level(&split(r"(?i:\x61)", "Isolated", false)), r"'\x' in a split pattern"),
        (
            before_byte_level(&split(r"(?<!a)x", "Isolated", false)),
            "an unsupported kind of group in a split pattern",
        ),
        (
            before_byte_level(&split(r"(?i:ss)", "Isolated", false)),
            "a case-insensitive 's' in a split pattern",
        ),
        (
            before_byte_level(&split(r"\s++\s", "Isolated", false)),
            "a possessive repetition in a split pattern that is not equivalent to a greedy one",
        ),
        (
            before_byte_level(&split(&"a?+".repeat(65), "Isolated", false)),
            "more than 64 possessive repetitions in a row in a split pattern",
        ),
        (
            before_byte_level(&split(&('一'..).take(20_000).collect::<String>(), "Isolated", false)),
            "a split pattern with more than 64 classes",
        ),
        (
            before_byte_level(&split(&format!("{}a{}", "(".repeat(65), ")".repeat(65)), "Isolated", false)),
            "more than 64 nested groups in a split pattern",
        ),
        (
            before_byte_level(&split("a(?:(?:(?:){64}){64}){64}", "Isolated", false)),
            "a repetition of a possibly empty match in a split pattern",
        ),
    ] {
        let error = pretokenizer(&json).err();
        assert_eq!(error.as_deref(), Some(clause), "{json}");
    }
}

#[test]
fn long_lookaheads_are_refused() {
    for pattern in [
        // Not all of these numbers are characters of words.
        r"(?=(\p{N}{3})+\b)",
        r"\d{1,2}(?=(?:\d{3})*\b)",
        r"\d{1,3}(?=(?:\d{3})*)",
        r"(?=(\d{3})+(?!\d))|x",
        r"\d{1,3}(?!(?:\d{3})*x)",
        r"\d{1,3}(?=(?:\d{3})*(?:\D|x*))",
        r"(?:ab)+(?!abc)",
        r"(?:ab)+(?!ab)c?",
        r"(?:(?:ab)+(?!ab)|a)b",
        r"(?:ab){1,4}(?!ab)",
    ] {
        let error = pretokenizer(&before_byte_level(&split(pattern, "Isolated", false))).err();
        let clause = "a lookahead at more than one character in a split pattern";
        assert_eq!(error.as_deref(), Some(clause), "{pattern}");
    }
}

/// Each of these patterns is parsed and compiled in time that depends neither on the number of ways to match it nor on
/// its depth.
#[test]
fn deep_and_ambiguous_patterns_are_recognised_at_once() {
    let deep = format!("{}a{}", "(?:".repeat(64), ")".repeat(64));
    for pattern in [&deep, &format!("a{}", "(?:b?|c?)".repeat(60)), &format!("a{}", "(?:|)".repeat(60))] {
        assert!(pretokenizer(&before_byte_level(&split(pattern, "Isolated", false))).is_ok());
    }
}

#[test]
fn a_sequence_in_a_sequence_is_its_steps() {
    let step = split(r"\s+", "Isolated", false);
    let inner = |steps: Value| json!({"type": "Sequence", "pretokenizers": steps});
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    for nested in [
        json!([step, inner(json!([byte_level]))]),
        json!([inner(json!([step])), inner(json!([byte_level]))]),
        json!([inner(json!([])), inner(json!([step, inner(json!([byte_level]))]))]),
    ] {
        assert!(pretokenizer(&inner(nested)).is_ok());
    }
}

#[test]
fn a_removed_pattern_that_covers_all_text_is_recognised() {
    let covering = r"\s+|\S{1,3}";
    assert!(pretokenizer(&before_byte_level(&split(covering, "Removed", true))).is_ok());
}

#[test]
fn every_family_is_described_and_takes_the_fastest_way() {
    let expected = [
        ("bloom", "split into runs by one pattern"),
        ("cl100k-possessive", "cl100k-style split, numbers whole, whitespace at the end in one"),
        ("deepseek-coder", "split into runs by a sequence of 5 patterns"),
        ("deepseek-llm", "split into runs by a sequence of 6 patterns"),
        ("deepseek-v3", "DeepSeek-V3-style split, numbers in groups of 3"),
        ("falcon", "split into runs by a sequence of 4 patterns"),
        ("falcon-h1", "o200k-style split, digits one by one"),
        ("gpt-oss", "o200k-style split, numbers in groups of 3"),
        ("kimi-k2", "o200k-style split, numbers in groups of 3, Han apart"),
        ("laguna", "split by a sequence of 2 patterns"),
        ("llama3.1", "cl100k-style split, numbers in groups of 3"),
        ("minbpe", "cl100k-style split, numbers in groups of 3"),
        ("mistral-nemo", "o200k-style split, no contractions, digits one by one"),
        ("nanochat", "cl100k-style split, numbers in groups of 2"),
        ("olmo-dolma2", "cl100k-style split, numbers in groups of 3"),
        ("phi-2", "GPT-2-style split"),
        ("qwen3", "cl100k-style split, digits one by one"),
        ("qwen3.5", "cl100k-style split, marks as letters, digits one by one"),
        ("roberta", "GPT-2-style split"),
        ("starcoder", "GPT-2-style split, digits one by one"),
        ("superbpe", "split into runs by a sequence of 2 patterns"),
        ("tiny-aya", "split by a sequence of 2 patterns"),
        ("trinity", "split by a sequence of 3 patterns"),
    ];
    for ((name, json), expected) in families().iter().zip(expected) {
        let pretokenizer = pretokenizer(json).unwrap();
        assert_eq!((name.as_str(), pretokenizer.describe().as_str()), expected);
        assert!(!pretokenizer.add_prefix_space());
        for simd in Simd::all() {
            let way = match Pretokenizer::from_json(json, simd).unwrap().way {
                Method::Simd { .. } => "kernel",
                Method::Bitmap(_) => "runs",
                Method::Dfa(_) => "automata",
            };
            let expected = match expected.1 {
                runs if runs.contains("into runs") => "runs",
                unknown if unknown.starts_with("split") => "automata",
                _ => "kernel",
            };
            assert_eq!(way, expected, "{name}, {}", simd.name());
        }
    }
    assert_eq!(families().len(), expected.len());
}
