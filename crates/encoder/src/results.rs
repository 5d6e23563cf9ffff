//! The memory of results: how much the ids of a text need, and arrays that are used again.
//!
//! Memory takes long to touch for the first time: for text in many languages, whose ids take more of it than the text,
//! a tenth of all. The C library cannot be left to keep it: what it keeps depends on the largest array that was freed,
//! and the next one may always be larger. So an array is made as large as recent texts suggest, and comes back here
//! when nobody uses it any more.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use gristmill_system::lock_unless_forked;

/// Ids of texts. Their memory is used again when they are dropped.
#[derive(Debug, Default)]
pub struct Ids {
    ids: Vec<u32>,
    home: Weak<Results>,
}

/// What an encoder's results had in common, and the memory of those that were dropped.
#[derive(Debug)]
pub struct Results {
    /// The most ids for [`DENSITY_BYTES`] bytes of text, among recent texts. At first as many as nearly no text has:
    /// memory that is not touched costs nothing.
    density: AtomicUsize,
    /// The oldest first.
    idle: Mutex<Vec<Vec<u32>>>,
}

const DENSITY_BYTES: usize = 1 << 10;

/// Of shorter texts the number of ids varies more.
const LEAST_TEXT: usize = 64 << 10;

/// How many times as large an array may be as what it needs to be: how dense texts are varies, and to make a new one
/// takes longer than to leave some of an old one unused.
const ROOMY: usize = 4;

/// Smaller arrays are left to the C library.
const LEAST_KEPT: usize = 64 << 10;

/// The most bytes of memory that are kept.
const MOST_KEPT: usize = 32 << 20;

impl Results {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { density: AtomicUsize::new(DENSITY_BYTES), idle: Mutex::default() })
    }

    /// An array with room for the ids of so many bytes of most texts. Where there is no such room, it grows.
    pub fn room(&self, bytes: usize) -> Vec<u32> {
        let most = self.most(bytes);
        if bytes >= LEAST_TEXT
            && let Some(mut idle) = lock_unless_forked(&self.idle)
        {
            let rooms = idle.iter().map(Vec::capacity).enumerate();
            let fitting = rooms.filter(|(_, room)| (most..=most.saturating_mul(ROOMY)).contains(room));
            if let Some((index, _)) = fitting.min_by_key(|(_, room)| *room) {
                return idle.remove(index);
            }
        }
        let mut ids = Vec::new();
        _ = ids.try_reserve_exact(most.saturating_add(most / 8 + 8));
        ids
    }

    /// The ids of so many bytes, in an array that is not much larger than recent texts needed.
    pub fn fitted(self: &Arc<Self>, bytes: usize, mut ids: Vec<u32>) -> Ids {
        if bytes < LEAST_TEXT {
            // Who has many short texts may keep their ids, and what is too much would be most of it.
            ids.shrink_to_fit();
        } else {
            let before = self.density.load(Ordering::Relaxed);
            let density = ids.len() / (bytes / DENSITY_BYTES);
            self.density.store(density.max(before - before / 8), Ordering::Relaxed);
            let most = self.most(bytes).max(ids.len());
            if ids.capacity() / ROOMY > most {
                ids.shrink_to(most + most / 8);
            }
        }
        Ids { ids, home: Arc::downgrade(self) }
    }

    /// How many ids so many bytes of recent texts had at most.
    fn most(&self, bytes: usize) -> usize {
        bytes.saturating_mul(self.density.load(Ordering::Relaxed)) / DENSITY_BYTES
    }

    /// Keeps the memory of some ids.
    fn keep(&self, mut ids: Vec<u32>) {
        let bytes = |ids: &Vec<u32>| ids.capacity() * size_of::<u32>();
        if !(LEAST_KEPT..=MOST_KEPT).contains(&bytes(&ids)) {
            return;
        }
        ids.clear();
        if let Some(mut idle) = lock_unless_forked(&self.idle) {
            idle.push(ids);
            let mut kept: usize = idle.iter().map(bytes).sum();
            while kept > MOST_KEPT {
                kept -= bytes(&idle.remove(0));
            }
        }
    }
}

impl Ids {
    /// The first id. Who owns the ids may write through it.
    pub fn as_mut_ptr(&mut self) -> *mut u32 {
        self.ids.as_mut_ptr()
    }
}

impl Deref for Ids {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.ids
    }
}

impl Drop for Ids {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.keep(std::mem::take(&mut self.ids));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: usize = 1 << 20;

    /// Results after many texts with an id for every four bytes.
    fn after_texts() -> Arc<Results> {
        let results = Results::new();
        (0..20).for_each(|_| drop(results.fitted(TEXT, vec![7; TEXT / 4])));
        results
    }

    #[test]
    fn room_follows_the_texts() {
        let results = Results::new();
        assert!(results.room(TEXT).capacity() > TEXT);
        for _ in 0..20 {
            let ids = results.fitted(TEXT, vec![7; TEXT / 4]);
            assert_eq!(*ids, vec![7; TEXT / 4]);
        }
        let room = results.room(TEXT).capacity();
        assert!((TEXT / 4..TEXT / 3).contains(&room), "{room}");
        _ = results.fitted(TEXT, vec![7; TEXT / 2]);
        _ = results.fitted(TEXT, vec![7; TEXT / 4]);
        let room = results.room(TEXT).capacity();
        assert!((TEXT / 5 * 2..TEXT / 5 * 3).contains(&room), "a dense text is remembered: {room}");
        assert_eq!(Results::new().room(usize::MAX / 2).capacity(), 0, "it grows instead");
    }

    #[test]
    fn what_is_far_too_large_is_cut_off() {
        let results = after_texts();
        let of_capacity = |capacity| {
            let mut ids = Vec::with_capacity(capacity);
            ids.resize(TEXT / 4, 7);
            results.fitted(TEXT, ids).ids.capacity()
        };
        assert_eq!(of_capacity(TEXT), TEXT);
        assert!((TEXT / 4..TEXT / 3).contains(&of_capacity(2 * TEXT)));
        let mut few = results.room(1000);
        few.push(7);
        assert_eq!(results.fitted(1000, few).ids.capacity(), 1, "many short texts may be kept");
    }

    #[test]
    fn memory_is_used_again_if_it_fits() {
        let results = after_texts();
        results.idle.lock().unwrap().clear();
        let ids = results.fitted(TEXT, vec![7; TEXT / 4]);
        let place = ids.as_ptr().addr();
        let place_of_room = |bytes| {
            let room = results.room(bytes);
            room.as_ptr().addr()
        };
        assert_ne!(place_of_room(TEXT), place, "it is in use");
        drop(ids);
        assert_ne!(place_of_room(TEXT / 8), place, "too large");
        assert_ne!(place_of_room(TEXT * 2), place, "too small");
        let again = results.room(TEXT - TEXT / 16);
        assert_eq!((again.as_ptr().addr(), again.len()), (place, 0));
        assert_ne!(place_of_room(TEXT), place);
    }

    #[test]
    fn no_more_is_kept_than_the_bound() {
        let results = Results::new();
        let kept = || results.idle.lock().unwrap().iter().map(Vec::capacity).collect::<Vec<_>>();
        let part = MOST_KEPT / size_of::<u32>() / 4;
        (0..4).for_each(|_| results.keep(Vec::with_capacity(part)));
        assert_eq!(kept(), [part; 4]);
        results.keep(Vec::with_capacity(part + 1));
        assert_eq!(kept(), [part, part, part + 1], "the oldest are freed");
        results.keep(Vec::with_capacity(MOST_KEPT));
        results.keep(Vec::with_capacity(10));
        assert_eq!(kept(), [part, part, part + 1], "neither too large nor too small ones are kept");
        // In a forked child, a lock may be held by a thread that does not exist.
        let held = results.idle.lock().unwrap();
        results.keep(Vec::with_capacity(part));
        assert!(results.room(TEXT).capacity() > 0);
        drop(held);
        assert_eq!(kept().len(), 3);
    }
}
