//! `_core.audit_conversations`: the counts of a set of conversations, for `gristmill audit`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::encoder::Encoder;
use super::error::guarded;
use super::prompts::Reading;
use super::signals::Signals;
use crate::audit::{self, Count, Figures, Finding, RoleFigures};
use crate::error::Error;
use crate::prompts::{Left, Reason};

/// How often progress is shown.
const SHOWN: Duration = Duration::from_millis(50);

/// The function that shows the progress.
struct Shown {
    show: Py<PyAny>,
    at: Instant,
    failed: Option<PyErr>,
}

impl Shown {
    /// Shows the index of a shard and how many conversations were found, if the last time was a while ago; whether that has
    /// raised an exception.
    fn fails(&mut self, shard: u32, conversations: u64) -> bool {
        if self.failed.is_none() && self.at.elapsed() >= SHOWN {
            self.failed = Python::attach(|py| self.show.call1(py, (shard, conversations)).err());
            self.at = Instant::now();
        }
        self.failed.is_some()
    }
}

/// Messages, tokens and trained tokens.
type Role = (u64, u64, u64);

/// The records that cannot be used for reasons that are alike: shard, record, byte and reason of the first of them.
type Reasons = (String, u64, Vec<(u32, Option<u64>, Option<u64>, String)>);

/// The figures of some conversations: see `_core.pyi`.
#[pyfunction]
pub fn audit_conversations<'py>(
    py: Python<'py>,
    encoder: &Encoder,
    reading: Reading,
    show: Py<PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let spec = reading.spec()?;
    let mut signals = Signals::new();
    let mut shown = Shown { show, at: Instant::now(), failed: None };
    let audit = guarded(py, || {
        let access = &spec.read.access;
        let _connection = access.connect(spec.shards.iter().chain(spec.sidecars.files()))?;
        let audit = audit::audit(&spec, encoder.inner(), |shard, conversations| {
            shown.fails(shard, conversations) || signals.have_raised()
        });
        // An outage is no fault of the records that were not read.
        access.outage().map_or(audit, Err)
    })?;
    shown.failed.map_or(Ok(()), Err)?;
    signals.raised()?;
    let audit = audit.ok_or_else(|| Error::Bug("reading was interrupted by nothing".to_owned()))?;
    let found = PyDict::new(py);
    let shards: PyResult<Vec<_>> = audit.shards.iter().map(|figures| dict(py, figures)).collect();
    let findings: PyResult<Vec<_>> = audit.findings.iter().map(|finding| located(py, finding)).collect();
    let reasons: Vec<Reasons> = audit
        .reasons
        .into_iter()
        .map(|(kind, count, first)| (kind, count, first.into_iter().map(reason).collect()))
        .collect();
    found.set_item("shards", shards?)?;
    found.set_item("findings", findings?)?;
    found.set_item("reasons", reasons)?;
    found.set_item("compared", audit.compared)?;
    Ok(found)
}

fn dict<'py>(py: Python<'py>, figures: &Figures) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for (name, count) in Count::NAMES.iter().zip(figures.counts()) {
        found.set_item(name, count)?;
    }
    let role = |role: &RoleFigures| (role.messages, role.tokens, role.trained);
    let roles: BTreeMap<&str, Role> =
        figures.roles.iter().map(|(name, figures)| (&**name, role(figures))).collect();
    found.set_item("roles", roles)?;
    found.set_item("lengths", &figures.lengths)?;
    Ok(found)
}

fn located<'py>(py: Python<'py>, finding: &Finding) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("kind", finding.kind.name())?;
    found.set_item("shard", finding.shard)?;
    found.set_item("record", finding.record)?;
    found.set_item("sample", finding.sample)?;
    found.set_item("message", finding.message)?;
    found.set_item("tokens", finding.tokens)?;
    found.set_item("first", finding.first)?;
    Ok(found)
}

fn reason(left: Left) -> (u32, Option<u64>, Option<u64>, String) {
    let Left { shard, record, byte, reason } = left;
    let reason = match reason {
        Reason::Bad(reason) | Reason::Lost(reason) => reason,
        Reason::Overlong(tokens) => format!("{tokens} tokens"),
    };
    (shard, record, byte, reason)
}
