//! The sidecars of a lane's open shard.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::joined_shard::Beside;
use crate::error::{Error, Result, ShardError};
use crate::format::{Position, ReadError, SidecarReader};
use crate::spec::sidecars::Sidecar;

/// A reader for each of the stream's sidecars; none where the shard has none. Without sidecars it costs nothing.
pub struct SidecarReaders(Vec<Option<SidecarReader>>);

impl SidecarReaders {
    /// Opens the sidecars of a shard, whose path and index in the manifest are given, for the records from `position` on. An error of a sidecar's file is one of the shard.
    pub fn open(
        kinds: &[Sidecar],
        path: &Arc<str>,
        shard: usize,
        position: Position,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let open = |sidecar: &Sidecar| {
            let Some(file) = &sidecar.files[shard] else { return Ok(None) };
            let opened = SidecarReader::open_at(file, &sidecar.read, position.record, stop);
            opened.map(Some).map_err(|error| match error {
                Error::Shard(error) => Error::Shard(ShardError {
                    shard: Arc::clone(path),
                    record: error.record.map(|_| position.record),
                    byte: error.record.and_then(|_| position.shown_byte()),
                    reason: sidecar.unusable(&error),
                }),
                other => other,
            })
        };
        kinds.iter().map(open).collect::<Result<_>>().map(Self)
    }

    /// Adds the records with this number: their bytes to `bytes`, and where they are to `beside`. On error both are as
    /// they were.
    pub fn read(&mut self, number: u64, bytes: &mut Vec<u8>, beside: &mut Beside) -> Result<(), ReadError> {
        let before = (bytes.len(), beside.len());
        let mut result = Ok(());
        // All of them are read, so that the others stay in step where one has a bad record.
        for reader in &mut self.0 {
            let read = reader.as_mut().map(|reader| reader.read(number, bytes)).transpose();
            match read {
                Ok(record) => beside.push(record),
                Err(error) => result = result.and(Err(error)),
            }
        }
        if result.is_err() {
            bytes.truncate(before.0);
            beside.truncate(before.1);
        }
        result
    }

    /// Passes over the records with this number.
    pub fn pass(&mut self, number: u64) {
        self.0.iter_mut().flatten().for_each(|reader| reader.pass(number));
    }

    /// An error if one of them has more records.
    pub fn end(&mut self) -> Result<(), ReadError> {
        self.0.iter_mut().flatten().try_for_each(SidecarReader::end)
    }
}
