//! From pieces to ids: batches of look-ups in the cache, and what happens on a miss.

mod batch;
pub mod cache;
pub mod piece;
pub mod seed;
mod waiting;
pub mod workspace;

use crate::encode::kernel::Plain;
use crate::encode::merge::MergeTable;
use crate::encode::merge::word::{Merging, SideBySide};
use crate::encode::model::bytes::Bytes;
use crate::encode::model::spm::{Characters, MARKER};
use crate::encode::spelling;
use crate::encode::text::TextRules;
use batch::PieceBatch;
use cache::packed::{FEW, Value, absent_place, as_value, pack_few};
use cache::{Lookup, MEDIUM, PieceCache, SHORT};
use piece::Piece;
use waiting::{Miss, Waiting};
use workspace::Workspace;

/// What a piece consists of.
pub enum Pieces {
    Bytes(Box<Bytes>),
    Characters(Box<Characters>),
}

impl Pieces {
    /// The merges of these.
    pub fn table(&self) -> &MergeTable {
        match self {
            Self::Bytes(bytes) => bytes.table(),
            Self::Characters(characters) => characters.table(),
        }
    }

    /// Cuts a padded text into what is looked up: pieces, or the groups in them where they are merged as they are. The
    /// cuts are left in the workspace.
    pub fn cut(&self, rules: &TextRules, text: &[u8], n: usize, workspace: &mut Workspace) {
        let Workspace { split, cuts, .. } = workspace;
        rules.cut(text, n, split, cuts);
        match self {
            Self::Bytes(bytes) if bytes.splits_first() => {}
            Self::Bytes(bytes) => bytes.cut_groups(text, cuts),
            Self::Characters(characters) => characters.cut_groups(text, cuts),
        }
    }

    /// Appends the ids of a piece, without looking it up.
    pub fn encode(&self, piece: Piece, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        match self {
            Self::Bytes(bytes) => bytes.encode(piece, workspace, ids),
            Self::Characters(characters) => characters.encode(piece.bytes(), &mut workspace.scratch, ids),
        }
    }

    /// Whether there are pieces that [`start`](Self::start) takes.
    fn can_start(&self) -> bool {
        match self {
            Self::Bytes(bytes) => !bytes.splits_first(),
            Self::Characters(_) => true,
        }
    }

    /// Starts to merge a piece of up to `W` bytes, if it is merged as a whole.
    #[inline]
    fn start<const W: usize>(&self, piece: &[u8], merging: &mut Merging<W>) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.start(piece, merging),
            Self::Characters(characters) => characters.start(piece, merging),
        }
    }

    /// Whether a padded text, which is looked up as a whole, is merged as a whole.
    pub fn is_one(&self, text: &[u8], n: usize, workspace: &mut Workspace) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_one(text, n, workspace),
            Self::Characters(_) => true,
        }
    }

    /// A token's bytes as they stand in pieces, none if no text can hold them.
    pub fn token_as_piece(&self, token: &str) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(_) => spelling::bytes(token),
            Self::Characters(_) => (!token.contains(' ')).then(|| token.replace(MARKER, " ").into_bytes()),
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.bytes(),
            Self::Characters(characters) => characters.bytes(),
        }
    }
}

/// Encodes pieces on one thread.
pub struct PieceWorker {
    workspace: Workspace,
    waiting: Waiting,
    short: SideBySide<{ SHORT + 1 }>,
    medium: SideBySide<{ MEDIUM + 1 }>,
}

/// The most new pieces that are merged side by side: their state stays in the L1 cache.
const SIDE_BY_SIDE: usize = 16;

impl PieceWorker {
    pub fn new(cache: PieceCache) -> Self {
        let (waiting, short, medium) = Default::default();
        Self { workspace: Workspace::new(cache), waiting, short, medium }
    }

    pub fn bytes(&self) -> usize {
        self.workspace.bytes() + self.waiting.bytes() + self.short.bytes() + self.medium.bytes()
    }

    /// Frees the buffers that a long text has grown.
    pub fn shrink(&mut self) {
        self.workspace.shrink();
    }

    /// Replaces `ends` by the ends of what is looked up in a padded text.
    pub fn cut(&mut self, pieces: &Pieces, rules: &TextRules, text: &[u8], n: usize, ends: &mut Vec<u32>) {
        pieces.cut(rules, text, n, &mut self.workspace);
        self.workspace.cuts.write_ends(pieces.table().kernel(), ends);
    }

    /// Appends the ids of all pieces of a padded text, given where each ends.
    pub fn encode(&mut self, pieces: &Pieces, text: &[u8], ends: &[u32], ids: &mut Vec<u32>) {
        let mut batch = PieceBatch::new(pieces.table().kernel(), text, ends);
        self.workspace.cache.maintain();
        while batch.next(&self.workspace.cache) {
            self.encode_batch(pieces, &mut batch, ids);
            self.workspace.cache.maintain();
        }
    }

    /// Appends the ids of a batch, and of following batches if it has new pieces.
    fn encode_batch(&mut self, pieces: &Pieces, batch: &mut PieceBatch, ids: &mut Vec<u32>) {
        let mut index = batch.range().start;
        loop {
            index = batch.write_hits(&self.workspace.cache, index, ids);
            if index == batch.range().end {
                return;
            }
            if pieces.can_start() && batch.is_miss(&self.workspace.cache, index) {
                return self.encode_new(pieces, batch, index, ids);
            }
            self.encode_rare(pieces, batch.piece(index), batch.place(index), ids);
            index += 1;
        }
    }

    /// Appends the ids of a batch from a new piece on, and of the batches that wait together with it.
    #[inline(never)]
    fn encode_new(&mut self, pieces: &Pieces, batch: &mut PieceBatch, first: usize, ids: &mut Vec<u32>) {
        self.waiting.clear();
        self.waiting.add(batch, first, &self.workspace.cache);
        while self.waiting.takes_more() && batch.next(&self.workspace.cache) {
            self.waiting.add(batch, batch.range().start, &self.workspace.cache);
        }
        self.learn(pieces, batch, first);
        let mut index = 0;
        loop {
            index = self.waiting.write(pieces.table().kernel(), index, ids);
            if index == self.waiting.len() {
                return;
            }
            let (piece, value) = (batch.piece(first + index), self.waiting.value(index));
            match absent_place(value) {
                Some(place) => self.encode_rare(pieces, piece, place, ids),
                None => self.workspace.cache.append_packed(value, ids),
            }
            index += 1;
        }
    }

    /// Merges the new ones of the pieces that wait; `first` is the index of the first that waits.
    fn learn(&mut self, pieces: &Pieces, batch: &PieceBatch, first: usize) {
        let Self { workspace: Workspace { cache, .. }, waiting, short, medium } = self;
        let id = |symbol| pieces.table().id(symbol);
        // The same piece may wait twice.
        learn(pieces, batch, first, waiting, short, Waiting::short, |Miss { key, place, .. }, word| {
            if let Some(kept) = cache.short().find(Plain, key, place) {
                return Some(*kept);
            }
            let value = few(word, id).or_else(|| word.with_ids(id, |ids| cache.pack(ids)))?;
            cache.put_short(key, place, value);
            Some(value)
        });
        learn(pieces, batch, first, waiting, medium, Waiting::medium, |Miss { key, place, .. }, word| {
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

    /// Appends the ids of a piece that is long, or has many of them, or is new and not merged as a whole.
    #[inline(never)]
    fn encode_rare(&mut self, pieces: &Pieces, piece: Piece, place: usize, ids: &mut Vec<u32>) {
        let lookup = Lookup::at(piece, place);
        self.workspace.recall_or(lookup.as_ref(), ids, |workspace, ids| {
            pieces.encode(piece, workspace, ids);
        });
    }
}

/// Merges some new ones of the pieces that wait side by side, and gives each the value that `keep` makes of it.
fn learn<const W: usize, K: Copy>(
    pieces: &Pieces,
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
            words.add(tag, |merging| pieces.start(piece, merging));
        }
        pieces.table().merge_all(words);
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
