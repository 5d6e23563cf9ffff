//! The loops that take most of the time: cache hits.
//!
//! First the keys of a batch of pieces are made and their cache lines prefetched. Then all are looked up, by which time
//! the lines have arrived, and their ids are written, or held back while a new piece is waiting.
//! These loops do nothing else, and are functions of their own, so that their state stays in registers: as parts of one
//! large loop they took a quarter longer.

use std::ops::Range;

use crate::lookup::cache::packed_ids::{FEW, Value, count};
use crate::lookup::cache::{
    KEY_BYTES, MEDIUM, MediumKey, NO_KEY, PretokenCache, Probe, SHORT, ShortKey, ShortPretokens, medium_key,
};
use crate::lookup::pretoken::Pretoken;
use crate::simd::{Scalar, Simd};

/// Pieces in a batch. With fewer, the first lines have not arrived when they are needed; with more, lines are evicted
/// from the L1 cache before they are used.
pub const BATCH: usize = 128;

/// How many ids are written for each hit, however few it has.
const ROOM: usize = 8;

/// Pieces of a padded text, a batch at a time, with their places in the cache and the keys of those of up to [`SHORT`]
/// bytes ([`NO_KEY`] for others).
pub struct PretokenBatch<'a> {
    simd: Simd,
    text: &'a [u8],
    /// Where each piece of the text ends.
    ends: &'a [u32],
    range: Range<usize>,
    found: &'a mut Keys,
}

/// Memory for the keys and places of a batch, which is used again: to clear it for each of many short texts takes long.
pub struct Keys {
    keys: [ShortKey; BATCH],
    slots: [usize; BATCH],
}

impl Default for Keys {
    fn default() -> Self {
        Self { keys: [NO_KEY; BATCH], slots: [0; BATCH] }
    }
}

impl<'a> PretokenBatch<'a> {
    /// A batch before the first pieces of a text.
    pub fn new(simd: Simd, text: &'a [u8], ends: &'a [u32], found: &'a mut Keys) -> Self {
        Self { simd, text, ends, range: 0..0, found }
    }

    /// The indices of its pieces in the text.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// One of the pieces of the text.
    pub fn pretoken(&self, index: usize) -> Pretoken<'a> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Pretoken::new(self.text, start, self.ends[index] as usize)
    }

    /// Where to look for a piece of this batch.
    #[inline(always)]
    pub fn slot(&self, index: usize) -> usize {
        self.found.slots[index - self.range.start]
    }

    /// The key of a piece of this batch.
    #[inline(always)]
    pub fn key(&self, index: usize) -> ShortKey {
        self.found.keys[index - self.range.start]
    }

    /// The key of a medium piece of this batch.
    pub fn medium_key(&self, index: usize) -> Option<MediumKey> {
        let pretoken = self.pretoken(index);
        let is_medium = (SHORT + 1..=MEDIUM).contains(&pretoken.len());
        is_medium.then(|| medium_key(pretoken.padded(), 0, pretoken.len()))
    }

    /// The keys and places of its pieces from `index` on.
    #[inline(always)]
    fn from(&self, index: usize) -> (&[ShortKey], &[usize]) {
        let rest = index - self.range.start..self.range.len();
        (&self.found.keys[rest.clone()], &self.found.slots[rest])
    }

    /// Advances to the next pieces of the text, up to [`BATCH`] of them, and makes their keys; false if there are none.
    pub fn next(&mut self, cache: &PretokenCache) -> bool {
        self.range = self.range.end..self.ends.len().min(self.range.end + BATCH);
        if self.range.is_empty() {
            return false;
        }
        match self.simd {
            Simd::Scalar => prepare(Scalar, self, cache),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: having an `Avx2` proves that the processor has these features.
            Simd::Avx2(avx2) => unsafe { avx2::prepare(avx2, self, cache) },
        }
        true
    }

    /// Writes the ids of the pieces from `index` on up to the first that is not a hit, and returns its index, or the
    /// end of the batch.
    pub fn write_hits(&self, cache: &PretokenCache, index: usize, ids: &mut Vec<u32>) -> usize {
        let (keys, slots) = self.from(index);
        index
            + match self.simd {
                Simd::Scalar => write_hits(Scalar, cache.short(), keys, slots, ids),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: having an `Avx2` proves that the processor has these features.
                Simd::Avx2(avx2) => unsafe { avx2::write_hits(avx2, cache.short(), keys, slots, ids) },
            }
    }

    /// The packed ids of a piece of this batch, if it is in a table of the cache.
    #[inline(always)]
    pub fn find<'b>(&self, cache: &'b PretokenCache, index: usize) -> Option<&'b [u64]> {
        let slot = self.slot(index);
        match self.key(index) {
            NO_KEY => cache.find_medium(&self.medium_key(index)?, slot),
            key => cache.short().find(Scalar, key, slot).map(<[u64; 2]>::as_slice),
        }
    }

    /// Looks up its short pieces from `index` on: the values of those that are found, and which pieces are not.
    pub fn look_up(&self, cache: &PretokenCache, index: usize, values: &mut [Value]) -> Indices {
        let (keys, slots) = self.from(index);
        match self.simd {
            Simd::Scalar => look_up(Scalar, cache.short(), keys, slots, values),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: having an `Avx2` proves that the processor has these features.
            Simd::Avx2(avx2) => unsafe { avx2::look_up(avx2, cache.short(), keys, slots, values) },
        }
    }
}

/// Writes the ids of values up to the first that does not hold its ids itself, and returns the number of values before
/// it.
pub fn write(simd: Simd, values: &[Value], ids: &mut Vec<u32>) -> usize {
    match simd {
        Simd::Scalar => write_values(Scalar, values.iter().map(Some), ids),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: having an `Avx2` proves that the processor has these features.
        Simd::Avx2(avx2) => unsafe { avx2::write(avx2, values, ids) },
    }
}

/// Indices of some pieces of a batch.
pub struct Indices {
    indices: [u8; BATCH],
    count: usize,
}

impl Default for Indices {
    fn default() -> Self {
        Self { indices: [0; BATCH], count: 0 }
    }
}

impl Indices {
    #[inline(always)]
    fn push_if(&mut self, is_one: bool, index: usize) {
        self.indices[self.count % BATCH] = index as u8;
        self.count += usize::from(is_one);
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.indices[..self.count].iter().map(|index| usize::from(*index))
    }
}

#[inline(always)]
fn look_up(
    probe: impl Probe,
    cache: ShortPretokens,
    keys: &[ShortKey],
    slots: &[usize],
    values: &mut [Value],
) -> Indices {
    let mut absent = Indices::default();
    for (index, ((key, slot), value)) in keys.iter().zip(slots).zip(values).enumerate() {
        let found;
        (*value, found) = cache.read(probe, *key, *slot);
        // Branchless: most batches of new text contain misses.
        absent.push_if(!found, index);
    }
    absent
}

#[inline(always)]
fn prepare(probe: impl Probe, batch: &mut PretokenBatch, cache: &PretokenCache) {
    let short = cache.short();
    let PretokenBatch { text, ends, ref range, ref mut found, .. } = *batch;
    let Keys { keys, slots } = &mut **found;
    let first = if range.start == 0 { 0 } else { ends[range.start - 1] };
    let ends = &ends[range.clone()];
    let last = ends.iter().fold(first, |last, end| last.max(*end));
    assert!(last as usize + KEY_BYTES <= text.len(), "texts are padded");
    let mut longer = Indices::default();
    let mut start = first as usize;
    for (index, ((end, key), slot)) in ends.iter().zip(&mut *keys).zip(&mut *slots).enumerate() {
        let len = *end as usize - start;
        if len <= SHORT {
            // SAFETY: `start` is `first` or one of the ends, so at most `last`, after which `KEY_BYTES` bytes follow.
            let bytes = unsafe { &*text.as_ptr().add(start).cast() };
            *key = probe.key(bytes, len);
            *slot = short.slot(*key);
            short.prefetch(*slot);
        } else {
            longer.push_if(true, index);
        }
        start = *end as usize;
    }
    // In a separate loop: with a call in it, the one above would not keep its state in registers.
    for index in longer.iter() {
        let start = if index == 0 { first } else { ends[index - 1] };
        keys[index] = NO_KEY;
        slots[index] = prepare_longer(cache, text, start as usize, (ends[index] - start) as usize);
    }
}

/// The place of a piece of more than [`SHORT`] bytes, if it has one.
#[inline(never)]
fn prepare_longer(cache: &PretokenCache, text: &[u8], start: usize, len: usize) -> usize {
    if len > MEDIUM {
        return 0;
    }
    let slot = cache.medium_place(&medium_key(text, start, len));
    cache.prefetch_medium(slot);
    slot
}

#[inline(always)]
fn write_hits(
    probe: impl Probe,
    cache: ShortPretokens,
    keys: &[ShortKey],
    slots: &[usize],
    ids: &mut Vec<u32>,
) -> usize {
    let values = keys.iter().zip(slots).map(|(key, slot)| cache.find(probe, *key, *slot));
    write_values(probe, values, ids)
}

/// Writes the ids of values up to the first that is absent or does not hold its ids itself, and returns the number of
/// values before it.
#[inline(always)]
fn write_values<'a>(
    probe: impl Probe,
    values: impl ExactSizeIterator<Item = Option<&'a Value>>,
    ids: &mut Vec<u32>,
) -> usize {
    let most = values.len();
    ids.reserve(most * FEW + ROOM);
    let begin = ids.as_mut_ptr();
    // SAFETY: this is the end of the ids, inside their allocation.
    let mut out = unsafe { begin.add(ids.len()) };
    let mut done = 0;
    for value in values.take(most) {
        let Some(value) = value else { break };
        let count = count(value);
        if count > FEW {
            break;
        }
        // SAFETY: `take` limits the values to `most`, for each of which there is room for `FEW` ids, and after them for
        // what is written past the last.
        unsafe {
            out.cast::<[u32; ROOM]>().write(probe.unpack(value));
            out = out.add(count);
        }
        done += 1;
    }
    // SAFETY: all up to there have been written.
    unsafe { ids.set_len(out.offset_from_unsigned(begin)) };
    done
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Indices, PretokenBatch, PretokenCache, ShortKey, ShortPretokens, Value};
    use crate::simd::Avx2;

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn prepare(avx2: Avx2, batch: &mut PretokenBatch, cache: &PretokenCache) {
        super::prepare(avx2, batch, cache);
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn write_hits(
        avx2: Avx2,
        cache: ShortPretokens,
        keys: &[ShortKey],
        slots: &[usize],
        ids: &mut Vec<u32>,
    ) -> usize {
        super::write_hits(avx2, cache, keys, slots, ids)
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn look_up(
        avx2: Avx2,
        cache: ShortPretokens,
        keys: &[ShortKey],
        slots: &[usize],
        values: &mut [Value],
    ) -> Indices {
        super::look_up(avx2, cache, keys, slots, values)
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub fn write(avx2: Avx2, values: &[Value], ids: &mut Vec<u32>) -> usize {
        super::write_values(avx2, values.iter().map(Some), ids)
    }
}
