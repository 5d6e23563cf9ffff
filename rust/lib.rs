//! gristmill's core: gzipped JSONL shards in, packed rows of token ids out.
//!
//! The way of the data is `read` (inflate, split lines, extract the text), `encode` (text to ids),
//! `pack` (ids to rows) and `ring` (rows to batches). Everything here compiles and is tested
//! without Python; `python` alone knows PyO3.

pub mod encode;
pub mod error;
#[cfg(feature = "python")]
mod python;
pub mod read;

pub use error::{Error, Result, ShardError};
