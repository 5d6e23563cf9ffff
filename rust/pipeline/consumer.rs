//! The consumer's side: batches in order, the state of what was delivered, and the lifetime of the workers.

mod stats;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::undelivered::Undelivered;
use super::workers::{StageTimes, WorkerPool};
use crate::batch::buffers::{Pool, PooledBatch};
use crate::batch::layouts::{pair_field, provenance_field, room_field, source_fields};
use crate::batch::ring::{Consumer, ring};
use crate::batch::schema::{BatchSchema, Content};
use crate::encode::Encoder;
use crate::error::{Error, Result};
use crate::lane::carried::Carried;
use crate::lane::cursor::Cursor;
use crate::pack::report::{Report, Rows};
use crate::quarantine::delivered::DeliveredLog;
use crate::quarantine::file::QuarantineFile;
use crate::spec::{HostSpec, QuarantineFileSpec, SourceSpec, StreamSpec};

pub use stats::{SourceStats, Stats};

/// Idle buffers to keep: enough for a consumer that frees a batch before or after it asks for the next.
const IDLE_BUFFERS: usize = 2;

/// The longest wait at once for the end of lanes that have ended, behind a border.
const BORDER_WAIT: Duration = Duration::from_millis(100);

/// Delivers the batches of some lanes. Starts its threads when the first batch is requested.
pub struct Pipeline {
    /// The intervals of the stream, in order, and the one that batches are made of.
    intervals: Vec<(Arc<StreamSpec>, HostSpec)>,
    interval: usize,
    stream: Arc<StreamSpec>,
    host: HostSpec,
    encoder: Encoder,
    /// After the last batch taken.
    taken: Delivered,
    quarantined: DeliveredLog,
    undelivered: Undelivered,
    /// Steps that were committed before: ranges that are made and not delivered, as skipped ones.
    committed: Vec<(u64, u64)>,
    /// The position before the steps that are being skipped, and how many records were quarantined before it.
    skipping: Option<(Delivered, u64)>,
    /// The files of the latest workers, one for each source; kept after they end, because a state may still be saved.
    quarantine_files: Vec<Option<Arc<QuarantineFile>>>,
    pool: Arc<Pool>,
    busy: Arc<StageTimes>,
    waited: Duration,
    phase: Phase,
    /// Whether the next step will have rows of these lanes that are not all padding. True before the first step, about
    /// which nothing is known.
    more: bool,
}

/// A position between two batches or rows, as saved in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Whole steps.
    pub step: u64,
    /// Rows of the next step, when single rows are delivered.
    pub row: usize,
    /// One for each of this host's lanes and, within a lane, for each source.
    pub cursors: Vec<Cursor>,
    /// For each of them the documents from there on that were delivered before a border; empty: none of any.
    pub carried: Arc<[Option<Arc<Carried>>]>,
    /// The interval of the stream that the cursors belong to.
    pub interval: usize,
    /// Tokens of skipped steps since the pipeline was made or restored. No state has them.
    pub skipped_tokens: u64,
}

/// The result of [`Pipeline::next`].
pub enum Delivery {
    /// A batch, or with `row` one row of it.
    Batch(Batch),
    /// Not there yet.
    Pending,
    /// The stream has ended.
    End,
}

/// A batch in the consumer's hands.
pub struct Batch {
    /// The memory of all arrays.
    pub lease: Arc<PooledBatch>,
    /// The row to deliver, if single rows are delivered.
    pub row: Option<usize>,
}

enum Phase {
    /// No worker was started for the step at which the stream stands.
    Idle,
    Running(Running),
    /// All lanes have ended.
    Ended,
    /// Closed, or stopped by an error, which each further call returns.
    Failed(Error),
}

struct Running {
    workers: WorkerPool,
    consumer: Consumer<Report>,
    /// The step whose single rows are being delivered.
    step: Option<OpenStep>,
    process: u32,
}

struct OpenStep {
    lease: Arc<PooledBatch>,
    reports: Vec<Option<Report>>,
    more: bool,
    /// No lane has anything left.
    is_end: bool,
}

impl Pipeline {
    /// A pipeline at the start of the stream.
    pub fn new(stream: impl Into<StreamSpec>, host: HostSpec, encoder: Encoder) -> Self {
        Self::of_intervals((Arc::new(stream.into()), host), Vec::new(), encoder)
    }

    /// A pipeline of a stream of one or more intervals.
    pub fn of_intervals(
        first: (Arc<StreamSpec>, HostSpec),
        others: Vec<(Arc<StreamSpec>, HostSpec)>,
        encoder: Encoder,
    ) -> Self {
        let (stream, host) = first.clone();
        let starts = || stream.sources.iter().map(|source| Cursor::start(source, false));
        let cursors = host.lanes.iter().flat_map(|_| starts()).collect();
        let taken =
            Delivered { step: 0, row: 0, cursors, carried: Arc::default(), interval: 0, skipped_tokens: 0 };
        Self {
            pool: pool(&stream, &host),
            intervals: std::iter::once(first).chain(others).collect(),
            interval: 0,
            stream,
            host,
            encoder,
            taken,
            quarantined: DeliveredLog::default(),
            undelivered: Undelivered::default(),
            committed: Vec::new(),
            skipping: None,
            quarantine_files: Vec::new(),
            busy: Arc::default(),
            waited: Duration::ZERO,
            phase: Phase::Idle,
            more: true,
        }
    }

    /// The fields of its batches.
    pub fn schema(&self) -> &BatchSchema {
        self.pool.schema()
    }

    /// How many workers to start, from the next start on.
    pub fn set_threads(&mut self, threads: usize) {
        self.host.threads = threads;
        self.intervals.iter_mut().for_each(|(_, host)| host.threads = threads);
    }

    /// The stream that its rows are made of.
    pub fn stream(&self) -> &StreamSpec {
        &self.stream
    }

    /// The lanes of this host.
    pub fn lanes(&self) -> &[usize] {
        &self.host.lanes
    }

    /// The position after the last batch taken.
    pub fn taken(&self) -> &Delivered {
        &self.taken
    }

    /// The number of the last batch taken; an end and padding count as one.
    pub fn number(&self) -> u64 {
        self.undelivered.taken()
    }

    /// While steps are made that are not delivered: the next one, and the first one that is delivered again.
    pub fn skipping(&self) -> Option<(u64, u64)> {
        self.skipping.as_ref().map(|_| (self.taken.step, self.next_delivered()))
    }

    /// The first step from here on that is delivered.
    fn next_delivered(&self) -> u64 {
        delivered_from(&self.stream, &self.committed, self.taken.step)
    }

    /// How many batches are taken and not delivered.
    pub fn undelivered(&self) -> usize {
        self.undelivered.len()
    }

    /// The position after batch `number`, and how many records were quarantined up to there.
    pub fn position_after(&self, number: u64) -> (&Delivered, u64) {
        match (self.undelivered.after(number), &self.skipping) {
            (Some(next), _) => (&next.before, next.quarantined),
            (None, Some((before, quarantined))) => (before, *quarantined),
            (None, None) => (&self.taken, self.quarantined.count()),
        }
    }

    /// Leaves out steps that were committed, of which each range has a first step and an end.
    pub fn leave_out(&mut self, committed: Vec<(u64, u64)>) {
        self.committed = committed;
    }

    /// The interval that the cursors of a state belong to: that of the last step before it.
    pub fn interval_of(&self, step: u64, row: usize) -> usize {
        let steps = step + u64::from(row > 0);
        self.intervals.partition_point(|(stream, _)| stream.interval.first < steps).saturating_sub(1)
    }

    /// The definition of an interval of the stream.
    pub fn stream_of(&self, interval: usize) -> &StreamSpec {
        &self.intervals[interval].0
    }

    /// Moves to another step and row, clears an end or a failure, and starts no thread.
    pub fn restore(&mut self, delivered: Delivered) -> Result<()> {
        self.assert_own_process()?;
        if let Phase::Failed(Error::Closed) = self.phase {
            return Err(Error::Closed);
        }
        let stream = Arc::clone(&self.intervals[delivered.interval].0);
        let sources = stream.sources.len();
        let (found, expected) = (delivered.cursors.len() / sources, self.host.lanes.len());
        if found != expected {
            return Err(Error::State(format!("the state has {found} lanes, expected {expected}")));
        }
        for (&lane, cursors) in self.host.lanes.iter().zip(delivered.cursors.chunks(sources)) {
            for (source, cursor) in stream.sources.iter().zip(cursors) {
                cursor.check(source, lane)?;
            }
        }
        if delivered.row > 0 && (!self.host.single_rows || delivered.row >= self.host.lanes.len()) {
            return Err(Error::State(format!(
                "the state is at row {} within a step; it can only be restored onto the same lanes, with \
                 batch_size=None",
                delivered.row
            )));
        }
        // The new state may count what has been delivered here and is not on disk.
        let synced = self.sync_quarantine_file();
        if delivered.cursors.iter().any(|cursor| cursor.totals.quarantined + cursor.totals.undecodable > 0) {
            synced?;
        }
        self.quarantine_files.clear();
        self.quarantined = DeliveredLog::default();
        self.go_to(delivered);
        Ok(())
    }

    fn go_to(&mut self, delivered: Delivered) {
        self.stop();
        self.more = true;
        self.enter(delivered.interval);
        self.taken = delivered;
        self.skipping = None;
        self.undelivered.clear();
    }

    /// Makes batches of another interval.
    fn enter(&mut self, interval: usize) {
        if self.interval != interval {
            self.interval = interval;
            (self.stream, self.host) = self.intervals[interval].clone();
            self.pool = pool(&self.stream, &self.host);
        }
    }

    /// Continues behind a border from the lanes' reports. A state is that before the border until a step is delivered.
    fn cross(&mut self, cursors: Vec<Cursor>, carried: Vec<Option<Arc<Carried>>>) {
        let before = (self.taken.clone(), self.quarantined.count());
        let skipping = self.skipping.take().unwrap_or(before);
        self.stop();
        self.enter(self.interval + 1);
        let carried: Arc<[_]> =
            if carried.iter().all(Option::is_none) { Arc::default() } else { carried.into() };
        self.taken = Delivered { cursors, carried, interval: self.interval, ..self.taken.clone() };
        self.skipping = Some(skipping);
    }

    /// The batches up to `number` have reached the consumer, and can no longer be taken back.
    pub fn deliver(&mut self, number: u64) {
        self.undelivered.deliver(number);
    }

    /// Returns to the position after the last batch that reached the consumer: for an interrupt after a batch was taken
    /// and before it reached the consumer. All that was taken since comes again.
    pub fn rewind(&mut self) {
        if self.assert_own_process().is_err() || matches!(self.phase, Phase::Failed(Error::Closed)) {
            return;
        }
        if let Some(first) = self.undelivered.clear() {
            self.quarantined.take_back(first.quarantined);
            self.go_to(first.before);
        }
    }

    /// The next batch; waits for at most `timeout`. After the end, or an error of the stream, returns the same again;
    /// what could not be started is tried again.
    pub fn next(&mut self, timeout: Duration) -> Result<Delivery> {
        self.start()?;
        self.advance(timeout).inspect_err(|error| self.fail(error.clone()))
    }

    /// A batch of padding after the end, for a step in which other hosts still have rows. `None` if the end was not
    /// reached, or if single rows are delivered.
    pub fn padding(&mut self) -> Result<Option<Batch>> {
        if !matches!(self.phase, Phase::Ended) || self.host.single_rows {
            return Ok(None);
        }
        let mut step = self.next_delivered();
        // Rows behind a border have another shape.
        while self.stream.interval.until == Some(step) {
            self.taken.step = step;
            self.cross(self.taken.cursors.clone(), Vec::new());
            self.skipping = None;
            while !matches!(self.next(BORDER_WAIT)?, Delivery::End) {}
            step = self.next_delivered();
        }
        let mut batch = PooledBatch::new(self.pool.get()?, Arc::clone(&self.pool));
        batch.pad(0..self.pool.schema().rows());
        let lease = Arc::new(batch);
        self.undelivered.add(self.taken.clone(), self.quarantined.count());
        self.taken.step = step + 1;
        Ok(Some(Batch { lease, row: None }))
    }

    /// Whether the next step will have rows of these lanes that are not all padding. Where rows may be left out, that is known
    /// once the next step is there: waits for at most `timeout`, and `None` says that it is not known yet.
    pub fn more(&mut self, timeout: Duration) -> Result<Option<bool>> {
        let is_at_border = self.stream.interval.until == Some(self.taken.step);
        let has_crossed = self.taken.step == self.stream.interval.first && self.interval > 0;
        if self.more && !self.host.lanes.is_empty() && (is_at_border || has_crossed) {
            self.start()?;
            if is_at_border {
                let Phase::Running(running) = &mut self.phase else { return Ok(Some(self.more)) };
                if running.step.is_none() {
                    running.step = running.take_step(timeout, &self.pool)?;
                }
                if !self.cross_if_at_border() {
                    let has_step = matches!(&self.phase, Phase::Running(running) if running.step.is_some());
                    // A lane that fails is found by the step that is taken next.
                    return Ok(has_step.then_some(true));
                }
                return Ok(None);
            }
            let Phase::Running(running) = &self.phase else { return Ok(Some(self.more)) };
            return Ok(running.more(timeout));
        }
        Ok(match &self.phase {
            Phase::Running(running) if self.more && self.stream.leaves_out_rows() => running.more(timeout),
            _ => Some(self.more),
        })
    }

    /// Continues behind a border, if the step that was taken is none because all lanes are there.
    fn cross_if_at_border(&mut self) -> bool {
        let Phase::Running(Running { step: Some(step), .. }) = &mut self.phase else { return false };
        let is_border = |report: &Option<Report>| {
            report.as_ref().is_some_and(|report| matches!(report.rows, Rows::Border(_)))
        };
        if !step.reports.iter().all(is_border) {
            return false;
        }
        let (mut cursors, mut all_carried) = (Vec::new(), Vec::new());
        for report in std::mem::take(&mut step.reports).into_iter().flatten() {
            cursors.extend(report.cursors);
            if let Rows::Border(carried) = report.rows {
                all_carried.extend(carried);
            }
        }
        self.cross(cursors, all_carried);
        true
    }

    /// Returns the current step, or its next row, and advances the state with it; or returns the error of the first
    /// lane that failed in it. A skipped step is let go, after which the next one is pending.
    fn advance(&mut self, timeout: Duration) -> Result<Delivery> {
        let running = match &mut self.phase {
            Phase::Running(running) => running,
            // With many worker processes, some have no lanes, and nothing was started.
            Phase::Idle | Phase::Ended => return Ok(Delivery::End),
            Phase::Failed(error) => return Err(error.clone()),
        };
        if running.step.is_none() {
            let start = Instant::now();
            let taken = running.take_step(timeout, &self.pool);
            self.waited += start.elapsed();
            running.step = taken?;
        }
        if self.cross_if_at_border() {
            return Ok(Delivery::Pending);
        }
        let Phase::Running(running) = &mut self.phase else { return Ok(Delivery::Pending) };
        let Some(step) = &mut running.step else { return Ok(Delivery::Pending) };
        let before = self.taken.clone();
        let Delivered { step: number, row, cursors, skipped_tokens, .. } = &mut self.taken;
        let (lanes, sources) = (self.host.lanes.len(), self.stream.sources.len());
        let is_skipped = delivered_from(&self.stream, &self.committed, *number) > *number && !step.is_end;
        let is_single = self.host.single_rows && !step.is_end && !is_skipped;
        let given = if is_single { *row..*row + 1 } else { 0..lanes };
        for report in step.reports[given.clone()].iter().flatten() {
            if let Rows::Failed(error) = &report.rows {
                return Err(error.clone());
            }
        }
        let tokens_before = if is_skipped { tokens(cursors) } else { 0 };
        let (before, quarantined) = self.skipping.take().unwrap_or((before, self.quarantined.count()));
        for lane in given.clone() {
            if let Some(report) = step.reports[lane].take() {
                cursors[lane * sources..][..sources].copy_from_slice(&report.cursors);
                self.quarantined.add(report.quarantined);
            }
        }
        self.more = step.more;
        if is_skipped {
            if self.stream.delivered_from(*number) > *number {
                *skipped_tokens += tokens(cursors).saturating_sub(tokens_before);
            }
            *number += 1;
            running.step = None;
            self.skipping = Some((before, quarantined));
            return Ok(Delivery::Pending);
        }
        if step.is_end {
            *number = before.step; // also behind skipped ones, as on hosts whose lanes ended earlier
            self.undelivered.add(before, quarantined);
            self.stop();
            self.phase = Phase::Ended;
            return Ok(Delivery::End);
        }
        self.undelivered.add(before, quarantined);
        let lease = Arc::clone(&step.lease);
        let batch = Batch { lease, row: self.host.single_rows.then_some(*row) };
        *row = given.end;
        if *row == lanes {
            *row = 0;
            *number += 1;
            running.step = None;
        }
        Ok(Delivery::Batch(batch))
    }

    /// Starts the workers unless they are running.
    pub fn start(&mut self) -> Result<()> {
        self.assert_own_process()?;
        if !matches!(self.phase, Phase::Idle) || self.host.lanes.is_empty() {
            return Ok(());
        }
        let Delivered { step, row, cursors, carried, .. } = &self.taken;
        let buffers: Vec<_> = (0..self.host.prefetch).map(|_| self.pool.get()).collect::<Result<_>>()?;
        let (consumer, writers) = ring(self.pool.schema(), self.host.lanes.len(), buffers, *step, *row);
        self.sync_quarantine_file()?; // it is opened anew, and what could not be written must not be forgotten
        self.quarantine_files = open_quarantine_files(&self.host, &self.stream, cursors)?;
        let sources = self.stream.sources.len();
        let carried = carried.chunks(sources).chain(std::iter::repeat(&[][..]));
        let ends = cursors.chunks(sources).zip(carried).zip(writers);
        let ends = ends.map(|((cursors, carried), writer)| (cursors, carried, writer)).collect();
        let (open_until, files) = (consumer.open_until(), &self.quarantine_files);
        let workers =
            WorkerPool::start(&self.stream, &self.encoder, &self.host, ends, open_until, &self.busy, files)?;
        self.phase = Phase::Running(Running { workers, consumer, step: None, process: std::process::id() });
        Ok(())
    }

    /// In a forked child the workers do not exist, and the locks that they share with this thread, such as that of the
    /// plan, stay as they were: nothing but closing is possible.
    fn assert_own_process(&self) -> Result<()> {
        match &self.phase {
            Phase::Running(running) if running.process != std::process::id() => Err(Error::Forked),
            _ => Ok(()),
        }
    }

    /// Stops the workers for good.
    pub fn close(&mut self) {
        self.fail(Error::Closed);
    }

    /// Stops the workers. Each further [`next`](Self::next) returns `error`.
    pub fn fail(&mut self, error: Error) {
        self.stop();
        // Idle buffers go; those that the consumer holds go with the old pool.
        self.pool = Pool::new(Arc::clone(self.pool.schema()), IDLE_BUFFERS);
        self.phase = Phase::Failed(error);
    }

    /// Stops and joins the workers, and is idle. The batches that they had prepared are dropped; the state is kept.
    fn stop(&mut self) {
        let is_forked = self.assert_own_process().is_err();
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        if is_forked {
            std::mem::forget(phase);
        }
    }

    /// Counters of requests to stores on the network; one for each source that has shards there.
    pub fn network(&self) -> impl Iterator<Item = &gristmill_remote::Counters> {
        let streams = self.stream.sources.iter();
        streams.filter(|stream| stream.is_remote()).map(|stream| stream.read.access.stores.counters())
    }

    /// The quarantined records up to the last delivered batch, since this iterator was created or restored: at most the
    /// newest thousand of each lane and step.
    pub fn quarantined(&self) -> &DeliveredLog {
        &self.quarantined
    }

    /// Returns once the quarantine file is on disk. Called before a state is saved, which must not count
    /// what the file may lose.
    pub fn sync_quarantine_file(&self) -> Result<()> {
        self.quarantine_files.iter().flatten().try_for_each(|file| file.sync())
    }

    /// Whether it was stopped by an error or closed, as each further [`next`](Self::next) says.
    pub fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed(_))
    }

    /// Full batches that can be taken without waiting.
    pub fn ready(&self) -> usize {
        match &self.phase {
            // A batch behind skipped ones or a border may have to be waited for.
            Phase::Running(_) if self.stream.interval.until == Some(self.taken.step) => 0,
            Phase::Running(_) if self.next_delivered() > self.taken.step => 0,
            Phase::Running(running) => running.consumer.ready(),
            Phase::Idle | Phase::Ended | Phase::Failed(_) => 0,
        }
    }
}

/// Buffers of the batches of an interval of the stream.
fn pool(stream: &StreamSpec, host: &HostSpec) -> Arc<Pool> {
    let spec = stream.rows;
    let rows = host.lanes.len() * spec.rows_per_lane;
    let (length, segments) = (spec.sequence_length, spec.most_segments());
    let mut fields = spec.layout.fields(length, segments, stream.has_mask());
    fields.retain(|field| host.attention_mask || field.content != Content::Mask);
    fields.extend(spec.layout.value_fields(stream.fields(), length, segments));
    fields.extend(room_field(spec.layout, spec.segment_multiple, segments));
    if stream.has_pairs() {
        fields.push(pair_field(segments));
    }
    fields.extend(provenance_field(host.provenance, host.provenance_width));
    if host.names_sources && stream.mixing.is_some() {
        fields.extend(source_fields());
    }
    if let Some(images) = stream.image_rows() {
        images.extend(&mut fields);
    }
    Pool::new(Arc::new(BatchSchema::new(rows, fields)), IDLE_BUFFERS)
}

/// The first step from one on that is neither skipped nor committed.
fn delivered_from(stream: &StreamSpec, committed: &[(u64, u64)], mut step: u64) -> u64 {
    loop {
        step = stream.delivered_from(step);
        match committed.iter().find(|(first, end)| (*first..*end).contains(&step)) {
            Some((_, end)) => step = *end,
            None => return step,
        }
    }
}

/// The tokens that cursors count.
fn tokens(cursors: &[Cursor]) -> u64 {
    cursors.iter().fold(0, |sum, cursor| sum.saturating_add(cursor.totals.tokens))
}

/// The file of each source; it is the same one, where each source lists its records as a stream of its own.
fn open_quarantine_files(
    host: &HostSpec,
    stream: &StreamSpec,
    cursors: &[Cursor],
) -> Result<Vec<Option<Arc<QuarantineFile>>>> {
    let sources = &stream.sources;
    let Some(spec) = &host.quarantine_file else { return Ok(vec![None; sources.len()]) };
    let open = |(index, source): (usize, &Arc<SourceSpec>)| {
        let of_source = cursors.iter().skip(index).step_by(sources.len());
        let listed = of_source.map(|cursor| [cursor.totals.quarantined, cursor.totals.undecodable]);
        let lanes: Vec<_> = host.lanes.iter().copied().zip(listed).collect();
        let stream = if source.log_name.is_empty() { &spec.stream } else { &source.log_name };
        let spec = QuarantineFileSpec { stream: stream.clone(), ..spec.clone() };
        QuarantineFile::open(&spec, &lanes).map(|file| Some(Arc::new(file)))
    };
    sources.iter().enumerate().map(open).collect()
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Running {
    /// The next step, when it is full; waits for at most `timeout`.
    fn take_step(&mut self, timeout: Duration, pool: &Arc<Pool>) -> Result<Option<OpenStep>> {
        let taken = if self.consumer.wait(timeout) { self.consumer.take(pool.get()?) } else { None };
        let Some((buffer, reports)) = taken else {
            return self.workers.bug().map_or(Ok(None), Err);
        };
        self.workers.slot_taken(self.consumer.open_until());
        Ok(Some(OpenStep::new(PooledBatch::new(buffer, Arc::clone(pool)), reports)))
    }

    /// Whether the step that is taken next is not the end, once it is full. A panic of a worker comes in its place.
    fn more(&self, timeout: Duration) -> Option<bool> {
        if !self.consumer.wait(timeout) {
            return self.workers.bug().map(|_| true);
        }
        self.consumer.all_next(|report| matches!(report.rows, Rows::Padding)).map(|is_end| !is_end)
    }
}

impl OpenStep {
    fn new(mut batch: PooledBatch, reports: Vec<Option<Report>>) -> Self {
        let rows = || reports.iter().map(|report| report.as_ref().map(|report| &report.rows));
        let more = rows().any(|rows| matches!(rows, Some(Rows::Tokens { more: true })));
        let has_ended = |rows: Option<&Rows>| matches!(rows, Some(Rows::Padding));
        // A lane without a report delivered its row before the restore, so the step is not the end.
        let is_end = rows().all(has_ended);
        let of_lane = batch.schema().rows() / reports.len().max(1);
        for (lane, _) in rows().enumerate().filter(|(_, rows)| !is_end && has_ended(*rows)) {
            batch.pad(lane * of_lane..(lane + 1) * of_lane);
        }
        Self { lease: Arc::new(batch), reports, more, is_end }
    }
}
