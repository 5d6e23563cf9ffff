//! Content that a template does not take: in parts or an object, which it prints as Python spells them or leaves out; of a
//! message of a role that it does not know, which many templates pass over; or under another key.

use std::cell::LazyCell;

use crate::chat::Session;
use crate::error::{Error, ErrorKind, Result};
use crate::reasoning::{Written, field};
use crate::rendering::Rendering;
use crate::text::{Origin, Str};
use crate::value::{Dict, Val};

/// Words in the types of parts that are no texts.
const MEDIA: [&str; 3] = ["image", "video", "audio"];

/// The keys under which a message, or a part of one, has images, videos or sounds.
pub const MEDIA_KEYS: [&str; 12] = [
    "image",
    "images",
    "image_url",
    "image_urls",
    "video",
    "videos",
    "video_url",
    "video_urls",
    "audio",
    "audios",
    "audio_url",
    "input_audio",
];

/// The roles whose messages a template writes, or leaves out on purpose: many take no system prompt.
const ROLES: [&str; 4] = ["user", "assistant", "system", "developer"];

/// The keys under which data sets have what a message says, in place of its content. Others name or order it, and a message
/// without content may say nothing.
const SAYING: [&str; 9] =
    ["text", "value", "message", "body", "utterance", "prompt", "response", "question", "answer"];

/// Checks that the words of messages of other roles, and of content in parts and in objects, are in the text, and that parts,
/// and objects in what a user or a model says, are not printed as Python spells them.
pub(crate) fn check(session: &mut Session<'_>, rendering: &Rendering) -> Result<()> {
    let written = LazyCell::new(|| Written::of(rendering));
    for index in 0..session.messages.len() {
        let Val::Dict(message) = session.messages[index] else { continue };
        match field(message, "content") {
            // If nothing is written, nothing is trained on, which is another error.
            None | Some(Val::None(_)) if !rendering.text().is_empty() => {
                check_keys(session, &written, index, message)?;
            }
            Some(Val::Str(text)) => {
                if let Some(role) = unknown_role(message)
                    && is_lost(session, &written, *text)
                {
                    return Err(not_the_role(index, &role));
                }
            }
            Some(content @ (Val::List(_) | Val::Dict(_))) => {
                // The result of a tool is written as it is, as `transformers` writes it.
                let is_result = unknown_role(message).is_some() && !holds_parts(&content);
                if !is_result && prints(&written, &content) {
                    let what = if let Val::Dict(_) = content { "object" } else { "list" };
                    return Err(not_words(
                        index,
                        &content,
                        &format!("prints the {what} as Python spells it"),
                    ));
                }
                let Some(found) = lost(session, &written, &content) else { continue };
                if takes_string(session, index, content.origin())? {
                    return Err(not_words(index, &content, &found));
                }
                // It leaves out the message, however it is written.
                if let Some(role) = unknown_role(message) {
                    return Err(not_the_role(index, &role));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The role of a message, for messages, if it is none that templates leave out on purpose.
fn unknown_role(message: &Dict<'_>) -> Option<String> {
    match field(message, "role") {
        Some(Val::Str(role)) if ROLES.contains(&role.text) => None,
        Some(Val::Str(role)) => Some(format!("{:?}", role.text)),
        _ => Some("none".to_owned()),
    }
}

/// The error of a message that is left out because of its role.
fn not_the_role(index: usize, role: &str) -> Error {
    Error::new(
        ErrorKind::Input,
        format!(
            "messages[{index}]: expected a role that the template knows under its key \"role\", found {role}, and the template \
             leaves out its content: correct the role, such as \"user\", or leave the message out"
        ),
    )
}

/// The error of content in parts, or in an object.
fn not_words(index: usize, content: &Val<'_>, found: &str) -> Error {
    let (kind, as_string) = if let Val::Dict(_) = content {
        ("objects", "such as its JSON")
    } else {
        ("parts", "its texts joined")
    };
    Error::new(
        ErrorKind::Input,
        format!(
            "messages[{index}]: expected the words of its content in the text, found that the template takes no {kind} and \
             {found}: write the content as one string, {as_string}, or give a template that takes {kind}"
        ),
    )
}

/// Checks that the template writes something of a message without content, unless it says nothing.
fn check_keys(session: &Session<'_>, written: &Written<'_>, index: usize, message: &Dict<'_>) -> Result<()> {
    let mut lost = None;
    for (key, value) in message.entries {
        match (key, value) {
            (_, Val::List(_) | Val::Dict(_)) => return Ok(()), // such as the calls of a tool
            (Val::Str(key), Val::Str(text)) if !text.text.trim().is_empty() && SAYING.contains(&key.text) => {
                if !is_lost(session, written, **text) {
                    return Ok(());
                }
                lost = lost.or(Some(key.text));
            }
            _ => {}
        }
    }
    let Some(key) = lost else { return Ok(()) };
    Err(Error::new(
        ErrorKind::Input,
        format!(
            "messages[{index}]: expected its words under the key \"content\", found none there, and the template leaves out those \
             under {key:?}: rename the key"
        ),
    ))
}

/// Checks that no part of a message is an image, a video or a sound, for which a template writes tokens, and that nothing
/// beside its content is one.
pub(crate) fn check_media(messages: &[Val<'_>]) -> Result<()> {
    for (index, message) in messages.iter().enumerate() {
        let Val::Dict(message) = message else { continue };
        let content = field(message, "content");
        let parts = if let Some(Val::List(content)) = content { content.items } else { &[] };
        let Some(found) = parts.iter().find_map(kind_of_media).or_else(|| key_of_media(message)) else {
            continue;
        };
        return Err(Error::new(
            ErrorKind::Input,
            format!(
                "messages[{index}]: expected parts of texts, found {found}: nothing of it is read here, and what the \
                 template writes for it would be trained on blind; gm.ImageText reads conversations with images"
            ),
        ));
    }
    Ok(())
}

/// The type of a part that is no text, or the key under which it has more than its text.
fn kind_of_media(item: &Val<'_>) -> Option<String> {
    let Val::Dict(part) = item else { return None };
    match field(part, "type") {
        Some(Val::Str(kind)) if MEDIA.iter().any(|media| kind.text.contains(media)) => {
            Some(format!("one of type {:?}", kind.text))
        }
        _ => key_of_media(part),
    }
}

/// The first key of media under which a message or a part has something.
fn key_of_media(members: &Dict<'_>) -> Option<String> {
    let key =
        MEDIA_KEYS.into_iter().find(|key| field(members, key).is_some_and(|value| !is_empty(&value)))?;
    Some(format!("something under {key:?}"))
}

/// Whether a value says nothing: a struct of Parquet has all keys of all others.
fn is_empty(value: &Val<'_>) -> bool {
    match value {
        Val::None(_) | Val::Bool(false, _) => true,
        Val::Str(text) => text.text.is_empty(),
        Val::List(list) => list.items.iter().all(is_empty),
        Val::Dict(object) => object.entries.iter().all(|(_, value)| is_empty(value)),
        _ => false,
    }
}

/// Whether content is a list in which there may be parts.
fn holds_parts(content: &Val<'_>) -> bool {
    matches!(content, Val::List(list) if list.items.iter().any(|item| matches!(item, Val::Dict(_))))
}

/// Whether content, or a part of it, is in the text as Python spells it, or is a list of what no template takes for words.
/// JSON begins in another way, unless Python takes its quotes for the first string, which has an apostrophe.
fn prints(written: &Written<'_>, content: &Val<'_>) -> bool {
    let begins = |value: &Val<'_>, begin: &str| written.begins(value.origin().0, begin);
    let is_quoted = |string: Option<&Val<'_>>| {
        let text = string.and_then(Val::as_str).map_or("", |string| string.text);
        text.contains('\'') && !text.contains('"')
    };
    match content {
        Val::List(list) => {
            let is_part = |item: &Val<'_>| matches!(item, Val::Dict(_)) && begins(item, "{'");
            let is_json = begins(content, "[{\"") || begins(content, "[\"") && !is_quoted(list.items.first());
            begins(content, "[") && !is_json || list.items.iter().any(is_part)
        }
        Val::Dict(object) => {
            let first = object.entries.first().map(|(key, _)| key);
            begins(content, "{") && (!begins(content, "{\"") || is_quoted(first))
        }
        _ => false,
    }
}

/// How a message names the words of content that the rendering lacks. None: it has them, or there are none.
fn lost(session: &Session<'_>, written: &Written<'_>, content: &Val<'_>) -> Option<String> {
    if let Val::List(list) = content {
        let mut texts = list.items.iter().map(text_of);
        if let Some(part) = texts.position(|text| text.is_some_and(|text| is_lost(session, written, text))) {
            return Some(format!("leaves out the text of part {part}"));
        }
    }
    let says = match content {
        Val::List(list) => list.items.iter().any(is_object),
        _ => is_object(content),
    };
    let is_there = || {
        let origin = content.origin().0;
        written.has_string(origin, &session.origins) || written.has_within(origin, &session.origins)
    };
    (says && !is_there()).then(|| "leaves it out".to_owned())
}

/// Whether a value is an object that is no part of content.
fn is_object(value: &Val<'_>) -> bool {
    let Val::Dict(object) = value else { return false };
    let of_part = |key: &Val<'_>| {
        key.as_str()
            .is_some_and(|key| key.text == "type" || MEDIA.iter().any(|media| key.text.contains(media)))
    };
    !object.entries.is_empty() && !object.entries.iter().any(|(key, _)| of_part(key))
}

/// Whether a string has words of which the rendering has nothing.
fn is_lost(session: &Session<'_>, written: &Written<'_>, text: Str<'_>) -> bool {
    !text.text.trim().is_empty() && !written.has_string(text.origin().0, &session.origins)
}

/// The text of a part.
fn text_of<'a>(item: &Val<'a>) -> Option<Str<'a>> {
    let part = match item {
        Val::Str(text) => return Some(**text),
        Val::Dict(part) => part,
        _ => return None,
    };
    let is_text = field(part, "type").is_none_or(|kind| kind.is_text("text"));
    match field(part, "text") {
        Some(Val::Str(text)) if is_text => Some(*text),
        _ => None,
    }
}

/// Whether the template writes the content of a message if it is a string.
fn takes_string(session: &mut Session<'_>, index: usize, content: Origin) -> Result<bool> {
    let Val::Dict(message) = session.messages[index] else { return Ok(false) };
    let string = session.heap.str(Str::new("words", content))?;
    let entries: Vec<_> = message
        .entries
        .iter()
        .map(|(key, value)| (*key, if key.is_text("content") { string } else { *value }))
        .collect();
    let dict = Dict::new(session.heap.slice(&entries)?, message.origin);
    let messages = session.with_message(index, Val::Dict(session.heap.alloc(dict)?))?;
    let Ok(rendered) = session.render(messages, session.add_generation_prompt) else { return Ok(false) };
    let rendering = session.finish(rendered)?;
    Ok(Written::of(&rendering).pieces.iter().any(|(origin, _)| *origin == content.0))
}
