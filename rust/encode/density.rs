//! How much room the ids of a text need.
//!
//! An array of ids that grows is copied into memory that was never touched. Room for all texts, of which most is then
//! given back, is no better: the C library keeps freed memory for arrays up to the size of the largest one freed, and
//! the next room is always larger. Either way each call of [`encode_batch`](super::Encoder::encode_batch) may touch all
//! of its memory for the first time, which takes long. So the room is what recent texts needed, and if a little is left
//! over, it stays.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Ids for so many bytes of text, among recent texts.
pub struct Density(AtomicUsize);

const BYTES: usize = 1 << 10;

/// Shorter texts vary more, and the memory for their ids is kept by the C library in any case.
const LEAST: usize = 64 << 10;

impl Density {
    /// More than nearly all texts need: what is not touched costs nothing.
    pub fn new() -> Self {
        Self(AtomicUsize::new(BYTES))
    }

    /// An array with room for the ids of so many bytes of most texts. Where there is no such room, it grows.
    pub fn room(&self, bytes: usize) -> Vec<u32> {
        let density = self.0.load(Ordering::Relaxed);
        let mut ids = Vec::new();
        _ = ids.try_reserve_exact(bytes.saturating_mul(density + density / 8) / BYTES + 8);
        ids
    }

    /// The ids of so many bytes, in an array that is a third larger at most.
    pub fn fitted(&self, bytes: usize, mut ids: Vec<u32>) -> Vec<u32> {
        if bytes >= LEAST {
            self.0.store(ids.len() / (bytes / BYTES), Ordering::Relaxed);
        }
        if ids.capacity() - ids.len() > ids.len() / 3 {
            ids.shrink_to_fit();
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_follows_the_texts() {
        let density = Density::new();
        let text = 1 << 20;
        let first = density.room(text).capacity();
        assert!(first > text / 2);
        let ids = density.fitted(text, vec![7; text / 4]);
        assert_eq!(ids.len(), text / 4);
        let next = density.room(text).capacity();
        assert!((text / 4..text / 3).contains(&next), "{next}");
        let mut ids = density.room(text);
        ids.resize(text / 4, 7);
        assert_eq!(density.fitted(text, ids).capacity(), next, "nothing is cut off");
        // Not from short texts, and cut to size where much is left over.
        let mut ids = Vec::with_capacity(1000);
        ids.push(7);
        assert!(density.fitted(3, ids).capacity() < 10);
        assert_eq!(density.room(text).capacity(), next);
        assert_eq!(density.room(usize::MAX / 2).capacity(), 0, "it grows instead");
    }
}
