//! A lane: one ordered stream of documents with one cursor, read and packed in order.

pub mod best_fit;
pub mod block;
pub mod block_encoder;
pub mod cursor;
pub mod documents;
mod error_budget;
pub mod ids;
pub mod quarantine;
pub mod quarantine_file;
pub mod report;
pub mod source;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_faults;
mod window;
