//! The worker threads: a fixed number, from the first batch requested until the pool is dropped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::decode_images::ImageDecoder;
use super::job_queue::JobQueue;
use super::schedule::{Feed, Job, Packed, Schedule};
use crate::batch::ring::LaneWriter;
use crate::encode::Encoder;
use crate::error::{Error, Result, caught};
use crate::lane::admission::Admission;
use crate::lane::block::{RawBlock, SampleBlock};
use crate::lane::carried::Carried;
use crate::lane::cursor::Cursor;
use crate::lane::id_buffer::IdPool;
use crate::lane::reader::LaneReader;
use crate::pack::pixels::{PixelTask, Undecodable};
use crate::pack::queue::{DocumentQueue, Supply};
use crate::pack::report::Report;
use crate::pack::{Packer, Pause};
use crate::pipeline::encode_block::BlockEncoder;
use crate::quarantine::file::QuarantineFile;
use crate::spec::{HostSpec, StreamSpec};
use crate::store::Connection;

/// A lane's cursors, the documents behind each that were delivered before a border, and its end of the ring.
pub type LaneStart<'a> = (&'a [Cursor], &'a [Option<Arc<Carried>>], LaneWriter<Report>);

/// Threads that fill the ring. Dropping the pool stops and joins them.
pub struct WorkerPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Time spent by the workers, in nanoseconds, summed over all threads, and the number of documents verified.
#[derive(Debug, Default)]
pub struct StageTimes {
    read: AtomicU64,
    encode: AtomicU64,
    pack: AtomicU64,
    decode: AtomicU64,
    verified: AtomicU64,
}

struct Shared {
    stream: Arc<StreamSpec>,
    encoder: Encoder,
    verify: f64,
    lanes: Vec<LaneEnds>,
    jobs: JobQueue,
    times: Arc<StageTimes>,
    ids: Arc<IdPool>,
    long: Arc<Mutex<()>>,
    /// The encoders that no worker uses, if there are more workers than may work at once: one takes some 20 MB.
    encoders: Option<Mutex<Vec<BlockEncoder>>>,
    _connections: Vec<Connection>,
    /// Ends reading and encoding early: skipping to a position in a shard may take long, and so may the reference.
    stop: Arc<AtomicBool>,
}

/// A lane's two ends. The schedule admits one worker at a time to each, so the locks block only who asks where a lane
/// is.
struct LaneEnds {
    /// One for each source.
    readers: Vec<Mutex<LaneReader>>,
    packing: Mutex<PackingEnd>,
    /// Images of the step that is being packed which cannot be decoded.
    undecodable: Mutex<Vec<Undecodable>>,
}

/// The packing end of a lane.
struct PackingEnd {
    /// One for each source.
    admissions: Vec<Admission>,
    documents: Vec<DocumentQueue>,
    packer: Packer,
}

/// The most bytes of records whose memory a worker keeps: those of any block without an enormous record.
const KEPT_BYTES: usize = 4 << 20;

/// The most workers that wait for the network while as many as `threads` work.
const MOST_WAITING: usize = 256;

/// Memory that a worker reuses for each block.
#[derive(Default)]
struct Scratch {
    /// Made with the first block: of many threads most may get no block of a short run.
    encoder: Option<BlockEncoder>,
    raw: RawBlock,
    images: Option<ImageDecoder>,
}

impl WorkerPool {
    /// Starts workers on the host's lanes, each at its cursors and with its end of the ring. Cursors and quarantine files
    /// are those of each source.
    pub fn start(
        stream: &Arc<StreamSpec>,
        encoder: &Encoder,
        host: &HostSpec,
        ends: Vec<LaneStart<'_>>,
        open_until: u64,
        times: &Arc<StageTimes>,
        quarantine_files: &[Option<Arc<QuarantineFile>>],
    ) -> Result<Self> {
        let threads = host.threads;
        let is_remote = stream.sources.iter().any(|source| source.is_remote());
        let waiting = if is_remote { (host.lanes.len() * stream.sources.len()).min(MOST_WAITING) } else { 0 };
        let sources = stream.sources.len();
        let steps = ends.iter().map(|(.., writer)| writer.step());
        let schedule = Schedule::new(steps, sources, open_until, threads);
        let stop = Arc::new(AtomicBool::new(false));
        let lanes = host.lanes.iter().zip(ends).map(|(&lane, (cursors, carried, writer))| {
            let feeds = || {
                let carried = carried.iter().map(Option::as_ref).chain(std::iter::repeat(None));
                stream.sources.iter().map(Arc::clone).zip(cursors).zip(carried)
            };
            let reader = |((stream, cursor), carried)| {
                LaneReader::new(stream, lane, cursor)
                    .beside_others(sources)
                    .carrying(carried)
                    .stopped_by(&stop)
            };
            let files = quarantine_files.iter().cloned();
            LaneEnds {
                readers: feeds().map(|feed| Mutex::new(reader(feed))).collect(),
                packing: Mutex::new(PackingEnd {
                    admissions: feeds()
                        .zip(files)
                        .map(|(((stream, cursor), carried), file)| {
                            Admission::new(stream, lane, cursor, file).carrying(carried)
                        })
                        .collect(),
                    documents: feeds()
                        .zip(quarantine_files.iter().cloned())
                        .map(|(((stream, cursor), carried), file)| {
                            DocumentQueue::new(stream, lane, *cursor).carrying(carried).listing_in(file)
                        })
                        .collect(),
                    packer: Packer::new(stream, lane, cursors, writer),
                }),
                undecodable: Mutex::default(),
            }
        });
        let shared = Arc::new(Shared {
            stream: Arc::clone(stream),
            encoder: encoder.clone(),
            verify: host.verify,
            lanes: lanes.collect(),
            jobs: JobQueue::new(schedule, threads),
            times: Arc::clone(times),
            ids: IdPool::new(4 * threads),
            long: Arc::default(),
            _connections: connect(stream)?,
            encoders: is_remote.then(Mutex::default),
            stop,
        });
        let threads = threads + waiting;
        let mut pool = Self { shared, threads: Vec::with_capacity(threads) };
        for number in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("gristmill-{number}"))
                .spawn(move || run(&shared))
                .map_err(|error| Error::no_threads(threads, error))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Tells the workers that the consumer took a slot.
    pub fn slot_taken(&self, open_until: u64) {
        self.shared.jobs.slot_taken(open_until);
    }

    /// A worker's panic, if there was one.
    pub fn bug(&self) -> Option<Error> {
        self.shared.jobs.bug()
    }
}

impl LaneEnds {
    fn undecodable(&self) -> MutexGuard<'_, Vec<Undecodable>> {
        self.undecodable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.jobs.close();
        for thread in self.threads.drain(..) {
            // A worker catches its own panics, so the result carries no information.
            let _ = thread.join();
        }
    }
}

impl StageTimes {
    /// Time spent reading, encoding, packing and decoding images.
    pub fn durations(&self) -> [Duration; 4] {
        [&self.read, &self.encode, &self.pack, &self.decode]
            .map(|nanos| Duration::from_nanos(nanos.load(Ordering::Relaxed)))
    }

    /// Documents whose ids were compared with the reference's and found equal.
    pub fn verified(&self) -> u64 {
        self.verified.load(Ordering::Relaxed)
    }
}

fn run(shared: &Arc<Shared>) {
    crate::sync::WAITING.set(Some(Arc::clone(shared) as Arc<dyn crate::sync::Waiting>));
    if let Err(bug) = caught(|| shared.work()) {
        shared.jobs.fail(bug);
    }
    crate::sync::WAITING.set(None);
}

impl crate::sync::Waiting for Shared {
    fn begin_wait(&self) {
        self.jobs.begin_wait();
    }

    fn end_wait(&self) {
        self.jobs.end_wait();
    }
}

impl Shared {
    fn work(&self) -> Result<()> {
        let mut scratch = Scratch::default();
        while let Some(job) = self.jobs.take() {
            let feed = job.feed();
            let done = caught(|| {
                match job {
                    Job::ReadAndEncode { feed } => {
                        self.read_and_encode(feed, &mut scratch);
                    }
                    Job::Pack { lane, block } => self.pack(lane, block),
                    Job::Decode { lane, task } => {
                        let images =
                            scratch.images.get_or_insert_with(|| ImageDecoder::new(&self.stream, &self.stop));
                        self.decode(lane, task, images);
                    }
                }
                Ok(())
            });
            done.map_err(|error| self.located(feed, error))?;
            self.jobs.job_done();
        }
        Ok(())
    }

    fn new_encoder(&self) -> BlockEncoder {
        let encoder =
            BlockEncoder::new(&self.stream.sources[0], &self.encoder, self.verify, Arc::clone(&self.ids));
        encoder.taking_turns(&self.long).stopped_by(&self.stop)
    }

    /// An encoder that nobody uses.
    fn idle_encoder(&self) -> Option<BlockEncoder> {
        self.encoders.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// A panic in work on a lane, with how far the lane is.
    fn located(&self, feed: Feed, error: Error) -> Error {
        let Error::Bug(panic) = error else { return error };
        let lock = self.lanes[feed.lane].readers[feed.source].lock();
        let position = lock.unwrap_or_else(PoisonError::into_inner).describe_position();
        Error::Bug(format!("{panic} ({position})"))
    }

    fn pack(&self, lane: usize, samples: Option<(usize, SampleBlock)>) {
        let mut packing = self.lanes[lane].packing.lock().unwrap_or_else(PoisonError::into_inner);
        let PackingEnd { admissions, documents, packer } = &mut *packing;
        if let Some((source, samples)) = samples {
            admissions[source].add(samples);
        }
        if packer.has_lent_pixels() {
            let damaged = std::mem::take(&mut *self.lanes[lane].undecodable());
            packer.pixels_written(damaged, documents);
        }
        let pause = timed(&self.times.pack, || {
            loop {
                let pause = packer.pack(documents);
                let Pause::Starved(source) = pause else { return pause };
                match admissions[source].next_block() {
                    Some(block) => documents[source].push(block),
                    None => return pause,
                }
            }
        });
        let supply = |(queue, admission): (&DocumentQueue, &Admission)| {
            let own = queue.supply();
            Supply { gathered: own.gathered + admission.held(), ..own }
        };
        let packed = Packed {
            pause,
            step: packer.step(),
            pixels: if pause == Pause::Pixels { packer.lend_pixels() } else { Vec::new() },
            supplies: documents.iter().zip(&*admissions).map(supply).collect(),
        };
        drop(packing);
        self.jobs.lane_packed(lane, packed);
    }

    /// Writes some pixels of a lane's step.
    fn decode(&self, lane: usize, task: PixelTask, decoder: &mut ImageDecoder) {
        let index = task.index;
        if let Err(fault) = timed(&self.times.decode, || decoder.write(task)) {
            self.lanes[lane].undecodable().push(Undecodable { index, fault });
        }
        self.jobs.pixels_written(lane);
    }

    /// Reads a block, lets others read the next one, and encodes it while its records are in the CPU cache.
    fn read_and_encode(&self, feed: Feed, scratch: &mut Scratch) {
        let raw = &mut scratch.raw;
        let mut reader =
            self.lanes[feed.lane].readers[feed.source].lock().unwrap_or_else(PoisonError::into_inner);
        timed(&self.times.read, || reader.read(raw));
        let read_all = reader.is_done();
        drop(reader);
        let number = self.jobs.block_read(feed, raw.bytes.len(), read_all);
        let mut encoder =
            scratch.encoder.take().or_else(|| self.idle_encoder()).unwrap_or_else(|| self.new_encoder());
        encoder.set_source(&self.stream.sources[feed.source]);
        let (samples, verified) = timed(&self.times.encode, || encoder.encode(raw));
        match &self.encoders {
            None => scratch.encoder = Some(encoder),
            Some(encoders) => encoders.lock().unwrap_or_else(PoisonError::into_inner).push(encoder),
        }
        self.times.verified.fetch_add(verified, Ordering::Relaxed);
        if raw.bytes.capacity() > KEPT_BYTES {
            *raw = RawBlock::default();
        }
        self.jobs.block_encoded(feed, number, samples);
    }
}

/// The connections of all sources.
fn connect(stream: &StreamSpec) -> Result<Vec<Connection>> {
    let streams = stream.sources.iter();
    streams
        .map(|stream| stream.read.access.connect(stream.shards.iter().chain(stream.sidecars.files())))
        .collect()
}

fn timed<T>(nanos: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    result
}
