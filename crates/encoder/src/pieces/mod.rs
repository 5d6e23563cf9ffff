//! From pieces to ids: batches of look-ups in the cache, and what happens on a miss.

mod batch;
pub mod cut_text;
pub mod seed;
mod waiting;

use crate::cache::packed::{FEW, Value, absent_place, as_value, pack_few};
use crate::cache::piece::Piece;
use crate::cache::{Lookup, MEDIUM, PieceCache, SHORT};
use crate::kernel::Plain;
use crate::merge::word::{Merging, SideBySide};
use crate::model::Model;
use crate::model::workspace::Workspace;
use crate::text::TextRules;
use batch::{Keys, PieceBatch};
use cut_text::{CutText, token_id};
use waiting::{Miss, Waiting};

/// Encodes pieces on one thread.
pub struct PieceWorker {
    workspace: Workspace,
    waiting: Waiting,
    short: SideBySide<{ SHORT + 1 }>,
    medium: SideBySide<{ MEDIUM + 1 }>,
    /// None while a text is encoded.
    keys: Option<Box<Keys>>,
}

/// The most new pieces that are merged side by side: their state stays in the L1 cache.
const SIDE_BY_SIDE: usize = 16;

impl PieceWorker {
    pub fn new(cache: PieceCache) -> Self {
        let (waiting, short, medium) = Default::default();
        Self { workspace: Workspace::new(cache), waiting, short, medium, keys: None }
    }

    /// Frees the buffers that a long text has grown.
    pub fn shrink(&mut self) {
        self.workspace.shrink();
    }

    /// Adds a stretch of text to others that are cut, a space in front of it if that is asked for.
    pub fn cut(&mut self, model: &Model, rules: &TextRules, text: &str, in_front: bool, cut: &mut CutText) {
        let (bytes, ends) = cut.unpadded();
        let start = bytes.len();
        let n = rules.pad(text, in_front, bytes);
        model.cut(rules, &bytes[start..], n, &mut self.workspace);
        self.workspace.cuts.push_ends(model.table().kernel(), start as u32, ends);
    }

    /// Appends the ids of all pieces, and leaves none.
    pub fn encode(&mut self, model: &Model, cut: &mut CutText, ids: &mut Vec<u32>) {
        let mut keys = self.keys.take().unwrap_or_default();
        let (text, ends) = cut.padded();
        let mut batch = PieceBatch::new(model.table().kernel(), text, ends, &mut keys);
        while batch.next(&self.workspace.cache) {
            self.encode_batch(model, &mut batch, ids);
            self.workspace.cache.maintain();
        }
        self.keys = Some(keys);
        cut.clear();
    }

    /// Appends the ids of a batch, and of following batches if it has new pieces.
    fn encode_batch(&mut self, model: &Model, batch: &mut PieceBatch, ids: &mut Vec<u32>) {
        let mut index = batch.range().start;
        loop {
            index = batch.write_hits(&self.workspace.cache, index, ids);
            if index == batch.range().end {
                return;
            }
            let piece = batch.piece(index);
            if let Some(words) = batch.find(&self.workspace.cache, index) {
                self.workspace.cache.append_packed(words, ids);
            } else if model.can_start() && piece.len() <= MEDIUM {
                return self.encode_new(model, batch, index, ids);
            } else {
                self.encode_rare(model, piece, batch.place(index), ids);
            }
            index += 1;
        }
    }

    /// Appends the ids of a batch from a new piece on, and of the batches that wait together with it.
    #[inline(never)]
    fn encode_new(&mut self, model: &Model, batch: &mut PieceBatch, first: usize, ids: &mut Vec<u32>) {
        self.waiting.clear();
        self.waiting.add(batch, first, &self.workspace.cache);
        while self.waiting.takes_more() && batch.next(&self.workspace.cache) {
            self.waiting.add(batch, batch.range().start, &self.workspace.cache);
        }
        self.learn(model, batch, first);
        let mut index = 0;
        loop {
            index = self.waiting.write(model.table().kernel(), index, ids);
            if index == self.waiting.len() {
                return;
            }
            let (piece, value) = (batch.piece(first + index), self.waiting.value(index));
            match absent_place(value) {
                Some(place) => self.encode_rare(model, piece, place, ids),
                None => self.workspace.cache.append_packed(value, ids),
            }
            index += 1;
        }
    }

    /// Merges the new ones of the pieces that wait; `first` is the index of the first that waits.
    fn learn(&mut self, model: &Model, batch: &PieceBatch, first: usize) {
        let Self { workspace: Workspace { cache, .. }, waiting, short, medium, .. } = self;
        let id = |symbol| model.table().id(symbol);
        // The same piece may wait twice.
        learn(model, batch, first, waiting, short, Waiting::short, |Miss { key, place, .. }, word| {
            if let Some(kept) = cache.short().find(Plain, key, place) {
                return Some(*kept);
            }
            let value = few(word, id).or_else(|| word.with_ids(id, |ids| cache.pack(ids)))?;
            cache.put_short(key, place, value);
            Some(value)
        });
        learn(model, batch, first, waiting, medium, Waiting::medium, |Miss { key, place, .. }, word| {
            if let Some(kept) = cache.find_medium(&key, place) {
                return Some(as_value(kept, place));
            }
            let value = match few(word, id) {
                Some([first, second]) => [first, second, 0, 0],
                None => word.with_ids(id, |ids| cache.pack(ids))?,
            };
            cache.put_medium(&key, place, value);
            Some(as_value(&value, place))
        });
    }

    /// Appends the ids of a piece that is long, or has many of them, or is new and not merged as a whole, as an added token
    /// is not.
    #[inline(never)]
    fn encode_rare(&mut self, model: &Model, piece: Piece, place: usize, ids: &mut Vec<u32>) {
        let lookup = Lookup::at(piece, place);
        self.workspace.recall_or(lookup.as_ref(), ids, |workspace, ids| match token_id(piece.bytes()) {
            Some(id) => ids.push(id),
            None => model.encode(piece, workspace, ids),
        });
    }
}

/// Merges some new ones of the pieces that wait side by side, and gives each the value that `keep` makes of it.
fn learn<const W: usize, K: Copy>(
    model: &Model,
    batch: &PieceBatch,
    first: usize,
    waiting: &mut Waiting,
    words: &mut SideBySide<W>,
    misses: impl Fn(&Waiting) -> &[Miss<K>],
    mut keep: impl FnMut(Miss<K>, &Merging<W>) -> Option<Value>,
) {
    for start in (0..misses(waiting).len()).step_by(SIDE_BY_SIDE) {
        words.clear();
        for (tag, miss) in misses(waiting).iter().enumerate().skip(start).take(SIDE_BY_SIDE) {
            let piece = batch.piece(first + miss.index).bytes();
            words.add(tag, |merging| token_id(piece).is_none() && model.start(piece, merging));
        }
        model.table().merge_all(words);
        for word in words.iter() {
            let miss = misses(waiting)[word.tag()];
            if let Some(value) = keep(miss, word) {
                waiting.set(miss.index, value);
            }
        }
    }
}

/// The ids of a word, if one value holds them.
#[inline(always)]
fn few<const W: usize>(word: &Merging<W>, id: impl Fn(u32) -> u32) -> Option<Value> {
    let count = word.count() as usize;
    (count <= FEW).then(|| pack_few(word.first_ids(id), count))
}
