//! The memory of batches: one buffer per batch, lent to the consumer, reused when it is done.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use gristmill_system::lock_unless_forked;
use gristmill_system::memory::{CacheLine, CacheLines, LARGE_PAGE};

use crate::error::{Error, Result};

/// Alignment of every array in bytes: a cache line, and what JAX requires of memory it can use in place on CPU.
const ALIGNMENT: usize = 64;
const ALIGNMENT_ITEMS: usize = ALIGNMENT / size_of::<i32>();
/// Items of a provenance entry: shard, record, token offset, length.
pub const ENTRY_ITEMS: usize = 4;

/// The dimensions of a batch's buffer: `arrays` arrays of `[rows, length]` int32, one after another, followed by one of
/// `[rows, entries, 4]`, the provenance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How many arrays a batch has.
    pub arrays: usize,
    /// Rows of this host in a batch.
    pub rows: usize,
    /// Tokens in a row.
    pub length: usize,
    /// Entries of a row's provenance; 0 for none.
    pub entries: usize,
}

impl Shape {
    /// Items of a buffer, unless their number overflows. All offsets below are less than that.
    fn items(self) -> Option<usize> {
        let array = self.rows.checked_mul(self.length)?.checked_next_multiple_of(ALIGNMENT_ITEMS)?;
        let provenance = self.rows.checked_mul(self.entries)?.checked_mul(ENTRY_ITEMS)?;
        array.checked_mul(self.arrays)?.checked_add(provenance)?.checked_next_multiple_of(ALIGNMENT_ITEMS)
    }

    /// Items from the start of one array to the next: padded so that each array is aligned.
    pub fn array_stride(self) -> usize {
        (self.rows * self.length).next_multiple_of(ALIGNMENT_ITEMS)
    }

    /// Where a row of an array starts in the buffer, in items.
    pub fn offset(self, array: usize, row: usize) -> usize {
        array * self.array_stride() + row * self.length
    }

    /// Items of a row's provenance.
    pub fn provenance_items(self) -> usize {
        self.entries * ENTRY_ITEMS
    }

    /// Where a row's provenance starts in the buffer, in items.
    pub fn provenance_offset(self, row: usize) -> usize {
        self.offset(self.arrays, 0) + row * self.provenance_items()
    }
}

/// One batch's memory, zeroed at first. It holds whatever was last written: every row that is handed out has been
/// written in full.
///
/// It is held by raw pointer because many lanes write it at once, each its own rows: see `ring`.
#[derive(Debug)]
pub struct Buffer {
    /// The first item, aligned.
    items: NonNull<i32>,
    len: usize,
    _memory: Memory,
}

/// What the items are in: large pages, or the heap for buffers that would fill less than half of one.
#[derive(Debug)]
enum Memory {
    Pages { _lines: CacheLines },
    Heap { _lines: Vec<CacheLine> },
}

// SAFETY: a `Buffer` owns its memory, which nothing bound to a thread refers to.
unsafe impl Send for Buffer {}
// SAFETY: a shared `Buffer` exposes nothing but its address.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new(len: usize) -> Option<Self> {
        let bytes = len.checked_mul(size_of::<i32>())?;
        if bytes >= LARGE_PAGE / 2 {
            let bytes = bytes.checked_next_multiple_of(LARGE_PAGE)?;
            let lines = CacheLines::zeroed(bytes / size_of::<CacheLine>())?;
            return Some(Self { items: lines.start().cast(), len, _memory: Memory::Pages { _lines: lines } });
        }
        let (mut lines, count) = (Vec::new(), bytes.div_ceil(size_of::<CacheLine>()));
        lines.try_reserve_exact(count).ok()?;
        lines.resize(count, CacheLine::EMPTY);
        let items = NonNull::new(lines.as_mut_ptr())?.cast();
        Some(Self { items, len, _memory: Memory::Heap { _lines: lines } })
    }

    /// Whether it has room for a batch of this shape.
    pub fn holds(&self, shape: Shape) -> bool {
        shape.items().is_some_and(|needed| needed <= self.len)
    }

    /// The first item of the first array. The owner of the buffer, or of the row it points to, may write through it.
    pub fn as_ptr(&self) -> *mut i32 {
        self.items.as_ptr()
    }
}

/// Idle buffers of one shape, kept for reuse.
#[derive(Debug)]
pub struct Pool {
    shape: Shape,
    /// How many idle buffers are kept: those that a consumer drops beyond that are freed.
    kept: usize,
    idle: Mutex<Vec<Buffer>>,
}

impl Pool {
    /// An empty pool.
    pub fn new(shape: Shape, kept: usize) -> Arc<Self> {
        Arc::new(Self { shape, kept, idle: Mutex::new(Vec::new()) })
    }

    /// The dimensions of its buffers.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// A buffer that nobody else holds: an idle one, or else a new one if there is memory for it.
    pub fn get(&self) -> Result<Buffer> {
        let idle = lock_unless_forked(&self.idle).and_then(|mut idle| idle.pop());
        idle.or_else(|| Buffer::new(self.shape.items()?)).ok_or_else(|| {
            let Shape { arrays, rows, length, entries } = self.shape;
            // In floating point: the number of items may be too large for an integer.
            let of_row = arrays as f64 * length as f64 + entries as f64 * ENTRY_ITEMS as f64;
            let megabytes = rows as f64 * of_row * size_of::<i32>() as f64 / 1e6;
            let provenance = if entries > 0 { ", provenance=" } else { "" };
            Error::System(format!(
                "there is not enough memory for a batch of {rows} rows of {length} tokens, which takes {megabytes:.1} \
                 MB: lower batch_size=, sequence_length={provenance} or prefetch="
            ))
        })
    }

    fn put(&self, buffer: Buffer) {
        if let Some(mut idle) = lock_unless_forked(&self.idle)
            && idle.len() < self.kept
        {
            idle.push(buffer);
        }
    }
}

/// A batch's memory while the consumer holds it: returns to the pool when dropped, even after the iterator itself is
/// gone.
#[derive(Debug)]
pub struct PooledBatch {
    buffer: ManuallyDrop<Buffer>,
    pool: Arc<Pool>,
}

impl PooledBatch {
    /// Lends `buffer` out of `pool`.
    ///
    /// # Panics
    ///
    /// If it is too small for the pool's shape.
    pub fn new(buffer: Buffer, pool: Arc<Pool>) -> Self {
        assert!(buffer.holds(pool.shape()));
        Self { buffer: ManuallyDrop::new(buffer), pool }
    }

    /// The first item of the first array, laid out as [`Shape`] says.
    pub fn as_ptr(&self) -> *mut i32 {
        self.buffer.as_ptr()
    }

    /// Other memory of the same pool with the same content. Nobody else holds this one, so nobody writes to it.
    pub fn copy(&mut self) -> Result<Self> {
        let buffer = self.pool.get()?;
        let items = self.shape().items().unwrap_or_default();
        // SAFETY: both buffers hold at least `items`, and nobody else has either of them.
        unsafe { self.as_ptr().copy_to_nonoverlapping(buffer.as_ptr(), items) };
        Ok(Self::new(buffer, Arc::clone(&self.pool)))
    }

    /// The dimensions of the memory.
    pub fn shape(&self) -> Shape {
        self.pool.shape()
    }
}

impl Drop for PooledBatch {
    fn drop(&mut self) {
        // SAFETY: taken exactly once, here; the lease is not used after this.
        self.pool.put(unsafe { ManuallyDrop::take(&mut self.buffer) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { arrays: 3, rows: 2, length: 5, entries: 3 };

    #[test]
    fn arrays_are_aligned_and_do_not_overlap() {
        for shape in [SHAPE, Shape { rows: 30_000, ..SHAPE }] {
            let buffer = Buffer::new(shape.items().unwrap()).unwrap();
            assert!(buffer.holds(shape));
            for array in 0..shape.arrays {
                assert_eq!((buffer.as_ptr() as usize + 4 * shape.offset(array, 0)) % ALIGNMENT, 0);
            }
            // SAFETY: nobody else has the buffer.
            let items = unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr(), shape.items().unwrap()) };
            assert!(items.iter().all(|item| *item == 0));
            items.fill(7);
        }
        assert!(SHAPE.offset(0, 1) + SHAPE.length <= SHAPE.offset(1, 0));
        assert!(SHAPE.offset(2, 1) + SHAPE.length <= SHAPE.provenance_offset(0));
        assert_eq!(4 * SHAPE.provenance_offset(0) % ALIGNMENT, 0);
        assert!(SHAPE.provenance_offset(1) + SHAPE.provenance_items() <= SHAPE.items().unwrap());
    }

    #[test]
    fn a_dropped_lease_is_used_again_up_to_the_bound() {
        let pool = Pool::new(SHAPE, 1);
        let leases: Vec<PooledBatch> =
            (0..2).map(|_| PooledBatch::new(pool.get().unwrap(), Arc::clone(&pool))).collect();
        let addresses: Vec<_> = leases.iter().map(PooledBatch::as_ptr).collect();
        assert_ne!(addresses[0], addresses[1]);
        drop(leases);
        assert_eq!(pool.idle.lock().unwrap().len(), 1);
        assert!(addresses.contains(&pool.get().unwrap().as_ptr()));
        assert!(pool.idle.lock().unwrap().is_empty());
    }

    #[test]
    fn a_lock_that_nobody_frees_is_not_waited_for() {
        let pool = Pool::new(SHAPE, 1);
        let held = pool.idle.lock().unwrap();
        let mut lease = PooledBatch::new(pool.get().unwrap(), Arc::clone(&pool));
        drop(lease.copy().unwrap());
        drop(lease);
        assert!(held.is_empty());
    }

    #[test]
    fn a_batch_that_no_memory_holds_is_an_error() {
        // 2^30 rows of three arrays and of entries of four items, all of four bytes.
        for (length, entries, expected) in [
            (1 << 27, 0, "1729382256910.3 MB: lower batch_size=, sequence_length= or prefetch="),
            (
                1 << 27,
                1 << 27,
                "4035225266124.0 MB: lower batch_size=, sequence_length=, provenance= or prefetch=",
            ),
            (1 << 40, 0, "14167099448608936.0 MB: lower batch_size=, sequence_length= or prefetch="),
        ] {
            let shape = Shape { rows: 1 << 30, length, entries, ..SHAPE };
            let error = Pool::new(shape, 1).get().unwrap_err().to_string();
            let what = format!("a batch of 1073741824 rows of {length} tokens, which takes {expected}");
            assert_eq!(error, format!("there is not enough memory for {what}"));
        }
    }

    #[test]
    #[should_panic(expected = "holds")]
    fn a_buffer_of_another_shape_is_not_lent() {
        let small = Pool::new(SHAPE, 1).get().unwrap();
        drop(PooledBatch::new(small, Pool::new(Shape { rows: 30, ..SHAPE }, 1)));
    }
}
