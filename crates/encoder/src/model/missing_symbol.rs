//! The treatment of a symbol that the vocabulary lacks.

use crate::merge::rules::MergeRule;
use crate::vocab::Ids;

/// A byte or character without a token of its own becomes this.
#[derive(Clone, Copy, PartialEq)]
pub enum MissingSymbol {
    /// There is none.
    Never,
    Dropped,
    Token {
        id: u32,
        fuse: bool,
    },
}

impl MissingSymbol {
    /// For a vocabulary that lacks something.
    pub fn new(known: &Ids, unk_token: Option<&str>, fuse: bool) -> Result<Self, String> {
        match unk_token {
            None => Ok(Self::Dropped),
            Some(token) => match known.get(token) {
                Some(&id) => Ok(Self::Token { id, fuse }),
                None => Err(format!("its unknown token {token:?} is not in its vocabulary")),
            },
        }
    }

    /// Symbols that only unknown text gives must not take part in merges: cuts next to them would not be exact, and
    /// which merges can happen would not follow from spellings.
    pub fn check_apart(self, rules: &[MergeRule], is_other: impl Fn(u32) -> bool) -> Result<(), String> {
        let apart =
            |id: u32| is_other(id) || matches!(self, Self::Token { id: unknown, .. } if unknown == id);
        if rules.iter().any(|rule| [rule.left, rule.right, rule.product].into_iter().any(apart)) {
            return Err("one of its merges takes or produces a byte token or the unknown token".into());
        }
        Ok(())
    }

    /// Something unknown was read. As in the reference, its token waits, to be fused with the next one, until something
    /// known follows.
    pub fn meet(self, deferred: &mut Option<u32>, symbols: &mut Vec<u32>) {
        if let Self::Token { id, fuse } = self {
            if !fuse {
                symbols.extend(deferred.take());
            }
            *deferred = Some(id);
        }
    }
}
