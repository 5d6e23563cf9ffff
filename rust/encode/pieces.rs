//! From pieces to ids: batches of look-ups in the cache, and what happens on a miss.

use super::bytes::{Bytes, PairMemo, Workspace};
use super::cache::{Lookup, PieceCache, Probe, SHORT, Size, medium_key};
use super::hits::{BATCH, Batch};
use super::kernel::{Kernel, Plain};
use super::merge::MergeTable;
use super::merging::{Merging, SideBySide};
use super::spelling;
use super::split::SplitScratch;
use super::spm::{Characters, MARKER};
use super::words::Scratch;

/// What a piece consists of.
pub enum Pieces {
    Bytes(Box<Bytes>),
    Characters(Box<Characters>),
}

impl Pieces {
    /// Appends the ids of the piece at `start..end`, without looking it up.
    pub fn encode(
        &self,
        table: &MergeTable,
        text: &[u8],
        (start, end): (usize, usize),
        workspace: &mut Workspace,
        ids: &mut Vec<u32>,
    ) {
        match self {
            Self::Bytes(bytes) => bytes.encode(table, text, (start, end), workspace, ids),
            Self::Characters(characters) => {
                characters.encode(table, &text[start..end], workspace.scratch, ids);
            }
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
    fn start<const W: usize>(&self, table: &MergeTable, piece: &[u8], merging: &mut Merging<W>) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.start(table, piece, merging),
            Self::Characters(characters) => characters.start(table, piece, merging),
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
            Self::Bytes(bytes) => bytes.memory(),
            Self::Characters(characters) => characters.bytes(),
        }
    }
}

/// What one thread keeps from piece to piece.
pub struct PieceWorker {
    cache: PieceCache,
    scratch: Scratch,
    memo: PairMemo,
    split: SplitScratch,
    /// The new pieces of a batch, while they are merged.
    new_pieces: SideBySide<{ SHORT + 1 }>,
}

impl PieceWorker {
    pub fn new(cache: PieceCache) -> Self {
        Self {
            cache,
            scratch: Scratch::default(),
            memo: PairMemo::default(),
            split: SplitScratch::default(),
            new_pieces: SideBySide::default(),
        }
    }

    pub fn bytes(&self) -> usize {
        self.cache.bytes() + self.memo.bytes()
    }

    /// Lets go of what a long text has left behind.
    pub fn shrink(&mut self) {
        (self.scratch, self.split) = Default::default();
    }

    /// Appends the ids of all pieces of a padded text, given where each ends.
    pub fn encode(
        &mut self,
        table: &MergeTable,
        pieces: &Pieces,
        kernel: Kernel,
        text: &[u8],
        ends: &[u32],
        ids: &mut Vec<u32>,
    ) {
        let context = Context { table, pieces, text };
        let mut batch = Batch::new();
        for ends in ends.chunks(BATCH) {
            self.cache.maintain();
            batch.prepare(kernel, &self.cache, text, ends);
            let mut learned = !pieces.can_start();
            let mut done = batch.write_hits(kernel, &self.cache, 0, ends.len(), ids);
            while done < ends.len() {
                if !learned && batch.is_miss(&self.cache, done) {
                    learned = true;
                    self.learn(kernel, &context, ends, &batch, done);
                }
                self.rare(&context, batch.piece(ends, done), batch.places[done], ids);
                done = batch.write_hits(kernel, &self.cache, done + 1, ends.len(), ids);
            }
            batch.start = ends[ends.len() - 1] as usize;
        }
    }

    /// Merges the new pieces of a batch from one of them on, side by side. There are five on average while a
    /// text of a new kind begins.
    #[inline(never)]
    fn learn(&mut self, kernel: Kernel, context: &Context, ends: &[u32], batch: &Batch, first: usize) {
        let Context { table, pieces, text } = *context;
        let Self { cache, new_pieces, .. } = self;
        new_pieces.clear();
        for index in batch.misses(kernel, cache, first, ends.len()).iter() {
            let (start, end) = batch.piece(ends, index);
            new_pieces.add(index, |merging| pieces.start(table, &text[start..end], merging));
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
    fn rare(&mut self, context: &Context, (start, end): (usize, usize), place: usize, ids: &mut Vec<u32>) {
        let Self { cache, scratch, memo, split, .. } = self;
        let mut encode = |cache: &mut PieceCache, ids: &mut Vec<u32>| {
            let mut workspace = Workspace { cache, scratch, memo, split };
            context.pieces.encode(context.table, context.text, (start, end), &mut workspace, ids);
        };
        let piece = match Size::of(end - start) {
            Size::Short => Lookup::Short(Plain.key(context.text, start, end - start), place),
            Size::Medium => Lookup::Medium(medium_key(context.text, start, end - start), place),
            Size::Long => Lookup::Long(&context.text[start..end]),
            Size::TooLong => return encode(cache, ids),
        };
        cache.append_or(&piece, ids, encode);
    }
}

/// What stays the same through a text.
struct Context<'a> {
    table: &'a MergeTable,
    pieces: &'a Pieces,
    text: &'a [u8],
}
