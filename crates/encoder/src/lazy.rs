//! A value that is made when first needed, also in a child forked while another thread was making it.

use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// Like [`OnceLock`], but that no lock is held while the value is made: in a forked child, nobody would ever let
/// go of it. Other threads of the process wait, so that a large value is not made twice.
pub struct Lazy<T> {
    value: OnceLock<T>,
    /// The process one of whose threads makes the value, or [`NOBODY`].
    maker: AtomicU32,
}

const NOBODY: u32 = 0;

impl<T> Lazy<T> {
    pub const fn new() -> Self {
        Self { value: OnceLock::new(), maker: AtomicU32::new(NOBODY) }
    }

    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.value.get() {
            return value;
        }
        let _turn = self.turn();
        if let Some(value) = self.value.get() {
            return value;
        }
        let value = make();
        // The lock of this is held for a few instructions only.
        self.value.get_or_init(|| value)
    }

    /// Whether it has been made.
    #[cfg(test)]
    pub fn is_made(&self) -> bool {
        self.value.get().is_some()
    }

    /// Waits until no other thread of this process makes the value; the threads of its parent are not here.
    fn turn(&self) -> Turn<'_> {
        let here = process::id();
        loop {
            let maker = self.maker.load(Ordering::Acquire);
            let claim = || self.maker.compare_exchange(maker, here, Ordering::AcqRel, Ordering::Acquire);
            if maker != here && claim().is_ok() {
                return Turn(&self.maker);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Ends with its scope, also by a panic.
struct Turn<'a>(&'a AtomicU32);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(NOBODY, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn threads_get_one_value_made_once() {
        let (lazy, calls) = (Lazy::new(), AtomicU32::new(0));
        let make = || {
            thread::sleep(Duration::from_millis(20));
            calls.fetch_add(1, Ordering::Relaxed)
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| *lazy.get_or_make(make))).collect();
            assert!(threads.into_iter().all(|thread| thread.join().unwrap() == 0));
        });
        assert_eq!(calls.into_inner(), 1);
    }

    #[test]
    fn a_panic_leaves_it_to_be_made() {
        let lazy = Lazy::new();
        assert!(catch_unwind(AssertUnwindSafe(|| lazy.get_or_make(|| panic!("no value")))).is_err());
        assert_eq!(*lazy.get_or_make(|| 5), 5);
    }

    #[test]
    fn forked_child_does_not_wait_for_a_thread_of_its_parent() {
        let lazy = Lazy::new();
        lazy.maker.store(process::id() + 1, Ordering::Relaxed);
        assert_eq!(*lazy.get_or_make(|| 5), 5);
    }
}
