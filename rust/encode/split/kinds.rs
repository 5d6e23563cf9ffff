//! Characters by kind: the coarsest partition of Unicode that some sets can tell apart.

use std::collections::HashMap;

use regex_syntax::hir::ClassUnicode;

/// Kinds are numbered from 0; a set of kinds is a mask of this type, whose top bit stands for the
/// end of the text.
pub type KindMask = u64;

/// The most kinds a partition may have: the highest bits stay free for the end of the text.
pub const MAX_KINDS: usize = 60;

/// Blocks of the two-level table. 64 characters are what the last byte of UTF-8 tells apart.
const BLOCK: usize = 64;

/// The partition that the sets of a pattern make.
pub struct Kinds {
    ascii: [u8; 128],
    /// The block of each 64 code points.
    index: Vec<u16>,
    blocks: Vec<[u8; BLOCK]>,
    sets: Vec<(ClassUnicode, KindMask)>,
    count: usize,
}

impl Kinds {
    /// The coarsest partition in which each set is a union of kinds.
    pub fn new<'a>(sets: impl Iterator<Item = &'a ClassUnicode>) -> Result<Self, String> {
        let mut distinct: Vec<&ClassUnicode> = Vec::new();
        for set in sets {
            if !distinct.contains(&set) {
                distinct.push(set);
            }
        }
        if distinct.len() > 64 {
            return Err("a split pattern with more than 64 classes".into());
        }
        let ranges = partition(&distinct);
        // A kind is a signature: which sets a character is in.
        let mut kinds: Vec<u64> = Vec::new();
        let mut kind_of = |signature: u64| {
            kinds.iter().position(|&known| known == signature).unwrap_or_else(|| {
                kinds.push(signature);
                kinds.len() - 1
            })
        };
        let ranges: Vec<(u32, usize)> = ranges.into_iter().map(|(at, sig)| (at, kind_of(sig))).collect();
        if kinds.len() > MAX_KINDS {
            return Err(format!("a split pattern that tells {} kinds of characters apart", kinds.len()));
        }
        let ranges: Vec<(u32, u8)> = ranges.into_iter().map(|(at, kind)| (at, kind as u8)).collect();
        let sets = distinct.iter().enumerate().map(|(bit, set)| {
            let mask =
                (0..kinds.len()).filter(|&kind| kinds[kind] >> bit & 1 == 1).map(|kind| 1 << kind).sum();
            ((*set).clone(), mask)
        });
        let (index, blocks) = two_level(&ranges);
        let mut ascii = [0; 128];
        ascii[..64].copy_from_slice(&blocks[usize::from(index[0])]);
        ascii[64..].copy_from_slice(&blocks[usize::from(index[1])]);
        Ok(Self { ascii, index, blocks, sets: sets.collect(), count: kinds.len() })
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// The kinds of one of the sets that the partition was made of.
    pub fn mask(&self, set: &ClassUnicode) -> KindMask {
        self.sets.iter().find(|(known, _)| known == set).map_or(0, |&(_, mask)| mask)
    }

    pub fn ascii(&self) -> &[u8; 128] {
        &self.ascii
    }

    #[inline]
    pub fn of(&self, code: u32) -> u8 {
        let block = self.index.get(code as usize / BLOCK).copied().unwrap_or_default();
        self.blocks[usize::from(block)][code as usize % BLOCK]
    }
}

/// The code points at which membership in any set changes, each with the mask of the sets it is in.
fn partition(sets: &[&ClassUnicode]) -> Vec<(u32, u64)> {
    let mut changes = vec![(0, 0)];
    for (bit, set) in sets.iter().enumerate() {
        for range in set.ranges() {
            changes.push((u32::from(range.start()), 1u64 << bit));
            changes.push((u32::from(range.end()) + 1, 1u64 << bit));
        }
    }
    changes.sort_unstable_by_key(|&(at, _)| at);
    let mut ranges: Vec<(u32, u64)> = Vec::new();
    let mut signature = 0;
    for (at, toggled) in changes {
        signature ^= toggled;
        match ranges.last_mut() {
            Some(last) if last.0 == at => last.1 = signature,
            _ => ranges.push((at, signature)),
        }
    }
    ranges
}

/// Lays ranges out as an index of 64-character blocks, equal blocks stored once.
fn two_level(ranges: &[(u32, u8)]) -> (Vec<u16>, Vec<[u8; BLOCK]>) {
    let mut blocks: Vec<[u8; BLOCK]> = Vec::new();
    let mut known: HashMap<[u8; BLOCK], u16> = HashMap::new();
    let mut index = Vec::with_capacity(0x11_0000 / BLOCK);
    let mut current = 0;
    for start in (0..0x11_0000_u32).step_by(BLOCK) {
        let mut block = [0; BLOCK];
        for (offset, kind) in block.iter_mut().enumerate() {
            while ranges.get(current + 1).is_some_and(|next| next.0 <= start + offset as u32) {
                current += 1;
            }
            *kind = ranges[current].1;
        }
        let number = *known.entry(block).or_insert_with(|| {
            blocks.push(block);
            (blocks.len() - 1) as u16
        });
        index.push(number);
    }
    (index, blocks)
}
