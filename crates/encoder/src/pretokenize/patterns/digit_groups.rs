//! Digits in groups that are counted from the right, as in 1|234|567: the one rule in use that looks further ahead than
//! one character.

use regex_syntax::hir::ClassUnicode;

/// Cuts runs of characters into groups of one size, but for the first, which may be smaller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DigitGroups {
    /// The characters that the runs consist of.
    pub class: ClassUnicode,
    /// A run in front of any other character stays whole.
    pub before: ClassUnicode,
    /// Whether a run that ends with the pre-token does not.
    pub at_end: bool,
    pub boundaries: GroupCuts,
}

/// Where a run is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupCuts {
    pub size: usize,
    /// Whether the first and the last group are also cut from what surrounds them.
    pub isolated: bool,
}

impl GroupCuts {
    /// Calls `cut` for each cut of a run of `count` characters that begin at `starts`.
    pub fn for_each(
        self,
        starts: impl Iterator<Item = usize>,
        count: usize,
        end: usize,
        mut cut: impl FnMut(usize),
    ) {
        for (number, start) in starts.enumerate() {
            if (count - number).is_multiple_of(self.size) || self.isolated && number == 0 {
                cut(start);
            }
        }
        if self.isolated {
            cut(end);
        }
    }
}
