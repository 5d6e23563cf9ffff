//! The text form of cursors in saved states. Nothing else writes or reads it.
//!
//! ```text
//! shard=1 record=2 byte=85 offset=43 records=2 documents=2 tokens=64 text_bytes=30
//! ```
//!
//! In a mixture, a lane has one for each source that it has read, under its name:
//!
//! ```text
//! code: shard=1 record=2 tokens=64; web: record=7 tokens=128
//! ```
//!
//! Behind a border of the stream, the records of its window that were delivered follow, see [`Carried`]:
//!
//! ```text
//! shard=1 record=2 tokens=64 carried=1/2-7,9
//! ```
//!
//! Numbers are named, and zeros are omitted. A number that a later release adds is thus 0 in every state
//! saved before it, so it must be defined in a way that makes 0 right there.

use std::fmt::Write;
use std::sync::Arc;

use crate::lane::carried::Carried;
use crate::lane::cursor::{Cursor, LARGEST};

/// The version of the form of saved states. A state of another version is refused.
pub const VERSION: u64 = 3;

/// The version of the states of mixtures, which earlier releases do not read.
pub const MIXTURE_VERSION: u64 = 4;

/// The name of the documents that were delivered before a border.
const CARRIED: &str = "carried";

/// The longest name of a source in bytes: a state holds it once for each lane.
const LONGEST_NAME: usize = 64;

/// The most characters of a faulty state that a message quotes.
const QUOTED: usize = 60;

/// The cursor of a source, and the documents from there on that were delivered before a border.
pub type Position = (Cursor, Option<Arc<Carried>>);

/// The cursors of a lane as text, each with the name of its source. One without a name stands alone.
pub fn write_lane<'a>(
    cursors: impl IntoIterator<Item = (&'a str, &'a Cursor, Option<&'a Carried>)>,
) -> String {
    let write = |cursor: &Cursor, carried: Option<&Carried>| {
        let text = write_cursor(&cursor.saved());
        let carried = carried.filter(|carried| carried.is_ahead_of(cursor.window)).map(Carried::write);
        let carried = carried.map(|carried| format!("{CARRIED}={carried}"));
        [Some(text), carried]
            .into_iter()
            .flatten()
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let texts = cursors.into_iter().map(|(name, cursor, carried)| match (name, write(cursor, carried)) {
        ("", text) => text,
        (_, text) if text.is_empty() => text,
        (name, text) => format!("{name}: {text}"),
    });
    texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The cursors of a lane's text, with the names of their sources. The error says what was expected and found.
pub fn read_lane(text: &str) -> Result<Vec<(String, Position)>, String> {
    if !text.contains(':') {
        let (cursor, carried) = read_position(text)?;
        let is_start = cursor.saved() == Cursor::default() && carried.is_none();
        return Ok(if is_start { Vec::new() } else { vec![(String::new(), (cursor, carried))] });
    }
    let mut found: Vec<(String, Position)> = Vec::new();
    for part in text.split("; ") {
        let Some((name, numbers)) = part.split_once(": ").filter(|(name, _)| is_source_name(name)) else {
            return Err(format!("expected cursors as source: name=number, found {}", quoted(part)));
        };
        if found.iter().any(|(known, _)| known == name) {
            return Err(format!("expected each source once, found {} twice", quoted(name)));
        }
        let cursor =
            read_position(numbers).map_err(|error| format!("{error}, of the source {}", quoted(name)))?;
        found.push((name.to_owned(), cursor));
    }
    Ok(found)
}

/// The text of the lane where its run began, of which this is a later one.
pub fn lane_start(text: &str) -> Result<String, String> {
    let starts: Vec<_> =
        read_lane(text)?.into_iter().map(|(name, (cursor, _))| (name, cursor.at_start())).collect();
    Ok(write_lane(starts.iter().map(|(name, cursor)| (&**name, cursor, None))))
}

/// Whether a name fits into this form.
pub fn is_source_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !name.is_empty() && name.len() <= LONGEST_NAME && name.bytes().all(fits)
}

fn read_position(text: &str) -> Result<Position, String> {
    let (numbers, carried) = match text.rsplit_once(' ').unwrap_or(("", text)) {
        (numbers, last) if last.starts_with(CARRIED) => (numbers, last.strip_prefix(CARRIED)),
        _ => (text, None),
    };
    let cursor = read_cursor(numbers)?;
    let Some(carried) = carried else { return Ok((cursor, None)) };
    let records = carried.strip_prefix('=').and_then(|text| Carried::read(text, cursor.window.epoch));
    let records = records.ok_or_else(|| {
        format!("expected records after {CARRIED}, such as 3/15-18,20.0@0-128, found {}", quoted(carried))
    })?;
    Ok((cursor, Some(Arc::new(records))))
}

/// A cursor as text.
pub fn write_cursor(cursor: &Cursor) -> String {
    let mut text = String::new();
    for (name, number) in cursor.numbers().filter(|(_, number)| *number > 0) {
        let space = if text.is_empty() { "" } else { " " };
        write!(text, "{space}{name}={number}").expect("writing to a string cannot fail");
    }
    text
}

/// The cursor of a text, whose numbers may be in any order. The error says what was expected and found.
pub fn read_cursor(text: &str) -> Result<Cursor, String> {
    let mut cursor = Cursor::default();
    let mut seen = Vec::new();
    for part in text.split(' ').filter(|_| !text.is_empty()) {
        let Some((name, value)) = part.split_once('=') else {
            return Err(format!("expected numbers as name=number, found {}", quoted(part)));
        };
        let Some(number) = cursor.number_mut(name) else {
            return Err(format!(
                "found a number {}, which this release does not know: the state was saved by a newer release of \
                 gristmill, or is damaged",
                quoted(name)
            ));
        };
        *number =
            value.parse().ok().filter(|number| *number <= LARGEST && is_plain(value)).ok_or_else(|| {
                format!("expected {name} to be an integer from 0 to 2**62, found {}", quoted(value))
            })?;
        if seen.contains(&name) {
            return Err(format!("expected each number once, found {} twice", quoted(name)));
        }
        seen.push(name);
    }
    Ok(cursor)
}

/// Whether an integer is written in the one way: digits without a sign or leading zeros.
fn is_plain(value: &str) -> bool {
    value == "0" || value.bytes().all(|byte| byte.is_ascii_digit()) && !value.starts_with('0')
}

fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(QUOTED).collect();
    format!("{shown:?}{}", if shown.len() < text.len() { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_named_and_zeros_left_out() {
        let mut cursor = Cursor::default();
        assert_eq!(write_cursor(&cursor), "");
        cursor.window.record = 2;
        cursor.totals.tokens = 64;
        assert_eq!(write_cursor(&cursor), "record=2 tokens=64");
    }

    #[test]
    fn cursor_saved_before_a_number_was_added_is_read() {
        // As `lost_shards` would have been, had it come later.
        let cursor = read_cursor("epoch=1 record=7 quarantined=1 records=9").unwrap();
        assert_eq!((cursor.window.record, cursor.totals.lost_shards), (7, 0));
    }

    #[test]
    fn damaged_cursors_are_refused() {
        for (text, expected) in [
            ("record=1 recrod=2", "found a number \"recrod\", which this release does not know"),
            ("record", "expected numbers as name=number, found \"record\""),
            (" record=1", "expected numbers as name=number, found \"\""),
            ("record=1 record=1", "expected each number once, found \"record\" twice"),
            ("record=-1", "expected record to be an integer from 0 to 2**62, found \"-1\""),
            ("record=+1", "found \"+1\""),
            ("record=01", "found \"01\""),
            ("record=", "found \"\""),
            ("record=4611686018427387905", "found \"4611686018427387905\""),
            ("record=99999999999999999999999", "found \"99999999999999999999999\""),
        ] {
            let error = read_cursor(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn text_holds_every_cursor(numbers in prop::collection::vec(0..=LARGEST, 29), zeros in prop::bits::u32::ANY) {
            let mut cursor = Cursor::default();
            let names: Vec<_> = cursor.numbers().map(|(name, _)| name).collect();
            for (index, (name, number)) in names.into_iter().zip(numbers).enumerate() {
                *cursor.number_mut(name).unwrap() = if zeros >> index & 1 == 1 { 0 } else { number };
            }
            prop_assert_eq!(read_cursor(&write_cursor(&cursor)), Ok(cursor));
        }

        #[test]
        fn text_holds_the_cursors_of_every_lane(tokens in prop::collection::vec(0..=LARGEST, 1..5)) {
            let cursors: Vec<(String, Position)> = tokens.iter().enumerate().map(|(index, tokens)| {
                let mut cursor = Cursor::default();
                cursor.totals.tokens = *tokens;
                (format!("s-{index}"), (cursor, None))
            }).collect();
            let text = write_lane(cursors.iter().map(|(name, (cursor, _))| (&**name, cursor, None)));
            let read: Vec<_> =
                cursors.into_iter().filter(|(_, (cursor, _))| cursor.saved() != Cursor::default()).collect();
            prop_assert_eq!(read_lane(&text), Ok(read));
        }

        #[test]
        fn any_text_of_a_lane_is_read_or_refused(
            text in "([a-z]{0,3}:? ?){0,2}(record=[0-9]{0,3};? ?){0,3}([a-z]{0,2}: record=1)?"
        ) {
            if let Ok(cursors) = read_lane(&text) {
                let again = write_lane(cursors.iter().map(|(name, (cursor, _))| (&**name, cursor, None)));
                let kept: Vec<_> =
                    cursors.into_iter().filter(|(_, (cursor, _))| cursor.saved() != Cursor::default()).collect();
                prop_assert_eq!(read_lane(&again), Ok(kept));
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-z_]{0,8}(=[0-9-]{0,22})?( [a-z_]{1,8}=[0-9]{0,22}){0,3}") {
            if let Ok(cursor) = read_cursor(&text) {
                prop_assert_eq!(read_cursor(&write_cursor(&cursor)), Ok(cursor));
            }
        }
    }
}
