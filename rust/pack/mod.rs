//! Documents to rows.
//!
//! ```text
//! DocumentQueue ── Next::Tokens ──> concat, best_fit, pad ──> StepWriter ── Report ──> ring
//!       └────────────── cursors at the end of a step ─────────────┘
//! ```
//!
//! A row is of one source. All packings share one loop: choose the source of the next row, publish the step if that is
//! full, look at the tokens of the source that come next, and write some of them. `concat`, `pad` and `best_fit` differ in how many tokens of a document go into a row and in when a row is
//! closed. `step` knows at which index of which row the next token is written, `rows` what each field holds of it.
//!
//! Data goes from the queue to the step, as [`TokenSlice`](tokens::TokenSlice)s of a document. The queue knows nothing
//! of rows but these numbers: how many tokens [`advance`](queue::DocumentQueue::advance) moves past, how much padding and
//! how many trained tokens a row has when [`count_row`](queue::DocumentQueue::count_row) ends it, and how many tokens one
//! had that is [left out](queue::DocumentQueue::leave_out_row) because nothing of it is trained on: it is filled again.

pub mod balance;
mod best_fit;
mod concat;
#[cfg(test)]
mod faults_tests;
mod pad;
pub mod pixels;
pub mod placement;
pub mod queue;
pub mod report;
mod rows;
mod step;
#[cfg(test)]
pub mod tests;
pub mod tokens;
pub mod trained;
mod window;

use std::sync::Arc;

use crate::batch::ring::LaneWriter;
use crate::error::{Error, ShardError};
use crate::lane::cursor::Cursor;
use crate::pack::pixels::{PixelFault, PixelTask, PlacedImage, Undecodable};
use crate::pack::queue::{DocumentQueue, Next};
use crate::pack::report::{Report, Rows};
use crate::prepare::image_text::of_sample;
use crate::spec::mixture::{RowNumber, Turn};
use crate::spec::{Packing, StreamSpec, UntrainedRows};

use step::StepWriter;

/// Why packing paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// More blocks of this source are needed.
    Starved(usize),
    /// The consumer must take a batch first.
    NoRoom,
    /// The [pixels](Packer::lend_pixels) of the step must be written first.
    Pixels,
    /// The lane failed: nothing more will follow.
    Stopped,
}

/// A lane's packer, which holds the lane's end of the ring.
pub struct Packer {
    stream: Arc<StreamSpec>,
    /// The index in a batch of the lane's first row.
    first_row: u64,
    step: StepWriter,
    phase: Phase,
    /// Whether each source has delivered its last epoch.
    ended: Vec<bool>,
    /// The stage of the mixture that the cursors count in: that of the last row.
    stage: usize,
    /// Samples of the step that have an image which cannot be decoded.
    undecodable: Vec<ShardError>,
}

/// The step of packing that is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Choosing the source of the next row.
    Choose,
    /// Filling a row of this source.
    Fill(usize),
    /// Finding what follows a full row of this source: only then are its cursor, and with `boundary_targets` the last
    /// target, final.
    Settle(usize),
    /// Nothing: the lane failed, and nothing may follow.
    Stopped,
}

impl Packer {
    /// A packer of a lane at the start of a step, whose sources are at these cursors.
    pub fn new(
        stream: &Arc<StreamSpec>,
        lane: usize,
        cursors: &[Cursor],
        writer: LaneWriter<Report>,
    ) -> Self {
        Self {
            first_row: (lane * writer.rows()) as u64,
            phase: Phase::Choose,
            ended: stream.ended(cursors),
            stage: stream.stage(writer.step().saturating_sub(1)),
            step: StepWriter::new(stream, writer),
            undecodable: Vec::new(),
            stream: Arc::clone(stream),
        }
    }

    /// The step that is written next.
    pub fn step(&self) -> u64 {
        self.step.number()
    }

    /// Packs as far as documents and room go. `documents` has a queue for each source.
    ///
    /// A step is published once the source of the row after it, or the end, is known.
    pub fn pack(&mut self, documents: &mut [DocumentQueue]) -> Pause {
        loop {
            if self.phase == Phase::Stopped {
                return Pause::Stopped;
            }
            if !self.step.has_room() {
                return Pause::NoRoom;
            }
            let pause = match self.phase {
                Phase::Choose => self.choose(documents),
                Phase::Fill(source) => self.fill(source, documents).map(Pause::Starved),
                Phase::Settle(source) => self.settle(source, documents).map(Pause::Starved),
                Phase::Stopped => None,
            };
            if let Some(pause) = pause {
                return pause;
            }
        }
    }

    /// Whether pixels of the step were lent.
    pub fn has_lent_pixels(&self) -> bool {
        self.step.has_lent_pixels()
    }

    /// The pixels of the step, to be written on any threads: the lane [pauses](Pause::Pixels) for them.
    pub fn lend_pixels(&mut self) -> Vec<PixelTask> {
        self.step.lend_pixels()
    }

    /// All pixels that were lent are written and returned, but for those of damaged images, which are zeros. Their samples
    /// are not trained on; or the lane stops.
    pub fn pixels_written(&mut self, mut damaged: Vec<Undecodable>, documents: &mut [DocumentQueue]) {
        self.step.pixels_written();
        damaged.sort_by_key(|image| image.index);
        let mut last = None;
        for Undecodable { index, fault } in damaged {
            let (key, reason) = match fault {
                PixelFault::Damaged { key, reason } => (key, reason),
                PixelFault::Unreadable(error) => return self.stop(error, documents),
            };
            let Some(image) = self.step.image(index) else { continue };
            let PlacedImage { source, document, number, trained, .. } = *image;
            let place = &image.file.place;
            // Once for each sample, however many of its images are damaged.
            if last.replace((source, document.position)) == Some((source, document.position)) {
                continue;
            }
            let of = &self.stream.sources[source];
            let shard = &of.shards[document.shard as usize];
            let medium = of.prepare.medium().kind();
            let reason = format!("{medium} {number}{place} cannot be decoded: {reason}");
            let error = document.position.error(shard, of_sample(&key, &reason));
            self.step.untrain(index);
            self.undecodable.push(error.clone());
            if let Err(error) = documents[source].count_undecodable(document.position.epoch, trained, error) {
                return self.stop(error, documents);
            }
        }
    }

    /// Why the lane pauses: a source lacks blocks, or pixels are to be written.
    fn choose(&mut self, documents: &mut [DocumentQueue]) -> Option<Pause> {
        if self.step.is_full() && self.step.awaits_pixels() {
            return Some(Pause::Pixels);
        }
        let (step, row) = self.step.next_row();
        if self.stream.interval.until == Some(step) {
            return self.end_interval(documents);
        }
        let stage = self.stream.stage(step);
        // A state between two stages has the counts of the first one, as its future may be edited.
        let in_stage =
            |source: usize| if stage == self.stage { documents[source].cursor().in_stage } else { 0 };
        let number = RowNumber { step, first: self.first_row, row: row as u64 };
        let source = match self.stream.turn(number, &self.ended, in_stage) {
            Turn::Source(source) => source,
            Turn::Ended if self.step.awaits_pixels() => return Some(Pause::Pixels),
            Turn::Ended => {
                if let Err(error) = documents.iter().try_for_each(|queue| queue.judge_undecodable(true)) {
                    self.stop(error, documents);
                    return None;
                }
                let rows = if self.step.close() { Rows::Padding } else { Rows::Tokens { more: false } };
                self.publish(rows, documents);
                return None;
            }
            Turn::Failed(reason) => {
                self.fail(Error::Argument(reason), documents);
                return None;
            }
        };
        match documents[source].peek() {
            Next::Starved => return Some(Pause::Starved(source)),
            Next::Tokens(_) => {
                if self.step.is_full() {
                    self.publish(Rows::Tokens { more: true }, documents);
                }
                if stage != self.stage {
                    self.stage = stage;
                    documents.iter_mut().for_each(DocumentQueue::begin_stage);
                }
                self.step.begin_source(source);
                self.phase = Phase::Fill(source);
            }
            Next::Ended => self.ended[source] = true,
            Next::Failed(error) => self.fail(error, documents),
        }
        None
    }

    /// Ends the interval in front of a border: publishes the last step before it, then how to continue behind it.
    fn end_interval(&mut self, documents: &mut [DocumentQueue]) -> Option<Pause> {
        if self.step.is_full() {
            self.publish(Rows::Tokens { more: true }, documents);
            return None;
        }
        let (mut cursors, mut all_carried) = (Vec::new(), Vec::new());
        for (source, queue) in documents.iter_mut().enumerate() {
            let (cursor, carried) = if self.stream.interval.keeps_windows {
                (queue.cursor(), queue.carried())
            } else {
                match queue.carry() {
                    Ok(Some(next)) => next,
                    Ok(None) => return Some(Pause::Starved(source)),
                    Err(error) => {
                        self.stop(error, documents);
                        return None;
                    }
                }
            };
            let in_stage = if self.stream.interval.ends_stage { 0 } else { cursor.in_stage };
            cursors.push(Cursor { in_stage, ..cursor });
            all_carried.push(carried);
        }
        self.phase = Phase::Stopped;
        self.step.publish(Report { rows: Rows::Border(all_carried), cursors, quarantined: Vec::new() });
        None
    }

    /// Returns the source if it lacks blocks, as the one below does.
    fn fill(&mut self, source: usize, documents: &mut [DocumentQueue]) -> Option<usize> {
        let queue = &mut documents[source];
        let next = match queue.peek() {
            Next::Starved => return Some(source),
            Next::Tokens(next) => next,
            Next::Ended => {
                self.step.close_row();
                self.phase = Phase::Settle(source);
                return None;
            }
            Next::Failed(error) => {
                self.fail(error, documents);
                return None;
            }
        };
        if let Some(token) = next.rest.get(0) {
            self.step.write_boundary_target(token);
        }
        let spec = &self.stream.sources[source];
        let written = match spec.rows.packing {
            Packing::Concat => concat::write(&mut self.step, &next.rest, spec.rows.max_segments),
            Packing::BestFit { .. } => best_fit::write(&mut self.step, &next),
            Packing::Pad => pad::write(&mut self.step, &next.rest),
        };
        queue.advance(written);
        if self.step.row_is_full() {
            self.phase = Phase::Settle(source);
        }
        None
    }

    fn settle(&mut self, source: usize, documents: &mut [DocumentQueue]) -> Option<usize> {
        let queue = &mut documents[source];
        match queue.peek() {
            Next::Starved => return Some(source),
            Next::Tokens(next) => {
                if let Some(token) = next.rest.get(0) {
                    self.step.write_boundary_target(token);
                }
            }
            Next::Ended => self.ended[source] = true,
            Next::Failed(error) => {
                // Otherwise it stops the lane when the next row of this source is due.
                if self.step.awaits_target() {
                    self.stop(error, documents);
                    return None;
                }
            }
        }
        let spec = &self.stream.sources[source];
        if self.step.has_label() || spec.untrained_rows == UntrainedRows::Deliver {
            queue.count_row(self.step.end_row(), self.stream.unit());
        } else if !spec.leaves_out_rows() {
            let error = self.step.untrained();
            self.stop(error, documents);
            return None;
        } else if let Err(error) = queue.leave_out_row(self.step.take_back_row()) {
            self.stop(error, documents);
            return None;
        }
        self.phase = Phase::Choose;
        None
    }

    /// Publishes the failure of the lane, or first the step before it if that is complete: the next attempt fails again,
    /// in the step that needs the failed document.
    fn fail(&mut self, error: Error, documents: &mut [DocumentQueue]) {
        if self.phase == Phase::Choose && self.step.is_full() {
            self.publish(Rows::Tokens { more: true }, documents);
        } else {
            self.stop(error, documents);
        }
    }

    fn stop(&mut self, error: Error, documents: &mut [DocumentQueue]) {
        self.phase = Phase::Stopped;
        self.publish(Rows::Failed(error), documents);
    }

    fn publish(&mut self, rows: Rows, documents: &mut [DocumentQueue]) {
        let mut quarantined: Vec<_> =
            documents.iter_mut().flat_map(DocumentQueue::take_quarantined).collect();
        quarantined.append(&mut self.undecodable);
        let cursors = documents.iter().map(DocumentQueue::cursor).collect();
        self.step.publish(Report { rows, cursors, quarantined });
    }
}
