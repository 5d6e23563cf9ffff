//! The table of origins: one node for each value of the input that a byte can come from.

/// The part of the input that a value belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    Template,
    SpecialToken,
    Message,
    Tool,
    Document,
    Kwarg,
}

/// A value of the input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    pub root: Root,
    /// The message that a value inside of one belongs to, counted from 1; else 0.
    pub message: u32,
    pub parent: u32,
    /// The node right below that of the message, tool and so on that this one is in; 0: it is not inside of one.
    pub part: u32,
    pub key: Key,
}

/// Where a node is in its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// An element of a list.
    Index(u32),
    /// An entry of a dict: where its key is in the table's text.
    Name { start: u32, length: u32 },
}

/// All nodes of one input, with the text of their keys.
#[derive(Debug, Clone)]
pub(crate) struct Origins {
    pub nodes: Vec<Node>,
    pub keys: String,
}

impl Default for Origins {
    fn default() -> Self {
        let template = Node { root: Root::Template, message: 0, parent: 0, part: 0, key: Key::Index(0) };
        let mut nodes = Vec::with_capacity(64);
        nodes.push(template);
        Self { nodes, keys: String::with_capacity(512) }
    }
}

impl Origins {
    pub(crate) fn add(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Keeps a key's text.
    pub(crate) fn name(&mut self, key: &str) -> Key {
        let start = self.keys.len() as u32;
        self.keys.push_str(key);
        Key::Name { start, length: key.len() as u32 }
    }

    pub(crate) fn key_text(&self, key: Key) -> Option<&str> {
        match key {
            Key::Index(_) => None,
            Key::Name { start, length } => Some(&self.keys[start as usize..(start + length) as usize]),
        }
    }

    pub(crate) fn parent_of(&self, node: u32) -> &Node {
        &self.nodes[self.nodes[node as usize].parent as usize]
    }

    /// The keys and indices from a root to a node.
    pub(crate) fn path(&self, node: u32) -> Vec<Key> {
        let mut path = Vec::new();
        let mut at = node;
        while at != 0 {
            path.push(self.nodes[at as usize].key);
            at = self.nodes[at as usize].parent;
        }
        path.reverse();
        path
    }
}
