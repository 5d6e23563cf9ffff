//! A lane: one ordered stream of records, read from its shards, with a cursor.

pub mod admission;
pub mod assignment;
pub mod block;
pub mod carried;
pub mod cursor;
pub mod error_budget;
pub mod id_buffer;
pub mod joined_shard;
pub mod reader;
pub mod sidecars;
pub mod values;
