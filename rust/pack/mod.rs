//! Documents to rows.
//!
//! All packings share one loop: look at what comes next, publish the step if it is full, else write some of it.
//! `concat`, `pad` and `best_fit` differ in how much of a document goes into a row and in when a row is closed. `step`
//! knows where in the step the next token goes.

mod best_fit;
mod concat;
mod layout;
mod pad;
mod provenance;
mod step;

use std::sync::Arc;

use crate::batch::ring::LaneWriter;
use crate::config::{Packing, StreamConfig};
use crate::lane::documents::{Documents, Upcoming};
use crate::lane::report::Report;

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
struct Taken {
    /// Tokens written into a row.
    given: usize,
    /// Tokens that were dropped.
    dropped: usize,
}

/// A lane's packer, which holds the lane's end of the ring.
pub struct Packer {
    config: Arc<StreamConfig>,
    step: StepWriter,
}

impl Packer {
    /// A packer at the start of a step.
    pub fn new(config: &Arc<StreamConfig>, writer: LaneWriter<Report>) -> Self {
        Self { config: Arc::clone(config), step: StepWriter::new(config, writer) }
    }

    /// The step that is written next.
    pub fn step(&self) -> u64 {
        self.step.number()
    }

    /// Packs as far as documents and room go.
    ///
    /// A step is published once the token after it, or the end, is known: only then are the cursor, and with
    /// `boundary_targets` the last target, final.
    pub fn pack(&mut self, documents: &mut Documents) -> Pause {
        let packing = self.config.packing;
        while !self.step.has_stopped() {
            if !self.step.has_room() {
                return Pause::NoRoom;
            }
            let run = match documents.peek() {
                Upcoming::Starved => return Pause::Starved,
                Upcoming::Tokens(run) => run,
                Upcoming::Ended => {
                    self.step.finish(documents);
                    continue;
                }
                Upcoming::Failed(error) => {
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
                Packing::Concat => Ok(concat::write(&mut self.step, &run, self.config.max_segments)),
                Packing::BestFit { .. } => Ok(best_fit::write(&mut self.step, &run)),
                Packing::Pad(truncation) => pad::write(&mut self.step, &run, truncation),
            };
            match taken {
                Ok(Taken { given, dropped }) => documents.advance(given, dropped),
                Err(error) => self.step.fail(documents, error.into()),
            }
        }
        Pause::Stopped
    }
}
