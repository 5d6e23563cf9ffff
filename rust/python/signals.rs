//! Ctrl-C while the core works.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::error::guarded;
use crate::error::{Error, Result, caught};

/// How long the core works or waits before Python's signals are handled, so that Ctrl-C works.
pub const CHECK: Duration = Duration::from_millis(20);

/// What the handlers of signals raised during work without the GIL.
pub struct Signals {
    checked: Instant,
    raised: Option<PyErr>,
}

impl Signals {
    pub fn new() -> Self {
        Self { checked: Instant::now(), raised: None }
    }

    /// Runs the handlers of what arrived, if the last time was a while ago; whether one raised an exception.
    pub fn have_raised(&mut self) -> bool {
        if self.raised.is_none() && self.checked.elapsed() >= CHECK {
            self.raised = Python::attach(|py| py.check_signals().err());
            self.checked = Instant::now();
        }
        self.raised.is_some()
    }

    /// The exception, if one was raised.
    pub fn raised(self) -> PyResult<()> {
        self.raised.map_or(Ok(()), Err)
    }
}

/// Does work that ends soon after `stop` is set, which it is when a signal's handler raises.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    stop: &AtomicBool,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    let mut signals = Signals::new();
    let done = guarded(py, || {
        thread::scope(|scope| {
            let (sender, receiver) = channel();
            let work = move || sender.send(caught(work));
            thread::Builder::new().spawn_scoped(scope, work).map_err(|error| Error::no_threads(1, &error))?;
            loop {
                match receiver.recv_timeout(CHECK) {
                    Ok(done) => return done,
                    Err(RecvTimeoutError::Timeout) => stop.store(signals.have_raised(), Ordering::Relaxed),
                    Err(RecvTimeoutError::Disconnected) => unreachable!("it sends, whatever happens"),
                }
            }
        })
    });
    signals.raised()?;
    Ok(done?)
}
