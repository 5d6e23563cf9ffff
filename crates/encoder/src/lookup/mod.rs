//! From pre-tokens to ids: batches of lookups in the cache, and the merging of new pre-tokens.

mod batch;
pub mod cache;
mod deferred;
pub mod preload;
pub mod pretoken;
pub mod pretoken_buffer;

use crate::layout::{FEW, MEDIUM, SHORT, Value};
use crate::lookup::cache::packed_ids::{absent_slot, as_value, pack_few};
use crate::lookup::cache::{PretokenCache, Query};
use crate::lookup::pretoken::Pretoken;
use crate::merge::MergeTable;
use crate::merge::array_merge::{ArrayMerge, Lockstep};
use crate::model::Model;
use crate::model::workspace::Workspace;
use crate::normalize_and_cut::TextRules;
use crate::simd::{Scalar, Simd};
use batch::{Keys, PretokenBatch};
use deferred::{Deferred, Miss};
use pretoken_buffer::{PretokenBuffer, token_id};

/// Encodes pre-tokens on one thread.
pub struct PretokenWorker {
    simd: Simd,
    workspace: Workspace,
    deferred: Deferred,
    short: Lockstep<{ SHORT + 1 }>,
    medium: Lockstep<{ MEDIUM + 1 }>,
    /// None while a text is encoded.
    keys: Option<Box<Keys>>,
}

/// The most new pre-tokens that are merged in lockstep: their state stays in the L1 cache.
const IN_LOCKSTEP: usize = 16;

impl PretokenWorker {
    pub fn new(simd: Simd, cache: PretokenCache) -> Self {
        let (deferred, short, medium) = Default::default();
        Self { simd, workspace: Workspace::new(cache), deferred, short, medium, keys: None }
    }

    /// Frees the buffers that a long text has grown.
    pub fn shrink(&mut self) {
        self.workspace.shrink();
    }

    /// Cuts a stretch of text, with a space in front of it if `in_front`, and adds its pre-tokens to a buffer.
    pub fn cut(
        &mut self,
        model: &Model,
        rules: &TextRules,
        text: &str,
        in_front: bool,
        buffer: &mut PretokenBuffer,
    ) {
        let (bytes, ends) = buffer.unpadded();
        let start = bytes.len();
        let n = rules.pad(text, in_front, bytes);
        model.cut(rules, &bytes[start..], n, &mut self.workspace);
        self.workspace.boundaries.push_ends(self.simd, start as u32, ends);
    }

    /// Appends the ids of all pre-tokens of a buffer, and empties it.
    pub fn encode(&mut self, model: &Model, buffer: &mut PretokenBuffer, ids: &mut Vec<u32>) {
        let mut keys = self.keys.take().unwrap_or_default();
        let (text, ends) = buffer.padded();
        let mut batch = PretokenBatch::new(self.simd, text, ends, &mut keys);
        while batch.next(&self.workspace.cache) {
            self.encode_batch(model, &mut batch, ids);
            self.workspace.cache.maintain();
        }
        self.keys = Some(keys);
        buffer.clear();
    }

    /// Appends the ids of a batch, and of the following batches that are deferred with it.
    fn encode_batch(&mut self, model: &Model, batch: &mut PretokenBatch, ids: &mut Vec<u32>) {
        let mut index = batch.range().start;
        loop {
            index = batch.write_hits(&self.workspace.cache, index, ids);
            if index == batch.range().end {
                return;
            }
            let pretoken = batch.pretoken(index);
            if let Some(words) = batch.find(&self.workspace.cache, index) {
                self.workspace.cache.append_packed(words, ids);
            } else if let Some(merges) = model.merges().filter(|_| pretoken.len() <= MEDIUM) {
                return self.encode_new(model, merges, batch, index, ids);
            } else {
                self.encode_rare(model, pretoken, batch.slot(index), ids);
            }
            index += 1;
        }
    }

    /// Appends the ids of a batch from a new pre-token on, and of the batches that are deferred with it.
    #[inline(never)]
    fn encode_new(
        &mut self,
        model: &Model,
        merges: &MergeTable,
        batch: &mut PretokenBatch,
        first: usize,
        ids: &mut Vec<u32>,
    ) {
        self.deferred.clear();
        self.deferred.add(batch, first, &self.workspace.cache);
        while self.deferred.takes_more() && batch.next(&self.workspace.cache) {
            self.deferred.add(batch, batch.range().start, &self.workspace.cache);
        }
        self.learn(model, merges, batch, first);
        let mut index = 0;
        loop {
            index = self.deferred.write(self.simd, index, ids);
            if index == self.deferred.len() {
                return;
            }
            let (pretoken, value) = (batch.pretoken(first + index), self.deferred.value(index));
            match absent_slot(value) {
                Some(slot) => self.encode_rare(model, pretoken, slot, ids),
                None => self.workspace.cache.append_packed(value, ids),
            }
            index += 1;
        }
    }

    /// Merges the new ones of the deferred pre-tokens; `first` is the index in the text of the first deferred one.
    fn learn(&mut self, model: &Model, merges: &MergeTable, batch: &PretokenBatch, first: usize) {
        let Self { workspace: Workspace { cache, .. }, deferred, short, medium, .. } = self;
        let id = |symbol| merges.id(symbol);
        let model = (model, merges);
        // The same pre-token may be deferred twice.
        learn(model, batch, first, deferred, short, Deferred::short, |Miss { key, slot, .. }, merge| {
            if let Some(kept) = cache.short().find(Scalar, key, slot) {
                return Some(*kept);
            }
            let value = few(merge, id).or_else(|| merge.with_ids(id, |ids| cache.pack(ids)))?;
            cache.put_short(key, slot, value);
            Some(value)
        });
        learn(model, batch, first, deferred, medium, Deferred::medium, |Miss { key, slot, .. }, merge| {
            if let Some(kept) = cache.find_medium(&key, slot) {
                return Some(as_value(kept, slot));
            }
            let value = match few(merge, id) {
                Some([first, second]) => [first, second, 0, 0],
                None => merge.with_ids(id, |ids| cache.pack(ids))?,
            };
            cache.put_medium(&key, slot, value);
            Some(as_value(&value, slot))
        });
    }

    /// Appends the ids of a rare pre-token: a long one, one of many ids, an added token, or a new one that is not
    /// merged as a whole.
    #[inline(never)]
    fn encode_rare(&mut self, model: &Model, pretoken: Pretoken, slot: usize, ids: &mut Vec<u32>) {
        let lookup = Query::at(pretoken, slot);
        self.workspace.recall_or(lookup.as_ref(), ids, |workspace, ids| match token_id(pretoken.bytes()) {
            Some(id) => ids.push(id),
            None => model.encode(pretoken, workspace, ids),
        });
    }
}

/// Merges new ones of the deferred pre-tokens in lockstep, and gives each the value that `keep` returns.
fn learn<const W: usize, K: Copy>(
    (model, table): (&Model, &MergeTable),
    batch: &PretokenBatch,
    first: usize,
    deferred: &mut Deferred,
    merges: &mut Lockstep<W>,
    misses: impl Fn(&Deferred) -> &[Miss<K>],
    mut keep: impl FnMut(Miss<K>, &ArrayMerge<W>) -> Option<Value>,
) {
    for start in (0..misses(deferred).len()).step_by(IN_LOCKSTEP) {
        merges.clear();
        for (tag, miss) in misses(deferred).iter().enumerate().skip(start).take(IN_LOCKSTEP) {
            let pretoken = batch.pretoken(first + miss.index).bytes();
            merges.add(tag, |merge| token_id(pretoken).is_none() && model.start(pretoken, merge));
        }
        table.merge_all(merges);
        for merge in merges.iter() {
            let miss = misses(deferred)[merge.tag()];
            if let Some(value) = keep(miss, merge) {
                deferred.set(miss.index, value);
            }
        }
    }
}

/// The ids of a merged pre-token, if one value holds them.
#[inline(always)]
fn few<const W: usize>(merge: &ArrayMerge<W>, id: impl Fn(u32) -> u32) -> Option<Value> {
    let count = merge.count() as usize;
    (count <= FEW).then(|| pack_few(merge.first_ids(id), count))
}
