//! Row lists: rows that are left out, in compact sorted form.
//!
//! ```text
//! "2023-06/0000/en_head.json.gz/3"  ──> row 3 of the shard whose path ends so    4 bytes a row
//! "id-17"                           ──> a record whose key holds that id        16 bytes a row
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::{Error, Result, ShardError};
use crate::format::keep::Ids;
use crate::format::{Position, ReadError, ReadOptions, RecordReader, json_of};
use crate::store::Shard;

/// Rows that are left out, by the shards of a manifest: for each the numbers of its records, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows(Vec<Box<[u32]>>);

/// Files that list ids.
#[derive(Debug, Clone)]
pub struct Lists {
    /// The files.
    pub files: Vec<Shard>,
    /// How they are read. The projection wants the text of the column that holds the ids.
    pub read: Arc<ReadOptions>,
    /// Whether the ids are under a key or in a column. If not, each line is an id.
    pub has_column: bool,
}

impl Rows {
    /// Reads ids that name a shard and a row. `shards` are paths from the root, in the order of the manifest.
    pub fn load(lists: &Lists, shards: &[String], stop: &Arc<AtomicBool>) -> Result<Self> {
        let mut tails = Tails::new(shards);
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); shards.len()];
        let mut unknown = None;
        lists.for_each(stop, |id| {
            let expected =
                "expected an id such as 2023-06/0000/en_head.json.gz/3, the end of a shard's path and a row";
            let named = id.rsplit_once('/').and_then(|(path, row)| Some((path, row.parse::<u32>().ok()?)));
            let Some((path, row)) = named else {
                return Err(format!(
                    "{expected}, found {id:?}; set key= if the ids are those of a key of the records"
                ));
            };
            match tails.find(path)? {
                Some(shard) => rows[shard].push(row),
                None => unknown = Some(unknown.take().unwrap_or_else(|| id.to_owned())),
            }
            Ok(())
        })?;
        if let (Some(id), true) = (unknown, rows.iter().all(Vec::is_empty)) {
            let shard = shards.first().map_or("", String::as_str);
            return Err(Error::Argument(format!(
                "drop=: expected ids that name rows of the shards, such as {:?}, found none: the first one is {id:?}",
                format!("{}/0", last_parts(shard, 3))
            )));
        }
        Ok(Self::new(rows))
    }

    /// These rows of each shard.
    pub fn new(rows: Vec<Vec<u32>>) -> Self {
        let sorted = |mut rows: Vec<u32>| {
            rows.sort_unstable();
            rows.dedup();
            rows.into_boxed_slice()
        };
        Self(rows.into_iter().map(sorted).collect())
    }

    /// The rows that are in any of some lists, which are of the same manifest.
    pub fn union(mut lists: impl Iterator<Item = Arc<Self>>) -> Arc<Self> {
        let first = lists.next().unwrap_or_default();
        lists.fold(first, |one, other| {
            let shards = one.0.len().max(other.0.len());
            Arc::new(Self::new((0..shards).map(|shard| [one.of(shard), other.of(shard)].concat()).collect()))
        })
    }

    /// The rows of a shard.
    pub fn of(&self, shard: usize) -> &[u32] {
        self.0.get(shard).map_or(&[], |rows| rows)
    }

    /// How many of a shard are before a record.
    pub fn before(&self, shard: usize, record: u64) -> usize {
        self.of(shard).partition_point(|row| u64::from(*row) < record)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.iter().map(|rows| rows.len()).sum()
    }
}

impl Lists {
    /// Reads ids that are those of a key.
    pub fn ids(&self, stop: &Arc<AtomicBool>) -> Result<Ids> {
        let mut hashes = Vec::new();
        self.for_each(stop, |id| {
            hashes.push(Ids::hash(id));
            Ok(())
        })?;
        Ok(Ids::new(hashes))
    }

    /// Calls `take` with each id, whose error is a message about it.
    fn for_each(
        &self,
        stop: &Arc<AtomicBool>,
        mut take: impl FnMut(&str) -> Result<(), String>,
    ) -> Result<()> {
        let mut text = String::new();
        for file in &self.files {
            let mut reader = RecordReader::open(file, &self.read, stop)?;
            loop {
                text.clear();
                let position = if self.has_column {
                    let next = reader.next_text(&mut text).map_err(|ReadError { mut error, .. }| {
                        error.reason = error.reason.replace("text_field=", "column=");
                        error
                    })?;
                    next.map(|(position, _)| position)
                } else {
                    let record = reader.next_raw()?;
                    let line = record.map(json_of);
                    let line = line.as_deref().map(std::str::from_utf8).transpose().map_err(|error| {
                        let reason = format!("expected ids in UTF-8, found {error}");
                        located(
                            &file.path,
                            record.map_or(Position::default(), |record| record.position),
                            reason,
                        )
                    })?;
                    text.push_str(line.unwrap_or_default().trim());
                    record.map(|record| record.position)
                };
                let Some(position) = position else { break };
                // Identifiers of Windows are in braces, too.
                let is_record = |line: &str| {
                    line.strip_prefix('{').is_some_and(|members| members.trim_start().starts_with('"'))
                };
                if !self.has_column && is_record(&text) {
                    let reason = "expected an id, found a record; name its key or column that holds the id with column=";
                    return Err(located(&file.path, position, reason.to_owned()));
                }
                take(&text).map_err(|reason| located(&file.path, position, reason))?;
            }
        }
        Ok(())
    }
}

/// Finds shards by the ends of their paths.
struct Tails<'a> {
    shards: &'a [String],
    /// For each number of parts that was asked for, the shards by their last so many parts; none where two share them.
    by_parts: HashMap<usize, HashMap<&'a str, Option<usize>>>,
    /// The last one that was found: neighbours name the same shard.
    last: (String, Option<usize>),
}

impl<'a> Tails<'a> {
    fn new(shards: &'a [String]) -> Self {
        Self { shards, by_parts: HashMap::new(), last: (String::new(), None) }
    }

    fn find(&mut self, path: &str) -> Result<Option<usize>, String> {
        if self.last.0 != path || self.last.1.is_none() {
            let (shards, parts) = (self.shards, path.split('/').count());
            let shards = self.by_parts.entry(parts).or_insert_with(|| {
                let mut found = HashMap::new();
                for (index, shard) in shards.iter().enumerate() {
                    let known = found.entry(last_parts(shard, parts));
                    known.and_modify(|one| *one = None).or_insert(Some(index));
                }
                found
            });
            let found = match shards.get(path) {
                Some(None) => {
                    return Err(format!(
                        "expected the end of one shard's path, found {path:?}, which fits several"
                    ));
                }
                Some(found) => *found,
                None => None,
            };
            self.last = (path.to_owned(), found);
        }
        Ok(self.last.1)
    }
}

/// The last parts of a path, or all of it.
fn last_parts(path: &str, parts: usize) -> &str {
    let start = path.rmatch_indices('/').nth(parts - 1).map_or(0, |(at, _)| at + 1);
    &path[start..]
}

fn located(file: &Arc<str>, position: Position, reason: String) -> Error {
    let (record, byte) = (Some(position.record), position.shown_byte());
    Error::Shard(ShardError { shard: Arc::clone(file), record, byte, reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Projection;

    fn lists(folder: &tempfile::TempDir, column: Option<&str>, lines: &[&str]) -> Lists {
        let path = folder.path().join("list.jsonl");
        let bytes = lines.join("\n");
        std::fs::write(&path, &bytes).unwrap();
        let projection = Projection::text(column.unwrap_or_default());
        Lists {
            files: vec![Shard::whole(path.to_str().unwrap(), bytes.len() as u64)],
            read: Arc::new(ReadOptions {
                access: crate::store::Access::default(),
                projection,
                keep: None,
                max_document_bytes: 1000,
                ids: None,
            }),
            has_column: column.is_some(),
        }
    }

    #[test]
    fn rows_are_those_of_the_shard_whose_path_ends_so() {
        let folder = tempfile::tempdir().unwrap();
        let shards = ["/data/a/0/x.gz", "/data/a/1/x.gz", "/data/a/1/y.gz"].map(str::to_owned);
        let rows = |lines: &[&str]| Rows::load(&lists(&folder, None, lines), &shards, &Arc::default());
        let found = rows(&["0/x.gz/5", "a/1/x.gz/2", "0/x.gz/1", "0/x.gz/5", "7/x.gz/1", "y.gz/0"]).unwrap();
        assert_eq!(found.count(), 4);
        assert_eq!(
            (found.of(0), found.of(1), found.of(2), found.of(3)),
            (&[1, 5][..], &[2][..], &[0][..], &[][..])
        );
        assert_eq!([0, 1, 2, 5, 6].map(|record| found.before(0, record)), [0, 0, 1, 1, 2]);
        for (line, expected) in [
            (
                "x.gz/1",
                "record 0, byte 0: expected the end of one shard's path, found \"x.gz\", which fits several",
            ),
            (
                "id-7",
                "expected an id such as 2023-06/0000/en_head.json.gz/3, the end of a shard's path and a row, found \"id-7\"",
            ),
            ("0/x.gz/-1", "found \"0/x.gz/-1\"; set key="),
            ("b/x.gz/1", "such as \"a/0/x.gz/0\", found none: the first one is \"b/x.gz/1\""),
        ] {
            let error = rows(&[line]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(rows(&[]).unwrap().count(), 0);
        assert_eq!(rows(&["\u{feff}0/x.gz/5", "0/x.gz/1"]).unwrap().of(0), [1, 5]);
    }

    #[test]
    fn ids_are_found_whatever_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let lines: Vec<String> =
            (0..1000).map(|id| format!("{{\"doc\": \"id-{}\"}}", id * 7 % 1000)).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let ids = lists(&folder, Some("doc"), &lines).ids(&Arc::default()).unwrap();
        assert_eq!(ids.count(), 1000);
        assert!((0..1000).all(|id| ids.contains(&format!("id-{id}"))));
        assert!(!ids.contains("id-1000"));
        let error = lists(&folder, Some("id"), &lines).ids(&Arc::default()).unwrap_err().to_string();
        assert!(
            error.contains("list.jsonl: record 0, byte 0: expected a string under the key \"id\"")
                || error.contains("expected the key \"id\""),
            "{error}"
        );
    }
}
