//! Conversations: rendered by a chat template, which says where every byte comes from and what is trained on.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;

use gristmill_chat_template::{Chat, ChatTemplate, Data, DateTime, NoneFields, Trained, Training};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::field::Field;
use super::json_pairs::{Pairs, write_pairs};
use crate::format::{Content, Step, Value, Values};

/// How records become rendered conversations.
#[derive(Debug, Clone)]
pub struct Conversations {
    /// How many of the projection's paths are those of the filter.
    pub filter_paths: usize,
    /// The template.
    pub template: ChatTemplate,
    /// The key of the messages.
    pub messages: Field,
    /// Where tools come from.
    pub tools: Tools,
    /// Further variables of the template: a JSON object.
    pub kwargs: Option<Vec<u8>>,
    /// Whether the text ends in what makes the model answer.
    pub add_generation_prompt: bool,
    /// What a template that prints a date prints.
    pub date: Option<DateTime>,
    /// What becomes of message fields that are null.
    pub none_fields: NoneFields,
    /// What is trained on. None: no mask is wanted.
    pub training: Option<Training>,
    /// How records hold messages.
    pub format: MessageFormat,
    /// Whether no special token is recognised in what messages say.
    pub protects_content: bool,
    /// Whether a conversation without trained tokens is left out.
    pub drops_untrained: bool,
}

/// Where the tools of a conversation come from.
#[derive(Debug, Clone)]
pub enum Tools {
    /// All conversations have these, if any: a JSON list.
    Fixed(Option<Vec<u8>>),
    /// The record's own, under this key.
    Record(Field),
}

/// How records hold messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFormat {
    /// As templates take them: `role`, `content` and so on.
    Messages,
    /// `from` and `value`.
    ShareGpt,
    /// Either, in a list or in an object that has one: as the samples of Megatron-Bridge.
    ChatMl,
}

/// The keys of an object of [`MessageFormat::ChatMl`] that may hold the list; the first that is there counts.
const CHATML_KEYS: [&str; 3] = ["conversations", "messages", "conversation"];

/// A message of `ShareGPT`.
#[derive(Deserialize)]
struct Turn<'a> {
    #[serde(borrow)]
    from: Cow<'a, str>,
    #[serde(borrow)]
    value: &'a RawValue,
    #[serde(borrow)]
    train: Option<&'a RawValue>,
    #[serde(borrow)]
    weight: Option<&'a RawValue>,
}

impl Conversations {
    /// Puts the text of a record's conversation in place of `text`, and its ranges in place of `trained` and `data`. The
    /// error says what was expected and found.
    pub(crate) fn render(
        &self,
        values: &Values<'_>,
        text: &mut String,
        trained: &mut Vec<Range<usize>>,
        data: &mut Vec<Range<usize>>,
    ) -> Result<(), String> {
        let messages = self.messages(values)?;
        self.render_messages(&messages, values, text, trained, data)
    }

    /// As [`render`](Self::render), with these messages.
    pub(super) fn render_messages(
        &self,
        messages: &str,
        values: &Values<'_>,
        text: &mut String,
        trained: &mut Vec<Range<usize>>,
        data: &mut Vec<Range<usize>>,
    ) -> Result<(), String> {
        let tools = self.tools.of(values)?;
        let chat = Chat {
            tools: tools.as_deref().map(|tools| Data::Json(tools.as_bytes())),
            kwargs: self.kwargs.as_deref().map(Data::Json),
            add_generation_prompt: self.add_generation_prompt,
            date: self.date,
            none_fields: self.none_fields,
            ..Chat::new(Data::Json(messages.as_bytes()))
        };
        let rendered = match &self.training {
            Some(training) => self.template.render_trained(&chat, training),
            None => self.template.render(&chat).map(|rendering| Trained { rendering, ranges: Vec::new() }),
        };
        let Trained { rendering, ranges } = rendered.map_err(|error| error.to_string())?;
        *trained = ranges;
        *data = if self.protects_content { rendering.data_ranges() } else { Vec::new() };
        *text = rendering.into_text();
        Ok(())
    }

    /// The messages of a record, as templates take them.
    pub(super) fn messages<'a>(&self, values: &Values<'a>) -> Result<Cow<'a, str>, String> {
        let key = self.messages.key();
        let mut found = self.messages.of(values);
        if let (MessageFormat::ChatMl, Some(object)) = (self.format, found) {
            let list = CHATML_KEYS.iter().find_map(|key| object.step(&Step::Key((*key).to_owned())));
            found = list.or(found);
        }
        let Some(list) = found.filter(|value| value.is_array()) else {
            return Err(format!("expected a list of messages under the key {key:?}, found {}", kind(found)));
        };
        match self.format {
            MessageFormat::Messages => Ok(Cow::Borrowed(list.json())),
            MessageFormat::ShareGpt => from_share_gpt(list.json()).map(Cow::Owned),
            MessageFormat::ChatMl => from_chatml(list.json()).map(Cow::Owned),
        }
    }
}

impl Tools {
    /// The tools of a record: a list, or a string that holds one. Null and none at all mean no tools.
    fn of<'a>(&'a self, values: &Values<'a>) -> Result<Option<Cow<'a, str>>, String> {
        let field = match self {
            Self::Fixed(tools) => {
                let tools = tools.as_deref().map(std::str::from_utf8).transpose();
                return tools.map(|tools| tools.map(Cow::Borrowed)).map_err(|error| error.to_string());
            }
            Self::Record(field) => field,
        };
        let (found, key) = (field.of(values), field.key());
        match found.map(|value| (value, value.content())) {
            None | Some((_, Content::Null)) => Ok(None),
            Some((value, Content::Array)) => Ok(Some(Cow::Borrowed(value.json()))),
            Some((_, Content::Text(text))) if text.trim_start().starts_with('[') => Ok(Some(text)),
            Some((_, Content::Text(text))) if text.trim().is_empty() => Ok(None),
            _ => Err(format!(
                "expected a list of tools under the key {key:?}, or a string with such JSON, found {}",
                kind(found)
            )),
        }
    }
}

fn kind(value: Option<Value<'_>>) -> &'static str {
    value.map_or("no such key", |value| value.content().name())
}

/// Messages with `role` and `content` of those with `from` and `value`.
fn from_share_gpt(list: &str) -> Result<String, String> {
    let turns: Vec<Turn<'_>> = serde_json::from_str(list)
        .map_err(|error| format!("expected messages with from and value: {error}"))?;
    let mut messages = String::with_capacity(list.len() + 16 * turns.len());
    for (index, Turn { from, value, train, weight }) in turns.iter().enumerate() {
        let role = role_of(from).ok_or_else(|| {
            format!(
                "expected from to be human, user, gpt, assistant, model, system, tool, observation or function_call, \
                 found {from:?} in message {index}"
            )
        })?;
        messages.push(if index == 0 { '[' } else { ',' });
        let _ = write!(messages, r#"{{"role":"{role}","content":{value}"#);
        for (key, value) in [("train", train), ("weight", weight)] {
            if let Some(value) = value {
                let _ = write!(messages, r#","{key}":{value}"#);
            }
        }
        messages.push('}');
    }
    messages.push_str(if turns.is_empty() { "[]" } else { "]" });
    Ok(messages)
}

/// Messages with `role` and `content` of those of either kind.
fn from_chatml(list: &str) -> Result<String, String> {
    let turns: Vec<Pairs<'_>> = serde_json::from_str(list)
        .map_err(|error| format!("expected a list of messages that are objects: {error}"))?;
    let mut messages = String::with_capacity(list.len());
    for (index, turn) in turns.iter().enumerate() {
        messages.push(if index == 0 { '[' } else { ',' });
        let Some(value) = turn.get("value").filter(|_| turn.get("role").is_none()) else {
            write_pairs(&mut messages, &turn.0, |_, _| Ok(None))?;
            continue;
        };
        let from = turn.get("from").map(RawValue::get).unwrap_or_default();
        let role = match from {
            r#""human""# => r#""user""#,
            r#""gpt""# => r#""assistant""#,
            "" => return Err(format!("expected role and content, or from and value, in message {index}")),
            other => other,
        };
        _ = write!(messages, r#"{{"role":{role},"content":{value}"#);
        for key in ["train", "weight"] {
            if let Some(value) = turn.get(key) {
                _ = write!(messages, r#","{key}":{value}"#);
            }
        }
        messages.push('}');
    }
    messages.push_str(if turns.is_empty() { "[]" } else { "]" });
    Ok(messages)
}

fn role_of(from: &str) -> Option<&'static str> {
    Some(match from {
        "human" | "user" => "user",
        "gpt" | "assistant" | "model" | "function_call" => "assistant",
        "system" => "system",
        "tool" | "observation" => "tool",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_gpt_messages_get_roles_and_keep_weights() {
        let list =
            r#"[{"from": "human", "value": "a\n\"", "id": 3}, {"from": "gpt", "value": "b", "weight": 0}]"#;
        assert_eq!(
            from_share_gpt(list).unwrap(),
            r#"[{"role":"user","content":"a\n\""},{"role":"assistant","content":"b","weight":0}]"#
        );
        assert_eq!(from_share_gpt("[]").unwrap(), "[]");
    }

    #[test]
    fn chatml_messages_are_of_either_kind() {
        let list = r#"[{"from": "human", "value": "a", "id": 3}, {"role": "tool", "content": [1.50], "x": null},
            {"from": "gpt", "value": "b", "weight": 0}, {"from": "system", "value": "c"}]"#;
        assert_eq!(
            from_chatml(list).unwrap(),
            r#"[{"role":"user","content":"a"},{"role":"tool","content":[1.50],"x":null},{"role":"assistant","content":"b","weight":0},{"role":"system","content":"c"}]"#
        );
        assert_eq!(from_chatml("[]").unwrap(), "[]");
        let error = from_chatml(r#"[{"value": "a"}]"#).unwrap_err();
        assert!(error.contains("expected role and content, or from and value, in message 0"), "{error}");
    }

    #[test]
    fn unknown_speaker_is_an_error() {
        let error = from_share_gpt(r#"[{"from": "narrator", "value": "a"}]"#).unwrap_err();
        assert!(error.contains("found \"narrator\" in message 0"), "{error}");
        let error = from_share_gpt(r#"[{"role": "user", "content": "a"}]"#).unwrap_err();
        assert!(error.contains("expected messages with from and value: missing field `from`"), "{error}");
    }
}
