//! Fill-in-the-middle: documents that are cut at two characters, with the middle behind the rest, so that a model learns
//! to fill a gap. The order of the sections is that of Megatron-LM.
//!
//! ```text
//! text         prefix|middle|suffix
//! PSM   <PRE>  prefix  <SUF>  suffix  <MID>  middle
//! SPM   <PRE>  <SUF>  suffix  <MID>  prefix  middle
//! ```

use crate::lane::block::Document;
use crate::random::{Purpose, SplitMix64};

/// Shares are whole numbers of this part of one, which a float holds exactly.
const ONE: u64 = 1 << 53;

/// How documents are cut, and what stands between the sections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FillInTheMiddle {
    seed: u64,
    rate: u64,
    spm_rate: u64,
    sentinels: Sentinels,
}

/// The ids that announce the sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sentinels {
    /// The sentinel of the text before the gap.
    pub prefix: u32,
    /// The sentinel of the text that fills the gap.
    pub middle: u32,
    /// The sentinel of the text after the gap.
    pub suffix: u32,
}

/// A part of a document that was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// An id.
    Sentinel(u32),
    /// A section, which is encoded alone.
    Section(&'a str),
}

impl FillInTheMiddle {
    /// Cuts this share of the documents, from 0 to 1, and gives this share of those their suffix first.
    pub fn new(seed: u64, rate: f64, spm_rate: f64, sentinels: Sentinels) -> Self {
        let share = |rate: f64| (rate * ONE as f64) as u64;
        Self { seed, rate: share(rate), spm_rate: share(spm_rate), sentinels }
    }

    /// The parts of a document with this text; none if it stays as it is, as an empty one does. The cuts that are drawn
    /// depend on the seed and the document's record in its epoch alone, not on the lane or on what was read before.
    pub fn parts<'a>(&self, text: &'a str, document: &Document) -> Option<[Part<'a>; 6]> {
        let Document { position, shard, .. } = *document;
        let key = [position.epoch, shard.into(), position.record];
        let mut random = SplitMix64::new(self.seed, Purpose::FillInTheMiddle, &key);
        if text.is_empty() || random.below(ONE) >= self.rate {
            return None;
        }
        let characters = text.chars().count() as u64;
        let cuts = [random.below(characters + 1), random.below(characters + 1)];
        let (start, end) = (cuts[0].min(cuts[1]), cuts[0].max(cuts[1]));
        let (prefix, rest) = text.split_at(byte_of(text, start));
        let (middle, suffix) = rest.split_at(byte_of(rest, end - start));
        let Sentinels { prefix: before, middle: gap, suffix: after } = self.sentinels;
        Some(if random.below(ONE) < self.spm_rate {
            [
                Part::Sentinel(before),
                Part::Sentinel(after),
                Part::Section(suffix),
                Part::Sentinel(gap),
                Part::Section(prefix),
                Part::Section(middle),
            ]
        } else {
            [
                Part::Sentinel(before),
                Part::Section(prefix),
                Part::Sentinel(after),
                Part::Section(suffix),
                Part::Sentinel(gap),
                Part::Section(middle),
            ]
        })
    }
}

/// The offset of a character of a text; its length for the one after the last.
fn byte_of(text: &str, character: u64) -> usize {
    text.char_indices().nth(character as usize).map_or(text.len(), |(byte, _)| byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::cursor::RecordPosition;

    const SENTINELS: Sentinels = Sentinels { prefix: 1, middle: 2, suffix: 3 };

    fn document(epoch: u64, shard: u32, record: u64) -> Document {
        let position = RecordPosition { epoch, record, ..RecordPosition::default() };
        Document { position, shard, ..Document::default() }
    }

    #[test]
    fn shares_are_within_a_thousandth() {
        const COUNT: u64 = 1 << 22;
        for (rate, spm_rate) in [(0.5, 0.5), (0.9, 0.1), (0.0, 0.5), (1.0, 1.0)] {
            let fill = FillInTheMiddle::new(7, rate, spm_rate, SENTINELS);
            let (mut cut, mut spm) = (0u64, 0u64);
            for record in 0..COUNT {
                if let Some(parts) = fill.parts("ab", &document(0, (record % 5) as u32, record)) {
                    cut += 1;
                    spm += u64::from(parts[1] == Part::Sentinel(SENTINELS.suffix));
                }
            }
            let share = cut as f64 / COUNT as f64;
            assert!((share - rate).abs() < 1e-3, "{share} of {rate}");
            assert!(cut == 0 || (spm as f64 / cut as f64 - spm_rate).abs() < 1e-3, "{spm} of {cut}");
        }
    }

    #[test]
    fn sections_are_those_of_the_text_cut_at_characters() {
        let fill = FillInTheMiddle::new(1, 1.0, 0.5, SENTINELS);
        let (first, last) = (Part::Sentinel(SENTINELS.prefix), Part::Sentinel(SENTINELS.middle));
        let (mut seen, text) = (std::collections::HashSet::new(), "aé\u{301}\u{1f600}\u{200d}b");
        for record in 0..2000 {
            let (prefix, middle, suffix) = match fill.parts(text, &document(0, 0, record)).unwrap() {
                [
                    a,
                    Part::Section(prefix),
                    Part::Sentinel(3),
                    Part::Section(suffix),
                    b,
                    Part::Section(middle),
                ]
                | [
                    a,
                    Part::Sentinel(3),
                    Part::Section(suffix),
                    b,
                    Part::Section(prefix),
                    Part::Section(middle),
                ] => {
                    assert_eq!((a, b), (first, last));
                    (prefix, middle, suffix)
                }
                other => panic!("{other:?}"),
            };
            assert_eq!([prefix, middle, suffix].concat(), text);
            seen.insert((prefix.len(), middle.len()));
        }
        assert_eq!(seen.len(), 28, "all pairs of the seven places before, between and after six characters");
    }

    #[test]
    fn draws_differ_with_seed_epoch_shard_and_record() {
        let text = "abcdefghijklmnopqrstuvwxyz".repeat(100);
        let parts = |seed, epoch, shard, record| {
            FillInTheMiddle::new(seed, 1.0, 0.5, SENTINELS).parts(&text, &document(epoch, shard, record))
        };
        let one = parts(1, 2, 3, 4);
        assert_eq!(one, parts(1, 2, 3, 4));
        for other in [parts(0, 2, 3, 4), parts(1, 0, 3, 4), parts(1, 2, 0, 4), parts(1, 2, 3, 0)] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn empty_text_stays_and_one_character_is_cut_around() {
        let fill = FillInTheMiddle::new(1, 1.0, 0.0, SENTINELS);
        assert_eq!(fill.parts("", &document(0, 0, 0)), None);
        let sections = |record| match fill.parts("é", &document(0, 0, record)).unwrap() {
            [_, Part::Section(prefix), _, Part::Section(suffix), _, Part::Section(middle)] => {
                [prefix, suffix, middle]
            }
            other => panic!("{other:?}"),
        };
        let seen: std::collections::HashSet<_> = (0..100).map(sections).collect();
        assert_eq!(seen.len(), 3, "{seen:?}");
    }
}
