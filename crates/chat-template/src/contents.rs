//! Content that a template does not take: in parts, of which it prints the list as Python spells it or leaves out words;
//! of a message of a role that it does not know, which many templates pass over; or under another key.

use crate::chat::Session;
use crate::error::{Error, ErrorKind, Result};
use crate::reasoning::{Written, field};
use crate::rendering::Rendering;
use crate::text::Str;
use crate::value::{Dict, List, Val};

/// Words in the types of parts that are no texts.
const MEDIA: [&str; 3] = ["image", "video", "audio"];

/// The roles whose messages a template writes, or leaves out on purpose: many take no system prompt.
const ROLES: [&str; 4] = ["user", "assistant", "system", "developer"];

/// The keys under which data sets have what a message says, in place of its content. Others name or order it, and a message
/// without content may say nothing.
const SAYING: [&str; 9] =
    ["text", "value", "message", "body", "utterance", "prompt", "response", "question", "answer"];

/// Checks that the words of messages of other roles, and of content in parts, are in the text, and that the parts are not
/// printed as Python spells them.
pub(crate) fn check(session: &mut Session<'_>, rendering: &Rendering) -> Result<()> {
    let mut written = None;
    for index in 0..session.messages.len() {
        let Val::Dict(message) = session.messages[index] else { continue };
        let content = match field(message, "content") {
            Some(Val::List(content)) => content,
            Some(Val::Dict(content)) => {
                let written = written.get_or_insert_with(|| Written::of(rendering));
                if written.begins(content.origin.0, "{'") {
                    return Err(not_words(index, "prints the object as Python spells it"));
                }
                continue;
            }
            // If nothing is written, nothing is trained on, which is another error.
            None | Some(Val::None(_)) if !rendering.text().is_empty() => {
                let written = written.get_or_insert_with(|| Written::of(rendering));
                check_keys(session, written, index, message)?;
                continue;
            }
            Some(Val::Str(text)) => {
                let role = match field(message, "role") {
                    Some(Val::Str(role)) if ROLES.contains(&role.text) => continue,
                    Some(Val::Str(role)) => format!("{:?}", role.text),
                    _ => "none".to_owned(),
                };
                let written = written.get_or_insert_with(|| Written::of(rendering));
                if is_lost(session, written, *text) {
                    return Err(Error::new(
                        ErrorKind::Input,
                        format!(
                            "messages[{index}]: expected a role that the template knows under its key \"role\", found {role}, and \
                             the template leaves out its content: correct the role, such as \"user\", or leave the message out"
                        ),
                    ));
                }
                continue;
            }
            _ => continue,
        };
        let written = written.get_or_insert_with(|| Written::of(rendering));
        let found = if prints(written, content) {
            "prints the list as Python spells it"
        } else if let Some(part) = lost_part(session, written, content) {
            if !takes_string(session, index, content)? {
                continue; // It leaves out the message, however it is written.
            }
            &format!("leaves out the text of part {part}")
        } else {
            continue;
        };
        return Err(not_words(index, found));
    }
    Ok(())
}

/// The error of content in parts.
fn not_words(index: usize, found: &str) -> Error {
    Error::new(
        ErrorKind::Input,
        format!(
            "messages[{index}]: expected the words of its content in the text, found that the template takes no parts and \
             {found}: write the content as one string, its texts joined, or give a template that takes parts"
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

/// Checks that no part of a message is an image, a video or a sound, for which a template writes tokens.
pub(crate) fn check_media(messages: &[Val<'_>]) -> Result<()> {
    for (index, message) in messages.iter().enumerate() {
        let Val::Dict(message) = message else { continue };
        let Some(Val::List(content)) = field(message, "content") else { continue };
        let Some(kind) = content.items.iter().find_map(kind_of_media) else { continue };
        return Err(Error::new(
            ErrorKind::Input,
            format!(
                "messages[{index}]: expected parts of texts, found one of type {kind:?}: nothing of it is read here, and what the \
                 template writes for it would be trained on blind; gm.ImageText reads conversations with images"
            ),
        ));
    }
    Ok(())
}

/// The type of a part that is no text.
fn kind_of_media<'a>(item: &Val<'a>) -> Option<&'a str> {
    let Val::Dict(part) = item else { return None };
    let Some(Val::Str(kind)) = field(part, "type") else { return None };
    MEDIA.iter().any(|media| kind.text.contains(media)).then_some(kind.text)
}

/// Whether a list of parts, or one of them, is in the text as Python spells it.
fn prints(written: &Written<'_>, content: &List<'_>) -> bool {
    let is_part = |item: &Val<'_>| matches!(item, Val::Dict(part) if written.begins(part.origin.0, "{'"));
    ["[{'", "['"].iter().any(|begin| written.begins(content.origin.0, begin))
        || content.items.iter().any(is_part)
}

/// The first part that is a text of which the rendering has nothing.
fn lost_part(session: &Session<'_>, written: &Written<'_>, content: &List<'_>) -> Option<usize> {
    content.items.iter().position(|item| text_of(item).is_some_and(|text| is_lost(session, written, text)))
}

/// Whether a string has words of which the rendering has nothing.
fn is_lost(session: &Session<'_>, written: &Written<'_>, text: Str<'_>) -> bool {
    !text.text.trim().is_empty() && !written.has_string(text.origin().0, &session.origins)
}

/// The text of a part.
fn text_of<'a>(item: &Val<'a>) -> Option<Str<'a>> {
    let Val::Dict(part) = item else { return None };
    let is_text = field(part, "type").is_none_or(|kind| kind.is_text("text"));
    match field(part, "text") {
        Some(Val::Str(text)) if is_text => Some(*text),
        _ => None,
    }
}

/// Whether the template writes the content of a message if it is one string.
fn takes_string(session: &mut Session<'_>, index: usize, content: &List<'_>) -> Result<bool> {
    let Val::Dict(message) = session.messages[index] else { return Ok(false) };
    let texts: Vec<&str> = content.items.iter().filter_map(text_of).map(|text| text.text).collect();
    let joined = session.heap.text(&texts.join("\n"))?;
    let string = session.heap.str(Str::new(joined, content.origin))?;
    let entries: Vec<_> = message
        .entries
        .iter()
        .map(|(key, value)| (*key, if key.is_text("content") { string } else { *value }))
        .collect();
    let dict = Dict::new(session.heap.slice(&entries)?, message.origin);
    let messages = session.with_message(index, Val::Dict(session.heap.alloc(dict)?))?;
    let Ok(rendered) = session.render(messages, session.add_generation_prompt) else { return Ok(false) };
    let rendering = session.finish(rendered)?;
    Ok(Written::of(&rendering).pieces.iter().any(|(origin, _)| *origin == content.origin.0))
}
