//! The two loops that most of the time goes into: they find the pieces that the cache has.
//!
//! First the keys of a batch of pieces are made, and their cache lines asked for; then all are looked up, by
//! when the lines have come. Both loops do nothing else, and are functions of their own, so that all they need
//! stays in registers: within one large loop they took a quarter more.

use super::cache::packed::{PER_WORD, count};
use super::cache::{Lookup, MEDIUM, NO_KEY, PieceCache, Probe, SHORT, ShortKey, ShortPieces, medium_key};
use super::kernel::{Kernel, Plain};
use super::piece::Piece;

/// Pieces in a batch. With fewer the first lines have not come when they are needed, with more those that have
/// come leave the first-level cache again.
pub const BATCH: usize = 128;

/// The most ids that a hit has, and how many are written for it in any case.
const UNPACKED: usize = 2 * PER_WORD;
const ROOM: usize = 8;

/// A batch of pieces of a padded text: where it starts and each of them ends, keys of those of up to [`SHORT`] bytes
/// ([`NO_KEY`] for others) and the places to look at.
pub struct Batch<'a> {
    kernel: Kernel,
    text: &'a [u8],
    start: usize,
    ends: &'a [u32],
    pub keys: [ShortKey; BATCH],
    pub places: [usize; BATCH],
}

impl<'a> Batch<'a> {
    /// Before the first pieces of a text.
    pub fn new(kernel: Kernel, text: &'a [u8]) -> Self {
        Self { kernel, text, start: 0, ends: &[], keys: [NO_KEY; BATCH], places: [0; BATCH] }
    }

    /// One of the pieces.
    pub fn piece(&self, index: usize) -> Piece<'a> {
        let start = if index == 0 { self.start } else { self.ends[index - 1] as usize };
        Piece::new(self.text, start, self.ends[index] as usize)
    }

    /// One of the pieces, to look up; none if it is too long to be kept.
    #[inline(always)]
    pub fn lookup(&self, index: usize) -> Option<Lookup<'a>> {
        let (key, place) = (self.keys[index], self.places[index]);
        if key == NO_KEY {
            Lookup::longer(self.piece(index), |_| place)
        } else {
            Some(Lookup::Short(key, place))
        }
    }

    /// Goes on to the next pieces of the text, up to [`BATCH`] of them, and makes their keys.
    pub fn prepare(&mut self, cache: &PieceCache, ends: &'a [u32]) {
        self.start = self.ends.last().map_or(0, |end| *end as usize);
        self.ends = ends;
        match self.kernel {
            Kernel::Portable => prepare(Plain, self, cache),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: having an `Avx2` proves that the processor has these features.
            Kernel::Avx2(avx2) => unsafe { avx2::prepare(avx2, self, cache) },
        }
    }

    /// Writes the ids of the pieces from `index` on until one is not a hit, and gives its index, or their number.
    pub fn write_hits(&self, cache: &PieceCache, index: usize, ids: &mut Vec<u32>) -> usize {
        let rest = index..self.ends.len();
        let (keys, places) = (&self.keys[rest.clone()], &self.places[rest]);
        index
            + match self.kernel {
                Kernel::Portable => write_hits(Plain, cache.short(), keys, places, ids),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                Kernel::Avx2(avx2) => unsafe { avx2::write_hits(avx2, cache.short(), keys, places, ids) },
            }
    }

    /// Whether the cache lacks a piece that has a key.
    pub fn is_miss(&self, cache: &PieceCache, index: usize) -> bool {
        let (key, place) = (self.keys[index], self.places[index]);
        key != NO_KEY && cache.short().find(Plain, key, place).is_none()
    }

    /// Which of the pieces from `index` on the cache lacks, of those that have a key.
    pub fn misses(&self, cache: &PieceCache, index: usize) -> Misses {
        match self.kernel {
            Kernel::Portable => misses(Plain, self, cache.short(), index),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kernel::Avx2(avx2) => unsafe { avx2::misses(avx2, self, cache.short(), index) },
        }
    }
}

/// Indices of pieces of a batch.
pub struct Misses {
    indices: [u8; BATCH],
    count: usize,
}

impl Misses {
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.indices[..self.count].iter().map(|index| usize::from(*index))
    }
}

#[inline(always)]
fn misses(probe: impl Probe, batch: &Batch, cache: ShortPieces, first: usize) -> Misses {
    let end = batch.ends.len();
    let mut misses = Misses { indices: [0; BATCH], count: 0 };
    for (index, (key, place)) in batch.keys[..end].iter().zip(&batch.places[..end]).enumerate().skip(first) {
        let is_miss = (*key != NO_KEY) & cache.find(probe, *key, *place).is_none();
        // No branch: most batches of a text that is new hold some.
        misses.indices[misses.count % BATCH] = index as u8;
        misses.count += usize::from(is_miss);
    }
    misses
}

#[inline(always)]
fn prepare(probe: impl Probe, batch: &mut Batch, cache: &PieceCache) {
    let short = cache.short();
    let Batch { text, mut start, ends, ref mut keys, ref mut places, .. } = *batch;
    for ((end, key), place) in ends.iter().zip(keys).zip(places) {
        let len = *end as usize - start;
        if len <= SHORT {
            *key = probe.key(text, start, len);
            *place = short.place(*key);
            short.prefetch(*place);
        } else {
            *key = NO_KEY;
            *place = prepare_longer(cache, text, start, len);
        }
        start = *end as usize;
    }
}

/// The place of a piece of more than [`SHORT`] bytes, if it has one.
#[inline(never)]
fn prepare_longer(cache: &PieceCache, text: &[u8], start: usize, len: usize) -> usize {
    if len > MEDIUM {
        return 0;
    }
    let place = cache.medium_place(&medium_key(text, start, len));
    cache.prefetch_medium(place);
    place
}

#[inline(always)]
fn write_hits(
    probe: impl Probe,
    cache: ShortPieces,
    keys: &[ShortKey],
    places: &[usize],
    ids: &mut Vec<u32>,
) -> usize {
    ids.reserve(BATCH * UNPACKED + ROOM);
    let begin = ids.as_mut_ptr();
    // SAFETY: the end of the ids.
    let mut out = unsafe { begin.add(ids.len()) };
    debug_assert!(keys.len() <= BATCH, "there is room for the ids of a batch");
    let mut done = keys.len().min(BATCH);
    for (index, (key, place)) in keys.iter().zip(places).enumerate().take(BATCH) {
        let Some(words) = cache.find(probe, *key, *place) else {
            done = index;
            break;
        };
        let count = count(words);
        if count > UNPACKED {
            done = index;
            break;
        }
        // SAFETY: there is room for as many ids for each piece of a batch, and for what is written behind them.
        unsafe {
            out.cast::<[u32; ROOM]>().write(probe.unpack(words));
            out = out.add(count);
        }
    }
    // SAFETY: all up to there have been written.
    unsafe { ids.set_len(out.offset_from_unsigned(begin)) };
    done
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Batch, Misses, PieceCache, ShortKey, ShortPieces};
    use crate::encode::kernel::Avx2;

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn prepare(avx2: Avx2, batch: &mut Batch, cache: &PieceCache) {
        super::prepare(avx2, batch, cache);
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn write_hits(
        avx2: Avx2,
        cache: ShortPieces,
        keys: &[ShortKey],
        places: &[usize],
        ids: &mut Vec<u32>,
    ) -> usize {
        super::write_hits(avx2, cache, keys, places, ids)
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn misses(avx2: Avx2, batch: &Batch, cache: ShortPieces, index: usize) -> Misses {
        super::misses(avx2, batch, cache, index)
    }
}
