//! From the lanes to the consumer: buffers, the ring, the workers, and the pipeline over them.

mod board;
pub mod buffer;
mod crew;
pub mod pipeline;
pub mod ring;
mod schedule;
pub mod turns;
