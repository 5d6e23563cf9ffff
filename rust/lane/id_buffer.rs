//! The ids of a block, in memory that is reused.
//!
//! They take up to a MiB, which the allocator would return to the system and request again for nearly every block. The
//! system zeroes it page by page: that was a twentieth of the total time.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError};

use super::values::Column;
use crate::image::Image;
use crate::spec::fields::FieldSpec;

/// The most ids whose memory is kept: those of a block of the largest size, but not those of one enormous document.
const MOST_KEPT: usize = 1 << 20;

/// Memory of ids that are no longer needed.
#[derive(Debug)]
pub struct IdPool {
    free: Mutex<Vec<Vec<u32>>>,
    most: usize,
}

/// The ids of a block. Their memory returns to the pool that it came from, if any.
#[derive(Debug, Default)]
pub struct IdBuffer {
    ids: Vec<u32>,
    /// Whether each id is trained on, if samples have a mask. Else empty.
    pub trained: Vec<bool>,
    /// The images of all samples, in order.
    pub images: Vec<Image>,
    /// The values of each of the stream's fields.
    pub columns: Vec<Column>,
    /// How many samples have values in them.
    samples: usize,
    pool: Option<Arc<IdPool>>,
}

impl IdPool {
    /// A pool that keeps the memory of `most` blocks.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), most })
    }

    /// An empty list, with memory from the pool if it has any, for the values of these fields, too.
    pub fn take(self: &Arc<Self>, fields: &[FieldSpec]) -> IdBuffer {
        let ids = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (ids, pool) = (ids.unwrap_or_default(), Some(Arc::clone(self)));
        let columns = fields.iter().map(Column::new).collect();
        let (trained, images) = (Vec::new(), Vec::new());
        IdBuffer { ids, trained, images, columns, samples: 0, pool }
    }
}

/// How much a buffer holds.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    ids: usize,
    trained: usize,
    images: usize,
    samples: usize,
}

impl IdBuffer {
    /// How much it holds now.
    pub fn mark(&self) -> Mark {
        let Self { ids, trained, images, samples, .. } = self;
        Mark { ids: ids.len(), trained: trained.len(), images: images.len(), samples: *samples }
    }

    /// Removes what was appended since.
    pub fn return_to(&mut self, mark: Mark) {
        self.ids.truncate(mark.ids);
        self.trained.truncate(mark.trained);
        self.images.truncate(mark.images);
        self.columns.iter_mut().for_each(|column| column.truncate(mark.ids, mark.samples));
        self.samples = mark.samples;
    }

    /// Appends the values that tokens have of a field.
    pub fn add_values(&mut self, field: usize, values: impl Iterator<Item = f32>) {
        let bytes: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
        self.columns[field].append(0, &bytes, 0);
    }

    /// Removes some tokens, with all that belongs to them.
    pub fn remove_tokens(&mut self, tokens: &Range<usize>) {
        self.ids.drain(tokens.clone());
        if !self.trained.is_empty() {
            self.trained.drain(tokens.clone());
        }
        self.columns.iter_mut().for_each(|column| column.remove_tokens(tokens));
    }

    /// Appends the values that a sample has of each field for itself; empty where its source lacks the field.
    pub fn add_sample(&mut self, values: &[Vec<u8>]) {
        for (column, values) in self.columns.iter_mut().zip(values) {
            if !column.is_per_token() {
                column.append(0, values, 0);
            }
        }
        self.samples += 1;
    }

    /// Appends the values that each token of a sample has of each field; zeros for so many tokens before and after these.
    pub fn add_token_values(&mut self, before: usize, values: &[Vec<u8>], after: usize) {
        for (column, values) in self.columns.iter_mut().zip(values) {
            if column.is_per_token() {
                column.append(before, values, after);
            }
        }
    }
}

impl Deref for IdBuffer {
    type Target = Vec<u32>;

    fn deref(&self) -> &Vec<u32> {
        &self.ids
    }
}

impl DerefMut for IdBuffer {
    fn deref_mut(&mut self) -> &mut Vec<u32> {
        &mut self.ids
    }
}

impl Drop for IdBuffer {
    fn drop(&mut self) {
        let Some(pool) = &self.pool else { return };
        if self.ids.capacity() > MOST_KEPT {
            return;
        }
        let mut free = pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < pool.most {
            self.ids.clear();
            free.push(std::mem::take(&mut self.ids));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_returns_empty_and_bounded() {
        let pool = IdPool::new(2);
        let mut taken = [pool.take(&[]), pool.take(&[]), pool.take(&[])];
        for ids in &mut taken {
            ids.extend(0..1000);
        }
        drop(taken);
        assert_eq!(pool.free.lock().unwrap().len(), 2);
        let again = pool.take(&[]);
        assert!(again.is_empty() && again.capacity() >= 1000);
        let mut enormous = pool.take(&[]);
        enormous.reserve(MOST_KEPT + 1);
        drop(enormous);
        assert_eq!(pool.free.lock().unwrap().len(), 0);
    }
}
