//! Packed ids: three in a 64-bit number, 20 bits each.

use crate::vocab::{ID_BITS, MAX_IDS};

/// Ids in one number.
pub const PER_WORD: usize = 3;

/// The most ids in a value.
pub const FEW: usize = 2 * PER_WORD;

/// The upper four bits of the first number are the number of ids, or this value if they are stored elsewhere.
const SPILLED: u64 = 15;
const COUNT_SHIFT: u32 = 60;

/// Ids of a tiny or short piece.
pub type Value = [u64; 2];

/// Stands for ids that are not in a value, with the piece's place: a reference to a range that cannot exist.
#[inline(always)]
pub fn absent(slot: usize) -> Value {
    [u64::MAX, slot as u64]
}

/// The place of a piece whose ids are not in its value.
pub fn absent_place(value: &Value) -> Option<usize> {
    (value[0] == u64::MAX).then_some(value[1] as usize)
}

/// The ids of a medium piece with its place as a value, [`absent`] if two numbers do not suffice.
pub fn as_value(words: &[u64], slot: usize) -> Value {
    let &[first, second, ..] = words else { unreachable!("four words") };
    let too_many = FEW + 1..SPILLED as usize;
    if too_many.contains(&count(words)) { absent(slot) } else { [first, second] }
}

/// How many ids the numbers hold; more than they have room for if the ids are stored elsewhere.
#[inline(always)]
pub fn count(words: &[u64]) -> usize {
    (words[0] >> COUNT_SHIFT) as usize
}

/// Packs some ids, which zeros follow.
#[inline(always)]
pub fn pack_few(ids: [u32; FEW], count: usize) -> Value {
    let word = |at: usize| {
        u64::from(ids[at]) | u64::from(ids[at + 1]) << ID_BITS | u64::from(ids[at + 2]) << (2 * ID_BITS)
    };
    [word(0) | (count as u64) << COUNT_SHIFT, word(PER_WORD)]
}

/// Packs the ids if they fit.
pub fn pack<const W: usize>(ids: &[u32]) -> Option<[u64; W]> {
    let mut words = [0; W];
    if ids.len() > W * PER_WORD {
        return None;
    }
    for (word, ids) in words.iter_mut().zip(ids.chunks(PER_WORD)) {
        *word = ids.iter().rev().fold(0, |word, id| word << ID_BITS | u64::from(*id));
    }
    words[0] |= (ids.len() as u64) << COUNT_SHIFT;
    Some(words)
}

/// Whether the first number suffices.
#[inline(always)]
pub fn is_in_one(first: u64) -> bool {
    !(PER_WORD + 1..=FEW).contains(&((first >> COUNT_SHIFT) as usize))
}

/// Ids in a block.
pub const BLOCK: usize = 8;

/// Ids that are stored elsewhere are in blocks, the last filled up with zeros: copies of a fixed size are faster than
/// `memcpy`, as there are seldom more than a dozen ids.
pub type Block = [u32; BLOCK];

/// The blocks that so many ids take.
pub fn blocks(ids: usize) -> usize {
    ids.div_ceil(BLOCK)
}

/// Packs where to find the ids, `len` of them from the block `start` on.
pub fn pack_spilled<const W: usize>(start: u32, len: usize) -> [u64; W] {
    let mut words = [0; W];
    words[0] = SPILLED << COUNT_SHIFT | (len as u64) << 32 | u64::from(start);
    words
}

/// The first block and the number of the ids, if they are stored elsewhere.
pub fn spilled(words: &[u64]) -> Option<(usize, usize)> {
    let (start, len) = (words[0] as u32 as usize, (words[0] >> 32) as usize & 0x0FFF_FFFF);
    (count(words) == SPILLED as usize).then_some((start, len))
}

/// The ids of two numbers, of which the first `count` are meaningful.
#[inline(always)]
pub fn unpack(words: &[u64; 2]) -> [u32; 8] {
    let id = |slot| id(words, slot);
    [id(0), id(1), id(2), id(3), id(4), id(5), 0, 0]
}

#[inline(always)]
fn id(words: &[u64], slot: usize) -> u32 {
    (words[slot / PER_WORD] >> (slot % PER_WORD * ID_BITS as usize)) as u32 & (MAX_IDS - 1)
}
