//! From pieces to ids: batches of look-ups in the cache, and what happens on a miss.

use super::bytes::{Bytes, PairMemo, Spelling, Workspace};
use super::cache::{Found, MEDIUM, MediumKey, PieceCache, SHORT, Size, count, medium_key, short_key, unpack};
use super::kernel::Kernel;
use super::merge::MergeTable;
use super::merging::{Merging, SideBySide};
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

    /// Starts to merge a piece of up to `W` bytes, if it is merged as a whole.
    #[inline]
    fn start<const W: usize>(&self, table: &MergeTable, piece: &[u8], merging: &mut Merging<W>) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.start(table, piece, merging),
            Self::Characters(characters) => characters.start(table, piece, merging),
        }
    }

    /// A token's bytes as they stand in pieces, none if no text can hold them.
    pub fn token_as_piece(&self, token: &str) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(_) => Spelling::new().bytes(token),
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
    /// The new pieces of a batch, while they are merged.
    new_pieces: SideBySide<{ SHORT + 1 }>,
}

/// So many pieces are prefetched before the first of them is looked up: by then their cache lines have
/// come. 1.3 times faster than one by one.
const BATCH: usize = 128;

/// The most ids that a found piece writes at once, and how far unpacking may write behind them.
const MOST_IDS: usize = 10;
const ROOM: usize = 16;

/// A batch of pieces: where it starts, keys of the short ones (zero for others) and the places to look at.
struct Batch {
    start: usize,
    keys: [u128; BATCH],
    places: [usize; BATCH],
}

impl PieceWorker {
    pub fn new(cache: PieceCache) -> Self {
        Self {
            cache,
            scratch: Scratch::default(),
            memo: PairMemo::default(),
            new_pieces: SideBySide::default(),
        }
    }

    pub fn bytes(&self) -> usize {
        self.cache.bytes() + self.memo.bytes()
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
        match kernel {
            Kernel::Portable => self.run(&context, ends, ids, |word| unpack(*word)),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this kernel is chosen only where the processor has its features.
            Kernel::Avx2 => unsafe { self.run_avx2(&context, ends, ids) },
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn run_avx2(&mut self, context: &Context, ends: &[u32], ids: &mut Vec<u32>) {
        self.run(context, ends, ids, |word| unpack_avx2(word));
    }

    #[inline(always)]
    fn run(
        &mut self,
        context: &Context,
        ends: &[u32],
        mut ids: &mut Vec<u32>,
        unpack: impl Fn(&u128) -> [u32; 8],
    ) {
        let mut batch = Batch { start: 0, keys: [0; BATCH], places: [0; BATCH] };
        let mut start = 0;
        for ends in ends.chunks(BATCH) {
            self.cache.maintain();
            self.prepare(context.text, start, ends, &mut batch);
            let mut out = Writer::new(ids);
            let mut learned = false;
            let mut pieces = ends.iter().zip(&batch.keys).zip(&batch.places);
            while let Some(((end, key), place)) = pieces.next() {
                let end = *end as usize;
                if *key != 0 {
                    if let Some(word) = self.cache.find_short(*key, *place) {
                        let count = usize::from(count(*word));
                        if count <= 5 {
                            out.write(unpack(word), count);
                            start = end;
                            continue;
                        }
                    }
                } else if end - start <= MEDIUM {
                    let key = medium_key(context.text, start, end - start);
                    if let Some(Found::PackedTwice([low, high], count)) = self.cache.find_medium(key, *place)
                    {
                        out.write(unpack(low), count.min(5));
                        out.write(unpack(high), count.saturating_sub(5));
                        start = end;
                        continue;
                    }
                }
                let found = out.finish();
                if !learned && *key != 0 {
                    learned = true;
                    self.learn(context, ends, &batch, ends.len() - pieces.len() - 1);
                }
                self.rare(context, (start, end), *place, found);
                out = Writer::new(found);
                start = end;
            }
            ids = out.finish();
        }
    }

    /// Keys and places of a batch, the places' cache lines asked for.
    #[inline(always)]
    fn prepare(&self, text: &[u8], mut start: usize, ends: &[u32], batch: &mut Batch) {
        batch.start = start;
        for ((end, key), place) in ends.iter().zip(&mut batch.keys).zip(&mut batch.places) {
            let len = *end as usize - start;
            *key = 0;
            if len <= SHORT {
                *key = short_key(text, start, len);
                *place = self.cache.short_place(*key);
                self.cache.prefetch_short(*place);
            } else if len <= MEDIUM {
                *place = self.cache.medium_place(medium_key(text, start, len));
                self.cache.prefetch_medium(*place);
            }
            start = *end as usize;
        }
    }

    /// Merges the new pieces of a batch from one of them on, side by side. There are five on average while a
    /// text of a new kind begins.
    #[inline(never)]
    fn learn(&mut self, context: &Context, ends: &[u32], batch: &Batch, first: usize) {
        let Context { table, pieces, text } = *context;
        let Self { cache, new_pieces, .. } = self;
        new_pieces.clear();
        for index in first..ends.len() {
            let (key, place) = (batch.keys[index], batch.places[index]);
            if key != 0 && cache.find_short(key, place).is_none() {
                let start = if index == 0 { batch.start } else { ends[index - 1] as usize };
                let piece = &text[start..ends[index] as usize];
                new_pieces.add(index, |merging| pieces.start(table, piece, merging));
            }
        }
        table.merge_all(new_pieces);
        for piece in new_pieces.iter() {
            let (key, place) = (batch.keys[piece.tag()], batch.places[piece.tag()]);
            // The same piece may be twice in a batch.
            if cache.find_short(key, place).is_none() {
                piece.with_ids(|symbol| table.id(symbol), |ids| cache.insert_short(key, place, ids));
            }
        }
    }

    /// A piece that is new, long, or has many ids.
    #[inline(never)]
    fn rare(&mut self, context: &Context, (start, end): (usize, usize), place: usize, ids: &mut Vec<u32>) {
        let len = end - start;
        let begin = ids.len();
        match Size::of(len) {
            Size::Short => {
                let key = short_key(context.text, start, len);
                if let Some(word) = self.cache.find_short(key, place) {
                    return self.cache.packed(*word).append_to(ids);
                }
                self.miss(context, (start, end), ids);
                self.cache.insert_short(key, place, &ids[begin..]);
            }
            Size::Medium => {
                let key: MediumKey = medium_key(context.text, start, len);
                if let Some(found) = self.cache.find_medium(key, place) {
                    return found.append_to(ids);
                }
                self.miss(context, (start, end), ids);
                self.cache.insert_medium(key, place, &ids[begin..]);
            }
            Size::Long => {
                let piece = &context.text[start..end];
                if let Some(found) = self.cache.find_long(piece) {
                    return ids.extend_from_slice(found);
                }
                self.miss(context, (start, end), ids);
                self.cache.insert_long(piece, &ids[begin..]);
            }
            Size::TooLong => self.miss(context, (start, end), ids),
        }
    }

    fn miss(&mut self, context: &Context, piece: (usize, usize), ids: &mut Vec<u32>) {
        let Self { cache, scratch, memo, .. } = self;
        let mut workspace = Workspace { cache, scratch, memo };
        context.pieces.encode(context.table, context.text, piece, &mut workspace, ids);
    }
}

/// What stays the same through a text.
struct Context<'a> {
    table: &'a MergeTable,
    pieces: &'a Pieces,
    text: &'a [u8],
}

/// Writes ids behind the end of a vector that has room for a batch of them, without a check for each.
struct Writer<'a> {
    ids: &'a mut Vec<u32>,
    len: usize,
}

impl<'a> Writer<'a> {
    #[inline(always)]
    fn new(ids: &'a mut Vec<u32>) -> Self {
        ids.reserve(BATCH * MOST_IDS + ROOM);
        let len = ids.len();
        Self { ids, len }
    }

    /// Writes the first `count` ids, at most five of them.
    #[inline(always)]
    fn write(&mut self, block: [u32; 8], count: usize) {
        // SAFETY: there is room for a batch, of which each piece writes at most `MOST_IDS` ids, and for a
        // whole block behind it; a writer writes no more than one batch.
        unsafe { self.ids.as_mut_ptr().add(self.len).cast::<[u32; 8]>().write(block) };
        self.len += count;
    }

    #[inline(always)]
    fn finish(self) -> &'a mut Vec<u32> {
        // SAFETY: `write` has written all ids up to there.
        unsafe { self.ids.set_len(self.len) };
        self.ids
    }
}

/// The same as [`unpack`] with one shuffle.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn unpack_avx2(word: &u128) -> [u32; 8] {
    use std::arch::x86_64::{
        _mm_loadu_si128, _mm256_broadcastsi128_si256, _mm256_setr_epi8, _mm256_shuffle_epi8,
    };
    let places = _mm256_setr_epi8(
        0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, //
        12, 13, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
    );
    // SAFETY: the word is 16 bytes, and a vector of 32 bytes is eight numbers of 32 bits.
    unsafe {
        let word = _mm256_broadcastsi128_si256(_mm_loadu_si128(std::ptr::from_ref(word).cast()));
        std::mem::transmute(_mm256_shuffle_epi8(word, places))
    }
}
