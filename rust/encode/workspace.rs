//! The state that one thread keeps from piece to piece.

use super::cache::{Lookup, PieceCache};
use super::groups::GroupCutter;
use super::split::SplitScratch;
use super::words::Scratch;

/// The state that encoding a piece changes.
pub struct Workspace {
    pub cache: PieceCache,
    pub scratch: Scratch,
    pub groups: GroupCutter,
    pub split: SplitScratch,
}

impl Workspace {
    pub fn new(cache: PieceCache) -> Self {
        let (scratch, groups, split) = Default::default();
        Self { cache, scratch, groups, split }
    }

    /// Appends the ids of a piece: the cached ones, or else those that `encode` appends, which are then cached if there
    /// is room for them.
    #[inline(always)]
    pub fn recall_or(
        &mut self,
        piece: Option<&Lookup>,
        ids: &mut Vec<u32>,
        encode: impl FnOnce(&mut Self, &mut Vec<u32>),
    ) {
        if piece.is_some_and(|piece| self.cache.append(piece, ids)) {
            return;
        }
        let begin = ids.len();
        encode(self, ids);
        if let Some(piece) = piece {
            self.cache.insert(piece, &ids[begin..]);
        }
    }

    /// Frees what a long text has left behind.
    pub fn shrink(&mut self) {
        (self.scratch, self.split) = Default::default();
        self.groups.shrink();
    }

    pub fn bytes(&self) -> usize {
        self.cache.bytes() + self.scratch.bytes() + self.groups.bytes() + self.split.bytes()
    }
}
