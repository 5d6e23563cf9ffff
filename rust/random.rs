//! Permutations and a hash that are part of the stream's definition.
//!
//! `rand` promises no stable shuffles between its versions, and a changed shuffle would silently
//! change every run's data, so the generator is fixed here: `SplitMix64` (Steele, Lea and Flood,
//! 2014) with Lemire's multiply-and-reject for bounded draws (2019).

/// The purpose of a permutation; part of its key, so that no two uses share one.
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    /// The order of shards in an epoch.
    Shards = 1,
    /// The division of the shards among lanes.
    Lanes = 2,
    /// The order of documents in a window.
    Window = 3,
    /// The order of prompts in an epoch.
    Prompts = 4,
    /// Where a document is cut for fill-in-the-middle.
    FillInTheMiddle = 5,
}

/// A permutation of `0..n` that depends on nothing but its arguments.
pub fn permutation(n: usize, seed: u64, purpose: Purpose, key: &[u64]) -> Vec<u32> {
    let mut random = SplitMix64::new(seed, purpose, key);
    let mut order: Vec<u32> = (0..n as u32).collect();
    for i in (1..n).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    order
}

/// A number from 1 to 2^62 - 1 that depends on all of the numbers and on their order.
pub fn hash(numbers: impl IntoIterator<Item = u64>) -> u64 {
    let mut random = SplitMix64(0);
    for number in numbers {
        random = SplitMix64(random.next() ^ number);
    }
    (random.next() >> 2).max(1)
}

/// The generator behind the permutations.
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// One whose numbers depend on the arguments alone.
    pub fn new(seed: u64, purpose: Purpose, key: &[u64]) -> Self {
        let mut random = Self(seed);
        for &part in [purpose as u64].iter().chain(key) {
            random = Self(random.next() ^ part);
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below the bound, all equally likely.
    pub fn below(&mut self, bound: u64) -> u64 {
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            let low = product as u64;
            if low >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_permutation_that_depends_on_every_argument() {
        let base = permutation(100, 1, Purpose::Window, &[2, 3]);
        let mut sorted = base.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<u32>>());
        assert_eq!(base, permutation(100, 1, Purpose::Window, &[2, 3]));
        for other in [
            permutation(100, 2, Purpose::Window, &[2, 3]),
            permutation(100, 1, Purpose::Shards, &[2, 3]),
            permutation(100, 1, Purpose::Window, &[3, 2]),
            permutation(100, 1, Purpose::Window, &[2]),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn the_order_never_changes_between_releases() {
        // A different order would change the data of every seeded run: this pins it.
        assert_eq!(permutation(8, 42, Purpose::Shards, &[0]), [6, 1, 3, 7, 5, 2, 0, 4]);
        assert_eq!(permutation(8, 42, Purpose::Lanes, &[0]), [3, 1, 4, 6, 5, 2, 7, 0]);
        assert_eq!(permutation(8, 42, Purpose::Window, &[0, 1]), [5, 6, 3, 4, 1, 0, 7, 2]);
    }

    #[test]
    fn every_position_is_equally_likely() {
        let mut counts = [[0u32; 4]; 4];
        for seed in 0..4000 {
            for (position, item) in permutation(4, seed, Purpose::Window, &[]).into_iter().enumerate() {
                counts[position][item as usize] += 1;
            }
        }
        // 1000 expected each; 5 standard deviations are about 137.
        assert!(counts.iter().flatten().all(|&n| (860..1140).contains(&n)), "{counts:?}");
    }
}
