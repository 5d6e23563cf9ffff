//! Memory, locks and panics: the few things that both the encoder and the loader need from the system.

mod lock;
pub mod memory;
mod panic;

pub use lock::lock_unless_forked;
pub use panic::{catch_expected_panic, catch_panic};
