//! The quarantined records of delivered batches: their number, and the newest of them in detail.

use std::collections::VecDeque;

use crate::error::ShardError;

/// The most that are kept in detail: a few megabytes.
pub const MOST_LISTED: usize = 10_000;

/// The records quarantined since the iterator was created or restored, as far as delivered.
#[derive(Default)]
pub struct DeliveredLog {
    newest: VecDeque<ShardError>,
    /// How many were added, including those no longer kept.
    count: u64,
}

impl DeliveredLog {
    /// Adds the records that belong to the batch just delivered.
    pub fn add(&mut self, entries: impl IntoIterator<Item = ShardError>) {
        let before = self.newest.len();
        self.newest.extend(entries);
        self.count += (self.newest.len() - before) as u64;
        self.newest.drain(..self.newest.len().saturating_sub(MOST_LISTED));
    }

    /// Removes the records added since there were `count`: their batch will be delivered again.
    pub fn take_back(&mut self, count: u64) {
        let added = (self.count - count) as usize;
        self.newest.truncate(self.newest.len().saturating_sub(added));
        self.count = count;
    }

    /// How many were added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The errors added since there were `from` and until there were `to`, in order; only the newest are kept.
    pub fn between(&self, from: u64, to: u64) -> impl Iterator<Item = &ShardError> {
        let kept = self.newest.len();
        let index = |count| kept.saturating_sub(self.count.saturating_sub(count) as usize);
        self.newest.range(index(from).min(index(to))..index(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(records: std::ops::Range<usize>) -> Vec<ShardError> {
        let entry = |record| ShardError {
            shard: "a".into(),
            record: Some(record as u64),
            byte: Some(0),
            reason: String::new(),
        };
        records.map(entry).collect()
    }

    fn records(quarantined: &DeliveredLog, from: u64) -> Vec<u64> {
        quarantined.between(from, quarantined.count()).filter_map(|entry| entry.record).collect()
    }

    #[test]
    fn records_added_since_a_count_are_listed_and_taken_back() {
        let mut quarantined = DeliveredLog::default();
        quarantined.add(entries(0..3));
        let count = quarantined.count();
        quarantined.add(entries(3..5));
        assert_eq!((count, quarantined.count()), (3, 5));
        assert_eq!(records(&quarantined, count), [3, 4]);
        let first: Vec<_> = quarantined.between(1, count).filter_map(|entry| entry.record).collect();
        assert_eq!(first, [1, 2]);
        quarantined.take_back(count);
        assert_eq!((records(&quarantined, 0), records(&quarantined, count)), (vec![0, 1, 2], vec![]));
    }

    #[test]
    fn newest_records_are_kept() {
        let mut quarantined = DeliveredLog::default();
        quarantined.add(entries(0..MOST_LISTED + 2));
        assert_eq!(quarantined.count(), MOST_LISTED as u64 + 2);
        assert_eq!(records(&quarantined, 0), (2..MOST_LISTED as u64 + 2).collect::<Vec<_>>());
        assert_eq!(records(&quarantined, quarantined.count() - 1), [MOST_LISTED as u64 + 1]);
    }
}
