//! Models: BPE of bytes ([`bytes`]) or of characters ([`characters`]), [`word_piece`] and [`unigram`].

pub mod bytes;
pub mod characters;
pub mod missing_symbol;
mod trie;
pub mod unigram;
pub mod word_piece;
pub mod workspace;

use crate::lookup::pretoken::Pretoken;
use crate::merge::MergeTable;
use crate::merge::array_merge::ArrayMerge;
use crate::normalize_and_cut::TextRules;
use bytes::ByteModel;
use characters::CharModel;
use unigram::Unigram;
use word_piece::WordPieces;
use workspace::Workspace;

/// A model: BPE by what its pre-tokens consist of, or another one.
pub enum Model {
    Bytes(Box<ByteModel>),
    Characters(Box<CharModel>),
    WordPiece(Box<WordPieces>),
    Unigram(Box<Unigram>),
}

impl Model {
    /// The type of the model in tokenizer.json.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bytes(_) | Self::Characters(_) => "BPE",
            Self::WordPiece(_) => "WordPiece",
            Self::Unigram(_) => "Unigram",
        }
    }

    /// The merges of the pre-tokens that [`start`](Self::start) takes, if it takes any.
    pub fn merges(&self) -> Option<&MergeTable> {
        match self {
            Self::Bytes(bytes) if bytes.splits_first() => None,
            Self::Bytes(bytes) => Some(bytes.table()),
            Self::Characters(characters) => Some(characters.table()),
            Self::WordPiece(_) | Self::Unigram(_) => None,
        }
    }

    /// Cuts a padded text into what is looked up: pre-tokens, or the groups in them where they are merged as they are.
    /// The cuts are left in the workspace.
    pub fn cut(&self, rules: &TextRules, text: &[u8], n: usize, workspace: &mut Workspace) {
        let Workspace { split, boundaries, .. } = workspace;
        rules.cut(text, n, split, boundaries);
        match self {
            Self::Bytes(bytes) if bytes.splits_first() => {}
            Self::Bytes(bytes) => bytes.cut_groups(text, boundaries),
            Self::Characters(characters) => characters.cut_groups(text, boundaries),
            Self::WordPiece(_) | Self::Unigram(_) => {}
        }
    }

    /// Appends the ids of a pre-token, without looking it up.
    pub fn encode(&self, pretoken: Pretoken, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        match self {
            Self::Bytes(bytes) => bytes.encode(pretoken, workspace, ids),
            Self::Characters(characters) => characters.encode(pretoken.bytes(), &mut workspace.scratch, ids),
            Self::WordPiece(pieces) => pieces.encode(pretoken.bytes(), ids),
            Self::Unigram(unigram) => unigram.encode(pretoken.bytes(), &mut workspace.unigram, ids),
        }
    }

    /// Starts to merge a pre-token of up to `W` bytes, if it is merged as a whole and any [can be](Self::merges).
    #[inline]
    pub fn start<const W: usize>(&self, pretoken: &[u8], merging: &mut ArrayMerge<W>) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.start(pretoken, merging),
            Self::Characters(characters) => characters.start(pretoken, merging),
            Self::WordPiece(_) | Self::Unigram(_) => false,
        }
    }

    /// Whether a padded text, which is looked up as a whole, is merged as a whole.
    pub fn is_one(&self, text: &[u8], n: usize, workspace: &mut Workspace) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_one(text, n, workspace),
            Self::Characters(_) | Self::WordPiece(_) | Self::Unigram(_) => true,
        }
    }

    /// A token's bytes as they stand in pre-tokens, none if no text can hold them.
    pub fn token_as_pretoken(&self, token: &str) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => bytes.spelled(token),
            Self::Characters(characters) => characters.spelled(token),
            Self::WordPiece(pieces) => pieces.spelled(token),
            Self::Unigram(unigram) => unigram.spelled(token),
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.bytes(),
            Self::Characters(characters) => characters.bytes(),
            Self::WordPiece(pieces) => pieces.bytes(),
            Self::Unigram(unigram) => unigram.bytes(),
        }
    }
}
