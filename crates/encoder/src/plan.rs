//! From the structure of a tokenizer.json to the rules of the fast engine, or one clause that says what was not
//! recognised. Nothing here depends on the names of models.

use serde_json::{Value, json};
use tokenizers::PreTokenizerWrapper;

use crate::normalize::Normalizer;
use crate::pretokenize::patterns::{self, Pretokenizer};
use crate::simd::Simd;
use crate::tokenizer_json::{BpeModel, ModelJson, TokenizerJson};
use crate::vocab::MARKER_TEXT;
use crate::vocab::single_char;

/// How many normalizers a description names.
const MOST_NAMED: usize = 4;

/// The steps that text goes through before it is merged.
pub struct Plan {
    pub style: Style,
    /// A Metaspace behind the pre-tokenizer that splits text: whether it puts a marker in front, and whether it splits.
    pub metaspace: Option<(bool, bool)>,
    /// One clause for people.
    pub description: String,
}

pub enum Style {
    /// Byte-level, or of characters as they are.
    Split { pretokenizer: Pretokenizer, normalizer: Option<Normalizer> },
    SentencePiece {
        /// The normalizer before the markers.
        normalizer: Option<Normalizer>,
        prefix: Prefix,
        /// Whether the normalizer makes the markers: added tokens are then compared with text that has them. Metaspace
        /// makes them later than that.
        normalizer_makes_markers: bool,
        before_each_space: bool,
        /// Splits between certain characters.
        separators: Option<PreTokenizerWrapper>,
    },
}

/// When a marker is prepended of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    Never,
    /// By the normalizer, for every stretch between added tokens that are not normalized, whatever it begins with.
    Prepend,
    /// By Metaspace, for every stretch between added tokens that does not begin with a marker.
    Always,
    /// As `Always`; but first the normalizer, for every stretch between added tokens that are not normalized, puts one in
    /// front of a marker that it begins with.
    AlwaysAndDoubleFirst,
    /// By Metaspace, only for the stretch at the start of the text.
    First,
}

impl Prefix {
    fn describe(self) -> &'static str {
        match self {
            Self::Never => "no marker before the text",
            Self::Prepend => "a marker before each stretch of text",
            Self::Always => "a marker before each stretch of text that has none",
            Self::AlwaysAndDoubleFirst => "a marker before each stretch of text, or doubled",
            Self::First => "a marker before the text if it has none",
        }
    }
}

/// Recognises normalizer, pre-tokenizer and model options, for a processor with this kernel.
pub fn plan_engine(file: &TokenizerJson, simd: Simd) -> Result<Plan, String> {
    let TokenizerJson { normalizer, pre_tokenizer, added_tokens, model } = file;
    let normalizers = flattened(normalizer, "normalizers");
    let steps = flattened(pre_tokenizer, "pretokenizers");
    let has_normalized_tokens =
        added_tokens.iter().any(|token| token.normalized && !token.content.is_empty());
    let model = match model {
        ModelJson::Bpe(model) => model,
        ModelJson::WordPiece(_) => return words("WordPiece", &normalizers, pre_tokenizer, simd),
        ModelJson::Unigram(_) => return unigram(&normalizers, &steps, has_normalized_tokens, simd),
    };
    check_model(model)?;
    let is_byte_level = steps.iter().any(|step| step["type"] == "ByteLevel");
    if model.ignore_merges() && !is_byte_level {
        return Err("its model ignores merges and its pre-tokenizer is not byte-level".into());
    }
    let makes_markers = steps.iter().any(|step| is_metaspace(step))
        || normalizers.iter().any(|value| Marking::parse(value).is_some());
    if is_byte_level || !makes_markers {
        return split_text(&normalizers, pre_tokenizer, simd);
    }
    sentence_piece(&normalizers, &steps, has_normalized_tokens, simd)
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

/// The normalizers or pre-tokenizers in order, without the sequences that hold them in a list of this name. The type
/// decides, as in the reference: another type may hold a list too, which then means nothing.
fn flattened<'a>(value: &'a Value, list: &str) -> Vec<&'a Value> {
    match value["type"].as_str() {
        Some("Sequence") => {
            value[list].as_array().into_iter().flatten().flat_map(|item| flattened(item, list)).collect()
        }
        _ if value.is_null() => Vec::new(),
        _ => vec![value],
    }
}

/// Some pre-tokenizers as one of the reference's.
fn sequence(steps: &[&Value]) -> Result<PreTokenizerWrapper, String> {
    serde_json::from_value(json!({"type": "Sequence", "pretokenizers": steps}))
        .map_err(|error| error.to_string())
}

/// A normalizer that makes markers.
#[derive(Debug, PartialEq)]
enum Marking {
    Prepend,
    Spaces,
    /// One more, where text begins with one.
    DoubleFirst,
}

impl Marking {
    fn parse(value: &Value) -> Option<Self> {
        let (content, string, regex) =
            (&value["content"], &value["pattern"]["String"], &value["pattern"]["Regex"]);
        let doubles =
            || *content == format!("{MARKER_TEXT}{MARKER_TEXT}") && *regex == format!(r"\A{MARKER_TEXT}");
        match value["type"].as_str()? {
            "Prepend" if value["prepend"] == MARKER_TEXT => Some(Self::Prepend),
            "Replace" if content == MARKER_TEXT && (string == " " || regex == " ") => Some(Self::Spaces),
            "Replace" if doubles() => Some(Self::DoubleFirst),
            _ => None,
        }
    }
}

/// Some normalizers as one, and its description.
fn normalizer(all: &[&Value], simd: Simd) -> Result<(Option<Normalizer>, String), String> {
    if all.is_empty() {
        return Ok((None, String::new()));
    }
    if all.iter().any(|value| may_break_offsets(value)) {
        return Err(
            "one of its normalizers may insert text at an empty match, or has a pattern that is not known"
                .into(),
        );
    }
    let normalizer = Normalizer::new(all, simd)?;
    let names: Vec<&str> = all.iter().map(|value| value["type"].as_str().unwrap_or_default()).collect();
    let more = names.len().saturating_sub(MOST_NAMED);
    let listed = names[..names.len() - more].join(", ");
    let and_more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let by_library = match (normalizer.by_library(), names.len()) {
        (0, _) => "",
        (some, all) if some == all => " by the `tokenizers` library",
        _ => " (in part by the `tokenizers` library)",
    };
    Ok((Some(normalizer), format!(" after {listed}{and_more}{by_library}")))
}

/// Whether a normalizer may make a match of no characters longer. The reference then loses count of its offsets, and
/// panics or drops characters when it splits text.
fn may_break_offsets(value: &Value) -> bool {
    let pattern = &value["pattern"];
    match (&pattern["String"], &pattern["Regex"]) {
        _ if value["prepend"] == "" => true,
        _ if value["content"] == "" => false,
        (Value::String(text), _) => text.is_empty(),
        (_, Value::String(regex)) => !patterns::matches_characters(regex),
        _ => false,
    }
}

fn split_text(normalizers: &[&Value], json: &Value, simd: Simd) -> Result<Plan, String> {
    let pretokenizer =
        Pretokenizer::from_json(json, simd).map_err(|part| format!("its pre-tokenizer has {part}"))?;
    let (normalizer, after) = normalizer(normalizers, simd)?;
    let bpe = if pretokenizer.is_byte_level() { "byte-level BPE" } else { "BPE of characters" };
    let description = format!("{bpe}{after}, {}", pretokenizer.describe());
    Ok(Plan { style: Style::Split { pretokenizer, normalizer }, metaspace: None, description })
}

/// For a model that takes words, whatever characters they consist of.
fn words(model: &str, normalizers: &[&Value], json: &Value, simd: Simd) -> Result<Plan, String> {
    let mut plan = split_text(normalizers, json, simd)?;
    match &plan.style {
        Style::Split { pretokenizer, .. } if pretokenizer.is_byte_level() => {
            Err(format!("its model is {model}, and its pre-tokenizer is byte-level"))
        }
        _ => {
            plan.description = plan.description.replacen("BPE of characters", model, 1);
            Ok(plan)
        }
    }
}

/// For Unigram: words behind any pre-tokenizer, or with Metaspace, alone or behind another one. The treatment of spaces
/// by normalizers is left to them.
fn unigram(
    normalizers: &[&Value],
    steps: &[&Value],
    has_normalized_tokens: bool,
    simd: Simd,
) -> Result<Plan, String> {
    let (before, marks) = match steps {
        [before @ .., last] if is_metaspace(last) => (before, Some(metaspace(last)?)),
        _ => (steps, None),
    };
    match marks {
        Some((prefix, before_each_space)) if before.is_empty() => {
            let (normalizer, after) = normalizer(normalizers, simd)?;
            check_start(prefix, normalizer.as_ref(), has_normalized_tokens)?;
            let split = if before_each_space { ", split before each marker" } else { ", not split" };
            let description = format!("Unigram{after}, {}{split}", prefix.describe());
            let style = Style::SentencePiece {
                normalizer,
                prefix,
                normalizer_makes_markers: false,
                before_each_space,
                separators: None,
            };
            Ok(Plan { style, metaspace: None, description })
        }
        Some((Prefix::First, _)) => {
            Err("its Metaspace puts a marker only at the start, and comes after another pre-tokenizer".into())
        }
        marks => {
            let before = json!({"type": "Sequence", "pretokenizers": before});
            let mut plan = words("Unigram", normalizers, &before, simd)?;
            if let Some((prefix, split)) = marks {
                plan.metaspace = Some((prefix == Prefix::Always, split));
                plan.description.push_str(", then by Metaspace");
            }
            Ok(plan)
        }
    }
}

/// Checks that the text begins, for the reference, where it began before the normalizer, if that matters: it begins where
/// the first character that is left did.
fn check_start(
    prefix: Prefix,
    normalizer: Option<&Normalizer>,
    has_normalized_tokens: bool,
) -> Result<(), String> {
    let with = match normalizer {
        Some(normalizer) if !normalizer.is_form() => "",
        // Where a character becomes several, a token may be found behind the first of them, at the same offset.
        Some(_) if has_normalized_tokens => " with an added token that is normalized",
        _ => return Ok(()),
    };
    if prefix == Prefix::First {
        return Err(format!(
            "its normalizer{with} may move the start of the text, and it puts a marker only at the start"
        ));
    }
    Ok(())
}

fn sentence_piece(
    normalizers: &[&Value],
    steps: &[&Value],
    has_normalized_tokens: bool,
    simd: Simd,
) -> Result<Plan, String> {
    use Marking::{DoubleFirst, Prepend, Spaces};
    let is_marking = |value: &&Value| Marking::parse(value).is_some();
    let (before, marking) =
        normalizers.split_at(normalizers.iter().position(is_marking).unwrap_or(normalizers.len()));
    let marking: Option<Vec<Marking>> = marking.iter().map(|value| Marking::parse(value)).collect();
    let Some(marking) = marking else {
        return Err("one of its normalizers comes after those that turn spaces into markers".into());
    };
    let (marks, separators) =
        steps.split_at(usize::from(steps.first().is_some_and(|step| is_metaspace(step))));
    if marks.is_empty() && separators.iter().any(|step| is_metaspace(step)) {
        return Err("one of its pre-tokenizers comes before Metaspace".into());
    }
    if let Some(step) = separators.iter().find(|step| !separates_characters(step)) {
        return Err(format!("the pre-tokenizer {} is not recognised", shortened(step)));
    }
    let (prefix, before_each_space) = match marks {
        [step, ..] => match (&*marking, metaspace(step)?) {
            // Metaspace would do the same, but added tokens are compared with text that has markers.
            ([] | [Spaces], rules) => rules,
            // The form that `transformers` 5 writes for Llama 2's kind of SentencePiece model.
            ([Spaces, DoubleFirst], (Prefix::Always, split)) => (Prefix::AlwaysAndDoubleFirst, split),
            _ => return Err("its normalizers before Metaspace are not supported".into()),
        },
        [] => match &*marking {
            [Spaces] => (Prefix::Never, false),
            [Prepend, Spaces] | [Spaces, Prepend] => (Prefix::Prepend, false),
            _ => return Err("its normalizers do not turn spaces into markers".into()),
        },
    };
    let (normalizer, after) = normalizer(before, simd)?;
    check_start(prefix, normalizer.as_ref(), has_normalized_tokens)?;
    let separated: Vec<String> = separators
        .iter()
        .map(|step| format!(", split by {}", step["type"].as_str().unwrap_or_default()))
        .collect();
    let description = format!(
        "SentencePiece-style BPE{after}, {}{}{}",
        prefix.describe(),
        if before_each_space { ", split before each marker" } else { "" },
        separated.concat()
    );
    let separators = match separators {
        [] => None,
        steps => Some(sequence(steps)?),
    };
    Ok(Plan {
        style: Style::SentencePiece {
            normalizer,
            prefix,
            normalizer_makes_markers: !marking.is_empty(),
            before_each_space,
            separators,
        },
        metaspace: None,
        description,
    })
}

fn is_metaspace(step: &Value) -> bool {
    step["type"] == "Metaspace"
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

/// Whether a pre-tokenizer splits where two characters meet, whatever surrounds them, and removes nothing.
fn separates_characters(step: &Value) -> bool {
    let is_one = || match (&step["pattern"]["String"], &step["pattern"]["Regex"]) {
        (Value::String(text), _) => single_char(text).is_some(),
        (_, Value::String(regex)) => patterns::matches_one_character(regex),
        _ => false,
    };
    match step["type"].as_str() {
        Some("Digits") => true,
        Some("Punctuation") => step["behavior"] != "Removed",
        Some("Split") => step["behavior"] != "Removed" && step["invert"] == false && is_one(),
        _ => false,
    }
}

/// The start of a JSON value, for a message.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
