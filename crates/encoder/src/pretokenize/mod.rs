//! How text is cut into pre-tokens.
//!
//! Text is cut at the matches of the tokenizer's [`patterns`], and where no merge can cross, at [`boundaries`] that
//! follow from the vocabulary.

pub mod boundaries;
pub mod patterns;

/// How many bytes must follow a text: from its last byte on, loops over blocks read 64 and what a character that begins
/// in these may have after them.
pub const PADDING: usize = 64 + 3;
