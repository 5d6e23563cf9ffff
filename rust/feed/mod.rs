//! From the lanes to the consumer: the workers, and the pipeline over them.

pub mod fair_mutex;
mod job_queue;
pub mod left_out;
pub mod pipeline;
mod schedule;
mod workers;
