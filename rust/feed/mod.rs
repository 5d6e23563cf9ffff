//! From the lanes to the consumer: the workers, and the pipeline over them.

mod board;
mod crew;
pub mod left_out;
pub mod pipeline;
mod schedule;
pub mod turns;
