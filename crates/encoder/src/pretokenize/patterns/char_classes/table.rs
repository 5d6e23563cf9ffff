//! One byte for every code point, in two levels.

use std::collections::HashMap;

use regex_syntax::hir::ClassUnicode;

/// The last byte of UTF-8 distinguishes 64 code points.
const BLOCK: usize = 64;

/// Blocks for everything that four bytes of UTF-8 can spell, valid or not, so that no look-up needs a check.
const INDEXED: usize = 0x20_0000 / BLOCK;

/// Equal blocks are stored once: about 20 KiB for the Unicode classes, and 64 KiB of index, little of which a text
/// touches.
pub struct CharTable {
    index: Box<[u16; INDEXED]>,
    blocks: Vec<[u8; BLOCK]>,
}

impl CharTable {
    /// For each code point, which of up to eight sets contain it, as a bit for each.
    pub fn of_sets(sets: &[&ClassUnicode]) -> Self {
        let ranges: Vec<_> = memberships(sets).into_iter().map(|(at, members)| (at, members as u8)).collect();
        Self::new(&ranges)
    }

    /// Lays out `ranges`, each a first code point and the value up to the next range.
    pub fn new(ranges: &[(u32, u8)]) -> Self {
        let mut blocks: Vec<[u8; BLOCK]> = Vec::new();
        let mut known: HashMap<[u8; BLOCK], u16> = HashMap::new();
        let mut index = Vec::with_capacity(INDEXED);
        let mut current = 0;
        for start in (0..0x11_0000_u32).step_by(BLOCK) {
            let mut block = [0; BLOCK];
            for (offset, value) in block.iter_mut().enumerate() {
                while ranges.get(current + 1).is_some_and(|next| next.0 <= start + offset as u32) {
                    current += 1;
                }
                *value = ranges[current].1;
            }
            index.push(*known.entry(block).or_insert_with(|| {
                blocks.push(block);
                (blocks.len() - 1) as u16
            }));
        }
        index.resize(INDEXED, 0);
        let index =
            index.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("its length is INDEXED"));
        Self { index, blocks }
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.index) + self.blocks.capacity() * BLOCK
    }

    /// The value of a code point below 2^21.
    #[inline]
    pub fn of(&self, code: u32) -> u8 {
        let block = self.index[code as usize / BLOCK % INDEXED];
        self.blocks[usize::from(block)][code as usize % BLOCK]
    }
}

/// The code points at which membership in any of up to 64 sets changes, starting with 0, each with the mask of the sets
/// that contain the code points from there on.
pub fn memberships(sets: &[&ClassUnicode]) -> Vec<(u32, u64)> {
    let mut changes = vec![(0, 0)];
    for (bit, set) in sets.iter().enumerate() {
        for range in set.ranges() {
            changes.push((u32::from(range.start()), 1u64 << bit));
            changes.push((u32::from(range.end()) + 1, 1u64 << bit));
        }
    }
    changes.sort_unstable_by_key(|&(at, _)| at);
    let mut ranges: Vec<(u32, u64)> = Vec::new();
    let mut members = 0;
    for (at, toggled) in changes {
        members ^= toggled;
        match ranges.last_mut() {
            Some(last) if last.0 == at => last.1 = members,
            _ => ranges.push((at, members)),
        }
    }
    ranges
}
