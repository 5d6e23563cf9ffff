//! Prompts and completions: joined, and trained on the completion.

use std::ops::Range;

use crate::format::{Content, Value, Values};

/// How records become prompts with completions.
#[derive(Debug, Clone)]
pub struct Completions {
    /// How many of the projection's paths are those of the filter.
    pub filter_paths: usize,
    /// The index in the projection of the path to the prompt, and the name of its key.
    pub prompt: (usize, String),
    /// The same of the completion.
    pub completion: (usize, String),
    /// Whether a sample without trained tokens is left out.
    pub drops_untrained: bool,
}

impl Completions {
    /// Appends both strings of a record to `text`. The error says what was expected and found.
    pub(super) fn join(
        &self,
        values: &Values<'_>,
        text: &mut String,
        trained: &mut Vec<Range<usize>>,
    ) -> Result<(), String> {
        trained.clear();
        push(values, &self.prompt, text)?;
        let start = text.len();
        push(values, &self.completion, text)?;
        if start < text.len() {
            trained.push(start..text.len());
        }
        Ok(())
    }
}

fn push(values: &Values<'_>, (path, key): &(usize, String), text: &mut String) -> Result<(), String> {
    match values.get(*path).map(Value::content) {
        Some(Content::Text(string)) => {
            text.push_str(&string);
            Ok(())
        }
        found => Err(format!(
            "expected a string under the key {key:?}, found {}",
            found.map_or("no such key", |content| content.name())
        )),
    }
}
