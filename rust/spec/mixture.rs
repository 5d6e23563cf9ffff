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
//!
//! Where weights count tokens or samples, which the rows differ in, each row of a lane is of the source that is furthest
//! behind its share there. The lanes begin at different points of the sequence that this makes of equal rows, lane k after
//! as many rows as the lanes before it have in a step: so the rows of a batch are about successive ones of it.

use std::collections::HashMap;
use std::sync::Arc;

use super::fields::FieldSpec;
use super::{SourceSpec, StreamSpec};
use crate::error::{Error, Result};
use crate::image::ImageRows;
use crate::lane::cursor::Cursor;
use crate::random::hash;
use crate::state::Position;

/// 2^64 divided by the golden ratio.
const PHI: u64 = 0x9E37_79B9_7F4A_7C15;

/// How sources are mixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixing {
    /// Rows of a step, over all lanes.
    pub rows: u64,
    /// A hash of the seed.
    pub offset: u64,
    /// The weights, from step to step. The first stage begins at step 0.
    pub stages: Vec<Stage>,
    /// The unit of weights.
    pub unit: Unit,
    /// The number of these units in a full row: the most tokens, or one sample.
    pub row_units: u64,
    /// The rule for a source that has delivered its last epoch.
    pub on_exhausted: OnExhausted,
}

/// The unit of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Rows, over all lanes.
    Rows,
    /// Tokens that are not padding, in each lane.
    Tokens,
    /// Samples whose last token was delivered, in each lane.
    Samples,
}

/// Weights from a step on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The first step.
    pub step: u64,
    /// The weight of each source. Their sum is not 0, and below 2^63.
    pub weights: Vec<u64>,
}

/// The rule for a source that has delivered its last epoch in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExhausted {
    /// The others share its rows by their weights.
    Continue,
    /// The lane ends.
    Stop,
    /// It stops the run once another row of the source is due.
    Error,
}

/// The number of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowNumber {
    /// Its step.
    pub step: u64,
    /// The index in the step of its lane's first row.
    pub first: u64,
    /// Its index among the lane's rows.
    pub row: u64,
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

impl StreamSpec {
    /// Whether samples of some source say which of their tokens are trained on.
    pub fn has_mask(&self) -> bool {
        self.sources.iter().any(|source| source.prepare.has_mask())
    }

    /// The fields that travel with tokens or samples, of all sources.
    pub fn fields(&self) -> &[FieldSpec] {
        &self.sources[0].fields.all
    }

    /// Whether samples of some source are pairs.
    pub fn has_pairs(&self) -> bool {
        self.sources.iter().any(|source| source.prepare.segments() > 1)
    }

    /// Whether a record of some source may become several samples.
    pub fn makes_several(&self) -> bool {
        self.sources.iter().any(|source| source.prepare.makes_several())
    }

    /// Whether rows of some source may be left out because they train nothing.
    pub fn leaves_out_rows(&self) -> bool {
        self.sources.iter().any(|source| source.leaves_out_rows())
    }

    /// The arrays that rows hold of images, if samples of some source have any. All such sources agree on it.
    pub fn image_rows(&self) -> Option<&ImageRows> {
        self.sources.iter().find_map(|source| source.prepare.image_rows())
    }

    /// The unit of weights.
    pub fn unit(&self) -> Unit {
        self.mixing.as_ref().map_or(Unit::Rows, |mixing| mixing.unit)
    }

    /// The index of the stage of a step.
    pub fn stage(&self, step: u64) -> usize {
        self.mixing.as_ref().map_or(0, |mixing| mixing.stage(step))
    }

    /// The source of a row, in a lane where some sources have `ended`, and which has had `in_stage` of each in the stage of
    /// that step, as [`Unit`] counts.
    pub fn turn(&self, row: RowNumber, ended: &[bool], in_stage: impl Fn(usize) -> u64) -> Turn {
        match &self.mixing {
            None if ended[0] => Turn::Ended,
            None => Turn::Source(0),
            Some(mixing) => mixing.turn(row, ended, in_stage, |source| &self.sources[source].name),
        }
    }

    /// Whether each source has delivered its last epoch at these cursors of a lane.
    pub fn ended(&self, cursors: &[Cursor]) -> Vec<bool> {
        let has_ended =
            |(source, cursor): (&Arc<SourceSpec>, &Cursor)| source.epochs == Some(cursor.window.epoch);
        self.sources.iter().zip(cursors).map(has_ended).collect()
    }

    /// Whether these cursors are of a run whose windows are all large.
    pub fn has_large_windows<'a>(&self, cursors: impl IntoIterator<Item = &'a (String, Position)>) -> bool {
        let has_windows =
            |name: &str| self.sources.iter().any(|source| source.name == name && source.window().is_some());
        cursors.into_iter().any(|(name, (cursor, _))| cursor.has_large_windows() && has_windows(name))
    }

    /// A lane's cursors by the names of their sources, in the order of the sources; the start where there is none.
    pub fn order(
        &self,
        lane: usize,
        cursors: Vec<(String, Position)>,
        has_large_windows: bool,
    ) -> Result<Vec<Position>> {
        let mut named: HashMap<String, Position> = cursors.into_iter().collect();
        let position = |source: &Arc<SourceSpec>| {
            named.remove(&source.name).unwrap_or_else(|| (Cursor::start(source, has_large_windows), None))
        };
        let ordered = self.sources.iter().map(position).collect();
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
    fn turn<'a>(
        &self,
        row: RowNumber,
        ended: &[bool],
        in_stage: impl Fn(usize) -> u64,
        name: impl Fn(usize) -> &'a str,
    ) -> Turn {
        let first_ended = ended.iter().position(|ended| *ended);
        if self.on_exhausted == OnExhausted::Stop && first_ended.is_some() {
            return Turn::Ended;
        }
        let RowNumber { step, first, row } = row;
        let stage = self.stage(step);
        let weights = &self.stages[stage].weights;
        let next = |takes_part: &dyn Fn(usize) -> bool| match self.unit {
            Unit::Rows => holder(self.point(step, first + row), weights, takes_part),
            Unit::Tokens | Unit::Samples => {
                furthest_behind(weights, self.row_units, first, &in_stage, takes_part)
            }
        };
        if self.on_exhausted == OnExhausted::Error {
            return match next(&|_| true) {
                Some(source) if ended[source] => Turn::Failed(format!(
                    "the source {:?} is exhausted, and step {step} needs another row of it: raise its epochs=, set its weight \
                     to 0 from a step before this one on, or use on_exhausted=\"continue\" or \"stop\"",
                    name(source)
                )),
                Some(source) => Turn::Source(source),
                None => Turn::Ended,
            };
        }
        if let Some(source) = next(&|source| !ended[source]) {
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

    /// The offset of a seed.
    pub fn offset(seed: Option<u64>) -> u64 {
        seed.map_or(0, |seed| hash([seed]) << 2)
    }

    /// The sources of the rows of a step that are not divided into lanes, where so many rows are `left` of each source, or
    /// any number; -1 where none has any. An error says that the rows cannot continue.
    pub fn batch(&self, step: u64, mut left: Vec<Option<u64>>, names: &[String]) -> Result<Vec<i32>> {
        let mut found = Vec::with_capacity(self.rows as usize);
        let mut ended: Vec<bool> = left.iter().map(|left| *left == Some(0)).collect();
        for row in 0..self.rows {
            match self.turn(RowNumber { step, first: 0, row }, &ended, |_| 0, |source| &names[source]) {
                Turn::Source(source) => {
                    found.push(source as i32);
                    left[source] = left[source].map(|left| left - 1);
                    ended[source] = left[source] == Some(0);
                }
                Turn::Ended => found.push(-1),
                Turn::Failed(reason) => return Err(Error::Argument(reason)),
            }
        }
        Ok(found)
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

/// The source that is furthest behind its share of all that those that take part will have with one more row, the first
/// among equals. The lane began as if the rows of the lanes before it were its own, each with `row_units`.
fn furthest_behind(
    weights: &[u64],
    row_units: u64,
    rows_before: u64,
    in_stage: impl Fn(usize) -> u64,
    takes_part: impl Fn(usize) -> bool,
) -> Option<usize> {
    let rows = divided(rows_before, weights);
    let had: Vec<i128> = rows
        .iter()
        .enumerate()
        .map(|(source, rows)| i128::from(in_stage(source)) + rows * i128::from(row_units))
        .collect();
    let taking_part = || (0..weights.len()).filter(|source| weights[*source] > 0 && takes_part(*source));
    let sum: i128 = taking_part().map(|source| i128::from(weights[source])).sum();
    let all = taking_part().map(|source| had[source]).sum::<i128>() + i128::from(row_units);
    // `max_by_key` takes the last one of equals.
    taking_part().rev().max_by_key(|source| i128::from(weights[*source]) * all - sum * had[*source])
}

/// So many rows divided by weights, each part rounded so that they add up.
fn divided(rows: u64, weights: &[u64]) -> Vec<i128> {
    let sum: u128 = weights.iter().copied().map(u128::from).sum();
    let mut before = 0;
    let border = |weight: u128| ((weight * u128::from(rows) + sum / 2) / sum) as i128;
    let part = |weight: &u64| {
        let start = border(before);
        before += u128::from(*weight);
        border(before) - start
    };
    weights.iter().map(part).collect()
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
        Mixing { rows, offset: 12345 << 32, stages, unit: Unit::Rows, row_units: 0, on_exhausted }
    }

    fn turn(mixing: &Mixing, step: u64, row: u64, ended: &[bool]) -> Turn {
        mixing.turn(RowNumber { step, first: 0, row }, ended, |_| 0, |_| "s")
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

    /// Plays lanes whose rows have the tokens or samples that `units` says, of a source and a random number. Says how many
    /// full rows a lane was off its shares at most, its begin included, and so the steps and the whole run.
    fn play(weights: &[u64], lanes: u64, rows: u64, units: impl Fn(usize, u64) -> u64) -> (f64, f64, f64) {
        const FULL: u64 = 100;
        let sources = weights.len();
        let mut mixing = mixing(lanes * rows, weights, OnExhausted::Continue);
        (mixing.unit, mixing.row_units) = (Unit::Tokens, FULL);
        let sum = weights.iter().sum::<u64>() as f64;
        let off = |counts: &[f64]| {
            let all: f64 = counts.iter().sum();
            let pairs = counts.iter().zip(weights);
            pairs.map(|(count, weight)| (count - *weight as f64 / sum * all).abs()).fold(0.0, f64::max)
                / FULL as f64
        };
        let mut counts = vec![vec![0u64; sources]; lanes as usize];
        let (mut of_lane, mut of_step) = (0f64, 0f64);
        for step in 0..10_000 {
            let mut in_step = vec![0f64; sources];
            for lane in 0..lanes {
                let begin = divided(lane * rows, weights);
                let had = &mut counts[lane as usize];
                for row in 0..rows {
                    let number = RowNumber { step, first: lane * rows, row };
                    let turn = mixing.turn(number, &vec![false; sources], |source| had[source], |_| "s");
                    let Turn::Source(source) = turn else { panic!("no source") };
                    let found = units(source, crate::random::hash([step, lane, row]));
                    had[source] += found;
                    in_step[source] += found as f64;
                }
                let all: Vec<f64> = had
                    .iter()
                    .zip(&begin)
                    .map(|(had, rows)| *had as f64 + *rows as f64 * FULL as f64)
                    .collect();
                of_lane = of_lane.max(off(&all));
            }
            of_step = of_step.max(off(&in_step));
        }
        let totals: Vec<f64> =
            (0..sources).map(|source| counts.iter().map(|had| had[source] as f64).sum()).collect();
        let all: f64 = totals.iter().sum();
        (of_lane, of_step, off(&totals) * FULL as f64 / all)
    }

    #[test]
    fn lanes_are_at_most_one_row_off_in_tokens() {
        let many: Vec<u64> = [900].into_iter().chain([5; 20]).collect();
        for weights in [vec![60, 25, 15], vec![50, 25, 15, 7, 3], vec![1, 1], many] {
            // Rows are full, as in `concat`: a batch is hardly more than one row off, but for many small sources.
            let (lane, step, run) = play(&weights, 8, 4, |_, _| 100);
            let most = if weights.len() > 5 { 4.0 } else { 1.5 };
            assert!(lane <= 1.0 && step <= most && run < 1e-4, "{weights:?}: {lane} {step} {run}");
            // Sources have rows of other lengths, as in `pad`.
            let (lane, _, run) = play(&weights, 8, 4, |source, random| 1 + random % [5, 100, 40][source % 3]);
            assert!(lane <= 1.0 && run < 5e-4, "{weights:?}: {lane} {run}");
        }
    }

    #[test]
    fn first_lane_takes_equal_samples_as_a_blend_of_energon_does() {
        for weights in [vec![5, 2, 1], vec![50, 25, 15, 7, 3], vec![7, 7, 1]] {
            let mut mixing = mixing(2, &weights, OnExhausted::Continue);
            (mixing.unit, mixing.row_units) = (Unit::Samples, 1);
            let sum: u64 = weights.iter().sum();
            let mut had = vec![0u64; weights.len()];
            for number in 0..1000 {
                let lacks =
                    |source: usize| ((number + 1) * weights[source]) as i64 - (sum * had[source]) as i64;
                let most = (0..weights.len()).map(lacks).max();
                let expected = (0..weights.len()).find(|source| Some(lacks(*source)) == most).unwrap();
                let number = RowNumber { step: number, first: 0, row: 0 };
                let turn = mixing.turn(number, &[false; 5], |source| had[source], |_| "s");
                assert_eq!(turn, Turn::Source(expected));
                had[expected] += 1;
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
