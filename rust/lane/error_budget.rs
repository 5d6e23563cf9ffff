//! How many bad records and lost shards a lane may have.

use std::sync::Arc;

use crate::error::{Error, Result, ShardError};
use crate::format::AfterError;
use crate::lane::cursor::{RecordPosition, Totals};
use crate::quarantine::log::QuarantineCounts;
use crate::spec::{OnError, SourceSpec};

/// Records after which a lane's share of bad ones is meaningful. A rate of 0 allows none of however many.
const RECORDS_TO_JUDGE: u64 = 100;

/// Counts a lane's quarantined records and lost shards, and stops the run once they exceed `max_error_rate`.
pub struct ErrorBudget {
    spec: Arc<SourceSpec>,
    lane: usize,
    records: u64,
    counts: QuarantineCounts,
    /// The last error since this was created.
    last: Option<ShardError>,
    /// The last error that did not lose the rest of a shard.
    last_record: Option<ShardError>,
}

impl ErrorBudget {
    /// The budget of a lane that has read and quarantined as many records as `totals` says.
    pub fn new(spec: Arc<SourceSpec>, lane: usize, totals: &Totals) -> Self {
        let counts = QuarantineCounts { records: totals.quarantined, shards: totals.lost_shards };
        Self { spec, lane, records: totals.records, counts, last: None, last_record: None }
    }

    /// The number of quarantined records and lost shards.
    pub fn counts(&self) -> QuarantineCounts {
        self.counts
    }

    /// The last error since this was created.
    pub fn last(&self) -> Option<&ShardError> {
        self.last.as_ref()
    }

    /// Counts valid records, filtered ones too: whether a record is bad is not a matter of the filter.
    pub fn add_valid(&mut self, records: u64) {
        self.records += records;
    }

    /// Counts a bad record at `position`, in a shard of the manifest. An error if that is one too many.
    pub fn add_bad(
        &mut self,
        error: &ShardError,
        after: AfterError,
        position: RecordPosition,
        shard: u32,
    ) -> Result<()> {
        self.records += 1;
        self.counts += QuarantineCounts::from(after);
        self.last = Some(error.clone());
        if after == AfterError::Lost {
            return self.stop_for(self.lost_shards(position.epoch), self.last.clone(), position, shard);
        }
        self.last_record = Some(error.clone());
        if self.records >= RECORDS_TO_JUDGE || self.tolerates_none() {
            return self.judge_records(position, shard);
        }
        Ok(())
    }

    /// An error if too many records are bad, however few there are: for the end of a shard.
    pub fn judge_records(&self, position: RecordPosition, shard: u32) -> Result<()> {
        self.stop_for(self.bad_records(), self.last_record.clone(), position, shard)
    }

    fn tolerates_none(&self) -> bool {
        matches!(self.spec.on_error, OnError::Quarantine { max_error_rate: 0.0 })
    }

    /// Says whether too many of the records are bad. Shards that end early are judged as shards: one at a lane's start
    /// would make up all of its records.
    fn bad_records(&self) -> Option<String> {
        let OnError::Quarantine { max_error_rate } = self.spec.on_error else { return None };
        let bad = self.counts.records - self.counts.shards;
        let (records, lane) = (self.records, self.lane);
        let is_fine = is_within(bad as f64, records as f64, max_error_rate);
        (!is_fine).then(|| {
            format!(
                "{bad} of the {records} records that lane {lane} has read so far are bad, more than \
                 max_error_rate={max_error_rate} allows"
            )
        })
    }

    /// Says whether too many of the shards cannot be read to their end. One in each epoch is tolerated at any rate but
    /// 0: the smallest possible number says nothing about a rate.
    ///
    /// The rate is applied to an average lane's shards: how many a lane has may vary from epoch to epoch, and the
    /// verdict must not depend on which epoch comes first.
    fn lost_shards(&self, epoch: u64) -> Option<String> {
        let OnError::Quarantine { max_error_rate } = self.spec.on_error else { return None };
        let (epochs, lost, lane) = (epoch + 1, self.counts.shards, self.lane);
        let (shards, lanes) = (self.spec.shards.len(), self.spec.plan.lanes());
        let of_lane = shards as f64 * epochs as f64 / lanes as f64;
        let always = if max_error_rate > 0.0 { epochs } else { 0 };
        // A lane may have more shards than the average.
        if lost <= always || is_within(lost as f64, of_lane, max_error_rate) || max_error_rate >= 1.0 {
            return None;
        }
        // As above, it must not be rounded down.
        let allowed = ((max_error_rate * of_lane + 1e-9) as u64).max(always);
        let has_pieces = self.spec.shards.iter().any(|shard| shard.piece.is_some());
        let noun = if has_pieces { "piece" } else { "shard" };
        let [lost, epochs, shards, lanes] =
            [(lost, noun), (epochs, "epoch"), (shards as u64, noun), (lanes as u64, "lane")]
                .map(|(number, noun)| counted(number, noun));
        Some(format!(
            "{lost} of lane {lane} could not be read to the end in {epochs} of {shards} in {lanes}: expected at most \
             {allowed} with max_error_rate={max_error_rate}"
        ))
    }

    /// The error names the last one that is too many; in a run restored behind that, the position of the lane.
    fn stop_for(
        &self,
        excess: Option<String>,
        last: Option<ShardError>,
        position: RecordPosition,
        shard: u32,
    ) -> Result<()> {
        let Some(what) = excess else { return Ok(()) };
        let named = last.as_ref().map(|error| format!("; the last one: {error}")).unwrap_or_default();
        let reason = format!(
            "{what}{named}. Resume from the last saved state, or with the same command, with a higher max_error_rate=; \
             or repair or remove these shards and start over"
        );
        Err(Error::Shard(match last {
            Some(error) => ShardError { reason, ..error },
            None => position.error(&self.spec.shards[shard as usize], reason),
        }))
    }
}

/// An error if more samples have images that cannot be decoded than the rate of bad records allows; `is_end`: however few
/// there are. They are found once the samples are delivered, so that they are counted apart from bad records.
pub fn judge_undecodable(
    spec: &SourceSpec,
    lane: usize,
    totals: &Totals,
    last: Option<&ShardError>,
    is_end: bool,
) -> Result<()> {
    let Totals { undecodable, documents, .. } = *totals;
    let OnError::Quarantine { max_error_rate } = spec.on_error else {
        return last.map_or(Ok(()), |error| Err(Error::Shard(error.clone())));
    };
    let can_judge = is_end || documents >= RECORDS_TO_JUDGE || max_error_rate == 0.0;
    if !can_judge || is_within(undecodable as f64, documents as f64, max_error_rate) {
        return Ok(());
    }
    let named = last.map(|error| format!("; the last one: {error}")).unwrap_or_default();
    let reason = format!(
        "{undecodable} of the {documents} samples that lane {lane} has delivered so far have an image that cannot be \
         decoded, more than max_error_rate={max_error_rate} allows{named}. Resume from the last saved state, or with the same \
         command, with a higher max_error_rate=; or remove these records and start over"
    );
    Err(match last {
        Some(error) => Error::Shard(ShardError { reason, ..error.clone() }),
        None => Error::Argument(reason),
    })
}

/// Whether a share is at most a rate. A quotient is rounded as the rate was: 29 of 100 are 0.29, and 0.29 of 100 are less
/// than 29.
fn is_within(part: f64, whole: f64, rate: f64) -> bool {
    part == 0.0 || part / whole <= rate
}

/// A number with its noun, in the plural where that is right.
pub fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
