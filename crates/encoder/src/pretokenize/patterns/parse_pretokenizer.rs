//! Reads the `pre_tokenizer` of tokenizer.json as a list of patterns that cut one after another.

use regex_syntax::hir::ClassUnicode;
use serde_json::Value;

use crate::byte_alphabet::CHARACTERS;
use crate::lazy::Lazy;
use crate::pretokenize::patterns::regex::parser::parse;
use crate::pretokenize::patterns::regex::{Node, named_set, negated, set_where, single, union};
use crate::vocab::single_char;

/// The pattern that a `ByteLevel` with `use_regex` applies.
pub const BYTE_LEVEL_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Each may take some hundredths of a second to compile; real tokenizers have up to six.
const MOST_STEPS: usize = 32;

pub struct ParsedPretokenizer {
    pub steps: Vec<PatternStep>,
    /// The `add_prefix_space` of its `ByteLevel`, if it has one.
    pub byte_level: Option<bool>,
    /// Characters that are removed, if there are such. The steps leave them no neighbours but each other.
    pub removed: ClassUnicode,
}

#[derive(Debug, PartialEq, Eq)]
pub struct PatternStep {
    pub pattern: Node,
    pub ends: Ends,
    pub domain: Domain,
}

/// The ends of a match that are ends of pre-tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// Each match is a pre-token, and so is each gap between matches.
    Both,
    /// A match and the gap behind it are a pre-token.
    First,
    /// A match and the gap before it are a pre-token.
    Last,
}

/// The characters that a pattern sees.
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

pub fn parse_pretokenizer(pre_tokenizer: &Value) -> Result<ParsedPretokenizer, String> {
    let mut reading =
        ParsedPretokenizer { steps: Vec::new(), byte_level: None, removed: ClassUnicode::empty() };
    if !pre_tokenizer.is_null() {
        reading.read(pre_tokenizer)?;
    }
    let in_bytes = reading.steps.iter().any(|step| step.domain == Domain::Bytes);
    if in_bytes && !reading.removed.ranges().is_empty() {
        return Err("a step that removes text, and one after the ByteLevel".into());
    }
    Ok(reading)
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

/// Three steps (those of Trinity) that together are [`GROUPS_FROM_THE_RIGHT`]: runs of digits, the longest of them in
/// parts of 170 groups; what is in front of the first whole group of a part; and the groups. A part is a whole string to
/// the step after it, which can say `\A`.
const GROUPS_IN_STEPS: [&str; 3] = [
    r"\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510}",
    r"\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)",
    r"\A\p{Nd}{3}|\G\p{Nd}{3}",
];
const GROUPS_FROM_THE_RIGHT: &str = r"\p{Nd}{1,3}(?=(?:\p{Nd}{3})*(?!\p{Nd}))";

impl ParsedPretokenizer {
    fn read(&mut self, json: &Value) -> Result<(), String> {
        let kind = json["type"].as_str().ok_or("a step without a type")?;
        match kind {
            "Sequence" => {
                let parts = json["pretokenizers"].as_array().ok_or("a Sequence without pretokenizers")?;
                let mut rest = parts.as_slice();
                while let [first, others @ ..] = rest {
                    rest = if let Some(others) = after_groups_in_steps(rest) {
                        self.push(parse(GROUPS_FROM_THE_RIGHT)?, Ends::Both)?;
                        others
                    } else {
                        self.read(first)?;
                        others
                    };
                }
                Ok(())
            }
            "ByteLevel" => self.byte_level(json),
            "Split" => {
                let pattern = split_pattern(&json["pattern"])?;
                let invert = flag(json, "invert", None)?;
                self.split(json, pattern, invert)
            }
            "Digits" => {
                let individual = flag(json, "individual_digits", None)?;
                let pattern = if individual { Node::Class(numeric()) } else { Node::run(numeric()) };
                self.push(pattern, Ends::Both)
            }
            "Punctuation" => self.split(json, Node::Class(punctuation()), false),
            "Whitespace" => {
                // The pattern is `\w+|[^\w\s]+`; all that is left is removed.
                let [words, others, spaces] = [r"\w", r"[^\w\s]", r"\s"].map(named_set);
                self.push(Node::run(words?), Ends::Both)?;
                self.push(Node::run(others?), Ends::Both)?;
                self.leave_out(&spaces?)
            }
            "WhitespaceSplit" => self.remove(&named_set(r"\s")?),
            "BertPreTokenizer" => {
                self.remove(&named_set(r"\s")?)?;
                self.push(Node::Class(punctuation()), Ends::Both)
            }
            "CharDelimiterSplit" => {
                let delimiter = json["delimiter"].as_str().and_then(single_char);
                self.remove(&single(delimiter.ok_or("a CharDelimiterSplit without a delimiter")?))
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
            return Err("a ByteLevel that puts a space before every pre-token".into());
        }
        if flag(json, "use_regex", Some(true))? {
            self.push(parse(BYTE_LEVEL_PATTERN)?, Ends::Both)?;
        }
        self.byte_level = Some(add_prefix_space);
        Ok(())
    }

    /// A `Split` or a `Punctuation`, whose `behavior` says what becomes of the matches of a pattern.
    fn split(&mut self, json: &Value, pattern: Node, invert: bool) -> Result<(), String> {
        let with = |what: &str| format!("a {} with {what}", json["type"].as_str().unwrap_or_default());
        match (json["behavior"].as_str(), invert) {
            (Some("Removed"), false) => {
                let class = union_of(&pattern)
                    .ok_or_else(|| with("the behaviour Removed and a pattern of more than classes"))?;
                self.remove(&class)
            }
            (Some("Removed"), true) if !pattern.covers_all_text() => {
                let kept = union_of(&pattern).ok_or_else(|| {
                    with("the behaviour Removed and a pattern that neither covers all text nor consists of classes")
                })?;
                self.push(pattern, Ends::Both)?;
                self.leave_out(&negated(kept))
            }
            _ => {
                let (pattern, ends) = ends_of(json, pattern, invert).map_err(|what| with(&what))?;
                self.push(pattern, ends)
            }
        }
    }

    fn remove(&mut self, class: &ClassUnicode) -> Result<(), String> {
        self.push(Node::run(class.clone()), Ends::Both)?;
        self.leave_out(class)
    }

    /// These characters, which are pre-tokens of their own, are removed.
    fn leave_out(&mut self, set: &ClassUnicode) -> Result<(), String> {
        if self.byte_level.is_some() {
            return Err("a step after the ByteLevel that removes text".into());
        }
        self.removed.union(set);
        Ok(())
    }

    fn push(&mut self, pattern: Node, ends: Ends) -> Result<(), String> {
        if self.steps.len() == MOST_STEPS {
            return Err(format!("more than {MOST_STEPS} steps"));
        }
        let domain = if self.byte_level.is_some() { Domain::Bytes } else { Domain::Characters };
        self.steps.push(PatternStep { pattern, ends, domain });
        Ok(())
    }
}

/// The parts that follow three steps that group digits from the right, if these are the first.
fn after_groups_in_steps(parts: &[Value]) -> Option<&[Value]> {
    let (steps, others) = parts.split_at_checked(GROUPS_IN_STEPS.len())?;
    let isolates = |step: &Value, regex| {
        step["type"] == "Split" && step["pattern"]["Regex"] == regex && step["behavior"] == "Isolated"
    };
    steps.iter().zip(GROUPS_IN_STEPS).all(|(step, regex)| isolates(step, regex)).then_some(others)
}

fn split_pattern(json: &Value) -> Result<Node, String> {
    match (json["Regex"].as_str(), json["String"].as_str()) {
        (Some(regex), None) => parse(regex),
        (None, Some("")) => Err("a Split at the empty string".into()),
        (None, Some(text)) => Ok(Node::literal(text)),
        _ => Err("a Split without a pattern".into()),
    }
}

/// The pattern of a step whose `behavior` says what becomes of the matches, and which ends of these are ends of
/// pre-tokens.
fn ends_of(json: &Value, pattern: Node, invert: bool) -> Result<(Node, Ends), String> {
    let behaviour = json["behavior"].as_str().unwrap_or("no behavior");
    Ok(match (behaviour, invert) {
        // Inverting swaps matches and gaps, and both are pre-tokens. Where all text matches, nothing is removed.
        ("Isolated", _) | ("Removed", true) => (pattern, Ends::Both),
        ("Contiguous", _) => match union_of(&pattern) {
            Some(class) => (Node::run(class), Ends::Both),
            None => return Err("the behaviour Contiguous and a pattern of more than classes".into()),
        },
        // To the reference matches of nothing are matches, but they are not ends of pre-tokens.
        ("MergedWithPrevious" | "MergedWithNext", _) if matches!(pattern, Node::DigitGroups(_)) => {
            return Err(format!("the behaviour {behaviour} and a lookahead at more than one character"));
        }
        // A match goes with the gap before it, or behind it; inverted, a gap goes with the match.
        ("MergedWithPrevious", false) | ("MergedWithNext", true) => (pattern, Ends::Last),
        ("MergedWithPrevious", true) | ("MergedWithNext", false) => (pattern, Ends::First),
        (other, _) => return Err(format!("the behaviour {other}")),
    })
}

/// The class that a pattern matches one character, or a run, of.
fn class_of(pattern: &Node) -> Option<&ClassUnicode> {
    match pattern {
        Node::Class(set) => Some(set),
        Node::Repeat { min: 1, max: None, .. } => pattern.repeated(),
        _ => None,
    }
}

/// The characters of which a pattern matches one or more, if that is all it does: all of them are in matches.
fn union_of(pattern: &Node) -> Option<ClassUnicode> {
    Some(union(classes_of(pattern)?.into_iter().cloned()))
}

/// The classes of which a pattern matches one character or a run, if that is all it does.
pub fn classes_of(pattern: &Node) -> Option<Vec<&ClassUnicode>> {
    match pattern {
        Node::Alternate(nodes) => nodes.iter().map(class_of).collect(),
        _ => Some(vec![class_of(pattern)?]),
    }
}

fn flag(json: &Value, name: &str, default: Option<bool>) -> Result<bool, String> {
    match (&json[name], default) {
        (Value::Bool(value), _) => Ok(*value),
        (Value::Null, Some(default)) => Ok(default),
        _ => Err(format!("a step whose {name} is neither true nor false")),
    }
}
