//! The memory of batches: one buffer per batch, lent to the consumer, reused when it is done.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use gristmill_system::lock_unless_forked;
use gristmill_system::memory::{CacheLine, CacheLines, LARGE_PAGE};

use super::schema::{BatchSchema, Element, with_element_type};
use crate::error::{Error, Result};

/// One batch's memory, zeroed at first. It holds whatever was last written: every row that is delivered has been
/// written in full.
///
/// It is held by raw pointer because many lanes write it at once, each its own rows: see `ring`.
#[derive(Debug)]
pub struct Buffer {
    /// The first byte, aligned to a cache line.
    start: NonNull<u8>,
    bytes: usize,
    _memory: Memory,
}

/// The memory itself: large pages, or the heap for buffers that would fill less than half of one.
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
    fn new(bytes: usize) -> Option<Self> {
        if bytes >= LARGE_PAGE / 2 {
            let whole_pages = bytes.checked_next_multiple_of(LARGE_PAGE)?;
            let lines = CacheLines::zeroed(whole_pages / size_of::<CacheLine>())?;
            return Some(Self {
                start: lines.start().cast(),
                bytes,
                _memory: Memory::Pages { _lines: lines },
            });
        }
        let (mut lines, count) = (Vec::new(), bytes.div_ceil(size_of::<CacheLine>()));
        lines.try_reserve_exact(count).ok()?;
        lines.resize(count, CacheLine::EMPTY);
        let start = NonNull::new(lines.as_mut_ptr())?.cast();
        Some(Self { start, bytes, _memory: Memory::Heap { _lines: lines } })
    }

    /// Whether it has room for a batch of this schema.
    pub fn holds(&self, schema: &BatchSchema) -> bool {
        schema.bytes().is_some_and(|needed| needed <= self.bytes)
    }

    /// The first byte of the first field. The owner of the buffer, or of the row it points to, may write through it.
    pub fn as_ptr<E: Element>(&self) -> *mut E {
        self.start.as_ptr().cast()
    }
}

/// Idle buffers of one schema, kept for reuse.
#[derive(Debug)]
pub struct Pool {
    schema: Arc<BatchSchema>,
    /// How many idle buffers are kept: those that a consumer drops beyond that are freed.
    kept: usize,
    idle: Mutex<Vec<Buffer>>,
}

impl Pool {
    /// An empty pool.
    pub fn new(schema: Arc<BatchSchema>, kept: usize) -> Arc<Self> {
        Arc::new(Self { schema, kept, idle: Mutex::new(Vec::new()) })
    }

    /// The schema of its batches.
    pub fn schema(&self) -> &Arc<BatchSchema> {
        &self.schema
    }

    /// A buffer that nobody else holds: an idle one, or else a new one if there is memory for it.
    pub fn get(&self) -> Result<Buffer> {
        let idle = lock_unless_forked(&self.idle).and_then(|mut idle| idle.pop());
        idle.or_else(|| Buffer::new(self.schema.bytes()?)).ok_or_else(|| {
            let rows = self.schema.rows();
            // In floating point: the number of bytes may be too large for an integer.
            let of_fields =
                self.schema.fields().iter().map(|field| field.row_len() as f64 * field.dtype.size() as f64);
            let megabytes = rows as f64 * of_fields.sum::<f64>() / 1e6;
            Error::System(format!(
                "there is not enough memory for a batch of {rows} rows, which takes {megabytes:.1} MB: lower \
                 batch_size=, sequence_length=, provenance= or prefetch="
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
    /// If it is too small for the pool's schema.
    pub fn new(buffer: Buffer, pool: Arc<Pool>) -> Self {
        assert!(buffer.holds(&pool.schema));
        Self { buffer: ManuallyDrop::new(buffer), pool }
    }

    /// The first element of a row of a field. It is followed by the row's others, and by the next rows.
    ///
    /// # Panics
    ///
    /// If there is no such field or row, or the field has another type.
    pub fn row_ptr<E: Element>(&self, field: usize, row: usize) -> *mut E {
        let field = &self.schema().fields()[field];
        assert!(row < self.schema().rows() && E::DTYPE == field.dtype);
        // SAFETY: in bounds by the schema, for which the buffer has room.
        unsafe { self.buffer.as_ptr::<u8>().add(field.row_offset(row)).cast() }
    }

    /// Fills rows with padding.
    ///
    /// # Panics
    ///
    /// If there are no such rows, or none at all.
    pub fn pad(&mut self, rows: Range<usize>) {
        assert!(rows.end <= self.schema().rows());
        for (index, field) in self.schema().fields().iter().enumerate() {
            let length = rows.len() * field.row_len();
            with_element_type!(field.dtype, E => {
                let first = self.row_ptr::<E>(index, rows.start);
                // SAFETY: in bounds by the schema, and aligned, since a field begins on a cache line. Nobody else holds this
                // batch, and `E` takes any value of its bytes.
                let elements = unsafe { std::slice::from_raw_parts_mut(first, length) };
                elements.fill(E::from_i32(field.padding));
            });
        }
    }

    /// The fields in the memory.
    pub fn schema(&self) -> &Arc<BatchSchema> {
        self.pool.schema()
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
    use crate::batch::layouts::provenance_field;
    use crate::spec::Layout;

    fn schema(rows: usize, length: usize, provenance: usize) -> Arc<BatchSchema> {
        let fields = Layout::Grain.fields(length, 1, false).into_iter();
        Arc::new(BatchSchema::new(rows, fields.chain(provenance_field(provenance, 4)).collect()))
    }

    #[test]
    fn new_buffers_are_aligned_and_zero() {
        for rows in [2, 30_000] {
            let schema = schema(rows, 5, 3);
            let bytes = schema.bytes().unwrap();
            let buffer = Buffer::new(bytes).unwrap();
            assert!(buffer.holds(&schema) && (buffer.as_ptr::<u8>() as usize).is_multiple_of(64));
            // SAFETY: nobody else has the buffer.
            let memory = unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr::<u8>(), bytes) };
            assert!(memory.iter().all(|byte| *byte == 0));
            memory.fill(7);
        }
    }

    #[test]
    fn dropped_batch_is_reused_up_to_the_bound() {
        let pool = Pool::new(schema(2, 5, 3), 1);
        let batches: Vec<PooledBatch> =
            (0..2).map(|_| PooledBatch::new(pool.get().unwrap(), Arc::clone(&pool))).collect();
        let addresses: Vec<_> = batches.iter().map(|batch| batch.buffer.as_ptr::<u8>()).collect();
        assert_ne!(addresses[0], addresses[1]);
        drop(batches);
        assert_eq!(pool.idle.lock().unwrap().len(), 1);
        assert!(addresses.contains(&pool.get().unwrap().as_ptr::<u8>()));
        assert!(pool.idle.lock().unwrap().is_empty());
    }

    #[test]
    fn pool_locked_by_another_thread_is_bypassed() {
        let pool = Pool::new(schema(2, 5, 3), 1);
        let held = pool.idle.lock().unwrap();
        drop(PooledBatch::new(pool.get().unwrap(), Arc::clone(&pool)));
        assert!(held.is_empty());
    }

    #[test]
    fn batch_larger_than_memory_is_an_error() {
        // 2^30 rows of three fields, and of entries of four numbers, all of four bytes.
        for (length, provenance, megabytes) in [
            (1 << 27, 0, "1729382256910.3"),
            (1 << 27, 1 << 27, "4035225266124.0"),
            (1 << 40, 0, "14167099448608936.0"),
        ] {
            let error = Pool::new(schema(1 << 30, length, provenance), 1).get().unwrap_err().to_string();
            let expected = format!(
                "not enough memory for a batch of 1073741824 rows, which takes {megabytes} MB: lower"
            );
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn padded_rows_are_those_that_are_asked_for() {
        let fields = Layout::Hf.fields(5, 1, false);
        let pool = Pool::new(Arc::new(BatchSchema::new(4, fields)), 1);
        let mut batch = PooledBatch::new(pool.get().unwrap(), Arc::clone(&pool));
        batch.pad(0..4);
        for (index, field) in pool.schema().fields().iter().enumerate() {
            for row in 0..4 {
                // SAFETY: nobody else has the batch, and its fields are of this type.
                let elements = unsafe {
                    std::slice::from_raw_parts_mut(batch.row_ptr::<i32>(index, row), field.row_len())
                };
                assert!(elements.iter().all(|element| *element == field.padding));
                elements.fill(9);
            }
        }
        batch.pad(1..3);
        for (index, field) in pool.schema().fields().iter().enumerate() {
            // SAFETY: as above.
            let firsts = [0, 1, 2, 3].map(|row| unsafe { *batch.row_ptr::<i32>(index, row) });
            assert_eq!(firsts, [9, field.padding, field.padding, 9]);
        }
    }

    #[test]
    #[should_panic(expected = "holds")]
    fn buffer_of_a_smaller_schema_is_refused() {
        let small = Pool::new(schema(2, 5, 3), 1).get().unwrap();
        drop(PooledBatch::new(small, Pool::new(schema(30, 5, 3), 1)));
    }
}
