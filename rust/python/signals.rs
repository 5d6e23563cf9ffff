//! Ctrl-C while the core works.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How long the core works or waits before Python's signals are handled, so that Ctrl-C works.
pub const CHECK: Duration = Duration::from_millis(20);

/// The exception that handlers of signals raised during work without the GIL.
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
