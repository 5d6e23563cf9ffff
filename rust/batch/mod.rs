//! The memory of batches: the schema of their fields, the layouts, buffers, and the ring of them between the lanes,
//! which fill rows, and the consumer.

pub mod buffers;
pub mod layouts;
pub mod ring;
pub mod schema;
