//! The order of the prompts in an epoch: gristmill's own, or that of torch, which is that of veRL.

use crate::random::{Purpose, permutation};

/// The order of `count` prompts in an epoch.
pub fn shuffled(count: usize, seed: u64, epoch: u64) -> Vec<u32> {
    permutation(count, seed, Purpose::Prompts, &[epoch])
}

/// The permutation that `torch.randperm(count, generator=generator)` returns, where the generator was seeded with `seed`
/// and has made `skipped` permutations of as many numbers. torch uses MT19937 with one draw of 32 bits for each but the
/// last number.
pub fn of_torch(count: usize, seed: u64, skipped: u64) -> Vec<u32> {
    let mut random = MersenneTwister::new(seed as u32);
    let draws = count.saturating_sub(1);
    for _ in 0..skipped * draws as u64 {
        random.next();
    }
    let mut order: Vec<u32> = (0..count as u32).collect();
    for i in 0..draws {
        order.swap(i, i + random.next() as usize % (count - i));
    }
    order
}

const WORDS: usize = 624;
const SHIFT: usize = 397;

/// MT19937 of Matsumoto and Nishimura (1998), seeded by one number as in their `init_genrand`.
struct MersenneTwister {
    words: Box<[u32; WORDS]>,
    used: usize,
}

impl MersenneTwister {
    fn new(seed: u32) -> Self {
        let mut words = Box::new([seed; WORDS]);
        for i in 1..WORDS {
            let before = words[i - 1];
            words[i] = 1_812_433_253_u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(i as u32);
        }
        Self { words, used: WORDS }
    }

    fn next(&mut self) -> u32 {
        if self.used == WORDS {
            self.refill();
        }
        let mut word = self.words[self.used];
        self.used += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9D2C_5680;
        word ^= (word << 15) & 0xEFC6_0000;
        word ^ (word >> 18)
    }

    fn refill(&mut self) {
        for i in 0..WORDS {
            let joined = (self.words[i] & 0x8000_0000) | (self.words[(i + 1) % WORDS] & 0x7FFF_FFFF);
            let twist = if joined & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.words[i] = self.words[(i + SHIFT) % WORDS] ^ (joined >> 1) ^ twist;
        }
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mersenne_twister_has_the_numbers_of_its_authors() {
        let mut random = MersenneTwister::new(5489);
        let numbers: Vec<u32> = (0..10_000).map(|_| random.next()).collect();
        assert_eq!((numbers[0], numbers[9999]), (3_499_211_612, 4_123_659_995));
    }

    #[test]
    fn permutations_hold_every_number_once() {
        for count in [0, 1, 2, 700] {
            for order in [of_torch(count, 1, 3), shuffled(count, 1, 3)] {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..count as u32).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn skipped_permutations_are_those_before() {
        let mut random = MersenneTwister::new(7);
        let mut next = |count: usize| {
            let mut order: Vec<u32> = (0..count as u32).collect();
            for i in 0..count - 1 {
                order.swap(i, i + random.next() as usize % (count - i));
            }
            order
        };
        for epoch in 0..4 {
            assert_eq!(next(50), of_torch(50, 7, epoch));
        }
    }
}
