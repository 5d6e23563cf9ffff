//! The wanted values of a record.

use std::borrow::Cow;

use gristmill_json::{Content, Line, Path, Step, Typed, View, keys};

/// The wanted values of a record and its sidecars.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    /// The name of the record's shard.
    shard: &'a str,
    record: Record<'a>,
    sidecars: &'a [Line<'a>],
}

#[derive(Clone, Copy)]
enum Record<'a> {
    Line(Line<'a>),
    /// A row, and the wanted paths.
    Row(View<'a>, &'a [Path]),
}

impl<'a> Values<'a> {
    /// The values of a line without sidecars.
    pub(super) fn of_line(shard: &'a str, line: Line<'a>) -> Self {
        Self { shard, record: Record::Line(line), sidecars: &[] }
    }

    /// The values that paths lead to in a row without sidecars.
    pub(super) fn of_row(shard: &'a str, row: &'a [u8], paths: &'a [Path]) -> Self {
        Self { shard, record: Record::Row(View::packed(row), paths), sidecars: &[] }
    }

    /// The first `own` of them together with those of sidecars, whose paths are numbered after these.
    #[must_use]
    pub fn with_sidecars<'b>(&self, own: usize, sidecars: &'b [Line<'b>]) -> Values<'b>
    where
        'a: 'b,
    {
        let record = match self.record {
            Record::Line(Line { line, offsets }) => {
                Record::Line(Line { line, offsets: offsets.get(..own).unwrap_or(offsets) })
            }
            Record::Row(row, paths) => Record::Row(row, paths.get(..own).unwrap_or(paths)),
        };
        Values { shard: self.shard, record, sidecars }
    }

    /// The name of the record's shard.
    pub fn shard(&self) -> &'a str {
        self.shard
    }

    /// The keys of a record that is a line, for messages.
    pub fn keys(&self) -> Option<String> {
        match self.record {
            Record::Line(Line { line, .. }) => Some(keys(line.as_bytes())),
            Record::Row(..) => None,
        }
    }

    /// The value of the path with this index in the projection.
    pub fn get(&self, path: usize) -> Option<View<'a>> {
        let own = match self.record {
            Record::Line(line) if path < line.offsets.len() => return line.get(path),
            Record::Row(row, paths) if path < paths.len() => {
                return paths[path].iter().try_fold(row, View::step);
            }
            Record::Line(line) => line.offsets.len(),
            Record::Row(_, paths) => paths.len(),
        };
        let mut path = path - own;
        for line in self.sidecars {
            if path < line.offsets.len() {
                return line.get(path);
            }
            path -= line.offsets.len();
        }
        None
    }
}

/// The string that a value is. The error names what it is instead.
pub fn text(value: View<'_>) -> Result<Cow<'_, str>, &'static str> {
    match value.content() {
        _ if value.typed().is_some_and(Typed::is_lost) => {
            Err("bytes that are not UTF-8, a date, a time, a duration, a decimal or NaN")
        }
        Content::Text(text) => Ok(text),
        // A member of a tar that is no text is written as the number of its bytes.
        Content::Object if value.step(&Step::Key("bytes".to_owned())).is_some() => {
            Err("an object of bytes, which are no text: text is UTF-8 without NUL")
        }
        found => Err(found.name()),
    }
}
