//! Pieces of shards, which lanes read as if they were shards.

use std::ops::Range;
use std::sync::Arc;

use super::Shard;

/// The part of a shard that a lane reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The shard's path and the bytes, for messages: `web.jsonl[0:1000]`.
    pub name: Arc<str>,
    /// The bytes of the file, as stored. The records that start in them belong to the piece: see [`crate::format`].
    pub bytes: Range<u64>,
}

impl Shard {
    /// A whole file.
    pub fn whole(path: impl Into<Arc<str>>, size: u64) -> Self {
        Self { path: path.into(), size, e_tag: None, piece: None }
    }

    /// Divides a file of more than `split_bytes` bytes into as few equal pieces as are not larger; 0: into none.
    pub fn divided(self, split_bytes: u64) -> impl Iterator<Item = Self> {
        let Self { path, size, e_tag, .. } = self;
        borders(size, split_bytes).map(move |bytes| {
            let is_whole = bytes == (0..size);
            let name = || format!("{path}[{}:{}]", bytes.start, bytes.end).into();
            let piece = (!is_whole).then(|| Piece { name: name(), bytes: bytes.clone() });
            Self { path: Arc::clone(&path), size, e_tag: e_tag.clone(), piece }
        })
    }

    /// Whether it is in a store on the network.
    pub fn is_remote(&self) -> bool {
        super::is_remote(&self.path)
    }

    /// The name in messages.
    pub fn name(&self) -> &Arc<str> {
        self.piece.as_ref().map_or(&self.path, |piece| &piece.name)
    }

    /// The bytes of the file that a lane reads.
    pub fn bytes(&self) -> Range<u64> {
        self.piece.as_ref().map_or(0..self.size, |piece| piece.bytes.clone())
    }

    /// How many these are.
    pub fn dealt_bytes(&self) -> u64 {
        let bytes = self.bytes();
        bytes.end - bytes.start
    }
}

/// The pieces of a file, by its size alone: bytes of the file as stored.
pub fn borders(size: u64, split_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let pieces = if split_bytes == 0 { 1 } else { size.div_ceil(split_bytes).max(1) };
    let border = move |piece: u64| (u128::from(size) * u128::from(piece) / u128::from(pieces)) as u64;
    (0..pieces).map(move |piece| border(piece)..border(piece + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_equal_and_touch() {
        assert_eq!(borders(10, 4).collect::<Vec<_>>(), [0..3, 3..6, 6..10]);
        assert_eq!(
            borders(u64::MAX, 1 << 63).collect::<Vec<_>>(),
            [0..(1 << 63) - 1, (1 << 63) - 1..u64::MAX]
        );
        for (size, split_bytes) in [(10, 0), (10, 10), (10, 11), (0, 1), (0, 0)] {
            assert!(borders(size, split_bytes).eq(std::iter::once(0..size)));
        }
    }

    #[test]
    fn only_pieces_are_named_by_their_bytes() {
        let names =
            |split_bytes| Shard::whole("a", 10).divided(split_bytes).map(|shard| shard.name().to_string());
        assert_eq!(names(10).collect::<Vec<_>>(), ["a"]);
        assert_eq!(names(5).collect::<Vec<_>>(), ["a[0:5]", "a[5:10]"]);
    }
}
