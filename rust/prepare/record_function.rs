//! A function of the user, from the parts of a record to the record that is read: messages or texts, and names of images.
//!
//! ```text
//! given       {"json": {"q": "Who?", "a": "An ant."}}, of the key "s0001", with the images ["jpg"]
//! made        {"messages": [...], "images": ["jpg"]}            null leaves the record out
//!             "images": [{"name": "a.jpg", "path": "/data/a.jpg", "size": 9000}]      a file that it has read by its name
//! ```

use std::fmt;
use std::sync::Arc;

use super::field::Field;
use super::image_columns::{Files, Found, ImageKind, Missing};
use super::image_messages::is_member;
use crate::format::{self, Content, Position, Projection, RawKind, RawRecord, Scratch, Step, Values, View};
use crate::store::Shard;

/// From a record and its key, as JSON, to the one that is read, or none. The error says what went wrong.
pub trait Make: Send + Sync + fmt::Debug {
    /// Calls the function, also with the members that are images, and with the files that it may read.
    fn make(
        &self,
        record: &str,
        key: &str,
        members: &[&str],
        files: Files<'_>,
    ) -> Result<Option<String>, Missing>;
}

/// An image that a result lists.
#[derive(Debug)]
pub(super) enum Listed {
    /// One of the record's own, by its index among these.
    Own(usize),
    /// A file that the function has found.
    File(Found),
}

/// The function, with what it is given, and how its result is read.
#[derive(Debug, Clone)]
pub struct RecordFunction {
    /// The function.
    pub function: Arc<dyn Make>,
    /// The parts that it is given, by their names.
    pub given: Vec<(String, Field)>,
    /// The values that are wanted of its result.
    pub projection: Projection,
    /// The key of the images in it.
    pub images: Field,
    /// The kind of these images.
    pub kind: ImageKind,
}

impl RecordFunction {
    /// Calls the function with the values of a record, its key and the members that are images, and `fill` with the values of
    /// its result, if there is one, and the images that it lists. The error is a message about the record.
    pub(super) fn call(
        &self,
        values: &Values<'_>,
        key: &str,
        members: &[&str],
        files: Files<'_>,
        fill: impl FnOnce(&Values<'_>, Option<&[Listed]>) -> Result<(), Missing>,
    ) -> Result<(), Missing> {
        let mut record = Vec::new();
        for (name, field) in &self.given {
            let Some(value) = field.of(values) else { continue };
            record.push(if record.is_empty() { b'{' } else { b',' });
            gristmill_json::write_string(name, &mut record);
            record.push(b':');
            gristmill_json::write_sized(value, &mut record);
        }
        if record.is_empty() {
            record.push(b'{');
        }
        record.push(b'}');
        let record = String::from_utf8_lossy(&record);
        let Some(made) = self.function.make(&record, key, members, files)? else { return Ok(()) };
        let line = RawRecord::new(RawKind::Line, Position::default(), made.as_bytes());
        let read = |made: &Values<'_>| {
            let images = self.images(made, key, members, files)?;
            fill(made, images.as_deref())
        };
        self.projection.values("", line, &mut Scratch::default(), read)?
    }

    /// The images that the result lists; none: all of the record.
    fn images(
        &self,
        made: &Values<'_>,
        key: &str,
        members: &[&str],
        files: Files<'_>,
    ) -> Result<Option<Vec<Listed>>, Missing> {
        let Some(list) = self.images.of(made).filter(|list| list.content() != Content::Null) else {
            return Ok(None);
        };
        if !list.is_array() {
            return Err(unlisted(members, list.content().name()).into());
        }
        let mut named = Vec::new();
        let mut times = vec![0; members.len()];
        for item in list.items() {
            let found: Vec<usize> = match item.content() {
                Content::Object => {
                    named.push(Err(self.file(item, files)?));
                    continue;
                }
                Content::Text(name) => {
                    (0..members.len()).filter(|at| is_member(&name, key, members[*at])).collect()
                }
                _ => item.json().parse().ok().filter(|at| *at < members.len()).into_iter().collect(),
            };
            let Some(first) = found.first() else { return Err(unlisted(members, &item.json()).into()) };
            times[*first] += usize::from(found.len() > 1);
            named.push(Ok(found));
        }
        // A name of several images is all of them, or where it is listed as often as there are, one each time.
        let mut next = vec![0; members.len()];
        let mut all = Vec::new();
        for found in named {
            let found = match found {
                Ok(found) => found,
                Err(file) => {
                    all.push(Listed::File(file));
                    continue;
                }
            };
            let (first, times) = (found[0], times[found[0]]);
            if found.len() == 1 || times == 1 {
                all.extend(found.into_iter().map(Listed::Own));
            } else if times == found.len() {
                all.push(Listed::Own(found[next[first]]));
                next[first] += 1;
            } else {
                let (name, count) = (members[first], found.len());
                return Err(format!(
                    "expected {name:?} once under \"images\", for all {count} images of this name, or {count} times, found it \
                     {times} times; list numbers"
                )
                .into());
            }
        }
        Ok(Some(all))
    }

    /// The image that a file is which the function has found, as `gristmill._sample.file_stores` describes it.
    fn file(&self, item: View<'_>, files: Files<'_>) -> Result<Found, Missing> {
        let inside = |key: &str| item.step(&Step::Key(key.to_owned()));
        let text = |key: &str| inside(key).and_then(|value| format::text(value).ok());
        let number = |key: &str| inside(key).and_then(|value| value.json().parse().ok());
        let (Some(name), Some(path), Some(size)) = (text("name"), text("path"), number("size")) else {
            let expected = "expected a file of a store, as its get() returns it, as an image";
            return Err(format!("{expected}, found {}", item.json()).into());
        };
        let e_tag = text("e_tag").map(|e_tag| Arc::from(&*e_tag));
        let file = Shard { e_tag, ..Shard::whole(&*path, size) };
        let offset: u64 = number("offset").unwrap_or(0);
        let end = number("bytes").map_or(size, |bytes: u64| offset.saturating_add(bytes));
        files.image(&name, file, offset..end, self.kind)
    }
}

fn unlisted(members: &[&str], found: &str) -> String {
    format!(
        "expected a list under \"images\", of names or numbers of the sample's images {members:?}, found {found}"
    )
}
