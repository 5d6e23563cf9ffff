//! The piece cache: what pieces encode to, for the pieces met so far. One for each worker.
//!
//! Text repeats itself: on books 98 of 100 pieces have been met before, so a look-up is what most of the
//! time goes into, and its layout decides the speed.
//!
//! - The key is the piece itself and is compared as a whole, so a hit is never wrong. A piece of up to
//!   15 bytes with its length makes one 128-bit number; two numbers hold up to 31 bytes.
//! - The ids stand beside the key, five to a number, 24 bits each: a hit touches one cache line.
//! - A bucket has two ways, and the way is selected without a branch. New pieces come into the first
//!   way and push its piece into the second. Against one way this was the largest single gain (1.6
//!   times); four ways were slower.
//! - The tables start small, because a small table is a fast one and most texts need no more, and grow
//!   by the pieces they push out, up to a bound.
//!
//! Pieces of 32 to [`LONG`] bytes of ASCII (rules of dashes, long names) are in a hash map; others and
//! longer ones are not kept: they hardly come again, and long ones in other scripts are cut further.
//! Pieces with more ids than a slot holds have them in `spilled`. When the map or `spilled` reaches its
//! bound, it is forgotten, with what refers to it: that only costs time.

use ahash::AHashMap;

use super::kernel::prefetch;
use super::memory::Words;

/// Ids that one 128-bit number holds.
const IDS_PER_WORD: usize = 5;
/// Longest piece of each table.
pub const SHORT: usize = 15;
pub const MEDIUM: usize = 31;
pub const LONG: usize = 128;

/// Where a piece is kept.
pub enum Size {
    Short,
    Medium,
    Long,
    /// Nowhere.
    TooLong,
}

impl Size {
    pub fn of(len: usize) -> Self {
        if len <= SHORT {
            Self::Short
        } else if len <= MEDIUM {
            Self::Medium
        } else if len <= LONG {
            Self::Long
        } else {
            Self::TooLong
        }
    }
}

/// Buckets for short pieces that a table begins with. Nearly every text fills them.
const FIRST_BUCKETS: usize = 1 << 16;

/// The count byte of a slot whose ids are in `spilled`.
const SPILLED: u8 = 0xFF;

/// A short piece with its length in the top byte.
pub type ShortKey = u128;
/// A medium piece: its first 16 bytes, then the rest with the length in the top byte.
pub type MediumKey = [u128; 2];

/// Marks the key of a part of a piece, where parts and whole pieces may differ in their ids.
pub const PART: u128 = 1 << 127;

/// The ids of pieces.
#[derive(Clone)]
pub struct PieceCache {
    short: Table<2>,
    medium: Table<4>,
    long: AHashMap<Box<[u8]>, Box<[u32]>>,
    long_bytes: usize,
    spilled: Vec<u32>,
    bound: usize,
}

/// A value found in the cache.
#[derive(Clone, Copy)]
pub enum Found<'a> {
    /// Up to five ids, as [`unpack`] takes them, and their number.
    Packed(u128, usize),
    /// Up to ten.
    PackedTwice([&'a u128; 2], usize),
    Ids(&'a [u32]),
}

impl Found<'_> {
    /// Appends the ids one by one; the batch loop has a quicker way.
    pub fn append_to(self, ids: &mut Vec<u32>) {
        match self {
            Self::Packed(word, count) => ids.extend_from_slice(&unpack(word)[..count]),
            Self::PackedTwice([low, high], count) => {
                ids.extend_from_slice(&unpack(*low)[..count.min(IDS_PER_WORD)]);
                ids.extend_from_slice(&unpack(*high)[..count.saturating_sub(IDS_PER_WORD)]);
            }
            Self::Ids(spilled) => ids.extend_from_slice(spilled),
        }
    }
}

impl PieceCache {
    /// An empty cache that stays within about `bound` bytes, with room for `pieces` to begin with.
    pub fn new(bound: usize, pieces: usize) -> Self {
        // Half for short pieces, a quarter for medium ones, an eighth each for long ones and spilled ids.
        let short_bound = largest_table(bound / 2, size_of::<[[u128; 2]; 2]>());
        let medium_bound = largest_table(bound / 4, size_of::<[[u128; 4]; 2]>());
        let start = pieces.next_power_of_two().max(FIRST_BUCKETS);
        Self {
            short: Table::new(start.min(short_bound), short_bound),
            medium: Table::new((start / 8).min(medium_bound), medium_bound),
            long: AHashMap::new(),
            long_bytes: 0,
            spilled: Vec::new(),
            bound,
        }
    }

    /// Grows or clears what is due. Never between computing a place and using it: call it between
    /// batches.
    pub fn maintain(&mut self) {
        self.short.grow_if_due();
        self.medium.grow_if_due();
        if self.spilled.len() * size_of::<u32>() > self.bound / 8 {
            self.short.clear();
            self.medium.clear();
            self.spilled.clear();
        }
        if self.long_bytes > self.bound / 8 {
            self.long.clear();
            self.long_bytes = 0;
        }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.short.bytes()
            + self.medium.bytes()
            + self.spilled.capacity() * size_of::<u32>()
            + self.long_bytes
    }

    /// The place of a short piece, to prefetch and then to [`find_short`](Self::find_short).
    #[inline(always)]
    pub fn short_place(&self, key: ShortKey) -> usize {
        self.short.place(hash(key))
    }

    #[inline(always)]
    pub fn prefetch_short(&self, place: usize) {
        self.short.prefetch(place);
    }

    /// The packed ids of a short piece: see [`packed`](Self::packed).
    #[inline(always)]
    pub fn find_short(&self, key: ShortKey, place: usize) -> Option<&u128> {
        let bucket = self.short.bucket(place);
        // An index instead of a branch: which way has it is as good as random.
        let slot = &bucket[usize::from(bucket[1][0] == key)];
        (slot[0] == key).then_some(&slot[1])
    }

    #[inline(always)]
    pub fn medium_place(&self, key: MediumKey) -> usize {
        self.medium.place(hash_medium(key))
    }

    #[inline(always)]
    pub fn prefetch_medium(&self, place: usize) {
        self.medium.prefetch(place);
    }

    #[inline(always)]
    pub fn find_medium(&self, key: MediumKey, place: usize) -> Option<Found<'_>> {
        let bucket = self.medium.bucket(place);
        let is_key = |slot: &[u128; 4]| (slot[0] ^ key[0]) | (slot[1] ^ key[1]) == 0;
        let slot = &bucket[usize::from(is_key(&bucket[1]))];
        if !is_key(slot) {
            return None;
        }
        Some(match count(slot[3]) {
            SPILLED => Found::Ids(self.spill(slot[3])),
            count => Found::PackedTwice([&slot[2], &slot[3]], usize::from(count)),
        })
    }

    pub fn find_long(&self, piece: &[u8]) -> Option<&[u32]> {
        self.long.get(piece).map(|ids| &**ids)
    }

    /// What a word that [`find_short`](Self::find_short) gave stands for.
    #[inline(always)]
    pub fn packed(&self, word: u128) -> Found<'_> {
        match count(word) {
            SPILLED => Found::Ids(self.spill(word)),
            count => Found::Packed(word, usize::from(count)),
        }
    }

    pub fn insert_short(&mut self, key: ShortKey, place: usize, ids: &[u32]) {
        let value = if ids.len() <= IDS_PER_WORD {
            pack(ids) | (ids.len() as u128) << 120
        } else {
            self.spill_word(ids)
        };
        self.short.insert(place, [key, value]);
    }

    pub fn insert_medium(&mut self, key: MediumKey, place: usize, ids: &[u32]) {
        let [low, high] = if ids.len() <= 2 * IDS_PER_WORD {
            let (low, high) = ids.split_at(ids.len().min(IDS_PER_WORD));
            [pack(low), pack(high) | (ids.len() as u128) << 120]
        } else {
            [0, self.spill_word(ids)]
        };
        self.medium.insert(place, [key[0], key[1], low, high]);
    }

    /// Keeps a long piece if it is one of those that come again.
    pub fn insert_long(&mut self, piece: &[u8], ids: &[u32]) {
        if piece.is_ascii() {
            self.long.insert(piece.into(), ids.into());
            // Two allocations and an entry come on top.
            self.long_bytes += piece.len() + size_of_val(ids) + 96;
        }
    }

    fn spill_word(&mut self, ids: &[u32]) -> u128 {
        let start = self.spilled.len() as u128;
        self.spilled.extend_from_slice(ids);
        start | (ids.len() as u128) << 32 | u128::from(SPILLED) << 120
    }

    fn spill(&self, word: u128) -> &[u32] {
        let (start, len) = (word as u32 as usize, (word >> 32) as u32 as usize);
        &self.spilled[start..start + len]
    }
}

/// The key of the piece of `len` bytes, at most [`SHORT`], at `start`; 16 bytes must follow there.
#[inline(always)]
pub fn short_key(text: &[u8], start: usize, len: usize) -> ShortKey {
    (load(text, start) & BELOW[len & SHORT]) | (len as u128) << 120
}

/// The key of the piece of `len` bytes, above [`SHORT`] and at most [`MEDIUM`], at `start`.
#[inline(always)]
pub fn medium_key(text: &[u8], start: usize, len: usize) -> MediumKey {
    let rest = len - SHORT - 1;
    [load(text, start), (load(text, start + 16) & BELOW[rest & SHORT]) | (len as u128) << 120]
}

/// Masks of so many low bytes.
static BELOW: [u128; 16] = {
    let mut masks = [0; 16];
    let mut bytes = 1;
    while bytes < 16 {
        masks[bytes] = u128::MAX >> (128 - 8 * bytes);
        bytes += 1;
    }
    masks
};

#[inline(always)]
fn load(text: &[u8], start: usize) -> u128 {
    match text.len().checked_sub(16) {
        // One comparison, where a slice takes two: this is done for each piece.
        Some(last) if start <= last => {
            // SAFETY: at least 16 bytes follow `start`.
            u128::from_le_bytes(unsafe { text.as_ptr().add(start).cast::<[u8; 16]>().read() })
        }
        // Never so in a padded text.
        _ => 0,
    }
}

#[inline(always)]
pub fn count(word: u128) -> u8 {
    (word >> 120) as u8
}

fn pack(ids: &[u32]) -> u128 {
    ids.iter().rev().fold(0, |word, id| word << 24 | u128::from(*id))
}

/// The five ids of a word, as many of them as its count says being of use.
#[inline(always)]
pub fn unpack(word: u128) -> [u32; 8] {
    let id = |place: u32| (word >> (24 * place)) as u32 & 0x00FF_FFFF;
    [id(0), id(1), id(2), id(3), id(4), 0, 0, 0]
}

/// A product of the halves, folded: a few cycles, and every bit of the key reaches the low bits.
#[inline(always)]
fn hash(key: u128) -> u64 {
    let low = key as u64 ^ 0x9E37_79B9_7F4A_7C15;
    let high = (key >> 64) as u64 ^ 0xD6E8_FEB8_6659_FD93;
    let product = u128::from(low) * u128::from(high);
    product as u64 ^ (product >> 64) as u64
}

/// Both halves count, with different weight.
#[inline(always)]
fn hash_medium(key: MediumKey) -> u64 {
    hash(key[0] ^ key[1].rotate_left(47))
}

/// How many buckets of `size` bytes fit, as a power of two.
fn largest_table(bytes: usize, size: usize) -> usize {
    let fit = (bytes / size).max(2);
    1 << fit.ilog2()
}

/// Buckets of two slots of `W` words each, the first half of a slot being its key. The last word of a key
/// holds the length, so it is zero in empty slots only.
struct Table<const W: usize> {
    /// Room for the most buckets. Those not in use have never been touched and take no memory.
    words: Words,
    buckets: usize,
    most_buckets: usize,
    pushed_out: usize,
}

impl<const W: usize> Table<W> {
    fn new(buckets: usize, most_buckets: usize) -> Self {
        Self { words: Words::zeroed(most_buckets * 2 * W), buckets, most_buckets, pushed_out: 0 }
    }

    fn bytes(&self) -> usize {
        self.buckets * size_of::<[[u128; W]; 2]>()
    }

    #[inline(always)]
    fn place(&self, hash: u64) -> usize {
        hash as usize & (self.buckets - 1)
    }

    #[inline(always)]
    fn bucket(&self, place: usize) -> &[[u128; W]; 2] {
        let place = place & (self.buckets - 1);
        // SAFETY: `words` are `buckets` buckets, a power of two, and `place` is below that.
        unsafe { &*self.words.as_ptr().add(place * 2 * W).cast() }
    }

    #[inline(always)]
    fn prefetch(&self, place: usize) {
        let [first, second] = self.bucket(place);
        prefetch(first);
        if W > 2 {
            prefetch(second);
        }
    }

    fn insert(&mut self, place: usize, slot: [u128; W]) {
        let (first, second) = self.words[place * 2 * W..][..2 * W].split_at_mut(W);
        if Self::is_taken(first) {
            self.pushed_out += usize::from(Self::is_taken(second));
            second.copy_from_slice(first);
        }
        first.copy_from_slice(&slot);
    }

    /// Grows fourfold when as many pieces have been pushed out as a sixty-fourth of the buckets. In place: memory
    /// that is touched for the first time is what growing costs most, a millisecond a megabyte.
    fn grow_if_due(&mut self) {
        if self.pushed_out * 64 < self.buckets || self.buckets >= self.most_buckets {
            return;
        }
        let before = self.buckets;
        self.buckets = (self.buckets * 4).min(self.most_buckets);
        for place in 0..before {
            let bucket = *self.bucket(place);
            self.words[place * 2 * W..][..2 * W].fill(0);
            // Each goes back or into one of the new buckets. The second way first: it holds the older piece.
            for slot in bucket.iter().rev().filter(|slot| Self::is_taken(*slot)) {
                self.insert(self.place(Self::slot_hash(slot)), *slot);
            }
        }
        self.pushed_out = 0;
    }

    fn is_taken(slot: &[u128]) -> bool {
        slot[W / 2 - 1] != 0
    }

    fn slot_hash(slot: &[u128; W]) -> u64 {
        if W == 2 { hash(slot[0]) } else { hash_medium([slot[0], slot[1]]) }
    }

    fn clear(&mut self) {
        *self = Self::new(self.buckets, self.most_buckets);
    }
}

impl<const W: usize> Clone for Table<W> {
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.buckets, self.most_buckets);
        let used = self.buckets * 2 * W;
        copy.words[..used].copy_from_slice(&self.words[..used]);
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids that the tests give a piece: some fit a slot, some do not.
    fn ids_of(piece: &[u8]) -> Vec<u32> {
        let sum: u32 = piece.iter().map(|byte| u32::from(*byte)).sum();
        (0..piece.len() as u32 * (sum % 3 + 1) / 2).map(|i| (sum * 7919 + i) & 0x000F_FFFF).collect()
    }

    fn ids(found: Found) -> Vec<u32> {
        let mut ids = Vec::new();
        found.append_to(&mut ids);
        ids
    }

    fn find(cache: &PieceCache, piece: &[u8]) -> Option<Vec<u32>> {
        let text = [piece, &[b'x'; 64]].concat();
        let found = match Size::of(piece.len()) {
            Size::Short => {
                let key = short_key(&text, 0, piece.len());
                cache.find_short(key, cache.short_place(key)).map(|word| cache.packed(*word))
            }
            Size::Medium => {
                let key = medium_key(&text, 0, piece.len());
                cache.find_medium(key, cache.medium_place(key))
            }
            _ => cache.find_long(piece).map(Found::Ids),
        };
        found.map(ids)
    }

    fn insert(cache: &mut PieceCache, piece: &[u8]) {
        let text = [piece, &[b'y'; 64]].concat();
        let ids = ids_of(piece);
        match Size::of(piece.len()) {
            Size::Short => {
                let key = short_key(&text, 0, piece.len());
                cache.insert_short(key, cache.short_place(key), &ids);
            }
            Size::Medium => {
                let key = medium_key(&text, 0, piece.len());
                cache.insert_medium(key, cache.medium_place(key), &ids);
            }
            _ => cache.insert_long(piece, &ids),
        }
    }

    fn pieces(count: usize) -> impl Iterator<Item = Vec<u8>> {
        (0..count).map(|i| {
            let len = i % 40 + 1;
            let digits = i.to_string().into_bytes();
            // Pieces that differ in the first or in the last bytes only, or in their length.
            let mut piece = vec![if i % 2 == 0 { 0 } else { b'a' }; len];
            let at = if i % 3 == 0 { len.saturating_sub(digits.len()) } else { 0 };
            piece.iter_mut().skip(at).zip(digits).for_each(|(byte, digit)| *byte = digit);
            piece
        })
    }

    #[test]
    fn what_is_found_is_what_was_put_in() {
        for bound in [1 << 14, 1 << 20, 1 << 26] {
            let mut cache = PieceCache::new(bound, 0);
            let mut found = 0;
            for (i, piece) in pieces(30_000).enumerate() {
                if i % 128 == 0 {
                    cache.maintain();
                }
                insert(&mut cache, &piece);
                assert_eq!(find(&cache, &piece), Some(ids_of(&piece)), "{piece:?}");
            }
            for piece in pieces(30_000) {
                if let Some(ids) = find(&cache, &piece) {
                    assert_eq!(ids, ids_of(&piece));
                    found += 1;
                }
            }
            assert!(found > if bound == 1 << 26 { 20_000 } else { 100 }, "{found} of bound {bound}");
            assert!(cache.bytes() <= bound + bound / 4 + (1 << 16), "{} of bound {bound}", cache.bytes());
        }
    }

    #[test]
    fn a_copy_holds_the_same() {
        let mut cache = PieceCache::new(1 << 22, 1000);
        pieces(500).for_each(|piece| insert(&mut cache, &piece));
        let copy = cache.clone();
        for piece in pieces(600) {
            assert_eq!(find(&cache, &piece), find(&copy, &piece));
        }
    }

    #[test]
    fn parts_have_keys_of_their_own() {
        let mut cache = PieceCache::new(1 << 20, 0);
        let key = short_key(b"some text, padded", 0, 4);
        cache.insert_short(key | PART, cache.short_place(key | PART), &[1]);
        assert!(cache.find_short(key, cache.short_place(key)).is_none());
    }
}
