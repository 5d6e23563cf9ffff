//! The ids beside those of Dynamo's default; `GRISTMILL_TOKENIZER` names a further tokenizer.json.

use dynamo_tokenizers::HuggingFaceTokenizer;
use dynamo_tokenizers::traits::{Decoder, Encoder, Tokenizer};
use gristmill_dynamo::GristmillTokenizer;

const SMALL: &str = r#"{"added_tokens": [{"id": 6, "content": "<|end|>", "special": true, "single_word": false,
    "lstrip": false, "rstrip": false, "normalized": false}], "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "ca": 5},
    "merges": [["a", "b"], ["ab", "c"], ["c", "a"]]}}"#;
const TEXTS: [&str; 6] =
    ["", "abc", "ab cab <|end|>abc", "<|end|><|end|>", "ab \u{1f642} ca", "cab\n\nabcabc  b"];

fn compare(path: &str) {
    let (own, library) =
        (GristmillTokenizer::from_file(path).unwrap(), HuggingFaceTokenizer::from_file(path).unwrap());
    let batch = own.encode_batch(&TEXTS).unwrap();
    for (text, batched) in TEXTS.iter().zip(&batch) {
        let expected = library.encode(text).unwrap();
        let found = own.encode(text).unwrap();
        assert_eq!(found.token_ids(), expected.token_ids(), "{text:?}");
        assert_eq!(batched.token_ids(), expected.token_ids(), "{text:?} in a batch");
        for skips in [false, true] {
            let decoded = own.decode(found.token_ids(), skips).unwrap();
            assert_eq!(decoded, library.decode(expected.token_ids(), skips).unwrap());
        }
    }
    assert_eq!(own.vocab_size(), library.vocab_size());
    assert_eq!(own.special_token_ids().unwrap(), library.special_token_ids().unwrap());
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("gristmill-dynamo-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn ids_are_those_of_the_default() {
    let folder = folder("equal");
    let path = folder.join("tokenizer.json");
    std::fs::write(&path, SMALL).unwrap();
    compare(path.to_str().unwrap());
    if let Ok(given) = std::env::var("GRISTMILL_TOKENIZER") {
        compare(&given);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn tokens_of_a_config_alone_are_refused() {
    let folder = folder("config");
    let path = folder.join("tokenizer.json");
    std::fs::write(&path, SMALL).unwrap();
    let config = r#"{"added_tokens_decoder": {"7": {"content": "<|image|>", "special": true}}}"#;
    std::fs::write(folder.join("tokenizer_config.json"), config).unwrap();
    let error = GristmillTokenizer::from_file(path.to_str().unwrap()).err().unwrap();
    assert!(error.to_string().contains("tokenizer_config.json"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn files_that_cut_texts_are_refused() {
    let folder = folder("cut");
    let path = folder.join("tokenizer.json");
    let truncation =
        r#"{"truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},"#;
    std::fs::write(&path, SMALL.replacen('{', truncation, 1)).unwrap();
    let error = GristmillTokenizer::from_file(path.to_str().unwrap()).err().unwrap();
    assert!(error.to_string().contains("has truncation"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}
