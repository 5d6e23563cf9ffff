//! Statistics of a pipeline at a position of its stream.

use std::time::Duration;

use super::{Delivered, Pipeline};
use crate::lane::cursor::Totals;
use crate::spec::mixture::Unit;

/// Statistics of a pipeline.
pub struct Stats {
    /// Sums over the lanes since the start of the stream.
    pub totals: Totals,
    /// Rows delivered since the start of the stream, padding rows included.
    pub rows: u64,
    /// Elements of those rows that hold no token.
    pub padding_tokens: u64,
    /// Whole steps, skipped ones included.
    pub batches: u64,
    /// Steps that were not delivered.
    pub skipped_steps: u64,
    /// Tokens in these, since the pipeline was made or restored.
    pub skipped_tokens: u64,
    /// How long the consumer has waited for batches.
    pub waited: Duration,
    /// Full batches that can be taken without waiting.
    pub ready: usize,
    /// Time that workers have spent reading, encoding, packing and decoding images.
    pub busy: [Duration; 4],
    /// Documents that workers have compared with the reference and found equal.
    pub verified: u64,
    /// The statistics of each source of a mixture, in their order; else empty.
    pub sources: Vec<SourceStats>,
}

/// Statistics of a source.
pub struct SourceStats {
    /// Its name.
    pub name: String,
    /// Its index in the order in which the user has listed the sources.
    pub number: i32,
    /// Sums over the lanes since the start of the stream.
    pub totals: Totals,
    /// Its rows.
    pub rows: u64,
    /// How many epochs a lane has finished, on average.
    pub epochs: f64,
    /// Lanes in which it has delivered its last epoch.
    pub exhausted_lanes: usize,
    /// The share that its weights ask for up to here, on average over the steps, 0 to 1.
    pub asked: f64,
    /// The share that it has of what the weights count, 0 to 1.
    pub given: f64,
}

impl Pipeline {
    /// Statistics of this host's lanes, up to a step and row.
    pub fn stats(&self, place: &Delivered) -> Stats {
        let Delivered { step, row, skipped_tokens, .. } = place;
        let mut totals = Totals::default();
        for source in 0..self.stream.sources.len() {
            totals += self.totals_of(source, place);
        }
        // A saved state may hold any numbers.
        let (mut rows, mut elements) = (0_u64, 0_u64);
        for (index, (stream, _)) in self.intervals.iter().enumerate() {
            let until = stream.interval.until.unwrap_or(u64::MAX).min(*step);
            let steps = until.saturating_sub(stream.interval.first);
            let single = if index == self.interval_of(*step, *row) { *row as u64 } else { 0 };
            let own = steps.saturating_mul(self.host.lanes.len() as u64).saturating_add(single);
            let own = own.saturating_mul(stream.rows.rows_per_lane as u64);
            rows = rows.saturating_add(own);
            elements = elements.saturating_add(own.saturating_mul(stream.rows.sequence_length as u64));
        }
        Stats {
            totals,
            rows,
            padding_tokens: elements.saturating_sub(totals.tokens),
            batches: *step,
            skipped_steps: self.stream.skipped_before(*step),
            skipped_tokens: *skipped_tokens,
            waited: self.waited,
            ready: self.ready(),
            busy: self.busy.durations(),
            verified: self.busy.verified(),
            sources: self.source_stats(place),
        }
    }

    /// A source's counts in all lanes.
    fn totals_of(&self, source: usize, place: &Delivered) -> Totals {
        let mut totals = Totals::default();
        for cursors in place.cursors.chunks(self.stream.sources.len()) {
            totals += cursors[source].totals;
        }
        if !self.stream.sources[source].prepare.has_mask() {
            totals.trained = totals.tokens;
        }
        totals
    }

    fn source_stats(&self, place: &Delivered) -> Vec<SourceStats> {
        let Some(mixing) = &self.stream.mixing else { return Vec::new() };
        let place_stream = self.stream_of(place.interval);
        let sources = &self.stream.sources;
        let mut stats: Vec<_> = sources
            .iter()
            .enumerate()
            .map(|(index, source)| {
                let totals = self.totals_of(index, place);
                let of_lanes =
                    || place.cursors.chunks(sources.len()).map(|cursors| cursors[index].window.epoch);
                let epochs = of_lanes().fold(0.0, |sum, epoch| sum + epoch as f64);
                SourceStats {
                    name: source.name.clone(),
                    number: source.number,
                    totals,
                    rows: totals.earlier_rows.saturating_add(
                        totals.tokens.saturating_add(totals.padding).saturating_sub(totals.earlier_elements)
                            / place_stream.sources[index].rows.sequence_length as u64,
                    ),
                    epochs: epochs / self.host.lanes.len().max(1) as f64,
                    exhausted_lanes: of_lanes().filter(|epoch| Some(*epoch) == source.epochs).count(),
                    asked: mixing.mean_share(place.step, index),
                    given: 0.0,
                }
            })
            .collect();
        let counted = |source: &SourceStats| match mixing.unit {
            Unit::Rows => source.rows,
            Unit::Tokens => source.totals.tokens,
            Unit::Samples => source.totals.documents,
        };
        let all = stats.iter().fold(0, |sum: u64, source| sum.saturating_add(counted(source))).max(1);
        for source in &mut stats {
            source.given = counted(source) as f64 / all as f64;
        }
        stats
    }
}
