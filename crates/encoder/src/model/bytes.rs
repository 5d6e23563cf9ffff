//! Byte-level BPE: symbols are bytes.
//!
//! Pieces are cut into [groups](crate::cuts::groups) where no product, nor any other token that a whole piece
//! becomes, can cross.

use std::sync::Arc;

use ahash::AHashMap;

use super::unknown::Unknown;
use super::workspace::Workspace;
use crate::cache::Lookup;
use crate::cache::piece::Piece;
use crate::cuts::Cuts;
use crate::cuts::groups::{GroupCutter, JoinedCharacters};
use crate::file::BpeModel;
use crate::kernel::Kernel;
use crate::merge::MergeTable;
use crate::merge::pairs::NONE;
use crate::merge::rules::{MergeRules, PRODUCTS};
use crate::merge::word::Merging;
use crate::merge::words::{ByteSymbols, occurs};
use crate::spelling;
use crate::split::Splitter;
use crate::split::removed::Removed;
use crate::vocab::{Ids, Vocab};

/// The bytes of a vocabulary.
pub struct Bytes {
    table: MergeTable,
    symbols: ByteSymbols,
    /// What the bytes become that have no token, as in vocabularies trained without the whole alphabet.
    unknown: Unknown,
    /// For `ignore_merges`, by their bytes: tokens that their merges do not produce. A piece that is a token becomes that
    /// token, whatever its merges produce.
    whole: AHashMap<Box<[u8]>, u32>,
    /// For text that is cut into words first: splits what is looked up into what is merged.
    splitter: Option<Splitter>,
    /// At the start of pieces.
    removed: Option<Arc<Removed>>,
    groups: GroupCutter,
}

impl Bytes {
    /// Reads the bytes off a vocabulary, or says why it is not for the fast engine.
    pub fn new(
        vocab: &Vocab,
        known: &Ids,
        rules: &MergeRules,
        model: &BpeModel,
        removed: Option<Arc<Removed>>,
        kernel: Kernel,
    ) -> Result<Self, String> {
        let mut ids = [NONE; 256];
        for (byte, id) in ids.iter_mut().enumerate() {
            let mut buffer = [0; 4];
            let token = spelling::CHARACTERS[byte].encode_utf8(&mut buffer);
            *id = known.get(&*token).copied().unwrap_or(NONE);
        }
        let missing = (0..256).find(|byte| ids[*byte] == NONE && occurs(*byte));
        let unknown = match missing {
            None => Unknown::Never,
            Some(byte) if model.byte_fallback() => {
                return Err(format!("its vocabulary lacks the byte 0x{byte:02X}, and it has byte fallback"));
            }
            Some(_) => Unknown::new(known, model.unk_token.as_deref(), model.fuse_unk())?,
        };
        unknown.check_apart(&rules.all, |_| false)?;
        let mut joined = JoinedCharacters::default();
        for rule in &rules.live {
            let product = vocab.token(rule.product).expect(PRODUCTS);
            let bytes = spelling::bytes(product)
                .ok_or_else(|| format!("the merge product {product:?} is not made of bytes"))?;
            joined.add_inside(&bytes);
        }
        let whole: AHashMap<Box<[u8]>, u32> = vocab
            .entries()
            .filter(|(_, id)| model.ignore_merges() && !rules.makes(*id))
            .filter_map(|(token, id)| Some((spelling::bytes(token)?.into_boxed_slice(), id)))
            .collect();
        for bytes in whole.keys() {
            joined.add_inside(bytes);
            joined.add_edges(bytes);
        }
        // Behind the byte level, text may be cut inside characters, and half a character be such a token: of its
        // neighbours too little is known.
        let is_half = |token: &[u8]| token.len() == 2 && std::str::from_utf8(token).is_err();
        if unknown != Unknown::Never || whole.keys().any(|token| is_half(token)) {
            joined.add_all();
        }
        let table = rules.table(kernel)?;
        let symbols = ByteSymbols::new(&ids, &table);
        let groups = GroupCutter::new(&joined);
        Ok(Self { table, symbols, unknown, whole, splitter: None, removed, groups })
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
    pub fn is_one(&self, text: &[u8], n: usize, workspace: &mut Workspace) -> bool {
        let Some(splitter) = &self.splitter else { return true };
        splitter.split(text, n, &mut workspace.split, &mut workspace.cuts);
        workspace.cuts.is_empty()
    }

    /// A token as pieces have it, or none if no piece holds it or it is removed.
    pub fn spelled(&self, token: &str) -> Option<Vec<u8>> {
        Removed::in_piece(self.removed.as_deref(), &spelling::bytes(token)?)
    }

    /// Adds to the cuts of a padded text those between the groups in its pieces.
    pub fn cut_groups(&self, text: &[u8], cuts: &mut Cuts) {
        self.groups.cut(self.table.kernel(), text, cuts);
    }

    /// Appends the ids of a piece that the cache lacks.
    pub fn encode(&self, piece: Piece, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        let Some(splitter) = &self.splitter else {
            return self.encode_piece(piece, true, workspace, ids);
        };
        let mut ends = std::mem::take(&mut workspace.ends);
        let Workspace { split, cuts, .. } = workspace;
        splitter.split(piece.padded(), piece.len(), split, cuts);
        self.cut_groups(piece.padded(), cuts);
        ends.clear();
        cuts.push_ends(self.table.kernel(), 0, &mut ends);
        let mut start = 0;
        for end in ends.iter().map(|end| *end as usize) {
            self.encode_piece(piece.part(start, end), ends.len() == 1, workspace, ids);
            start = end;
        }
        workspace.ends = ends;
    }

    /// `was_looked_up` says that the cache lacks it.
    fn encode_piece(&self, piece: Piece, was_looked_up: bool, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        let bytes = Removed::kept(self.removed.as_deref(), piece.bytes());
        let piece = piece.part(piece.len() - bytes.len(), piece.len());
        if let Some(id) = self.whole.get(bytes) {
            ids.push(*id);
        } else if self.lacks(bytes) {
            self.read_symbols(bytes, &mut workspace.scratch.symbols);
            workspace.scratch.merge_symbols(&self.table, ids);
        } else if was_looked_up {
            self.symbols.merge(&self.table, bytes, &mut workspace.scratch, ids);
        } else {
            self.encode_part(piece, workspace, ids);
        }
    }

    /// Starts to merge a piece of up to `W` bytes, if it is merged as a whole.
    #[inline]
    pub fn start<const W: usize>(&self, piece: &[u8], merging: &mut Merging<W>) -> bool {
        let piece = Removed::kept(self.removed.as_deref(), piece);
        let whole = !piece.is_empty() && !self.whole.contains_key(piece) && !self.lacks(piece);
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

    /// The symbols of a piece that holds such bytes. The neighbours of a dropped one may merge.
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

    /// A part of what was looked up, which is merged as it is. The same bytes, looked up as a whole, may be split.
    fn encode_part(&self, part: Piece, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        let lookup = Lookup::part(&workspace.cache, part);
        workspace.recall_or(lookup.as_ref(), ids, |workspace, ids| {
            self.symbols.merge(&self.table, part.bytes(), &mut workspace.scratch, ids);
        });
    }

    pub fn bytes(&self) -> usize {
        let whole = self.whole.capacity() * size_of::<(Box<[u8]>, u32)>()
            + self.whole.keys().map(|token| token.len()).sum::<usize>();
        let splitter = self.splitter.as_ref().map_or(0, Splitter::bytes);
        self.table.bytes() + self.symbols.bytes() + self.groups.bytes() + whole + splitter
    }
}
