//! Chat templates, rendered exactly as `transformers` renders them, with the origin of every byte, and from that the
//! ranges to train on. The README follows a conversation through the crate and states the rules.

#![forbid(unsafe_code)]
// Start, stop and step are what Python calls the parts of a slice.
#![allow(clippy::similar_names)]

mod ast;
mod attribute;
mod chat;
mod contents;
mod error;
mod eval;
mod filters;
mod format;
mod heap;
mod input;
mod is_tests;
mod json_text;
mod lexer;
mod mask;
mod methods;
mod number;
mod origin;
mod parser;
mod program;
mod reasoning;
mod refused;
mod rendering;
mod resolve;
mod scope;
mod strftime;
mod text;
mod unicode;
mod value;

pub use chat::{Chat, ChatTemplate};
pub use contents::MEDIA_KEYS;
pub use error::{Error, ErrorKind, Result};
pub use gristmill_json::{Value, View};
pub use heap::Limits;
pub use input::{Data, NoneFields, StringArguments};
pub use mask::{SampleUnit, TrainOn, Trained, TrainedSpan, Training};
pub use reasoning::{LostReasoning, OnLostReasoning};
pub use rendering::{Rendering, Source, Span, Unwritten};
pub use strftime::DateTime;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
