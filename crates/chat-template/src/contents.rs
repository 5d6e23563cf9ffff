//! Words of messages that a template leaves out: content of a kind that it does not take, which it prints as Python spells it or
//! passes over; a message of a role that it does not know; words under another key; and tool calls.

use crate::chat::Session;
use crate::error::{Error, ErrorKind, Result};
use crate::mask::{ASSISTANT, CALLS, USER};
use crate::origin::{Origins, Root};
use crate::reasoning::{TYPES, Written, field};
use crate::rendering::{Rendering, Unwritten};
use crate::text::{Origin, Str};
use crate::value::{Dict, Val};

/// The type of a part that is a text, and the key that has it.
const TEXT: &str = "text";

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

/// The roles that templates know. Many write no system prompt, in whatever form.
const ROLES: [&str; 4] = [USER, ASSISTANT, "system", "developer"];

/// The keys under which data sets have what a message says, in place of its content. Others name or order it, and a message
/// without content may say nothing.
const SAYING: [&str; 11] = [
    "text",
    "value",
    "message",
    "body",
    "utterance",
    "prompt",
    "response",
    "question",
    "answer",
    "result",
    "output",
];

/// The keys of a call that say what is called.
const OF_CALL: [&str; 4] = ["name", "arguments", "parameters", "input"];

/// Checks that what messages say is in the text, and that parts, and objects in what a user or a model says, are not printed
/// as Python spells them.
///
/// # Returns
///
/// The parts that the template leaves out in whatever form they are.
pub(crate) fn check(session: &mut Session<'_>, rendering: &Rendering) -> Result<Unwritten> {
    let written = Written::of(rendering);
    let nodes = &session.origins.nodes;
    let has_tools = nodes.iter().any(|node| node.root == Root::Tool && node.parent != 0);
    let tools = has_tools && !written.pieces().any(|(origin, _)| nodes[origin as usize].root == Root::Tool);
    let mut messages = Vec::new();
    for index in 0..session.messages.len() {
        let Val::Dict(message) = session.messages[index] else { continue };
        match field(message, "content") {
            // If nothing is written, nothing is trained on, which is another error.
            None | Some(Val::None(_)) if rendering.text().is_empty() => {}
            None | Some(Val::None(_)) => check_keys(session, &written, index, message)?,
            Some(content) if !is_written(session, &written, index, message, &content)? => {
                messages.push(index);
            }
            Some(_) => {}
        }
        if has_role(message, ASSISTANT) {
            check_calls(session, &written, index, message)?;
        }
    }
    check_empty_calls(session, rendering.text())?;
    Ok(Unwritten { messages, tools })
}

/// Whether a message has a role.
fn has_role(message: &Dict<'_>, name: &str) -> bool {
    field(message, "role").is_some_and(|role| role.is_text(name))
}

/// Whether the content of a message is in the text. It is an error if it is not as it should be, or if it is left out because
/// of what it is, or for a role that the template does not know.
fn is_written<'a>(
    session: &mut Session<'a>,
    written: &Written<'_>,
    index: usize,
    message: &Dict<'a>,
    content: &Val<'a>,
) -> Result<bool> {
    let role = unknown_role(message);
    // The result of a tool is written as it is, as `transformers` writes it.
    let is_result = role.is_some() && !holds_parts(content);
    if !is_result && prints(written, content) {
        let what = if let Val::Dict(_) = content { "object" } else { "list" };
        return Err(not_words(index, content, &format!("prints the {what} as Python spells it")));
    }
    let Some(lost) = lost(written, &session.origins, content) else { return Ok(true) };
    // A template may leave out the words of an answer beside its calls, and reasoning: the mask is derived from the others.
    if matches!(content, Val::Str(_)) && role.is_none() && !has_role(message, USER) {
        return Ok(false);
    }
    if let Some(form) = other_form(session, index, content)? {
        return Err(match content {
            _ if form == Form::Parts => not_as_parts(index, &lost.found),
            Val::List(list) if list.items.get(lost.part).is_some_and(is_typed) => {
                not_the_type(index, lost.part, kind_of_part(&list.items[lost.part]))
            }
            _ => not_words(index, content, &lost.found),
        });
    }
    // It leaves out the message, however it is written.
    role.map_or(Ok(false), |role| Err(not_the_role(index, &role)))
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

/// The error of content that is no string.
fn not_words(index: usize, content: &Val<'_>, found: &str) -> Error {
    let (kind, as_string) = match content {
        Val::Dict(_) => ("objects", ", such as its JSON"),
        Val::List(_) => ("parts", ", its texts joined"),
        Val::Bool(..) => ("booleans", ""),
        _ => ("numbers", ""),
    };
    Error::new(
        ErrorKind::Input,
        format!(
            "messages[{index}]: expected the words of its content in the text, found that the template takes no {kind} and \
             {found}: write the content as one string{as_string}, or give a template that takes {kind}"
        ),
    )
}

/// The error of a part of another type than text.
fn not_the_type(index: usize, part: usize, kind: &str) -> Error {
    Error::new(
        ErrorKind::Input,
        format!(
            "messages[{index}]: expected parts of types that the template writes, found that it leaves out part {part}, of type \
             {kind:?}: write it as a part of type \"text\", a call and its result as \"tool_calls\" and a message of the role \
             \"tool\", or give a template that takes such parts"
        ),
    )
}

/// The error of content that is no list of parts, where only such are taken.
fn not_as_parts(index: usize, found: &str) -> Error {
    Error::new(
        ErrorKind::Input,
        format!(
            "messages[{index}]: expected the words of its content in the text, found that the template {found}: write the content \
             as a list of parts, {{\"type\": \"text\", \"text\": ...}}, or give another template"
        ),
    )
}

/// Checks that the template writes something of a message without content, unless it says nothing.
fn check_keys(session: &Session<'_>, written: &Written<'_>, index: usize, message: &Dict<'_>) -> Result<()> {
    let mut lost = None;
    for (key, value) in message.entries {
        let Val::Str(key) = key else { continue };
        if says(value) && (CALLS.contains(&key.text) || SAYING.contains(&key.text)) {
            if CALLS.contains(&key.text) || has(written, &session.origins, value) {
                return Ok(());
            }
            lost = lost.or(Some(key.text));
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

/// Checks that the template writes the calls of a message, with what they are called with: else the model would be trained to
/// stop where they belong, or to call something else; or would answer to the results of other calls.
fn check_calls(session: &Session<'_>, written: &Written<'_>, index: usize, message: &Dict<'_>) -> Result<()> {
    for key in CALLS {
        let Some(value) = field(message, key) else { continue };
        let calls = if let Val::List(calls) = value { calls.items } else { std::slice::from_ref(&value) };
        for (at, call) in calls.iter().enumerate() {
            let Some(lost) = lost_of_call(written, &session.origins, call) else { continue };
            let at = if let Val::List(_) = value { format!("[{at}]") } else { String::new() };
            return Err(Error::new(
                ErrorKind::Input,
                format!(
                    "messages[{index}]: expected its calls in the text, found that the template leaves out {key}{at}{lost}: write \
                     each as {{\"function\": {{\"name\": ..., \"arguments\": {{...}}}}}}, one in a message if the template takes one, \
                     or give a template that takes such calls"
                ),
            ));
        }
    }
    Ok(())
}

/// Checks that an empty list of calls is written as none.
fn check_empty_calls(session: &mut Session<'_>, text: &str) -> Result<()> {
    let Some((messages, first)) = without_empty_calls(session)? else { return Ok(()) };
    let Ok(without) = session.render(messages, session.add_generation_prompt) else { return Ok(()) };
    if without.text == text {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Input,
        format!(
            "messages[{first}]: expected calls under its key \"tool_calls\", found an empty list, which the template does not \
             treat as none: leave the key out, or write null"
        ),
    ))
}

/// The messages without lists of calls that are empty, and the first one that has one.
pub(crate) fn without_empty_calls<'a>(session: &Session<'a>) -> Result<Option<(&'a [Val<'a>], usize)>> {
    let is_kept = |(key, value): &(Val<'_>, Val<'_>)| {
        let is_empty = matches!(value, Val::List(list) if list.items.is_empty());
        !(is_empty && CALLS.iter().any(|name| key.is_text(name)))
    };
    let has_empty =
        |message: &Val<'_>| matches!(message, Val::Dict(dict) if !dict.entries.iter().all(is_kept));
    let Some(first) = session.messages.iter().position(has_empty) else { return Ok(None) };
    let mut messages = session.messages.to_vec();
    for message in &mut messages {
        let Val::Dict(dict) = *message else { continue };
        let entries: Vec<_> = dict.entries.iter().copied().filter(is_kept).collect();
        *message = Val::Dict(session.heap.alloc(Dict::new(session.heap.slice(&entries)?, dict.origin))?);
    }
    Ok(Some((session.heap.slice(&messages)?, first)))
}

/// The path in a call of what a template leaves out of it; an empty one of the whole call.
fn lost_of_call(written: &Written<'_>, origins: &Origins, call: &Val<'_>) -> Option<String> {
    let Val::Dict(outer) = call else { return loses(written, origins, call).then(String::new) };
    let (before, inner) = match field(outer, "function") {
        Some(Val::Dict(inner)) => (".function", inner),
        _ => ("", *outer),
    };
    let is_lost = |key: &&&str| {
        field(inner, key).is_some_and(|value| loses(written, origins, &value))
            && !(**key == "name" && is_named_by_id(written, origins, outer, inner))
    };
    let lost = OF_CALL.iter().find(is_lost)?;
    Some(if *lost == "name" { String::new() } else { format!("{before}.{lost}") })
}

/// Whether the text has the id of a call and the name in it, as templates of Kimi write `functions.add:0` for the name.
fn is_named_by_id(written: &Written<'_>, origins: &Origins, call: &Dict<'_>, function: &Dict<'_>) -> bool {
    let (Some(Val::Str(id)), Some(Val::Str(name))) = (field(call, "id"), field(function, "name")) else {
        return false;
    };
    id.text.contains(name.text) && written.has_string(id.origin().0, origins)
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

/// Content that the rendering lacks.
struct Lost {
    /// How a message names it.
    found: String,
    /// The first part of a list.
    part: usize,
}

/// The part of content that the rendering lacks. None: it has all, or there is nothing.
fn lost(written: &Written<'_>, origins: &Origins, content: &Val<'_>) -> Option<Lost> {
    let Val::List(list) = content else {
        let is_lost = says(content) && !has(written, origins, content);
        return is_lost.then(|| Lost { found: "leaves it out".to_owned(), part: 0 });
    };
    let part = list.items.iter().position(|item| is_lost_part(written, origins, item))?;
    let what = if text_of(&list.items[part]).is_some() { "the text of part" } else { "part" };
    Some(Lost { found: format!("leaves out {what} {part}"), part })
}

/// Whether an item of a list that is content has another type than text.
fn is_typed(item: &Val<'_>) -> bool {
    kind_of_part(item) != TEXT
}

/// The type of an item of a list that is content.
fn kind_of_part<'a>(item: &Val<'a>) -> &'a str {
    let Val::Dict(part) = item else { return TEXT };
    field(part, "type").and_then(|kind| kind.as_str()).map_or(TEXT, |kind| kind.text)
}

/// The text of such an item.
fn text_of<'a>(item: &Val<'a>) -> Option<Val<'a>> {
    match item {
        Val::Str(_) => Some(*item),
        Val::Dict(part) if kind_of_part(item) == TEXT => field(part, TEXT),
        _ => None,
    }
}

/// Whether such an item says something of which the rendering has nothing.
fn is_lost_part(written: &Written<'_>, origins: &Origins, item: &Val<'_>) -> bool {
    let kind = kind_of_part(item);
    let value = match text_of(item) {
        Some(text) => text,
        // Lost reasoning is another question.
        _ if kind_of_media(item).is_some() || TYPES.iter().any(|reasoning| kind.contains(reasoning)) => {
            return false;
        }
        _ => *item,
    };
    says(&value) && !has(written, origins, &value)
}

/// Whether a value says anything.
fn says(value: &Val<'_>) -> bool {
    match value {
        Val::Str(text) => !text.text.trim().is_empty(),
        Val::Bool(..) | Val::Int(..) | Val::Big(_) | Val::Float(..) => true,
        Val::List(list) => list.items.iter().any(says),
        Val::Dict(dict) => !dict.entries.is_empty(),
        _ => false,
    }
}

/// Whether any byte is in the text of what a value says. A template may write null, true, false and an empty string in words of
/// its own: their keys stand for them.
fn has(written: &Written<'_>, origins: &Origins, value: &Val<'_>) -> bool {
    written.has_string(value.origin().0, origins)
        || match value {
            Val::List(list) => list.items.iter().any(|item| has(written, origins, item)),
            Val::Dict(dict) => dict.entries.iter().any(|(key, value)| {
                has(written, origins, value)
                    || (matches!(value, Val::Bool(..)) || !says(value)) && has(written, origins, key)
            }),
            _ => false,
        }
}

/// Whether the text lacks any string or number of a value.
fn loses(written: &Written<'_>, origins: &Origins, value: &Val<'_>) -> bool {
    match value {
        Val::Bool(..) => false,
        Val::List(list) => list.items.iter().any(|item| loses(written, origins, item)),
        Val::Dict(dict) => dict.entries.iter().any(|(_, value)| loses(written, origins, value)),
        _ => says(value) && !written.has_string(value.origin().0, origins),
    }
}

/// A list of one part, which is this text.
pub(crate) fn part_of<'a>(session: &Session<'a>, text: Val<'a>) -> Result<Val<'a>> {
    let heap = session.heap;
    let kind = (heap.constant("type")?, heap.constant(TEXT)?);
    let part = Dict::new(heap.slice(&[kind, (heap.constant(TEXT)?, text)])?, Origin::TEMPLATE);
    heap.list(heap.slice(&[Val::Dict(heap.alloc(part)?)])?, Origin::TEMPLATE)
}

/// A message with other content.
pub(crate) fn with_content<'a>(
    session: &Session<'a>,
    message: &Dict<'a>,
    content: Val<'a>,
) -> Result<Val<'a>> {
    let heap = session.heap;
    let mut entries = message.entries.to_vec();
    match entries.iter_mut().find(|(key, _)| key.is_text("content")) {
        Some((_, own)) => *own = content,
        None => entries.push((heap.constant("content")?, content)),
    }
    Ok(Val::Dict(heap.alloc(Dict::new(heap.slice(&entries)?, message.origin))?))
}

/// A form of content.
#[derive(PartialEq, Eq)]
enum Form {
    String,
    Parts,
}

/// The form in which the template would write the content of a message.
fn other_form(session: &mut Session<'_>, index: usize, content: &Val<'_>) -> Result<Option<Form>> {
    let words = session.heap.str(Str::new("words", content.origin()))?;
    if !matches!(content, Val::Str(_)) && takes(session, index, words, content.origin())? {
        return Ok(Some(Form::String));
    }
    let part = part_of(session, words)?;
    Ok(takes(session, index, part, content.origin())?.then_some(Form::Parts))
}

/// Whether the template writes other content of a message, which has this origin.
fn takes<'a>(session: &mut Session<'a>, index: usize, content: Val<'a>, origin: Origin) -> Result<bool> {
    let Val::Dict(message) = session.messages[index] else { return Ok(false) };
    let messages = session.with_message(index, with_content(session, message, content)?)?;
    let Ok(rendered) = session.render(messages, session.add_generation_prompt) else { return Ok(false) };
    let rendering = session.finish(rendered)?;
    Ok(Written::of(&rendering).has_node(origin.0))
}
