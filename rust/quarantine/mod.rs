//! Quarantined records: how many, which, and the file that lists all of them.

pub mod delivered;
pub mod file;
pub mod log;
