//! Conversations: rendered by a chat template, which says where every byte comes from and what is trained on.

use std::borrow::Cow;

use gristmill_chat_template::{
    Chat, ChatTemplate, Data, DateTime, NoneFields, SampleUnit, StringArguments, TrainOn, Trained, Training,
};

use super::field::Field;
use super::instruction::Columns;
use super::turns::{self, Fit};
use super::{Sample, Samples, message, share_gpt};
use crate::format::{self, Content, Step, Value, Values, View};

/// How records become rendered conversations.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is an argument of its own")]
pub struct Conversations {
    /// How many of the projection's paths are those of the filter.
    pub filter_paths: usize,
    /// The template.
    pub template: ChatTemplate,
    /// The key of the messages.
    pub messages: Field,
    /// The key of further messages, which alone are trained on.
    pub completion: Option<Field>,
    /// Or the keys of parts that messages are made of.
    pub columns: Option<Columns>,
    /// The tools: a JSON list.
    pub tools: Own,
    /// Further variables of the template: a JSON object.
    pub kwargs: Own,
    /// The treatment of arguments of calls that are strings.
    pub string_arguments: StringArguments,
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
    /// The key of a system prompt beside the messages.
    pub system: Option<Field>,
    /// Whether no special token is recognised in what messages say.
    pub protects_content: bool,
    /// Whether a conversation without trained tokens is left out.
    pub drops_untrained: bool,
    /// Whether images come with the text.
    pub has_images: bool,
}

/// The samples that are made of the messages of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// All of them.
    Samples,
    /// The sample that has all messages.
    Whole,
    /// The same, of which nothing is trained on.
    Text,
}

/// Where something beside the messages comes from.
#[derive(Debug, Clone)]
pub enum Own {
    /// All conversations have this JSON, if any.
    Fixed(Option<Vec<u8>>),
    /// The record has its own under this key.
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

/// Messages, tools or variables of a conversation.
#[derive(Clone)]
pub(crate) enum Given<'a> {
    /// As the record holds them.
    View(View<'a>),
    /// Made of what it holds.
    Value(Value<'a>),
    /// In a string that it holds.
    Text(Cow<'a, str>),
}

/// The name of tools in messages.
const TOOLS: &str = "a list of tools";

/// The argument that reads messages of `ShareGPT`.
const SHARE_GPT: &str = "format=\"sharegpt\"";

/// The argument that names the key of a completion.
const COMPLETION: &str = "completion_field";

/// The keys of an object of [`MessageFormat::ChatMl`] that may hold the list; the first that is there counts.
const CHATML_KEYS: [&str; 3] = ["conversations", "messages", "conversation"];

impl Conversations {
    /// Appends the samples of a record's conversation. The error says what was expected and found.
    pub(super) fn render(
        &self,
        values: &Values<'_>,
        samples: &mut Samples,
        mut fit: Option<&mut Fit>,
    ) -> Result<(), String> {
        let messages = self.messages(values)?;
        for rendered in self.train(&messages, values)? {
            let (end, sample) = (rendered.messages_end, samples.add());
            self.put(rendered, sample);
            if let Some(fit) = fit.as_deref_mut() {
                self.shorten(sample, &messages, end, values, fit)?;
            }
        }
        if samples.is_empty() && !self.drops_untrained {
            return Err("expected a message of the assistant to train on, found none; set on_untrained=\"drop\" to leave out such \
                        records".to_owned());
        }
        Ok(())
    }

    /// Leaves out the earliest turns of a sample of the first `end` messages, as few as let the rest fit; none if the last
    /// round does not. The error says what was expected and found.
    fn shorten(
        &self,
        sample: &mut Sample,
        messages: &Given<'_>,
        end: usize,
        values: &Values<'_>,
        fit: &mut Fit,
    ) -> Result<(), String> {
        let guarded = self.template.written_tokens();
        if fit.takes(sample, guarded) {
            return Ok(());
        }
        let Value::List(all) = self.in_memory(messages.clone())? else { return Ok(()) };
        let roles = messages.roles();
        let end = end.min(all.len()).min(roles.len());
        let roles = &roles[..end];
        let system = turns::count_system(roles);
        let rest = fit.first_start(&turns::starts(roles, system), guarded, |start| {
            let rest = Value::List(all[..system].iter().chain(&all[start..end]).cloned().collect());
            let mut shorter = Sample::default();
            for rendered in self.train_as(&Given::Value(rest), values, Wanted::Whole)? {
                self.put(rendered, &mut shorter);
            }
            Ok(shorter)
        })?;
        if let Some((start, shorter)) = rest {
            let dropped = ((start - system) as u32, sample.ids.len() - shorter.ids.len());
            *sample = Sample { dropped, ..shorter };
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
    pub(crate) fn put(&self, rendered: Trained, sample: &mut Sample) {
        sample.trained = rendered.spans();
        sample.weights.clone_from(&rendered.weights);
        sample.data = if self.protects_content { rendered.rendering.data_ranges() } else { Vec::new() };
        sample.text = rendered.rendering.into_text();
    }

    /// The samples of these messages of a record.
    pub(crate) fn train(&self, messages: &Given<'_>, values: &Values<'_>) -> Result<Vec<Trained>, String> {
        self.train_as(messages, values, Wanted::Samples)
    }

    /// Puts a conversation of these messages in an empty sample, of which nothing is trained on.
    pub(crate) fn render_untrained(
        &self,
        messages: &Given<'_>,
        values: &Values<'_>,
        sample: &mut Sample,
    ) -> Result<(), String> {
        for rendered in self.train_as(messages, values, Wanted::Text)? {
            self.put(rendered, sample);
        }
        Ok(())
    }

    fn train_as(
        &self,
        messages: &Given<'_>,
        values: &Values<'_>,
        wanted: Wanted,
    ) -> Result<Vec<Trained>, String> {
        let tools = match self.tools_beside(values) {
            Some((tools, key)) => given(tools, &key, TOOLS, '[')?,
            None => self.tools.of(values, TOOLS, '[')?,
        };
        let kwargs = self.kwargs.of(values, "an object of variables of the template", '{')?;
        let chat = Chat {
            tools: tools.as_ref().map(Given::data).or(self.tools.fixed()),
            kwargs: kwargs.as_ref().map(Given::data).or(self.kwargs.fixed()),
            string_arguments: self.string_arguments,
            checks_parts: true,
            refuses_media: self.training.is_some() && !self.has_images,
            add_generation_prompt: self.add_generation_prompt,
            date: self.date,
            none_fields: self.none_fields,
            ..Chat::new(messages.data())
        };
        let mut training = self.training.as_ref().filter(|_| wanted != Wanted::Text).map(Cow::Borrowed);
        if let (Some(training), Some(completion), Given::Value(Value::List(all))) =
            (&mut training, &self.completion, messages)
        {
            let trained = list_of(completion, completion.of(values), values, COMPLETION)?.items().count();
            // Turns of the completion may be left out, too.
            training.to_mut().on = TrainOn::From(all.len().saturating_sub(trained));
        }
        let rendered = match &training {
            Some(training) if wanted == Wanted::Whole => {
                self.template.render_whole(&chat, training, self.unit).map(|sample| vec![sample])
            }
            Some(training) => self.template.render_samples(&chat, training, self.unit),
            None => self.template.render(&chat).map(|rendering| vec![Trained::from(rendering)]),
        };
        rendered.map_err(|error| match self.without_role(messages) {
            Some(found) => format!("{found}: {error}"),
            None => error.to_string(),
        })
    }

    /// The message about a conversation that the template refuses, if its first message has neither role nor content.
    fn without_role(&self, messages: &Given<'_>) -> Option<String> {
        if self.format != MessageFormat::Messages || !messages.lacks_role() {
            return None;
        }
        let Ok(Value::List(all)) = self.in_memory(messages.clone()) else { return None };
        let first = match all.first() {
            Some(Value::Object(first)) if message::get(first, "content").is_none() => first,
            _ => return None,
        };
        let keys: Vec<_> = first.iter().map(|(key, _)| &**key).collect();
        let is_share_gpt = ["from", "value"].iter().all(|key| message::get(first, key).is_some());
        let is_format = self.takes_format() && is_share_gpt;
        let advice = if is_format { format!("; set {SHARE_GPT}") } else { String::new() };
        Some(format!("expected a role and content in message 0, found the keys {keys:?}{advice}"))
    }

    /// Whether the sample has an argument for the format of its messages.
    fn takes_format(&self) -> bool {
        self.format == MessageFormat::Messages && self.completion.is_none()
    }

    /// The messages of a record, as templates take them.
    pub(crate) fn messages<'a>(&self, values: &Values<'a>) -> Result<Given<'a>, String> {
        if let Some(columns) = &self.columns {
            return columns.messages(values).map(Given::Value);
        }
        let mut found = self.messages.of(values);
        let mut system = self.system.as_ref().and_then(|system| system.of(values));
        if let (MessageFormat::ChatMl, Some(object)) = (self.format, found) {
            let inside = |key: &str| object.step(&Step::Key(key.to_owned()));
            if let Some(list) = CHATML_KEYS.into_iter().find_map(inside) {
                (found, system) = (Some(list), inside("system"));
            }
        }
        let argument = if self.completion.is_some() { "prompt_field" } else { "field" };
        let list = list_of(&self.messages, found, values, argument).map_err(|error| match found {
            None if self.takes_format() => {
                format!("{error}, and set {SHARE_GPT} if its messages have from and value")
            }
            _ => error,
        })?;
        let system = system.filter(|system| system.content() != Content::Null);
        let system = system.map(format::text).transpose().map_err(|found| {
            let key = self.system.as_ref().map_or("system", Field::key);
            format!("expected a string under the key {key:?}, found {found}")
        })?;
        let system = system.filter(|system| !system.is_empty());
        if self.format == MessageFormat::Messages {
            if system.is_none() && self.completion.is_none() {
                return Ok(Given::View(list));
            }
            let mut messages = self.in_memory(Given::View(list))?;
            if let Some(completion) = &self.completion {
                let list = list_of(completion, completion.of(values), values, COMPLETION)?;
                messages = message::joined(messages, self.in_memory(Given::View(list))?, completion.key())?;
            }
            return match system {
                None => Ok(Given::Value(messages)),
                Some(system) => message::with_system(messages, system).map(Given::Value),
            };
        }
        let takes_both = self.format == MessageFormat::ChatMl;
        let train_key = self.training.as_ref().and_then(|training| training.train_key.as_deref());
        let messages = self.in_memory(Given::View(list))?;
        share_gpt::messages(messages, takes_both, system, train_key).map(Given::Value)
    }

    /// The tools beside the messages in an object of [`MessageFormat::ChatMl`], if the sample names none, and their key.
    fn tools_beside<'a>(&self, values: &Values<'a>) -> Option<(View<'a>, String)> {
        let (MessageFormat::ChatMl, Own::Fixed(None)) = (self.format, &self.tools) else { return None };
        let tools = self.messages.of(values)?.step(&Step::Key("tools".to_owned()))?;
        Some((tools, format!("{}.tools", self.messages.key())))
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

impl<'a> Given<'a> {
    /// Whether there are messages, and the first one has no role.
    fn lacks_role(&self) -> bool {
        match self {
            Self::View(list) => list.items().next().is_some_and(|message| message.inside("role").is_none()),
            Self::Value(Value::List(messages)) => {
                messages.first().is_some_and(|message| message::role(message).is_empty())
            }
            Self::Value(_) | Self::Text(_) => false,
        }
    }

    /// The role of each message; an empty one of a message without.
    pub(crate) fn roles(&self) -> Vec<Cow<'a, str>> {
        let role = |message: View<'a>| match message.inside("role").map(View::content) {
            Some(Content::Text(role)) => role,
            _ => Cow::default(),
        };
        match self {
            Self::View(list) => list.items().map(role).collect(),
            Self::Value(Value::List(messages)) => messages.iter().map(message::role).collect(),
            Self::Value(_) | Self::Text(_) => Vec::new(),
        }
    }

    fn data(&self) -> Data<'_> {
        match self {
            Self::View(view) => Data::View(*view),
            Self::Value(value) => Data::Value(value),
            Self::Text(text) => Data::Json(text.as_bytes()),
        }
    }
}

impl Own {
    fn fixed(&self) -> Option<Data<'_>> {
        if let Self::Fixed(Some(json)) = self { Some(Data::Json(json)) } else { None }
    }

    /// The record's own: a value that begins with `bracket`, or a string that holds one. Null and none at all mean that there
    /// is nothing. `what` is for messages.
    fn of<'a>(&self, values: &Values<'a>, what: &str, bracket: char) -> Result<Option<Given<'a>>, String> {
        let Self::Record(field) = self else { return Ok(None) };
        field.of(values).map_or(Ok(None), |value| given(value, field.key(), what, bracket))
    }
}

/// A value of a record that begins with `bracket`, or is a string with such JSON; none if it is null or empty.
fn given<'a>(value: View<'a>, key: &str, what: &str, bracket: char) -> Result<Option<Given<'a>>, String> {
    match value.content() {
        Content::Null => Ok(None),
        Content::Array if bracket == '[' => Ok(Some(Given::View(value))),
        Content::Object if bracket == '{' => Ok(Some(Given::View(value))),
        Content::Text(text) if text.trim_start().starts_with(bracket) => format::text(value)
            .map(|text| Some(Given::Text(text)))
            .map_err(|found| format!("expected {what} under the key {key:?}, found {found}")),
        Content::Text(text) if text.trim().is_empty() => Ok(None),
        found => Err(format!(
            "expected {what} under the key {key:?}, or a string with such JSON, found {}",
            found.name()
        )),
    }
}

/// Whether there is a string.
fn is_text(found: Option<View<'_>>) -> bool {
    found.is_some_and(|found| matches!(found.content(), Content::Text(_)))
}

/// The list of messages that was found under a key.
fn list_of<'a>(
    field: &Field,
    found: Option<View<'a>>,
    values: &Values<'_>,
    argument: &str,
) -> Result<View<'a>, String> {
    let what = "a list of messages";
    let found = found.ok_or_else(|| field.missing(values, what, argument))?;
    if found.is_array() {
        return Ok(found);
    }
    let content = found.content();
    let advice = match &content {
        Content::Text(text) if text.trim_start().starts_with('[') => {
            ": write the list itself, or give the column the type JSON"
        }
        Content::Text(_) if argument == COMPLETION => {
            ": write it as a message, [{\"role\": \"assistant\", \"content\": ...}]"
        }
        Content::Text(_) => "; gm.Text reads texts that are no conversations",
        Content::Object if ["role", "from"].iter().any(|key| is_text(found.inside(key))) => {
            ": write a list of one message"
        }
        _ if ["content", "value"].iter().any(|key| found.inside(key).is_some_and(View::is_array)) => {
            " of lists: write a list of objects"
        }
        _ => "",
    };
    Err(format!("expected {what} under the key {:?}, found {}{advice}", field.key(), content.name()))
}
