//! BPE whose symbols are characters: SentencePiece-style, or plain. A character that the vocabulary lacks becomes byte
//! tokens, an unknown token, or nothing.
//!
//! SentencePiece-style tokenizers replace each space by the marker U+2581 and merge the whole text as one word. Here
//! the space itself is the marker, in text, pre-tokens and tables alike: nothing needs replacing, and a marker is one
//! byte. A marker in the text (rare) is turned into a space first.
//!
//! Byte fallback is all or nothing for a character. Byte tokens take part in no merge (a vocabulary
//! where they do is refused), so they are cuts on both sides.

use std::sync::Arc;

use ahash::AHashMap;

use super::missing_symbol::MissingSymbol;
use crate::merge::MergeTable;
use crate::merge::array_merge::ArrayMerge;
use crate::merge::pair_table::NONE;
use crate::merge::rules::{MergeRules, PRODUCTS};
use crate::merge::symbols::{ByteSymbols, Scratch, occurs};
use crate::pretokenize::boundaries::Boundaries;
use crate::pretokenize::boundaries::class_cutter::JoinedPairs;
use crate::pretokenize::boundaries::group_cutter::{GroupCutter, JoinedCharacters};
use crate::pretokenize::patterns::removed_chars::RemovedChars;
use crate::simd::Simd;
use crate::tokenizer_json::BpeModel;
use crate::utf8::decode;
use crate::vocab::MARKER;
use crate::vocab::{Ids, Vocab, single_char};

/// The characters of a vocabulary.
pub struct CharModel {
    table: MergeTable,
    /// Symbols of ASCII characters, byte tokens for those that the vocabulary lacks.
    ascii: ByteSymbols,
    /// Byte tokens, [`NONE`] where missing.
    fallback: [u32; 256],
    /// Ids of the characters below U+10000, [`NONE`] where missing, and of the others.
    basic: Box<[u32]>,
    astral: AHashMap<u32, u32>,
    groups: GroupCutter,
    pub pairs: JoinedPairs,
    unknown: MissingSymbol,
    /// Why a text is not the sum of its pre-tokens, even if no merge joins these: unknown tokens may fuse over any
    /// distance, or the neighbours of a dropped character meet. None if each character has its symbols whatever its
    /// neighbours are.
    pub uncut: Option<&'static str>,
    spaces: Spaces,
    /// At the start of pre-tokens.
    removed: Option<Arc<RemovedChars>>,
}

/// The meaning of a space in a pre-token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spaces {
    Spaces,
    Markers,
}

impl Spaces {
    /// A token as pre-tokens have it, or none if no pre-token holds it.
    pub fn spell(self, token: &str) -> Option<String> {
        token.chars().map(|c| self.spelled(c)).collect()
    }

    /// A character of a token as pre-tokens have it, or none if no pre-token holds it.
    fn spelled(self, c: char) -> Option<char> {
        match (self, c) {
            // It has become a marker.
            (Self::Markers, ' ') => None,
            (Self::Markers, MARKER) => Some(' '),
            _ => Some(c),
        }
    }
}

impl CharModel {
    /// Reads the characters off a vocabulary, or says why it is not for the fast engine.
    pub fn new(
        vocab: &Vocab,
        known: &Ids,
        rules: &MergeRules,
        model: &BpeModel,
        spaces: Spaces,
        removed: Option<Arc<RemovedChars>>,
        simd: Simd,
    ) -> Result<Self, String> {
        let mut fallback = [NONE; 256];
        if model.byte_fallback() {
            for (byte, id) in fallback.iter_mut().enumerate() {
                *id = known.get(&*format!("<0x{byte:02X}>")).copied().unwrap_or(NONE);
            }
        }
        let mut basic = vec![NONE; 1 << 16].into_boxed_slice();
        let mut astral = AHashMap::new();
        for (token, id) in vocab.entries() {
            if let Some(c) = single_char(token).and_then(|c| spaces.spelled(c)) {
                match basic.get_mut(c as usize) {
                    Some(entry) => *entry = id,
                    None => _ = astral.insert(c as u32, id),
                }
            }
        }
        if spaces == Spaces::Markers && basic[' ' as usize] == NONE {
            return Err("its vocabulary lacks the space marker U+2581".into());
        }
        // A byte below 0x80 is a character, and needs no byte token where that has a token: Gemma has a tab, and no <0x09>.
        let has_token = |byte: usize| fallback[byte] != NONE || byte < 0x80 && basic[byte] != NONE;
        let unknown = if (0..256).all(|byte| has_token(byte) || !occurs(byte)) {
            MissingSymbol::Never
        } else {
            MissingSymbol::new(known, model.unk_token.as_deref(), model.fuse_unk())?
        };
        unknown.check_apart(&rules.all, |id| fallback.contains(&id))?;
        let ascii = std::array::from_fn(|byte| match basic[byte] {
            _ if byte >= 128 => NONE,
            NONE => fallback[byte],
            id => id,
        });
        let (mut joined, mut pairs) = (JoinedCharacters::default(), JoinedPairs::new());
        for rule in &rules.live {
            // One that no pre-token holds may join more than it need.
            let product = vocab.token(rule.product).expect(PRODUCTS);
            let product: String = product.chars().map(|c| spaces.spelled(c).unwrap_or(c)).collect();
            joined.add_inside(product.as_bytes());
            for (left, right) in product.chars().zip(product.chars().skip(1)) {
                pairs.add(left, right);
            }
        }
        // Byte tokens are put in front of an unknown token that is to be fused.
        let uncut = match unknown {
            MissingSymbol::Dropped => Some("it drops unknown characters"),
            MissingSymbol::Token { fuse: true, .. } => Some("it fuses unknown characters"),
            MissingSymbol::Token { .. } if fallback != [NONE; 256] => Some("only some bytes have a token"),
            MissingSymbol::Never | MissingSymbol::Token { .. } => None,
        };
        if uncut.is_some() {
            joined.add_all();
        }
        let table = rules.table(simd)?;
        Ok(Self {
            ascii: ByteSymbols::new(&ascii, &table),
            table,
            fallback,
            basic,
            astral,
            groups: GroupCutter::new(&joined),
            pairs,
            unknown,
            uncut,
            spaces,
            removed,
        })
    }

    pub fn table(&self) -> &MergeTable {
        &self.table
    }

    /// A token as pre-tokens have it, or none if no pre-token holds it or it is removed.
    pub fn spelled(&self, token: &str) -> Option<Vec<u8>> {
        RemovedChars::in_pretoken(self.removed.as_deref(), self.spaces.spell(token)?.as_bytes())
    }

    #[inline(always)]
    fn id(&self, c: u32) -> u32 {
        match self.basic.get(c as usize) {
            Some(id) => *id,
            None => self.astral.get(&c).copied().unwrap_or(NONE),
        }
    }

    /// Adds to the cuts of a padded text those between the groups in its pre-tokens.
    pub fn cut_groups(&self, text: &[u8], boundaries: &mut Boundaries) {
        self.groups.cut(self.table.simd(), text, boundaries);
    }

    /// Appends the ids of a pre-token.
    pub fn encode(&self, pretoken: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let pretoken = RemovedChars::kept(self.removed.as_deref(), pretoken);
        if self.knows_ascii(pretoken) {
            self.ascii.merge(&self.table, pretoken, scratch, ids);
        } else if self.uncut.is_none() {
            self.encode_characters(pretoken, scratch, ids);
        } else {
            self.read_symbols(pretoken, &mut scratch.symbols);
            scratch.merge_symbols(&self.table, ids);
        }
    }

    /// Starts to merge a pre-token of up to `W` bytes, if it is merged as a whole.
    #[inline]
    pub fn start<const W: usize>(&self, pretoken: &[u8], merging: &mut ArrayMerge<W>) -> bool {
        let pretoken = RemovedChars::kept(self.removed.as_deref(), pretoken);
        if pretoken.is_empty() {
            return false;
        }
        if self.knows_ascii(pretoken) {
            self.ascii.start(&self.table, pretoken, merging);
            return true;
        }
        let (mut symbols, mut count) = ([0; W], 0);
        let mut index = 0;
        while index < pretoken.len() {
            let (c, len) = decode(&pretoken[index..]);
            let id = self.id(c);
            if id == NONE {
                return false;
            }
            symbols[count] = id;
            count += 1;
            index += len;
        }
        merging.start(&self.table, &&symbols[..count]);
        true
    }

    /// Whether a pre-token consists of ASCII characters that have symbols.
    #[inline(always)]
    fn knows_ascii(&self, pretoken: &[u8]) -> bool {
        let has_symbol = |byte: &u8| self.ascii.ids[usize::from(*byte)] != NONE;
        pretoken.is_ascii() && (self.unknown == MissingSymbol::Never || pretoken.iter().all(has_symbol))
    }

    /// Merges the stretches between characters that the vocabulary lacks, each of which becomes byte tokens or the
    /// unknown token.
    fn encode_characters(&self, pretoken: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        scratch.symbols.clear();
        let mut index = 0;
        while index < pretoken.len() {
            let (c, len) = decode(&pretoken[index..]);
            let id = self.id(c);
            if id == NONE {
                scratch.merge_symbols(&self.table, ids);
                scratch.symbols.clear();
                let bytes = &pretoken[index..index + len];
                match self.unknown {
                    MissingSymbol::Token { id, .. } => ids.push(id),
                    _ => ids.extend(bytes.iter().map(|byte| self.fallback[usize::from(*byte)])),
                }
            } else {
                scratch.symbols.push(id);
            }
            index += len;
        }
        scratch.merge_symbols(&self.table, ids);
    }

    /// The symbols of a text whose unknown characters become a token or nothing, as the reference makes
    /// them: the token is not written before byte tokens that come up meanwhile.
    fn read_symbols(&self, text: &[u8], symbols: &mut Vec<u32>) {
        symbols.clear();
        let mut deferred = None;
        let mut index = 0;
        while index < text.len() {
            let (c, len) = decode(&text[index..]);
            let id = self.id(c);
            let bytes = &text[index..index + len];
            index += len;
            if id != NONE {
                symbols.extend(deferred.take());
                symbols.push(id);
            } else if bytes.iter().all(|byte| self.fallback[usize::from(*byte)] != NONE) {
                symbols.extend(bytes.iter().map(|byte| self.fallback[usize::from(*byte)]));
            } else {
                self.unknown.meet(&mut deferred, symbols);
            }
        }
        symbols.extend(deferred);
    }

    pub fn bytes(&self) -> usize {
        size_of_val(self)
            + self.table.bytes()
            + self.ascii.bytes()
            + size_of_val(&*self.basic)
            + self.astral.capacity() * size_of::<(u32, u32)>()
            + self.groups.bytes()
    }
}
