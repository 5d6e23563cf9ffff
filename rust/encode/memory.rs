//! Large tables in large pages.
//!
//! The tables of the hot loops are accessed at random. With pages of 4 KiB nearly every access to one of
//! tens of megabytes misses the address cache as well: on a virtual machine large pages make a second
//! pass 1.2 to 1.5 times faster. Mapped memory is also zeroed when first touched, not ahead, which would
//! take up to 95 ms for 40 MB.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use memmap2::MmapMut;

/// The size of a large page on most systems; smaller tables are not worth a mapping.
const LARGE_PAGE: usize = 2 << 20;
const LINE: usize = 64;
const WORD: usize = size_of::<u128>();

/// A fixed number of words, zero to begin with, at the start of a cache line.
pub struct Words {
    /// Into `_memory`, kept apart from it so that no access asks which kind it is.
    start: NonNull<u128>,
    len: usize,
    _memory: Memory,
}

/// What the words are in; neither kind moves them when it is moved itself.
enum Memory {
    Small { _words: Vec<u128> },
    Mapped { _map: MmapMut },
}

// SAFETY: `Words` owns its memory and hands it out by the rules of references only.
unsafe impl Send for Words {}
// SAFETY: as above; nothing changes it through a shared reference.
unsafe impl Sync for Words {}

impl Words {
    pub fn zeroed(len: usize) -> Self {
        let large = if len * WORD >= LARGE_PAGE { Self::mapped(len) } else { None };
        large.unwrap_or_else(|| {
            let mut words = vec![0; len + LINE / WORD];
            let offset = words.as_ptr().align_offset(LINE).min(LINE / WORD);
            let start = NonNull::from(&mut words[offset..]).cast();
            Self { start, len, _memory: Memory::Small { _words: words } }
        })
    }

    /// None where the system has no memory to map.
    fn mapped(len: usize) -> Option<Self> {
        let mut map = MmapMut::map_anon(len * WORD + LARGE_PAGE).ok()?;
        #[cfg(target_os = "linux")]
        // No more than advice: without large pages everything works, slower.
        let _ = map.advise(memmap2::Advice::HugePage);
        let offset = map.as_ptr().align_offset(LARGE_PAGE).min(LARGE_PAGE);
        let start = NonNull::from(&mut map[offset..]).cast();
        Some(Self { start, len, _memory: Memory::Mapped { _map: map } })
    }
}

impl Deref for Words {
    type Target = [u128];

    #[inline(always)]
    fn deref(&self) -> &[u128] {
        // SAFETY: `len` words from `start` lie in `_memory`, aligned, and any bytes are a number.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Words {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u128] {
        // SAFETY: as in `deref`; `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_zeroed_aligned_and_kept() {
        for len in [0, 1, 1000, LARGE_PAGE / WORD, LARGE_PAGE / WORD * 3 + 5] {
            let mut words = Words::zeroed(len);
            assert_eq!((words.len(), words.as_ptr() as usize % LINE), (len, 0));
            assert!(words.iter().all(|word| *word == 0));
            if let Some(last) = words.last_mut() {
                *last = u128::MAX;
            }
            // Moving them leaves them where they are.
            let moved = Box::new(words);
            assert_eq!(moved.last().is_some_and(|last| *last == u128::MAX), len > 0);
        }
    }
}
