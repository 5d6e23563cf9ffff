//! Damaged tokenizer.json files: each is refused with an error, or gives the ids of the reference. Never a
//! panic, never a vocabulary's worth of memory for one number in it.
//!
//! `GRISTMILL_CASES` sets how many, `GRISTMILL_SEED` where to begin; a finding names its seed, which
//! alone makes the case again. `GRISTMILL_TOKENIZERS` names files to damage beside the small ones made here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use gristmill_encoder::{Encoder, Engine};
use serde_json::{Value, json};

use crate::mixtures::{self, Random};
use crate::number;
use crate::support::{Model, added_tokens, after, byte_level, fallback, metaspace, prepend, replace, steps};

/// The values that replace another: some that the format knows, and some that it does not.
const WORDS: &[&str] = &[
    "",
    " ",
    "a",
    "▁",
    "Ġ",
    "\u{0}",
    "<unk>",
    "<0x41>",
    "BPE",
    "Unigram",
    "WordPiece",
    "WordLevel",
    "Sequence",
    "Split",
    "ByteLevel",
    "Metaspace",
    "Digits",
    "Punctuation",
    "Whitespace",
    "BertPreTokenizer",
    "Replace",
    "Prepend",
    "Append",
    "NFC",
    "NFKC",
    "NFD",
    "Lowercase",
    "Strip",
    "StripAccents",
    "Precompiled",
    "Isolated",
    "Removed",
    "Contiguous",
    "MergedWithNext",
    "MergedWithPrevious",
    "first",
    "always",
    "never",
    "\\s+",
    "(?!",
    "\\p{L}+|\\d",
    "[^\\s]+",
    "(",
    "[",
    "a{2,",
    "\\p{Nope}",
    "(?<=x)y",
    "^$",
    "",
];

/// Sound files of the structures in use, on small vocabularies.
fn originals() -> Vec<Value> {
    let llama3 = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
         "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
    let (tokens, first) = (added_tokens(), metaspace("first", false));
    let changed = after(
        &json!({"type": "Lowercase"}),
        &json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
    );
    let (spm, bytes) = (Model::sentence_piece(40), Model::byte_level(40));
    let unigram = json!({"version": "1.0", "added_tokens": tokens, "pre_tokenizer": first, "model": {
        "type": "Unigram", "unk_id": 0, "byte_fallback": false,
        "vocab": [["<unk>", 0.0], ["▁", -1.5], ["a", -2.0], ["▁the", -2.5], ["th", -3.0], ["e", -3.1]]}});
    let wordpiece = json!({"version": "1.0", "added_tokens": [],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                       "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "the": 1, "a": 2, "##b": 3, "##e": 4}}});
    let mut originals = vec![
        spm.tokenizer(fallback(), prepend(), Value::Null, tokens.clone()),
        spm.tokenizer(fallback(), Value::Null, first, tokens.clone()),
        bytes.tokenizer(json!({}), json!({"type": "NFC"}), byte_level(), tokens.clone()),
        bytes.tokenizer(json!({}), Value::Null, steps(), tokens.clone()),
        bytes.tokenizer(json!({}), changed.clone(), byte_level(), tokens.clone()),
        spm.tokenizer(fallback(), after(&changed, &replace()), metaspace("always", false), tokens.clone()),
        bytes.tokenizer(json!({"ignore_merges": true}), Value::Null, llama3, tokens.clone()),
        Model::of_characters(40).tokenizer(
            json!({"unk_token": "[UNK]"}),
            Value::Null,
            json!({"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "Punctuation", "behavior": "Removed"}]}),
            tokens,
        ),
        unigram,
        wordpiece,
    ];
    for path in std::env::var("GRISTMILL_TOKENIZERS").unwrap_or_default().split_whitespace() {
        originals.push(serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap());
    }
    originals
}

/// A value somewhere in the tree, mostly near its root, where the structure is.
fn somewhere<'a>(value: &'a mut Value, random: &mut Random) -> &'a mut Value {
    let children = match value {
        Value::Array(items) => items.len(),
        Value::Object(entries) => entries.len(),
        _ => 0,
    };
    if children == 0 || random.below(10) == 0 {
        return value;
    }
    let child = random.below(children);
    match value {
        Value::Array(items) => somewhere(&mut items[child], random),
        Value::Object(entries) => somewhere(entries.iter_mut().nth(child).unwrap().1, random),
        _ => unreachable!("it has children"),
    }
}

fn odd_value(other: &mut Value, random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Null,
        1 => json!(random.below(2) == 0),
        2 => json!([0, 1, -1, 4_294_967_295_i64, 2_147_483_648_i64, i64::MAX][random.below(6)]),
        3 => json!(random.below(400)),
        4 => json!([0.5, -1e300, 1e-9][random.below(3)]),
        5 => json!([]),
        6 => json!({}),
        7..10 => json!(WORDS[random.below(WORDS.len())]),
        _ => somewhere(other, random).clone(),
    }
}

fn damage_tree(tree: &mut Value, other: &mut Value, random: &mut Random) {
    let odd = odd_value(other, random);
    let index = somewhere(tree, random);
    match (random.below(3), index) {
        (0, Value::Object(entries)) if !entries.is_empty() => {
            let key = entries.keys().nth(random.below(entries.len())).unwrap().clone();
            let value = entries.remove(&key).unwrap();
            if random.below(2) == 0 {
                entries.insert(WORDS[random.below(WORDS.len())].into(), value);
            }
        }
        (0, Value::Array(items)) if !items.is_empty() => {
            let item = items.remove(random.below(items.len()));
            if random.below(2) == 0 {
                items.extend([item.clone(), item]);
            }
        }
        (_, index) => *index = odd,
    }
}

fn damage_bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    let end = bytes.len().min(at + 1 + random.below(20));
    match random.below(5) {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << random.below(8),
        2 => drop(bytes.drain(at..end)),
        3 => {
            let pretoken = bytes[at..end].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, pretoken);
        }
        _ => bytes[at] = b"\"\\{}[]:,0 \n-eu"[random.below(14)],
    }
}

/// The file of a seed, in which a few things are not as they were.
fn damaged(originals: &[Value], seed: u64) -> (Vec<u8>, Random) {
    let mut random = Random::new(seed);
    let mut tree = originals[random.below(originals.len())].clone();
    let mut other = originals[random.below(originals.len())].clone();
    let in_bytes = random.below(4) == 0;
    for _ in 0..if in_bytes { 0 } else { 1 + random.below(2) } {
        damage_tree(&mut tree, &mut other, &mut random);
    }
    let mut bytes = tree.to_string().into_bytes();
    for _ in 0..if in_bytes { 1 + random.below(3) } else { 0 } {
        damage_bytes(&mut bytes, &mut random);
    }
    (bytes, random)
}

/// The result for a file.
enum Outcome {
    Refused,
    Same(Engine),
}

/// Loads the file by both, and encodes some texts by both.
fn compare(file: &[u8], random: &mut Random) -> Result<Outcome, String> {
    let encoder = match Encoder::from_bytes(file) {
        Ok(encoder) => encoder,
        Err(error) if error.to_string().len() < 5000 => return Ok(Outcome::Refused),
        Err(error) => return Err(format!("{} bytes of message", error.to_string().len())),
    };
    let mut worker = encoder.worker();
    for _ in 0..3 {
        let text = mixtures::mixture(random, &["<s>", "[INST]", "the", "a", "<mask>"].map(String::from));
        let (mut ids, mut expected) = (Vec::new(), Vec::new());
        match (worker.encode(&text, &mut ids), encoder.encode_with_reference(&text, &mut expected)) {
            (Ok(()), Ok(())) if ids == expected => {}
            (Err(_), Err(_)) => {}
            (found, reference) => {
                let engine = encoder.engine();
                return Err(format!(
                    "{engine:?}: {text:?}: {found:?} {ids:?}, not {reference:?} {expected:?}"
                ));
            }
        }
    }
    Ok(Outcome::Same(encoder.engine()))
}

#[test]
fn damaged_files_are_refused_or_exact() {
    let originals = originals();
    for original in &originals {
        assert!(Encoder::from_bytes(original.to_string().as_bytes()).is_ok());
    }
    let (cases, first) = (number("GRISTMILL_CASES", 300_u64), number("GRISTMILL_SEED", 1_u64));
    let (mut refused, mut fast, mut reference) = (0, 0, 0);
    let (mut findings, mut slowest) = (Vec::new(), (Duration::ZERO, 0));
    for seed in first..first + cases {
        let (file, mut random) = damaged(&originals, seed);
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| compare(&file, &mut random)));
        slowest = slowest.max((start.elapsed(), seed));
        match outcome.unwrap_or_else(|_| Err("a panic".into())) {
            Ok(Outcome::Refused) => refused += 1,
            Ok(Outcome::Same(Engine::Fast)) => fast += 1,
            Ok(Outcome::Same(Engine::Reference)) => reference += 1,
            Err(finding) => findings.push(format!("seed {seed}: {finding}")),
        }
    }
    println!(
        "{cases} files: {refused} refused, {fast} by the fast engine, {reference} by the reference; the slowest, of \
         seed {}, took {:?}",
        slowest.1, slowest.0
    );
    assert!(
        findings.is_empty(),
        "{} findings:\n{}",
        findings.len(),
        findings[..findings.len().min(20)].join("\n")
    );
    assert!(refused > 0 && fast > 0 && reference > 0);
}
