//! The parts of a client that its requests share: bounds, counts, the cache, and what is known of objects.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::cache::{Cache, Key, Tee};
use crate::counters::{Counters, lock};
use crate::requested::Requested;
use crate::retries::Failure;

/// The shared parts.
pub(crate) struct Shared {
    pub(crate) retry_timeout: Duration,
    /// How long an answer may take to begin or continue.
    pub(crate) stall_timeout: Duration,
    pub(crate) io_bytes: usize,
    /// Bytes that were requested and are not used up.
    pub(crate) ahead: Arc<AtomicUsize>,
    pub(crate) counters: Arc<Counters>,
    /// Why a store could not be read: no object's fault.
    pub(crate) outage: Mutex<Option<Failure>>,
    pub(crate) cache: Option<Arc<Cache>>,
    /// Files of the cache that are written, by the URLs of their objects.
    pub(crate) tees: Mutex<HashMap<Arc<str>, Weak<Tee>>>,
    /// The `ETag` of each object, by its URL, since it was first seen.
    pub(crate) e_tags: Mutex<HashMap<Arc<str>, Arc<str>>>,
    /// URLs of objects that are gone or have changed.
    pub(crate) lost: Mutex<HashSet<Arc<str>>>,
    /// The object that is read after an object, by the URL of that one.
    pub(crate) following: Mutex<HashMap<Arc<str>, Announced>>,
    /// First ranges of objects that are opened next, by their URLs.
    pub(crate) begun: Mutex<HashMap<Arc<str>, Requested>>,
}

/// An object that will be read.
pub(crate) struct Announced {
    pub(crate) url: Arc<str>,
    pub(crate) size: u64,
    pub(crate) e_tag: Option<Arc<str>>,
}

impl Shared {
    /// The `ETag` that the object of `url` must have: that which it had first. None: it has none so far.
    pub(crate) fn e_tag(&self, url: &Arc<str>, found: Option<&str>) -> Option<Arc<str>> {
        let mut e_tags = lock(&self.e_tags);
        match found {
            Some(found) => Some(Arc::clone(e_tags.entry(Arc::clone(url)).or_insert_with(|| found.into()))),
            None => e_tags.get(url).cloned(),
        }
    }

    /// The cache, and what an object is in it. None: there is no cache, or the object has no `ETag`.
    pub(crate) fn in_cache(&self, url: &str, size: u64, e_tag: Option<&str>) -> Option<(&Arc<Cache>, Key)> {
        let cache = self.cache.as_ref()?;
        let e_tag = e_tag.map(str::to_owned).or_else(|| Some(lock(&self.e_tags).get(url)?.to_string()))?;
        Some((cache, Key { url: url.to_owned(), size, e_tag }))
    }

    /// The file of the cache that an object's ranges are written into.
    pub(crate) fn tee(&self, url: &Arc<str>, size: u64) -> Option<Arc<Tee>> {
        let (cache, key) = self.in_cache(url, size, None)?;
        let mut tees = lock(&self.tees);
        if let Some(tee) = tees.get(url).and_then(Weak::upgrade) {
            return Some(tee);
        }
        let tee = Arc::new(cache.begin(key)?);
        tees.insert(Arc::clone(url), Arc::downgrade(&tee));
        Some(tee)
    }

    /// The object that is read after that of `url`, if it is known. The next call finds nothing.
    pub(crate) fn following(&self, url: &str) -> Option<Announced> {
        lock(&self.following).remove(url)
    }

    /// The object of `url` could not be read.
    pub(crate) fn report(&self, url: &Arc<str>, failure: &Failure) {
        match failure {
            Failure::Unavailable(_) => {
                lock(&self.outage).get_or_insert_with(|| failure.clone());
            }
            Failure::Missing(_) | Failure::Changed(_) => {
                lock(&self.lost).insert(Arc::clone(url));
            }
            Failure::Closed => {}
        }
    }

    /// Whether so many more bytes may be requested ahead of their reader; counts them if so.
    pub(crate) fn may_request(&self, bytes: usize) -> bool {
        let request = |ahead: usize| (ahead + bytes <= self.io_bytes).then_some(ahead + bytes);
        self.ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, request).is_ok()
    }
}

/// Whether an `ETag` may be the same for other bytes, and another for the same.
pub(crate) fn is_weak(e_tag: &str) -> bool {
    e_tag.starts_with("W/")
}
