//! The core of gristmill, which turns raw training data into the batches that language models are trained on.
//!
//! Data goes through `store` (bytes by name), `codec` (inflate), `format` (find records, extract the text), the
//! crate `gristmill_encoder` (text to ids), `lane` (the order of documents), `pack` (ids to rows of a `batch`) and
//! `pipeline` (the threads that do all that, and the consumer's side). Each depends only on those before it, and from
//! `lane` on also on `spec`, which says what the stream is, and on `quarantine`. `prompts` reads into memory what needs
//! no lanes, and `audit` counts what is in conversations as it does. Everything here compiles and is tested
//! without Python; only `python` uses PyO3.

pub mod audit;
pub mod batch;
pub mod codec;
pub mod error;
pub mod format;
pub mod image;
pub mod lane;
pub mod pack;
pub mod pipeline;
pub mod prepare;
pub mod prompts;
#[cfg(feature = "python")]
mod python;
pub mod quarantine;
mod random;
pub mod spec;
pub mod state;
pub mod store;
mod sync;

pub use gristmill_encoder as encode;

pub use error::{Error, Result, ShardError};
