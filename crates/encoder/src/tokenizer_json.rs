//! tokenizer.json as far as the fast engine reads it.
//!
//! Everything small is parsed by the reference's own types, so that a file is refused here exactly when the reference
//! refuses it. The vocabulary and the merges, which are nearly all of the file, are read directly into vectors that
//! borrow from it: the reference builds a tree of `serde_json` values and takes several times as long.
//!
//! Anything unusual is an `Err` here; the caller then lets the reference decide.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PaddingParams, PostProcessorWrapper, PreTokenizerWrapper,
    TruncationParams,
};

/// A tokenizer.json whose model is one of the fast engine's.
pub struct TokenizerJson<'a> {
    pub normalizer: serde_json::Value,
    pub pre_tokenizer: serde_json::Value,
    pub added_tokens: Vec<AddedTokenEntry>,
    pub model: ModelJson<'a>,
}

/// The `model` of a tokenizer.json.
pub enum ModelJson<'a> {
    Bpe(Box<BpeModel<'a>>),
    WordPiece(WordPieceModel<'a>),
    Unigram(UnigramModel<'a>),
}

impl<'a> ModelJson<'a> {
    pub fn vocab(&self) -> &[(Token<'a>, u32)] {
        match self {
            Self::Bpe(model) => model.vocab(),
            Self::WordPiece(model) => &model.vocab.0,
            Self::Unigram(model) => &model.vocab.tokens,
        }
    }
}

/// One entry of `added_tokens`. Its `id` is not read: the reference only warns when it differs from the one that the
/// token gets.
#[derive(Deserialize)]
#[allow(clippy::struct_excessive_bools)] // the five flags of the file format
pub struct AddedTokenEntry {
    #[serde(rename = "id")]
    _id: u32,
    pub content: String,
    pub single_word: bool,
    pub lstrip: bool,
    pub rstrip: bool,
    pub normalized: bool,
    pub special: bool,
}

#[cfg(test)]
impl AddedTokenEntry {
    /// One without flags.
    pub fn plain(content: &str) -> Self {
        let (single_word, lstrip, rstrip, normalized, special) = Default::default();
        Self { _id: 0, content: content.to_owned(), single_word, lstrip, rstrip, normalized, special }
    }
}

/// A model of one type. The reference takes a missing `type` for the first one whose other fields fit.
trait ModelFields<'a>: Deserialize<'a> {
    const TYPE: &'static str;

    /// The `type` in the file.
    fn kind(&self) -> Option<&str>;

    fn into_model(self) -> ModelJson<'a>;
}

/// A BPE model.
#[derive(Deserialize)]
pub struct BpeModel<'a> {
    #[serde(rename = "type", default, borrow, deserialize_with = "not_null")]
    kind: Option<Text<'a>>,
    #[serde(default)]
    pub dropout: Option<f32>,
    #[serde(default)]
    pub unk_token: Option<String>,
    #[serde(default)]
    pub continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: Option<bool>,
    #[serde(default)]
    byte_fallback: Option<bool>,
    #[serde(default)]
    ignore_merges: Option<bool>,
    #[serde(borrow)]
    vocab: VocabEntries<'a>,
    #[serde(borrow)]
    merges: MergeEntries<'a>,
}

impl<'a> ModelFields<'a> for BpeModel<'a> {
    const TYPE: &'static str = "BPE";

    fn kind(&self) -> Option<&str> {
        self.kind.as_ref().map(|kind| &*kind.0)
    }

    fn into_model(self) -> ModelJson<'a> {
        ModelJson::Bpe(Box::new(self))
    }
}

/// A `WordPiece` model.
#[derive(Deserialize)]
pub struct WordPieceModel<'a> {
    #[serde(rename = "type", default, borrow, deserialize_with = "not_null")]
    kind: Option<Text<'a>>,
    pub unk_token: String,
    pub continuing_subword_prefix: String,
    pub max_input_chars_per_word: usize,
    #[serde(borrow)]
    vocab: VocabEntries<'a>,
}

impl<'a> ModelFields<'a> for WordPieceModel<'a> {
    const TYPE: &'static str = "WordPiece";

    fn kind(&self) -> Option<&str> {
        self.kind.as_ref().map(|kind| &*kind.0)
    }

    fn into_model(self) -> ModelJson<'a> {
        ModelJson::WordPiece(self)
    }
}

/// A Unigram model.
#[derive(Deserialize)]
pub struct UnigramModel<'a> {
    #[serde(rename = "type", default, borrow, deserialize_with = "not_null")]
    kind: Option<Text<'a>>,
    #[serde(default)]
    pub unk_id: Option<usize>,
    #[serde(default)]
    pub byte_fallback: bool,
    #[serde(borrow)]
    vocab: ScoredEntries<'a>,
}

impl UnigramModel<'_> {
    /// The scores of the tokens, by id.
    pub fn scores(&self) -> &[f64] {
        &self.vocab.scores
    }
}

impl<'a> ModelFields<'a> for UnigramModel<'a> {
    const TYPE: &'static str = "Unigram";

    fn kind(&self) -> Option<&str> {
        self.kind.as_ref().map(|kind| &*kind.0)
    }

    fn into_model(self) -> ModelJson<'a> {
        ModelJson::Unigram(self)
    }
}

/// A token as spelled in the file; borrowed unless it contains an escape.
pub type Token<'a> = Cow<'a, str>;

impl<'a> BpeModel<'a> {
    pub fn vocab(&self) -> &[(Token<'a>, u32)] {
        &self.vocab.0
    }

    pub fn merges(&self) -> &[(Token<'a>, Token<'a>)] {
        &self.merges.0
    }

    pub fn fuse_unk(&self) -> bool {
        self.fuse_unk == Some(true)
    }

    pub fn byte_fallback(&self) -> bool {
        self.byte_fallback == Some(true)
    }

    pub fn ignore_merges(&self) -> bool {
        self.ignore_merges == Some(true)
    }
}

impl<'a> TokenizerJson<'a> {
    pub fn parse(json: &'a [u8]) -> Result<Self, String> {
        // In the order in which the reference tries the types where a file names none.
        let (outline, model) = Outline::<BpeModel>::read(json)
            .or_else(|reason| Outline::<WordPieceModel>::read(json).map_err(|_| reason))
            .or_else(|reason| Outline::<UnigramModel>::read(json).map_err(|_| reason))?;
        if outline.version != "1.0" {
            return Err(format!("its version is {:?}", outline.version));
        }
        check::<TruncationParams>(outline.truncation)?;
        check::<PaddingParams>(outline.padding)?;
        if !keeps_ids(&as_the_reference_reads::<PostProcessorWrapper>(outline.post_processor)?) {
            return Err("its post-processor does not yield the text's tokens exactly once".into());
        }
        check::<DecoderWrapper>(outline.decoder)?;
        Ok(Self {
            normalizer: as_the_reference_reads::<NormalizerWrapper>(outline.normalizer)?,
            pre_tokenizer: as_the_reference_reads::<PreTokenizerWrapper>(outline.pre_tokenizer)?,
            added_tokens: outline.added_tokens.into_iter().map(|Object(entry)| entry).collect(),
            model,
        })
    }
}

/// The reference refuses a file with a key that it does not know.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "M: ModelFields<'de>"))]
struct Outline<'a, M> {
    #[serde(default = "current_version")]
    version: String,
    #[serde(borrow, default)]
    truncation: Option<&'a RawValue>,
    #[serde(borrow, default)]
    padding: Option<&'a RawValue>,
    #[serde(default)]
    added_tokens: Vec<Object<AddedTokenEntry>>,
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    decoder: Option<&'a RawValue>,
    model: Object<M>,
}

impl<'a, M: ModelFields<'a>> Outline<'a, M> {
    /// Reads a file whose model has these fields, and separates the model from its other parts.
    fn read(json: &'a [u8]) -> Result<(Outline<'a, ()>, ModelJson<'a>), String> {
        let Object::<Self>(outline) = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let Self { version, truncation, padding, added_tokens, .. } = outline;
        let Self { normalizer, pre_tokenizer, post_processor, decoder, model: Object(model), .. } = outline;
        if model.kind().is_some_and(|kind| kind != M::TYPE) {
            return Err(format!("its model is not {}", M::TYPE));
        }
        let parts = Outline {
            version,
            truncation,
            padding,
            added_tokens,
            normalizer,
            pre_tokenizer,
            post_processor,
            decoder,
            model: Object(()),
        };
        Ok((parts, model.into_model()))
    }
}

/// The reference takes a file without a version for the current one.
fn current_version() -> String {
    "1.0".into()
}

/// A value that may be absent but not null.
fn not_null<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Checks that the reference's own type accepts this part of the file.
fn check<T: DeserializeOwned>(part: Option<&RawValue>) -> Result<(), String> {
    match part {
        None => Ok(()),
        Some(raw) => {
            serde_json::from_str::<Option<T>>(raw.get()).map(|_| ()).map_err(|error| error.to_string())
        }
    }
}

/// A part of the file as the reference would write it again: it goes by the fields of a part, whatever type the file
/// gives it, and takes more than one spelling of a value.
fn as_the_reference_reads<T: DeserializeOwned + Serialize>(
    part: Option<&RawValue>,
) -> Result<serde_json::Value, String> {
    let read = part.map(|raw| serde_json::from_str::<Option<T>>(raw.get())).transpose();
    read.and_then(serde_json::to_value).map_err(|error| error.to_string())
}

/// Whether a post-processor leaves a text's ids unchanged, apart from special tokens. A template may have the text
/// twice or not at all.
fn keeps_ids(post_processor: &serde_json::Value) -> bool {
    let list = |key: &str| post_processor[key].as_array().map(Vec::as_slice).unwrap_or_default();
    match post_processor["type"].as_str() {
        Some("TemplateProcessing") => {
            let mut texts = list("single").iter().filter_map(|pretoken| pretoken["Sequence"]["id"].as_str());
            texts.next() == Some("A") && texts.next().is_none()
        }
        Some("Sequence") => list("processors").iter().all(keeps_ids),
        _ => true,
    }
}

/// An object. In its place a derived type would take a list of its fields too, which the reference refuses.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// The vocabulary in the order of the file.
struct VocabEntries<'a>(Vec<(Token<'a>, u32)>);

/// The vocabulary in the order of the file, which is that of the ids, and the score of each token.
struct ScoredEntries<'a> {
    tokens: Vec<(Token<'a>, u32)>,
    scores: Vec<f64>,
}

/// The merges in the order of the file, which is their rank.
struct MergeEntries<'a>(Vec<(Token<'a>, Token<'a>)>);

/// A string that borrows from the file where it can.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for VocabEntries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = VocabEntries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map from tokens to ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((token, id)) = map.next_entry::<Text<'de>, u32>()? {
                    entries.push((token.0, id));
                }
                Ok(VocabEntries(entries))
            }
        }
        deserializer.deserialize_map(VocabVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ScoredEntries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScoredVisitor;
        impl<'de> Visitor<'de> for ScoredVisitor {
            type Value = ScoredEntries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of tokens and their scores")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let (mut tokens, mut scores) = (Vec::new(), Vec::new());
                while let Some((token, score)) = seq.next_element::<(Text<'de>, f64)>()? {
                    tokens.push((token.0, tokens.len() as u32));
                    scores.push(score);
                }
                Ok(ScoredEntries { tokens, scores })
            }
        }
        deserializer.deserialize_seq(ScoredVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for MergeEntries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergesVisitor;
        impl<'de> Visitor<'de> for MergesVisitor {
            type Value = MergeEntries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut merges = Vec::new();
                let mut first_is_line = None;
                while let Some(merge) = seq.next_element::<Merge<'de>>()? {
                    // The reference refuses a file with merges of both forms.
                    let is_line = matches!(merge, Merge::Line(_));
                    if *first_is_line.get_or_insert(is_line) != is_line {
                        return Err(serde::de::Error::custom("merges of two forms"));
                    }
                    match merge {
                        Merge::Pair(left, right) => merges.push((left, right)),
                        Merge::Line(line) => {
                            // The reference drops these before it ranks the merges.
                            if !line.starts_with("#version") {
                                merges.push(split_line(line).map_err(serde::de::Error::custom)?);
                            }
                        }
                    }
                }
                Ok(MergeEntries(merges))
            }
        }
        deserializer.deserialize_seq(MergesVisitor)
    }
}

enum Merge<'a> {
    /// `["a", "b"]`
    Pair(Token<'a>, Token<'a>),
    /// `"a b"`, the older form
    Line(Token<'a>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge: two strings, or one with a space between its parts")
            }
            fn visit_borrowed_str<E>(self, line: &'de str) -> Result<Self::Value, E> {
                Ok(Merge::Line(Cow::Borrowed(line)))
            }
            fn visit_str<E>(self, line: &str) -> Result<Self::Value, E> {
                Ok(Merge::Line(Cow::Owned(line.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
                let (left, right) = <(Text, Text)>::deserialize(SeqAccessDeserializer::new(seq))?;
                Ok(Merge::Pair(left.0, right.0))
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

fn split_line(line: Cow<'_, str>) -> Result<(Token<'_>, Token<'_>), &'static str> {
    fn parts(line: &str) -> Option<(&str, &str)> {
        line.split_once(' ').filter(|(_, right)| !right.contains(' '))
    }
    const BAD: &str = "a merge line needs one space";
    match line {
        Cow::Borrowed(line) => {
            parts(line).map(|(left, right)| (Cow::Borrowed(left), Cow::Borrowed(right))).ok_or(BAD)
        }
        Cow::Owned(line) => parts(&line)
            .map(|(left, right)| (Cow::Owned(left.to_owned()), Cow::Owned(right.to_owned())))
            .ok_or(BAD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(model: &str) -> String {
        format!(r#"{{"version":"1.0","added_tokens":[],"model":{model}}}"#)
    }

    #[test]
    fn merges_of_both_forms_are_read_alike() {
        let lines = file(r##"{"vocab":{"a":0,"b":1,"ab":2},"merges":["#version: 0.2","a b"]}"##);
        let pairs = file(r#"{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}"#);
        for json in [lines, pairs] {
            let parsed = TokenizerJson::parse(json.as_bytes()).unwrap();
            let ModelJson::Bpe(model) = parsed.model else { panic!("another model") };
            assert_eq!(model.merges(), [(Cow::Borrowed("a"), Cow::Borrowed("b"))]);
            assert_eq!(model.vocab().len(), 3);
        }
    }

    #[test]
    fn a_model_without_a_type_is_known_by_its_fields() {
        let options = r#""unk_token":"b","continuing_subword_prefix":"-","max_input_chars_per_word":9"#;
        let vocab = r#""vocab":{"a":0,"b":1}"#;
        for (kind, model) in [
            ("BPE", format!(r#"{{{options},{vocab},"merges":[]}}"#)),
            ("WordPiece", format!("{{{options},{vocab}}}")),
            ("WordPiece", format!(r#"{{"type":"WordPiece",{options},{vocab},"merges":[]}}"#)),
            ("Unigram", r#"{"vocab":[["a",-1],["b",-0.5]],"unk_id":1}"#.into()),
        ] {
            let file = file(&model);
            let found = match TokenizerJson::parse(file.as_bytes()).unwrap().model {
                ModelJson::Bpe(_) => "BPE",
                ModelJson::WordPiece(_) => "WordPiece",
                ModelJson::Unigram(model) => {
                    assert_eq!((model.scores(), model.unk_id), (&[-1.0, -0.5][..], Some(1)));
                    "Unigram"
                }
            };
            assert_eq!(found, kind, "{model}");
        }
    }

    #[test]
    fn odd_files_are_left_to_the_reference() {
        let sound = r#"{"type":"BPE","vocab":{"a":0},"merges":[]}"#;
        assert!(TokenizerJson::parse(file(sound).as_bytes()).is_ok());
        for json in [
            file(r#"{"type":"BPE","vocab":{"a":0},"merges":["a b c"]}"#),
            file(r#"{"type":"BPE","vocab":{"a":0},"merges":["a b",["a","b"]]}"#),
            file(r#"{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}"#),
            file(r#"{"type":"BPE","vocab":{"a":0},"merges":[["a","b","c"]]}"#),
            file(r#"{"type":"BPE","vocab":{"a":-1},"merges":[]}"#),
            file(r#"{"type":"WordLevel","vocab":{"a":0},"merges":[]}"#),
            file(r#"{"type":"WordPiece","vocab":{"a":0},"unk_token":"a"}"#),
            file(r#"{"type":"Unigram","vocab":[["a",-1.0,0]],"unk_id":0}"#),
            file(r#"{"type":"Unigram","vocab":[["a",-1.0]],"unk_id":0,"byte_fallback":null}"#),
            format!(r#"{{"version":"2.0","model":{sound}}}"#),
            format!(r#"{{"version":null,"model":{sound}}}"#),
            format!(r#"{{"normalizer":{{"type":"NoSuch"}},"model":{sound}}}"#),
            format!(r#"{{"decoder":{{"type":"NoSuch"}},"model":{sound}}}"#),
            format!(r#"{{"truncation":{{"max_length":"x"}},"model":{sound}}}"#),
            format!(r#"{{"model":{sound},"model":{sound}}}"#),
            format!(r#"["1.0",null,null,[],null,null,null,null,{sound}]"#),
            file(r#"["BPE",null,null,null,null,null,null,null,{"a":0},[]]"#),
            format!(r#"{{"added_tokens":[[1,"x",false,false,false,false,false]],"model":{sound}}}"#),
        ] {
            assert!(TokenizerJson::parse(json.as_bytes()).is_err(), "{json}");
        }
    }
}
