//! Tables aligned to cache lines, and large ones in large pages.
//!
//! The tables of the encoder's hot loops are accessed at random. With pages of 4 KiB nearly every access to a table of
//! tens of megabytes misses the TLB as well: on a virtual machine large pages make a second pass 1.2 to 1.5 times faster.
//! Batches are written in order, but a row of 1,024 tokens is a page in each of a batch's arrays: in large pages they are
//! written a fifth faster. Mapped memory is also zeroed when first touched, not in advance, which would take up to 95 ms
//! for 40 MB.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use memmap2::{MmapMut, MmapOptions};

/// The size of a large page on most systems.
pub const LARGE_PAGE: usize = 2 << 20;

/// Aligns a table to a cache line, so that no entry straddles two: look-ups in a table of bytes can take 5 % longer
/// where the linker puts it otherwise.
#[repr(align(64))]
pub struct Aligned<T>(pub T);

/// A cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CacheLine(pub [u64; 8]);

impl CacheLine {
    /// All bytes zero.
    pub const EMPTY: Self = Self([0; 8]);
}

/// A fixed number of cache lines, initially zero.
#[derive(Debug)]
pub struct CacheLines {
    /// Points into `_map`, whose memory stays in place when the map is moved.
    start: NonNull<CacheLine>,
    len: usize,
    _map: MmapMut,
}

// SAFETY: `CacheLines` owns its memory; whoever uses its pointer answers for that.
unsafe impl Send for CacheLines {}
// SAFETY: likewise, and no method changes it through a shared reference.
unsafe impl Sync for CacheLines {}

impl CacheLines {
    /// None if the system cannot provide that much.
    pub fn zeroed(len: usize) -> Option<Self> {
        Self::mapped(len, &mut MmapOptions::new())
    }

    /// The same where most of it may never be touched: that much need not be free.
    pub fn sparse(len: usize) -> Option<Self> {
        Self::mapped(len, MmapOptions::new().no_reserve_swap())
    }

    fn mapped(len: usize, options: &mut MmapOptions) -> Option<Self> {
        let bytes = len.checked_mul(size_of::<CacheLine>())?;
        let mut map = options.len(bytes.checked_add(LARGE_PAGE)?).map_anon().ok()?;
        #[cfg(target_os = "linux")]
        if bytes >= LARGE_PAGE {
            // Only advice: without large pages everything works, but slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let offset = map.as_ptr().align_offset(LARGE_PAGE).min(LARGE_PAGE);
        let start = NonNull::from(&mut map[offset..]).cast();
        Some(Self { start, len, _map: map })
    }

    /// The first line. It stays in place when the value is moved.
    pub fn start(&self) -> NonNull<CacheLine> {
        self.start
    }
}

impl Deref for CacheLines {
    type Target = [CacheLine];

    #[inline(always)]
    fn deref(&self) -> &[CacheLine] {
        // SAFETY: `len` lines from `start` lie in `_map`, aligned, and every bit pattern is valid.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for CacheLines {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [CacheLine] {
        // SAFETY: `len` lines from `start` lie in `_map`, aligned, every bit pattern is valid, and `self` is borrowed
        // exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_zeroed_aligned_and_kept() {
        let large = LARGE_PAGE / size_of::<CacheLine>();
        for len in [0, 1, 1000, large, large * 3 + 5] {
            for mut lines in [CacheLines::zeroed(len).unwrap(), CacheLines::sparse(len).unwrap()] {
                assert_eq!((lines.len(), lines.as_ptr() as usize % size_of::<CacheLine>()), (len, 0));
                assert!(lines.iter().all(|line| *line == CacheLine::EMPTY));
                let full = CacheLine([u64::MAX; 8]);
                if let Some(last) = lines.last_mut() {
                    *last = full;
                }
                // Moving the value leaves its memory in place.
                let moved = Box::new(lines);
                assert_eq!(moved.last().is_some_and(|last| *last == full), len > 0);
            }
        }
    }
}
