//! Byte-level BPE: symbols are bytes.
//!
//! Pre-tokens are cut into groups where no product, nor any other token that a whole pre-token
//! becomes, can cross.

use std::sync::Arc;

use ahash::AHashMap;

use super::missing_symbol::MissingSymbol;
use super::workspace::Workspace;
use crate::byte_alphabet;
use crate::lookup::cache::Query;
use crate::lookup::pretoken::Pretoken;
use crate::merge::MergeTable;
use crate::merge::array_merge::ArrayMerge;
use crate::merge::pair_table::NONE;
use crate::merge::rules::{MergeRules, PRODUCTS};
use crate::merge::symbols::{ByteSymbols, occurs};
use crate::pretokenize::boundaries::Boundaries;
use crate::pretokenize::boundaries::group_cutter::{GroupCutter, JoinedCharacters};
use crate::pretokenize::patterns::Pretokenizer;
use crate::pretokenize::patterns::removed_chars::RemovedChars;
use crate::simd::Simd;
use crate::tokenizer_json::BpeModel;
use crate::vocab::{Ids, Vocab};

/// The bytes of a vocabulary.
pub struct ByteModel {
    table: MergeTable,
    symbols: ByteSymbols,
    /// The treatment of bytes that have no token, as in vocabularies trained without the whole alphabet.
    unknown: MissingSymbol,
    /// For `ignore_merges`, by their bytes: tokens that their merges do not produce. A pre-token that is a token
    /// becomes that token, whatever its merges produce.
    whole: AHashMap<Box<[u8]>, u32>,
    /// For text that is cut into words first: splits what is looked up into what is merged.
    pretokenizer: Option<Pretokenizer>,
    /// At the start of pre-tokens.
    removed: Option<Arc<RemovedChars>>,
    groups: GroupCutter,
}

impl ByteModel {
    /// Reads the bytes off a vocabulary, or says why it is not for the fast engine.
    pub fn new(
        vocab: &Vocab,
        known: &Ids,
        rules: &MergeRules,
        model: &BpeModel,
        removed: Option<Arc<RemovedChars>>,
        simd: Simd,
    ) -> Result<Self, String> {
        let mut ids = [NONE; 256];
        for (byte, id) in ids.iter_mut().enumerate() {
            let mut buffer = [0; 4];
            let token = byte_alphabet::CHARACTERS[byte].encode_utf8(&mut buffer);
            *id = known.get(&*token).copied().unwrap_or(NONE);
        }
        let missing = (0..256).find(|byte| ids[*byte] == NONE && occurs(*byte));
        let unknown = match missing {
            None => MissingSymbol::Never,
            Some(byte) if model.byte_fallback() => {
                return Err(format!("its vocabulary lacks the byte 0x{byte:02X}, and it has byte fallback"));
            }
            Some(_) => MissingSymbol::new(known, model.unk_token.as_deref(), model.fuse_unk())?,
        };
        unknown.check_apart(&rules.all, |_| false)?;
        let mut joined = JoinedCharacters::default();
        for rule in &rules.live {
            let product = vocab.token(rule.product).expect(PRODUCTS);
            let bytes = byte_alphabet::bytes(product)
                .ok_or_else(|| format!("the merge product {product:?} is not made of bytes"))?;
            joined.add_inside(&bytes);
        }
        let whole: AHashMap<Box<[u8]>, u32> = vocab
            .entries()
            .filter(|(_, id)| model.ignore_merges() && !rules.makes(*id))
            .filter_map(|(token, id)| Some((byte_alphabet::bytes(token)?.into_boxed_slice(), id)))
            .collect();
        for bytes in whole.keys() {
            joined.add_inside(bytes);
            joined.add_edges(bytes);
        }
        // Behind the byte level, text may be cut inside characters, and half a character be such a token: of its
        // neighbours too little is known.
        let is_half = |token: &[u8]| token.len() == 2 && std::str::from_utf8(token).is_err();
        if unknown != MissingSymbol::Never || whole.keys().any(|token| is_half(token)) {
            joined.add_all();
        }
        let table = rules.table(simd)?;
        let symbols = ByteSymbols::new(&ids, &table);
        let groups = GroupCutter::new(&joined);
        Ok(Self { table, symbols, unknown, whole, pretokenizer: None, removed, groups })
    }

    pub fn table(&self) -> &MergeTable {
        &self.table
    }

    /// Pre-tokens are to be split before they are merged.
    pub fn split_first(&mut self, pretokenizer: Pretokenizer) {
        self.pretokenizer = Some(pretokenizer);
    }

    pub fn splits_first(&self) -> bool {
        self.pretokenizer.is_some()
    }

    /// Whether a padded text is merged as a whole.
    pub fn is_one(&self, text: &[u8], n: usize, workspace: &mut Workspace) -> bool {
        let Some(pretokenizer) = &self.pretokenizer else { return true };
        pretokenizer.split(text, n, &mut workspace.split, &mut workspace.boundaries);
        workspace.boundaries.is_empty()
    }

    /// A token as pre-tokens have it, or none if no pre-token holds it or it is removed.
    pub fn spelled(&self, token: &str) -> Option<Vec<u8>> {
        RemovedChars::in_pretoken(self.removed.as_deref(), &byte_alphabet::bytes(token)?)
    }

    /// Adds to the cuts of a padded text those between the groups in its pre-tokens.
    pub fn cut_groups(&self, text: &[u8], boundaries: &mut Boundaries) {
        self.groups.cut(self.table.simd(), text, boundaries);
    }

    /// Appends the ids of a pre-token that the cache lacks.
    pub fn encode(&self, pretoken: Pretoken, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        let Some(pretokenizer) = &self.pretokenizer else {
            return self.encode_pretoken(pretoken, true, workspace, ids);
        };
        let mut ends = std::mem::take(&mut workspace.ends);
        let Workspace { split, boundaries, .. } = workspace;
        pretokenizer.split(pretoken.padded(), pretoken.len(), split, boundaries);
        self.cut_groups(pretoken.padded(), boundaries);
        ends.clear();
        boundaries.push_ends(self.table.simd(), 0, &mut ends);
        let mut start = 0;
        for end in ends.iter().map(|end| *end as usize) {
            self.encode_pretoken(pretoken.part(start, end), ends.len() == 1, workspace, ids);
            start = end;
        }
        workspace.ends = ends;
    }

    /// `was_looked_up` says that the cache lacks it.
    fn encode_pretoken(
        &self,
        pretoken: Pretoken,
        was_looked_up: bool,
        workspace: &mut Workspace,
        ids: &mut Vec<u32>,
    ) {
        let bytes = RemovedChars::kept(self.removed.as_deref(), pretoken.bytes());
        let pretoken = pretoken.part(pretoken.len() - bytes.len(), pretoken.len());
        if let Some(id) = self.whole.get(bytes) {
            ids.push(*id);
        } else if self.lacks(bytes) {
            self.read_symbols(bytes, &mut workspace.scratch.symbols);
            workspace.scratch.merge_symbols(&self.table, ids);
        } else if was_looked_up {
            self.symbols.merge(&self.table, bytes, &mut workspace.scratch, ids);
        } else {
            self.encode_part(pretoken, workspace, ids);
        }
    }

    /// Starts to merge a pre-token of up to `W` bytes, if it is merged as a whole.
    #[inline]
    pub fn start<const W: usize>(&self, pretoken: &[u8], merging: &mut ArrayMerge<W>) -> bool {
        let pretoken = RemovedChars::kept(self.removed.as_deref(), pretoken);
        let whole = !pretoken.is_empty() && !self.whole.contains_key(pretoken) && !self.lacks(pretoken);
        if whole {
            self.symbols.start(&self.table, pretoken, merging);
        }
        whole
    }

    /// Whether each byte that texts have is a token.
    pub fn lacks_none(&self) -> bool {
        self.unknown == MissingSymbol::Never
    }

    /// Whether a pre-token holds a byte that has no token.
    fn lacks(&self, pretoken: &[u8]) -> bool {
        self.unknown != MissingSymbol::Never
            && pretoken.iter().any(|byte| self.symbols.ids[usize::from(*byte)] == NONE)
    }

    /// The symbols of a pre-token that holds such bytes. The neighbours of a dropped one may merge.
    fn read_symbols(&self, pretoken: &[u8], symbols: &mut Vec<u32>) {
        symbols.clear();
        let mut deferred = None;
        for byte in pretoken {
            match self.symbols.ids[usize::from(*byte)] {
                NONE => self.unknown.meet(&mut deferred, symbols),
                id => {
                    symbols.extend(deferred.take());
                    symbols.push(id);
                }
            }
        }
        symbols.extend(deferred);
    }

    /// A part of what was looked up, which is merged as it is. The same bytes, looked up as a whole, may be split.
    fn encode_part(&self, part: Pretoken, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        let lookup = Query::part(&workspace.cache, part);
        workspace.recall_or(lookup.as_ref(), ids, |workspace, ids| {
            self.symbols.merge(&self.table, part.bytes(), &mut workspace.scratch, ids);
        });
    }

    pub fn bytes(&self) -> usize {
        let whole = self.whole.capacity() * size_of::<(Box<[u8]>, u32)>()
            + self.whole.keys().map(|token| token.len()).sum::<usize>();
        let pretokenizer = self.pretokenizer.as_ref().map_or(0, Pretokenizer::bytes);
        self.table.bytes() + self.symbols.bytes() + self.groups.bytes() + whole + pretokenizer
    }
}
