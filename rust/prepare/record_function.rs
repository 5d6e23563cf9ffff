//! A function of the user, from the parts of a record to the record that is read: messages or texts, and names of images.
//!
//! ```text
//! given       {"json": {"q": "Who?", "a": "An ant."}}, of the key "s0001", with the images ["jpg"]
//! made        {"messages": [...], "images": ["jpg"]}            null leaves the record out
//! ```

use std::fmt;
use std::sync::Arc;

use super::field::Field;
use super::image_columns::Missing;
use super::image_messages::is_member;
use crate::format::{Content, Position, Projection, RawKind, RawRecord, Scratch, Values};

/// From a record and its key, as JSON, to the one that is read, or none. The error says what went wrong.
pub trait Make: Send + Sync + fmt::Debug {
    /// Calls the function, also with the members that are images.
    fn make(&self, record: &str, key: &str, members: &[&str]) -> Result<Option<String>, String>;
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
}

impl RecordFunction {
    /// Calls the function with the values of a record, its key and the members that are images, and `fill` with the values of
    /// its result, if there is one, and the images that it lists. The error is a message about the record.
    pub(super) fn call(
        &self,
        values: &Values<'_>,
        key: &str,
        members: &[&str],
        fill: impl FnOnce(&Values<'_>, Option<&[usize]>) -> Result<(), Missing>,
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
        let Some(made) = self.function.make(&record, key, members)? else { return Ok(()) };
        let line = RawRecord::new(RawKind::Line, Position::default(), made.as_bytes());
        let read = |made: &Values<'_>| {
            let images = self.images(made, key, members)?;
            fill(made, images.as_deref())
        };
        self.projection.values("", line, &mut Scratch::default(), read)?
    }

    /// The images that the result lists, by their indices among those of the record; none: all of them.
    fn images(&self, made: &Values<'_>, key: &str, members: &[&str]) -> Result<Option<Vec<usize>>, String> {
        let Some(list) = self.images.of(made).filter(|list| list.content() != Content::Null) else {
            return Ok(None);
        };
        if !list.is_array() {
            return Err(unlisted(members, list.content().name()));
        }
        let mut named = Vec::new();
        let mut times = vec![0; members.len()];
        for item in list.items() {
            let found: Vec<usize> = match item.content() {
                Content::Text(name) => {
                    (0..members.len()).filter(|at| is_member(&name, key, members[*at])).collect()
                }
                _ => item.json().parse().ok().filter(|at| *at < members.len()).into_iter().collect(),
            };
            let Some(first) = found.first() else { return Err(unlisted(members, &item.json())) };
            times[*first] += usize::from(found.len() > 1);
            named.push(found);
        }
        // A name of several images is all of them, or where it is listed as often as there are, one each time.
        let mut next = vec![0; members.len()];
        let mut all = Vec::new();
        for found in named {
            let (first, times) = (found[0], times[found[0]]);
            if found.len() == 1 || times == 1 {
                all.extend(found);
            } else if times == found.len() {
                all.push(found[next[first]]);
                next[first] += 1;
            } else {
                let (name, count) = (members[first], found.len());
                return Err(format!(
                    "expected {name:?} once under \"images\", for all {count} images of this name, or {count} times, found it \
                     {times} times; list numbers"
                ));
            }
        }
        Ok(Some(all))
    }
}

fn unlisted(members: &[&str], found: &str) -> String {
    format!(
        "expected a list under \"images\", of names or numbers of the sample's images {members:?}, found {found}"
    )
}
