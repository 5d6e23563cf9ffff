//! A piece in place in its text.

/// A piece of a padded text: at least `PADDING` bytes after it are readable.
#[derive(Clone, Copy)]
pub struct Pretoken<'a> {
    /// Begins with the piece.
    padded: &'a [u8],
    len: usize,
}

impl<'a> Pretoken<'a> {
    /// The piece from `start` to `end` of a padded text.
    #[inline(always)]
    pub fn new(text: &'a [u8], start: usize, end: usize) -> Self {
        Self { padded: &text[start..], len: end - start }
    }

    /// The part from `start` to `end`.
    pub fn part(self, start: usize, end: usize) -> Self {
        Self::new(self.padded, start, end)
    }

    pub fn len(self) -> usize {
        self.len
    }

    #[inline(always)]
    pub fn bytes(self) -> &'a [u8] {
        &self.padded[..self.len]
    }

    /// The piece and what follows it.
    pub fn padded(self) -> &'a [u8] {
        self.padded
    }
}
