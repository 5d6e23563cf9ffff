//! The shards of one lane.

use std::sync::Arc;

use super::cursor::Place;
use crate::config::StreamConfig;
use crate::error::ShardError;
use crate::plan::Dealt;
use crate::read::Shard;

/// A lane's shards in the epoch requested last: the plan, which all lanes share behind a lock, is consulted once per
/// epoch and not for every segment.
pub struct LaneShards {
    config: Arc<StreamConfig>,
    lane: usize,
    dealt: Option<(u64, Arc<Dealt>)>,
}

impl LaneShards {
    /// The shards of `lane`.
    pub fn new(config: &Arc<StreamConfig>, lane: usize) -> Self {
        Self { config: Arc::clone(config), lane, dealt: None }
    }

    /// Their indices in the manifest, in the order of `epoch`.
    pub fn of(&mut self, epoch: u64) -> &[u32] {
        self.dealt.take_if(|(of, _)| *of != epoch);
        let (_, dealt) = self.dealt.get_or_insert_with(|| (epoch, self.config.plan.epoch(epoch)));
        &dealt[self.lane]
    }

    /// The index in the manifest of the shard that contains a place.
    pub fn index(&mut self, place: Place) -> u32 {
        self.of(place.epoch)[place.shard as usize]
    }

    /// The shard that contains a place.
    pub fn shard(&mut self, place: Place) -> &Shard {
        let index = self.index(place);
        &self.config.shards[index as usize]
    }

    /// What is wrong with the record at a place.
    pub fn error(&mut self, place: Place, reason: String) -> ShardError {
        ShardError {
            shard: Arc::clone(&self.shard(place).path),
            record: Some(place.record),
            byte: Some(place.byte),
            reason,
        }
    }
}
