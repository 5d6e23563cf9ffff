//! The content of a worker's cache before its first text: the tokens that can be pre-tokens.
//!
//! Nearly every one of them will occur and would be a miss (5 to 18 of 100 misses of a first pass). A token is cached
//! with the ids that its characters merge to, which may be other ids than its own.

use super::batch::{Keys, PretokenBatch};
use super::cache::{PretokenCache, Query};
use crate::layout::MEDIUM;
use crate::lookup::pretoken::Pretoken;
use crate::model::Model;
use crate::model::workspace::Workspace;
use crate::normalize_and_cut::TextRules;
use crate::pretokenize::PADDING;
use crate::simd::Simd;
use crate::vocab::Vocab;

/// Pre-tokens and their ids, one after another. This list takes a tenth of the memory of a cache with the same content.
#[derive(Default)]
pub struct Preload {
    /// All pre-tokens, padded.
    text: Vec<u8>,
    ids: Vec<u32>,
    /// The end of each pre-token in `text`, and of its ids in `ids`.
    ends: Vec<u32>,
    id_ends: Vec<u32>,
}

impl Preload {
    /// The tokens that can be pre-tokens, the highest ids first: of tokens that compete for a slot, those with lower
    /// ids should stay, as they are more frequent.
    /// `makes` says of an id whether the token's characters are sure to give that.
    pub fn new(vocab: &Vocab, makes: impl Fn(u32) -> bool, text: &TextRules, model: &Model) -> Self {
        let tokens: Vec<(&str, u32)> = vocab.entries().collect();
        let mut seeder = Preloader::new(text, model);
        let mut preload = Self::default();
        for (token, id) in tokens.iter().rev() {
            seeder.add(token, makes(*id).then_some(*id), &mut preload);
        }
        preload.text.resize(preload.text.len() + PADDING, 0);
        preload
    }

    /// An empty cache that stays within about `bytes`, with room for this list.
    pub fn empty_cache(&self, bytes: usize) -> PretokenCache {
        PretokenCache::new(bytes, self.ends.len())
    }

    /// A cache that stays within about `bytes` and contains this list.
    pub fn cache(&self, simd: Simd, bytes: usize) -> PretokenCache {
        let mut cache = self.empty_cache(bytes);
        let mut keys = Keys::default();
        let mut batch = PretokenBatch::new(simd, &self.text, &self.ends, &mut keys);
        let mut first_id = 0;
        while batch.next(&cache) {
            for index in batch.range() {
                let last_id = self.id_ends[index] as usize;
                if let Some(lookup) = Query::at(batch.pretoken(index), batch.slot(index)) {
                    cache.insert(&lookup, &self.ids[first_id..last_id]);
                }
                first_id = last_id;
            }
        }
        cache
    }

    pub fn bytes(&self) -> usize {
        self.text.capacity()
            + (self.ids.capacity() + self.ends.capacity() + self.id_ends.capacity()) * size_of::<u32>()
    }
}

struct Preloader<'a> {
    text: &'a TextRules,
    model: &'a Model,
    /// Its cache is for parts of pre-tokens, which do not belong in the list.
    workspace: Workspace,
}

/// The bound of the cache for parts of pre-tokens.
const PARTS_BYTES: usize = 1 << 20;

impl<'a> Preloader<'a> {
    fn new(text: &'a TextRules, model: &'a Model) -> Self {
        let workspace = Workspace::new(PretokenCache::new(PARTS_BYTES, 0));
        Self { text, model, workspace }
    }

    /// Adds a token; `id` is its own id if its characters are sure to give that.
    fn add(&mut self, token: &str, id: Option<u32>, preload: &mut Preload) {
        let Some(mut text) = self.model.token_as_pretoken(token) else { return };
        let n = text.len();
        text.resize(n + PADDING, 0);
        if n == 0 || n > MEDIUM || !self.is_pretoken(&text, n) {
            return;
        }
        if let Some(id) = id {
            preload.ids.push(id);
        } else {
            self.workspace.cache.maintain();
            self.model.encode(Pretoken::new(&text, 0, n), &mut self.workspace, &mut preload.ids);
        }
        preload.text.extend_from_slice(&text[..n]);
        preload.ends.push(preload.text.len() as u32);
        preload.id_ends.push(preload.ids.len() as u32);
    }

    /// Whether any text is cut so that this is a pre-token: whether it is one, merged as a whole, when it stands alone.
    fn is_pretoken(&mut self, text: &[u8], n: usize) -> bool {
        let Self { text: rules, model, workspace } = self;
        if std::str::from_utf8(&text[..n]).is_err() {
            return false;
        }
        model.cut(rules, text, n, workspace);
        workspace.boundaries.is_empty() && model.is_one(text, n, workspace)
    }
}
