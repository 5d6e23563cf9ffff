//! The result of a rendering: the text, and where each byte of it comes from.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use crate::chat::Rendered;
use crate::origin::{Key, Origins, Root};
use crate::text::{Origin, Run};

/// A rendered conversation.
#[derive(Debug, Clone)]
pub struct Rendering {
    text: String,
    runs: Vec<Run>,
    origins: Arc<Origins>,
    pub(crate) generations: Vec<(u32, u32)>,
    pub(crate) misplaced_generation: bool,
    pub(crate) unwritten: Unwritten,
}

/// The parts of a conversation of which nothing is in the text, in whatever form they are, since the template has no use for
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unwritten {
    /// The messages whose content that is, such as a system prompt.
    pub messages: Vec<usize>,
    /// Whether it is so of the tools.
    pub tools: bool,
}

/// The source of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'r> {
    /// The template's own text, or what it computed.
    Template,
    /// A special token that the template was given as a variable, such as `bos_token`.
    SpecialToken,
    /// A message.
    Message {
        /// Its number, counted from 0.
        message: usize,
        /// The message's field: "role", "content", "`reasoning_content`", "`tool_calls`" and so on.
        part: &'r str,
    },
    /// A tool, counted from 0.
    Tool(usize),
    /// A document, counted from 0.
    Document(usize),
    /// A further variable, by its name.
    Kwarg(&'r str),
}

/// Roles that templates make control tokens of.
pub(crate) const ROLES: [&str; 10] = [
    "assistant",
    "developer",
    "function",
    "ipython",
    "model",
    "observation",
    "system",
    "tool",
    "tool_results",
    "user",
];

/// A run of bytes of one origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span<'r> {
    /// The first byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
    /// Where the bytes come from.
    pub source: Source<'r>,
    /// The message that was being rendered, whatever the bytes come from.
    pub owner: Option<usize>,
    origin: u32,
}

impl Rendering {
    pub(crate) fn new(rendered: Rendered, origins: Arc<Origins>) -> Self {
        let Rendered { text, runs, generations, misplaced_generation } = rendered;
        Self { text, runs, origins, generations, misplaced_generation, unwritten: Unwritten::default() }
    }

    /// The parts of the conversation that the template leaves out, if [`Chat::checks_parts`](crate::Chat) asks for them.
    pub fn unwritten(&self) -> &Unwritten {
        &self.unwritten
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text, by value.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Where the bytes come from: spans that cover the whole text, in order. Neighbours differ in origin or
    /// in owner.
    pub fn spans(&self) -> Vec<Span<'_>> {
        let mut spans: Vec<Span<'_>> = Vec::with_capacity(self.runs.len());
        let mut start = 0;
        for run in &self.runs {
            let owner = (run.owner as usize).checked_sub(1);
            let end = run.end as usize;
            match spans.last_mut() {
                Some(last) if last.origin == run.origin.0 && last.owner == owner => last.end = end,
                _ => spans.push(Span {
                    start,
                    end,
                    source: self.source(run.origin.0),
                    owner,
                    origin: run.origin.0,
                }),
            }
            start = end;
        }
        spans
    }

    /// The bytes that are data and never control: ranges, in order, with which no control token may overlap if what
    /// conversations say is to be read as text. It is all that does not come from the template or its special tokens,
    /// except for the well-known roles, of which many templates make tokens: `'<|' + message.role + '|>'`.
    pub fn data_ranges(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut start = 0;
        for run in &self.runs {
            let range = start..run.end as usize;
            start = range.end;
            let is_data = match self.source(run.origin.0) {
                Source::Template | Source::SpecialToken => false,
                Source::Message { part: "role", .. } => !ROLES.contains(&&self.text[range.clone()]),
                _ => true,
            };
            match ranges.last_mut() {
                _ if !is_data => {}
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        ranges
    }

    /// Adds text of the template's behind the last message.
    pub(crate) fn append(&mut self, text: &str, message: usize) {
        self.text.push_str(text);
        let run = Run {
            end: self.text.len() as u32,
            origin: Origin::TEMPLATE,
            owner: message as u32 + 1,
            border: 0,
        };
        self.runs.push(run);
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The value of the input that a span comes from: `messages[2].content[0].text`. Empty for the template's text.
    pub fn path(&self, span: &Span<'_>) -> String {
        let mut text = String::new();
        for key in self.origins.path(span.origin) {
            match key {
                Key::Index(index) => {
                    let _ = write!(text, "[{index}]");
                }
                Key::Name { .. } => {
                    if !text.is_empty() {
                        text.push('.');
                    }
                    text.push_str(self.origins.key_text(key).unwrap_or_default());
                }
            }
        }
        text
    }

    /// The source that a node of the table stands for.
    pub(crate) fn source(&self, origin: u32) -> Source<'_> {
        let root = self.origins.nodes[origin as usize].root;
        match root {
            Root::Template => return Source::Template,
            Root::SpecialToken => return Source::SpecialToken,
            _ => {}
        }
        let node = &self.origins.nodes[origin as usize];
        // The message, tool and so on: above the part, or this node itself.
        let whole = if node.part == 0 { node } else { self.origins.parent_of(node.part) };
        let index = match whole.key {
            Key::Index(index) => index as usize,
            Key::Name { .. } => 0,
        };
        match root {
            Root::Message => {
                let part = self.origins.key_text(self.origins.nodes[node.part as usize].key);
                Source::Message { message: index, part: part.unwrap_or("message") }
            }
            Root::Tool => Source::Tool(index),
            Root::Document => Source::Document(index),
            _ => Source::Kwarg(self.origins.key_text(whole.key).unwrap_or_default()),
        }
    }
}
