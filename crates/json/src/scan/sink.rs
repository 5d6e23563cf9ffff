//! Consumers of a string's content while it is scanned.

/// Takes the content of one string, part by part.
pub(crate) trait Sink {
    fn literal(&mut self, text: &str);
    fn char(&mut self, char: char);
    /// An escaped unpaired surrogate, at this byte of the line.
    fn lone_surrogate(&mut self, at: usize);
}

/// Content that is only validated.
pub(crate) struct Skip;

impl Sink for Skip {
    fn literal(&mut self, _: &str) {}
    fn char(&mut self, _: char) {}
    fn lone_surrogate(&mut self, _: usize) {}
}

/// Content that is wanted.
pub(crate) struct Append<'a> {
    pub(crate) text: &'a mut String,
    /// The byte of the line at which the first unpaired surrogate is.
    pub(crate) lone_surrogate: Option<usize>,
}

impl Sink for Append<'_> {
    fn literal(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn char(&mut self, char: char) {
        self.text.push(char);
    }

    fn lone_surrogate(&mut self, at: usize) {
        self.lone_surrogate.get_or_insert(at);
    }
}

/// Compares content with a key: `rest` is the part that must still follow, none if they already differ.
pub(super) struct Match<'a> {
    pub(super) rest: Option<&'a [u8]>,
}

impl Sink for Match<'_> {
    fn literal(&mut self, text: &str) {
        self.rest = self.rest.and_then(|rest| rest.strip_prefix(text.as_bytes()));
    }

    fn char(&mut self, char: char) {
        self.literal(char.encode_utf8(&mut [0; 4]));
    }

    fn lone_surrogate(&mut self, _: usize) {
        self.rest = None;
    }
}
