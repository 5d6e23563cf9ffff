//! `_core.ChatTemplate`.

use std::ops::Range;

use gristmill_chat_template::{
    Chat, ChatTemplate as Template, Data, DateTime, ErrorKind, NoneFields, Rendering, Source, TrainOn,
    Trained, TrainedSpan, Training, Value,
};
use numpy::PyArray1;
use pyo3::prelude::*;

use super::choices::{ON_LOST_REASONING, find};
use super::encoder::Encoder;
use super::error::guarded;
use crate::error::{Error, Result};
use crate::prepare::trained_tokens;

/// A compiled chat template.
#[pyclass(frozen, module = "gristmill._core")]
pub struct ChatTemplate {
    inner: Template,
}

/// A conversation: JSON, but for the date.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Conversation {
    messages: Vec<u8>,
    tools: Option<Vec<u8>>,
    documents: Option<Vec<u8>>,
    kwargs: Option<Vec<u8>>,
    add_generation_prompt: bool,
    date: Option<String>,
    none_fields: String,
    special_tokens_in_content: String,
}

/// The parts of a conversation that are trained on.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct TrainOptions {
    train_on: Option<Choice>,
    stop_tokens: Vec<String>,
    train_reasoning: bool,
    train_tool_calls: bool,
    train_empty_reasoning: bool,
    on_lost_reasoning: String,
    final_stop: Option<String>,
    train_key: Option<String>,
}

/// "assistant", "last", "final", "all", "template", or a list of roles.
#[derive(FromPyObject)]
enum Choice {
    Name(String),
    Roles(Vec<String>),
}

type Ids<'py> = Bound<'py, PyArray1<i32>>;
type Mask<'py> = Bound<'py, PyArray1<bool>>;
/// Start and end in characters, message, part, and whether it is trained on.
type SpanItem = (usize, usize, Option<usize>, String, bool);

#[pymethods]
impl ChatTemplate {
    /// Compiles a template. The tokens are those of the tokenizer: the variables that templates get, and the spellings
    /// of its added tokens.
    #[new]
    fn new(
        py: Python<'_>,
        source: &str,
        variables: Vec<(String, Variable)>,
        special: Vec<String>,
        others: Vec<String>,
    ) -> PyResult<Self> {
        let variables = variables.into_iter().map(|(name, value)| (name, value.into())).collect();
        let inner = guarded(py, || {
            let template = Template::new(source).map_err(template_error)?.with_special_tokens(variables);
            template.with_tokens(&special, &others).map_err(template_error)
        })?;
        Ok(Self { inner })
    }

    /// Why the core does not render a template exactly; None if it does, or if the template is not valid.
    #[staticmethod]
    fn unsupported(py: Python<'_>, source: &str) -> PyResult<Option<String>> {
        Ok(guarded(py, || {
            Ok(match Template::new(source) {
                Err(error) if error.kind() == ErrorKind::Unsupported => Some(error.to_string()),
                _ => None,
            })
        })?)
    }

    /// Whether the template may print the date.
    #[getter]
    fn uses_date(&self) -> bool {
        self.inner.uses_date()
    }

    /// The text; and None, or why the core does not render this conversation exactly.
    fn render(&self, py: Python<'_>, conversation: Conversation) -> PyResult<(String, Option<String>)> {
        Ok(guarded(py, || match self.inner.render(&conversation.chat()?) {
            Ok(rendering) => Ok((rendering.into_text(), None)),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                Ok((String::new(), Some(error.to_string())))
            }
            Err(error) => Err(template_error(error)),
        })?)
    }

    /// The text, and spans that cover it.
    fn spans(
        &self,
        py: Python<'_>,
        conversation: Conversation,
        options: TrainOptions,
    ) -> PyResult<(String, Vec<SpanItem>)> {
        Ok(guarded(py, || {
            let Trained { rendering, ranges, .. } = self.trained(&conversation, options)?;
            let spans = spans_of(&rendering, &ranges);
            Ok((rendering.into_text(), spans))
        })?)
    }

    /// The ids of the text, and for each whether it is trained on.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        encoder: &Encoder,
        conversation: Conversation,
        options: TrainOptions,
    ) -> PyResult<(Ids<'py>, Mask<'py>)> {
        let (ids, mask) = guarded(py, || {
            let trained = self.trained(&conversation, options)?;
            let rendering = &trained.rendering;
            let ids = if conversation.special_tokens_in_content == "text" {
                let mut ids = Vec::new();
                encoder.inner().worker().encode_around(
                    rendering.text(),
                    &rendering.data_ranges(),
                    self.inner.written_tokens(),
                    &mut ids,
                )?;
                ids
            } else {
                encoder.inner().encode(rendering.text())?
            };
            masked(encoder, rendering.text(), &ids, &trained.spans())
        })?;
        Ok((PyArray1::from_vec(py, ids), PyArray1::from_vec(py, mask)))
    }

    /// The ids of a text that jinja2 rendered, and for each whether it is trained on. The ranges are in characters.
    #[staticmethod]
    fn encode_text<'py>(
        py: Python<'py>,
        encoder: &Encoder,
        text: &str,
        ranges: Vec<(usize, usize)>,
    ) -> PyResult<(Ids<'py>, Mask<'py>)> {
        let (ids, mask) = guarded(py, || {
            let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            let byte = |character: usize| starts.get(character).copied().unwrap_or(text.len());
            // White space in front of a block is taken for the template's.
            let span = |(start, end): &(usize, usize)| {
                let bytes = byte(*start)..byte(*end);
                let lead = text[..bytes.start].trim_end().len();
                TrainedSpan { lead, ..TrainedSpan::whole(bytes) }
            };
            let spans: Vec<_> = ranges.iter().map(span).collect();
            masked(encoder, text, &encoder.inner().encode(text)?, &spans)
        })?;
        Ok((PyArray1::from_vec(py, ids), PyArray1::from_vec(py, mask)))
    }
}

/// Ids as Python gets them, and which of them are trained on.
fn masked(
    encoder: &Encoder,
    text: &str,
    ids: &[u32],
    spans: &[TrainedSpan],
) -> Result<(Vec<i32>, Vec<bool>)> {
    let starts = encoder.inner().token_starts(text, ids)?;
    let mask = trained_tokens(spans, &starts, text.len());
    Ok((ids.iter().map(|&id| id as i32).collect(), mask))
}

impl ChatTemplate {
    pub fn inner(&self) -> &Template {
        &self.inner
    }

    fn trained(&self, conversation: &Conversation, options: TrainOptions) -> Result<Trained> {
        let chat = conversation.chat()?;
        match options.training()? {
            None => self.inner.render(&chat).map(Trained::from).map_err(template_error),
            Some(training) => self.inner.render_trained(&chat, &training).map_err(template_error),
        }
    }
}

impl TrainOptions {
    /// How to train; None if nothing is trained on.
    pub fn training(self) -> Result<Option<Training>> {
        let Self { train_on, stop_tokens, on_lost_reasoning, final_stop, train_key, .. } = self;
        let (reasoning, tool_calls) = (self.train_reasoning, self.train_tool_calls);
        let empty_reasoning = self.train_empty_reasoning;
        let on = match train_on {
            None => return Ok(None),
            Some(Choice::Roles(roles)) => TrainOn::Roles(roles),
            Some(Choice::Name(name)) => match &*name {
                "assistant" => TrainOn::Assistant,
                "last" => TrainOn::Last,
                "final" => TrainOn::Final,
                "all" => TrainOn::All,
                "template" => TrainOn::Template,
                _ => {
                    return Err(Error::Argument(format!(
                        "train_on={name:?}: expected one of 'assistant', 'last', 'final', 'all', 'template', or a list of roles"
                    )));
                }
            },
        };
        let on_lost_reasoning = find("on_lost_reasoning", &on_lost_reasoning, &ON_LOST_REASONING)?;
        Ok(Some(Training {
            on,
            reasoning,
            tool_calls,
            empty_reasoning,
            stop_tokens,
            final_stop,
            train_key,
            on_lost_reasoning,
        }))
    }
}

impl Conversation {
    fn chat(&self) -> Result<Chat<'_>> {
        Ok(Chat {
            tools: self.tools.as_deref().map(Data::Json),
            documents: self.documents.as_deref().map(Data::Json),
            kwargs: self.kwargs.as_deref().map(Data::Json),
            add_generation_prompt: self.add_generation_prompt,
            date: self.date.as_deref().map(parse_date).transpose()?,
            none_fields: if self.none_fields == "keep" { NoneFields::Keep } else { NoneFields::Drop },
            ..Chat::new(Data::Json(&self.messages))
        })
    }
}

/// The date that a template prints.
pub fn parse_date(date: &str) -> Result<DateTime> {
    DateTime::parse(date).ok_or_else(|| {
        Error::Argument(format!(
            "date={date:?}: expected a date such as '2026-11-26' or '2026-11-26T12:00:00'"
        ))
    })
}

/// A variable that templates get: a token, or a list of tokens.
#[derive(FromPyObject)]
enum Variable {
    Token(String),
    Tokens(Vec<String>),
}

impl From<Variable> for Value<'static> {
    fn from(variable: Variable) -> Self {
        match variable {
            Variable::Token(token) => Self::Str(token.into()),
            Variable::Tokens(tokens) => {
                Self::List(tokens.into_iter().map(|token| Self::Str(token.into())).collect())
            }
        }
    }
}

fn template_error(error: gristmill_chat_template::Error) -> Error {
    let what = if error.kind() == ErrorKind::Unsupported { "the core does not render exactly: " } else { "" };
    Error::Template(format!("{what}{error}"))
}

/// Spans that cover the text, cut where training begins and ends.
fn spans_of(rendering: &Rendering, ranges: &[Range<usize>]) -> Vec<SpanItem> {
    let text = rendering.text();
    let mut items = Vec::new();
    let (mut bytes, mut characters) = (0, 0);
    let mut borders = ranges.iter().flat_map(|range| [range.start, range.end]).peekable();
    let mut trained = false;
    for span in rendering.spans() {
        let (message, part) = match span.source {
            Source::Message { message, part } => (Some(message), part),
            Source::Tool(_) => (None, "tools"),
            Source::Document(_) => (None, "documents"),
            Source::Kwarg(name) => (None, name),
            Source::Template | Source::SpecialToken => (span.owner, "template"),
        };
        while bytes < span.end {
            while borders.next_if(|border| *border <= bytes).is_some() {
                trained = !trained;
            }
            let end = borders.peek().map_or(span.end, |border| span.end.min(*border));
            let start = characters;
            characters += text[bytes..end].chars().count();
            items.push((start, characters, message, part.to_owned(), trained));
            bytes = end;
        }
    }
    items
}
