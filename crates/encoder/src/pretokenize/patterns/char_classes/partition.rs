//! Characters by kind: the coarsest partition of Unicode that some sets distinguish.

use regex_syntax::hir::ClassUnicode;

use crate::pretokenize::patterns::char_classes::table::{CharTable, memberships};
use crate::pretokenize::patterns::parse_pretokenizer::{Domain, PatternStep};
use crate::utf8::decode;

/// A set of kinds, which are numbered from 0; bits from [`MAX_CLASSES`] on are free for other symbols.
pub type ClassMask = u64;

pub const MAX_CLASSES: usize = 60;

/// The partition induced by the sets of some steps that see the same characters.
pub struct Partition {
    domain: Domain,
    table: CharTable,
    /// The kinds of characters of one byte.
    of_byte: [u8; 256],
    sets: Vec<(ClassUnicode, ClassMask)>,
    count: usize,
}

impl Partition {
    /// The coarsest partition in which each set of these steps, whose domain is one, is a union of kinds.
    pub fn new(steps: &[PatternStep]) -> Result<Self, String> {
        let domain = steps.first().map_or(Domain::Characters, |step| step.domain);
        let mut sets = Vec::new();
        for step in steps {
            step.pattern.for_each_set(&mut |set| sets.push(set));
        }
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
        let mut partition: Vec<u64> = Vec::new();
        let mut ranges = Vec::new();
        for (at, members) in memberships(&distinct) {
            let kind = partition.iter().position(|&known| known == members).unwrap_or(partition.len());
            if kind == partition.len() {
                partition.push(members);
            }
            if partition.len() > MAX_CLASSES {
                return Err(format!(
                    "a split pattern that distinguishes more than {MAX_CLASSES} kinds of characters"
                ));
            }
            ranges.push((at, kind as u8));
        }
        let mask_of = |bit: usize| {
            (0..partition.len()).filter(|&kind| partition[kind] >> bit & 1 == 1).map(|kind| 1 << kind).sum()
        };
        let sets = distinct.iter().enumerate().map(|(bit, &set)| (set.clone(), mask_of(bit))).collect();
        let table = CharTable::new(&ranges);
        let of_byte = std::array::from_fn(|byte| table.of(domain.character(byte as u8).into()));
        Ok(Self { domain, table, of_byte, sets, count: partition.len() })
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the table; the sets are negligible.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// The kinds of one of the sets that the partition was built from.
    pub fn mask(&self, set: &ClassUnicode) -> ClassMask {
        self.sets.iter().find(|(known, _)| known == set).map_or(0, |&(_, mask)| mask)
    }

    /// The class of the bytes of a character but its first.
    pub fn inside(&self) -> u8 {
        self.count as u8
    }

    /// The class of the end of the text.
    pub fn end(&self) -> u8 {
        self.count as u8 + 1
    }

    /// The kind of a character of one byte.
    pub fn of_byte(&self, byte: u8) -> u8 {
        self.of_byte[usize::from(byte)]
    }

    /// Replaces `kinds` by those of the characters of a text, each at its first byte.
    pub fn read(&self, text: &[u8], partition: &mut Vec<u8>) {
        partition.clear();
        if self.domain == Domain::Bytes {
            return partition.extend(text.iter().map(|byte| self.of_byte(*byte)));
        }
        partition.resize(text.len(), self.inside());
        let mut at = 0;
        while at < text.len() {
            if text[at].is_ascii() {
                partition[at] = self.of_byte(text[at]);
                at += 1;
            } else {
                let (code, width) = decode(&text[at..]);
                partition[at] = self.table.of(code);
                at += width;
            }
        }
    }
}
