//! Small tokenizers for tests, made on the spot: trained on a text by the plainest of trainers, or put
//! together by hand; and the comparison with the reference.
#![allow(clippy::unwrap_used)] // a failed unwrap is how a test fails
#![allow(clippy::needless_pass_by_value)] // JSON values are written where they are passed

use std::collections::HashMap;

use gristmill_encoder::{Encoder, EncoderOptions, Engine, Simd, SpecialTokens};
use serde_json::{Value, json};

use crate::mixtures;

/// A text of many scripts to train on.
pub const TEXT: &str = "\
    The quick brown fox jumps over the lazy dog. The dog's owner said: \"Don't run, we'll see you there!\" \
    In 1984, 12345 people and 678 others paid $9.99 (or €10,50) each -- that's x=y+z; f(x) => [1, 2, 3].\n\
    def main(args):\n    if len(args) != 2:\n\t\treturn None  # two   spaces\r\n    print('hello_world', 0x1F)\n\n\
    Größe, naïve café, Ελληνικά γράμματα, русский язык и ещё, עברית, العربية, हिन्दी भाषा, ภาษาไทย。\
    日本語のテキストです。これは日本の言葉です。中文文本,中国的文字。한국어 텍스트입니다. 😀😀 👩‍👩‍👧 🇩🇪 x² ½ Ⅷ ١٢٣\n\
    the theme then there these they the the and and hand land sand 2023-01-01 http://example.com/a/b?c=d&e=f \
    ------- ======= ....... !!! ??? aaa aaaa aaaaaaa abababab iPhone HelloWorld HELLO\u{a0}nbsp\u{3000}wide";

/// A vocabulary in the order of its ids, and merges.
pub struct Model {
    pub vocab: Vec<String>,
    pub merges: Vec<(String, String)>,
}

impl Model {
    /// The characters that byte-level tokenizers spell bytes with, and merges trained on words.
    pub fn byte_level(merges: usize) -> Self {
        let spelling = byte_spelling();
        let spell = |text: &str| text.bytes().map(|byte| spelling[usize::from(byte)].to_string()).collect();
        let words = TEXT.split_inclusive(' ').map(spell).collect();
        Self::trained(spelling.iter().map(char::to_string).collect(), words, merges)
    }

    /// Special tokens, byte tokens, characters of the text, and merges trained on words that begin with a
    /// marker.
    pub fn sentence_piece(merges: usize) -> Self {
        let mut vocab: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
        vocab.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
        let marked = TEXT.replace(' ', " ▁");
        let words: Vec<Vec<String>> =
            marked.split(' ').map(|word| word.chars().map(String::from).collect()).collect();
        // Some characters are left to byte fallback.
        let known = |c: &String| !"\n\t\r½Ⅷ👩語한".contains(c.as_str());
        let mut characters: Vec<String> = words.iter().flatten().filter(|c| known(c)).cloned().collect();
        characters.sort();
        characters.dedup();
        vocab.extend(characters);
        let words = words.into_iter().map(|word| word.into_iter().filter(known).collect()).collect();
        Self::trained(vocab, words, merges)
    }

    /// A special token, characters of the text, and merges trained on stretches that end with a space, which none of the
    /// merges joins, or with any whitespace.
    pub fn of_characters(merges: usize) -> Self {
        let known = |c: &char| !"\t½Ⅷ👩語한".contains(*c);
        let mut characters: Vec<char> = TEXT.chars().chain("\u{2581}".chars()).filter(known).collect();
        characters.sort_unstable();
        characters.dedup();
        let mut vocab = vec!["[UNK]".to_owned()];
        vocab.extend(characters.iter().map(char::to_string));
        let words = TEXT.split(' ').map(|word| word.chars().filter(known).map(String::from).collect());
        Self::trained(vocab, words.collect(), merges)
    }

    /// Tokens of a `WordPiece` model: most characters and some longer parts of words, at their start and inside.
    pub fn word_pieces() -> Self {
        let mut vocab = Self::of_characters(300).vocab;
        let known = |part: &String| !"qz\u{e9}".contains(part.as_str()) && !part.contains(' ');
        vocab.retain(known);
        let inside: Vec<String> = vocab.iter().skip(1).step_by(2).map(|part| format!("##{part}")).collect();
        vocab.extend(inside);
        vocab.extend(["##", "", " ", "the quick", "##\n", "日本", "##本"].map(String::from));
        vocab.sort();
        vocab.dedup();
        Self { vocab, merges: Vec::new() }
    }

    /// Tokens of a Unigram model: those of SentencePiece style, some of several characters that are no tokens, and some
    /// with spaces.
    pub fn unigrams() -> Self {
        let mut model = Self::sentence_piece(400);
        model
            .vocab
            .extend(["語한", "▁Ⅷ", "한국어▁", "", " ", "a b", "▁▁", "語語語", "\t\t"].map(String::from));
        model
    }

    /// Joins the most frequent pair, again and again.
    fn trained(vocab: Vec<String>, mut words: Vec<Vec<String>>, merges: usize) -> Self {
        let mut model = Self { vocab, merges: Vec::new() };
        for _ in 0..merges {
            let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
            for pair in words.iter().flat_map(|word| word.windows(2)) {
                *counts.entry((&pair[0], &pair[1])).or_default() += 1;
            }
            let best = counts.into_iter().max_by_key(|(pair, count)| (*count, std::cmp::Reverse(*pair)));
            let Some(((left, right), _)) = best else { break };
            let (left, right) = (left.to_owned(), right.to_owned());
            model.add_merge(&left, &right);
            for word in &mut words {
                let mut index = 0;
                while index + 1 < word.len() {
                    if word[index] == left && word[index + 1] == right {
                        word[index] += &right;
                        word.remove(index + 1);
                    }
                    index += 1;
                }
            }
        }
        model
    }

    pub fn add_merge(&mut self, left: &str, right: &str) {
        let joined = format!("{left}{right}");
        if !self.vocab.contains(&joined) {
            self.vocab.push(joined);
        }
        self.merges.push((left.into(), right.into()));
    }

    /// A tokenizer.json with this model, more of its options, and the other parts given.
    pub fn tokenizer(&self, options: Value, normalizer: Value, pre_tokenizer: Value, added: Value) -> Value {
        let ids: serde_json::Map<String, Value> =
            self.vocab.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
        let mut model = json!({"type": "BPE", "vocab": ids, "merges": self.merges});
        for (option, value) in options.as_object().cloned().unwrap_or_default() {
            model[option] = value;
        }
        json!({"version": "1.0", "added_tokens": added, "normalizer": normalizer,
               "pre_tokenizer": pre_tokenizer, "model": model})
    }
}

pub fn byte_spelling() -> Vec<char> {
    let mut others = '\u{100}'..;
    let prints = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    (0..=255u8).map(|byte| if prints(byte) { char::from(byte) } else { others.next().unwrap() }).collect()
}

/// An added token with some flags set.
pub fn added(content: &str, flags: &[&str]) -> Value {
    let mut token = json!({"id": 0, "content": content, "single_word": false, "lstrip": false,
                           "rstrip": false, "normalized": false, "special": false});
    for flag in flags {
        token[*flag] = json!(true);
    }
    token
}

/// The normalizer that puts a marker in front and makes one of each space.
pub fn prepend() -> Value {
    json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace()]})
}

/// A normalizer, then another one.
pub fn after(first: &Value, second: &Value) -> Value {
    json!({"type": "Sequence", "normalizers": [first, second]})
}

pub fn replace() -> Value {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
}

/// The steps that `transformers` 5 writes in front of Metaspace for SentencePiece models of Llama 2's kind.
pub fn replace_and_double() -> Value {
    after(&replace(), &json!({"type": "Replace", "pattern": {"Regex": r"\A▁"}, "content": "▁▁"}))
}

pub fn metaspace(scheme: &str, split: bool) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split})
}

pub fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

/// A split pattern of several steps, as Falcon has it, for which there is no vector kernel.
pub fn steps() -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(),
        {"type": "Digits", "individual_digits": false},
        {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": false}]})
}

/// BERT's normalizer, which strips accents as `accents` says, or else as it lower-cases.
pub fn bert(accents: Option<bool>, lowercase: bool) -> Value {
    json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": accents,
           "lowercase": lowercase})
}

/// A tokenizer with the vocabulary of another one in a `WordPiece` model.
pub fn as_word_piece(mut file: Value, prefix: &str, most: usize) -> Value {
    file["model"] = json!({"type": "WordPiece", "vocab": file["model"]["vocab"], "unk_token": "[UNK]",
                           "continuing_subword_prefix": prefix, "max_input_chars_per_word": most});
    file
}

/// A tokenizer with the vocabulary of another one in a Unigram model, whose scores have ties. The first token is for the
/// unknown.
pub fn as_unigram(mut file: Value, byte_fallback: bool) -> Value {
    let ids = file["model"]["vocab"].as_object().unwrap();
    let mut vocab: Vec<Value> = vec![Value::Null; ids.len()];
    for (token, id) in ids {
        let id = id.as_u64().unwrap() as usize;
        let score = if id == 0 { 0.0 } else { -1.3 - 0.7 * (id % 5) as f64 - 1e-9 * (id % 3) as f64 };
        vocab[id] = json!([token, score]);
    }
    file["model"] = json!({"type": "Unigram", "vocab": vocab, "unk_id": 0, "byte_fallback": byte_fallback});
    file
}

/// The model's options for bytes in place of what the vocabulary lacks.
pub fn fallback() -> Value {
    json!({"byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true})
}

/// Added tokens with the flags that get into each other's way.
pub fn added_tokens() -> Value {
    json!([
        added("<s>", &["special"]),
        added("[INST]", &["lstrip"]),
        added("<mask>", &["lstrip", "rstrip", "normalized"]),
        added("the", &["single_word", "normalized"]),
        added("r b", &["normalized"]),
        added("▁fox", &["normalized"]),
        added("   ", &["rstrip"])
    ])
}

fn by_reference(encoder: &Encoder, text: &str) -> Vec<u32> {
    let mut ids = vec![7];
    encoder.encode_with_reference(text, &mut ids).unwrap();
    ids
}

/// An encoder by each way the fast engine can be had, and the reference beside them.
pub struct Compared {
    encoders: Vec<(SpecialTokens, Encoder)>,
}

impl Compared {
    /// Loads a tokenizer.json, which must be one for the fast engine.
    pub fn new(file: &Value) -> Self {
        let json = file.to_string();
        let load = |simd, cache_bytes, special_tokens_in_text| {
            let options = EncoderOptions { simd, cache_bytes, special_tokens_in_text, ..Default::default() };
            let encoder = Encoder::with_options(json.as_bytes(), options).unwrap();
            assert_eq!(encoder.engine(), Engine::Fast, "{}", encoder.engine_reason());
            (special_tokens_in_text, encoder)
        };
        let mut encoders = Vec::new();
        for simd in Simd::all() {
            // The second cache is always full.
            encoders
                .extend([64 << 20, 1 << 12].map(|cache_bytes| load(simd, cache_bytes, SpecialTokens::Id)));
        }
        encoders.push(load(Simd::detect(), 1 << 16, SpecialTokens::Text));
        Self { encoders }
    }

    /// Encodes the texts by all ways, each worker going through them twice.
    pub fn check<T: AsRef<str>>(&self, texts: impl IntoIterator<Item = T>) {
        let texts: Vec<T> = texts.into_iter().collect();
        let mut expected: Vec<Vec<u32>> = Vec::new();
        let mut expected_for = None;
        for (special_tokens, encoder) in &self.encoders {
            // The reference is slow, and all encoders but the last expect the same of it.
            if expected_for != Some(special_tokens) {
                expected = texts.iter().map(|text| by_reference(encoder, text.as_ref())).collect();
                expected_for = Some(special_tokens);
            }
            let mut worker = encoder.worker();
            for (text, expected) in texts.iter().zip(&expected).chain(texts.iter().zip(&expected)) {
                let text = text.as_ref();
                let mut ids = vec![7];
                worker.encode(text, &mut ids).unwrap();
                assert!(
                    ids == *expected,
                    "{text:?}\n  gave     {ids:?}\n  expected {expected:?}\n  {}",
                    encoder.engine_reason()
                );
            }
        }
    }
}

impl Compared {
    /// Compares the offsets of a text's tokens.
    pub fn check_starts(&self, text: &str) {
        let (_, encoder) = &self.encoders[0];
        let ids = encoder.encode(text).unwrap();
        let starts = encoder.token_starts(text, &ids).unwrap();
        assert!(starts.is_sorted(), "{text:?}: {starts:?}");
        // The reference knows of whole characters only.
        let character =
            |start: &usize| (0..=*start).rev().find(|index| text.is_char_boundary(*index)).unwrap();
        let characters: Vec<usize> = starts.iter().map(character).collect();
        let expected = encoder.token_starts_with_reference(text, &ids).unwrap();
        let tokens: Vec<_> = ids.iter().map(|id| encoder.id_to_token(*id).unwrap()).collect();
        assert_eq!(characters, expected, "{text:?}\n  {tokens:?}\n  {}", encoder.engine_reason());
    }
}

/// The texts that every tokenizer is tried on.
pub fn texts() -> Vec<String> {
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
