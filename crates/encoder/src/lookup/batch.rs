//! The loops that take most of the time: cache hits.
//!
//! First the keys of a batch of pre-tokens are made, and their cache lines prefetched. Then all are looked up, by which
//! time the lines have arrived, and their ids are written, or [deferred](super::deferred) after a new pre-token. These
//! loops do nothing else and are functions of their own, so that their state stays in registers: as parts of one large
//! loop they took a quarter longer.

use std::ops::Range;

use super::cache::keys::medium_key;
use super::cache::packed_ids::count;
use super::cache::{PretokenCache, ShortPretokens};
use super::pretoken::Pretoken;
use crate::layout::{FEW, KEY_BYTES, MEDIUM, MediumKey, NO_KEY, SHORT, ShortKey, Value};
use crate::simd::lanes::Lanes;
use crate::simd::probe::Probe;
use crate::simd::{NarrowWork, Scalar, Simd};

/// Pre-tokens in a batch. With fewer, the first lines have not arrived when they are needed; with more, lines are
/// evicted from the L1 cache before they are used.
pub const BATCH: usize = 128;

/// How many ids are written for each hit, however few it has.
const ROOM: usize = 8;

/// The pre-tokens of a padded text, a batch at a time, with their slots in the cache and the keys of the tiny and short
/// ones ([`NO_KEY`] for others).
pub struct PretokenBatch<'a> {
    simd: Simd,
    text: &'a [u8],
    /// The end of each pre-token of the text.
    ends: &'a [u32],
    /// The indices of the pre-tokens of this batch.
    range: Range<usize>,
    keys: &'a mut Keys,
}

/// Memory for the keys and slots of a batch. It is reused, as clearing it for each of many short texts takes long.
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
    /// An empty batch before the first pre-tokens of a text.
    pub fn new(simd: Simd, text: &'a [u8], ends: &'a [u32], keys: &'a mut Keys) -> Self {
        Self { simd, text, ends, range: 0..0, keys }
    }

    /// The indices of its pre-tokens in the text.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The pre-token of the text at an index.
    pub fn pretoken(&self, index: usize) -> Pretoken<'a> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Pretoken::new(self.text, start, self.ends[index] as usize)
    }

    /// The slot of a pre-token of this batch.
    #[inline(always)]
    pub fn slot(&self, index: usize) -> usize {
        self.keys.slots[index - self.range.start]
    }

    /// The key of a pre-token of this batch.
    #[inline(always)]
    pub fn key(&self, index: usize) -> ShortKey {
        self.keys.keys[index - self.range.start]
    }

    /// The key of a medium pre-token of this batch.
    pub fn medium_key(&self, index: usize) -> Option<MediumKey> {
        let pretoken = self.pretoken(index);
        let is_medium = (SHORT + 1..=MEDIUM).contains(&pretoken.len());
        is_medium.then(|| medium_key(pretoken.padded(), 0, pretoken.len()))
    }

    /// The keys and slots of its pre-tokens from `index` on.
    #[inline(always)]
    fn from(&self, index: usize) -> (&[ShortKey], &[usize]) {
        let rest = index - self.range.start..self.range.len();
        (&self.keys.keys[rest.clone()], &self.keys.slots[rest])
    }

    /// Advances to the next pre-tokens of the text, up to [`BATCH`] of them, and makes their keys; false if there are
    /// none.
    pub fn next(&mut self, cache: &PretokenCache) -> bool {
        self.range = self.range.end..self.ends.len().min(self.range.end + BATCH);
        if self.range.is_empty() {
            return false;
        }
        self.simd.run_narrow(Prepare { batch: self, cache });
        true
    }

    /// Writes the ids of the pre-tokens from `index` on, up to the first that is not a hit, and returns its index, or the
    /// end of the batch.
    pub fn write_hits(&self, cache: &PretokenCache, index: usize, ids: &mut Vec<u32>) -> usize {
        let (keys, slots) = self.from(index);
        index + self.simd.run_narrow(WriteHits { cache: cache.short(), keys, slots, ids })
    }

    /// The packed ids of a pre-token of this batch, if it is in a table of the cache.
    #[inline(always)]
    pub fn find<'b>(&self, cache: &'b PretokenCache, index: usize) -> Option<&'b [u64]> {
        let slot = self.slot(index);
        match self.key(index) {
            NO_KEY => cache.find_medium(&self.medium_key(index)?, slot),
            key => cache.short().find(Scalar, key, slot).map(<[u64; 2]>::as_slice),
        }
    }

    /// Looks up its tiny and short pre-tokens from `index` on: copies the values of those that are found, and returns the
    /// indices of the others, counted from `index`.
    pub fn look_up(&self, cache: &PretokenCache, index: usize, values: &mut [Value]) -> Indices {
        let (keys, slots) = self.from(index);
        self.simd.run_narrow(LookUp { cache: cache.short(), keys, slots, values })
    }
}

/// Writes the ids of values up to the first that does not hold its ids itself, and returns the number of values before
/// it.
pub fn write(simd: Simd, values: &[Value], ids: &mut Vec<u32>) -> usize {
    simd.run_narrow(Write { values, ids })
}

/// Indices of some pre-tokens of a batch.
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

/// [`PretokenBatch::next`]: makes the keys.
struct Prepare<'a, 'b> {
    batch: &'a mut PretokenBatch<'b>,
    cache: &'a PretokenCache,
}

impl NarrowWork for Prepare<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self, probe: impl Probe + Lanes) {
        let Self { batch, cache } = self;
        let short = cache.short();
        let PretokenBatch { text, ends, ref range, keys: ref mut found, .. } = *batch;
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
}

/// The slot of a pre-token of more than [`SHORT`] bytes, if it has one.
#[inline(never)]
fn prepare_longer(cache: &PretokenCache, text: &[u8], start: usize, len: usize) -> usize {
    if len > MEDIUM {
        return 0;
    }
    let slot = cache.medium_slot(&medium_key(text, start, len));
    cache.prefetch_medium(slot);
    slot
}

/// [`PretokenBatch::look_up`].
struct LookUp<'a> {
    cache: ShortPretokens<'a>,
    keys: &'a [ShortKey],
    slots: &'a [usize],
    values: &'a mut [Value],
}

impl NarrowWork for LookUp<'_> {
    type Output = Indices;

    #[inline(always)]
    fn run(self, probe: impl Probe + Lanes) -> Indices {
        let Self { cache, keys, slots, values } = self;
        let mut absent = Indices::default();
        for (index, ((key, slot), value)) in keys.iter().zip(slots).zip(values).enumerate() {
            let found;
            (*value, found) = cache.read(probe, *key, *slot);
            // Branchless: most batches of new text contain misses.
            absent.push_if(!found, index);
        }
        absent
    }
}

/// [`PretokenBatch::write_hits`].
struct WriteHits<'a> {
    cache: ShortPretokens<'a>,
    keys: &'a [ShortKey],
    slots: &'a [usize],
    ids: &'a mut Vec<u32>,
}

impl NarrowWork for WriteHits<'_> {
    type Output = usize;

    #[inline(always)]
    fn run(self, probe: impl Probe + Lanes) -> usize {
        let Self { cache, keys, slots, ids } = self;
        let values = keys.iter().zip(slots).map(|(key, slot)| cache.find(probe, *key, *slot));
        write_values(probe, values, ids)
    }
}

/// [`write()`].
struct Write<'a> {
    values: &'a [Value],
    ids: &'a mut Vec<u32>,
}

impl NarrowWork for Write<'_> {
    type Output = usize;

    #[inline(always)]
    fn run(self, probe: impl Probe + Lanes) -> usize {
        write_values(probe, self.values.iter().map(Some), self.ids)
    }
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
        // the ids that are written past the last.
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
