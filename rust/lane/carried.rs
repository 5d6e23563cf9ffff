//! Documents that a lane has delivered out of the window in which a border of the stream lies.
//!
//! At a border the rows, or the records that are left out, change. The rest of a lane's window is read again then, by the
//! new rules, and is the beginning of the next window. So the state says for each record of the window that was delivered,
//! all of it or in part, which of its tokens were:
//!
//! ```text
//! 3/15-18,20,22.1,25@0-128          shard 3 in the lane's order: records 15 to 18 and 20, sample 1 of record 22, and the
//!                                   first 128 tokens of record 25
//! ```
//!
//! Tokens are counted in the whole document, before truncation, since that may cut it elsewhere behind the border.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use super::cursor::RecordPosition;

/// A record of a lane: its shard in the lane's order, and its number there.
type Key = (u64, u64);

/// The delivered tokens of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// All of them.
    All,
    /// Some of them, as ranges of the whole document, in order and apart.
    Tokens(Vec<Range<usize>>),
}

/// The delivered documents of a window, all of one epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Carried {
    /// The epoch.
    pub epoch: u64,
    /// For each record None, if all of it was delivered, or else its samples.
    records: BTreeMap<Key, Option<BTreeMap<u64, Given>>>,
}

fn key(position: RecordPosition) -> Key {
    (position.shard, position.record)
}

impl Carried {
    /// Nothing of an epoch.
    pub fn new(epoch: u64) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether all of the record at a position was delivered.
    pub fn has_record(&self, position: RecordPosition) -> bool {
        position.epoch == self.epoch && matches!(self.records.get(&key(position)), Some(None))
    }

    /// The tokens of the sample at a position that were delivered.
    pub fn of_sample(&self, position: RecordPosition) -> Option<&Given> {
        let samples = self.records.get(&key(position)).filter(|_| position.epoch == self.epoch)?;
        samples.as_ref()?.get(&position.sample)
    }

    /// Adds a record all of which was delivered. Whether it is new.
    pub fn add_record(&mut self, position: RecordPosition) -> bool {
        self.records.insert(key(position), None) != Some(None)
    }

    /// Adds what was delivered of the sample at a position.
    pub fn add_sample(&mut self, position: RecordPosition, given: Given) {
        let samples = self.records.entry(key(position)).or_insert_with(|| Some(BTreeMap::new()));
        if let Some(samples) = samples {
            samples.insert(position.sample, given);
        }
    }

    /// The rest of it that matters from a position on: all of it, or nothing behind its last record.
    pub fn is_ahead_of(&self, position: RecordPosition) -> bool {
        let last = self.records.last_key_value().map(|(key, _)| *key);
        position.epoch == self.epoch && last.is_some_and(|last| last >= key(position))
    }

    /// The records from a position on.
    #[must_use]
    pub fn from(&self, position: RecordPosition) -> Self {
        if position.epoch != self.epoch {
            return Self::new(position.epoch);
        }
        let records = self.records.range(key(position)..).map(|(key, samples)| (*key, samples.clone()));
        Self { epoch: self.epoch, records: records.collect() }
    }

    /// It as text; the epoch is that of the cursor.
    pub fn write(&self) -> String {
        let mut text = String::new();
        let mut shard = None;
        let mut records = self.records.iter().peekable();
        while let Some((&(of, record), samples)) = records.next() {
            if !text.is_empty() {
                text.push(',');
            }
            if shard.replace(of) != Some(of) {
                push(&mut text, format_args!("{of}/"));
            }
            let Some(samples) = samples else {
                let mut last = record;
                while records.next_if(|(key, samples)| samples.is_none() && **key == (of, last + 1)).is_some()
                {
                    last += 1;
                }
                push(&mut text, format_args!("{record}"));
                if last > record {
                    push(&mut text, format_args!("-{last}"));
                }
                continue;
            };
            for (index, (sample, given)) in samples.iter().enumerate() {
                let comma = if index > 0 { "," } else { "" };
                push(&mut text, format_args!("{comma}{record}.{sample}"));
                if let Given::Tokens(ranges) = given {
                    for (index, Range { start, end }) in ranges.iter().enumerate() {
                        push(&mut text, format_args!("{}{start}-{end}", if index > 0 { '+' } else { '@' }));
                    }
                }
            }
        }
        text
    }

    /// It from its text, of this epoch; None if that is no such text.
    pub fn read(text: &str, epoch: u64) -> Option<Self> {
        let mut found = Self::new(epoch);
        let mut shard = None;
        for item in text.split(',') {
            let item = match item.split_once('/') {
                Some((of, item)) => {
                    shard = Some(number(of)?);
                    item
                }
                None => item,
            };
            let shard = shard?;
            let (name, ranges) =
                item.split_once('@').map_or((item, None), |(name, ranges)| (name, Some(ranges)));
            let at = |record, sample| RecordPosition { epoch, shard, record, byte: 0, sample };
            if let Some((record, sample)) = name.split_once('.') {
                let given = match ranges {
                    None => Given::All,
                    Some(ranges) => Given::Tokens(ranges.split('+').map(range).collect::<Option<_>>()?),
                };
                found.add_sample(at(number(record)?, number(sample)?), given);
                continue;
            }
            let (first, last) = name.split_once('-').unwrap_or((name, name));
            let (first, last) = (number(first)?, number(last)?);
            if ranges.is_some() || last < first || last - first > MOST_RECORDS {
                return None;
            }
            for record in first..=last {
                found.add_record(at(record, 0));
            }
        }
        (!found.is_empty()).then_some(found)
    }
}

/// A window has fewer records: a bound for texts from outside.
const MOST_RECORDS: u64 = 1 << 25;

fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("writing to a string cannot fail");
}

fn number(text: &str) -> Option<u64> {
    let is_plain = text == "0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    text.parse().ok().filter(|number| is_plain && *number <= super::cursor::LARGEST)
}

fn range(text: &str) -> Option<Range<usize>> {
    let (start, end) = text.split_once('-')?;
    let (start, end) = (number(start)? as usize, number(end)? as usize);
    (start < end).then_some(start..end)
}

/// The parts of ranges, in order and apart, that are in none of some others, likewise.
pub fn without(ranges: &[Range<usize>], others: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for range in ranges {
        let mut start = range.start;
        for other in others.iter().filter(|other| other.start < range.end && other.end > range.start) {
            if other.start > start {
                found.push(start..other.start);
            }
            start = start.max(other.end);
        }
        if start < range.end {
            found.push(start..range.end);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(shard: u64, record: u64, sample: u64) -> RecordPosition {
        RecordPosition { epoch: 5, shard, record, byte: 0, sample }
    }

    #[test]
    fn the_text_of_the_module_documentation() {
        let mut carried = Carried { epoch: 5, ..Carried::default() };
        for record in [15, 16, 17, 18, 20] {
            carried.add_record(at(3, record, 0));
        }
        carried.add_sample(at(3, 22, 1), Given::All);
        carried.add_sample(at(3, 25, 0), Given::Tokens(vec![0..128, 200..300]));
        carried.add_record(at(4, 0, 0));
        let text = "3/15-18,20,22.1,25.0@0-128+200-300,4/0";
        assert_eq!(carried.write(), text);
        assert_eq!(Carried::read(text, 5), Some(carried));
    }

    #[test]
    fn damaged_texts_are_refused() {
        for text in
            ["", "1", "1/", "1/2-1", "1/2@0-1", "1/2.0@1-1", "1/2.0@", "1/02", "1/+2", "1/1-99999999999"]
        {
            assert_eq!(Carried::read(text, 0), None, "{text}");
        }
    }

    #[test]
    fn records_before_a_position_are_forgotten() {
        let mut carried = Carried { epoch: 5, ..Carried::default() };
        carried.add_record(at(0, 3, 0));
        carried.add_record(at(1, 3, 0));
        assert!(carried.is_ahead_of(at(1, 3, 0)) && !carried.is_ahead_of(at(1, 4, 0)));
        assert_eq!(carried.from(at(0, 4, 0)).write(), "1/3");
        assert!(carried.from(RecordPosition { epoch: 6, ..at(0, 0, 0) }).is_empty());
    }

    #[allow(clippy::single_range_in_vec_init)]
    fn ranges_of(set: &[bool]) -> Vec<Range<usize>> {
        let missing = (0..set.len()).filter(|&index| !set[index]).map(|index| index..index + 1);
        without(&[0..set.len()], &missing.collect::<Vec<_>>())
    }

    proptest! {
        #[test]
        fn ranges_without_others(
            one in prop::collection::vec(any::<bool>(), 30),
            other in prop::collection::vec(any::<bool>(), 30),
        ) {
            let left = without(&ranges_of(&one), &ranges_of(&other));
            for index in 0..30 {
                prop_assert_eq!(left.iter().any(|range| range.contains(&index)), one[index] && !other[index]);
            }
        }
    }
}
