//! Records as values: JSON that is validated, looked into, read and written. Strings are borrowed where they can be.
//!
//! ```text
//! a line ─┬─> scan: is it valid? the text under a key, where some paths lead      plain text, filters
//!         └─> View ──> Read ──> Value, or a value of the caller's own              conversations
//! a row ──> Packer ─┘                                                              Parquet, Arrow
//! ```

#![forbid(unsafe_op_in_unsafe_fn)]

mod packed;
mod path;
mod read;
mod scan;
mod value;
mod view;
mod write;

pub use packed::{PackedReader, Packer, TextFault, Typed, base64};
pub use path::{Path, Step};
pub use read::{Begin, MAX_DEPTH, Read, ReadError, Text, Tree};
pub use scan::{
    Fault, Member, Offsets, Selector, extract, extract_if, for_each_key, keys, members, select, value,
};
pub use value::Value;
pub use view::{Content, Items, Line, Source, View};
pub use write::{write_exact, write_json, write_sized, write_string};
