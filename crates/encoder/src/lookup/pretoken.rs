//! A pre-token, in its text.

/// A pre-token of a padded text: at least [`PADDING`](crate::pretokenize::PADDING) bytes after it are readable.
#[derive(Clone, Copy)]
pub struct Pretoken<'a> {
    /// The text from the pre-token's start on.
    padded: &'a [u8],
    len: usize,
}

impl<'a> Pretoken<'a> {
    /// The pre-token from `start` to `end` of a padded text.
    #[inline(always)]
    pub fn new(text: &'a [u8], start: usize, end: usize) -> Self {
        Self { padded: &text[start..], len: end - start }
    }

    /// The part from `start` to `end`, counted from the pre-token's start.
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

    /// The pre-token and the text after it.
    pub fn padded(self) -> &'a [u8] {
        self.padded
    }
}
