//! The batches that were taken from the pipeline and may not have reached the consumer.
//!
//! ```text
//! taken      1   2   3   4            an interrupt between 4 and the consumer:
//! delivered  1   2                    3 and 4 come again, and a state saved now is that after 2
//! ```
//!
//! A consumer takes one batch or several, and says up to which number they have reached it. Batches taken beyond that
//! are not part of a saved state or of the statistics, and [`Pipeline::rewind`](super::Pipeline::rewind) returns to it.

use std::collections::VecDeque;

use super::Delivered;

/// A batch that can be taken back.
pub struct Batch {
    number: u64,
    /// The position before it.
    pub before: Delivered,
    /// How many records were quarantined before it.
    pub quarantined: u64,
}

/// The batches that the consumer took and has not yet reached, in order.
#[derive(Default)]
pub struct Undelivered {
    batches: VecDeque<Batch>,
    taken: u64,
}

impl Undelivered {
    /// The number of the last batch taken; the first is 1.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// Another batch was taken.
    pub fn add(&mut self, before: Delivered, quarantined: u64) {
        self.taken += 1;
        self.batches.push_back(Batch { number: self.taken, before, quarantined });
    }

    /// The batches up to `number` have reached the consumer.
    pub fn deliver(&mut self, number: u64) {
        while self.batches.front().is_some_and(|batch| batch.number <= number) {
            self.batches.pop_front();
        }
    }

    /// The first batch taken after `number`.
    pub fn after(&self, number: u64) -> Option<&Batch> {
        self.batches.iter().find(|batch| batch.number > number)
    }

    /// Forgets all batches; returns the first of them.
    pub fn clear(&mut self) -> Option<Batch> {
        self.batches.drain(..).next()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn at(step: u64) -> Delivered {
        Delivered {
            step,
            row: 0,
            cursors: Vec::new(),
            carried: Arc::default(),
            interval: 0,
            skipped_tokens: 0,
        }
    }

    fn step_after(undelivered: &Undelivered, number: u64) -> Option<u64> {
        undelivered.after(number).map(|batch| batch.before.step)
    }

    #[test]
    fn position_after_a_number_is_that_before_the_next_batch() {
        let mut undelivered = Undelivered::default();
        for step in 10..13 {
            undelivered.add(at(step), 0);
        }
        assert_eq!(
            (0..4).map(|number| step_after(&undelivered, number)).collect::<Vec<_>>(),
            [Some(10), Some(11), Some(12), None]
        );
    }

    #[test]
    fn delivered_batches_are_not_taken_back() {
        let mut undelivered = Undelivered::default();
        for step in 10..13 {
            undelivered.add(at(step), step);
        }
        undelivered.deliver(1);
        undelivered.deliver(1);
        let first = undelivered.clear().map(|batch| (batch.before.step, batch.quarantined));
        assert_eq!((first, undelivered.taken()), (Some((11, 11)), 3));
        assert!(undelivered.clear().is_none());
        undelivered.add(at(20), 0);
        undelivered.deliver(3);
        assert_eq!(step_after(&undelivered, 3), Some(20));
        undelivered.deliver(9);
        assert_eq!(step_after(&undelivered, 0), None);
    }
}
