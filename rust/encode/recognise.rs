//! From the structure of a tokenizer.json to the rules of the fast engine, or one clause that says what was not
//! recognised. Nothing here depends on the names of models.

use serde_json::Value;

use super::file::{BpeModel, TokenizerFile};
use super::kernel::Kernel;
use super::normalize::Form;
use super::spelling::MARKER_TEXT;
use super::split::Splitter;

/// What to do with text before it is merged.
pub struct Recognition {
    pub style: Style,
    /// One clause for people.
    pub description: String,
}

pub enum Style {
    ByteLevel {
        splitter: Splitter,
        form: Option<Form>,
    },
    SentencePiece {
        form: Option<Form>,
        prefix: Prefix,
        /// Whether the normalizer makes the markers: added tokens are then compared with text that has them. Metaspace
        /// makes them later than that.
        normalizer_marks: bool,
        before_each_space: bool,
    },
}

/// When a marker is put in front of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    Never,
    /// By the normalizer, for every stretch between added tokens that are not normalized, whatever it begins with.
    Prepend,
    /// By Metaspace, for every stretch between added tokens that does not begin with a marker.
    Always,
    /// By Metaspace, only for the stretch at the start of the text.
    First,
}

/// Recognises normalizer, pre-tokenizer and model options, for a processor with this kernel.
pub fn recognise(file: &TokenizerFile, kernel: Kernel) -> Result<Recognition, String> {
    let TokenizerFile { normalizer, pre_tokenizer, added_tokens, model } = file;
    check_model(model)?;
    let normalizers = normalizers(normalizer)?;
    let pre_tokenizer = unwrapped(pre_tokenizer);
    if pre_tokenizer_is_byte_level(pre_tokenizer) {
        return byte_level(&normalizers, pre_tokenizer, kernel);
    }
    if model.ignore_merges() {
        return Err("its model ignores merges and its pre-tokenizer is not byte-level".into());
    }
    let has_normalized_tokens =
        added_tokens.iter().any(|token| token.normalized && !token.content.is_empty());
    sentence_piece(&normalizers, pre_tokenizer, has_normalized_tokens)
}

fn check_model(model: &BpeModel) -> Result<(), String> {
    let is_set = |option: &Option<String>| option.as_ref().is_some_and(|text| !text.is_empty());
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        Err("its model has dropout".into())
    } else if is_set(&model.continuing_subword_prefix) || is_set(&model.end_of_word_suffix) {
        Err("its model marks the start or the end of words".into())
    } else {
        Ok(())
    }
}

/// A sequence of one pre-tokenizer is that one, an empty sequence is none. The type decides, as in the reference:
/// another type may hold a list too, which then means nothing.
fn unwrapped(value: &Value) -> &Value {
    if value["type"] != "Sequence" {
        return value;
    }
    match value["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([]) => &Value::Null,
        Some([single]) => unwrapped(single),
        _ => value,
    }
}

#[derive(Debug, PartialEq)]
enum Normalizer {
    Unicode(Form),
    PrependMarker,
    SpacesToMarkers,
    /// One more, where text begins with one.
    DoubleFirstMarker,
}

/// The normalizers in order, sequences flattened.
fn normalizers(value: &Value) -> Result<Vec<Normalizer>, String> {
    if value.is_null() {
        return Ok(Vec::new());
    }
    let unknown = || Err(format!("the normalizer {} is not recognised", shortened(value)));
    match value["type"].as_str() {
        Some("Sequence") => {
            let list = value["normalizers"].as_array().map(Vec::as_slice).unwrap_or_default();
            Ok(list.iter().map(normalizers).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        }
        Some("Prepend") if value["prepend"] == MARKER_TEXT => Ok(vec![Normalizer::PrependMarker]),
        Some("Replace")
            if value["content"] == MARKER_TEXT
                && (value["pattern"]["String"] == " " || value["pattern"]["Regex"] == " ") =>
        {
            Ok(vec![Normalizer::SpacesToMarkers])
        }
        Some("Replace")
            if value["content"] == format!("{MARKER_TEXT}{MARKER_TEXT}")
                && value["pattern"]["Regex"] == format!(r"\A{MARKER_TEXT}") =>
        {
            Ok(vec![Normalizer::DoubleFirstMarker])
        }
        name => match name.and_then(Form::named) {
            Some(form) => Ok(vec![Normalizer::Unicode(form)]),
            None => unknown(),
        },
    }
}

fn pre_tokenizer_is_byte_level(value: &Value) -> bool {
    value["type"] == "ByteLevel"
        || value["type"] == "Sequence"
            && value["pretokenizers"]
                .as_array()
                .is_some_and(|steps| steps.iter().any(pre_tokenizer_is_byte_level))
}

fn byte_level(
    normalizers: &[Normalizer],
    pre_tokenizer: &Value,
    kernel: Kernel,
) -> Result<Recognition, String> {
    let form = match normalizers {
        [] => None,
        [Normalizer::Unicode(form)] => Some(*form),
        _ => return Err("its normalizers are not supported with a byte-level pre-tokenizer".into()),
    };
    let splitter =
        Splitter::recognise(pre_tokenizer, kernel).map_err(|part| format!("its pre-tokenizer has {part}"))?;
    let description = format!("byte-level BPE{}, {}", after_form(form), splitter.describe());
    Ok(Recognition { style: Style::ByteLevel { splitter, form }, description })
}

fn sentence_piece(
    normalizers: &[Normalizer],
    pre_tokenizer: &Value,
    has_normalized_tokens: bool,
) -> Result<Recognition, String> {
    use Normalizer::{DoubleFirstMarker, PrependMarker, SpacesToMarkers, Unicode};
    let (form, marking) = match normalizers {
        [Unicode(form), marking @ ..] => (Some(*form), marking),
        _ => (None, normalizers),
    };
    let (prefix, before_each_space) = match pre_tokenizer["type"].as_str() {
        Some("Metaspace") => match (marking, metaspace(pre_tokenizer)?) {
            // What they do Metaspace would do, but added tokens are compared with text that has markers.
            ([] | [SpacesToMarkers], rules) => rules,
            // Text gets one marker from either the normalizer or Metaspace, which `transformers` 5 writes for Llama 2's
            // kind of SentencePiece model. Text behind a token that is found in between gets it from Metaspace alone.
            ([SpacesToMarkers, DoubleFirstMarker], (Prefix::Always, split)) if !has_normalized_tokens => {
                (Prefix::Prepend, split)
            }
            _ => return Err("its normalizers before Metaspace are not supported".into()),
        },
        _ if pre_tokenizer.is_null() || splits_at_spaces(pre_tokenizer) => match marking {
            [SpacesToMarkers] => (Prefix::Never, false),
            [PrependMarker, SpacesToMarkers] | [SpacesToMarkers, PrependMarker] => (Prefix::Prepend, false),
            [] => return Err("nothing in it spells text as bytes or turns spaces into markers".into()),
            _ => return Err("its normalizers do not turn spaces into markers".into()),
        },
        _ => {
            let step = unknown_step(pre_tokenizer);
            return Err(format!("the pre-tokenizer {} is not recognised", shortened(step)));
        }
    };
    if form.is_some() && prefix == Prefix::First && has_normalized_tokens {
        // Where a character becomes several, a token may be found behind the first of them, at the same offset.
        return Err(
            "it has a Unicode form, a marker in front of the text alone and tokens in normalized text".into(),
        );
    }
    let description = format!(
        "SentencePiece-style BPE{}, {}{}",
        after_form(form),
        match prefix {
            Prefix::Never => "no marker put in front",
            Prefix::Prepend => "a marker put in front of each stretch of text",
            Prefix::Always => "a marker put in front of each stretch of text that has none",
            Prefix::First => "a marker put in front of the text if it has none",
        },
        if before_each_space { ", split before each marker" } else { "" }
    );
    Ok(Recognition {
        style: Style::SentencePiece {
            form,
            prefix,
            normalizer_marks: !marking.is_empty(),
            before_each_space,
        },
        description,
    })
}

fn after_form(form: Option<Form>) -> String {
    form.map(|form| format!(" after {}", form.name())).unwrap_or_default()
}

/// Of a sequence with Metaspace the first other step, which a message can name.
fn unknown_step(pre_tokenizer: &Value) -> &Value {
    let steps = pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice).unwrap_or_default();
    steps.iter().find(|step| step["type"] != "Metaspace").unwrap_or(pre_tokenizer)
}

fn metaspace(value: &Value) -> Result<(Prefix, bool), String> {
    if value["replacement"] != MARKER_TEXT {
        return Err("its Metaspace has a marker other than U+2581".into());
    }
    let prefix = match value["prepend_scheme"].as_str() {
        Some("always") => Prefix::Always,
        Some("first") => Prefix::First,
        Some("never") => Prefix::Never,
        other => return Err(format!("its Metaspace has the prepend scheme {other:?}")),
    };
    Ok((prefix, value["split"] != false))
}

/// A split at spaces has no effect once all spaces are markers (Gemma 3 has one).
fn splits_at_spaces(value: &Value) -> bool {
    value["type"] == "Split" && value["pattern"]["String"] == " " && value["invert"] == false
}

/// The start of a JSON value, for a message.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
