//! `concat`: documents joined and cut every `sequence_length` tokens.
//!
//! ```text
//! documents   aaaaaE bbE ccccccccE        length 8
//! row 0       a a a a a E b b             segments 1 1 1 1 1 1 2 2
//! row 1       E c c c c c c c             segments 1 2 2 2 2 2 2 2   (b goes on: positions from 0)
//! row 2       c E . . . . . .             padding only behind a lane's last token
//! ```
//!
//! A step is published when the token behind it is known, or the end: only then is the cursor, and
//! with `boundary_targets` the last target, what it must be.

use super::layout::{Layout, Segment};
use crate::config::StreamConfig;
use crate::feed::ring::LaneWriter;
use crate::lane::documents::{Documents, Next};
use crate::lane::report::{Report, Rows};

/// Why packing paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// More blocks are needed.
    Starved,
    /// The consumer must take a batch first.
    NoRoom,
    /// The lane failed: nothing will follow.
    Stopped,
}

/// A lane's packer.
pub struct Concat {
    layout: Layout,
    length: usize,
    boundary_targets: bool,
    /// The row of the current step that is being filled, how far, and by how many segments.
    row: usize,
    filled: usize,
    segments: i32,
    /// Whether the token before the next one ends its document and stands in the current row.
    at_boundary: bool,
    stopped: bool,
}

impl Concat {
    /// A packer at the start of a row.
    pub fn new(config: &StreamConfig) -> Self {
        Self {
            layout: config.layout,
            length: config.sequence_length,
            boundary_targets: config.boundary_targets,
            row: 0,
            filled: 0,
            segments: 0,
            at_boundary: false,
            stopped: false,
        }
    }

    /// Packs as far as documents and room go.
    pub fn pack(&mut self, documents: &mut Documents, writer: &mut LaneWriter<Report>) -> Pause {
        while !self.stopped {
            if !writer.has_room() {
                return Pause::NoRoom;
            }
            match documents.peek() {
                Next::Starved => return Pause::Starved,
                Next::Document { tokens, opens } => {
                    if self.at_boundary && self.boundary_targets {
                        self.layout.write_boundary_target(writer, self.row, self.filled - 1, tokens[0]);
                    }
                    self.at_boundary = false;
                    if self.step_is_full(writer) {
                        self.publish(documents, writer, Rows::Tokens { more: true });
                        continue;
                    }
                    self.open_row();
                    let written = self.write(writer, tokens, opens);
                    self.at_boundary = written == tokens.len();
                    documents.advance(written);
                }
                Next::Ended => self.finish(documents, writer),
                Next::Failed(error) => {
                    if self.step_is_full(writer) {
                        self.publish(documents, writer, Rows::Tokens { more: true });
                        continue;
                    }
                    self.publish(documents, writer, Rows::Failed(error));
                    self.stopped = true;
                }
            }
        }
        Pause::Stopped
    }

    fn step_is_full(&self, writer: &LaneWriter<Report>) -> bool {
        self.filled == self.length && self.row + 1 == writer.rows()
    }

    /// Goes on to the next row of the step if this one is full.
    fn open_row(&mut self) {
        if self.filled == self.length {
            self.row += 1;
            self.filled = 0;
            self.segments = 0;
        }
    }

    fn write(&mut self, writer: &mut LaneWriter<Report>, tokens: &[u32], opens: bool) -> usize {
        let count = tokens.len().min(self.length - self.filled);
        self.segments += 1;
        let segment = Segment {
            number: self.segments,
            at: self.filled,
            tokens: &tokens[..count],
            opens,
            next: tokens.get(count).copied(),
        };
        self.layout.write(writer, self.row, &segment);
        self.filled += count;
        count
    }

    /// Fills what is left of the lane's last step, or a whole step of an ended lane, with padding.
    fn finish(&mut self, documents: &mut Documents, writer: &mut LaneWriter<Report>) {
        let is_empty = self.row == 0 && self.filled == 0;
        let mut padding = 0;
        for row in self.row..writer.rows() {
            let from = if row == self.row { self.filled } else { 0 };
            self.layout.pad(writer, row, from);
            padding += self.length - from;
        }
        if is_empty {
            self.publish(documents, writer, Rows::Padding);
        } else {
            documents.totals_mut().padding += padding as u64;
            self.publish(documents, writer, Rows::Tokens { more: false });
        }
    }

    fn publish(&mut self, documents: &mut Documents, writer: &mut LaneWriter<Report>, rows: Rows) {
        writer.publish(Report {
            rows,
            cursor: documents.cursor(),
            quarantined: documents.take_quarantined(),
        });
        self.row = 0;
        self.filled = 0;
        self.segments = 0;
    }
}
