//! BPE models: of bytes ([`bytes`]) or of characters ([`characters`]).

pub mod bytes;
pub mod characters;
pub mod missing_symbol;
pub mod workspace;

use crate::lookup::pretoken::Pretoken;
use crate::merge::MergeTable;
use crate::merge::array_merge::ArrayMerge;
use crate::normalize_and_cut::TextRules;
use bytes::ByteModel;
use characters::CharModel;
use workspace::Workspace;

/// A BPE model, by what its pre-tokens consist of.
pub enum Model {
    Bytes(Box<ByteModel>),
    Characters(Box<CharModel>),
}

impl Model {
    /// The merges of these.
    pub fn table(&self) -> &MergeTable {
        match self {
            Self::Bytes(bytes) => bytes.table(),
            Self::Characters(characters) => characters.table(),
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
        }
    }

    /// Appends the ids of a pre-token, without looking it up.
    pub fn encode(&self, pretoken: Pretoken, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        match self {
            Self::Bytes(bytes) => bytes.encode(pretoken, workspace, ids),
            Self::Characters(characters) => characters.encode(pretoken.bytes(), &mut workspace.scratch, ids),
        }
    }

    /// Whether there are pre-tokens that [`start`](Self::start) takes.
    pub fn can_start(&self) -> bool {
        match self {
            Self::Bytes(bytes) => !bytes.splits_first(),
            Self::Characters(_) => true,
        }
    }

    /// Starts to merge a pre-token of up to `W` bytes, if it is merged as a whole and any [can be](Self::can_start).
    #[inline]
    pub fn start<const W: usize>(&self, pretoken: &[u8], merging: &mut ArrayMerge<W>) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.start(pretoken, merging),
            Self::Characters(characters) => characters.start(pretoken, merging),
        }
    }

    /// Whether a padded text, which is looked up as a whole, is merged as a whole.
    pub fn is_one(&self, text: &[u8], n: usize, workspace: &mut Workspace) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_one(text, n, workspace),
            Self::Characters(_) => true,
        }
    }

    /// A token's bytes as they stand in pre-tokens, none if no text can hold them.
    pub fn token_as_pretoken(&self, token: &str) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => bytes.spelled(token),
            Self::Characters(characters) => characters.spelled(token),
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.bytes(),
            Self::Characters(characters) => characters.bytes(),
        }
    }
}
