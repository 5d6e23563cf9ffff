//! The ring of batch slots between the lanes and the consumer.
//!
//! Step `t` of the stream lives in slot `t % slots`. Every lane writes its own rows of a slot in place and then
//! *publishes*; the slot is full once its last lane has published. The consumer *takes* full slots in order: it swaps
//! the filled buffer for a fresh one, which opens the slot to the lanes for step `t + slots`.
//!
//! ```text
//!             taken                               taken + slots
//!               │     slot: lanes that have published     │
//!   consumer ──>│ [0 1 2 3] [0 1 _ 3] [_ 1 _ _] [_ _ _ _] │  lanes wait here
//! ```
//!
//! The threads that may access each part, and why that is sound:
//!
//! - A lane writes step `t` only while `t < taken + slots`, which it reads with Acquire; the
//!   consumer stores `taken` with Release after it has put the fresh buffer in. So a lane sees the
//!   fresh buffer, and never one that the consumer has delivered.
//! - Lanes write disjoint rows and disjoint reports, each through its only [`LaneWriter`].
//! - A lane's last access to a slot is its decrement of `missing`, with Release. The consumer reads zero with Acquire,
//!   so it sees all rows and reports, and no lane returns to the slot before `taken` advances.
//! - A lane may [lend](LaneWriter::lend) parts of its rows that do not overlap, for other threads to write them. Until all
//!   are returned it neither writes nor publishes; that they are it sees with Acquire.
//!
//! Nothing here blocks a lane: [`LaneWriter::has_room`] says whether it may write, and the caller decides what to do
//! meanwhile. The consumer can park in [`Consumer::wait`]; the lane that fills the awaited slot wakes it.

use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::time::Duration;

use super::buffers::Buffer;
use super::schema::{BatchSchema, DType, Element, Field};
use crate::sync::{Arc, AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, UnsafeCell, wait_timeout};

/// A value on a cache line of its own, against false sharing.
#[repr(align(128))]
struct CachePadded<T>(T);

struct Ring<R> {
    slots: Box<[CachePadded<Slot<R>>]>,
    /// Never loom's `Arc`: nothing changes it.
    schema: std::sync::Arc<BatchSchema>,
    /// Steps handed to the consumer.
    taken: CachePadded<AtomicU64>,
    parked: Mutex<()>,
    filled: Condvar,
}

struct Slot<R> {
    /// Lanes that have not yet published this slot's step.
    missing: AtomicUsize,
    buffer: UnsafeCell<Buffer>,
    /// One per lane.
    reports: Box<[UnsafeCell<Option<R>>]>,
}

// SAFETY: the cells are accessed by the rules in the module documentation, which order every access by `missing` and
// `taken`; reports move between threads, hence `R: Send`.
unsafe impl<R: Send> Sync for Ring<R> {}

impl<R> Ring<R> {
    fn slot(&self, step: u64) -> &Slot<R> {
        &self.slots[(step % self.slots.len() as u64) as usize].0
    }

    fn is_full(&self, step: u64) -> bool {
        self.slot(step).missing.load(Ordering::Acquire) == 0
    }
}

/// Makes a ring of `buffers.len()` slots whose first step is `first_step`.
///
/// `lanes` lanes share the rows of `schema` evenly. The first `already_delivered` lanes skip the first step: so a state
/// saved between the rows of a step is restored.
///
/// # Panics
///
/// If there are no buffers or no lanes, if a buffer is too small, if the lanes do not divide the rows, or if all
/// lanes skip.
pub fn ring<R: Send>(
    schema: &std::sync::Arc<BatchSchema>,
    lanes: usize,
    buffers: Vec<Buffer>,
    first_step: u64,
    already_delivered: usize,
) -> (Consumer<R>, Vec<LaneWriter<R>>) {
    assert!(
        !buffers.is_empty() && lanes > 0 && schema.rows().is_multiple_of(lanes) && already_delivered < lanes
    );
    assert!(buffers.iter().all(|buffer| buffer.holds(schema)));
    let count = buffers.len() as u64;
    let slots = buffers.into_iter().enumerate().map(|(index, buffer)| {
        let is_first = index as u64 == first_step % count;
        CachePadded(Slot {
            missing: AtomicUsize::new(if is_first { lanes - already_delivered } else { lanes }),
            buffer: UnsafeCell::new(buffer),
            reports: (0..lanes).map(|_| UnsafeCell::new(None)).collect(),
        })
    });
    let ring = Arc::new(Ring {
        slots: slots.collect(),
        schema: std::sync::Arc::clone(schema),
        taken: CachePadded(AtomicU64::new(first_step)),
        parked: Mutex::new(()),
        filled: Condvar::new(),
    });
    let writers = (0..lanes).map(|lane| LaneWriter {
        ring: Arc::clone(&ring),
        lane,
        rows: schema.rows() / lanes,
        step: first_step + u64::from(lane < already_delivered),
        open_until: first_step + count,
        lent: None,
    });
    (Consumer { ring: Arc::clone(&ring), step: first_step }, writers.collect())
}

/// A lane's end of the ring: the only access to its rows.
pub struct LaneWriter<R> {
    ring: Arc<Ring<R>>,
    lane: usize,
    rows: usize,
    step: u64,
    /// Steps below this one may be written; refreshed from `taken` only when it is reached.
    open_until: u64,
    /// The lease of the lent parts of the current step's rows, until they are returned.
    lent: Option<Arc<Lease<R>>>,
}

impl<R> LaneWriter<R> {
    /// The step that this lane writes next.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Rows of this lane in a step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The fields of a step.
    pub fn schema(&self) -> &BatchSchema {
        &self.ring.schema
    }

    /// Whether the slot of [`step`](Self::step) is open to this lane.
    pub fn has_room(&mut self) -> bool {
        if self.step == self.open_until {
            self.open_until = self.ring.taken.0.load(Ordering::Acquire) + self.ring.slots.len() as u64;
        }
        self.step < self.open_until
    }

    /// This lane's row `row` (of [`rows`](Self::rows)) of the current step. It holds stale data: every element of every
    /// field must be written.
    ///
    /// # Panics
    ///
    /// If there is no room, no such row, or a part of a row is lent.
    pub fn row(&mut self, row: usize) -> RowMut<'_> {
        assert!(self.step < self.open_until && row < self.rows && !self.is_lent());
        RowMut {
            buffer: self.buffer(),
            schema: &self.ring.schema,
            row: self.lane * self.rows + row,
            lane: PhantomData,
        }
    }

    /// Lends parts of the current step's rows, each a row and a range of the elements of one field, for any threads to
    /// write. The lane can write and publish again once all of them are dropped.
    ///
    /// # Panics
    ///
    /// If there is no room, parts are lent already, or these are not in order, overlap, or are no parts of the rows.
    pub fn lend(&mut self, field: usize, parts: &[(usize, Range<usize>)]) -> Vec<LentPart<R>> {
        assert!(self.step < self.open_until && !self.is_lent());
        let field = &self.ring.schema.fields()[field];
        let (size, length) = (field.dtype.size(), field.row_len());
        let mut end = 0;
        for (row, range) in parts {
            assert!(*row < self.rows && range.start <= range.end && range.end <= length);
            assert!(end <= row * length + range.start, "parts in order that do not overlap");
            end = row * length + range.end;
        }
        let lease = Arc::new(Lease { _ring: Arc::clone(&self.ring) });
        let (buffer, first_row) = (self.buffer(), self.lane * self.rows);
        let lend = |(row, range): &(usize, Range<usize>)| LentPart {
            // SAFETY: in bounds by the schema, for which the buffer has room.
            first: unsafe { buffer.add(field.row_offset(first_row + row) + range.start * size) },
            length: range.len(),
            dtype: field.dtype,
            _lease: Arc::clone(&lease),
        };
        let parts = parts.iter().map(lend).collect();
        self.lent = Some(lease);
        parts
    }

    /// Whether a part of a row is lent.
    fn is_lent(&mut self) -> bool {
        self.lent.take_if(|lease| Arc::get_mut(lease).is_some());
        self.lent.is_some()
    }

    /// The current step's buffer. Only this lane's own part of it may be accessed, and only while there is room.
    fn buffer(&self) -> *mut u8 {
        // SAFETY: the slot is open to this lane (`step < open_until`), so the consumer does not touch the buffer until
        // this lane has published. The access to the cell is shared: all lanes may read the buffer's address at once.
        self.ring.slot(self.step).buffer.with(|buffer| unsafe { (*buffer).as_ptr() })
    }

    /// Ends the step: its rows are complete and go to the consumer together with `report`.
    ///
    /// # Panics
    ///
    /// If there is no room, or a part of a row is lent.
    pub fn publish(&mut self, report: R) {
        assert!(self.step < self.open_until && !self.is_lent());
        let slot = self.ring.slot(self.step);
        // SAFETY: the slot is open to this lane, which alone accesses this report.
        slot.reports[self.lane].with_mut(|cell| unsafe { *cell = Some(report) });
        self.step += 1;
        if slot.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Taking the lock orders this wake-up after a consumer's check that found it not full.
            drop(self.ring.parked.lock());
            self.ring.filled.notify_one();
        }
    }
}

/// Held by all parts that were lent together, and by the lane until they are returned.
struct Lease<R> {
    /// The memory stays as long as a part of it is lent.
    _ring: Arc<Ring<R>>,
}

/// A part of a lane's row, lent to be written by any thread.
pub struct LentPart<R> {
    first: *mut u8,
    length: usize,
    dtype: DType,
    _lease: Arc<Lease<R>>,
}

// SAFETY: the part is memory that nobody else accesses while this exists, and nothing in it is bound to a thread.
unsafe impl<R: Send> Send for LentPart<R> {}

impl<R> LentPart<R> {
    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements, which hold stale data.
    ///
    /// # Panics
    ///
    /// If they have another type.
    pub fn elements<E: Element>(&mut self) -> &mut [E] {
        assert!(E::DTYPE == self.dtype, "the elements are {:?}", self.dtype);
        // SAFETY: in bounds and aligned, as those of `FieldMut`. The lane neither writes nor publishes while this exists,
        // parts of one lane do not overlap, and rows of lanes are disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.first.cast(), self.length) }
    }
}

impl<R> std::fmt::Debug for LentPart<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LentPart({} elements)", self.length)
    }
}

/// A row of a lane's current step.
pub struct RowMut<'a> {
    buffer: *mut u8,
    schema: &'a BatchSchema,
    /// Its index in the batch.
    row: usize,
    /// While this exists, no other row of the lane can be had, and does not publish.
    lane: PhantomData<&'a mut ()>,
}

impl RowMut<'_> {
    /// The fields of the row, each with its elements.
    pub fn fields(&mut self) -> impl Iterator<Item = FieldMut<'_>> {
        let (buffer, row) = (self.buffer, self.row);
        self.schema.fields().iter().map(move |field| {
            // SAFETY: in bounds by the schema, for which the buffer has room.
            let first = unsafe { buffer.add(field.row_offset(row)) };
            FieldMut { field, first, row: PhantomData }
        })
    }
}

/// A field of a lane's row.
pub struct FieldMut<'a> {
    field: &'a Field,
    first: *mut u8,
    /// While this exists, the fields of the row are not lent again.
    row: PhantomData<&'a mut ()>,
}

impl Deref for FieldMut<'_> {
    type Target = Field;

    fn deref(&self) -> &Field {
        self.field
    }
}

impl<'a> FieldMut<'a> {
    /// The elements.
    ///
    /// # Panics
    ///
    /// If they have another type.
    pub fn elements<E: Element>(self) -> &'a mut [E] {
        assert!(E::DTYPE == self.field.dtype, "the elements are {:?}", self.field.dtype);
        // SAFETY: in bounds by the schema, and aligned, since a field begins on a cache line and has rows of whole
        // elements. Rows of different fields and lanes are disjoint, and this is the only access to these elements while
        // the row is borrowed. The memory was zeroed when it was allocated, and `E` takes any value of its bytes.
        unsafe { std::slice::from_raw_parts_mut(self.first.cast(), self.field.row_len()) }
    }

    /// The bytes of the elements, whatever their type.
    pub fn bytes(self) -> &'a mut [u8] {
        // SAFETY: as in `elements`, and bytes take any value and have no alignment.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.field.row_len() * self.field.dtype.size()) }
    }
}

/// The consumer's end of the ring.
pub struct Consumer<R> {
    ring: Arc<Ring<R>>,
    step: u64,
}

impl<R> Consumer<R> {
    /// Lanes may write steps below this one.
    pub fn open_until(&self) -> u64 {
        self.step + self.ring.slots.len() as u64
    }

    /// How many slots are full and can be taken without waiting.
    pub fn ready(&self) -> usize {
        (0..self.ring.slots.len()).take_while(|&ahead| self.ring.is_full(self.step + ahead as u64)).count()
    }

    /// Whether the reports of all lanes of the next slot are such; `None` until it is full.
    pub fn all_next(&self, is_such: impl Fn(&R) -> bool) -> Option<bool> {
        let is_full = self.ring.is_full(self.step);
        is_full.then(|| {
            self.ring.slot(self.step).reports.iter().all(|cell| {
                // SAFETY: the slot is full, so no lane accesses its report before this consumer stores `taken`.
                cell.with(|cell| unsafe { (*cell).as_ref() }.is_some_and(&is_such))
            })
        })
    }

    /// Parks until the next slot is full, at most for `timeout`. Returns whether it is.
    pub fn wait(&self, timeout: Duration) -> bool {
        if self.ring.is_full(self.step) {
            return true;
        }
        let guard = self.ring.parked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !self.ring.is_full(self.step) {
            drop(wait_timeout(&self.ring.filled, guard, timeout));
        }
        self.ring.is_full(self.step)
    }

    /// Takes the next slot if it is full: its buffer, and the report of each lane (`None` for a lane that skipped the
    /// first step). `fresh` takes the buffer's place.
    ///
    /// # Panics
    ///
    /// If `fresh` is too small.
    pub fn take(&mut self, fresh: Buffer) -> Option<(Buffer, Vec<Option<R>>)> {
        assert!(fresh.holds(&self.ring.schema));
        if !self.ring.is_full(self.step) {
            return None;
        }
        let slot = self.ring.slot(self.step);
        // SAFETY: the slot is full, so every lane has published and none touches it again before
        // `taken` is stored below.
        let buffer = slot.buffer.with_mut(|cell| unsafe { std::mem::replace(&mut *cell, fresh) });
        let reports = slot.reports.iter().map(|cell| {
            // SAFETY: the slot is full, so no lane accesses its report before `taken` is stored below.
            cell.with_mut(|cell| unsafe { (*cell).take() })
        });
        let reports = reports.collect();
        slot.missing.store(slot.reports.len(), Ordering::Relaxed);
        self.step += 1;
        self.ring.taken.0.store(self.step, Ordering::Release);
        Some((buffer, reports))
    }
}

#[cfg(all(test, feature = "loom"))]
mod model;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
