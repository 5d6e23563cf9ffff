//! Where the names of shards lead: to local files, or to objects of stores on the network.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::remote::Keeper;
use super::{LocalFile, Shard, Source, Stores};
use crate::error::{Error, Result};

/// Where the names of shards lead.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Access {
    /// The folder that relative paths start from: the working folder may change while they are read.
    pub folder: PathBuf,
    /// How stores on the network are reached.
    pub stores: Stores,
}

impl Access {
    /// The most bytes that are requested ahead of readers, unless somebody sets another bound.
    pub const IO_BYTES: usize = 256 << 20;

    /// Opens a shard if it is the one in the manifest. A file that is missing or does not have the manifest's size is an
    /// [`Error::Shard`]; one that cannot be opened for lack of descriptors or memory is an
    /// [`Error::System`], and so is a store that cannot be named. Once `stop` is set, by
    /// another thread, reading fails.
    pub fn open(&self, shard: &Shard, stop: &Arc<AtomicBool>) -> Result<Box<dyn Source>> {
        if shard.is_remote() {
            return self.stores.open(shard, stop);
        }
        Ok(Box::new(LocalFile::open(shard, &self.folder)?))
    }

    /// A file that no manifest lists, as it is now. One that is missing is an [`Error::Shard`].
    pub fn find(&self, path: &str, stop: &Arc<AtomicBool>) -> Result<Shard> {
        if super::is_remote(path) {
            return self.stores.find(path, stop);
        }
        let size = std::fs::metadata(self.folder.join(path)).map_or(0, |file| file.len());
        Ok(Shard::whole(path, size))
    }

    /// Says which shard is read after this one, before this one is opened: its start is requested in time.
    pub fn announce(&self, shard: &Shard, next: &Shard) {
        if shard.is_remote() && next.is_remote() {
            self.stores.announce(shard, next);
        }
    }

    /// Whether a shard is in a store on the network, which had it whenever it was read.
    pub fn holds(&self, shard: &Shard) -> bool {
        shard.is_remote() && self.stores.holds(shard)
    }

    /// Removes a shard from the cache: its bytes turned out to be damaged.
    pub fn forget(&self, shard: &Shard) {
        self.stores.forget(shard);
    }

    /// A line for the log.
    pub fn note(&self, note: &str) {
        self.stores.counters().note(Some(note.to_owned()));
    }

    /// Keeps the connections for these shards until it is dropped: they outlive the shards that are read over them. If none
    /// of these is remote, those that other files need, such as images.
    pub fn connect<'a>(&self, shards: impl IntoIterator<Item = &'a Shard>) -> Result<Connection> {
        let are_remote = shards.into_iter().any(Shard::is_remote);
        let kept = self.stores.keep();
        if are_remote {
            self.stores.client()?;
        }
        Ok(Connection { _kept: kept })
    }

    /// Why a store on the network could not be read, if one could not. Reads after that count for nothing.
    pub fn outage(&self) -> Option<Error> {
        self.stores.outage()
    }
}

/// The resources that keep connections to a store open.
#[derive(Default)]
pub struct Connection {
    _kept: Keeper,
}

impl From<PathBuf> for Access {
    fn from(folder: PathBuf) -> Self {
        Self { folder, stores: Stores::default() }
    }
}
