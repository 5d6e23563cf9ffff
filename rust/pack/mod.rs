//! Documents to rows.
//!
//! All packings share one loop: look at what comes next, publish the step if it is full, else write some of it.
//! `concat`, `pad` and `best_fit` differ in how much of a document goes into a row and in when a row is closed. `step`
//! knows where in the step the next token goes.

mod best_fit;
mod concat;
#[cfg(test)]
mod faults_tests;
mod pad;
pub mod placement;
pub mod queue;
pub mod report;
mod step;
#[cfg(test)]
pub mod tests;
mod window;

use std::sync::Arc;

use crate::batch::ring::LaneWriter;
use crate::pack::queue::{DocumentQueue, Next};
use crate::pack::report::Report;
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

/// What became of the next tokens of a document.
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
}

impl Packer {
    /// A packer at the start of a step.
    pub fn new(spec: &Arc<StreamSpec>, writer: LaneWriter<Report>) -> Self {
        Self { spec: Arc::clone(spec), step: StepWriter::new(spec, writer) }
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
        while !self.step.has_stopped() {
            if !self.step.has_room() {
                return Pause::NoRoom;
            }
            let run = match documents.peek() {
                Next::Starved => return Pause::Starved,
                Next::Tokens(run) => run,
                Next::Ended => {
                    self.step.finish(documents);
                    continue;
                }
                Next::Failed(error) => {
                    self.step.fail(documents, error);
                    continue;
                }
            };
            self.step.write_boundary_target(run.tokens[0]);
            if self.step.is_full() {
                self.step.publish_full(documents);
                continue;
            }
            let taken = match packing {
                Packing::Concat => Ok(concat::write(&mut self.step, &run, self.spec.max_segments)),
                Packing::BestFit { .. } => Ok(best_fit::write(&mut self.step, &run)),
                Packing::Pad(truncation) => pad::write(&mut self.step, &run, truncation),
            };
            match taken {
                Ok(Written { tokens: written, dropped }) => documents.advance(written, dropped),
                Err(error) => self.step.fail(documents, error.into()),
            }
        }
        Pause::Stopped
    }
}
