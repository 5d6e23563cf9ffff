//! Reads the `pre_tokenizer` of tokenizer.json as a list of patterns that cut one after another.

use regex_syntax::hir::ClassUnicode;
use serde_json::Value;

use super::parser::parse;
use super::pattern::{Node, named_set, negated, set_where};
use crate::encode::lazy::Lazy;
use crate::encode::spelling::CHARACTERS;

/// The pattern that a `ByteLevel` with `use_regex` applies.
pub const BYTE_LEVEL_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Each may take some hundredths of a second to compile; real tokenizers have up to six.
const MOST_STEPS: usize = 32;

pub struct Recognised {
    pub steps: Vec<RecognisedStep>,
    pub add_prefix_space: bool,
}

/// Each match of the pattern is a piece, and so is each gap between matches.
#[derive(Debug, PartialEq, Eq)]
pub struct RecognisedStep {
    pub pattern: Node,
    pub domain: Domain,
}

/// What a pattern sees as characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    Characters,
    /// After the `ByteLevel`: each byte is one.
    Bytes,
}

impl Domain {
    /// The character that a byte alone is, if it is one.
    pub fn character(self, byte: u8) -> char {
        match self {
            Self::Bytes => CHARACTERS[usize::from(byte)],
            Self::Characters => char::from(byte),
        }
    }
}

pub fn recognise(pre_tokenizer: &Value) -> Result<Recognised, String> {
    let mut reading = Reading { steps: Vec::new(), byte_level: None };
    reading.read(pre_tokenizer)?;
    let add_prefix_space = reading.byte_level.ok_or("no ByteLevel")?;
    Ok(Recognised { steps: reading.steps, add_prefix_space })
}

/// The characters that `Digits` takes, by the standard library's tables as in the reference.
pub fn numeric() -> ClassUnicode {
    static NUMERIC: Lazy<ClassUnicode> = Lazy::new();
    NUMERIC.get_or_make(|| set_where(char::is_numeric)).clone()
}

/// The characters that `Punctuation` takes: ASCII punctuation and that of Unicode 8, two characters of which later
/// versions classify as symbol and mark.
pub fn punctuation() -> ClassUnicode {
    named_set(r"[!-/:-@\[-`{-~[\p{P}&&\p{Age:8.0}]\x{166D}\x{111C9}]")
        .expect("regex-syntax knows these classes")
}

struct Reading {
    steps: Vec<RecognisedStep>,
    /// The `add_prefix_space` of the `ByteLevel`, once that was read.
    byte_level: Option<bool>,
}

impl Reading {
    fn read(&mut self, json: &Value) -> Result<(), String> {
        let kind = json["type"].as_str().ok_or("a step without a type")?;
        match kind {
            "Sequence" => {
                let parts = json["pretokenizers"].as_array().ok_or("a Sequence without pretokenizers")?;
                parts.iter().try_for_each(|part| self.read(part))
            }
            "ByteLevel" => self.byte_level(json),
            "Split" => {
                let pattern = split_pattern(&json["pattern"])?;
                let invert = flag(json, "invert", None)?;
                let behaviour = json["behavior"].as_str().unwrap_or("no behavior");
                self.push(
                    isolated(pattern, behaviour, invert).map_err(|what| format!("a Split with {what}"))?,
                )
            }
            "Digits" => {
                let individual = flag(json, "individual_digits", None)?;
                self.push(if individual { Node::Class(numeric()) } else { Node::run(numeric()) })
            }
            "Punctuation" => {
                let behaviour = json["behavior"].as_str().unwrap_or("no behavior");
                let pattern = isolated(Node::Class(punctuation()), behaviour, false);
                self.push(pattern.map_err(|what| format!("a Punctuation with {what}"))?)
            }
            other => Err(format!("a step of type {other}")),
        }
    }

    fn byte_level(&mut self, json: &Value) -> Result<(), String> {
        if self.byte_level.is_some() {
            return Err("more than one ByteLevel".into());
        }
        let add_prefix_space = flag(json, "add_prefix_space", None)?;
        if add_prefix_space && !self.steps.is_empty() {
            return Err("a ByteLevel that puts a space in front of every piece".into());
        }
        if flag(json, "use_regex", Some(true))? {
            self.push(parse(BYTE_LEVEL_PATTERN)?)?;
        }
        self.byte_level = Some(add_prefix_space);
        Ok(())
    }

    fn push(&mut self, pattern: Node) -> Result<(), String> {
        if self.steps.len() == MOST_STEPS {
            return Err(format!("more than {MOST_STEPS} steps"));
        }
        let domain = if self.byte_level.is_some() { Domain::Bytes } else { Domain::Characters };
        self.steps.push(RecognisedStep { pattern, domain });
        Ok(())
    }
}

fn split_pattern(json: &Value) -> Result<Node, String> {
    match (json["Regex"].as_str(), json["String"].as_str()) {
        (Some(regex), None) => parse(regex),
        (None, Some("")) => Err("a Split at the empty string".into()),
        (None, Some(text)) => Ok(Node::literal(text)),
        _ => Err("a Split without a pattern".into()),
    }
}

/// The pattern whose matches and gaps are the pieces, if there is one.
fn isolated(pattern: Node, behaviour: &str, invert: bool) -> Result<Node, String> {
    let class = || {
        let class = class_of(&pattern);
        class.ok_or_else(|| format!("the behaviour {behaviour} and a pattern that is not a single class"))
    };
    match (behaviour, invert) {
        // Inverting swaps matches and gaps, and both are pieces.
        ("Isolated", _) => Ok(pattern),
        ("Removed", true) if pattern.covers_all_text() => Ok(pattern),
        ("Removed", true) => Err("the behaviour Removed and a pattern that does not cover all text".into()),
        ("Contiguous", _) => Ok(Node::run(class()?.clone())),
        // A match goes with the gap before it, or behind it; inverted, a gap goes with the match.
        ("MergedWithPrevious" | "MergedWithNext", _) => {
            let gap = Node::run(negated(class()?.clone()));
            let maybe_gap = optional(gap.clone());
            let is_first = (behaviour == "MergedWithNext") != invert;
            let both = if is_first { vec![pattern, maybe_gap] } else { vec![maybe_gap, pattern] };
            Ok(Node::Alternate(vec![Node::concat(both), gap]))
        }
        (other, _) => Err(format!("the behaviour {other}")),
    }
}

/// The class that a pattern matches one character, or a run, of.
fn class_of(pattern: &Node) -> Option<&ClassUnicode> {
    match pattern {
        Node::Class(set) => Some(set),
        Node::Repeat { min: 1, max: None, .. } => pattern.repeated(),
        _ => None,
    }
}

fn optional(node: Node) -> Node {
    Node::Repeat { node: Box::new(node), min: 0, max: Some(1) }
}

fn flag(json: &Value, name: &str, default: Option<bool>) -> Result<bool, String> {
    match (&json[name], default) {
        (Value::Bool(value), _) => Ok(*value),
        (Value::Null, Some(default)) => Ok(default),
        _ => Err(format!("a step whose {name} is neither true nor false")),
    }
}
