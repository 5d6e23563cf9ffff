//! Documents to rows.

mod concat;
mod layout;

pub use concat::{Concat, Pause};
pub use layout::{Layout, Segment};
