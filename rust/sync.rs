//! The parts that the ring, the job queue and `FairMutex` use of `std::sync`, or of loom when they are model-checked (`make
//! loom`, which enables the feature).

#[cfg(feature = "loom")]
pub use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(feature = "loom"))]
pub use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

#[cfg(feature = "loom")]
pub use loom::cell::UnsafeCell;
#[cfg(not(feature = "loom"))]
pub use unchecked::UnsafeCell;

use std::sync::PoisonError;
use std::time::Duration;

/// Waits on a condition variable for at most `timeout`. Under loom, which has no clock, forever: a lost wake-up is then
/// a deadlock that loom reports.
pub fn wait_timeout<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
) -> MutexGuard<'a, T> {
    #[cfg(feature = "loom")]
    {
        let _ = timeout;
        condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }
    #[cfg(not(feature = "loom"))]
    {
        condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Lets another worker work while this thread waits for the network. Where no worker runs, it just waits.
pub fn while_waiting<T>(wait: impl FnOnce() -> T) -> T {
    WAITING.with_borrow(|waiting| {
        let Some(waiting) = waiting else { return wait() };
        waiting.begin_wait();
        let found = wait();
        waiting.end_wait(); // not after a panic, which stops all workers
        found
    })
}

/// Lets another worker work in place of this thread.
pub trait Waiting {
    /// This thread waits.
    fn begin_wait(&self);
    /// It continues.
    fn end_wait(&self);
}

thread_local! {
    /// Set in the threads of workers.
    pub static WAITING: std::cell::RefCell<Option<std::sync::Arc<dyn Waiting>>> = const { std::cell::RefCell::new(None) };
}

#[cfg(not(feature = "loom"))]
mod unchecked {
    /// `std`'s cell with the closure interface of loom's, which can thus check each access.
    #[derive(Debug)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}
