//! Where the tokens of a row come from.
//!
//! ```text
//! row          a a a E b b b b    3 entries     shard record offset length
//! provenance   entry 0: a a a E                     0     17    512      4
//!              entry 1: b b b b                     0     18      0      4
//!              entry 2: none                        0      0      0      0
//! ```
//!
//! An entry is written for each run of tokens that are consecutive in their document. Entries for which a row has no
//! room are left out, which shows in the lengths: they then do not add up to the row's tokens.

use crate::batch::buffers::ENTRY_ITEMS;

/// Consecutive tokens of a document in a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// Index into the manifest.
    pub shard: u32,
    /// 0-based line of the shard.
    pub record: u64,
    /// Number of tokens of the document before these.
    pub offset: usize,
    /// Number of these tokens.
    pub length: usize,
}

/// Writes entry `index` of a row's provenance, if there is room for it.
pub(crate) fn write(places: &mut [i32], index: usize, entry: Entry) {
    let Some(places) = places.chunks_exact_mut(ENTRY_ITEMS).nth(index) else { return };
    let Entry { shard, record, offset, length } = entry;
    // Only a shard of two billion lines goes beyond int32: such numbers saturate.
    let numbers = [u64::from(shard), record, offset as u64, length as u64];
    for (place, number) in places.iter_mut().zip(numbers) {
        *place = i32::try_from(number).unwrap_or(i32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_place_is_left_out_and_what_is_too_large_is_the_largest() {
        let entry = Entry { shard: 7, record: 1 << 40, offset: 5, length: 3 };
        let mut places = [0; 8];
        write(&mut places, 1, entry);
        write(&mut places, 2, entry);
        assert_eq!(places, [0, 0, 0, 0, 7, i32::MAX, 5, 3]);
        write(&mut [], 0, entry);
    }
}
