//! Errors of the core: one enum, and the located error of a shard.

use std::fmt::Display;
use std::sync::Arc;

use gristmill_system::catch_panic;

/// An error in the data of a shard, with shard, record and byte.
///
/// `record` is the 0-based line (blank lines counted) or row, `byte` the offset of a line's first byte in the inflated
/// shard; for damage to a compressed stream, `byte` is the number of bytes inflated before it. Rows have no `byte`. Both
/// are `None` when the shard could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub struct ShardError {
    /// Path of the shard as in the manifest.
    pub shard: Arc<str>,
    /// 0-based line of the record, blank lines counted, or row.
    pub record: Option<u64>,
    /// Inflated byte offset of a line's start.
    pub byte: Option<u64>,
    /// Expected, found, and how to fix it.
    pub reason: String,
}

impl ShardError {
    fn message(&self) -> String {
        match (self.record, self.byte) {
            (Some(record), Some(byte)) => {
                format!("{}: record {record}, byte {byte}: {}", self.shard, self.reason)
            }
            (Some(record), None) => format!("{}: record {record}: {}", self.shard, self.reason),
            (None, _) => format!("{}: {}", self.shard, self.reason),
        }
    }
}

/// Every error the core returns. The Python boundary has one conversion from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A shard's bytes are not what they should be.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// tokenizer.json cannot be loaded, or a text cannot be encoded with it.
    #[error("{0}")]
    Tokenizer(String),
    /// A chat template cannot be compiled, or cannot render a conversation.
    #[error("{0}")]
    Template(String),
    /// Bytes are not an image that can be decoded.
    #[error("{0}")]
    Image(String),
    /// A saved state does not fit this dataset.
    #[error("{0}")]
    State(String),
    /// An argument is out of its range.
    #[error("{0}")]
    Argument(String),
    /// The operating system refused something, through no fault of a shard.
    #[error("{0}")]
    System(String),
    /// The iterator was created in another process.
    #[error(
        "this iterator was created in another process, whose worker threads a forked child does not have: create an \
         iterator after the fork, and pass the saved state to its set_state"
    )]
    Forked,
    /// The iterator was closed.
    #[error("this iterator was closed: create another one of the dataset")]
    Closed,
    /// Something panicked.
    #[error("this is a bug in gristmill, please report it: {0}")]
    Bug(String),
}

impl Error {
    /// The system refuses worker threads.
    pub fn no_threads(wanted: usize, error: impl Display) -> Self {
        Self::System(format!(
            "cannot start {wanted} worker threads: {error}; use fewer threads=, or raise the limits (ulimit -u, \
             ulimit -v)"
        ))
    }
}

impl From<gristmill_encoder::Error> for Error {
    fn from(error: gristmill_encoder::Error) -> Self {
        match error {
            gristmill_encoder::Error::Tokenizer(reason) => Self::Tokenizer(reason),
            gristmill_encoder::Error::Threads { wanted, reason } => Self::no_threads(wanted, reason),
            gristmill_encoder::Error::Bug(reason) => Self::Bug(reason),
        }
    }
}

/// Does work, turning a panic into an error. The data that it was changing may then be inconsistent.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_panic(work).unwrap_or_else(|message| Err(Error::Bug(message)))
}

/// The core's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;
