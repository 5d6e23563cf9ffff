//! Documents to rows.
//!
//! ```text
//! DocumentQueue ── Next::Tokens ──> concat, best_fit, pad ──> StepWriter ── Report ──> ring
//!       └────────────── report() at the end of a step ────────────┘
//! ```
//!
//! All packings share one loop: look at the tokens that come next, publish the step if it is full, else write some of
//! them. `concat`, `pad` and `best_fit` differ in how many tokens of a document go into a row and in when a row is
//! closed. `step` knows at which index of which row the next token is written, `rows` what each field holds of it.
//!
//! Data flows from the queue to the step, as [`TokenSlice`](tokens::TokenSlice)s of a document. The queue knows nothing
//! of rows but these numbers: how many tokens [`advance`](queue::DocumentQueue::advance) moves past, how many of those
//! were dropped, and how much padding and how many trained tokens the step has when
//! [`report`](queue::DocumentQueue::report) ends it.

mod best_fit;
mod concat;
#[cfg(test)]
mod faults_tests;
mod pad;
pub mod placement;
pub mod queue;
pub mod report;
mod rows;
mod step;
#[cfg(test)]
pub mod tests;
pub mod tokens;
mod window;

use std::sync::Arc;

use crate::batch::ring::LaneWriter;
use crate::error::Error;
use crate::pack::queue::{DocumentQueue, Next};
use crate::pack::report::{Report, Rows};
use crate::spec::{Packing, StreamSpec};

use step::StepWriter;

/// Why packing paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// More blocks are needed.
    Starved,
    /// The consumer must take a batch first.
    NoRoom,
    /// The lane failed: nothing more will follow.
    Stopped,
}

/// How many of a document's next tokens were used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Written {
    /// Tokens written into a row.
    tokens: usize,
    /// Tokens that were dropped.
    dropped: usize,
}

/// A lane's packer, which holds the lane's end of the ring.
pub struct Packer {
    spec: Arc<StreamSpec>,
    step: StepWriter,
    /// Whether the lane failed and nothing may follow.
    has_stopped: bool,
}

impl Packer {
    /// A packer at the start of a step.
    pub fn new(spec: &Arc<StreamSpec>, writer: LaneWriter<Report>) -> Self {
        Self { spec: Arc::clone(spec), step: StepWriter::new(spec, writer), has_stopped: false }
    }

    /// The step that is written next.
    pub fn step(&self) -> u64 {
        self.step.number()
    }

    /// Packs as far as documents and room go.
    ///
    /// A step is published once the token after it, or the end, is known: only then are the cursor, and with
    /// `boundary_targets` the last target, final.
    pub fn pack(&mut self, documents: &mut DocumentQueue) -> Pause {
        let packing = self.spec.packing;
        while !self.has_stopped {
            if !self.step.has_room() {
                return Pause::NoRoom;
            }
            let next = match documents.peek() {
                Next::Starved => return Pause::Starved,
                Next::Tokens(next) => next,
                Next::Ended => {
                    let rows = if self.step.close() { Rows::Padding } else { Rows::Tokens { more: false } };
                    self.publish(rows, documents);
                    continue;
                }
                Next::Failed(error) => {
                    self.fail(error, documents);
                    continue;
                }
            };
            if let Some(token) = next.rest.get(0) {
                self.step.write_boundary_target(token);
            }
            if self.step.is_full() {
                self.publish(Rows::Tokens { more: true }, documents);
                continue;
            }
            let written = match packing {
                Packing::Concat => Ok(concat::write(&mut self.step, &next.rest, self.spec.max_segments)),
                Packing::BestFit { .. } => Ok(best_fit::write(&mut self.step, &next)),
                Packing::Pad(truncation) => pad::write(&mut self.step, &next.rest, truncation),
            };
            match written {
                Ok(Written { tokens, dropped }) => documents.advance(tokens, dropped),
                Err(error) => self.fail(error.into(), documents),
            }
        }
        Pause::Stopped
    }

    /// Publishes the failure of the lane, or first the step before it if that is complete: the next look fails again,
    /// in the step that needs the failed document.
    fn fail(&mut self, error: Error, documents: &mut DocumentQueue) {
        let is_complete = self.step.is_complete();
        self.has_stopped = !is_complete;
        self.publish(if is_complete { Rows::Tokens { more: true } } else { Rows::Failed(error) }, documents);
    }

    fn publish(&mut self, rows: Rows, documents: &mut DocumentQueue) {
        self.step.publish(documents.report(rows, self.step.padding(), self.step.trained()));
    }
}
