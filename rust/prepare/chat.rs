//! Conversations: rendered by a chat template, which says where every byte comes from and what is trained on.

use std::borrow::Cow;

use gristmill_chat_template::{
    Chat, ChatTemplate, Data, DateTime, NoneFields, SampleUnit, Trained, Training,
};

use super::field::Field;
use super::instruction::Columns;
use super::{Sample, Samples, share_gpt};
use crate::format::{self, Content, Step, Value, Values, View};

/// How records become rendered conversations.
#[derive(Debug, Clone)]
pub struct Conversations {
    /// How many of the projection's paths are those of the filter.
    pub filter_paths: usize,
    /// The template.
    pub template: ChatTemplate,
    /// The key of the messages.
    pub messages: Field,
    /// Or the keys of parts that messages are made of.
    pub columns: Option<Columns>,
    /// Where tools come from.
    pub tools: Tools,
    /// Further variables of the template: a JSON object.
    pub kwargs: Option<Vec<u8>>,
    /// Whether the text ends in what makes the model answer.
    pub add_generation_prompt: bool,
    /// The date that templates print.
    pub date: Option<DateTime>,
    /// The treatment of message fields that are null.
    pub none_fields: NoneFields,
    /// The parts that are trained on. None: no mask is wanted.
    pub training: Option<Training>,
    /// The samples that a conversation becomes.
    pub unit: SampleUnit,
    /// How records hold messages.
    pub format: MessageFormat,
    /// The key of a system prompt beside messages of `ShareGPT`.
    pub system: Option<Field>,
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

/// Messages or tools of a conversation.
pub(crate) enum Given<'a> {
    /// As the record holds them.
    View(View<'a>),
    /// Made of what it holds.
    Value(Value<'a>),
    /// In a string that it holds.
    Text(Cow<'a, str>),
}

/// The keys of an object of [`MessageFormat::ChatMl`] that may hold the list; the first that is there counts.
const CHATML_KEYS: [&str; 3] = ["conversations", "messages", "conversation"];

impl Conversations {
    /// Appends the samples of a record's conversation. The error says what was expected and found.
    pub(super) fn render(&self, values: &Values<'_>, samples: &mut Samples) -> Result<(), String> {
        let messages = self.messages(values)?;
        for rendered in self.train(&messages, values)? {
            self.put(rendered, samples.add());
        }
        if samples.is_empty() && !self.drops_untrained {
            return Err("expected a message of the assistant to train on, found none; set on_untrained=\"drop\" to leave out such \
                        records".to_owned());
        }
        Ok(())
    }

    /// The rendered samples of a record, and what of them is trained on. The error says what was expected and found.
    pub fn trained(&self, values: &Values<'_>) -> Result<Vec<Trained>, String> {
        self.train(&self.messages(values)?, values)
    }

    /// Puts a conversation of these messages that is one sample in this one. The error says what was expected and found.
    pub(crate) fn render_one(
        &self,
        messages: &Given<'_>,
        values: &Values<'_>,
        sample: &mut Sample,
    ) -> Result<(), String> {
        for rendered in self.train(messages, values)? {
            self.put(rendered, sample);
        }
        Ok(())
    }

    /// Puts a rendered conversation in a sample.
    fn put(&self, rendered: Trained, sample: &mut Sample) {
        sample.trained = rendered.spans();
        sample.data = if self.protects_content { rendered.rendering.data_ranges() } else { Vec::new() };
        sample.text = rendered.rendering.into_text();
    }

    /// The samples of these messages of a record.
    fn train(&self, messages: &Given<'_>, values: &Values<'_>) -> Result<Vec<Trained>, String> {
        let tools = self.tools.of(values)?;
        let fixed = if let Tools::Fixed(tools) = &self.tools { tools.as_deref() } else { None };
        let chat = Chat {
            tools: tools.as_ref().map(Given::data).or(fixed.map(Data::Json)),
            kwargs: self.kwargs.as_deref().map(Data::Json),
            add_generation_prompt: self.add_generation_prompt,
            date: self.date,
            none_fields: self.none_fields,
            ..Chat::new(messages.data())
        };
        let rendered = match &self.training {
            Some(training) => self.template.render_samples(&chat, training, self.unit),
            None => self.template.render(&chat).map(|rendering| vec![Trained::from(rendering)]),
        };
        rendered.map_err(|error| error.to_string())
    }

    /// The messages of a record, as templates take them.
    pub(crate) fn messages<'a>(&self, values: &Values<'a>) -> Result<Given<'a>, String> {
        if let Some(columns) = &self.columns {
            return columns.messages(values).map(Given::Value);
        }
        let key = self.messages.key();
        let mut found = self.messages.of(values);
        let mut system = self.system.as_ref().and_then(|system| system.of(values));
        if let (MessageFormat::ChatMl, Some(object)) = (self.format, found) {
            let inside = |key: &str| object.step(&Step::Key(key.to_owned()));
            if let Some(list) = CHATML_KEYS.into_iter().find_map(inside) {
                (found, system) = (Some(list), inside("system"));
            }
        }
        let Some(list) = found.filter(|value| value.is_array()) else {
            return Err(format!("expected a list of messages under the key {key:?}, found {}", kind(found)));
        };
        if self.format == MessageFormat::Messages {
            return Ok(Given::View(list));
        }
        let system = system.filter(|system| system.content() != Content::Null);
        let system = system.map(format::text).transpose();
        let system =
            system.map_err(|found| format!("expected a string under the key \"system\", found {found}"))?;
        let system = system.filter(|system| !system.is_empty());
        let takes_both = self.format == MessageFormat::ChatMl;
        share_gpt::messages(self.in_memory(Given::View(list))?, takes_both, system).map(Given::Value)
    }

    /// Messages as a value in memory.
    pub(super) fn in_memory<'a>(&self, messages: Given<'a>) -> Result<Value<'a>, String> {
        let keeps_filled = self.none_fields == NoneFields::Keep;
        match messages {
            Given::View(view) => view.to_value(keeps_filled).map_err(|error| format!("messages: {error}")),
            Given::Value(value) => Ok(value),
            Given::Text(text) => share_gpt::parsed(&text),
        }
    }
}

impl Given<'_> {
    fn data(&self) -> Data<'_> {
        match self {
            Self::View(view) => Data::View(*view),
            Self::Value(value) => Data::Value(value),
            Self::Text(text) => Data::Json(text.as_bytes()),
        }
    }
}

impl Tools {
    /// The tools of a record: a list, or a string that holds one. Null and none at all mean no tools.
    fn of<'a>(&self, values: &Values<'a>) -> Result<Option<Given<'a>>, String> {
        let Self::Record(field) = self else { return Ok(None) };
        let (found, key) = (field.of(values), field.key());
        match found.map(|value| (value, value.content())) {
            None | Some((_, Content::Null)) => Ok(None),
            Some((value, Content::Array)) => Ok(Some(Given::View(value))),
            Some((value, Content::Text(text))) if text.trim_start().starts_with('[') => format::text(value)
                .map(|text| Some(Given::Text(text)))
                .map_err(|found| format!("expected a list of tools under the key {key:?}, found {found}")),
            Some((_, Content::Text(text))) if text.trim().is_empty() => Ok(None),
            _ => Err(format!(
                "expected a list of tools under the key {key:?}, or a string with such JSON, found {}",
                kind(found)
            )),
        }
    }
}

fn kind(value: Option<View<'_>>) -> &'static str {
    value.map_or("no such key", |value| value.content().name())
}
