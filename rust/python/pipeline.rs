//! `_core.Pipeline`: what a `PackedDataset` iterator is made of.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::array_owner::ArrayOwner;
use super::encoder::Encoder;
use super::error::guarded;
use super::signals;
use super::spec::Spec;
use crate::batch::schema::with_element_type;
use crate::error::{Error, caught};
use crate::lane::assignment;
use crate::lane::carried::Carried;
use crate::lane::cursor::Cursor;
use crate::pipeline::fair_mutex::FairMutex;
use crate::pipeline::{self, Batch, Delivered, Delivery, SourceStats, Stats};
use crate::state;
use crate::store::borders;

/// Delivers the batches of some lanes.
#[pyclass(frozen, module = "gristmill._core")]
pub struct Pipeline {
    inner: FairMutex<pipeline::Pipeline>,
    /// The names of the fields.
    names: Vec<Py<PyString>>,
    /// The number of the last batch that has reached its caller.
    delivered: AtomicU64,
    /// The thread whose call has not delivered yet what it took, [`NOBODY`], or [`ANYBODY`] after an exception.
    calling: AtomicU64,
}

/// A batch or row, or the end in its place, as it was taken.
#[pyclass(frozen, get_all, module = "gristmill._core")]
pub struct Taken {
    /// None at the end.
    arrays: Option<Py<PyDict>>,
    /// Batches are numbered in the order in which they are taken.
    number: u64,
    /// Whole steps up to here.
    step: u64,
}

const NOBODY: u64 = 0;
const ANYBODY: u64 = u64::MAX;

/// How often a call that waits for the end of skipped steps says so.
const NOTE_SKIPPING: Duration = Duration::from_secs(10);

/// Shard indices per lane for an epoch, in reading order.
#[pyfunction]
#[pyo3(signature = (sizes, lanes, seed, epoch))]
pub fn deal(
    py: Python<'_>,
    sizes: Vec<u64>,
    lanes: usize,
    seed: Option<u64>,
    epoch: u64,
) -> PyResult<Vec<Vec<u32>>> {
    Ok(guarded(py, || Ok(assignment::assign_shards(&sizes, lanes, seed, epoch)))?)
}

/// The first byte of each piece of a file, and the one after its last.
#[pyfunction]
pub fn piece_borders(size: u64, split_bytes: u64) -> Vec<(u64, u64)> {
    borders(size, split_bytes).map(|bytes| (bytes.start, bytes.end)).collect()
}

/// The number of cores that this process may use, given its CPU affinity and cgroup quota.
#[pyfunction]
pub fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

#[pymethods]
impl Pipeline {
    #[new]
    fn new(py: Python<'_>, encoder: &Encoder, spec: Spec, others: Vec<Spec>) -> PyResult<Self> {
        let encoder = encoder.inner().clone();
        let inner = guarded(py, || {
            let interval = |spec: Spec| {
                let host = spec.host();
                Ok::<_, Error>((Arc::new(spec.stream()?), host))
            };
            let others = others.into_iter().map(interval).collect::<Result<_, _>>()?;
            Ok(pipeline::Pipeline::of_intervals(interval(spec)?, others, encoder))
        })?;
        let fields = inner.schema().fields().iter();
        let names = fields.map(|field| PyString::intern(py, &field.name).unbind()).collect();
        Ok(Self {
            inner: FairMutex::new(inner),
            names,
            delivered: AtomicU64::new(0),
            calling: AtomicU64::new(NOBODY),
        })
    }

    /// Begins a call that takes batches and delivers what it has taken. Returns how many earlier ones are taken and not
    /// delivered.
    ///
    /// A call ends when it sets `delivered`. If this thread begins another one without that, or any thread does when one
    /// has set `interrupted`, what was taken and not delivered comes again.
    fn begin(&self, py: Python<'_>) -> PyResult<usize> {
        let this = this_thread();
        let was_interrupted = [this, ANYBODY].contains(&self.calling.load(Ordering::Relaxed));
        let undelivered = self.with(py, |pipeline| {
            pipeline.deliver(self.delivered());
            if was_interrupted {
                pipeline.rewind();
            }
            pipeline.undelivered()
        })?;
        self.calling.store(this, Ordering::Relaxed);
        Ok(undelivered)
    }

    /// Takes the next batch or row. It is not part of the state until it is delivered.
    fn take(&self, py: Python<'_>) -> PyResult<Taken> {
        let mut noted = Instant::now();
        loop {
            let (delivery, number, step) = self.with(py, |pipeline| {
                pipeline.deliver(self.delivered());
                let delivery = pipeline.next(signals::CHECK);
                (delivery, pipeline.number(), pipeline.taken().step)
            })?;
            let arrays = match delivery? {
                Delivery::Batch(batch) => Some(self.arrays(py, batch)?.unbind()),
                Delivery::End => None,
                Delivery::Pending => {
                    py.check_signals()?;
                    self.log_outages(py)?;
                    if noted.elapsed() >= NOTE_SKIPPING {
                        noted = Instant::now();
                        self.log_skipping(py)?;
                    }
                    continue;
                }
            };
            return Ok(Taken { arrays, number, step });
        }
    }

    /// Whether the step after the last batch taken will have rows of these lanes that are not all padding.
    fn has_more(&self, py: Python<'_>) -> PyResult<bool> {
        loop {
            if let Some(more) = self.with(py, |pipeline| pipeline.more(signals::CHECK))?? {
                return Ok(more);
            }
            py.check_signals()?;
        }
    }

    /// Takes a batch of padding after the end; None if these lanes have not reached theirs.
    fn padding(&self, py: Python<'_>) -> PyResult<Option<Taken>> {
        let (batch, number, step) =
            self.with(py, |pipeline| (pipeline.padding(), pipeline.number(), pipeline.taken().step))?;
        let Some(batch) = batch? else { return Ok(None) };
        let arrays = Some(self.arrays(py, batch)?.unbind());
        Ok(Some(Taken { arrays, number, step }))
    }

    /// The batches up to this number have reached the caller. An attribute, because the interpreter looks for signals
    /// behind each call.
    #[setter]
    fn set_delivered(&self, number: u64) {
        self.delivered.fetch_max(number, Ordering::Relaxed);
        // The call of another thread continues.
        let order = Ordering::Relaxed;
        let _ = self.calling.compare_exchange(this_thread(), NOBODY, order, order);
    }

    /// The call raises: what it has taken comes again, whichever thread asks. So does the batch of this number, if it was
    /// the last that was set as `delivered`; there is none of number 0.
    #[setter]
    fn set_interrupted(&self, number: u64) {
        let order = Ordering::Relaxed;
        let _ = self.delivered.compare_exchange(number, number.saturating_sub(1), order, order);
        self.calling.store(ANYBODY, order);
    }

    /// Whether an error has stopped it, or it was closed.
    fn has_failed(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |pipeline| pipeline.has_failed())
    }

    /// Full batches that can be taken without waiting.
    fn ready(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |pipeline| pipeline.ready())
    }

    /// How many workers to start. They start with the first batch requested.
    fn set_threads(&self, py: Python<'_>, threads: usize) -> PyResult<()> {
        self.with(py, |pipeline| pipeline.set_threads(threads))
    }

    /// Starts the workers.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.with(py, pipeline::Pipeline::start)??)
    }

    /// Stops and joins the workers for good. A `next` that waits in another thread fails.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match guarded(py, || self.inner.lock().map(|mut pipeline| pipeline.close())) {
            // In a forked child there is nothing to stop.
            Ok(()) | Err(Error::Forked) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The position after what was delivered, or after batch `number`: the step, the row within it, and for each lane its
    /// number and its cursor as text.
    #[pyo3(signature = (number = None))]
    fn state<'py>(&self, py: Python<'py>, number: Option<u64>) -> PyResult<(u64, usize, Bound<'py, PyDict>)> {
        let number = number.unwrap_or_else(|| self.delivered());
        let (step, row, texts) = self.with(py, |pipeline| {
            let Delivered { step, row, cursors, carried, interval, .. } = pipeline.position_after(number).0;
            let sources = &pipeline.stream_of(*interval).sources;
            let text = |(cursors, carried): (&[Cursor], &[Option<Arc<Carried>>])| {
                let carried = carried.iter().map(Option::as_deref).chain(std::iter::repeat(None));
                let named = sources.iter().map(|source| &*source.name).zip(cursors).zip(carried);
                state::write_lane(named.map(|((name, cursor), carried)| (name, cursor, carried)))
            };
            let carried = carried.chunks(sources.len()).chain(std::iter::repeat(&[][..]));
            let cursors = cursors.chunks(sources.len()).zip(carried);
            let texts: Vec<_> = pipeline.lanes().iter().copied().zip(cursors.map(text)).collect();
            (*step, *row, texts)
        })?;
        let lanes = PyDict::new(py);
        for (lane, text) in texts {
            lanes.set_item(lane.to_string(), text)?;
        }
        Ok((step, row, lanes))
    }

    /// Returns once the quarantine file is on disk.
    fn sync_quarantine_file(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.with(py, |pipeline| pipeline.sync_quarantine_file())??)
    }

    /// Moves to a saved state: step, row, and the text of each own lane in order; and ranges of steps from there on that were
    /// committed.
    fn restore(
        &self,
        py: Python<'_>,
        step: u64,
        row: usize,
        lanes: Vec<String>,
        committed: Vec<(u64, u64)>,
    ) -> PyResult<()> {
        let lanes = lanes.iter().map(|text| state::read_lane(text).map_err(Error::State));
        let lanes = lanes.collect::<Result<Vec<_>, _>>()?;
        Ok(self.with(py, |pipeline| {
            let interval = pipeline.interval_of(step, row);
            let (mut cursors, mut carried) = (Vec::new(), Vec::new());
            // A state has nothing of sources, or in its first step of lanes, of which nothing was read yet.
            let has_large_windows = pipeline.stream_of(interval).has_large_windows(lanes.iter().flatten());
            for (index, lane) in lanes.into_iter().enumerate() {
                let number = pipeline.lanes().get(index).copied().unwrap_or(index);
                for (cursor, own) in pipeline.stream_of(interval).order(number, lane, has_large_windows)? {
                    cursors.push(cursor);
                    carried.push(own);
                }
            }
            let carried = if carried.iter().all(Option::is_none) { Arc::default() } else { carried.into() };
            let restored =
                pipeline.restore(Delivered { step, row, cursors, carried, interval, skipped_tokens: 0 });
            if restored.is_ok() {
                pipeline.leave_out(committed);
            }
            restored
        })??)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Stats {
            totals,
            rows,
            padding_tokens,
            batches,
            skipped_steps,
            skipped_tokens,
            waited,
            ready,
            busy,
            verified,
            sources,
        } = self.with(py, |pipeline| pipeline.stats(pipeline.position_after(self.delivered()).0))?;
        let has_images = self.with(py, |pipeline| pipeline.stream().image_rows().is_some())?;
        let stats = PyDict::new(py);
        stats.set_item("records", totals.records)?;
        stats.set_item("documents", totals.documents)?;
        stats.set_item("tokens", totals.tokens)?;
        stats.set_item("trained_tokens", totals.trained)?;
        stats.set_item("text_bytes", totals.text_bytes)?;
        stats.set_item("rows", rows)?;
        stats.set_item("batches", batches)?;
        stats.set_item("skipped_steps", skipped_steps)?;
        stats.set_item("skipped_tokens", skipped_tokens)?;
        stats.set_item("padding_tokens", padding_tokens)?;
        stats.set_item("dropped_tokens", totals.dropped)?;
        stats.set_item("only_stops", totals.only_stops)?;
        stats.set_item("dropped_messages", totals.dropped_messages)?;
        stats.set_item("filtered_samples", totals.filtered_samples)?;
        stats.set_item("filtered", totals.filtered)?;
        stats.set_item("quarantined", totals.quarantined)?;
        stats.set_item("lost_shards", totals.lost_shards)?;
        stats.set_item("wait_seconds", waited.as_secs_f64())?;
        stats.set_item("ring_ready", ready)?;
        let by_phase = PyDict::new(py);
        for (phase, duration) in ["read", "encode", "pack", "decode"].into_iter().zip(busy) {
            // Without images there is nothing to decode.
            if phase == "decode" && !has_images {
                continue;
            }
            by_phase.set_item(phase, duration.as_secs_f64())?;
        }
        stats.set_item("busy_seconds", by_phase)?;
        if has_images {
            stats.set_item("images", totals.images)?;
            stats.set_item("image_tokens", totals.image_tokens)?;
            stats.set_item("undecodable", totals.undecodable)?;
        }
        stats.set_item("verified", verified)?;
        self.add_network(py, &stats)?;
        if !sources.is_empty() {
            stats.set_item("sources", by_source(py, sources)?)?;
        }
        Ok(stats)
    }

    /// The number of records quarantined so far, and those of them that the caller does not know yet; the newest
    /// if there are more than `MOST_LISTED`.
    fn quarantine<'py>(&self, py: Python<'py>, known: u64) -> PyResult<(u64, Bound<'py, PyList>)> {
        let (listed, entries) = self.with(py, |pipeline| {
            let (_, count) = pipeline.position_after(self.delivered());
            (count, pipeline.quarantined().between(known, count).cloned().collect::<Vec<_>>())
        })?;
        let list = PyList::empty(py);
        for entry in entries {
            let item = PyDict::new(py);
            item.set_item("shard", &*entry.shard)?;
            item.set_item("record", entry.record)?;
            item.set_item("byte", entry.byte)?;
            item.set_item("reason", entry.reason)?;
            list.append(item)?;
        }
        Ok((listed, list))
    }
}

impl Pipeline {
    /// Logs what is waited out on the network.
    fn log_outages(&self, py: Python<'_>) -> PyResult<()> {
        let notes: Vec<String> = self.with(py, |pipeline| {
            pipeline.network().flat_map(gristmill_remote::Counters::take_notes).collect()
        })?;
        super::stores::log(py, &notes)
    }

    /// Logs which step is made of those that are not delivered.
    fn log_skipping(&self, py: Python<'_>) -> PyResult<()> {
        let note = self.with(py, |pipeline| pipeline.skipping())?.map(|(step, end)| {
            format!("step {step} is made and not delivered, as all before step {end}: see skip= and commit")
        });
        super::stores::log(py, note.as_slice())
    }

    /// Adds what was requested from stores on the network, if anything was.
    fn add_network(&self, py: Python<'_>, stats: &Bound<'_, PyDict>) -> PyResult<()> {
        let sums = self.with(py, |pipeline| {
            pipeline.network().fold(None, |sums: Option<[u64; 4]>, one| {
                let found = [&one.requests, &one.retries, &one.bytes, &one.wait_nanos];
                let found = found.map(|count| count.load(Ordering::Relaxed));
                let sums = sums.unwrap_or_default();
                Some(std::array::from_fn(|index| sums[index] + found[index]))
            })
        })?;
        if let Some([requests, retries, bytes, waited]) = sums {
            stats.set_item("requests", requests)?;
            stats.set_item("retries", retries)?;
            stats.set_item("bytes_fetched", bytes)?;
            stats.set_item("fetch_wait_seconds", waited as f64 / 1e9)?;
        }
        Ok(())
    }
}

impl Pipeline {
    fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Does work on the core's pipeline without the GIL: another thread may hold the pipeline while it waits for a
    /// batch. If the work panics, the pipeline fails with that error.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&mut pipeline::Pipeline) -> T,
    ) -> PyResult<T> {
        Ok(guarded(py, || {
            let mut pipeline = self.inner.lock()?;
            caught(|| Ok(work(&mut pipeline))).inspect_err(|bug| pipeline.fail(bug.clone()))
        })?)
    }

    fn arrays<'py>(&self, py: Python<'py>, batch: Batch) -> PyResult<Bound<'py, PyDict>> {
        let Batch { lease, row } = batch;
        let schema = lease.schema();
        let owner = ArrayOwner::new(py, Arc::clone(&lease))?;
        let rows: &[usize] = if row.is_some() { &[] } else { &[schema.rows()] };
        let arrays = PyDict::new(py);
        for (index, (name, field)) in self.names.iter().zip(schema.fields()).enumerate() {
            let shape = [rows, &field.row_shape].concat();
            with_element_type!(field.dtype, E => {
                let first = lease.row_ptr::<E>(index, row.unwrap_or(0));
                // SAFETY: the elements are in the batch's memory, to which no Rust code refers until all arrays of the
                // batch are dropped.
                arrays.set_item(name, unsafe { ArrayOwner::array(&owner, first, shape) })?;
            });
        }
        Ok(arrays)
    }
}

impl Drop for Pipeline {
    /// Joins the workers without the GIL: they may wait for it, to call a function of the user.
    fn drop(&mut self) {
        let close = || _ = self.inner.lock().map(|mut pipeline| pipeline.close());
        _ = Python::try_attach(|py| py.detach(close));
    }
}

/// The statistics of sources by their names, in the order in which the user has listed them.
fn by_source(py: Python<'_>, mut sources: Vec<SourceStats>) -> PyResult<Bound<'_, PyDict>> {
    sources.sort_by_key(|source| source.number);
    let by_name = PyDict::new(py);
    for source in sources {
        let SourceStats { name, totals, rows, epochs, exhausted_lanes, asked, given, .. } = source;
        let stats = PyDict::new(py);
        stats.set_item("rows", rows)?;
        stats.set_item("tokens", totals.tokens)?;
        stats.set_item("trained_tokens", totals.trained)?;
        stats.set_item("documents", totals.documents)?;
        stats.set_item("only_stops", totals.only_stops)?;
        stats.set_item("dropped_messages", totals.dropped_messages)?;
        stats.set_item("filtered_samples", totals.filtered_samples)?;
        stats.set_item("filtered", totals.filtered)?;
        stats.set_item("quarantined", totals.quarantined)?;
        stats.set_item("epochs", epochs)?;
        stats.set_item("exhausted_lanes", exhausted_lanes)?;
        stats.set_item("asked", asked)?;
        stats.set_item("given", given)?;
        by_name.set_item(name, stats)?;
    }
    Ok(by_name)
}

/// A number that no other thread has, and neither [`NOBODY`] nor [`ANYBODY`].
fn this_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: u64 = 1 + LAST.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
