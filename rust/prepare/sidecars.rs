//! The records of sidecars beside a record: their values for the filter, and whether they are of the same row.

use std::sync::Arc;

use crate::error::ShardError;
use crate::format::{Line, Position, Projection, RawKind, RawRecord, Scratch, Values};
use crate::spec::sidecars::{Matching, Sidecars};

/// The records that the sidecars have beside a record.
#[derive(Debug, Clone, Copy)]
pub struct Joined<'a> {
    /// The stream's sidecars.
    pub sidecars: &'a Sidecars,
    /// The index in the manifest of the record's shard.
    pub shard: usize,
    /// For each of them the position and length of its record; none where the shard has no such sidecar.
    pub records: &'a [Option<(Position, usize)>],
    /// These records, one after another.
    pub bytes: &'a [u8],
}

/// Memory that is reused for each record.
#[derive(Debug, Default)]
pub struct JoinedScratch {
    /// The memory of the record.
    pub own: Scratch,
    /// The memories of its sidecars.
    pub beside: Vec<Scratch>,
}

impl<'a> Joined<'a> {
    /// Takes what the sidecars have beside the next record of `shard` from what is left of their records, and of their
    /// bytes.
    pub fn take(
        sidecars: &'a Sidecars,
        shard: u32,
        records: &mut &'a [Option<(Position, usize)>],
        bytes: &mut &'a [u8],
    ) -> Self {
        let (own, rest) = records.split_at(sidecars.kinds.len());
        *records = rest;
        let length = own.iter().flatten().map(|(_, length)| length).sum();
        let (own_bytes, rest) = bytes.split_at(length);
        *bytes = rest;
        Self { sidecars, shard: shard as usize, records: own, bytes: own_bytes }
    }

    /// Calls `take` with the values of the paths of a record, if the filter keeps it; returns whether it does. The
    /// first `filter_paths` of these paths are the filter's.
    pub fn select(
        &self,
        projection: &Projection,
        filter_paths: usize,
        shard: &Arc<str>,
        record: RawRecord<'_>,
        scratch: &mut JoinedScratch,
        take: impl FnOnce(&Values<'_>) -> Result<(), String>,
    ) -> Result<bool, ShardError> {
        if record.kind == RawKind::Filtered {
            return Ok(false);
        }
        let JoinedScratch { own, beside } = scratch;
        let bad = |reason| located(shard, record.position, reason);
        let lines = self.values(beside).map_err(bad)?;
        let taken = projection.values(shard, record, own, |values| {
            let joined = values.with_sidecars(filter_paths, &lines);
            if self.keeps(&joined, shard, record.position.record)? {
                take(values).map(|()| true)
            } else {
                Ok(false)
            }
        });
        taken.and_then(|taken| taken).map_err(bad)
    }

    /// Whether the filter keeps record `number` of `shard`, by its values and those of the sidecars. The error is a
    /// message about records that are not of the same row.
    pub fn keeps(&self, values: &Values<'_>, shard: &str, number: u64) -> Result<bool, String> {
        self.check(values, shard, number)?;
        Ok(self.sidecars.keep.as_ref().is_none_or(|keep| keep.keeps(values)))
    }

    /// The wanted values of all sidecars, for [`Values::with_sidecars`]. The error is a message about the record.
    pub fn values(&self, scratch: &'a mut Vec<Scratch>) -> Result<Vec<Line<'a>>, String> {
        scratch.resize_with(self.sidecars.kinds.len(), Scratch::default);
        let mut bytes = self.bytes;
        self.sidecars
            .kinds
            .iter()
            .zip(self.records)
            .zip(scratch)
            .map(|((sidecar, record), scratch)| {
                let projection = &sidecar.read.projection;
                let (Some((position, length)), Some(file)) = (*record, &sidecar.files[self.shard]) else {
                    return Ok(projection.select_nothing(scratch));
                };
                let (line, rest) = bytes.split_at(length);
                bytes = rest;
                projection
                    .select(&file.path, position, line, scratch)
                    .map_err(|error| sidecar.unusable(&error))
            })
            .collect()
    }

    /// Checks that the records are of the same row as record `number` of `shard`. The error is a message about that.
    pub fn check(&self, values: &Values<'_>, shard: &str, number: u64) -> Result<(), String> {
        for (sidecar, record) in self.sidecars.kinds.iter().zip(self.records) {
            let (Some(matching), Some((position, _)), Some(file)) =
                (&sidecar.matching, record, &sidecar.files[self.shard])
            else {
                continue;
            };
            check_ids(matching, values, shard, number).map_err(|(expected, found)| {
                let reason = format!(
                    "found {found}; the sidecar is of another shard, or one of the two lacks a line: download both again, or \
                     set the sidecar's match= to keys that they share"
                );
                let error = located(&file.path, *position, reason);
                format!("expected {expected} in its sidecar {:?}: {error}", sidecar.name)
            })?;
        }
        Ok(())
    }
}

/// Compares two ids. The error is what was expected and found.
fn check_ids(
    matching: &Matching,
    values: &Values<'_>,
    shard: &str,
    number: u64,
) -> Result<(), (String, String)> {
    let id = |path| values.get(path).and_then(crate::format::View::id);
    match (id(matching.record), id(matching.sidecar)) {
        (Some(own), Some(other)) if own == other => Ok(()),
        (Some(own), Some(other)) => Err((format!("the id {own:?}"), format!("{other:?}"))),
        (None, Some(other)) if !matching.required => check_row(&other, &matching.ending, shard, number),
        (None, _) if matching.required => Err((
            "an id to compare".to_owned(),
            "none in the record itself, where match= names it,".to_owned(),
        )),
        (Some(own), None) if matching.required => Err((format!("the id {own:?}"), "none".to_owned())),
        (_, None | Some(_)) => Ok(()),
    }
}

/// Compares an id such as `2023-06/0000/en_head.json.gz/3` with a shard whose name has that `ending`, and with a record.
fn check_row(id: &str, ending: &str, shard: &str, number: u64) -> Result<(), (String, String)> {
    let Some((path, row)) = id.rsplit_once('/') else { return Ok(()) };
    let is_row = !row.is_empty() && row.bytes().all(|byte| byte.is_ascii_digit());
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let is_shard = if ending.is_empty() { name(path) == name(shard) } else { path.ends_with(ending) };
    if !(is_row && is_shard) {
        return Ok(());
    }
    let is_this = shard.strip_suffix(path).is_some_and(|above| above.is_empty() || above.ends_with('/'));
    if is_this && row.parse() == Ok(number) {
        return Ok(());
    }
    Err((format!("the id of row {number} of this shard"), format!("{id:?}")))
}

/// An error at a position of a shard.
pub(super) fn located(shard: &Arc<str>, position: Position, reason: String) -> ShardError {
    ShardError {
        shard: Arc::clone(shard),
        record: Some(position.record),
        byte: position.shown_byte(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_name_a_row_must_name_this_one() {
        let shard = "/data/documents/2023-06/0000/en_head.json.gz";
        let check = |id: &str, ending| check_row(id, ending, shard, 17).is_ok();
        for ending in [".json.gz", ""] {
            for (id, is_this) in [
                ("2023-06/0000/en_head.json.gz/17", true),
                ("en_head.json.gz/17", true),
                ("2023-06/0000/en_head.json.gz/18", false),
                ("2023-06/0001/en_head.json.gz/17", false),
                ("en_head.json.gz/017", true),
                ("n_head.json.gz/17", ending.is_empty()),
                ("2023-06/0000/en_middle.json.gz/17", ending.is_empty()),
                // Ids of other kinds.
                ("17", true),
                ("https://a.org/18", true),
                ("2023-06/0000/en_head.json.gz/x", true),
                ("", true),
            ] {
                assert_eq!(check(id, ending), is_this, "{id} {ending:?}");
            }
        }
    }
}
