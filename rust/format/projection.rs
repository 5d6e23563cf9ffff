//! The wanted columns of a record, and their extraction.

use std::sync::Arc;

use gristmill_json::{Content, Offsets, Selector, Typed, View};

use super::{Line, Path, Position, RawKind, RawRecord, Step, Values, json_of, jsonl, located};
use crate::error::ShardError;

/// The columns that are wanted of each record: its text or all columns, and the values of some paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    columns: Columns,
    paths: Vec<Path>,
    /// The paths in JSON.
    selector: Selector,
    images: Option<ImageParts>,
}

/// Width and height of an image that begins with some bytes. The error says what was expected and found.
pub type SizeOf = fn(&[u8]) -> Result<(u32, u32), String>;

/// The name of the format of an image that begins with some bytes. None: they are not those of an image.
pub type KindOf = fn(&[u8]) -> Option<&'static str>;

/// The media of a source beside its texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Medium {
    /// Images.
    #[default]
    Image,
    /// Videos.
    Video,
}

impl Medium {
    /// Its name, which is also the type of its parts in messages.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Video => "video",
        }
    }

    /// Its name with an article.
    pub fn one(self) -> &'static str {
        match self {
            Self::Image => "an image",
            Self::Video => "a video",
        }
    }
}

/// The members of a group in a tar that are images.
#[derive(Debug, Clone)]
pub struct ImageParts {
    /// Their extensions. One without a dot stands for all that end in it: `jpg` also for `0.jpg`.
    pub extensions: Vec<String>,
    /// Whether the user named them. Each group then has one of them; else these are all that images have, and a group may
    /// be without an image, under any other extension, too.
    pub are_named: bool,
    /// Whether they are images or videos.
    pub medium: Medium,
    /// Whether images are in the columns of records, and not members of tars: the reader then has nothing to do.
    pub are_columns: bool,
    /// The function that finds their sizes.
    pub size: SizeOf,
    /// The format by the first bytes.
    pub kind: KindOf,
    /// Whether that format is decoded.
    pub is_decoded: fn(&[u8]) -> bool,
}

impl PartialEq for ImageParts {
    fn eq(&self, other: &Self) -> bool {
        (&self.extensions, self.are_named, self.are_columns)
            == (&other.extensions, other.are_named, other.are_columns)
    }
}

impl Eq for ImageParts {}

impl ImageParts {
    /// Whether a member with this extension is wanted.
    pub(super) fn contain(&self, extension: &str) -> bool {
        let last = extension.rsplit('.').next().unwrap_or_default();
        self.extensions
            .iter()
            .any(|wanted| wanted == extension || !wanted.contains('.') && wanted.eq_ignore_ascii_case(last))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Columns {
    /// The string under this key or in this column.
    Text(String),
    /// The columns with these names.
    Named(Vec<String>),
    /// All of them.
    All,
}

/// Memory that is reused for each record.
#[derive(Debug, Default)]
pub struct Scratch(Offsets);

impl Projection {
    /// The string under the key or in the column `column`.
    pub fn text(column: impl Into<String>) -> Self {
        Self::new(Columns::Text(column.into()))
    }

    /// The columns with these names, also nested ones. Formats with columns give each record as an object of these;
    /// a line stays as it is. A column that a file lacks is left out.
    pub fn named(columns: Vec<String>) -> Self {
        Self::new(Columns::Named(columns))
    }

    /// All columns, for [`next_members`](super::RecordReader::next_members).
    pub fn all() -> Self {
        Self::new(Columns::All)
    }

    fn new(columns: Columns) -> Self {
        Self { columns, paths: Vec::new(), selector: Selector::default(), images: None }
    }

    /// Also the values of some paths, each of which leads to one value.
    #[must_use]
    pub fn with_paths(self, paths: Vec<Path>) -> Self {
        Self { selector: Selector::new(&paths), paths, ..self }
    }

    /// Also the images of groups in tars, as [`GroupImages`](super::GroupImages). Shards of other formats are errors, and so are
    /// compressed tars: images are read again later.
    #[must_use]
    pub fn with_images(self, images: ImageParts) -> Self {
        Self { images: Some(images), ..self }
    }

    /// The images that are wanted.
    pub(super) fn images(&self) -> Option<&ImageParts> {
        self.images.as_ref()
    }

    /// The paths of the values that are wanted beside the text.
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// Whether the column `name` is the text or a struct around it, or a path leads into it.
    pub(super) fn is_wanted(&self, name: &str) -> bool {
        self.has_text(name) || self.is_in_paths(name)
    }

    /// Whether anything of the column `name` is read.
    pub(super) fn reads(&self, name: &str) -> bool {
        match &self.columns {
            Columns::Text(_) => self.is_wanted(name),
            Columns::Named(names) => self.is_in_paths(name) || names.iter().any(|wanted| wanted == name),
            Columns::All => true,
        }
    }

    /// Whether the column `name` is the text or a struct around it.
    pub(super) fn has_text(&self, name: &str) -> bool {
        let inside = self.text_column().strip_prefix(name);
        inside.is_some_and(|inside| inside.is_empty() || inside.starts_with('.'))
    }

    /// Whether a path leads into the column `name`.
    pub(super) fn is_in_paths(&self, name: &str) -> bool {
        self.paths.iter().any(|path| matches!(path.first(), Some(Step::Key(key)) if key == name))
    }

    pub(super) fn columns(&self) -> &Columns {
        &self.columns
    }

    fn text_column(&self) -> &str {
        match &self.columns {
            Columns::Text(column) => column,
            Columns::Named(_) | Columns::All => "",
        }
    }

    /// Appends the wanted string of a record of `shard` to `text`, and returns its bytes. Validates the whole record. On
    /// error `text` is as it was.
    pub fn extract(
        &self,
        shard: &Arc<str>,
        record: RawRecord<'_>,
        text: &mut String,
    ) -> Result<usize, ShardError> {
        let before = text.len();
        let extracted = match record.kind {
            RawKind::Line => jsonl::extract(record, self.text_column(), text),
            RawKind::Row => self.extract_of_row(record, text),
            RawKind::Text => extract_text(record.bytes, self.text_column(), text),
            RawKind::Filtered | RawKind::Ids { .. } => Ok(0),
        };
        extracted.map_err(|reason| {
            text.truncate(before);
            located(shard, record.position, reason)
        })
    }

    fn extract_of_row(&self, record: RawRecord<'_>, text: &mut String) -> Result<usize, String> {
        let column = self.text_column();
        let value = View::packed(record.bytes).inside(column);
        if let Some(value) = value
            && let Content::Text(found) = value.content()
        {
            if matches!(value.typed(), Some(Typed::Bytes(_))) && value.typed().is_some_and(Typed::is_lost) {
                return Err(format!("expected UTF-8 in the column {column:?}, found bytes that are not"));
            }
            text.push_str(&found);
            return Ok(found.len());
        }
        // The message about a line says what is there instead.
        let json = json_of(record);
        jsonl::extract(RawRecord { bytes: &json, ..record }, column, text)
    }

    /// Like [`extract`](Self::extract) of a line that `is_kept`, which gets the values of the paths. A line that is not
    /// kept must be valid, but needs no text. Returns whether it is kept; if not, `text` is as it was.
    pub fn extract_if(
        &self,
        shard: &Arc<str>,
        record: RawRecord<'_>,
        text: &mut String,
        scratch: &mut Scratch,
        is_kept: impl FnOnce(&Values<'_>) -> bool,
    ) -> Result<bool, ShardError> {
        let before = text.len();
        let extracted = match record.kind {
            // Values of sidecars only.
            RawKind::Text => {
                if is_kept(&Values::of_line(shard, self.select_nothing(scratch))) {
                    extract_text(record.bytes, self.text_column(), text).map(|_| true)
                } else {
                    Ok(false)
                }
            }
            RawKind::Filtered | RawKind::Ids { .. } => Ok(false),
            RawKind::Row => {
                if is_kept(&Values::of_row(shard, record.bytes, &self.paths)) {
                    self.extract_of_row(record, text).map(|_| true)
                } else {
                    Ok(false)
                }
            }
            RawKind::Line => {
                let is_kept = |line: Line<'_>| is_kept(&Values::of_line(shard, line));
                jsonl::extract_if(record, self.text_column(), text, &self.selector, &mut scratch.0, is_kept)
            }
        };
        extracted.map_err(|reason| {
            text.truncate(before);
            located(shard, record.position, reason)
        })
    }

    /// Calls `take` with the values of the paths of a line or row of `shard`, which needs no text. The error is a message
    /// about the record.
    pub fn values<T>(
        &self,
        shard: &str,
        record: RawRecord<'_>,
        scratch: &mut Scratch,
        take: impl FnOnce(&Values<'_>) -> T,
    ) -> Result<T, String> {
        if record.kind == RawKind::Row {
            return Ok(take(&Values::of_row(shard, record.bytes, &self.paths)));
        }
        let mut taken = None;
        let take = |line: Line<'_>| {
            taken = Some(take(&Values::of_line(shard, line)));
            false
        };
        jsonl::extract_if(record, "", &mut String::new(), &self.selector, &mut scratch.0, take)?;
        taken.ok_or_else(|| "internal error: no values were taken".to_owned())
    }

    /// The values of the paths in a record of a sidecar, which is a JSON object on a line.
    pub fn select<'a>(
        &self,
        sidecar: &Arc<str>,
        position: Position,
        bytes: &'a [u8],
        scratch: &'a mut Scratch,
    ) -> Result<Line<'a>, ShardError> {
        match jsonl::select(bytes, position, &self.selector, &mut scratch.0) {
            Ok(line) => Ok(Line { line, offsets: &scratch.0 }),
            Err(reason) => Err(located(sidecar, position, reason)),
        }
    }

    /// The values of the paths where there is no record.
    pub fn select_nothing<'a>(&self, scratch: &'a mut Scratch) -> Line<'a> {
        self.selector.reset(&mut scratch.0);
        Line { line: "", offsets: &scratch.0 }
    }
}

/// Appends a record that is the wanted string itself.
fn extract_text(bytes: &[u8], column: &str, text: &mut String) -> Result<usize, String> {
    match simdutf8::compat::from_utf8(bytes) {
        Ok(string) => {
            text.push_str(string);
            Ok(string.len())
        }
        Err(error) => {
            let at = error.valid_up_to();
            Err(format!(
                "expected UTF-8 in the column {column:?}, found byte 0x{:02x} at byte {at} of the text",
                bytes[at]
            ))
        }
    }
}
