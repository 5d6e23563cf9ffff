//! The ids of a block, in memory that is reused.
//!
//! They take up to a MiB, which the allocator would return to the system and request again for nearly every block. The
//! system zeroes it page by page: that was a twentieth of the total time.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use crate::image::Image;

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
    pool: Option<Arc<IdPool>>,
}

impl IdPool {
    /// A pool that keeps the memory of `most` blocks.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), most })
    }

    /// An empty list, with memory from the pool if it has any.
    pub fn take(self: &Arc<Self>) -> IdBuffer {
        let ids = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (ids, pool) = (ids.unwrap_or_default(), Some(Arc::clone(self)));
        IdBuffer { ids, trained: Vec::new(), images: Vec::new(), pool }
    }
}

/// How much a buffer holds.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    ids: usize,
    trained: usize,
    images: usize,
}

impl IdBuffer {
    /// How much it holds now.
    pub fn mark(&self) -> Mark {
        Mark { ids: self.ids.len(), trained: self.trained.len(), images: self.images.len() }
    }

    /// Removes what was appended since.
    pub fn return_to(&mut self, mark: Mark) {
        self.ids.truncate(mark.ids);
        self.trained.truncate(mark.trained);
        self.images.truncate(mark.images);
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
        let mut taken = [pool.take(), pool.take(), pool.take()];
        for ids in &mut taken {
            ids.extend(0..1000);
        }
        drop(taken);
        assert_eq!(pool.free.lock().unwrap().len(), 2);
        let again = pool.take();
        assert!(again.is_empty() && again.capacity() >= 1000);
        let mut enormous = pool.take();
        enormous.reserve(MOST_KEPT + 1);
        drop(enormous);
        assert_eq!(pool.free.lock().unwrap().len(), 0);
    }
}
