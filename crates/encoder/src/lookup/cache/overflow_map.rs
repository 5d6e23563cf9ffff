//! Long pre-tokens, which have too many bytes for a line.

use ahash::{AHashMap, RandomState};

/// Pre-tokens by their hash. When two have the same hash, the newer one stays.
#[derive(Default)]
pub struct OverflowMap {
    entries: AHashMap<u64, Entry>,
    hasher: RandomState,
    /// Each pre-token followed by its ids, so that a lookup costs one cache miss instead of two.
    kept: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Entry {
    start: u32,
    pretoken_bytes: u32,
    end: u32,
}

impl OverflowMap {
    /// Appends the ids of a pre-token; false if it is not cached.
    pub fn append(&self, pretoken: &[u8], ids: &mut Vec<u32>) -> bool {
        let Some(entry) = self.entries.get(&self.hasher.hash_one(pretoken)) else { return false };
        let kept = &self.kept[entry.start as usize..entry.end as usize];
        let (kept_pretoken, kept_ids) = kept.split_at(entry.pretoken_bytes as usize);
        let is_kept = kept_pretoken == pretoken;
        if is_kept {
            ids.extend(kept_ids.as_chunks().0.iter().map(|id| u32::from_ne_bytes(*id)));
        }
        is_kept
    }

    /// Caches a pre-token, if there is room for it.
    pub fn insert(&mut self, pretoken: &[u8], ids: &[u32]) {
        let bytes = pretoken.len() + size_of_val(ids);
        let (start, end) = (u32::try_from(self.kept.len()), u32::try_from(self.kept.len() + bytes));
        let (Ok(start), Ok(end)) = (start, end) else { return };
        self.kept.extend_from_slice(pretoken);
        self.kept.extend(ids.iter().flat_map(|id| id.to_ne_bytes()));
        let entry = Entry { start, pretoken_bytes: pretoken.len() as u32, end };
        self.entries.insert(self.hasher.hash_one(pretoken), entry);
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.kept.clear();
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.entries.len() * size_of::<(u64, Entry)>() + self.kept.len()
    }
}
