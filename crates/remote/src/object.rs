//! An object that is read by one thread, and requested ahead of it.
//!
//! A reader of a file goes forward, at one offset or, in Parquet, at one for each column. Each such offset is a
//! *stream* of ranges that follow one another: small at first, so that the first batch comes soon and little is
//! requested in vain, then larger. Two ranges of a stream are in flight. Ranges ahead of the reader count towards
//! `io_bytes` of the client; one that a reader waits for is requested whatever the count, or lanes that wait for each
//! other's bytes would stall.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::cache::Tee;
use crate::client::Client;
use crate::counters::lock;
use crate::fetch::{Wanted, fetch};
use crate::requested::{Requested, Slot};
use crate::retries::Failure;
use crate::shared::Announced;

/// Sizes of the ranges of a stream; the last one from then on.
const RANGE_BYTES: [u64; 4] = [256 << 10, 1 << 20, 4 << 20, 8 << 20];
/// Ranges of a stream that are requested and not used up, that of the reader not counted.
const AHEAD: usize = 2;
/// Ranges near the end of an object begin so far before it: an index there is looked up from its end.
const TAIL_BYTES: u64 = 64 << 10;
/// Offsets at which an object is read in turn.
const STREAMS: usize = 8;
/// How soon a reader notices that it should stop.
const TICK: Duration = Duration::from_millis(50);

/// An object of a store.
pub struct Object {
    client: Client,
    wanted: Arc<Wanted>,
    /// The one that was read last is the last.
    streams: Vec<Stream>,
    /// Where it is kept for the next time.
    tee: Option<Arc<Tee>>,
    /// The object that is read next.
    next: Option<Announced>,
    stop: Arc<AtomicBool>,
}

#[derive(Default)]
struct Stream {
    start: u64,
    ranges: VecDeque<Requested>,
    /// The first byte that was not requested.
    next: u64,
    /// Number of ranges so far.
    count: usize,
}

impl Object {
    /// An object of which the size is known, and the `ETag` if its store has such. Nothing is requested yet. Waiting for
    /// bytes ends soon after `stop` is set.
    pub fn open(
        client: &Client,
        url: &str,
        size: u64,
        e_tag: Option<&str>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, Failure> {
        let (store, path, _) = client.find(url)?;
        let wanted = Wanted { url: url.into(), store, path, size };
        client.shared.e_tag(&wanted.url, e_tag);
        Ok(Self {
            tee: client.shared.tee(&wanted.url, size),
            client: client.clone(),
            wanted: Arc::new(wanted),
            streams: Vec::new(),
            next: client.shared.following(url),
            stop: Arc::clone(stop),
        })
    }

    /// Number of bytes.
    pub fn size(&self) -> u64 {
        self.wanted.size
    }

    /// Reads like [`read_at`](Self::read_at) if the bytes are there. None: they are requested.
    pub fn read_ready(&mut self, offset: u64, out: &mut [u8]) -> Option<io::Result<usize>> {
        if offset >= self.size() || out.is_empty() {
            return Some(Ok(0));
        }
        let (start, slot) = self.request(offset);
        let arrived = slot.result.lock().unwrap_or_else(PoisonError::into_inner).clone();
        arrived.map(|bytes| self.copy(bytes, offset - start, out))
    }

    /// Reads some bytes from `offset` on, at least one unless that is the end. Waits until they are there.
    pub fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        if offset >= self.size() || out.is_empty() {
            return Ok(0);
        }
        let (start, slot) = self.request(offset);
        let bytes = self.wait(&slot);
        self.copy(bytes, offset - start, out)
    }

    fn copy(&self, bytes: Result<Bytes, Failure>, from: u64, out: &mut [u8]) -> io::Result<usize> {
        let bytes = bytes.map_err(|failure| {
            self.client.shared.report(&self.wanted.url, &failure);
            io::Error::new(io::ErrorKind::ConnectionAborted, failure)
        })?;
        let rest = &bytes[from as usize..];
        let length = rest.len().min(out.len());
        out[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    /// Requests what is read at `offset`, and what may be read next. Returns where the range with it begins and arrives.
    fn request(&mut self, offset: u64) -> (u64, Arc<Slot>) {
        let found = self.streams.iter().position(|stream| stream.covers(offset));
        let mut stream = if let Some(index) = found {
            self.streams.remove(index)
        } else {
            if self.streams.len() == STREAMS {
                self.streams.remove(0);
            }
            self.new_stream(offset)
        };
        while stream.ranges.front().is_some_and(|first| first.range.end <= offset) {
            stream.ranges.pop_front();
        }
        let size = self.size();
        while stream.next < size && stream.ranges.len() <= AHEAD {
            let bytes = RANGE_BYTES[stream.count.min(RANGE_BYTES.len() - 1)].min(size - stream.next);
            let shared = &self.client.shared;
            if !shared.may_request(bytes as usize) {
                if !stream.ranges.is_empty() {
                    break;
                }
                shared.ahead.fetch_add(bytes as usize, Ordering::Relaxed);
            }
            let range = stream.next..stream.next + bytes;
            stream.next = range.end;
            stream.count += 1;
            stream.ranges.push_back(self.send(range));
        }
        // An index at the end is read before what is in front of it.
        let reads_to_end = stream.count > 1 || stream.start == 0;
        if stream.next == size && reads_to_end {
            self.begin_next();
        }
        let first = &stream.ranges[0];
        let found = (first.range.start, Arc::clone(&first.slot));
        self.streams.push(stream);
        found
    }

    fn new_stream(&self, offset: u64) -> Stream {
        let begun = if offset == 0 { lock(&self.client.shared.begun).remove(&self.wanted.url) } else { None };
        if let Some(first) = begun {
            return Stream { start: 0, next: first.range.end, count: 2, ranges: [first].into() };
        }
        let start = offset.min(self.size().saturating_sub(TAIL_BYTES));
        Stream { start, next: start, ..Stream::default() }
    }

    /// Requests the start of the next object, so that its reader need not wait for it.
    fn begin_next(&mut self) {
        let Some(Announced { url, size, e_tag }) = self.next.take() else { return };
        let bytes = RANGE_BYTES[1].min(size);
        let shared = &self.client.shared;
        if bytes == 0 || !shared.may_request(bytes as usize) {
            return;
        }
        if let Ok(next) = Self::open(&self.client, &url, size, e_tag.as_deref(), &self.stop) {
            let first = next.send(0..bytes);
            lock(&shared.begun).insert(url, first);
        } else {
            shared.ahead.fetch_sub(bytes as usize, Ordering::Relaxed);
        }
    }

    fn send(&self, range: Range<u64>) -> Requested {
        let slot = Arc::new(Slot::default());
        let (wanted, shared) = (Arc::clone(&self.wanted), Arc::clone(&self.client.shared));
        let (to, bytes, tee) = (Arc::clone(&slot), range.clone(), self.tee.clone());
        self.client.spawn(async move {
            if !to.unwanted.load(Ordering::Relaxed) {
                let start = bytes.start;
                let result = fetch(&shared, &wanted, bytes).await;
                if let (Some(tee), Ok(bytes)) = (tee, &result) {
                    let bytes = bytes.clone();
                    // Before the reader has them: a slow disk slows it down and does not fill the memory.
                    let _ = tokio::task::spawn_blocking(move || tee.write(start, &bytes)).await;
                }
                *to.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                to.arrived.notify_all();
            }
        });
        Requested { range, slot, ahead: Arc::clone(&self.client.shared.ahead), _tee: self.tee.clone() }
    }

    fn wait(&self, slot: &Slot) -> Result<Bytes, Failure> {
        let mut result = slot.result.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        while result.is_none() && !self.stop.load(Ordering::Relaxed) {
            result = slot.arrived.wait_timeout(result, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
        let waited = start.elapsed().as_nanos() as u64;
        self.client.shared.counters.wait_nanos.fetch_add(waited, Ordering::Relaxed);
        result.clone().unwrap_or(Err(Failure::Closed))
    }
}

impl Stream {
    /// Whether a byte is in its ranges, or the next one.
    fn covers(&self, offset: u64) -> bool {
        self.ranges.front().is_some_and(|first| first.range.start <= offset) && offset <= self.next
    }
}
