//! Classes of characters.

pub mod partition;
pub mod table;
pub mod unicode;
