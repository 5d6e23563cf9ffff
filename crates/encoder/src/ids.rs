//! Arrays for ids, as large as recent texts suggest.
//!
//! An array that is too small moves while it grows. One that is far too large comes from fresh pages of the system each
//! time, and to touch these takes up to a quarter of the time for text in many languages, whose ids take more memory
//! than the text. So the encoder remembers how many ids recent texts had for their length.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many ids recent texts had for their length.
#[derive(Debug)]
pub struct IdDensity {
    /// The most ids for [`DENSITY_BYTES`] bytes of text, among recent texts. At first as many as nearly no text has:
    /// memory that is not touched costs nothing.
    density: AtomicUsize,
}

const DENSITY_BYTES: usize = 1 << 10;

/// The number of ids varies more in texts shorter than this.
const MIN_TEXT: usize = 64 << 10;

/// An array may be this many times as large as recent texts needed: their density varies, and to move the ids takes
/// longer than to leave some memory unused.
const MAX_EXCESS: usize = 4;

impl IdDensity {
    pub fn new() -> Self {
        Self { density: AtomicUsize::new(DENSITY_BYTES) }
    }

    /// An array with room for the ids of most texts of `bytes` bytes. It grows where that is too little.
    pub fn array(&self, bytes: usize) -> Vec<u32> {
        let expected = self.expected(bytes);
        let mut ids = Vec::new();
        _ = ids.try_reserve_exact(expected.saturating_add(expected / 8 + 8));
        ids
    }

    /// Remembers how many ids a text of `bytes` bytes has, and cuts off memory that is far too much.
    pub fn trim(&self, bytes: usize, ids: &mut Vec<u32>) {
        if bytes < MIN_TEXT {
            // A caller may keep the ids of many short texts, and unused room would be most of their memory.
            return ids.shrink_to_fit();
        }
        let before = self.density.load(Ordering::Relaxed);
        let density = ids.len() / (bytes / DENSITY_BYTES);
        self.density.store(density.max(before - before / 8), Ordering::Relaxed);
        let expected = self.expected(bytes).max(ids.len());
        if ids.capacity() / MAX_EXCESS > expected {
            ids.shrink_to(expected + expected / 8);
        }
    }

    /// The most ids that recent texts had for this many bytes.
    fn expected(&self, bytes: usize) -> usize {
        bytes.saturating_mul(self.density.load(Ordering::Relaxed)) / DENSITY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: usize = 1 << 20;

    /// The density after a text with so many ids.
    fn trim(density: &IdDensity, ids: usize) {
        density.trim(TEXT, &mut vec![7; ids]);
    }

    #[test]
    fn arrays_follow_the_density_of_recent_texts() {
        let density = IdDensity::new();
        assert!(density.array(TEXT).capacity() > TEXT);
        (0..20).for_each(|_| trim(&density, TEXT / 4));
        let capacity = density.array(TEXT).capacity();
        assert!((TEXT / 4..TEXT / 3).contains(&capacity), "{capacity}");
        trim(&density, TEXT / 2);
        trim(&density, TEXT / 4);
        let capacity = density.array(TEXT).capacity();
        assert!((TEXT / 5 * 2..TEXT / 5 * 3).contains(&capacity), "after a dense text: {capacity}");
        assert_eq!(IdDensity::new().array(usize::MAX / 2).capacity(), 0, "it grows instead");
    }

    #[test]
    fn arrays_far_too_large_are_cut_off() {
        let density = IdDensity::new();
        (0..20).for_each(|_| trim(&density, TEXT / 4));
        let trimmed = |bytes, capacity, len| {
            let mut ids = Vec::with_capacity(capacity);
            ids.resize(len, 7);
            density.trim(bytes, &mut ids);
            ids.capacity()
        };
        assert_eq!(trimmed(TEXT, TEXT, TEXT / 4), TEXT);
        assert!((TEXT / 4..TEXT / 3).contains(&trimmed(TEXT, 2 * TEXT, TEXT / 4)));
        assert_eq!(trimmed(1000, 1000, 1), 1, "a caller may keep many short texts");
    }
}
