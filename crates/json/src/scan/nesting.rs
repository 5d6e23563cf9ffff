//! The open containers of a JSON value, one bit each.

/// The brackets that are open. One bit per level and no recursion, so that a line of nothing but `[` costs an eighth of
/// its own length and no stack.
#[derive(Default)]
pub(super) struct Nesting {
    /// The innermost levels, up to 64, the innermost lowest: no allocation for depths that occur in practice.
    top: u64,
    /// Full words of the levels outside `top`.
    rest: Vec<u64>,
    depth: usize,
}

/// The kind of value that a bracket opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Array,
    Object,
}

impl Nesting {
    pub(super) fn open(&mut self, container: Container) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.rest.push(self.top);
        }
        self.top = self.top << 1 | u64::from(container == Container::Object);
        self.depth += 1;
    }

    /// Closes the innermost container.
    pub(super) fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.top >>= 1;
        if self.depth.is_multiple_of(64)
            && let Some(word) = self.rest.pop()
        {
            self.top = word;
        }
    }

    pub(super) fn innermost(&self) -> Option<Container> {
        match self.top & 1 {
            _ if self.depth == 0 => None,
            0 => Some(Container::Array),
            _ => Some(Container::Object),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_remembers_every_level() {
        let kinds: Vec<_> = (0..1000u32)
            .map(|level| if level.count_ones() % 2 == 0 { Container::Array } else { Container::Object })
            .collect();
        let mut nesting = Nesting::default();
        for round in 0..2 {
            for &kind in &kinds {
                nesting.open(kind);
                assert_eq!(nesting.innermost(), Some(kind), "round {round}");
            }
            for &kind in kinds.iter().rev() {
                assert_eq!(nesting.innermost(), Some(kind), "round {round}");
                nesting.close();
            }
            assert_eq!(nesting.innermost(), None);
        }
    }
}
