//! The tokens of a vocabulary as a double-array trie: the node after a byte is one XOR and one read away.

/// "Absent". Above all ids and nodes.
pub const NONE: u32 = u32::MAX;

/// Children of a node are in one block of so many.
const BLOCK: usize = 256;

/// A node with several children is placed into the last nodes, or behind them: a search through all gaps would make
/// large vocabularies load in quadratic time.
const SEARCHED: usize = 16 * BLOCK;

/// The node in which all tokens begin.
pub const ROOT: u32 = 0;

/// Tokens by their bytes.
pub struct Trie {
    nodes: Box<[Node]>,
}

#[derive(Clone, Copy)]
struct Node {
    /// The child by a byte is at `base ^ byte`, if that node has this one as parent.
    base: u32,
    parent: u32,
    /// The id of the token that ends here, [`NONE`] if none does.
    id: u32,
}

const FREE: Node = Node { base: 0, parent: NONE, id: NONE };

impl Trie {
    /// Makes a trie of tokens that differ, in any order.
    pub fn new(mut tokens: Vec<(Vec<u8>, u32)>) -> Self {
        tokens.sort_unstable();
        let mut builder = Builder { nodes: vec![FREE; BLOCK], used: vec![0; BLOCK / 64], first_free: 1 };
        builder.used[0] = 1;
        let mut open = vec![(ROOT, 0..tokens.len(), 0)];
        let mut children = Vec::new();
        while let Some((node, mut range, depth)) = open.pop() {
            if let Some((token, id)) = tokens[range.clone()].first()
                && token.len() == depth
            {
                builder.nodes[node as usize].id = *id;
                range.start += 1;
            }
            children.clear();
            for group in tokens[range.clone()].chunk_by(|left, right| left.0[depth] == right.0[depth]) {
                children.push((group[0].0[depth], group.len()));
            }
            let base = builder.place(node, &children);
            for (byte, count) in &children {
                let end = range.start + count;
                open.push((base ^ u32::from(*byte), range.start..end, depth + 1));
                range.start = end;
            }
        }
        Self { nodes: builder.nodes.into_boxed_slice() }
    }

    /// The node after a byte.
    #[inline(always)]
    pub fn child(&self, node: u32, byte: u8) -> Option<u32> {
        let child = self.nodes[node as usize].base ^ u32::from(byte);
        (self.nodes[child as usize].parent == node).then_some(child)
    }

    /// The id of the token that ends in a node, [`NONE`] if none does.
    #[inline(always)]
    pub fn id(&self, node: u32) -> u32 {
        self.nodes[node as usize].id
    }

    /// The node after some bytes.
    pub fn walk(&self, from: u32, bytes: &[u8]) -> Option<u32> {
        bytes.iter().try_fold(from, |node, byte| self.child(node, *byte))
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.nodes)
    }
}

struct Builder {
    nodes: Vec<Node>,
    /// One bit for each node.
    used: Vec<u64>,
    /// No node before it is free.
    first_free: usize,
}

impl Builder {
    /// Finds nodes for the children of a node, in the order of their bytes, and returns its base.
    fn place(&mut self, parent: u32, children: &[(u8, usize)]) -> u32 {
        let Some((first, _)) = children.first() else { return 0 };
        let from = match children.len() {
            1 => self.first_free,
            _ => self.first_free.max(self.nodes.len().saturating_sub(SEARCHED)),
        };
        let mut place = self.free_from(from);
        let base = loop {
            let base = place as u32 ^ u32::from(*first);
            if place == self.nodes.len() {
                self.nodes.resize(place + BLOCK, FREE);
                self.used.resize((place + BLOCK) / 64, 0);
            }
            if children.iter().all(|(byte, _)| self.is_free((base ^ u32::from(*byte)) as usize)) {
                break base;
            }
            place = self.free_from(place + 1);
        };
        for (byte, _) in children {
            let child = (base ^ u32::from(*byte)) as usize;
            self.nodes[child].parent = parent;
            self.used[child / 64] |= 1 << (child % 64);
        }
        self.nodes[parent as usize].base = base;
        self.first_free = self.free_from(self.first_free);
        base
    }

    fn is_free(&self, node: usize) -> bool {
        self.used[node / 64] >> (node % 64) & 1 == 0
    }

    /// The first free node from one on, or the number of nodes.
    fn free_from(&self, node: usize) -> usize {
        let mut mask = !0 << (node % 64);
        for (index, word) in self.used.iter().enumerate().skip(node / 64) {
            let free = !word & mask;
            if free != 0 {
                return index * 64 + free.trailing_zeros() as usize;
            }
            mask = !0;
        }
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn id(trie: &Trie, token: &[u8]) -> Option<u32> {
        trie.walk(ROOT, token).map(|node| trie.id(node)).filter(|id| *id != NONE)
    }

    proptest! {
        #[test]
        fn tokens_are_found_and_others_are_not(
            tokens in prop::collection::btree_map(prop::collection::vec(any::<u8>(), 0..4), 0..1000u32, 0..3000),
            others in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..300),
        ) {
            let tokens: BTreeMap<Vec<u8>, u32> = tokens;
            let trie = Trie::new(tokens.clone().into_iter().collect());
            for token in tokens.keys().chain(&others) {
                prop_assert_eq!(id(&trie, token), tokens.get(token).copied());
            }
        }
    }

    #[test]
    fn an_empty_vocabulary_has_a_root() {
        let trie = Trie::new(Vec::new());
        assert!((0..=255).all(|byte| trie.child(ROOT, byte).is_none()));
        assert_eq!(trie.id(ROOT), NONE);
    }
}
