//! Objects of stores on the network, through the `gristmill-remote` crate.
//!
//! One client, with its thread and its connections, is open while somebody reads: a dataset that is only held, or sent to
//! another process, has none. A network failure is never a bad record. When its time is over, reading fails with a text
//! like any other, and [`Stores::outage`] says that the run must end: see [`LaneReader`](crate::lane::reader::LaneReader).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use gristmill_remote::{Client, Counters, Failure, Listed, Object, Options};

use super::{Shard, Source};
use crate::error::{Error, Result, ShardError};
use crate::sync::while_waiting;

/// How stores are reached, and the client while somebody reads.
#[derive(Debug, Clone, Default)]
pub struct Stores {
    options: Options,
    held: Arc<Mutex<Held>>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Held {
    client: Weak<Client>,
    /// The client while somebody keeps it.
    kept: Option<Arc<Client>>,
    keepers: usize,
}

/// Keeps a client from when one is needed until it is dropped.
#[derive(Default)]
pub struct Keeper(Arc<Mutex<Held>>);

impl Drop for Keeper {
    fn drop(&mut self) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.keepers = held.keepers.saturating_sub(1);
        let ended = if held.keepers == 0 { held.kept.take() } else { None };
        drop(held);
        drop(ended); // A client waits for its thread, and nobody for it.
    }
}

impl Stores {
    /// Stores that are reached with these options.
    pub fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// The client, which ends when its last holder drops it.
    pub fn client(&self) -> Result<Arc<Client>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = held.client.upgrade() {
            return Ok(client);
        }
        let client = Client::new(&self.options, &self.counters)
            .map_err(|error| Error::Argument(format!("storage_options: {error}")))?;
        let client = Arc::new(client);
        held.client = Arc::downgrade(&client);
        held.kept = (held.keepers > 0).then(|| Arc::clone(&client));
        Ok(client)
    }

    /// Keeps the client, or the one that is made next.
    pub(super) fn keep(&self) -> Keeper {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.keepers += 1;
        held.kept = held.client.upgrade();
        Keeper(Arc::clone(&self.held))
    }

    /// Counters of the requests so far, and of the delays by failures of the network.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Says which shard is read after this one.
    pub(super) fn announce(&self, shard: &Shard, next: &Shard) {
        if let Ok(client) = self.client() {
            client.announce(&shard.path, &next.path, next.size, next.e_tag.clone());
        }
    }

    /// Removes a shard from the cache.
    pub(super) fn forget(&self, shard: &Shard) {
        if let Ok(client) = self.client() {
            client.forget(&shard.path, shard.size, shard.e_tag.as_deref());
        }
    }

    /// Whether nothing showed that the object of a shard is gone or has changed.
    pub(super) fn holds(&self, shard: &Shard) -> bool {
        self.client().is_ok_and(|client| !client.is_lost(&shard.path))
    }

    /// Why a store could not be read, if one could not: what was read afterwards counts for nothing.
    pub fn outage(&self) -> Option<Error> {
        let client = self.held.lock().unwrap_or_else(PoisonError::into_inner).client.upgrade()?;
        client.outage().map(|failure| Error::System(failure.to_string()))
    }

    /// The object of a shard.
    pub(super) fn open(&self, shard: &Shard, stop: &Arc<AtomicBool>) -> Result<Box<dyn Source>> {
        let client = self.client()?;
        let e_tag = shard.e_tag.as_deref();
        if let Some(file) = client.cached(&shard.path, shard.size, e_tag) {
            return Ok(Box::new(Cached { file, size: shard.size }));
        }
        let object = Object::open(&client, &shard.path, shard.size, e_tag, stop);
        let object = object.map_err(|failure| error_of(shard.name(), failure))?;
        Ok(Box::new(Remote { object, _client: client }))
    }

    /// An object that no manifest lists, as it is now.
    pub(super) fn find(&self, url: &str, stop: &Arc<AtomicBool>) -> Result<Shard> {
        let path: Arc<str> = url.into();
        let found = self.client()?.sizes(&[url.to_owned()], &|| stop.load(Ordering::Relaxed));
        match found.map_err(|failure| error_of(&path, failure))?.pop().flatten() {
            Some(Listed { size, e_tag, .. }) => {
                Ok(Shard { e_tag: e_tag.map(Into::into), ..Shard::whole(path, size) })
            }
            None => Err(error_of(&path, Failure::Missing("there is no such object".to_owned()))),
        }
    }
}

/// Why an object cannot be read.
fn error_of(name: &Arc<str>, failure: Failure) -> Error {
    match failure {
        Failure::Unavailable(reason) => Error::System(reason),
        Failure::Closed => Error::Closed,
        Failure::Missing(reason) | Failure::Changed(reason) => {
            Error::Shard(ShardError { shard: Arc::clone(name), record: None, byte: None, reason })
        }
    }
}

/// Stores with the same options are equal.
impl PartialEq for Stores {
    fn eq(&self, other: &Self) -> bool {
        self.options == other.options
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Held").field("keepers", &self.keepers).finish_non_exhaustive()
    }
}

/// The file of an object in the cache, which nobody changes.
struct Cached {
    file: File,
    size: u64,
}

impl Source for Cached {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        self.file.read_at(&mut out[..most], offset)
    }
}

struct Remote {
    object: Object,
    _client: Arc<Client>,
}

impl Source for Remote {
    fn size(&self) -> u64 {
        self.object.size()
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        match self.object.read_ready(offset, out) {
            Some(read) => read,
            None => while_waiting(|| self.object.read_at(offset, out)),
        }
    }
}
