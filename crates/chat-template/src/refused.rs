//! The forms of a conversation that a template takes which fails at it: each of them is tried.

use crate::chat::Session;
use crate::contents::{part_of, with_content, without_empty_calls};
use crate::error::{Error, ErrorKind, Result};
use crate::reasoning::{Written, field};
use crate::text::{Origin, Str};
use crate::value::Val;

/// The forms of contents that are tried.
#[derive(Clone, Copy)]
enum Form {
    String,
    Empty,
    Parts,
}

const FORMS: [(Form, &str); 3] = [
    (Form::String, "is one string"),
    (Form::Empty, "is \"\""),
    (Form::Parts, "is a list of parts, [{\"type\": \"text\", \"text\": ...}]"),
];

/// The error of a conversation that a template refuses, with what it would take.
#[cold]
pub(crate) fn explained(session: &mut Session<'_>, error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::Raised | ErrorKind::Runtime) {
        return error;
    }
    let contents = FORMS.iter().find_map(|(form, what)| {
        let first = taken(session, *form).ok()??;
        Some(format!("the content of messages[{first}] {what}"))
    });
    let found = contents.or_else(|| {
        let (messages, first) = without_empty_calls(session).ok()??;
        session.render(messages, session.add_generation_prompt).ok()?;
        Some(format!("the \"tool_calls\" of messages[{first}], an empty list, are left out"))
    });
    let found = found.or_else(|| {
        session
            .takes_without_tools()
            .then(|| "its tools are an empty list, [], where there are none".to_owned())
    });
    match found {
        Some(found) => error.with_advice(&format!("the template takes the conversation if {found}")),
        None => error,
    }
}

/// The first message whose content is in another form than it could be, if the template takes all such contents in this form.
fn taken(session: &mut Session<'_>, form: Form) -> Result<Option<usize>> {
    let (heap, mut first) = (session.heap, None);
    let mut messages = session.messages.to_vec();
    for (index, message) in messages.iter_mut().enumerate() {
        let Val::Dict(dict) = *message else { continue };
        let content = field(dict, "content");
        let is_other = match (form, &content) {
            (Form::String, None | Some(Val::Str(_) | Val::None(_))) => false,
            (Form::Empty, None | Some(Val::None(_))) | (Form::Parts, Some(Val::Str(_))) => true,
            (form, _) => matches!(form, Form::String),
        };
        if !is_other {
            continue;
        }
        let origin = content.map_or(Origin::TEMPLATE, |content| content.origin());
        first = first.or(Some((index, origin)));
        let other = match form {
            Form::String => heap.str(Str::new("words", origin))?,
            Form::Empty => heap.str(Str::EMPTY)?,
            Form::Parts => part_of(session, heap.str(Str::new("words", origin))?)?,
        };
        *message = with_content(session, dict, other)?;
    }
    let Some((first, origin)) = first else { return Ok(None) };
    let rendered = session.render(heap.slice(&messages)?, session.add_generation_prompt)?;
    let is_written =
        matches!(form, Form::Empty) || Written::of(&session.finish(rendered)?).has_node(origin.0);
    Ok(is_written.then_some(first))
}
