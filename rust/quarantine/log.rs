//! Quarantined records: their number, and the newest of them in detail.

use std::collections::VecDeque;

use crate::error::ShardError;
use crate::format::AfterError;

/// How many records are kept in detail of those that are counted together: there may be millions of bad lines between
/// two valid documents. A lane may hold so many for each block read ahead and each batch prepared. The file of
/// `quarantine_file` holds all of them.
const NEWEST: usize = 1000;

/// How many records were quarantined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuarantineCounts {
    /// Entries: bad records, and one for each shard that could not be read to its end.
    pub records: u64,
    /// Entries that lost the rest of a shard.
    pub shards: u64,
}

/// The counts of one entry.
impl From<AfterError> for QuarantineCounts {
    fn from(rest: AfterError) -> Self {
        Self { records: 1, shards: u64::from(rest == AfterError::Lost) }
    }
}

impl std::ops::AddAssign for QuarantineCounts {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.shards += other.shards;
    }
}

impl std::ops::SubAssign for QuarantineCounts {
    fn sub_assign(&mut self, other: Self) {
        self.records -= other.records;
        self.shards -= other.shards;
    }
}

/// Quarantined records in stream order, in bounded memory.
#[derive(Debug, Default)]
pub struct QuarantineLog {
    count: QuarantineCounts,
    /// The last of them.
    newest: VecDeque<ShardError>,
}

impl QuarantineLog {
    /// How many there are.
    pub fn count(&self) -> QuarantineCounts {
        self.count
    }

    /// Adds one.
    pub fn push(&mut self, error: ShardError, rest: AfterError) {
        self.count += QuarantineCounts::from(rest);
        self.newest.push_back(error);
        self.forget_oldest();
    }

    /// Appends all of `other`, whose memory is freed.
    pub fn append(&mut self, mut other: Self) {
        self.count += other.count;
        self.newest.append(&mut other.newest);
        self.forget_oldest();
    }

    /// Takes the first `count`. The details of all of them may already be forgotten.
    #[must_use]
    pub fn take_first(&mut self, count: QuarantineCounts) -> Self {
        let forgotten = self.count.records as usize - self.newest.len();
        let newest = self.newest.drain(..(count.records as usize).saturating_sub(forgotten)).collect();
        self.count -= count;
        Self { count, newest }
    }

    /// The details that are still known.
    pub fn into_newest(self) -> Vec<ShardError> {
        self.newest.into()
    }

    fn forget_oldest(&mut self) {
        self.newest.drain(..self.newest.len().saturating_sub(NEWEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(numbers: std::ops::Range<u64>) -> QuarantineLog {
        let mut all = QuarantineLog::default();
        for number in numbers {
            let error =
                ShardError { shard: "s".into(), record: Some(number), byte: None, reason: String::new() };
            all.push(error, if number % 10 == 0 { AfterError::Lost } else { AfterError::Readable });
        }
        all
    }

    fn records(entries: QuarantineLog) -> Vec<u64> {
        entries.into_newest().into_iter().filter_map(|entry| entry.record).collect()
    }

    #[test]
    fn oldest_records_are_taken_first() {
        let mut all = entries(0..5);
        all.append(entries(5..12));
        let first = all.take_first(QuarantineCounts { records: 7, shards: 1 });
        assert_eq!(first.count(), QuarantineCounts { records: 7, shards: 1 });
        assert_eq!(all.count(), QuarantineCounts { records: 5, shards: 1 });
        assert_eq!((records(first), records(all)), ((0..7).collect(), (7..12).collect()));
    }

    #[test]
    fn details_of_old_records_are_dropped() {
        let many = NEWEST as u64 + 50;
        let mut all = entries(0..many);
        assert_eq!(all.count(), QuarantineCounts { records: many, shards: many.div_ceil(10) });
        // The log forgets 50 of the first 60.
        let first = all.take_first(QuarantineCounts { records: 60, shards: 6 });
        assert_eq!(records(first), (50..60).collect::<Vec<_>>());
        assert_eq!(records(all), (60..many).collect::<Vec<_>>());
    }
}
