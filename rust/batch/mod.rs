//! The memory of batches: buffers, and the ring of them between the lanes, which fill rows, and the consumer.

pub mod buffer;
pub mod ring;
