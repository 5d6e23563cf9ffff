//! Byte-level BPE: symbols are bytes.
//!
//! Long runs without a space (Chinese, Japanese) are rarely met twice, so the cache does not help with
//! them as a whole. They are cut between two three-byte characters where no merge can cross: nowhere in
//! a product is there a boundary with the same up to three bytes on its left and on its right. The
//! answer is kept for each pair of characters that was met. The groups between the cuts go through the
//! cache; this doubled the speed on Japanese.

use ahash::{AHashMap, AHashSet};

use super::cache::{Lookup, MEDIUM, packed};
use super::file::BpeModel;
use super::kernel::Kernel;
use super::merge::MergeTable;
use super::merging::Merging;
use super::pairs::NONE;
use super::piece::Piece;
use super::rules::{MergeRules, PRODUCTS};
use super::spelling;
use super::split::{SplitScratch, Splitter};
use super::unknown::Unknown;
use super::utf8::decode;
use super::vocab::Vocab;
use super::words::{ByteSymbols, Scratch, occurs};
use super::workspace::Workspace;

/// The bytes of a vocabulary.
pub struct Bytes {
    table: MergeTable,
    symbols: ByteSymbols,
    /// What the bytes become that have no token, as in vocabularies trained without the whole alphabet.
    unknown: Unknown,
    /// For `ignore_merges`, by their bytes: tokens that their merges do not give. A piece that is a token is
    /// that token, whatever its merges give.
    whole: AHashMap<Box<[u8]>, u32>,
    /// Where what is looked up is not yet what is merged.
    splitter: Option<Splitter>,
    contexts: Contexts,
    /// The packed ids of each three-byte character.
    characters: Box<[[u64; 1]]>,
}

/// The pairs of characters that a worker has looked up. Direct-mapped: 128 KiB stay in the second-level
/// cache, and a pair that is pushed out costs nine look-ups.
pub struct PairMemo(Box<[u64]>);

const MEMO_BITS: u32 = 14;

impl Default for PairMemo {
    fn default() -> Self {
        Self(vec![u64::MAX; 1 << MEMO_BITS].into_boxed_slice())
    }
}

impl PairMemo {
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

impl Bytes {
    /// Reads the bytes off a vocabulary, or says why it is not for the fast engine.
    pub fn new(vocab: &Vocab, rules: &MergeRules, model: &BpeModel, kernel: Kernel) -> Result<Self, String> {
        let mut ids = [NONE; 256];
        for (byte, id) in ids.iter_mut().enumerate() {
            let mut buffer = [0; 4];
            let token = spelling::CHARACTERS[byte].encode_utf8(&mut buffer);
            *id = vocab.id(token).unwrap_or(NONE);
        }
        let missing = (0..256).find(|byte| ids[*byte] == NONE && occurs(*byte));
        let unknown = match missing {
            None => Unknown::Never,
            Some(byte) if model.byte_fallback() => {
                return Err(format!("its vocabulary lacks the byte 0x{byte:02X}, and it has byte fallback"));
            }
            Some(_) => Unknown::new(vocab, model.unk_token.as_deref(), model.fuse_unk())?,
        };
        unknown.check_apart(&rules.all, |_| false)?;
        let mut contexts = Contexts::new();
        for rule in &rules.live {
            let product = vocab.token(rule.product).expect(PRODUCTS);
            let bytes = spelling::bytes(product)
                .ok_or_else(|| format!("the merge product {product:?} is not made of bytes"))?;
            boundaries(&bytes).for_each(|at| contexts.add(&bytes[..at], &bytes[at..]));
        }
        let whole = vocab
            .entries()
            .filter(|(_, id)| model.ignore_merges() && !rules.makes(*id))
            .filter_map(|(token, id)| Some((spelling::bytes(token)?.into_boxed_slice(), id)))
            .collect();
        let table = MergeTable::new(&rules.live, kernel);
        let symbols = ByteSymbols::new(&ids, &table);
        let characters = characters(&symbols, &table);
        Ok(Self { table, symbols, unknown, whole, splitter: None, contexts, characters })
    }

    pub fn table(&self) -> &MergeTable {
        &self.table
    }

    /// Pieces are to be split before they are merged.
    pub fn split_first(&mut self, splitter: Splitter) {
        self.splitter = Some(splitter);
    }

    pub fn splits_first(&self) -> bool {
        self.splitter.is_some()
    }

    /// Whether a padded text is merged as a whole.
    pub fn is_one(&self, text: &[u8], n: usize, split: &mut SplitScratch) -> bool {
        let Some(splitter) = &self.splitter else { return true };
        let mut ends = std::mem::take(&mut split.ends);
        splitter.split(text, n, split, &mut ends);
        let is_one = ends == [n as u32];
        split.ends = ends;
        is_one
    }

    /// Appends the ids of a piece that the cache lacks.
    pub fn encode(&self, piece: Piece, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        let Some(splitter) = &self.splitter else {
            return self.encode_piece(piece, true, workspace, ids);
        };
        let mut ends = std::mem::take(&mut workspace.split.ends);
        splitter.split(piece.padded(), piece.len(), &mut workspace.split, &mut ends);
        let mut start = 0;
        for end in ends.iter().map(|end| *end as usize) {
            self.encode_piece(piece.part(start, end), ends.len() == 1, workspace, ids);
            start = end;
        }
        workspace.split.ends = ends;
    }

    /// `was_looked_up` says that the cache lacks it.
    fn encode_piece(&self, piece: Piece, was_looked_up: bool, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        let bytes = piece.bytes();
        if let Some(id) = self.whole.get(bytes) {
            ids.push(*id);
        } else if self.lacks(bytes) {
            self.read_symbols(bytes, &mut workspace.scratch.symbols);
            workspace.scratch.merge_symbols(&self.table, ids);
        } else if may_be_cut(bytes) {
            self.encode_groups(piece, was_looked_up, workspace, ids);
        } else if was_looked_up {
            self.symbols.merge(&self.table, bytes, &mut workspace.scratch, ids);
        } else {
            self.encode_part(piece, workspace, ids);
        }
    }

    /// Starts to merge a piece of up to `W` bytes, if it is merged as a whole.
    #[inline]
    pub fn start<const W: usize>(&self, piece: &[u8], merging: &mut Merging<W>) -> bool {
        let whole = !self.splits_first()
            && !may_be_cut(piece)
            && !self.whole.contains_key(piece)
            && !self.lacks(piece);
        if whole {
            self.symbols.start(&self.table, piece, merging);
        }
        whole
    }

    /// Whether a piece holds a byte that has no token.
    fn lacks(&self, piece: &[u8]) -> bool {
        self.unknown != Unknown::Never
            && piece.iter().any(|byte| self.symbols.ids[usize::from(*byte)] == NONE)
    }

    /// The symbols of a piece that holds such bytes. What stands beside a dropped one may merge.
    fn read_symbols(&self, piece: &[u8], symbols: &mut Vec<u32>) {
        symbols.clear();
        let mut waiting = None;
        for byte in piece {
            match self.symbols.ids[usize::from(*byte)] {
                NONE => self.unknown.meet(&mut waiting, symbols),
                id => {
                    symbols.extend(waiting.take());
                    symbols.push(id);
                }
            }
        }
        symbols.extend(waiting);
    }

    fn encode_groups(
        &self,
        piece: Piece,
        was_looked_up: bool,
        workspace: &mut Workspace,
        ids: &mut Vec<u32>,
    ) {
        let mut encode_group = |start: usize, end: usize, workspace: &mut Workspace| {
            let group = piece.part(start, end);
            let bytes = group.bytes();
            if bytes.len() == 3
                && let (c, 3) = decode(bytes)
            {
                ids.extend(packed::ids(&self.characters[c as usize & 0xFFFF]));
            } else if was_looked_up && bytes.len() == piece.len() {
                self.symbols.merge(&self.table, bytes, &mut workspace.scratch, ids);
            } else {
                self.encode_part(group, workspace, ids);
            }
        };
        let bytes = piece.bytes();
        let mut group = 0;
        let mut place = 0;
        let mut before = None;
        while place < bytes.len() {
            let (c, len) = decode(&bytes[place..]);
            let here = (len == 3).then_some(c);
            if let (Some(left), Some(right)) = (before, here)
                && !self.joins(&mut workspace.memo, left, right)
            {
                encode_group(group, place, workspace);
                group = place;
            }
            before = here;
            place += len;
        }
        encode_group(group, bytes.len(), workspace);
    }

    /// Bytes that are part of what was looked up: they are merged as they are, and kept if they are few.
    fn encode_part(&self, part: Piece, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        // The same bytes, when they are looked up as a whole, may be a token or be split first.
        let has_other_ids = !self.whole.is_empty() || self.splits_first();
        let lookup = match part.len() {
            ..=MEDIUM if has_other_ids => Lookup::part(&workspace.cache, part),
            ..=MEDIUM => Lookup::piece(&workspace.cache, part),
            _ => None,
        };
        workspace.recall_or(lookup.as_ref(), ids, |workspace, ids| {
            self.symbols.merge(&self.table, part.bytes(), &mut workspace.scratch, ids);
        });
    }

    /// Whether some merge may cross from one three-byte character into the next.
    fn joins(&self, memo: &mut PairMemo, left: u32, right: u32) -> bool {
        let pair = (u64::from(left) << 16 | u64::from(right)) << 1;
        let slot = (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - MEMO_BITS)) as usize;
        let kept = memo.0[slot];
        if kept & !1 == pair {
            return kept & 1 == 1;
        }
        let joins = self.contexts.join(left, right);
        memo.0[slot] = pair | u64::from(joins);
        joins
    }

    pub fn bytes(&self) -> usize {
        let whole = self.whole.capacity() * size_of::<(Box<[u8]>, u32)>()
            + self.whole.keys().map(|token| token.len()).sum::<usize>();
        let splitter = self.splitter.as_ref().map_or(0, Splitter::bytes);
        self.table.bytes()
            + self.symbols.bytes()
            + size_of_val(&*self.characters)
            + self.contexts.bytes()
            + whole
            + splitter
    }
}

/// What each three-byte character merges to.
fn characters(symbols: &ByteSymbols, table: &MergeTable) -> Box<[[u64; 1]]> {
    let mut scratch = Scratch::default();
    let mut ids = Vec::new();
    (0..1 << 16)
        .map(|c| {
            ids.clear();
            let mut buffer = [0; 4];
            let c = char::from_u32(c).map_or(&[][..], |c| c.encode_utf8(&mut buffer).as_bytes());
            if c.len() == 3 && c.iter().all(|byte| symbols.ids[usize::from(*byte)] != NONE) {
                symbols.merge(table, c, &mut scratch, &mut ids);
            }
            packed::pack(&ids).expect("three bytes are three ids at most, for which there is room")
        })
        .collect()
}

/// The boundaries inside a product that a cut between three-byte characters might be at.
fn boundaries(product: &[u8]) -> impl Iterator<Item = usize> {
    (1..product.len())
        .filter(|at| matches!(product[*at], 0xE0..0xF0) && matches!(product[at - 1], 0x80..0xC0))
}

/// Whether a piece holds a three-byte character.
fn may_be_cut(piece: &[u8]) -> bool {
    piece.iter().any(|byte| matches!(byte, 0xE0..0xF0))
}

/// Up to three bytes on either side of the boundaries inside products, before three-byte characters.
struct Contexts {
    pairs: AHashSet<u64>,
    /// Which ends of a character stand on the left of some boundary, and which beginnings on the right, by
    /// their number of bytes: most pairs of characters need not be looked up for all nine ways to meet.
    lefts: [BitMap; 3],
    rights: [BitMap; 3],
}

/// One bit for each value of up to 16 bits.
type BitMap = Box<[u64]>;

impl Contexts {
    fn new() -> Self {
        let map = || vec![0; 1 << 10].into_boxed_slice();
        let maps = || std::array::from_fn(|_| map());
        Self { pairs: AHashSet::new(), lefts: maps(), rights: maps() }
    }

    fn add(&mut self, left: &[u8], right: &[u8]) {
        let (left, right) = (&left[left.len().saturating_sub(3)..], &right[..right.len().min(3)]);
        self.pairs.insert(context(left, right));
        for (maps, bytes) in [(&mut self.lefts, left), (&mut self.rights, right)] {
            let bits = payload(bytes);
            maps[bytes.len() - 1][bits >> 6] |= 1 << (bits & 63);
        }
    }

    /// Whether some boundary may lie between two three-byte characters.
    fn join(&self, left: u32, right: u32) -> bool {
        let (left, right) = (three_bytes(left), three_bytes(right));
        let stands = |maps: &[BitMap; 3], bytes: &[u8]| {
            let bits = payload(bytes);
            maps[bytes.len() - 1][bits >> 6] >> (bits & 63) & 1 == 1
        };
        (0..3).map(|from| &left[from..]).filter(|left| stands(&self.lefts, left)).any(|left| {
            let mut rights = (1..=3).map(|to| &right[..to]).filter(|right| stands(&self.rights, right));
            rights.any(|right| self.pairs.contains(&context(left, right)))
        })
    }

    fn bytes(&self) -> usize {
        self.pairs.capacity() * size_of::<u64>() + 6 * size_of_val(&*self.lefts[0])
    }
}

/// The bits of up to three bytes of a three-byte character that are not always the same, 16 at most. Other
/// bytes, which products may hold on the left, only make more of them look alike.
fn payload(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |bits, byte| bits << 6 | usize::from(byte & 0x3F)) & 0xFFFF
}

/// Up to three bytes on either side of a boundary, as a number.
fn context(left: &[u8], right: &[u8]) -> u64 {
    // The ones in front keep sides of different lengths apart.
    let number = |bytes: &[u8]| bytes.iter().fold(1, |number, byte| number << 8 | u64::from(*byte));
    number(left) << 32 | number(right)
}

fn three_bytes(c: u32) -> [u8; 3] {
    [0xE0 | (c >> 12) as u8, 0x80 | (c >> 6 & 0x3F) as u8, 0x80 | (c & 0x3F) as u8]
}
