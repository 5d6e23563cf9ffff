//! A lock that survives a fork.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;

/// Locks a mutex that threads hold for a few instructions at a time.
///
/// Returns None if a thread holds it for longer: in a process that was forked meanwhile, it is never released.
pub fn lock_unless_forked<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    const ATTEMPTS: usize = 1000;
    for _ in 0..ATTEMPTS {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(error)) => return Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    None
}
