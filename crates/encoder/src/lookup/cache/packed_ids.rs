//! Packing ids into words. [`layout`](crate::layout) draws the words.

use crate::layout::{COUNT_SHIFT, FEW, ID_BITS, IDS_PER_WORD, SPILLED, SPILLED_COUNT_SHIFT, Value};

/// In place of the ids of a pre-token that the cache lacks: its slot. As spilled ids, they would lie at the very end of
/// more blocks than there can be.
#[inline(always)]
pub fn absent(slot: usize) -> Value {
    [u64::MAX, slot as u64]
}

/// The slot of a pre-token whose ids are not in its value.
pub fn absent_slot(value: &Value) -> Option<usize> {
    (value[0] == u64::MAX).then_some(value[1] as usize)
}

/// The packed ids of a medium pre-token in a slot, as a value; [`absent`] if two words do not suffice.
pub fn as_value(words: &[u64], slot: usize) -> Value {
    let &[first, second, ..] = words else { unreachable!("four words") };
    let too_many = FEW + 1..SPILLED;
    if too_many.contains(&count(words)) { absent(slot) } else { [first, second] }
}

/// The number of ids in the words; larger than the words have room for if the ids are spilled.
#[inline(always)]
pub fn count(words: &[u64]) -> usize {
    (words[0] >> COUNT_SHIFT) as usize
}

/// Packs a few ids, which zeros follow.
#[inline(always)]
pub fn pack_few(ids: [u32; FEW], count: usize) -> Value {
    let word = |at: usize| {
        u64::from(ids[at]) | u64::from(ids[at + 1]) << ID_BITS | u64::from(ids[at + 2]) << (2 * ID_BITS)
    };
    [word(0) | (count as u64) << COUNT_SHIFT, word(IDS_PER_WORD)]
}

/// Packs the ids if they fit.
pub fn pack<const W: usize>(ids: &[u32]) -> Option<[u64; W]> {
    let mut words = [0; W];
    if ids.len() > W * IDS_PER_WORD {
        return None;
    }
    for (word, ids) in words.iter_mut().zip(ids.chunks(IDS_PER_WORD)) {
        *word = ids.iter().rev().fold(0, |word, id| word << ID_BITS | u64::from(*id));
    }
    words[0] |= (ids.len() as u64) << COUNT_SHIFT;
    Some(words)
}

/// Whether the first word suffices.
#[inline(always)]
pub fn is_in_one(first: u64) -> bool {
    !(IDS_PER_WORD + 1..=FEW).contains(&count(&[first]))
}

/// Ids in a block.
pub const BLOCK: usize = 8;

/// Spilled ids are in blocks, the last one filled up with zeros: copies of a fixed size are faster than `memcpy`, as
/// there are seldom more than a dozen ids.
pub type Block = [u32; BLOCK];

/// Packs a reference to `len` spilled ids from the block `start` on.
pub fn pack_spilled<const W: usize>(start: u32, len: usize) -> [u64; W] {
    let mut words = [0; W];
    words[0] = (SPILLED as u64) << COUNT_SHIFT | (len as u64) << SPILLED_COUNT_SHIFT | u64::from(start);
    words
}

/// The first block and the number of the ids, if they are spilled.
pub fn spilled(words: &[u64]) -> Option<(usize, usize)> {
    let (start, len) = (words[0] as u32 as usize, (words[0] >> SPILLED_COUNT_SHIFT) as usize & 0x0FFF_FFFF);
    (count(words) == SPILLED).then_some((start, len))
}
