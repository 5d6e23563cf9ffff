//! The state that one thread keeps from piece to piece.

use crate::cache::{Lookup, PieceCache};
use crate::cuts::Cuts;
use crate::merge::words::Scratch;
use crate::split::SplitScratch;

/// The state that encoding a piece changes.
pub struct Workspace {
    pub cache: PieceCache,
    pub scratch: Scratch,
    pub split: SplitScratch,
    /// Where a text is cut, or a piece that is split before it is merged.
    pub cuts: Cuts,
    /// The ends of the parts of such a piece.
    pub ends: Vec<u32>,
}

impl Workspace {
    pub fn new(cache: PieceCache) -> Self {
        let (scratch, split, cuts, ends) = Default::default();
        Self { cache, scratch, split, cuts, ends }
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
        (self.scratch, self.split, self.cuts, self.ends) = Default::default();
    }
}
