//! Consecutive tokens of one document: the one form in which packing passes them on.

use std::ops::Range;

use crate::image::Image;
use crate::lane::block::Document;
use crate::lane::values::Values;

/// Consecutive tokens of one document.
#[derive(Debug, Clone, Copy)]
pub struct TokenSlice<'a> {
    /// Their ids.
    pub ids: &'a [u32],
    /// Whether each of them is trained on; `None`: all are.
    pub trained: Option<&'a [bool]>,
    /// The values that they and their sample have of fields.
    pub values: Values<'a>,
    /// The images of the document, if these are all of its tokens.
    pub images: &'a [Image],
    /// Tokens of the document before these.
    pub offset: usize,
    /// The document.
    pub document: &'a Document,
}

/// One token of a document.
#[derive(Debug, Clone, Copy)]
pub struct Token<'a> {
    /// Its id.
    pub id: u32,
    /// Whether it is trained on.
    pub trained: bool,
    /// Its values of fields.
    pub values: Values<'a>,
}

impl<'a> TokenSlice<'a> {
    /// Some of these tokens.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        Self {
            ids: &self.ids[range.clone()],
            trained: self.trained.map(|trained| &trained[range.clone()]),
            values: self.values.after(range.start),
            offset: self.offset + range.start,
            ..*self
        }
    }

    /// The token at an index, if there is one.
    pub fn get(&self, index: usize) -> Option<Token<'a>> {
        let id = *self.ids.get(index)?;
        let trained = self.trained.is_none_or(|trained| trained[index]);
        Some(Token { id, trained, values: self.values.after(index) })
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}
