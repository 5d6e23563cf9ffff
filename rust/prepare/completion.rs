//! Prompts and completions: joined, and trained on the completion.

use gristmill_chat_template::TrainedSpan;

use super::Sample;
use super::field::Field;
use crate::format::Values;

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
    /// Puts both strings of a record in an empty sample. The error says what was expected and found.
    pub(crate) fn join(&self, values: &Values<'_>, sample: &mut Sample) -> Result<(), String> {
        let Sample { text, trained, .. } = sample;
        text.push_str(&self.prompt.text_of(values, "prompt_field")?);
        let start = text.len();
        let completion = self.completion.text_of(values, "completion_field");
        text.push_str(&completion.map_err(|error| self.with_advice(&error, values))?);
        if start < text.len() {
            trained.push(TrainedSpan::whole(start..text.len()));
        }
        Ok(())
    }

    /// An error about the completion, with what reads it if it is a list.
    fn with_advice(&self, error: &str, values: &Values<'_>) -> String {
        match self.completion.of(values) {
            Some(list) if list.is_array() => {
                let key = self.completion.key();
                format!("{error}; gm.Chat({key:?}, train_on=\"last\") reads whole conversations")
            }
            _ => error.to_owned(),
        }
    }
}
