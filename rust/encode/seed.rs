//! What a worker's cache holds before the first text: the pieces that are tokens.
//!
//! Nearly every one of them will be met, and each would be a miss (5 to 18 of 100 misses of a first
//! pass). A token is kept with what its characters merge to, which need not be itself.

use super::bytes::{PairMemo, Workspace};
use super::cache::{MEDIUM, PieceCache, Plain, Probe, SHORT, medium_key};
use super::fast::FastEncoder;
use super::rules::MergeRules;
use super::split::{PADDING, SplitScratch};
use super::words::Scratch;

/// A cache of so many bytes at most with the tokens in it, the later ids first: of two tokens that go to
/// one bucket, the one with the lower id, which is the more frequent, is the one to stay.
pub fn seeds(encoder: &FastEncoder, rules: &MergeRules, cache_bytes: usize) -> PieceCache {
    let tokens: Vec<(&str, u32)> = encoder.vocab.entries().collect();
    let mut seeds = PieceCache::new(cache_bytes, tokens.len());
    let mut seeder = Seeder::new(encoder, &seeds);
    for (token, id) in tokens.iter().rev() {
        seeder.add(token, rules.makes(*id).then_some(*id), &mut seeds);
    }
    seeds
}

struct Seeder<'a> {
    encoder: &'a FastEncoder,
    /// For the parts of pieces, which are not what is wanted in the seeds.
    parts: PieceCache,
    scratch: Scratch,
    memo: PairMemo,
    split: SplitScratch,
    ends: Vec<u32>,
    ids: Vec<u32>,
}

impl<'a> Seeder<'a> {
    fn new(encoder: &'a FastEncoder, seeds: &PieceCache) -> Self {
        Self {
            encoder,
            parts: PieceCache::new(seeds.bytes() / 8, 0),
            scratch: Scratch::default(),
            memo: PairMemo::default(),
            split: SplitScratch::default(),
            ends: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// Adds a token, given its id if that is what it merges to.
    fn add(&mut self, token: &str, id: Option<u32>, seeds: &mut PieceCache) {
        let Some(mut text) = self.encoder.token_as_piece(token) else { return };
        let n = text.len();
        text.resize(n + PADDING, 0);
        if n == 0 || n > MEDIUM || !self.is_piece(&text, n) {
            return;
        }
        self.ids.clear();
        if let Some(id) = id {
            self.ids.push(id);
        } else {
            self.parts.maintain();
            let mut workspace =
                Workspace { cache: &mut self.parts, scratch: &mut self.scratch, memo: &mut self.memo };
            self.encoder.encode_piece(&text, (0, n), &mut workspace, &mut self.ids);
        }
        if n <= SHORT {
            let key = Plain.key(&text, 0, n);
            seeds.insert_short(key, seeds.short().place(key), &self.ids);
        } else {
            let key = medium_key(&text, 0, n);
            seeds.insert_medium(&key, seeds.medium_place(&key), &self.ids);
        }
    }

    /// Whether text is ever cut so that this is a piece: it is one when it stands alone.
    fn is_piece(&mut self, text: &[u8], n: usize) -> bool {
        self.ends.clear();
        std::str::from_utf8(&text[..n]).is_ok() && {
            self.encoder.cut(text, n, &mut self.split, &mut self.ends);
            self.ends == [n as u32]
        }
    }
}
