//! Characters by kind: the coarsest partition of Unicode that some sets distinguish.

use regex_syntax::hir::ClassUnicode;

use super::table::{Table, memberships};
use crate::encode::utf8::decode;

/// A set of kinds, which are numbered from 0; bits from [`MAX_KINDS`] on are free for other symbols.
pub type KindMask = u64;

pub const MAX_KINDS: usize = 60;

/// The partition induced by the sets of a pattern.
pub struct Kinds {
    table: Table,
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
            // Not behind the loop, which takes the square of their number.
            if distinct.len() > 64 {
                return Err("a split pattern with more than 64 classes".into());
            }
        }
        // A kind is one combination of memberships.
        let mut kinds: Vec<u64> = Vec::new();
        let mut ranges = Vec::new();
        for (at, members) in memberships(&distinct) {
            let kind = kinds.iter().position(|&known| known == members).unwrap_or(kinds.len());
            if kind == kinds.len() {
                kinds.push(members);
            }
            if kinds.len() > MAX_KINDS {
                return Err(format!(
                    "a split pattern that distinguishes more than {MAX_KINDS} kinds of characters"
                ));
            }
            ranges.push((at, kind as u8));
        }
        let mask_of = |bit: usize| {
            (0..kinds.len()).filter(|&kind| kinds[kind] >> bit & 1 == 1).map(|kind| 1 << kind).sum()
        };
        let sets = distinct.iter().enumerate().map(|(bit, &set)| (set.clone(), mask_of(bit))).collect();
        let table = Table::new(&ranges);
        Ok(Self { table, sets, count: kinds.len() })
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the table; the sets are negligible.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// The kinds of one of the sets that the partition was built from.
    pub fn mask(&self, set: &ClassUnicode) -> KindMask {
        self.sets.iter().find(|(known, _)| known == set).map_or(0, |&(_, mask)| mask)
    }

    /// The kind of the character at `at` and its length in bytes.
    #[inline]
    pub fn at(&self, text: &[u8], at: usize) -> (u8, usize) {
        let (code, width) = decode(&text[at..]);
        (self.table.of(code), width)
    }

    /// The kind of one character.
    pub fn of(&self, c: char) -> u8 {
        self.table.of(u32::from(c))
    }
}
