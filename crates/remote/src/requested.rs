//! A range of an object that was requested, and where its bytes arrive.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;

use crate::cache::Tee;
use crate::retries::Failure;

/// A range that was requested.
pub(crate) struct Requested {
    pub(crate) range: Range<u64>,
    pub(crate) slot: Arc<Slot>,
    /// Counts it while it is ahead.
    pub(crate) ahead: Arc<AtomicUsize>,
    /// Written while ranges of the object are held.
    pub(crate) _tee: Option<Arc<Tee>>,
}

/// Where the bytes of a range arrive.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) result: Mutex<Option<Result<Bytes, Failure>>>,
    pub(crate) arrived: Condvar,
    /// Nobody waits for it any more.
    pub(crate) unwanted: AtomicBool,
}

impl Drop for Requested {
    fn drop(&mut self) {
        self.slot.unwanted.store(true, Ordering::Relaxed);
        self.ahead.fetch_sub((self.range.end - self.range.start) as usize, Ordering::Relaxed);
    }
}
