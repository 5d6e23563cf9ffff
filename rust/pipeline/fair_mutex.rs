//! A lock for a value that several threads use while one of them mostly holds it and waits.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// A value for one thread at a time. One that waits comes before one that releases it and asks again; among several that
/// wait there is no order.
///
/// A mutex is unfair: a thread that releases it and takes it again at once, as one that waits for a batch does between
/// two checks for signals, may starve all others. Here it must first take a second mutex, which the next waiting thread
/// holds meanwhile.
///
/// In a forked child a lock that another thread of the parent held is never released. The threads inside are therefore
/// counted, together with their process.
pub struct FairMutex<T> {
    turn: Mutex<()>,
    /// None only while this is dropped.
    value: Option<Mutex<T>>,
    /// The process in the upper half, and in the lower half how many of its threads hold the value or wait for it.
    inside: AtomicU64,
}

const ONE: u64 = 1;
const COUNT: u64 = u32::MAX as u64;

impl<T> FairMutex<T> {
    /// A value that nobody holds.
    pub fn new(value: T) -> Self {
        Self { turn: Mutex::new(()), value: Some(Mutex::new(value)), inside: AtomicU64::new(0) }
    }

    /// Waits for the value.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`] if this process was forked while another thread was inside.
    pub fn lock(&self) -> Result<FairGuard<'_, T>> {
        let value = self.value.as_ref().ok_or(Error::Closed)?;
        let process = u64::from(std::process::id()) << 32;
        let enter = |inside: u64| match inside & COUNT {
            0 => Some(process | ONE),
            _ if inside & !COUNT == process => Some(inside + ONE),
            _ => None,
        };
        self.inside.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).map_err(|_| Error::Forked)?;
        let inside = Inside(&self.inside);
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let value = value.lock().unwrap_or_else(PoisonError::into_inner);
        drop(turn);
        Ok(FairGuard { value, _inside: inside })
    }
}

impl<T> Drop for FairMutex<T> {
    /// Nobody is inside, unless this process was forked: then a thread of the parent may have been half-way through a
    /// change of the value, which is left alone.
    fn drop(&mut self) {
        if self.inside.load(Ordering::Relaxed) & COUNT > 0 {
            std::mem::forget(self.value.take());
        }
    }
}

/// A value that this thread holds: it is released first, then the thread is no longer counted.
pub struct FairGuard<'a, T> {
    value: MutexGuard<'a, T>,
    _inside: Inside<'a>,
}

impl<T> Deref for FairGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for FairGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// One of the threads inside.
struct Inside<'a>(&'a AtomicU64);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // A fork that finds nobody inside must find the value released, too.
        self.0.fetch_sub(ONE, Ordering::Release);
    }
}

#[cfg(all(test, feature = "loom"))]
mod model {
    use loom::thread;

    use super::*;
    use crate::sync::Arc;

    #[test]
    fn loom_threads_inside_are_counted() {
        loom::model(|| {
            let mutex = Arc::new(FairMutex::new(0));
            let add = |mutex: &FairMutex<u64>| {
                let mut value = mutex.lock().unwrap();
                assert!(mutex.inside.load(Ordering::Relaxed) & COUNT > 0);
                *value += 1;
            };
            let others =
                [Arc::clone(&mutex), Arc::clone(&mutex)].map(|mutex| thread::spawn(move || add(&mutex)));
            add(&mutex);
            for other in others {
                other.join().unwrap();
            }
            assert_eq!(*mutex.lock().unwrap(), 3);
            assert_eq!(mutex.inside.load(Ordering::Relaxed) & COUNT, 0);
        });
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    #[test]
    fn waiting_thread_comes_before_one_that_locks_again() {
        let (mutex, stop) = (FairMutex::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut value = mutex.lock().unwrap();
                    *value += 1;
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            while *mutex.lock().unwrap() == 0 {}
            let mut waited: Vec<i32> = (0..11)
                .map(|_| {
                    let before = *mutex.lock().unwrap();
                    *mutex.lock().unwrap() - before
                })
                .collect();
            stop.store(true, Ordering::Relaxed);
            waited.sort_unstable();
            // At most the holder, and the thread that requested it before this one. The system may delay this thread's
            // requests at times.
            assert!(waited[5] <= 2, "{waited:?}");
        });
    }

    #[test]
    fn lock_held_at_a_fork_is_an_error() {
        let mutex = FairMutex::new(());
        drop(mutex.lock().unwrap());
        let parent = u64::from(std::process::id() + 1) << 32;
        mutex.inside.store(parent, Ordering::Relaxed);
        drop(mutex.lock().unwrap());
        mutex.inside.store(parent | ONE, Ordering::Relaxed);
        assert!(matches!(mutex.lock(), Err(Error::Forked)));
    }

    #[test]
    fn value_held_at_a_fork_is_not_dropped() {
        struct Counted<'a>(&'a Cell<u32>);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let dropped = Cell::new(0);
        let mutex = [(); 2].map(|()| FairMutex::new(Counted(&dropped)));
        mutex[0].inside.store(ONE, Ordering::Relaxed);
        drop(mutex);
        assert_eq!(dropped.get(), 1);
    }
}
