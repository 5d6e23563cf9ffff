//! The shards of each lane, in the order in which it reads them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::random::{Purpose, permutation};

/// Each lane's shards, as indices into the manifest, in reading order.
pub type Assignment = Vec<Vec<u32>>;

/// Deals shards to lanes for one epoch: shard indices per lane, in reading order.
///
/// The rule is a pure function of its arguments: shards go largest first to the lane with the fewest bytes so far (then
/// the fewest shards, then the lowest number), which gives every lane a shard as long as there are as many shards as
/// lanes. Without a seed, a lane reads its shards in manifest order. With one, in every epoch ties in size are decided
/// by the seed, the shares are permuted among the lanes, and each lane's order is permuted.
pub fn assign_shards(sizes: &[u64], lanes: usize, seed: Option<u64>, epoch: u64) -> Assignment {
    let rank: Vec<u32> = match seed {
        Some(seed) => permutation(sizes.len(), seed, Purpose::Shards, &[epoch]),
        None => (0..sizes.len() as u32).collect(),
    };
    let mut order: Vec<u32> = (0..sizes.len() as u32).collect();
    order.sort_by_key(|&shard| (Reverse(sizes[shard as usize]), rank[shard as usize]));

    let mut shares: Vec<Vec<u32>> = vec![Vec::new(); lanes];
    let mut lightest: BinaryHeap<Reverse<(u128, usize, usize)>> =
        (0..lanes).map(|lane| Reverse((0, 0, lane))).collect();
    for shard in order {
        let Some(Reverse((bytes, count, lane))) = lightest.pop() else { break };
        shares[lane].push(shard);
        lightest.push(Reverse((bytes + u128::from(sizes[shard as usize]), count + 1, lane)));
    }
    for share in &mut shares {
        share.sort_by_key(|&shard| rank[shard as usize]);
    }
    match seed {
        Some(seed) => permutation(lanes, seed, Purpose::Lanes, &[epoch])
            .into_iter()
            .map(|share| std::mem::take(&mut shares[share as usize]))
            .collect(),
        None => shares,
    }
}

/// Deals once per epoch for all lanes. Remembers all epochs that some lane is in, which may be any number, as lanes of
/// unequal size drift apart; and at least two, since the epochs of a state's lanes are requested one by one.
pub struct Plan {
    /// Sizes of the shards; those that were added later are dealt by themselves.
    groups: Vec<Vec<u64>>,
    lanes: usize,
    seed: Option<u64>,
    recent: Mutex<Vec<(u64, Arc<Assignment>)>>,
}

impl Plan {
    /// A plan for shards of these sizes in bytes.
    pub fn new(sizes: Vec<u64>, lanes: usize, seed: Option<u64>) -> Self {
        Self { groups: vec![sizes], lanes, seed, recent: Mutex::new(Vec::new()) }
    }

    /// A plan in which these shards are added behind the others: each lane reads its share of them after its others, so that
    /// the positions of those stay as they are.
    #[must_use]
    pub fn with_added(mut self, sizes: Vec<u64>) -> Self {
        self.groups.push(sizes);
        self
    }

    /// Number of lanes, over all hosts.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// All lanes' shards in an epoch.
    pub fn epoch(&self, epoch: u64) -> Arc<Assignment> {
        // Without a seed all epochs are alike.
        let epoch = if self.seed.is_some() { epoch } else { 0 };
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, assignment)) = recent.iter().find(|(e, _)| *e == epoch) {
            return Arc::clone(assignment);
        }
        let mut all: Assignment = vec![Vec::new(); self.lanes];
        let mut first = 0;
        for sizes in &self.groups {
            for (lane, share) in all.iter_mut().zip(assign_shards(sizes, self.lanes, self.seed, epoch)) {
                lane.extend(share.into_iter().map(|shard| first + shard));
            }
            first += sizes.len() as u32;
        }
        let assignment = Arc::new(all);
        while recent.len() >= 2
            && let Some(unused) = recent.iter().position(|(_, assignment)| Arc::strong_count(assignment) == 1)
        {
            recent.remove(unused);
        }
        recent.push((epoch, Arc::clone(&assignment)));
        assignment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_shard_goes_first_to_the_lightest_lane() {
        // 9 | 5, then 4 to the 5, then at 9 | 9 to the lane with fewer shards, then 1 to the lighter one.
        assert_eq!(assign_shards(&[5, 9, 4, 4, 1], 2, None, 0), [vec![1, 3], vec![0, 2, 4]]);
    }

    #[test]
    fn sizes_whose_sum_overflows_are_balanced() {
        assert_eq!(assign_shards(&[u64::MAX; 4], 2, None, 0), [vec![0, 2], vec![1, 3]]);
    }

    #[test]
    fn seeded_assignment_is_pinned() {
        // Other shares would change the data of every seeded run: this pins them.
        assert_eq!(assign_shards(&[5, 9, 4, 4, 1, 7], 3, Some(7), 1), [[4, 1], [2, 0], [3, 5]]);
    }

    #[test]
    fn every_lane_gets_a_shard_even_an_empty_one() {
        for seed in [None, Some(3)] {
            let assignment = assign_shards(&[100, 0, 0, 0, 0], 5, seed, 0);
            assert!(assignment.iter().all(|share| share.len() == 1), "{assignment:?}");
        }
    }

    #[test]
    fn each_shard_is_assigned_once_and_seeded_epochs_differ() {
        let sizes: Vec<u64> = (0..50).map(|i| i * 37 % 11).collect();
        let mut seen = Vec::new();
        for epoch in 0..3 {
            let assignment = assign_shards(&sizes, 4, Some(7), epoch);
            let mut all: Vec<u32> = assignment.iter().flatten().copied().collect();
            all.sort_unstable();
            assert_eq!(all, (0..50).collect::<Vec<u32>>());
            seen.push(assignment);
        }
        assert!(seen[0] != seen[1] && seen[1] != seen[2]);
        assert_eq!(seen[1], assign_shards(&sizes, 4, Some(7), 1));
    }

    #[test]
    fn plan_keeps_epochs_apart() {
        let plan = Plan::new(vec![1; 9], 3, Some(1));
        for epoch in [0, 1, 2, 1, 0] {
            assert_eq!(*plan.epoch(epoch), assign_shards(&[1; 9], 3, Some(1), epoch));
        }
    }

    #[test]
    fn added_shards_follow_the_others_of_their_lane() {
        let plan = Plan::new(vec![1; 6], 2, Some(1)).with_added(vec![5, 4, 3]);
        let before = Plan::new(vec![1; 6], 2, Some(1));
        for epoch in 0..3 {
            let (all, old) = (plan.epoch(epoch), before.epoch(epoch));
            let mut added: Vec<u32> = Vec::new();
            for (all, old) in all.iter().zip(&*old) {
                assert_eq!(&all[..old.len()], &old[..]);
                added.extend(&all[old.len()..]);
            }
            added.sort_unstable();
            assert_eq!(added, [6, 7, 8]);
        }
    }

    #[test]
    fn plan_keeps_assignments_in_use() {
        let plan = Plan::new(vec![1; 9], 3, Some(1));
        let used: Vec<_> = (0..5).map(|epoch| plan.epoch(epoch)).collect();
        for (epoch, assignment) in used.iter().enumerate() {
            assert!(Arc::ptr_eq(assignment, &plan.epoch(epoch as u64)));
        }
        drop(used);
        plan.epoch(5);
        assert_eq!(plan.recent.lock().unwrap().len(), 2);
    }
}
