//! Messages as values.

use std::borrow::Cow;

use crate::format::Value;

/// Keys and values of an object.
pub(super) type Members<'a> = Vec<(Cow<'a, str>, Value<'a>)>;

/// A message.
pub(super) fn of<'a>(role: &'static str, content: Value<'a>) -> Value<'a> {
    Value::Object(vec![("role".into(), role.into()), ("content".into(), content)])
}

/// The messages of a prompt, and of its completion under this key. The error says what was expected and found.
pub(super) fn joined<'a>(first: Value<'a>, second: Value<'a>, key: &str) -> Result<Value<'a>, String> {
    match (first, second) {
        (Value::List(messages), Value::List(others))
            if !messages.is_empty() && others.starts_with(&messages) =>
        {
            Err(format!(
                "expected the messages behind the prompt under the key {key:?}, found those of the prompt again; \
                 gm.Chat({key:?}, train_on=\"last\") reads whole conversations"
            ))
        }
        (Value::List(mut messages), Value::List(others)) => {
            messages.extend(others);
            Ok(Value::List(messages))
        }
        (first, _) => Ok(first),
    }
}

/// Messages behind a system prompt that stands beside them, unless they have the same one. The error says what was expected
/// and found.
pub(super) fn with_system<'a>(list: Value<'a>, system: Cow<'a, str>) -> Result<Value<'a>, String> {
    let messages = all_members(list)?;
    let is_system = |message: &Members<'_>| get(message, "role").and_then(Value::as_str) == Some("system");
    match messages.iter().position(is_system) {
        Some(index) if get(&messages[index], "content").and_then(Value::as_str) != Some(&*system) => {
            Err(format!(
                "expected one system prompt, found another one beside the messages than in message {index}; remove one of them"
            ))
        }
        found => {
            let prompt = found.is_none().then(|| of("system", Value::Str(system)));
            Ok(Value::List(prompt.into_iter().chain(messages.into_iter().map(Value::Object)).collect()))
        }
    }
}

/// The members of each message of a list. The error says what was expected and found.
pub(super) fn all_members(list: Value<'_>) -> Result<Vec<Members<'_>>, String> {
    let Value::List(messages) = list else {
        return Err(format!("expected a list of messages that are objects, found {}", shown(&list)));
    };
    let members = messages.into_iter().enumerate().map(|(number, message)| match message {
        Value::Object(members) => Ok(members),
        other => Err(format!(
            "expected a list of messages that are objects, found {} as message {number}",
            shown(&other)
        )),
    });
    members.collect()
}

/// The role of a message; an empty one where it has none.
pub(super) fn role<'a>(message: &Value<'a>) -> Cow<'a, str> {
    match message {
        Value::Object(members) => match get(members, "role") {
            Some(Value::Str(role)) => role.clone(),
            _ => Cow::default(),
        },
        _ => Cow::default(),
    }
}

/// The value of a key; of one that is there twice the last.
pub(super) fn get<'m, 'a>(members: &'m Members<'a>, key: &str) -> Option<&'m Value<'a>> {
    members.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
}

/// A value that is there, and not null.
pub(super) fn given<'m, 'a>(members: &'m Members<'a>, key: &str) -> Option<&'m Value<'a>> {
    get(members, key).filter(|value| **value != Value::Null)
}

/// Takes the value of a key out of members whose order no longer counts.
pub(super) fn take<'a>(members: &mut Members<'a>, key: &str) -> Option<Value<'a>> {
    let index = members.iter().rposition(|(name, _)| name == key)?;
    Some(members.swap_remove(index).1)
}

/// A value, for a message to people.
pub(super) fn shown(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Typed => "a value that JSON lacks".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        Value::BigInt(digits) => digits.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Str(text) => format!("{text:?}"),
        Value::List(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
