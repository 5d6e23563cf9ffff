//! Normalizers: the steps that change text before it is cut.
//!
//! The reference keeps for each byte where it comes from, which takes longer than all else here, and several tens of
//! bytes of memory for each byte of text. Ids do not depend on that. So the normalizers that most tokenizers have are
//! done here, on text alone, and only the others by the reference.

mod bert;
#[cfg(test)]
#[path = "../../tests/support/chars_map.rs"]
mod chars_map;
mod charsmap;
mod unicode_forms;

use memchr::memmem::Finder;
use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer as _, NormalizerWrapper};
use unicode_normalization_alignments::char::is_combining_mark;

use crate::error::{Error, Result};
use crate::reference::library_call;
use crate::simd::Simd;
use bert::Bert;
use charsmap::CharsMap;
use unicode_forms::{Form, UnicodeNormalizer};

/// The normalizers of a tokenizer, in order.
pub struct Normalizer(Vec<Step>);

#[allow(clippy::large_enum_variant)] // a tokenizer has a few
enum Step {
    Form(&'static UnicodeNormalizer, Simd),
    Bert(Box<Bert>),
    CharsMap(Box<CharsMap>),
    /// Puts a text in place of each run of several spaces.
    Spaces(String),
    Lowercase,
    StripAccents,
    Strip {
        left: bool,
        right: bool,
    },
    Replace {
        finder: Finder<'static>,
        content: String,
    },
    Library(NormalizerWrapper),
}

impl Normalizer {
    /// Takes the normalizers of a tokenizer.json, without sequences.
    pub fn new(all: &[&Value], simd: Simd) -> std::result::Result<Self, String> {
        all.iter().map(|value| Step::new(value, simd)).collect::<std::result::Result<_, _>>().map(Self)
    }

    /// Whether it is a form of Unicode alone.
    pub fn is_form(&self) -> bool {
        matches!(*self.0, [Step::Form(..)])
    }

    /// Whether it is that, and a text is seen at once to be in it.
    pub fn keeps(&self, text: &str) -> bool {
        matches!(*self.0, [Step::Form(form, simd)] if form.settles(simd, text))
    }

    /// The normalized text with where its bytes come from, if it is a form of Unicode alone.
    pub fn align(&self, text: &str) -> Option<NormalizedString> {
        let [Step::Form(form, _)] = *self.0 else { return None };
        library_call(|| Ok(form.align(text))).ok()
    }

    /// How many of its steps the reference does.
    pub fn by_library(&self) -> usize {
        self.0.iter().filter(|step| matches!(step, Step::Library(_))).count()
    }

    /// The normalized text: `text` if that is normalized already, else written to `buffer`.
    pub fn normalize<'a>(&self, text: &'a str, buffer: &'a mut String) -> Result<&'a str> {
        let (mut next, mut has_changed) = (String::new(), false);
        for step in &self.0 {
            next.clear();
            if step.apply(if has_changed { buffer } else { text }, &mut next)? {
                std::mem::swap(buffer, &mut next);
                has_changed = true;
            }
        }
        Ok(if has_changed { buffer } else { text })
    }

    /// Bytes of tables.
    pub fn bytes(&self) -> usize {
        let of_step = |step: &Step| match step {
            Step::Form(form, _) => form.bytes(),
            Step::Bert(bert) => bert.bytes(),
            _ => 0,
        };
        self.0.iter().map(of_step).sum()
    }
}

impl Step {
    fn new(value: &Value, simd: Simd) -> std::result::Result<Self, String> {
        let form = |form| Self::Form(UnicodeNormalizer::get(form), simd);
        let library: NormalizerWrapper =
            serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
        Ok(match library {
            NormalizerWrapper::NFC(_) => form(Form::Nfc),
            NormalizerWrapper::NFD(_) => form(Form::Nfd),
            NormalizerWrapper::NFKC(_) => form(Form::Nfkc),
            NormalizerWrapper::NFKD(_) => form(Form::Nfkd),
            NormalizerWrapper::BertNormalizer(options) => Self::Bert(Box::new(Bert::new(options))),
            NormalizerWrapper::Lowercase(_) => Self::Lowercase,
            NormalizerWrapper::StripAccents(_) => Self::StripAccents,
            NormalizerWrapper::StripNormalizer(strip) => {
                Self::Strip { left: strip.strip_left, right: strip.strip_right }
            }
            NormalizerWrapper::Precompiled(map) => Self::CharsMap(Box::new(CharsMap::new(map)?)),
            NormalizerWrapper::Replace(replace) => match &value["pattern"] {
                Value::Object(pattern) if pattern.get("Regex").is_some_and(|regex| regex == " {2,}") => {
                    Self::Spaces(replace.content)
                }
                Value::Object(pattern) if pattern.get("String").is_some_and(|text| text != "") => {
                    let finder = Finder::new(pattern["String"].as_str().unwrap_or_default()).into_owned();
                    Self::Replace { finder, content: replace.content }
                }
                _ => Self::Library(NormalizerWrapper::Replace(replace)),
            },
            other => Self::Library(other),
        })
    }

    /// Writes the normalized text to an empty buffer, unless it is the text itself; says whether it did.
    fn apply(&self, text: &str, buffer: &mut String) -> Result<bool> {
        match self {
            Self::Form(form, simd) => return Ok(form.normalize(*simd, text, buffer).is_some()),
            Self::CharsMap(map) => {
                return library_call(|| Ok(map.normalize(text, buffer)))
                    .map_err(|error| cannot_normalize(&error));
            }
            Self::Spaces(content) => return Ok(replace_spaces(text, content, buffer)),
            Self::Bert(bert) => return Ok(bert.normalize(text, buffer)),
            Self::Lowercase => {
                let add = |c: char, buffer: &mut String| buffer.extend(c.to_lowercase());
                change_characters(text, buffer, str::make_ascii_lowercase, add);
            }
            Self::StripAccents if text.is_ascii() => return Ok(false),
            Self::StripAccents => {
                let add =
                    |c: char, buffer: &mut String| buffer.extend(Some(c).filter(|c| !is_combining_mark(*c)));
                change_characters(text, buffer, |_| {}, add);
            }
            Self::Strip { left, right } => {
                let kept = if *left { text.trim_start() } else { text };
                buffer.push_str(if *right { kept.trim_end() } else { kept });
            }
            Self::Replace { finder, content } => {
                return Ok(replace(text, finder, content, |part| buffer.push_str(part)));
            }
            Self::Library(library) => {
                let mut normalized = NormalizedString::from(text);
                library_call(|| library.normalize(&mut normalized))
                    .map_err(|error| cannot_normalize(&error))?;
                buffer.push_str(normalized.get());
            }
        }
        Ok(true)
    }
}

fn cannot_normalize(error: &tokenizers::Error) -> Error {
    Error::Tokenizer(format!("the `tokenizers` library cannot normalize this text: {error}"))
}

/// Writes a text to an empty buffer, with other content for each run of several spaces, unless it has none; says whether
/// it has.
fn replace_spaces(text: &str, content: &str, buffer: &mut String) -> bool {
    let two = Finder::new("  ");
    let mut rest = text;
    while let Some(index) = two.find(rest.as_bytes()) {
        buffer.push_str(&rest[..index]);
        buffer.push_str(content);
        rest = rest[index..].trim_start_matches(' ');
    }
    if rest.len() == text.len() {
        return false;
    }
    buffer.push_str(rest);
    true
}

/// Passes on a text in parts, with other content for each match of a pattern; or says that there is no match.
pub fn replace(text: &str, pattern: &Finder, content: &str, mut take: impl FnMut(&str)) -> bool {
    let mut done = 0;
    for index in pattern.find_iter(text.as_bytes()) {
        take(&text[done..index]);
        take(content);
        done = index + pattern.needle().len();
    }
    if done > 0 {
        take(&text[done..]);
    }
    done > 0
}

/// Appends what becomes of a text's characters: of runs of ASCII at once, and of the others one by one.
fn change_characters(
    text: &str,
    buffer: &mut String,
    of_ascii: impl Fn(&mut str),
    of_other: impl Fn(char, &mut String),
) {
    buffer.reserve(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let ascii = rest.bytes().position(|byte| !byte.is_ascii()).unwrap_or(rest.len());
        let begin = buffer.len();
        buffer.push_str(&rest[..ascii]);
        of_ascii(&mut buffer[begin..]);
        let others = rest[ascii..].chars().take_while(|c| !c.is_ascii());
        let mut len = 0;
        others.for_each(|c| {
            of_other(c, buffer);
            len += c.len_utf8();
        });
        rest = &rest[ascii + len..];
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    type Pair = (NormalizerWrapper, Normalizer);

    static PAIRS: LazyLock<Vec<Pair>> = LazyLock::new(pairs);

    /// Each normalizer and sequence, by the library and here.
    fn pairs() -> Vec<Pair> {
        let one = |kind: &str| json!({"type": kind});
        let strip = |left, right| json!({"type": "Strip", "strip_left": left, "strip_right": right});
        let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
        let regex = json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "A"});
        let bert = |clean: bool, chinese: bool, accents: Option<bool>, lowercase: bool| {
            json!({"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese,
                   "strip_accents": accents, "lowercase": lowercase})
        };
        let spaces =
            |content: &str| json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": content});
        let lists = [
            vec![chars_map::some_entries()],
            vec![chars_map::some_entries(), spaces("▁"), one("NFKD")],
            vec![spaces("")],
            vec![bert(true, true, None, true)],
            vec![bert(true, true, None, false)],
            vec![bert(true, false, Some(true), false)],
            vec![bert(false, true, Some(false), true)],
            vec![bert(false, false, Some(true), true)],
            vec![bert(false, false, None, false)],
            vec![one("Lowercase")],
            vec![one("StripAccents")],
            vec![strip(true, true)],
            vec![strip(true, false)],
            vec![strip(false, true)],
            vec![replace("a", "")],
            vec![replace("aa", "a")],
            vec![replace(r"\.[-&~#]", "Éa")],
            vec![replace("\u{3000}", " ")],
            vec![one("NFD"), one("Lowercase"), one("StripAccents")],
            vec![strip(true, true), regex, one("NFKC"), replace("a ", "b"), one("Lowercase")],
        ];
        let pair = |list: Vec<Value>| {
            let values: Vec<&Value> = list.iter().collect();
            let normalizer = Normalizer::new(&values, Simd::detect()).unwrap();
            let library = json!({"type": "Sequence", "normalizers": list});
            (serde_json::from_value(library).unwrap(), normalizer)
        };
        lists.into_iter().map(pair).collect()
    }

    fn check(text: &str) {
        for (library, normalizer) in PAIRS.iter() {
            let mut expected = NormalizedString::from(text);
            library.normalize(&mut expected).unwrap();
            let mut buffer = "left over".to_owned();
            assert_eq!(
                normalizer.normalize(text, &mut buffer).unwrap(),
                expected.get(),
                "{library:?} {text:?}"
            );
        }
    }

    #[test]
    fn characters_are_normalized_as_by_the_library() {
        let characters: Vec<char> = ('\0'..=char::MAX).collect();
        for some in characters.chunks(97) {
            let text: String = some.iter().flat_map(|c| ['A', *c, ' ', *c]).collect();
            check(&text);
        }
    }

    proptest! {
        #[test]
        fn texts_are_normalized_as_by_the_library(text in r"[ \u{600}\r\u{FB01}\u{2122}a-eA-Cア\t\n\\.&~#\[\]\-ÉéΣςİẞ日\u{1}\u{200D}\u{F900}\u{FFFD}\u{300}\u{323}\u{302E}\u{301}\u{903}\u{3000}\u{85}\u{1F600}]{0,40}") {
            check(&text);
        }
    }
}
