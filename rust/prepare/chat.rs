//! Conversations: rendered by a chat template, which says where every byte comes from and what is trained on.

use gristmill_chat_template::{
    Chat, ChatTemplate, Data, DateTime, NoneFields, SampleUnit, Trained, Training,
};

use super::field::Field;
use super::instruction::Columns;
use super::{Sample, Samples, share_gpt};
use crate::format::{Content, Plain, Step, Values, View};

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
        messages: &Plain<'_>,
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
    fn train(&self, messages: &Plain<'_>, values: &Values<'_>) -> Result<Vec<Trained>, String> {
        let tools = self.tools.of(values, self.keeps_filled())?;
        let chat = Chat {
            tools: tools.as_ref().map(|tools| Data::Json(tools.json.as_bytes())),
            kwargs: self.kwargs.as_deref().map(Data::Json),
            add_generation_prompt: self.add_generation_prompt,
            date: self.date,
            none_fields: self.none_fields,
            ..Chat::new(Data::Json(messages.json.as_bytes()))
        };
        let rendered = match &self.training {
            Some(training) => self.template.render_samples(&chat, training, self.unit),
            None => self.template.render(&chat).map(|rendering| vec![Trained::from(rendering)]),
        };
        let samples = rendered.map_err(|error| error.to_string())?;
        for sample in &samples {
            Plain::check([messages].into_iter().chain(&tools), sample.rendering.text())?;
        }
        Ok(samples)
    }

    /// The messages of a record, as templates take them.
    pub(crate) fn messages<'a>(&self, values: &Values<'a>) -> Result<Plain<'a>, String> {
        if let Some(columns) = &self.columns {
            return columns.messages(values);
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
        let messages = values.plain(list, self.keeps_filled())?;
        if self.format == MessageFormat::Messages {
            return Ok(messages);
        }
        let system = system.filter(|system| system.content() != Content::Null);
        let system = system.map(|system| values.text(system)).transpose();
        let system =
            system.map_err(|found| format!("expected a string under the key \"system\", found {found}"))?;
        let system = system.filter(|system| !system.is_empty());
        let takes_both = self.format == MessageFormat::ChatMl;
        let json = share_gpt::messages(&messages.json, takes_both, system.as_deref())?;
        Ok(messages.with_json(json))
    }

    /// Whether keys that structs fill in with null stay.
    fn keeps_filled(&self) -> bool {
        self.none_fields == NoneFields::Keep
    }
}

impl Tools {
    /// The tools of a record: a list, or a string that holds one. Null and none at all mean no tools.
    fn of<'a>(&'a self, values: &Values<'a>, keeps_filled: bool) -> Result<Option<Plain<'a>>, String> {
        let field = match self {
            Self::Fixed(tools) => {
                let tools = tools.as_deref().map(std::str::from_utf8).transpose();
                return tools.map(|tools| tools.map(Plain::new)).map_err(|error| error.to_string());
            }
            Self::Record(field) => field,
        };
        let (found, key) = (field.of(values), field.key());
        match found.map(|value| (value, value.content())) {
            None | Some((_, Content::Null)) => Ok(None),
            Some((value, Content::Array)) => values.plain(value, keeps_filled).map(Some),
            Some((value, Content::Text(text))) if text.trim_start().starts_with('[') => values
                .text(value)
                .map(|text| Some(Plain::new(text)))
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
