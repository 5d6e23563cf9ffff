//! Sidecars of a stream: files beside its shards whose records belong to those of the shards by their numbers.

use std::sync::Arc;

use crate::error::ShardError;
use crate::format::ReadOptions;
use crate::format::keep::Expression;
use crate::store::Shard;

/// All sidecars of a stream.
#[derive(Debug, Clone, Default)]
pub struct Sidecars {
    /// Their kinds.
    pub kinds: Vec<Sidecar>,
    /// The filter over records and sidecars, where there are some.
    pub keep: Option<Expression>,
}

/// One kind of sidecars.
#[derive(Debug, Clone)]
pub struct Sidecar {
    /// The name under which the filter sees its records.
    pub name: String,
    /// The file of each shard of the manifest; none for those that have no such sidecar.
    pub files: Vec<Option<Shard>>,
    /// How its records are read. The paths of the projection come after those of the record and of the sidecars before.
    pub read: Arc<ReadOptions>,
    /// The paths that show that two records are of the same row.
    pub matching: Option<Matching>,
}

/// Two ids that must be equal: the paths of the filter that lead to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matching {
    /// The path of the record's id.
    pub record: usize,
    /// The path of the id in the sidecar's record.
    pub sidecar: usize,
    /// Whether both must be there. If not, the sidecar's alone may name shard and row.
    pub required: bool,
    /// How the names of shards end, in ids that name them.
    pub ending: String,
}

impl Sidecars {
    /// The files of all kinds.
    pub fn files(&self) -> impl Iterator<Item = &Shard> {
        self.kinds.iter().flat_map(|kind| kind.files.iter().flatten())
    }

    /// The message about a record of a shard that lacks what one of its sidecars should have.
    pub fn unusable(&self, shard: usize, error: &ShardError) -> String {
        let has_failed =
            |sidecar: &&Sidecar| sidecar.files[shard].as_ref().is_some_and(|file| file.path == error.shard);
        self.kinds.iter().find(has_failed).map_or_else(|| error.to_string(), |kind| kind.unusable(error))
    }
}

impl Sidecar {
    /// The message about a record that lacks what one of its sidecars should have.
    pub fn unusable(&self, error: &ShardError) -> String {
        format!("expected a record to go with it in its sidecar {:?}, found none to use: {error}", self.name)
    }
}
