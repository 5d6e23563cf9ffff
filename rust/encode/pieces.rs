//! From pieces to ids: batches of look-ups in the cache, and what happens on a miss.

use super::bytes::Bytes;
use super::cache::{PieceCache, SHORT};
use super::hits::{BATCH, Batch};
use super::kernel::Plain;
use super::merge::MergeTable;
use super::merging::{Merging, SideBySide};
use super::piece::Piece;
use super::spelling;
use super::split::SplitScratch;
use super::spm::{Characters, MARKER};
use super::workspace::Workspace;

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
    pub fn is_one(&self, text: &[u8], n: usize, split: &mut SplitScratch) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_one(text, n, split),
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
    /// The new pieces of a batch, while they are merged.
    new_pieces: SideBySide<{ SHORT + 1 }>,
}

impl PieceWorker {
    pub fn new(cache: PieceCache) -> Self {
        Self { workspace: Workspace::new(cache), new_pieces: SideBySide::default() }
    }

    pub fn bytes(&self) -> usize {
        self.workspace.bytes() + self.new_pieces.bytes()
    }

    /// Lets go of what a long text has left behind.
    pub fn shrink(&mut self) {
        self.workspace.shrink();
    }

    /// Appends the ids of all pieces of a padded text, given where each ends.
    pub fn encode(&mut self, pieces: &Pieces, text: &[u8], ends: &[u32], ids: &mut Vec<u32>) {
        let mut batch = Batch::new(pieces.table().kernel(), text);
        for ends in ends.chunks(BATCH) {
            self.workspace.cache.maintain();
            batch.prepare(&self.workspace.cache, ends);
            let mut learned = !pieces.can_start();
            let mut done = batch.write_hits(&self.workspace.cache, 0, ids);
            while done < ends.len() {
                if !learned && batch.is_miss(&self.workspace.cache, done) {
                    learned = true;
                    self.learn(pieces, &batch, done);
                }
                self.rare(pieces, &batch, done, ids);
                done = batch.write_hits(&self.workspace.cache, done + 1, ids);
            }
        }
    }

    /// Merges the new pieces of a batch from one of them on, side by side. There are five on average while a
    /// text of a new kind begins.
    #[inline(never)]
    fn learn(&mut self, pieces: &Pieces, batch: &Batch, first: usize) {
        let Self { workspace: Workspace { cache, .. }, new_pieces } = self;
        let table = pieces.table();
        new_pieces.clear();
        for index in batch.misses(cache, first).iter() {
            new_pieces.add(index, |merging| pieces.start(batch.piece(index).bytes(), merging));
        }
        table.merge_all(new_pieces);
        for piece in new_pieces.iter() {
            let (key, place) = (batch.keys[piece.tag()], batch.places[piece.tag()]);
            // The same piece may be twice in a batch.
            if cache.short().find(Plain, key, place).is_none() {
                piece.with_ids(|symbol| table.id(symbol), |ids| cache.insert_short(key, place, ids));
            }
        }
    }

    /// A piece that is new, long, or has many ids.
    #[inline(never)]
    fn rare(&mut self, pieces: &Pieces, batch: &Batch, index: usize, ids: &mut Vec<u32>) {
        self.workspace.recall_or(batch.lookup(index).as_ref(), ids, |workspace, ids| {
            pieces.encode(batch.piece(index), workspace, ids);
        });
    }
}
