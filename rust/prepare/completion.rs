//! Prompts and completions: joined, and trained on the completion.

use gristmill_chat_template::TrainedSpan;

use super::field::Field;
use crate::format::{Content, Value, Values};

/// How records become prompts with completions.
#[derive(Debug, Clone)]
pub struct Completions {
    /// How many of the projection's paths are those of the filter.
    pub filter_paths: usize,
    /// The key of the prompt.
    pub prompt: Field,
    /// The key of the completion.
    pub completion: Field,
    /// Whether a sample without trained tokens is left out.
    pub drops_untrained: bool,
}

impl Completions {
    /// Appends both strings of a record to `text`. The error says what was expected and found.
    pub(super) fn join(
        &self,
        values: &Values<'_>,
        text: &mut String,
        trained: &mut Vec<TrainedSpan>,
    ) -> Result<(), String> {
        trained.clear();
        push(values, &self.prompt, text)?;
        let start = text.len();
        push(values, &self.completion, text)?;
        if start < text.len() {
            trained.push(TrainedSpan::whole(start..text.len()));
        }
        Ok(())
    }
}

fn push(values: &Values<'_>, field: &Field, text: &mut String) -> Result<(), String> {
    match field.of(values).map(Value::content) {
        Some(Content::Text(string)) => {
            text.push_str(&string);
            Ok(())
        }
        found => Err(format!(
            "expected a string under the key {:?}, found {}",
            field.key(),
            found.map_or("no such key", |content| content.name())
        )),
    }
}
