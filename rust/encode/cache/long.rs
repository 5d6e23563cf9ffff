//! Long pieces: too long for a slot, and few.

use ahash::{AHashMap, RandomState};

/// Pieces and their ids, one behind the other, and where each begins, by a hash of the piece. When two pieces
/// have one hash, the newer one stays.
#[derive(Default)]
pub struct LongPieces {
    entries: AHashMap<u64, Entry>,
    hasher: RandomState,
    text: Vec<u8>,
    ids: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Entry {
    text: u32,
    text_len: u32,
    ids: u32,
    ids_len: u32,
}

impl LongPieces {
    pub fn find(&self, piece: &[u8]) -> Option<&[u32]> {
        let entry = self.entries.get(&self.hasher.hash_one(piece))?;
        let text = &self.text[entry.text as usize..][..entry.text_len as usize];
        (text == piece).then(|| &self.ids[entry.ids as usize..][..entry.ids_len as usize])
    }

    pub fn insert(&mut self, piece: &[u8], ids: &[u32]) {
        let entry = Entry {
            text: self.text.len() as u32,
            text_len: piece.len() as u32,
            ids: self.ids.len() as u32,
            ids_len: ids.len() as u32,
        };
        self.text.extend_from_slice(piece);
        self.ids.extend_from_slice(ids);
        self.entries.insert(self.hasher.hash_one(piece), entry);
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.text.clear();
        self.ids.clear();
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.entries.len() * size_of::<(u64, Entry)>() + self.text.len() + self.ids.len() * size_of::<u32>()
    }
}
