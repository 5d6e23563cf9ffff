//! Classes of characters.

pub mod partition;
pub mod table;
#[cfg(target_arch = "x86_64")]
pub mod unicode;
