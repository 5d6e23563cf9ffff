//! Split patterns as trees whose leaves are sets of characters.

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange, HirKind};

mod groups;
pub mod parser;

use crate::pretokenize::patterns::digit_groups::DigitGroups;

/// A split pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// One character of the set.
    Class(ClassUnicode),
    /// Consumes nothing: the next character is in `set`, or there is none and `at_end` holds.
    Ahead {
        set: ClassUnicode,
        at_end: bool,
    },
    /// Consumes nothing: what follows matches, or does not if it is negated. It is of use in [`DigitGroups`] alone.
    Lookahead {
        node: Box<Node>,
        negated: bool,
    },
    /// `\b`, of use there as well.
    WordBoundary,
    /// A whole pattern.
    DigitGroups(DigitGroups),
    Concat(Vec<Node>),
    /// Alternatives, of which the first that leads to a match wins.
    Alternate(Vec<Node>),
    /// Greedy, with backtracking.
    Repeat {
        node: Box<Node>,
        min: u32,
        max: Option<u32>,
    },
}

impl Node {
    /// A pattern that matches exactly `text`.
    pub fn literal(text: &str) -> Self {
        Self::concat(text.chars().map(|c| Self::Class(single(c))).collect())
    }

    /// One or more characters of `set`.
    pub fn run(set: ClassUnicode) -> Self {
        Self::Repeat { node: Box::new(Self::Class(set)), min: 1, max: None }
    }

    /// The set of which this is a repetition.
    pub fn repeated(&self) -> Option<&ClassUnicode> {
        match self {
            Self::Repeat { node, .. } => match &**node {
                Self::Class(set) => Some(set),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the pattern matches everywhere, so that there are no gaps between matches.
    pub fn covers_all_text(&self) -> bool {
        negated(self.certain()).ranges().is_empty()
    }

    /// Calls `visit` for each set in the tree.
    pub fn for_each_set<'a>(&'a self, visit: &mut impl FnMut(&'a ClassUnicode)) {
        match self {
            Self::Class(set) | Self::Ahead { set, .. } => visit(set),
            Self::Concat(nodes) | Self::Alternate(nodes) => {
                for node in nodes {
                    node.for_each_set(visit);
                }
            }
            Self::Repeat { node, .. } | Self::Lookahead { node, .. } => node.for_each_set(visit),
            Self::WordBoundary => {}
            Self::DigitGroups(DigitGroups { class, before, .. }) => {
                visit(class);
                visit(before);
            }
        }
    }

    /// The characters at which the node matches whatever follows them.
    pub fn certain(&self) -> ClassUnicode {
        match self {
            Self::Class(set) => set.clone(),
            Self::Alternate(nodes) => union(nodes.iter().map(Self::certain)),
            Self::Repeat { node, min, .. } if *min <= 1 => node.certain(),
            Self::Ahead { .. }
            | Self::Lookahead { .. }
            | Self::WordBoundary
            | Self::DigitGroups(_)
            | Self::Repeat { .. } => ClassUnicode::empty(),
            Self::Concat(nodes) => {
                let mut needed = nodes.iter().filter(|node| !node.never_fails());
                match (needed.next(), needed.next()) {
                    (Some(node), None) => node.certain(),
                    _ => ClassUnicode::empty(),
                }
            }
        }
    }

    /// Whether the node matches anywhere, at least the empty string.
    pub fn never_fails(&self) -> bool {
        match self {
            Self::Class(_)
            | Self::Ahead { .. }
            | Self::Lookahead { .. }
            | Self::WordBoundary
            | Self::DigitGroups(_) => false,
            Self::Concat(nodes) => nodes.iter().all(Self::never_fails),
            Self::Alternate(nodes) => nodes.iter().any(Self::never_fails),
            Self::Repeat { node, min, .. } => *min == 0 || node.never_fails(),
        }
    }

    /// Whether the node can match the empty string.
    pub fn may_be_empty(&self) -> bool {
        match self {
            Self::Class(_) => false,
            Self::Ahead { .. } | Self::Lookahead { .. } | Self::WordBoundary | Self::DigitGroups(_) => true,
            Self::Concat(nodes) => nodes.iter().all(Self::may_be_empty),
            Self::Alternate(nodes) => nodes.iter().any(Self::may_be_empty),
            Self::Repeat { node, min, .. } => *min == 0 || node.may_be_empty(),
        }
    }

    /// The characters that a match can look at first, or None if there is no simple answer.
    fn first(&self) -> Option<ClassUnicode> {
        match self {
            Self::Class(set) | Self::Ahead { set, .. } => Some(set.clone()),
            Self::Lookahead { .. } | Self::WordBoundary | Self::DigitGroups(_) => None,
            Self::Alternate(nodes) => {
                Some(union(nodes.iter().map(Self::first).collect::<Option<Vec<_>>>()?.into_iter()))
            }
            Self::Repeat { node, .. } => node.first(),
            Self::Concat(nodes) => first_of(nodes),
        }
    }

    /// The nodes one after another.
    pub fn concat(mut nodes: Vec<Self>) -> Self {
        match (nodes.pop(), nodes.is_empty()) {
            (Some(only), true) => only,
            (Some(last), false) => {
                nodes.push(last);
                Self::Concat(nodes)
            }
            (None, _) => Self::Concat(nodes),
        }
    }
}

/// The set of a character property or Perl class according to regex-syntax; both engines use Unicode 16, which
/// `tests::classes` verifies for every code point.
pub fn named_set(class: &str) -> Result<ClassUnicode, String> {
    let refused = || format!("the class {class} in a split pattern");
    match regex_syntax::parse(class).map_err(|_| refused())?.into_kind() {
        HirKind::Class(regex_syntax::hir::Class::Unicode(set)) => Ok(set),
        _ => Err(refused()),
    }
}

/// The set of all characters for which `holds`.
pub fn set_where(holds: impl Fn(char) -> bool) -> ClassUnicode {
    ClassUnicode::new(
        ('\0'..=char::MAX).filter(|&c| holds(c)).map(|c| ClassUnicodeRange::new(c, c)).collect::<Vec<_>>(),
    )
}

/// The characters of `\w`, and those that `\b` takes for characters of words: in Latin-1 all digits and fractions are,
/// and joiners are not.
pub fn word() -> ClassUnicode {
    named_set(r"[[\w²³¹¼½¾]--[\x{200C}\x{200D}]]").expect("regex-syntax knows these classes")
}

/// The characters of `\w` in a bracketed class, where superscripts and fractions are not among them.
pub fn word_in_class() -> ClassUnicode {
    named_set(r"[\w--[\x{200C}\x{200D}]]").expect("regex-syntax knows these classes")
}

/// All other characters.
pub fn negated(mut set: ClassUnicode) -> ClassUnicode {
    set.negate();
    set
}

/// The set of one character.
pub fn single(c: char) -> ClassUnicode {
    ClassUnicode::new([ClassUnicodeRange::new(c, c)])
}

/// The characters of some sets.
pub fn union(sets: impl Iterator<Item = ClassUnicode>) -> ClassUnicode {
    sets.fold(ClassUnicode::empty(), |mut all, set| {
        all.union(&set);
        all
    })
}

/// The characters that a match of some nodes can look at first.
pub fn first_of(nodes: &[Node]) -> Option<ClassUnicode> {
    let mut all = ClassUnicode::empty();
    for node in nodes {
        all.union(&node.first()?);
        if !node.never_fails() {
            return Some(all);
        }
    }
    None
}
