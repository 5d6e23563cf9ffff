//! Counts of what clients do, and lines for the log.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counters of the work of clients. It outlives them.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests for ranges of objects.
    pub requests: AtomicU64,
    /// Requests after a failed one.
    pub retries: AtomicU64,
    /// Bytes received.
    pub bytes: AtomicU64,
    /// Time that readers waited, in nanoseconds, summed over them.
    pub wait_nanos: AtomicU64,
    notes: Mutex<Vec<String>>,
}

impl Counters {
    /// Lines for the log since the last call: what is waited out.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.notes))
    }

    /// Adds a line for the log, if there is one.
    pub fn note(&self, note: Option<String>) {
        lock(&self.notes).extend(note);
    }
}

/// The content of a mutex, also where a thread has panicked with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
