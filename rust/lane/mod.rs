//! A lane: one ordered stream of documents with one cursor, read and packed in order.

pub mod block;
pub mod cursor;
pub mod documents;
pub mod report;
pub mod source;
#[cfg(test)]
mod tests;
mod window;
