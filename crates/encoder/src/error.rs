//! Errors of the encoder.

use gristmill_system::catch_panic;

/// Every error that the encoder returns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// tokenizer.json cannot be loaded, or a text cannot be encoded with it.
    #[error("{0}")]
    Tokenizer(String),
    /// The system refuses threads.
    #[error("cannot start {wanted} threads: {reason}")]
    Threads {
        /// How many were to be started.
        wanted: usize,
        /// The system's reason.
        reason: String,
    },
    /// Something panicked.
    #[error("this is a bug in gristmill, please report it: {0}")]
    Bug(String),
}

/// The encoder's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Does work, turning a panic into an error. The data it worked on may then be in an inconsistent state.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_panic(work).unwrap_or_else(|message| Err(Error::Bug(message)))
}
