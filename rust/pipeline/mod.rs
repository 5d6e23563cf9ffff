//! From the lanes to the consumer: the workers, their schedule, and the batches in order.

pub mod block_samples;
mod consumer;
mod decode_images;
pub mod encode_block;
pub mod fair_mutex;
mod job_queue;
mod schedule;
#[cfg(test)]
mod simulation;
mod undelivered;
mod workers;

pub use consumer::{Batch, Delivered, Delivery, Pipeline, SourceStats, Stats};
