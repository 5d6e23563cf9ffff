//! Ready ids: samples that need no encoding.

use gristmill_json::{Begin, Read, Source, Text};

use super::Sample;
use super::field::Field;
use super::values::{damaged, name_of};
use crate::format::{Values, View};

/// The largest id: ids are int32 in batches.
const LARGEST_ID: i64 = i32::MAX as i64;
/// The label of a token that is not trained on.
const IGNORED: i64 = -100;

/// How records become samples of ready ids.
#[derive(Debug, Clone)]
pub struct ReadyTokens {
    /// How many of the projection's paths are those of the filter.
    pub filter_paths: usize,
    /// The key of the ids.
    pub ids: Field,
    /// The key that says which of them are trained on; none: all are.
    pub mask: Option<Mask>,
    /// Whether a sample without trained tokens is left out.
    pub drops_untrained: bool,
}

/// The key that says which ids are trained on.
#[derive(Debug, Clone)]
pub enum Mask {
    /// 1 for those that are, else 0.
    Loss(Field),
    /// The id itself for those that are, else -100.
    Labels(Field),
}

impl ReadyTokens {
    /// Puts the ids of a record in an empty sample. The error says what was expected and found.
    pub(super) fn read(&self, values: &Values<'_>, sample: &mut Sample) -> Result<(), String> {
        let view = find(&self.ids, values, "field")?;
        let Sample { ids, trained_ids, .. } = sample;
        if !view.append_ids(ids) {
            each_item(&self.ids, view, "ids, integers from 0 to 2147483647", |begin| match begin {
                Begin::Int(id @ 0..=LARGEST_ID) => {
                    ids.push(*id as u32);
                    true
                }
                _ => false,
            })?;
        }
        let key = match &self.mask {
            None => return Ok(()),
            Some(Mask::Loss(key)) => {
                let view = find(key, values, "loss_mask")?;
                let mut marks = Vec::new();
                if view.append_ids(&mut marks) && marks.iter().all(|mark| *mark <= 1) {
                    trained_ids.extend(marks.iter().map(|mark| *mark == 1));
                    return check_length(key, ids.len(), trained_ids.len());
                }
                each_item(key, view, "0 and 1, or booleans", |begin| {
                    let is_trained = match begin {
                        Begin::Bool(value) => *value,
                        Begin::Int(number @ 0..=1) => *number == 1,
                        Begin::Float(number) if [0.0, 1.0].contains(number) => *number > 0.5,
                        _ => return false,
                    };
                    trained_ids.push(is_trained);
                    true
                })?;
                key
            }
            Some(Mask::Labels(key)) => {
                let view = find(key, values, "labels")?;
                each_item(key, view, "labels, of each token its id or -100", |begin| {
                    let id = ids.get(trained_ids.len()).map(|id| i64::from(*id));
                    let Begin::Int(label) = begin else { return false };
                    trained_ids.push(*label != IGNORED);
                    // The message about lists of other lengths says more.
                    *label == IGNORED || id.is_none_or(|id| id == *label)
                })?;
                key
            }
        };
        check_length(key, ids.len(), trained_ids.len())
    }
}

/// Checks that a list has an item for each id.
fn check_length(key: &Field, expected: usize, found: usize) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!(
        "expected a list of {expected} under the key {:?}, as there are {expected} ids, found one of {found}",
        key.key()
    ))
}

/// The value under a key that an argument of the sample names.
fn find<'a>(key: &Field, values: &Values<'a>, argument: &str) -> Result<View<'a>, String> {
    key.of(values).ok_or_else(|| key.missing(values, "a list", argument))
}

/// Calls `take` with the items of a list, each of which it must take. `items` are what they are, for messages.
fn each_item(
    key: &Field,
    view: View<'_>,
    items: &str,
    take: impl FnMut(&Begin<'_, ()>) -> bool,
) -> Result<(), String> {
    let read = match view.source() {
        Source::Text(mut text) => read_items(&mut text, take),
        Source::Packed(mut packed) => read_items(&mut packed, take),
    };
    read.map_err(|found| format!("expected a list of {items} under the key {:?}, found {found}", key.key()))
}

fn read_items<'a, R: Read<'a>>(
    reader: &mut R,
    mut take: impl FnMut(&Begin<'_, ()>) -> bool,
) -> Result<(), String> {
    let begin = reader.begin().map_err(|error| damaged(&error).1)?;
    let mut list = match begin {
        Begin::List(list) => list,
        Begin::Json(text) => return read_items(&mut Text::new(text), take),
        begin => return Err(name_of(&begin)),
    };
    let mut index = 0;
    while reader.next_item(&mut list).map_err(|error| damaged(&error).1)? {
        let begin = reader.begin().map_err(|error| damaged(&error).1)?;
        let is_taken = match begin {
            Begin::Int(number) => take(&Begin::Int(number)),
            Begin::Float(number) => take(&Begin::Float(number)),
            Begin::Bool(value) => take(&Begin::Bool(value)),
            _ => false,
        };
        if !is_taken {
            return Err(format!("{} at index {index}", name_of(&begin)));
        }
        index += 1;
    }
    Ok(())
}
