//! The state that one thread keeps from pre-token to pre-token.

use crate::lookup::cache::{PretokenCache, Query};
use crate::merge::symbols::Scratch;
use crate::model::unigram::UnigramScratch;
use crate::pretokenize::boundaries::Boundaries;
use crate::pretokenize::patterns::SplitScratch;

/// The state that encoding a pre-token changes.
pub struct Workspace {
    pub cache: PretokenCache,
    pub scratch: Scratch,
    pub unigram: UnigramScratch,
    pub split: SplitScratch,
    /// Where a text is cut, or a pre-token that is split before it is merged.
    pub boundaries: Boundaries,
    /// The ends of the parts of such a pre-token.
    pub ends: Vec<u32>,
}

impl Workspace {
    pub fn new(cache: PretokenCache) -> Self {
        let (scratch, unigram, split, boundaries, ends) = Default::default();
        Self { cache, scratch, unigram, split, boundaries, ends }
    }

    /// Appends the ids of a pre-token: the cached ones, or else those that `encode` appends, which are then cached if
    /// there is room for them.
    #[inline(always)]
    pub fn recall_or(
        &mut self,
        pretoken: Option<&Query>,
        ids: &mut Vec<u32>,
        encode: impl FnOnce(&mut Self, &mut Vec<u32>),
    ) {
        if pretoken.is_some_and(|pretoken| self.cache.append(pretoken, ids)) {
            return;
        }
        let begin = ids.len();
        encode(self, ids);
        if let Some(pretoken) = pretoken {
            self.cache.insert(pretoken, &ids[begin..]);
        }
    }

    /// Frees what a long text has left behind.
    pub fn shrink(&mut self) {
        (self.scratch, self.unigram, self.split, self.boundaries, self.ends) = Default::default();
    }
}
