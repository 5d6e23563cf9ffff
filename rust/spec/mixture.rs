//! The sources of a stream, and the rule that says from which of them a row comes.
//!
//! ```text
//! u(t, r) = t·phi + (m·r mod B)/B + hash(seed)   in 1/2^64, wrapping around
//!
//! 0        u                                 1   row r of step t is of the source whose share holds u
//! |--- code ---|------------ web ------------|
//! ```
//!
//! The rows of a batch are spread evenly over the circle, since `m` is coprime to their number B: so each source gets its
//! share of them, rounded down or up. Steps turn the circle by the golden ratio, which spreads any number of successive
//! steps nearly evenly. The rule needs no state, so any row of any step can be computed alone.

use std::collections::HashMap;
use std::sync::Arc;

use super::StreamSpec;
use crate::error::{Error, Result};
use crate::lane::cursor::Cursor;

/// 2^64 divided by the golden ratio.
const PHI: u64 = 0x9E37_79B9_7F4A_7C15;

/// What the rows of a stream are made of.
#[derive(Clone)]
pub struct Mixture {
    /// The sources, in the order of their names; one without a name if nothing is mixed.
    pub sources: Vec<Source>,
    /// How they are mixed; none if there is only one.
    pub mixing: Option<Mixing>,
}

/// Shards that are read in one way.
#[derive(Clone)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// Its index in the order in which the user has listed the sources.
    pub number: i32,
    /// The index of its first piece among those of all sources.
    pub first_piece: u32,
    /// The name of its stream in a quarantine file; empty: that of the whole.
    pub log_name: String,
    /// How its rows are made. All sources have the same lanes and the same kind of rows.
    pub stream: Arc<StreamSpec>,
}

/// How sources are mixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixing {
    /// Rows of a step, over all lanes.
    pub rows: u64,
    /// A hash of the seed.
    pub offset: u64,
    /// The weights, from step to step. The first stage begins at step 0.
    pub stages: Vec<Stage>,
    /// What happens when a source has delivered its last epoch.
    pub on_exhausted: OnExhausted,
}

/// Weights from a step on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The first step.
    pub step: u64,
    /// The weight of each source. Their sum is not 0, and below 2^63.
    pub weights: Vec<u64>,
}

/// What happens when a source has delivered its last epoch in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExhausted {
    /// The others share its rows by their weights.
    Continue,
    /// The lane ends.
    Stop,
    /// It stops the run once another row of the source is due.
    Error,
}

/// The source of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Its index.
    Source(usize),
    /// None: the lane has ended.
    Ended,
    /// The stream cannot continue, and why.
    Failed(String),
}

impl From<Arc<StreamSpec>> for Mixture {
    fn from(stream: Arc<StreamSpec>) -> Self {
        let source =
            Source { name: String::new(), number: 0, first_piece: 0, log_name: String::new(), stream };
        Self { sources: vec![source], mixing: None }
    }
}

impl Mixture {
    /// The kind of rows that all sources share.
    pub fn rows(&self) -> &StreamSpec {
        &self.sources[0].stream
    }

    /// Whether samples of some source say which of their tokens are trained on.
    pub fn has_mask(&self) -> bool {
        self.sources.iter().any(|source| source.stream.prepare.has_mask())
    }

    /// The source of row `row` of step `step`, in a lane where some sources have `ended`.
    pub fn turn(&self, step: u64, row: usize, ended: &[bool]) -> Turn {
        match &self.mixing {
            None if ended[0] => Turn::Ended,
            None => Turn::Source(0),
            Some(mixing) => mixing.turn(step, row as u64, ended, |source| &self.sources[source].name),
        }
    }

    /// Which sources have delivered their last epoch at these cursors of a lane.
    pub fn ended(&self, cursors: &[Cursor]) -> Vec<bool> {
        let has_ended =
            |(source, cursor): (&Source, &Cursor)| source.stream.epochs == Some(cursor.window.epoch);
        self.sources.iter().zip(cursors).map(has_ended).collect()
    }

    /// A lane's cursors by the names of their sources, in the order of the sources; zeros where there is none.
    pub fn order(&self, lane: usize, cursors: Vec<(String, Cursor)>) -> Result<Vec<Cursor>> {
        let mut named: HashMap<String, Cursor> = cursors.into_iter().collect();
        let ordered =
            self.sources.iter().map(|source| named.remove(&source.name).unwrap_or_default()).collect();
        match named.keys().min() {
            None => Ok(ordered),
            Some(name) if self.mixing.is_none() || name.is_empty() => Err(Error::State(format!(
                "the state of lane {lane} does not fit: a state of a mixture names its sources, and another one does not"
            ))),
            Some(name) => Err(Error::State(format!(
                "the state of lane {lane} does not fit: it has read the source {name:?}, which this mixture lacks; keep it, \
                 with the weight 0 from now on"
            ))),
        }
    }
}

impl Mixing {
    fn turn<'a>(&self, step: u64, row: u64, ended: &[bool], name: impl Fn(usize) -> &'a str) -> Turn {
        let first_ended = ended.iter().position(|ended| *ended);
        if self.on_exhausted == OnExhausted::Stop && first_ended.is_some() {
            return Turn::Ended;
        }
        let stage = self.stage(step);
        let weights = &self.stages[stage].weights;
        let at = self.point(step, row);
        if self.on_exhausted == OnExhausted::Error {
            return match holder(at, weights, |_| true) {
                Some(source) if ended[source] => Turn::Failed(format!(
                    "the source {:?} is exhausted, and step {step} needs another row of it: raise its epochs=, set its weight \
                     to 0 from a step before this one on, or use on_exhausted=\"continue\" or \"stop\"",
                    name(source)
                )),
                Some(source) => Turn::Source(source),
                None => Turn::Ended,
            };
        }
        if let Some(source) = holder(at, weights, |source| !ended[source]) {
            return Turn::Source(source);
        }
        let revives =
            |stage: &&Stage| stage.weights.iter().zip(ended).any(|(weight, ended)| *weight > 0 && !ended);
        match self.stages[stage + 1..].iter().find(revives) {
            None => Turn::Ended,
            Some(later) => Turn::Failed(format!(
                "every source with a weight at step {step} is exhausted, and the stage that has others begins at step {}: raise \
                 epochs=, or begin that stage at step {step} or before",
                later.step
            )),
        }
    }

    /// The share of a source at a step, from 0 to 1, whether it is exhausted or not.
    pub fn share(&self, step: u64, source: usize) -> f64 {
        self.stages[self.stage(step)].share(source)
    }

    /// The share of a source in all rows of the first `steps` steps, from 0 to 1; without steps that of the first one.
    pub fn mean_share(&self, steps: u64, source: usize) -> f64 {
        if steps == 0 {
            return self.share(0, source);
        }
        let ends = self.stages.iter().skip(1).map(|stage| stage.step).chain([u64::MAX]);
        let of_stage = |(stage, end): (&Stage, u64)| {
            stage.share(source) * end.min(steps).saturating_sub(stage.step) as f64
        };
        self.stages.iter().zip(ends).map(of_stage).sum::<f64>() / steps as f64
    }

    fn stage(&self, step: u64) -> usize {
        self.stages.partition_point(|stage| stage.step <= step).saturating_sub(1)
    }

    /// The point of a row on the circle, in 1/2^64 of it.
    fn point(&self, step: u64, row: u64) -> u64 {
        let rows = u128::from(self.rows);
        let spread = u128::from(multiplier(self.rows)) * u128::from(row) % rows;
        let in_batch = ((spread << 64) / rows) as u64;
        step.wrapping_mul(PHI).wrapping_add(in_batch).wrapping_add(self.offset)
    }
}

impl Stage {
    fn share(&self, source: usize) -> f64 {
        self.weights[source] as f64 / self.weights.iter().sum::<u64>() as f64
    }
}

/// The source whose share holds a point, of those that take part.
fn holder(at: u64, weights: &[u64], takes_part: impl Fn(usize) -> bool) -> Option<usize> {
    let taking_part = || weights.iter().enumerate().filter(|(source, _)| takes_part(*source));
    let sum: u64 = taking_part().map(|(_, weight)| weight).sum();
    let mut left = ((u128::from(at) * u128::from(sum)) >> 64) as u64;
    for (source, weight) in taking_part() {
        if left < *weight {
            return Some(source);
        }
        left -= weight;
    }
    None
}

/// The smallest number from `rows` divided by the golden ratio on that is coprime to `rows`: successive rows are then far
/// apart on the circle, so that a lane, whose rows are successive, gets some of each source.
fn multiplier(rows: u64) -> u64 {
    let first = ((u128::from(rows) * u128::from(PHI)) >> 64) as u64;
    (first.max(1)..=rows).find(|number| gcd(*number, rows) == 1).unwrap_or(1)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixing(rows: u64, weights: &[u64], on_exhausted: OnExhausted) -> Mixing {
        let stages = vec![Stage { step: 0, weights: weights.to_vec() }];
        Mixing { rows, offset: 12345 << 32, stages, on_exhausted }
    }

    fn turn(mixing: &Mixing, step: u64, row: u64, ended: &[bool]) -> Turn {
        mixing.turn(step, row, ended, |_| "s")
    }

    /// The rule that is documented, on real numbers.
    fn in_words(mixing: &Mixing, step: u64, row: u64) -> (usize, f64) {
        let rows = mixing.rows as f64;
        let spread = (multiplier(mixing.rows) * row % mixing.rows) as f64 / rows;
        let phi = (5f64.sqrt() - 1.0) / 2.0;
        let u = (step as f64 * phi + spread + mixing.offset as f64 / 2f64.powi(64)).fract();
        let weights = &mixing.stages[0].weights;
        let sum: f64 = weights.iter().sum::<u64>() as f64;
        let ends: Vec<f64> = weights
            .iter()
            .scan(0.0, |end, weight| {
                *end += *weight as f64 / sum;
                Some(*end)
            })
            .collect();
        let margin = ends.iter().map(|end| (u - end).abs()).fold(1.0, f64::min).min(u);
        (ends.iter().position(|end| u < *end).unwrap_or(ends.len() - 1), margin)
    }

    #[test]
    fn rows_come_from_the_source_of_the_documented_rule() {
        for rows in [1, 2, 6, 7, 64, 96, 1000] {
            let mixing = mixing(rows, &[5, 0, 25, 15, 55], OnExhausted::Continue);
            for step in (0..40).chain(100_000..100_010) {
                for row in 0..rows {
                    let (expected, margin) = in_words(&mixing, step, row);
                    if margin > 1e-9 {
                        assert_eq!(turn(&mixing, step, row, &[false; 5]), Turn::Source(expected));
                    }
                }
            }
        }
    }

    #[test]
    fn each_batch_has_its_share_but_for_one_row_and_a_run_but_for_few() {
        for (rows, weights) in [(512, vec![50, 25, 15, 7, 3]), (96, vec![97, 1, 1, 1]), (7, vec![2, 1])] {
            let mixing = mixing(rows, &weights, OnExhausted::Continue);
            let sum = weights.iter().sum::<u64>() as f64;
            let mut totals = vec![0u64; weights.len()];
            for step in 0..10_000 {
                let mut counts = vec![0u64; weights.len()];
                for row in 0..rows {
                    let Turn::Source(source) = turn(&mixing, step, row, &vec![false; weights.len()]) else {
                        panic!("no source")
                    };
                    counts[source] += 1;
                }
                for ((count, weight), total) in counts.iter().zip(&weights).zip(&mut totals) {
                    let off = *count as f64 - *weight as f64 / sum * rows as f64;
                    assert!(off.abs() <= 1.0, "step {step}: {off}");
                    *total += count;
                }
            }
            for (total, weight) in totals.iter().zip(&weights) {
                let all = (rows * 10_000) as f64;
                let off = *total as f64 / all - *weight as f64 / sum;
                assert!(off.abs() < 1e-4, "{rows}: {off}");
            }
        }
    }

    #[test]
    fn every_lane_gets_every_source() {
        // One row of each of 64 lanes, of which Grain's rule on the index of a row gives each lane one source.
        for rows_per_lane in [1, 8] {
            let mixing = mixing(64 * rows_per_lane, &[1, 1], OnExhausted::Continue);
            for lane in 0..64 {
                let mut first = 0;
                for step in 0..1000 {
                    for row in lane * rows_per_lane..(lane + 1) * rows_per_lane {
                        first += u64::from(turn(&mixing, step, row, &[false; 2]) == Turn::Source(0));
                    }
                }
                assert!(first.abs_diff(500 * rows_per_lane) < 12, "{first}");
            }
        }
    }

    #[test]
    fn others_share_the_rows_of_an_exhausted_source() {
        let whole = mixing(60, &[1, 2, 3], OnExhausted::Continue);
        let mut counts = [0; 3];
        for row in 0..60 {
            let Turn::Source(source) = turn(&whole, 7, row, &[false, true, false]) else {
                panic!("no source")
            };
            counts[source] += 1;
        }
        assert_eq!(counts, [15, 0, 45]);
        assert_eq!(turn(&whole, 7, 0, &[true; 3]), Turn::Ended);
        let stop = mixing(60, &[1, 2, 3], OnExhausted::Stop);
        assert_eq!(turn(&stop, 7, 0, &[false, true, false]), Turn::Ended);
        let error = mixing(60, &[1, 2, 3], OnExhausted::Error);
        let turns: Vec<Turn> = (0..60).map(|row| turn(&error, 7, row, &[false, true, false])).collect();
        assert_eq!(turns.iter().filter(|turn| matches!(turn, Turn::Failed(_))).count(), 20);
    }

    #[test]
    fn stages_begin_at_their_steps() {
        let mut mixing = mixing(4, &[1, 0], OnExhausted::Continue);
        mixing.stages.push(Stage { step: 10, weights: vec![0, 1] });
        assert_eq!(turn(&mixing, 9, 3, &[false; 2]), Turn::Source(0));
        assert_eq!(turn(&mixing, 10, 0, &[false; 2]), Turn::Source(1));
        assert!(matches!(turn(&mixing, 9, 3, &[true, false]), Turn::Failed(_)));
        assert_eq!(turn(&mixing, 10, 0, &[false, true]), Turn::Ended);
        assert!((mixing.mean_share(40, 0) - 0.25).abs() < 1e-12);
        assert!((mixing.mean_share(0, 0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn multiplier_is_coprime() {
        for rows in (1..200).chain([512, 1 << 20, 720_720]) {
            let number = multiplier(rows);
            assert_eq!(gcd(number, rows), 1);
            assert!(number < rows.max(2));
        }
    }
}
