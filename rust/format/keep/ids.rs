//! Ids of records that a row list leaves out.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A set of ids, as their hashes of 128 bits in order: 16 bytes each. Two of a billion ids share one by chance in one of
/// 10^20 such sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ids(Box<[u128]>);

impl Ids {
    /// The set of ids with these hashes, in any order.
    pub fn new(mut hashes: Vec<u128>) -> Self {
        hashes.sort_unstable();
        hashes.dedup();
        Self(hashes.into_boxed_slice())
    }

    /// The hash of an id.
    pub fn hash(id: &str) -> u128 {
        let half = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, id).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        half(0) << 64 | half(1)
    }

    /// Whether an id is in it.
    pub fn contains(&self, id: &str) -> bool {
        self.0.binary_search(&Self::hash(id)).is_ok()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}
