//! Instructions that have a column for each part, as Alpaca's, as messages.
//!
//! ```text
//! {"instruction": "Add.", "input": "2+2", "output": "4"}      {"role": "user", "content": "Add.\n2+2"}
//!                                                             {"role": "assistant", "content": "4"}
//! ```

use std::borrow::Cow;

use super::field::Field;
use super::message;
use crate::format::{Content, Value, Values, View};

/// The keys of the parts.
#[derive(Debug, Clone)]
pub struct Columns {
    /// The task that the user states.
    pub instruction: Field,
    /// The text that the task is about; a record may lack it.
    pub input: Option<Field>,
    /// The answer. None: the conversation ends before it.
    pub output: Option<Field>,
    /// The system prompt; a record may lack it.
    pub system: Option<Field>,
}

impl Columns {
    /// The messages of a record. The error says what was expected and found.
    pub(super) fn messages<'a>(&self, values: &Values<'a>) -> Result<Value<'a>, String> {
        let mut messages = Vec::with_capacity(3);
        if let Some(system) = optional(self.system.as_ref(), values)? {
            messages.push(message::of("system", Value::Str(system)));
        }
        let instruction = required(&self.instruction, values, "instruction")?;
        let said = match optional(self.input.as_ref(), values)? {
            None => instruction,
            Some(input) if instruction.is_empty() => input,
            Some(input) => format!("{instruction}\n{input}").into(),
        };
        messages.push(message::of("user", Value::Str(said)));
        if let Some(output) = &self.output {
            messages.push(message::of("assistant", Value::Str(required(output, values, "output")?)));
        }
        Ok(Value::List(messages))
    }
}

/// The string under a key.
fn required<'a>(field: &Field, values: &Values<'a>, argument: &str) -> Result<Cow<'a, str>, String> {
    match field.of(values).map(View::content) {
        None => Err(field.missing(values, "a string", argument)),
        Some(Content::Text(text)) => Ok(text),
        Some(found) => Err(expected(field, &found)),
    }
}

/// The string under a key, unless it is missing, null or empty.
fn optional<'a>(field: Option<&Field>, values: &Values<'a>) -> Result<Option<Cow<'a, str>>, String> {
    let Some(field) = field else { return Ok(None) };
    match field.of(values).map(View::content) {
        None | Some(Content::Null) => Ok(None),
        Some(Content::Text(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(found) => Err(expected(field, &found)),
    }
}

fn expected(field: &Field, found: &Content<'_>) -> String {
    format!("expected a string under the key {:?}, found {}", field.key(), found.name())
}
