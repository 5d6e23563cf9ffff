//! The step that a lane is writing: its rows one after another, then its report.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::layouts::Segment;
use crate::batch::provenance::{self, Entry};
use crate::batch::ring::LaneWriter;
use crate::error::{Error, ShardError};
use crate::pack::queue::{DocumentQueue, TokenSlice};
use crate::pack::report::{Report, Rows};
use crate::spec::{Packing, StreamSpec};

/// Writes a lane's rows in order, and publishes each step with its cursor.
pub(super) struct StepWriter {
    spec: Arc<StreamSpec>,
    writer: LaneWriter<Report>,
    /// The row being filled, how far, by how many segments, and with how many entries of its provenance.
    row: usize,
    filled: usize,
    segments: usize,
    entries: usize,
    /// Where in that row the last document that may get a boundary target ended.
    boundary: Option<usize>,
    /// Padding of this step, not yet counted.
    padding: usize,
    stopped: bool,
}

impl StepWriter {
    pub(super) fn new(spec: &Arc<StreamSpec>, writer: LaneWriter<Report>) -> Self {
        Self {
            spec: Arc::clone(spec),
            writer,
            row: 0,
            filled: 0,
            segments: 0,
            entries: 0,
            boundary: None,
            padding: 0,
            stopped: false,
        }
    }

    /// The step's number in the stream.
    pub(super) fn number(&self) -> u64 {
        self.writer.step()
    }

    /// Whether the ring has room for the step.
    pub(super) fn has_room(&mut self) -> bool {
        self.writer.has_room()
    }

    /// Whether the lane failed and nothing may follow.
    pub(super) fn has_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether every row is full: the step must be published before anything else is written.
    pub(super) fn is_full(&self) -> bool {
        self.row_is_full() && self.row + 1 == self.writer.rows()
    }

    pub(super) fn row_is_full(&self) -> bool {
        self.filled == self.length()
    }

    /// Tokens that fit into the row that the next segment goes into.
    pub(super) fn free(&self) -> usize {
        if self.row_is_full() { self.length() } else { self.length() - self.filled }
    }

    /// What is wrong with a document's record.
    pub(super) fn error(&self, run: &TokenSlice, reason: String) -> ShardError {
        run.position.error(&self.spec.shards[run.shard as usize], reason)
    }

    /// Segments of the current row.
    pub(super) fn segments(&self) -> usize {
        self.segments
    }

    /// Writes tokens of a run as the next segment, in the next row if this one is full. `next` is the token of its
    /// document that follows in a later row, if any.
    pub(super) fn write(&mut self, run: &TokenSlice, part: Range<usize>, next: Option<u32>) {
        if self.row_is_full() {
            self.row += 1;
            self.filled = 0;
            self.segments = 0;
        }
        self.segments += 1;
        self.write_part(run, part, 0, run.offset == 0, next);
    }

    /// Writes more tokens of the run with which the row begins, after a cut: positions continue, the text does not.
    pub(super) fn write_behind_cut(&mut self, run: &TokenSlice, part: Range<usize>) {
        self.write_part(run, part, self.filled, false, None);
    }

    fn write_part(
        &mut self,
        run: &TokenSlice,
        part: Range<usize>,
        position: usize,
        opens: bool,
        next: Option<u32>,
    ) {
        let tokens = &run.tokens[part.clone()];
        let segment =
            Segment { number: self.segments as i32, at: self.filled, position, tokens, opens, next };
        self.spec.layout.write(&mut self.writer, self.row, &segment);
        self.write_provenance(run, &part);
        self.filled += tokens.len();
        self.boundary = if next.is_none() { Some(self.filled - 1) } else { None };
    }

    fn write_provenance(&mut self, run: &TokenSlice, part: &Range<usize>) {
        let places = self.writer.provenance(self.row);
        if places.is_empty() {
            return;
        }
        if self.filled == 0 {
            places.fill(0);
            self.entries = 0;
        }
        let entry = Entry {
            shard: run.shard,
            record: run.position.record,
            offset: run.offset + part.start,
            length: part.len(),
        };
        provenance::write(places, self.entries, entry);
        self.entries += 1;
    }

    /// Makes `token` the target of the last token written, if that ended a document and has the next token as its target.
    pub(super) fn write_boundary_target(&mut self, token: u32) {
        if let Some(at) = self.boundary_target() {
            self.boundary = None;
            self.spec.layout.write_boundary_target(&mut self.writer, self.row, at, token);
        }
    }

    /// Where in the row a document ended that has the next token as its target.
    fn boundary_target(&self) -> Option<usize> {
        let has_target = match self.spec.packing {
            Packing::Concat => true,
            // Nothing is trained together with the row's last document after it.
            Packing::BestFit { .. } => !self.row_is_full(),
            Packing::Pad(_) => false,
        };
        self.boundary.filter(|_| self.spec.boundary_targets && has_target)
    }

    /// Fills the rest of the current row with padding.
    pub(super) fn close_row(&mut self) {
        self.spec.layout.pad(&mut self.writer, self.row, self.filled);
        self.padding += self.length() - self.filled;
        self.filled = self.length();
    }

    /// Publishes a full step of a lane that continues.
    pub(super) fn publish_full(&mut self, documents: &mut DocumentQueue) {
        self.publish(documents, Rows::Tokens { more: true });
    }

    /// Publishes the last step of a lane, or a step of nothing but padding if it has already ended.
    pub(super) fn finish(&mut self, documents: &mut DocumentQueue) {
        let is_empty = self.row == 0 && self.filled == 0;
        let first_unused = if is_empty { 0 } else { self.row + 1 };
        if !is_empty {
            self.close_row();
        }
        for row in first_unused..self.writer.rows() {
            self.spec.layout.pad(&mut self.writer, row, 0);
            self.writer.provenance(row).fill(0);
        }
        self.publish(documents, if is_empty { Rows::Padding } else { Rows::Tokens { more: false } });
    }

    /// Publishes the failure of the lane, after the step that was full before it. That fails as well if it waits for the
    /// target of a document that ended with it.
    pub(super) fn fail(&mut self, documents: &mut DocumentQueue, error: Error) {
        if self.is_full() && self.boundary_target().is_none() {
            // The next look fails again, in the step that needs it.
            return self.publish_full(documents);
        }
        self.publish(documents, Rows::Failed(error));
        self.stopped = true;
    }

    fn length(&self) -> usize {
        self.spec.sequence_length
    }

    fn publish(&mut self, documents: &mut DocumentQueue, rows: Rows) {
        documents.totals_mut().padding += std::mem::take(&mut self.padding) as u64;
        self.writer.publish(Report {
            rows,
            cursor: documents.cursor(),
            quarantined: documents.take_quarantined(),
        });
        self.row = 0;
        self.filled = 0;
        self.segments = 0;
        self.boundary = None;
    }
}
