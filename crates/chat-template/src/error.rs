//! The one error of this crate.

use std::fmt;

/// The kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The template is not valid Jinja: jinja2 refuses it as well.
    Syntax,
    /// The template is valid, but uses something that this engine does not render exactly. Render it with jinja2.
    Unsupported,
    /// The template called `raise_exception`.
    Raised,
    /// An operation failed where jinja2 raises too: an undefined value was used, types do not fit, and so on.
    Runtime,
    /// A bound on steps, memory, output or recursion was exceeded.
    Limit,
    /// Messages, tools, documents or keyword arguments are not what a chat template takes.
    Input,
    /// The template prints today's date, and no date was given.
    Date,
    /// The ranges to train on cannot be derived from this template and conversation.
    Mask,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    message: String,
    line: Option<u32>,
}

/// An error, with the line of the template where it happened, if it happened in one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error that no line is known of yet.
    #[cold]
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), line: None }))
    }

    /// An error of Python's: what jinja2 would raise here.
    #[cold]
    pub(crate) fn runtime(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Runtime, message)
    }

    /// Something that jinja2 renders and this engine does not.
    #[cold]
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// The same error at this line, unless a line is known already: the innermost one stays.
    #[cold]
    pub(crate) fn at(mut self, line: u32) -> Self {
        self.0.line.get_or_insert(line);
        self
    }

    /// The same error with advice behind its message.
    pub(crate) fn with_advice(mut self, advice: &str) -> Self {
        self.0.message = format!("{}; {advice}", self.0.message);
        self
    }

    /// The kind of fault.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message, without the line.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The line of the template, counted from 1.
    pub fn line(&self) -> Option<u32> {
        self.0.line
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.line {
            Some(line) => write!(f, "line {line} of the template: {}", self.0.message),
            None => f.write_str(&self.0.message),
        }
    }
}

impl std::error::Error for Error {}
