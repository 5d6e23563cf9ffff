//! Messages of `ShareGPT`, as those that templates take.
//!
//! ```text
//! {"from": "human", "value": "2+2?"}                                      {"role": "user", "content": "2+2?"}
//! {"from": "function_call", "value": "{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 2}}"}
//!     {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", ...}}]}
//! {"from": "observation", "value": "4"}                                   {"role": "tool", "content": "4"}
//! ```
//!
//! Other keys of a message stay. A system prompt beside the messages becomes the first of them.

use std::borrow::Cow;

use gristmill_json::Text;

use super::message::{self, Members, get, given, shown};
use crate::format::Value;

/// Names of those who speak, for messages.
const SPEAKERS: &str = "human, user, gpt, assistant, model, system, tool, observation, function_response, tool_response, \
                        function_call or tool_call";
/// The role of messages that call functions.
const CALLS: &str = "function_call";
/// The begin and end of reasoning, which may precede a call.
const THOUGHT: [&str; 2] = ["<think>", "</think>"];

/// Keys that say what is trained or shown, and that no message with `role` and `content` has: they would be lost.
const LOST: [&str; 10] =
    ["loss", "loss_mask", "masked", "trainable", "image", "images", "video", "videos", "audio", "audios"];

/// Messages with `role` and `content`. One that has them already stays as it is if `takes_both`; else it is an error.
/// `system` is a system prompt that stands beside messages with `from` and `value`, and `train_key` a key that is followed. The error says what was expected and found.
pub(super) fn messages<'a>(
    list: Value<'a>,
    takes_both: bool,
    system: Option<Cow<'a, str>>,
    train_key: Option<&str>,
) -> Result<Value<'a>, String> {
    let turns = message::all_members(list)?;
    let mut messages = Vec::with_capacity(turns.len() + 1);
    if let Some(system) = missing_system(&turns, system)? {
        messages.push(message::of("system", Value::Str(system)));
    }
    for (index, turn) in turns.into_iter().enumerate() {
        let has_role = given(&turn, "role").is_some();
        let is_turn = given(&turn, "from").is_some() && get(&turn, "value").is_some();
        messages.push(if takes_both && has_role {
            Value::Object(turn)
        } else if is_turn && !has_role && given(&turn, "content").is_none() {
            message_of(turn, index, train_key)?
        } else if takes_both {
            return Err(format!("expected role and content, or from and value, in message {index}"));
        } else {
            let keys: Vec<_> = turn.iter().map(|(key, _)| &**key).collect();
            return Err(format!(
                "expected from and value, and no role and content, in message {index}, found the keys {keys:?}; messages \
                 with role and content are of format=\"messages\""
            ));
        });
    }
    Ok(Value::List(messages))
}

/// The system prompt that stands beside the messages, unless they have it too.
fn missing_system<'a>(
    turns: &[Members<'_>],
    system: Option<Cow<'a, str>>,
) -> Result<Option<Cow<'a, str>>, String> {
    let from = |turn: &Members<'_>| given(turn, "from").is_some();
    let Some(system) = system.filter(|_| turns.iter().any(from)) else { return Ok(None) };
    let is_system = |turn: &Members<'_>| get(turn, "from").and_then(Value::as_str) == Some("system");
    let Some(index) = turns.iter().position(is_system) else { return Ok(Some(system)) };
    if get(&turns[index], "value").and_then(Value::as_str) == Some(&*system) {
        return Ok(None);
    }
    Err(format!(
        "expected one system prompt, found another one under the key \"system\" than in message {index}; remove one of them"
    ))
}

/// The role of a message, by the name of who speaks.
fn role_of(from: &str) -> Option<&'static str> {
    Some(match from {
        "human" | "user" => "user",
        "gpt" | "assistant" | "model" => "assistant",
        "system" => "system",
        "tool" | "observation" | "function_response" | "tool_response" => "tool",
        "function_call" | "tool_call" => CALLS,
        _ => return None,
    })
}

/// The message that a turn is, which has `from` and `value`.
fn message_of<'a>(turn: Members<'a>, index: usize, train_key: Option<&str>) -> Result<Value<'a>, String> {
    let from = get(&turn, "from").map(shown).unwrap_or_default();
    let role = get(&turn, "from").and_then(Value::as_str).and_then(role_of);
    let role =
        role.ok_or_else(|| format!("expected from to be {SPEAKERS}, found {from} in message {index}"))?;
    let is_empty = |value: &Value<'_>| match value {
        Value::List(items) => items.is_empty(),
        value => value.as_str() == Some(""),
    };
    let mut lost = LOST.iter().filter(|key| Some(**key) != train_key);
    if let Some(key) = lost.find(|key| given(&turn, key).is_some_and(|value| !is_empty(value))) {
        return Err(format!(
            "expected what is trained under train or weight, or a key that train_key= names, and images as parts of the value, found the key {key:?} in message \
             {index}, which would be lost; rename or remove it"
        ));
    }
    if role == CALLS && given(&turn, "tool_calls").is_some() {
        return Err(format!(
            "expected the calls of message {index} from {from} as its value, found tool_calls too; remove one of them"
        ));
    }
    let (mut said, mut others) = (Value::Null, Members::with_capacity(turn.len()));
    for (key, value) in turn {
        match &*key {
            "value" => said = value,
            "from" | "role" | "content" => {}
            "tool_calls" if role == CALLS => {}
            _ => others.push((key, value)),
        }
    }
    let mut members = Members::with_capacity(others.len() + 3);
    if role == CALLS {
        let (thought, calls) = calls_of(said).map_err(|found| {
            format!(
                "expected a call such as {{\"name\": \"f\", \"arguments\": {{}}}} as JSON, or a list of calls, as the value of \
                 message {index} from {from}, found {found}"
            )
        })?;
        members.push(("role".into(), "assistant".into()));
        members.push(("content".into(), thought.into()));
        members.push(("tool_calls".into(), Value::List(calls)));
    } else {
        members.push(("role".into(), role.into()));
        members.push(("content".into(), said));
    }
    members.append(&mut others);
    Ok(Value::Object(members))
}

/// The reasoning that precedes the calls of a value, and the calls. The error says what was found.
fn calls_of(value: Value<'_>) -> Result<(String, Vec<Value<'_>>), String> {
    let (thought, calls) = match value {
        Value::Str(text) => {
            let thought = text.trim_start().strip_prefix(THOUGHT[0]);
            let rest =
                thought.and_then(|rest| rest.split_once(THOUGHT[1])).map(|(_, rest)| rest.trim_start());
            let before = rest.map_or("", |rest| &text[..text.len() - rest.len()]);
            let calls = parsed(&text[before.len()..]).map_err(|error| format!("another value: {error}"))?;
            (before.to_owned(), calls)
        }
        value => (String::new(), value),
    };
    let calls = if let Value::List(calls) = calls { calls } else { vec![calls] };
    if calls.is_empty() {
        return Err("an empty list".to_owned());
    }
    Ok((thought, calls.into_iter().map(call).collect::<Result<_, _>>()?))
}

/// The value of JSON in a string.
pub(super) fn parsed<'a>(json: &str) -> Result<Value<'a>, String> {
    let mut text = Text::new(json);
    let value = Value::read(&mut text, true).map(Value::into_owned);
    let value = value.and_then(|value| text.end().map(|()| value));
    value.map_err(|error| error.to_string())
}

/// A call as templates take it.
fn call(call: Value<'_>) -> Result<Value<'_>, String> {
    let Value::Object(mut call) = call else {
        return Err(format!("another value: expected an object, found {}", shown(&call)));
    };
    let unknown = |members: &Members<'_>, known: &[&str]| {
        members
            .iter()
            .find(|(key, _)| !known.contains(&&**key))
            .map(|(key, _)| format!("the key {key:?} in one"))
    };
    let mut wrapped = match message::take(&mut call, "function") {
        None => None,
        Some(Value::Object(function)) => Some(function),
        Some(other) => {
            return Err(format!(
                "a function that is another value: expected an object, found {}",
                shown(&other)
            ));
        }
    };
    let known: &[&str] = match wrapped {
        Some(_) => &["id", "type", "function"],
        None => &["id", "type", "name", "arguments", "parameters"],
    };
    let inside = ["name", "arguments", "parameters"];
    let found = unknown(&call, known);
    let found = found.or_else(|| wrapped.as_ref().and_then(|function| unknown(function, &inside)));
    if let Some(found) = found {
        return Err(found);
    }
    let id = message::take(&mut call, "id").filter(|id| *id != Value::Null);
    let function = wrapped.as_mut().unwrap_or(&mut call);
    let name = message::take(function, "name").filter(|name| name.as_str().is_some());
    let name = name.ok_or("one without a string as its name")?;
    let arguments = ["arguments", "parameters"].into_iter().find(|key| given(function, key).is_some());
    let arguments = arguments.and_then(|key| message::take(function, key)).and_then(object);
    let arguments = arguments.ok_or("one without an object as its arguments")?;
    let mut members: Members<'_> = id.into_iter().map(|id| ("id".into(), id)).collect();
    members.push(("type".into(), "function".into()));
    let function = vec![("name".into(), name), ("arguments".into(), arguments)];
    members.push(("function".into(), Value::Object(function)));
    Ok(Value::Object(members))
}

/// The object that a value is, or that a string holds.
fn object(value: Value<'_>) -> Option<Value<'_>> {
    let value = match value {
        Value::Str(text) => parsed(&text).ok()?,
        value => value,
    };
    matches!(value, Value::Object(_)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Value<'static> {
        parsed(json).unwrap()
    }

    fn messages(list: &str, takes_both: bool, system: Option<&str>) -> Result<Value<'static>, String> {
        super::messages(read(list), takes_both, system.map(|system| Cow::Owned(system.to_owned())), None)
    }

    #[test]
    fn messages_get_roles_and_keep_their_other_keys() {
        let list = r#"[{"from": "human", "value": "a\n\"", "id": 3}, {"from": "gpt", "value": [1.5], "weight": 0, "loss": null, "images": []}]"#;
        assert_eq!(
            messages(list, false, None).unwrap(),
            read(
                r#"[{"role":"user","content":"a\n\"","id":3},{"role":"assistant","content":[1.5],"weight":0,"loss":null,"images":[]}]"#
            )
        );
        assert_eq!(messages("[]", false, None).unwrap(), read("[]"));
    }

    #[test]
    fn messages_of_both_kinds_may_be_mixed() {
        let list = r#"[{"from": "human", "value": "a"}, {"role": "tool", "content": [1.5], "x": null}, {"role": null, "from": "gpt",
            "value": "b", "weight": 0}, {"from": "observation", "value": "c", "content": null}]"#;
        assert_eq!(
            messages(list, true, None).unwrap(),
            read(
                r#"[{"role":"user","content":"a"},{"role":"tool","content":[1.5],"x":null},{"role":"assistant","content":"b","weight":0},{"role":"tool","content":"c"}]"#
            )
        );
        let error = messages(r#"[{"value": "a"}]"#, true, None).unwrap_err();
        assert!(error.contains("expected role and content, or from and value, in message 0"), "{error}");
    }

    #[test]
    fn calls_are_tool_calls() {
        let call = |value: &str, from: &str| {
            let value = serde_json::to_string(value).unwrap();
            messages(&format!(r#"[{{"from":"{from}","value":{value},"weight":1}}]"#), false, None)
        };
        let expected = |thought: &str, calls: &str| {
            read(&format!(r#"[{{"role":"assistant","content":{thought},"tool_calls":{calls},"weight":1}}]"#))
        };
        let add = r#"{"type":"function","function":{"name":"add","arguments":{"a": 1.50}}}"#;
        for value in [
            r#"{"name": "add", "arguments": {"a": 1.50}}"#,
            r#" {"parameters": {"a": 1.50}, "name": "add", "id": null}"#,
            r#"{"name": "add", "arguments": "{\"a\": 1.50}"}"#,
            r#"[{"type": "function", "function": {"name": "add", "arguments": {"a": 1.50}}}]"#,
        ] {
            assert_eq!(
                call(value, "function_call").unwrap(),
                expected("\"\"", &format!("[{add}]")),
                "{value}"
            );
        }
        let two = r#"[{"name": "f", "arguments": {}, "id": "x"}, {"name": "add", "arguments": {"a": 1.50}}]"#;
        let calls =
            format!(r#"[{{"id":"x","type":"function","function":{{"name":"f","arguments":{{}}}}}},{add}]"#);
        assert_eq!(call(two, "tool_call").unwrap(), expected("\"\"", &calls));
        let thought = "<think>\n\"so\"</think>\n{\"name\": \"add\", \"arguments\": {\"a\": 1.50}}";
        let found = call(thought, "function_call").unwrap();
        assert_eq!(found, expected(r#""<think>\n\"so\"</think>\n""#, &format!("[{add}]")));
        // The value itself is the call, as a column of JSON has it.
        let found =
            messages(r#"[{"from":"tool_call","value":{"name":"add","arguments":{"a": 1.50}}}]"#, false, None);
        let calls = format!(r#"[{{"role":"assistant","content":"","tool_calls":[{add}]}}]"#);
        assert_eq!(found.unwrap(), read(&calls));
    }

    #[test]
    fn values_that_are_no_calls_are_errors() {
        for (value, expected) in [
            (r#""add(1)""#, "found another value: expected a value at byte 0 of the JSON"),
            (r#""[]""#, "found an empty list"),
            ("null", "found another value"),
            (r#""{\"name\": \"f\"}""#, "found one without an object as its arguments"),
            (r#""{\"name\": \"f\", \"arguments\": [1]}""#, "without an object as its arguments"),
            (r#""{\"name\": \"f\", \"arguments\": \"x\"}""#, "without an object as its arguments"),
            (r#""{\"name\": 1, \"arguments\": {}}""#, "without a string as its name"),
            (r#""{\"name\": \"f\", \"arguments\": {}, \"thought\": \"x\"}""#, "the key \"thought\" in one"),
            (r#""{\"function\": {\"name\": \"f\", \"arguments\": {}, \"x\": 1}}""#, "the key \"x\" in one"),
            (
                r#""{\"name\": \"f\", \"arguments\": {}} and""#,
                "found another value: expected the end at byte",
            ),
        ] {
            let list =
                format!(r#"[{{"from":"human","value":"a"}},{{"from":"function_call","value":{value}}}]"#);
            let error = messages(&list, false, None).unwrap_err();
            assert!(error.contains("as the value of message 1 from \"function_call\", found "), "{error}");
            assert!(error.contains(expected), "{error}");
        }
        let twice =
            r#"[{"from":"tool_call","value":"{\"name\": \"f\", \"arguments\": {}}","tool_calls":[]}]"#;
        assert!(messages(twice, false, None).unwrap_err().contains("found tool_calls too"));
    }

    #[test]
    fn system_prompt_beside_the_messages_comes_first() {
        let list = r#"[{"from":"human","value":"a"}]"#;
        let expected = r#"[{"role":"system","content":"\"s\""},{"role":"user","content":"a"}]"#;
        assert_eq!(messages(list, false, Some("\"s\"")).unwrap(), read(expected));
        let own = r#"[{"from":"system","value":"s"},{"from":"human","value":"a"}]"#;
        let expected = r#"[{"role":"system","content":"s"},{"role":"user","content":"a"}]"#;
        assert_eq!(messages(own, true, Some("s")).unwrap(), read(expected));
        let error = messages(own, false, Some("t")).unwrap_err();
        assert!(error.contains("found another one under the key \"system\" than in message 0"), "{error}");
        // Messages with role and content have theirs among them.
        let list = r#"[{"role":"user","content":"a"}]"#;
        assert_eq!(messages(list, true, Some("s")).unwrap(), read(list));
    }

    #[test]
    fn unknown_speakers_and_shapes_are_errors() {
        for (list, takes_both, expected) in [
            (
                r#"[{"from": "narrator", "value": "a"}]"#,
                false,
                "function_call or tool_call, found \"narrator\" in message 0",
            ),
            (r#"[{"from": "narrator", "value": "a"}]"#, true, "found \"narrator\" in message 0"),
            (r#"[{"from": 3, "value": "a"}]"#, false, "found 3 in message 0"),
            (
                r#"[{"role": "user", "content": "a"}]"#,
                false,
                "found the keys [\"role\", \"content\"]; messages with role",
            ),
            (
                r#"[{"from": "human", "value": "a", "content": "b"}]"#,
                false,
                "expected from and value, and no role and content",
            ),
            (r#"[{"from": "human"}]"#, false, "in message 0, found the keys [\"from\"]"),
            (
                r#"[{"from": "gpt", "value": "a", "loss": false}]"#,
                false,
                "found the key \"loss\" in message 0, which would",
            ),
            (
                r#"[{"from": "human", "value": "a", "images": ["b"]}]"#,
                true,
                "found the key \"images\" in message 0",
            ),
            ("[3]", false, "expected a list of messages that are objects"),
        ] {
            let error = messages(list, takes_both, None).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
