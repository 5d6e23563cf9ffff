//! Renders conversations that come as JSON lines on standard input, and writes a line for each: the Rust side of
//! `tests/chat_templates`.
//!
//! A line is `{"id": ..., "source": ...}`, which compiles a template, or `{"id": ..., "messages": ..., ...}`, which
//! renders a conversation with it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{BufRead, Write};

use gristmill_chat_template::{Chat, ChatTemplate, Data, DateTime, NoneFields, Result, Value};
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Line<'l> {
    id: u64,
    #[serde(borrow)]
    source: Option<Cow<'l, str>>,
    #[serde(default)]
    special_tokens: HashMap<String, String>,
    #[serde(borrow)]
    messages: Option<&'l RawValue>,
    #[serde(borrow)]
    tools: Option<&'l RawValue>,
    #[serde(borrow)]
    documents: Option<&'l RawValue>,
    #[serde(borrow)]
    kwargs: Option<&'l RawValue>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    keep_none: bool,
    date: Option<String>,
}

fn main() {
    let mut templates: HashMap<u64, Result<ChatTemplate>> = HashMap::new();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("standard input can be read");
        let line: Line<'_> = serde_json::from_str(&line).expect("each line is a request");
        let answer = match &line.source {
            Some(source) => {
                let tokens = line.special_tokens.iter();
                let tokens =
                    tokens.map(|(name, token)| (name.clone(), Value::Str(token.clone().into()))).collect();
                let template = ChatTemplate::new(source).map(|template| template.with_special_tokens(tokens));
                let answer = template.as_ref().map(|_| String::new()).map_err(Clone::clone);
                templates.insert(line.id, template);
                answer
            }
            None => match &templates[&line.id] {
                Ok(template) => render(template, &line),
                Err(error) => Err(error.clone()),
            },
        };
        let answer = match answer {
            Ok(text) => serde_json::json!({ "ok": text }),
            Err(error) => {
                serde_json::json!({ "error": error.to_string(), "kind": format!("{:?}", error.kind()) })
            }
        };
        writeln!(out, "{answer}").expect("standard output can be written");
        out.flush().expect("standard output can be written");
    }
}

fn render(template: &ChatTemplate, line: &Line<'_>) -> Result<String> {
    let messages = line.messages.map_or("null", RawValue::get);
    let chat = Chat {
        tools: line.tools.map(|value| Data::Json(value.get().as_bytes())),
        documents: line.documents.map(|value| Data::Json(value.get().as_bytes())),
        kwargs: line.kwargs.map(|value| Data::Json(value.get().as_bytes())),
        add_generation_prompt: line.add_generation_prompt,
        date: line.date.as_deref().and_then(DateTime::parse),
        none_fields: if line.keep_none { NoneFields::Keep } else { NoneFields::Drop },
        ..Chat::new(Data::Json(messages.as_bytes()))
    };
    let rendering = template.render(&chat)?;
    check_spans(&rendering);
    Ok(rendering.into_text())
}

/// The spans must cover the text without gaps.
fn check_spans(rendering: &gristmill_chat_template::Rendering) {
    let mut at = 0;
    for span in rendering.spans() {
        assert_eq!(span.start, at, "spans have no gaps");
        assert!(span.end > span.start, "no span is empty");
        assert!(rendering.text().is_char_boundary(span.end), "spans end between characters");
        at = span.end;
    }
    assert_eq!(at, rendering.text().len(), "spans cover the text");
    assert!(rendering.data_ranges().is_sorted_by(|a, b| a.end < b.start), "ranges of data do not touch");
}
