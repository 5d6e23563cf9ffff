//! Recognises patterns that cut digits in groups.
//!
//! Two spellings are known: `\d{1,3}(?=(?:\d{3})*\b)`, whose matches are the groups (Tiny Aya, and what Hugging Face's
//! comparison of number tokenizations proposes), and `(?=(\d{3})+(?!\d))`, whose matches are the borders between them
//! (`SuperBPE`).

use regex_syntax::hir::ClassUnicode;

use crate::pretokenize::patterns::digit_groups::{DigitGroups, GroupCuts};
use crate::pretokenize::patterns::regex::{Node, negated, word};

/// The groups that a pattern cuts, if it is one of these.
pub fn digit_groups(pattern: &Node) -> Option<DigitGroups> {
    let (first, ahead) = match pattern {
        Node::Lookahead { node: ahead, negated: false } => (None, ahead),
        Node::Concat(nodes) => match nodes.as_slice() {
            [first, Node::Lookahead { node: ahead, negated: false }] => (Some(first), ahead),
            _ => return None,
        },
        _ => return None,
    };
    let Node::Concat(nodes) = &**ahead else { return None };
    let [Node::Repeat { node: group, min, max: None }, end] = nodes.as_slice() else { return None };
    let (class, size) = match &**group {
        Node::Repeat { min, max: Some(max), .. } if min == max => (group.repeated()?, *min),
        _ => return None,
    };
    let is_expected = match first {
        None => *min == 1,
        Some(first) => {
            matches!(first, Node::Repeat { min: 1, max: Some(max), .. } if *max == size)
                && first.repeated() == Some(class)
                && *min == 0
        }
    };
    let (before, at_end) = ends(end, class)?;
    let mut both = before.clone();
    both.intersect(class);
    // Else a run could end inside one.
    let ends_behind = both.ranges().is_empty();
    (is_expected && ends_behind).then(|| DigitGroups {
        class: class.clone(),
        before,
        at_end,
        boundaries: GroupCuts { size: size as usize, isolated: first.is_some() },
    })
}

/// The characters that end a run of `class` where `end` matches, and perhaps the end of the pre-token.
fn ends(end: &Node, class: &ClassUnicode) -> Option<(ClassUnicode, bool)> {
    match end {
        Node::Ahead { set, at_end } => Some((set.clone(), *at_end)),
        Node::Class(set) => Some((set.clone(), false)),
        // Behind characters of words, it is in front of all others.
        Node::WordBoundary if is_within(class, &word()) => Some((negated(word()), true)),
        Node::Alternate(nodes) => {
            nodes.iter().try_fold((ClassUnicode::empty(), false), |(mut all, at_end), node| {
                let (set, also_at_end) = ends(node, class)?;
                all.union(&set);
                Some((all, at_end || also_at_end))
            })
        }
        _ => None,
    }
}

fn is_within(set: &ClassUnicode, other: &ClassUnicode) -> bool {
    let mut rest = set.clone();
    rest.difference(other);
    rest.ranges().is_empty()
}
