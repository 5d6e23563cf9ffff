//! BPE models: of bytes ([`bytes`]) or of characters ([`characters`]).

pub mod bytes;
pub mod characters;
pub mod unknown;
pub mod workspace;

use crate::cache::piece::Piece;
use crate::merge::MergeTable;
use crate::merge::word::Merging;
use crate::text::TextRules;
use bytes::Bytes;
use characters::Characters;
use workspace::Workspace;

/// A BPE model, by what its pieces consist of.
pub enum Model {
    Bytes(Box<Bytes>),
    Characters(Box<Characters>),
}

impl Model {
    /// The merges of these.
    pub fn table(&self) -> &MergeTable {
        match self {
            Self::Bytes(bytes) => bytes.table(),
            Self::Characters(characters) => characters.table(),
        }
    }

    /// Cuts a padded text into what is looked up: pieces, or the groups in them where they are merged as they are. The
    /// cuts are left in the workspace.
    pub fn cut(&self, rules: &TextRules, text: &[u8], n: usize, workspace: &mut Workspace) {
        let Workspace { split, cuts, .. } = workspace;
        rules.cut(text, n, split, cuts);
        match self {
            Self::Bytes(bytes) if bytes.splits_first() => {}
            Self::Bytes(bytes) => bytes.cut_groups(text, cuts),
            Self::Characters(characters) => characters.cut_groups(text, cuts),
        }
    }

    /// Appends the ids of a piece, without looking it up.
    pub fn encode(&self, piece: Piece, workspace: &mut Workspace, ids: &mut Vec<u32>) {
        match self {
            Self::Bytes(bytes) => bytes.encode(piece, workspace, ids),
            Self::Characters(characters) => characters.encode(piece.bytes(), &mut workspace.scratch, ids),
        }
    }

    /// Whether there are pieces that [`start`](Self::start) takes.
    pub fn can_start(&self) -> bool {
        match self {
            Self::Bytes(bytes) => !bytes.splits_first(),
            Self::Characters(_) => true,
        }
    }

    /// Starts to merge a piece of up to `W` bytes, if it is merged as a whole and any [can be](Self::can_start).
    #[inline]
    pub fn start<const W: usize>(&self, piece: &[u8], merging: &mut Merging<W>) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.start(piece, merging),
            Self::Characters(characters) => characters.start(piece, merging),
        }
    }

    /// Whether a padded text, which is looked up as a whole, is merged as a whole.
    pub fn is_one(&self, text: &[u8], n: usize, workspace: &mut Workspace) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_one(text, n, workspace),
            Self::Characters(_) => true,
        }
    }

    /// A token's bytes as they stand in pieces, none if no text can hold them.
    pub fn token_as_piece(&self, token: &str) -> Option<Vec<u8>> {
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
