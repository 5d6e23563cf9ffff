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
use std::fmt::Write;

use serde_json::value::RawValue;

use super::json_pairs::{Pairs, write_pairs};

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
/// `system` is a system prompt that stands beside messages with `from` and `value`. The error says what was expected and found.
pub(super) fn messages(list: &str, takes_both: bool, system: Option<&str>) -> Result<String, String> {
    let turns: Vec<Pairs<'_>> = serde_json::from_str(list)
        .map_err(|error| format!("expected a list of messages that are objects: {error}"))?;
    let mut written = String::with_capacity(list.len() + 16 * turns.len());
    written.push('[');
    if let Some(system) = missing_system(&turns, system)? {
        let system = serde_json::to_string(system).map_err(|error| error.to_string())?;
        _ = write!(written, r#"{{"role":"system","content":{system}}}"#);
    }
    for (index, turn) in turns.iter().enumerate() {
        if written.len() > 1 {
            written.push(',');
        }
        let has_role = given(turn, "role").is_some();
        if takes_both && has_role {
            write_pairs(&mut written, &turn.0, |_, _| Ok(None))?;
            continue;
        }
        match (given(turn, "from"), turn.get("value")) {
            (Some(from), Some(value)) if !has_role && given(turn, "content").is_none() => {
                write_message(&mut written, turn, from, value, index)?;
            }
            _ if takes_both => {
                return Err(format!("expected role and content, or from and value, in message {index}"));
            }
            _ => {
                let keys: Vec<_> = turn.0.iter().map(|(key, _)| &**key).collect();
                return Err(format!(
                    "expected from and value, and no role and content, in message {index}, found the keys {keys:?}; messages \
                     with role and content are of format=\"messages\""
                ));
            }
        }
    }
    written.push(']');
    Ok(written)
}

/// A value that is there, and not null.
fn given<'a>(turn: &Pairs<'a>, key: &str) -> Option<&'a RawValue> {
    turn.get(key).filter(|value| value.get() != "null")
}

/// The string that a value is.
fn string(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

/// The system prompt that stands beside the messages, unless they have it too.
fn missing_system<'a>(turns: &[Pairs<'_>], system: Option<&'a str>) -> Result<Option<&'a str>, String> {
    let is_system =
        |turn: &Pairs<'_>| given(turn, "from").and_then(string).is_some_and(|from| from == "system");
    let Some(system) = system.filter(|_| turns.iter().any(|turn| given(turn, "from").is_some())) else {
        return Ok(None);
    };
    let Some(index) = turns.iter().position(is_system) else { return Ok(Some(system)) };
    if turns[index].get("value").and_then(string).is_some_and(|own| own == system) {
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

fn write_message(
    out: &mut String,
    turn: &Pairs<'_>,
    from: &RawValue,
    value: &RawValue,
    index: usize,
) -> Result<(), String> {
    let role = string(from).and_then(|from| role_of(&from));
    let role =
        role.ok_or_else(|| format!("expected from to be {SPEAKERS}, found {from} in message {index}"))?;
    let is_lost = |key: &&&str| given(turn, key).is_some_and(|value| !["[]", "\"\""].contains(&value.get()));
    if let Some(key) = LOST.iter().find(is_lost) {
        return Err(format!(
            "expected what is trained under train or weight, and images as parts of the value, found the key {key:?} in message \
             {index}, which would be lost; rename or remove it"
        ));
    }
    if role == CALLS {
        let (thought, calls) = calls_of(value).map_err(|found| {
            format!(
                "expected a call such as {{\"name\": \"f\", \"arguments\": {{}}}} as JSON, or a list of calls, as the value of \
                 message {index} from {from}, found {found}"
            )
        })?;
        if given(turn, "tool_calls").is_some() {
            return Err(format!(
                "expected the calls of message {index} from {from} as its value, found tool_calls too; remove one of them"
            ));
        }
        _ = write!(out, r#"{{"role":"assistant","content":{thought},"tool_calls":{calls}"#);
    } else {
        _ = write!(out, r#"{{"role":"{role}","content":{value}"#);
    }
    for (key, value) in &turn.0 {
        let is_written =
            ["from", "value", "role", "content"].contains(&&**key) || role == CALLS && key == "tool_calls";
        if !is_written {
            let key = serde_json::to_string(key).map_err(|error| error.to_string())?;
            _ = write!(out, ",{key}:{value}");
        }
    }
    out.push('}');
    Ok(())
}

/// The reasoning that precedes the calls of a value, as JSON, and a list of them. The error says what was found.
fn calls_of(value: &RawValue) -> Result<(String, String), String> {
    let text = string(value);
    let json = text.as_deref().unwrap_or_else(|| value.get());
    let thought = json.trim_start().strip_prefix(THOUGHT[0]).and_then(|rest| rest.split_once(THOUGHT[1]));
    let json_of_calls = thought.map_or(json, |(_, rest)| rest).trim_start();
    let before = if thought.is_some() { &json[..json.len() - json_of_calls.len()] } else { "" };
    let thought = serde_json::to_string(before);
    let calls = if json_of_calls.starts_with('[') {
        serde_json::from_str::<Vec<Pairs<'_>>>(json_of_calls)
    } else {
        serde_json::from_str(json_of_calls).map(|call| vec![call])
    };
    let calls = calls.map_err(|error| format!("another value: {error}"))?;
    if calls.is_empty() {
        return Err("an empty list".to_owned());
    }
    let mut written = String::from("[");
    for (index, call) in calls.iter().enumerate() {
        written.push_str(if index == 0 { "{" } else { ",{" });
        write_call(&mut written, call)?;
        written.push('}');
    }
    written.push(']');
    Ok((thought.map_err(|error| error.to_string())?, written))
}

/// Writes the members of a call as templates take it.
fn write_call(out: &mut String, call: &Pairs<'_>) -> Result<(), String> {
    let wrapped = call.get("function").map(|function| serde_json::from_str::<Pairs<'_>>(function.get()));
    let wrapped =
        wrapped.transpose().map_err(|error| format!("a function that is another value: {error}"))?;
    let (function, outside): (&Pairs<'_>, &[&str]) = match &wrapped {
        Some(function) => (function, &["id", "type", "function"]),
        None => (call, &["id", "type", "name", "arguments", "parameters"]),
    };
    let inside = ["name", "arguments", "parameters"];
    let unknown = call.0.iter().find(|(key, _)| !outside.contains(&&**key));
    let unknown = unknown.or_else(|| {
        wrapped.as_ref().and_then(|function| function.0.iter().find(|(key, _)| !inside.contains(&&**key)))
    });
    if let Some((key, _)) = unknown {
        return Err(format!("the key {key:?} in one"));
    }
    let name = function.get("name").filter(|name| string(name).is_some());
    let name = name.ok_or("one without a string as its name")?;
    let arguments = given(function, "arguments").or_else(|| given(function, "parameters"));
    let arguments = arguments.and_then(object).ok_or("one without an object as its arguments")?;
    if let Some(id) = given(call, "id") {
        _ = write!(out, r#""id":{id},"#);
    }
    _ = write!(out, r#""type":"function","function":{{"name":{name},"arguments":{arguments}}}"#);
    Ok(())
}

/// The JSON of the object that a value is, or that a string holds.
fn object(value: &RawValue) -> Option<Cow<'_, str>> {
    let json = match string(value) {
        Some(text) => Cow::Owned(text),
        None => Cow::Borrowed(value.get()),
    };
    serde_json::from_str::<Pairs<'_>>(&json).is_ok().then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_get_roles_and_keep_their_other_keys() {
        let list = r#"[{"from": "human", "value": "a\n\"", "id": 3}, {"from": "gpt", "value": [1.50], "weight": 0, "loss": null, "images": []}]"#;
        assert_eq!(
            messages(list, false, None).unwrap(),
            r#"[{"role":"user","content":"a\n\"","id":3},{"role":"assistant","content":[1.50],"weight":0,"loss":null,"images":[]}]"#
        );
        assert_eq!(messages("[]", false, None).unwrap(), "[]");
    }

    #[test]
    fn messages_of_both_kinds_may_be_mixed() {
        let list = r#"[{"from": "human", "value": "a"}, {"role": "tool", "content": [1.50], "x": null}, {"role": null, "from": "gpt",
            "value": "b", "weight": 0}, {"from": "observation", "value": "c", "content": null}]"#;
        assert_eq!(
            messages(list, true, None).unwrap(),
            r#"[{"role":"user","content":"a"},{"role":"tool","content":[1.50],"x":null},{"role":"assistant","content":"b","weight":0},{"role":"tool","content":"c"}]"#
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
            format!(r#"[{{"role":"assistant","content":{thought},"tool_calls":{calls},"weight":1}}]"#)
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
        assert!(found.unwrap().contains(add));
    }

    #[test]
    fn values_that_are_no_calls_are_errors() {
        for (value, expected) in [
            (r#""add(1)""#, "found another value: expected value at line 1 column 1"),
            (r#""[]""#, "found an empty list"),
            ("null", "found another value"),
            (r#""{\"name\": \"f\"}""#, "found one without an object as its arguments"),
            (r#""{\"name\": \"f\", \"arguments\": [1]}""#, "without an object as its arguments"),
            (r#""{\"name\": \"f\", \"arguments\": \"x\"}""#, "without an object as its arguments"),
            (r#""{\"name\": 1, \"arguments\": {}}""#, "without a string as its name"),
            (r#""{\"name\": \"f\", \"arguments\": {}, \"thought\": \"x\"}""#, "the key \"thought\" in one"),
            (r#""{\"function\": {\"name\": \"f\", \"arguments\": {}, \"x\": 1}}""#, "the key \"x\" in one"),
            (r#""{\"name\": \"f\", \"arguments\": {}} and""#, "found another value: trailing characters"),
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
        assert_eq!(messages(list, false, Some("\"s\"")).unwrap(), expected);
        let own = r#"[{"from":"system","value":"s"},{"from":"human","value":"a"}]"#;
        let expected = r#"[{"role":"system","content":"s"},{"role":"user","content":"a"}]"#;
        assert_eq!(messages(own, true, Some("s")).unwrap(), expected);
        let error = messages(own, false, Some("t")).unwrap_err();
        assert!(error.contains("found another one under the key \"system\" than in message 0"), "{error}");
        // Messages with role and content have theirs among them.
        let list = r#"[{"role":"user","content":"a"}]"#;
        assert_eq!(messages(list, true, Some("s")).unwrap(), list);
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
