//! Finds the values of several paths in one pass over a line.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::{Fault, Scanner};
use crate::path::{Path, Step};

/// Where the wanted values are in a line: for each path the offset of its value, if there is one.
pub type Offsets = Vec<Option<usize>>;

/// The wanted paths as a tree, in which paths that begin alike share nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    root: Node,
    paths: usize,
}

/// A value that paths lead to or through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Node {
    /// The index of the path that ends here.
    path: Option<usize>,
    /// The nodes that follow in an object, by key.
    members: BTreeMap<String, Node>,
    /// The nodes that follow in an array, by index. Negative ones count from the end.
    items: BTreeMap<i64, Node>,
}

impl Selector {
    /// For paths without [`Step::All`].
    pub fn new(paths: &[Path]) -> Self {
        let mut root = Node::default();
        for (index, path) in paths.iter().enumerate() {
            let end = path.iter().fold(&mut root, |node, step| match step {
                Step::Key(key) => node.members.entry(key.clone()).or_default(),
                Step::Index(index) => node.items.entry(*index).or_default(),
                Step::All => unreachable!("paths lead to one value"),
            });
            end.path = Some(index);
        }
        Self { root, paths: paths.len() }
    }

    /// Nothing found yet.
    pub fn reset(&self, offsets: &mut Offsets) {
        offsets.clear();
        offsets.resize(self.paths, None);
    }

    /// Reads the line's object at the scanner, and notes what is wanted of it.
    pub(super) fn select(&self, scanner: &mut Scanner<'_>, offsets: &mut Offsets) -> Result<(), Fault> {
        self.reset(offsets);
        self.root.select(scanner, offsets)
    }

    /// Notes the offset of the object of a valid line, which an empty path wants.
    pub(super) fn note_object(&self, line: &str, offsets: &mut Offsets) {
        if self.root.path.is_some() {
            self.root.note(line.find('{').unwrap_or_default(), offsets);
        }
    }

    /// The node of a key of the line's object.
    pub(super) fn member(&self, key: &str) -> Option<&Node> {
        self.root.members.get(key)
    }
}

impl Node {
    /// Reads the value at the scanner, and notes what is wanted of it. The last one of equal keys counts: what an
    /// earlier one held is forgotten.
    pub(super) fn select(&self, scanner: &mut Scanner<'_>, offsets: &mut Offsets) -> Result<(), Fault> {
        self.forget(offsets);
        self.note(scanner.at, offsets);
        match scanner.peek() {
            Some(b'{') if !self.members.is_empty() => self.select_members(scanner, offsets),
            Some(b'[') if !self.items.is_empty() => self.select_items(scanner, offsets),
            _ => scanner.value(),
        }
    }

    /// Notes a value's offset. Returns whether nothing inside the value is wanted.
    pub(super) fn note(&self, at: usize, offsets: &mut Offsets) -> bool {
        if let Some(path) = self.path {
            offsets[path] = Some(at);
        }
        self.members.is_empty() && self.items.is_empty()
    }

    fn forget(&self, offsets: &mut Offsets) {
        if let Some(path) = self.path {
            offsets[path] = None;
        }
        self.members.values().chain(self.items.values()).for_each(|node| node.forget(offsets));
    }

    fn select_members(&self, scanner: &mut Scanner<'_>, offsets: &mut Offsets) -> Result<(), Fault> {
        let mut more = scanner.open_object()?;
        while more {
            let key = scanner.unescaped_key()?;
            match key.and_then(|key| self.members.get(&*key)) {
                Some(node) => node.select(scanner, offsets)?,
                None => scanner.value()?,
            }
            more = scanner.next_member()?;
        }
        Ok(())
    }

    fn select_items(&self, scanner: &mut Scanner<'_>, offsets: &mut Offsets) -> Result<(), Fault> {
        let start = scanner.at;
        let count = self.select_by(scanner, offsets, 0)?;
        if self.items.first_key_value().is_some_and(|(index, _)| *index < 0) {
            // How many items there are is known only now. A second pass over this one array costs no memory.
            scanner.at = start;
            self.select_by(scanner, offsets, -count)?;
        }
        Ok(())
    }

    /// Reads an array, whose first item has the index `first`. Returns the number of items.
    fn select_by(&self, scanner: &mut Scanner<'_>, offsets: &mut Offsets, first: i64) -> Result<i64, Fault> {
        let wanted = (Bound::Included(first), if first < 0 { Bound::Excluded(0) } else { Bound::Unbounded });
        let mut wanted = self.items.range(wanted).peekable();
        let mut index = first;
        let mut more = scanner.open_array();
        while more {
            match wanted.next_if(|(next, _)| **next == index) {
                Some((_, node)) => node.select(scanner, offsets)?,
                None => scanner.value()?,
            }
            index += 1;
            more = scanner.next_item(b']', "',' or ']' after an element")?;
        }
        Ok(index - first)
    }
}
