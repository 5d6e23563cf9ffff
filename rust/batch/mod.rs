//! The memory of batches and what is in it: layouts, buffers, and the ring of them between the lanes, which fill rows,
//! and the consumer.

pub mod buffers;
pub mod layouts;
pub mod provenance;
pub mod ring;
