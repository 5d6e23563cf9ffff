//! gristmill's core: gzipped JSONL shards in, packed rows of token ids out.
//!
//! Data flows through `read` (inflate, split lines, extract the text), `encode` (text to ids), `lane` (the order of
//! documents), `pack` (ids to rows of a `batch`) and `feed` (the threads that do all that, and the consumer's side).
//! Each depends only on those before it, and from `lane` on also on `config`, what is to be produced, and `plan`, which
//! lane reads which shards. Everything here compiles and is tested without Python; only `python` uses PyO3.

pub mod batch;
pub mod config;
pub mod encode;
pub mod error;
pub mod feed;
pub mod lane;
mod memory;
pub mod pack;
pub mod plan;
#[cfg(feature = "python")]
mod python;
mod random;
pub mod read;
mod sync;

pub use error::{Error, Result, ShardError};
