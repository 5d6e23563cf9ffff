//! The wanted values of a record.

use std::borrow::Cow;

use gristmill_json::{Content, Line, View};

use super::Plain;
use super::marks::TYPED;

/// The wanted values of a record and its sidecars.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    record: Line<'a>,
    sidecars: &'a [Line<'a>],
    /// Whether the record is a row, whose JSON has marks.
    has_marks: bool,
}

impl<'a> Values<'a> {
    /// The values of a record without sidecars.
    pub(super) fn of(record: Line<'a>) -> Self {
        Self { record, sidecars: &[], has_marks: false }
    }

    /// The same of a row, if `has_marks`.
    pub(super) fn with_marks(self, has_marks: bool) -> Self {
        Self { has_marks, ..self }
    }

    /// The first `own` of them together with those of sidecars, whose paths are numbered after these.
    #[must_use]
    pub fn with_sidecars<'b>(&self, own: usize, sidecars: &'b [Line<'b>]) -> Values<'b>
    where
        'a: 'b,
    {
        let Line { line, offsets } = self.record;
        let offsets = offsets.get(..own).unwrap_or(offsets);
        Values { record: Line { line, offsets }, sidecars, ..*self }
    }

    /// The value of the path with this index in the projection.
    pub fn get(&self, mut path: usize) -> Option<View<'a>> {
        let mut line = &self.record;
        let mut sidecars = self.sidecars.iter();
        while path >= line.offsets.len() {
            path -= line.offsets.len();
            line = sidecars.next()?;
        }
        let at = line.offsets[path]?;
        Some(View { line: line.line, at })
    }

    /// The string that one of them is. The error names what it is instead; of a type that JSON lacks it has the nearest
    /// string.
    pub fn text(&self, value: View<'a>) -> Result<Cow<'a, str>, &'static str> {
        match value.content() {
            _ if self.has_marks && is_typed(value) => {
                Err("bytes that are not UTF-8, a date, a time, a duration, a decimal or NaN")
            }
            Content::Text(text) => Ok(text),
            found => Err(found.name()),
        }
    }

    /// One of them as templates take it, with or without the keys that structs fill in with null. The error says what was
    /// expected and found.
    pub fn plain(&self, value: View<'a>, keeps_filled: bool) -> Result<Plain<'a>, String> {
        let json = value.json();
        if self.has_marks { Plain::of_row(json, keeps_filled) } else { Ok(Plain::new(json)) }
    }
}

/// Whether a value stands in a row for one whose type JSON lacks.
pub(super) fn is_typed(value: View<'_>) -> bool {
    value.line.as_bytes()[..value.at].ends_with(&[TYPED])
}
