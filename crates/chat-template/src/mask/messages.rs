//! The facts about messages that masks need, and what messages say about themselves.

use super::TrainOn;
use crate::error::{Error, ErrorKind, Result};
use crate::reasoning::field;
use crate::value::Val;

/// The facts about a message that masks need.
pub(crate) struct Message<'a> {
    pub(super) role: &'a str,
    pub(super) trained: bool,
    /// How much it is trained on, if it says so.
    pub(super) weight: Option<f32>,
    /// It has content that is more than white space, calls, a refusal or a sound.
    pub(super) speaks: bool,
    /// It has tool calls.
    pub(super) calls: bool,
}

impl<'a> Message<'a> {
    pub(super) fn of((index, value): (usize, &Val<'a>), train_key: Option<&str>) -> Result<Self> {
        let Val::Dict(dict) = value else {
            return Ok(Self { role: "", trained: true, weight: None, speaks: false, calls: false });
        };
        let field =
            |name: &str| dict.entries.iter().find(|(key, _)| key.is_text(name)).map(|(_, value)| *value);
        let (mut trained, mut weight) = (true, None);
        let own: &[&str] = if let Some(key) = &train_key { std::slice::from_ref(key) } else { &KEYS };
        for name in own {
            let meaning = FLAGS.iter().find(|(flag, _)| flag == name).is_none_or(|(_, meaning)| *meaning);
            let says = field(name).filter(|value| !matches!(value, Val::None(_)));
            // 1 and 0 are flags.
            let weight_of = |value| if is_on(value).is_none() { weight_of(value) } else { None };
            if let (Some(_), true, Some(own)) = (train_key, meaning, says.and_then(weight_of)) {
                weight = Some(own);
                trained = own > 0.0;
                continue;
            }
            let says = says.map_or(Some(true), |value| is_on(value).map(|is_on| is_on == meaning));
            trained &= says.ok_or_else(|| {
                Error::new(
                    ErrorKind::Input,
                    format!(
                        "messages[{index}]: expected true, false, 1, 0 or null under its key {name:?}{}; correct the key, or \
                         leave it out",
                        if train_key.is_some() && meaning {
                            ", or a weight from 0 on"
                        } else {
                            ": a token is trained on or not, and weights are read under the key that train_key names"
                        }
                    ),
                )
            })?;
        }
        let says = |names: &[&str]| names.iter().any(|name| field(name).is_some_and(is_said));
        let calls = says(&CALLS);
        Ok(Self {
            role: field("role").and_then(|role| role.as_str()).map_or("", |role| role.text),
            trained,
            weight,
            speaks: calls || says(&["content", "refusal", "audio"]),
            calls,
        })
    }
}

/// Whether a flag is on; none if it says neither.
pub(super) fn is_on(flag: Val<'_>) -> Option<bool> {
    match flag {
        Val::Bool(true, _) | Val::Int(1, _) | Val::Float(1.0, _) => Some(true),
        Val::Bool(false, _) | Val::Int(0, _) | Val::Float(0.0, _) => Some(false),
        _ => None,
    }
}

/// The weight that a number is; none of a boolean.
fn weight_of(value: Val<'_>) -> Option<f32> {
    let number = match value {
        Val::Int(number, _) => number as f32,
        Val::Float(number, _) => number as f32,
        _ => return None,
    };
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// The keys by which messages say whether they are trained on.
pub(super) const KEYS: [&str; 2] = ["train", "weight"];

/// All keys by which programs say so, and which value says so.
pub(super) const FLAGS: [(&str, bool); 6] = [
    ("train", true),
    ("weight", true),
    ("loss", true),
    ("loss_mask", true),
    ("trainable", true),
    ("masked", false),
];

/// Checks that the flags of other programs in messages, which are not followed, say what is done. Where it was chosen which
/// messages are trained on, only the opposite of what is done for one counts.
pub(super) fn check_flags(
    messages: &[Message<'_>],
    values: &[Val<'_>],
    on: &TrainOn,
    own: Option<&str>,
) -> Result<()> {
    let is_own = |name: &str| own.map_or_else(|| KEYS.contains(&name), |key| key == name);
    for (index, message) in messages.iter().enumerate() {
        let Val::Dict(dict) = values[index] else { continue };
        let is_trained = message.trained && is_wanted(on, messages, index);
        for (key, value) in dict.entries {
            let flag = FLAGS.iter().find(|(name, _)| key.is_text(name) && !is_own(name));
            let Some((name, meaning)) = flag else { continue };
            let says = is_on(*value).map(|is_on| is_on == *meaning);
            let is_followed = says == Some(is_trained) || says == Some(true) && *on != TrainOn::Assistant;
            if is_followed || matches!(value, Val::None(_)) {
                continue;
            }
            return Err(Error::new(
                ErrorKind::Input,
                format!(
                    "messages[{index}]: expected whether it is trained on under its key {:?}, found {name:?}, which is \
                     not followed, and {}; name it with train_key, or leave it out",
                    own.unwrap_or(KEYS[0]),
                    if is_trained { "the message is trained on" } else { "the message is not" }
                ),
            ));
        }
    }
    Ok(())
}

/// Whether what is trained on includes a message, if it does not say otherwise itself.
pub(super) fn is_wanted(on: &TrainOn, messages: &[Message<'_>], index: usize) -> bool {
    let role = messages[index].role;
    let has_behind = |wanted: &str| messages[index + 1..].iter().any(|message| message.role == wanted);
    match on {
        TrainOn::All => true,
        TrainOn::Assistant | TrainOn::Template => role == ASSISTANT,
        TrainOn::Last => role == ASSISTANT && !has_behind(ASSISTANT),
        TrainOn::Final => role == ASSISTANT && !has_behind(USER),
        TrainOn::From(first) => role == ASSISTANT && index >= *first,
        TrainOn::Roles(roles) => roles.iter().any(|other| other == role),
    }
}

/// How many messages there are up to the next one of the user behind one.
pub(crate) fn end_of_round(values: &[Val<'_>], message: usize) -> usize {
    let is_user = |value: &Val<'_>| matches!(value, Val::Dict(dict) if field(dict, "role").is_some_and(|role| role.is_text(USER)));
    let behind = values[message + 1..].iter().position(is_user);
    behind.map_or(values.len(), |at| message + 1 + at)
}

/// The facts about all messages.
pub(super) fn messages_of<'a>(values: &[Val<'a>], train_key: Option<&str>) -> Result<Vec<Message<'a>>> {
    values.iter().enumerate().map(|one| Message::of(one, train_key)).collect()
}

/// Whether a field says anything.
pub(super) fn is_said(value: Val<'_>) -> bool {
    match value {
        Val::Str(text) => !text.text.trim().is_empty(),
        Val::Int(..) | Val::Big(_) | Val::Float(..) | Val::Bool(true, _) => true,
        Val::List(list) => !list.items.is_empty(),
        Val::Dict(dict) => !dict.entries.is_empty(),
        _ => false,
    }
}

/// The keys that messages have calls under; the second one is the older form.
pub(crate) const CALLS: [&str; 2] = ["tool_calls", "function_call"];

/// The keys that messages have reasoning under.
pub(crate) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The role whose messages the model generates.
pub(crate) const ASSISTANT: &str = "assistant";
/// The role of questions.
pub(crate) const USER: &str = "user";
