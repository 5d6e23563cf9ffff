//! The values of fields in a block, as bytes: those of a field lie one after another, as its tokens or samples do.

use std::ops::Range;

use crate::spec::fields::{FieldSpec, Per};

/// The values of one field.
#[derive(Debug, Clone)]
pub struct Column {
    per: Per,
    /// Bytes of a value.
    width: usize,
    /// Empty if the source lacks the field.
    bytes: Vec<u8>,
}

impl Column {
    /// No values of a field.
    pub fn new(field: &FieldSpec) -> Self {
        Self { per: field.per, width: field.width(), bytes: Vec::new() }
    }

    /// Whether it has a value for each token.
    pub fn is_per_token(&self) -> bool {
        self.per == Per::Token
    }

    /// Appends values, of so many zeros before and after them.
    pub fn append(&mut self, before: usize, values: &[u8], after: usize) {
        self.bytes.resize(self.bytes.len() + before * self.width, 0);
        self.bytes.extend_from_slice(values);
        self.bytes.resize(self.bytes.len() + after * self.width, 0);
    }

    /// Removes all but the first values: of so many tokens or samples.
    pub fn truncate(&mut self, tokens: usize, samples: usize) {
        self.bytes.truncate(self.width * if self.is_per_token() { tokens } else { samples });
    }

    /// Removes the values of some tokens, if it has any.
    pub fn remove_tokens(&mut self, tokens: &Range<usize>) {
        if self.is_per_token() && !self.bytes.is_empty() {
            self.bytes.drain(tokens.start * self.width..tokens.end * self.width);
        }
    }
}

/// The values that belong to consecutive tokens of a document.
#[derive(Debug, Clone, Copy, Default)]
pub struct Values<'a> {
    columns: &'a [Column],
    /// The index of the first token among those of the block, and of the sample.
    token: usize,
    sample: usize,
}

impl<'a> Values<'a> {
    /// The values in a block's columns of the tokens from one on, of a sample.
    pub fn new(columns: &'a [Column], token: usize, sample: usize) -> Self {
        Self { columns, token, sample }
    }

    /// The same from a later token on.
    #[must_use]
    pub fn after(self, tokens: usize) -> Self {
        Self { token: self.token + tokens, ..self }
    }

    /// The same, of the next sample.
    #[must_use]
    pub fn of_next_sample(self) -> Self {
        Self { sample: self.sample + 1, ..self }
    }

    /// The values of a field of the first tokens; none if the source lacks it.
    pub fn of_tokens(&self, field: usize, tokens: usize) -> Option<&'a [u8]> {
        let Column { width, bytes, .. } = self.columns.get(field)?;
        bytes.get(self.token * width..(self.token + tokens) * width)
    }

    /// The value of a field of the sample; none if the source lacks it.
    pub fn of_sample(&self, field: usize) -> Option<&'a [u8]> {
        let Column { width, bytes, .. } = self.columns.get(field)?;
        bytes.get(self.sample * width..(self.sample + 1) * width)
    }
}
