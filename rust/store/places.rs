//! Where the names of shards lead: to local files, or to objects of stores on the network.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{LocalFile, Shard, Source};
use crate::error::{Error, Result};

#[cfg(feature = "remote")]
use super::remote::Stores;

/// Where the names of shards lead.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Places {
    /// The folder that relative paths start from: the working folder may change while they are read.
    pub folder: PathBuf,
    /// How stores on the network are reached.
    #[cfg(feature = "remote")]
    pub stores: Stores,
}

impl Places {
    /// The most bytes that are requested ahead of readers, unless somebody sets another bound.
    pub const IO_BYTES: usize = 256 << 20;

    /// Opens a shard if it is the one in the manifest. A file that is missing or does not have the manifest's size is an
    /// [`Error::Shard`]; one that cannot be opened for lack of descriptors or memory is an
    /// [`Error::System`], and so is a store that cannot be named. Once `stop` is set, by
    /// another thread, reading fails.
    pub fn open(&self, shard: &Shard, stop: &Arc<AtomicBool>) -> Result<Box<dyn Source>> {
        #[cfg(feature = "remote")]
        if shard.is_remote() {
            return self.stores.open(shard, stop);
        }
        let _ = stop;
        Ok(Box::new(LocalFile::open(shard, &self.folder)?))
    }

    /// A file that no manifest lists, as it is now. One that is missing is an [`Error::Shard`].
    pub fn find(&self, path: &str, stop: &Arc<AtomicBool>) -> Result<Shard> {
        #[cfg(feature = "remote")]
        if super::is_remote(path) {
            return self.stores.find(path, stop);
        }
        let _ = stop;
        let size = std::fs::metadata(self.folder.join(path)).map_or(0, |file| file.len());
        Ok(Shard::whole(path, size))
    }

    /// Says which shard is read after this one, before this one is opened: its start is requested in time.
    pub fn announce(&self, shard: &Shard, next: &Shard) {
        #[cfg(feature = "remote")]
        if shard.is_remote() && next.is_remote() {
            self.stores.announce(shard, next);
        }
        #[cfg(not(feature = "remote"))]
        let _ = (shard, next);
    }

    /// Whether a shard is in a store on the network, which had it whenever it was read.
    pub fn holds(&self, shard: &Shard) -> bool {
        #[cfg(feature = "remote")]
        return shard.is_remote() && self.stores.holds(shard);
        #[cfg(not(feature = "remote"))]
        {
            let _ = shard;
            false
        }
    }

    /// Removes a shard from the cache: its bytes turned out to be damaged.
    pub fn forget(&self, shard: &Shard) {
        #[cfg(feature = "remote")]
        self.stores.forget(shard);
        #[cfg(not(feature = "remote"))]
        let _ = shard;
    }

    /// A line for the log.
    pub fn note(&self, note: &str) {
        #[cfg(feature = "remote")]
        self.stores.counters().note(Some(note.to_owned()));
        #[cfg(not(feature = "remote"))]
        let _ = note;
    }

    /// Keeps the connections for these shards until it is dropped: they outlive the shards that are read over them.
    pub fn connect<'a>(&self, shards: impl IntoIterator<Item = &'a Shard>) -> Result<Connection> {
        let are_remote = shards.into_iter().any(Shard::is_remote);
        #[cfg(feature = "remote")]
        if are_remote {
            return Ok(Connection { _client: Some(self.stores.client()?) });
        }
        let _ = are_remote;
        Ok(Connection::default())
    }

    /// Why a store on the network could not be read, if one could not. Reads after that count for nothing.
    pub fn outage(&self) -> Option<Error> {
        #[cfg(feature = "remote")]
        return self.stores.outage();
        #[cfg(not(feature = "remote"))]
        None
    }
}

/// The resources that keep connections to a store open.
#[derive(Default)]
pub struct Connection {
    #[cfg(feature = "remote")]
    _client: Option<Arc<gristmill_remote::Client>>,
}

impl From<PathBuf> for Places {
    fn from(folder: PathBuf) -> Self {
        Self {
            folder,
            #[cfg(feature = "remote")]
            stores: Stores::default(),
        }
    }
}
