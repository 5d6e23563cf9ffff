//! The step that a lane is writing: its rows one after another, then the lane's report.

use std::ops::Range;
use std::sync::Arc;

use super::pixels::{FileOfShard, PixelPart, PixelTask, PlacedImage};
use super::queue::RowCounts;
use super::rows::{self, Segment};
use super::tokens::{Token, TokenSlice};
use super::trained::has_label;
use crate::batch::ring::{LaneWriter, LentPart};
use crate::batch::schema::Content;
use crate::error::Error;
use crate::image::ImageRows;
use crate::lane::block::Document;
use crate::pack::report::Report;
use crate::spec::{Packing, SourceSpec, StreamSpec};

/// Writes a lane's rows in order, and publishes each step.
pub(super) struct StepWriter {
    stream: Arc<StreamSpec>,
    /// The source of the row that is being filled.
    source: usize,
    writer: LaneWriter<Report>,
    /// The numbers of an entry of provenance.
    provenance_width: usize,
    /// The row that is being filled, and up to which index.
    row: usize,
    filled: usize,
    /// How many segments that row has, and in how many slices of tokens they were written.
    segments: usize,
    slices: usize,
    /// The index in that row of the last segment's first token.
    segment_start: usize,
    /// The index in that row of the last token, if that ended a document and may get a boundary target.
    boundary: Option<usize>,
    /// Elements of the row that are padding.
    padding: usize,
    /// Tokens of the row that a mask selects.
    trained: usize,
    /// Whether the row has a label that is trained on.
    has_label: bool,
    /// The row's first document, and which of its tokens is the first one.
    opening: Option<(Document, usize)>,
    images: StepImages,
}

/// The images of a step.
#[derive(Default)]
struct StepImages {
    /// The index of the field of pixels, if there is one, and how many values a row of it has.
    field: Option<(usize, usize)>,
    /// Images and patches of the row that is being filled, and the tokens of the images.
    images: usize,
    patches: usize,
    tokens: usize,
    /// The pixels of the step's rows.
    parts: Vec<PixelPart>,
    pixels: PixelState,
}

/// The state of the pixels of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum PixelState {
    /// More rows may follow.
    #[default]
    Collected,
    Lent,
    Written,
}

impl StepWriter {
    pub(super) fn new(stream: &Arc<StreamSpec>, writer: LaneWriter<Report>) -> Self {
        let mut fields = writer.schema().fields().iter();
        let field = fields.position(|field| field.content == Content::Pixels);
        let field = field.map(|index| (index, writer.schema().fields()[index].row_len()));
        let mut fields = writer.schema().fields().iter();
        let provenance = fields.find(|field| field.content == Content::Provenance);
        let provenance_width = provenance.map_or(1, |field| field.row_shape[1]);
        Self {
            images: StepImages { field, ..StepImages::default() },
            provenance_width,
            stream: Arc::clone(stream),
            source: 0,
            writer,
            row: 0,
            filled: 0,
            segments: 0,
            slices: 0,
            segment_start: 0,
            boundary: None,
            padding: 0,
            trained: 0,
            has_label: false,
            opening: None,
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

    /// Whether every row is full: the step must be published before anything else is written.
    pub(super) fn is_full(&self) -> bool {
        self.row_is_full() && self.row + 1 == self.writer.rows()
    }

    /// The step and the index among the lane's rows of it of the row that the next segment goes into.
    pub(super) fn next_row(&self) -> (u64, usize) {
        match (self.is_full(), self.row_is_full()) {
            (true, _) => (self.number() + 1, 0),
            (false, true) => (self.number(), self.row + 1),
            (false, false) => (self.number(), self.row),
        }
    }

    pub(super) fn row_is_full(&self) -> bool {
        self.filled == self.length()
    }

    /// Tokens that fit into the row that the next segment goes into.
    pub(super) fn free(&self) -> usize {
        if self.row_is_full() { self.length() } else { self.length().saturating_sub(self.next_start()) }
    }

    /// Segments of the current row.
    pub(super) fn segments(&self) -> usize {
        self.segments
    }

    /// Begins a row of a source with the next segment.
    pub(super) fn begin_source(&mut self, source: usize) {
        self.source = source;
    }

    /// Whether some label of the row, which is full, is trained on.
    pub(super) fn has_label(&self) -> bool {
        self.has_label
    }

    /// An error in the row, which is full and trains nothing, with the position of its first document.
    pub(super) fn untrained(&self) -> Error {
        let Some((document, first)) = self.opening else { unreachable!("a full row has tokens") };
        let spec = self.spec();
        let (tokens, length) = (spec.rows.sequence_length - self.padding, spec.rows.sequence_length);
        let reason = format!(
            "expected a token to train on in each row, found none among the {tokens} tokens of the one that begins with token \
             {first} of this document; raise sequence_length={length}, cut long documents with truncation=\"right\" or \"left\", \
             or leave out such rows: with on_untrained=\"drop\", or in a run that continues with on_error=\"quarantine\""
        );
        document.position.error(&spec.shards[document.shard as usize], reason).into()
    }

    /// Takes back the row, which is full, so that it is filled again. Returns how many tokens it had.
    pub(super) fn take_back_row(&mut self) -> usize {
        let tokens = self.filled - std::mem::take(&mut self.padding);
        self.filled = 0;
        self.trained = 0;
        self.begin_segments();
        self.images.take_back_row(self.row);
        tokens
    }

    /// Ends a row, which is full, when its last target is known. Returns the counts of the row.
    pub(super) fn end_row(&mut self) -> RowCounts {
        self.boundary = None;
        if let Some(mixing) = &self.stream.mixing {
            let (number, share) =
                (self.stream.sources[self.source].number, mixing.share(self.number(), self.source));
            rows::write_source(&mut self.writer.row(self.row), number, share as f32);
        }
        let (padding, trained) = (std::mem::take(&mut self.padding), std::mem::take(&mut self.trained));
        let StepImages { images, tokens, .. } = self.images;
        self.images.end_row(self.row);
        RowCounts { padding, trained, images, image_tokens: tokens }
    }

    /// Whether pixels of the rows so far are to be written.
    pub(super) fn awaits_pixels(&self) -> bool {
        !self.images.parts.is_empty() && self.images.pixels == PixelState::Collected
    }

    /// Whether pixels are lent.
    pub(super) fn has_lent_pixels(&self) -> bool {
        self.images.pixels == PixelState::Lent
    }

    /// The pixels of the rows so far. The step continues once all of them are written and dropped.
    pub(super) fn lend_pixels(&mut self) -> Vec<PixelTask> {
        let StepImages { field: Some((field, _)), parts, .. } = &self.images else { return Vec::new() };
        let places: Vec<_> = parts.iter().map(|part| (part.row, part.values.clone())).collect();
        let lent = self.writer.lend(*field, &places);
        let task = |(index, (part, lent)): (usize, (&PixelPart, LentPart<Report>))| {
            let of_shard = |image: &PlacedImage| FileOfShard {
                source: image.source,
                shard: image.document.shard,
                record: image.document.position.byte,
                file: image.file.clone(),
            };
            PixelTask { index, part: lent, image: part.image.as_ref().map(of_shard) }
        };
        let tasks = parts.iter().zip(lent).enumerate().map(task).collect();
        self.images.pixels = PixelState::Lent;
        tasks
    }

    /// All pixels that were lent are written.
    pub(super) fn pixels_written(&mut self) {
        self.images.pixels = PixelState::Written;
    }

    /// The image of a pixel task.
    pub(super) fn image(&self, index: usize) -> Option<&PlacedImage> {
        self.images.parts.get(index)?.image.as_ref()
    }

    /// Takes all tokens of a task's sample out of those that are trained on.
    pub(super) fn untrain(&mut self, index: usize) {
        if let Some(PixelPart { row, image: Some(image), .. }) = self.images.parts.get(index) {
            rows::untrain(&mut self.writer.row(*row), &image.elements);
        }
    }

    /// Writes the first `count` of a document's remaining tokens as the next segment, in the next row if this one is full.
    /// After a cut inside of them the segment's positions continue, its text does not.
    pub(super) fn write(&mut self, rest: &TokenSlice, count: usize) {
        if self.row_is_full() {
            self.begin_row();
        }
        self.begin_segment();
        if let Some(split) =
            rest.document.split.checked_sub(rest.offset).filter(|split| (1..count).contains(split))
        {
            self.write_slice(rest, 0..split);
            self.begin_segment();
            return self.write_slice(rest, split..count);
        }
        let cut = self.spec().rows.cut(rest.document).and_then(|cut| cut.checked_sub(rest.offset));
        match cut {
            Some(cut @ 1..) if cut < count => {
                self.write_slice(rest, 0..cut);
                self.write_slice(rest, cut..count);
            }
            _ => self.write_slice(rest, 0..count),
        }
    }

    /// The index in the row at which the next segment begins.
    fn next_start(&self) -> usize {
        self.spec().rows.elements(self.filled)
    }

    fn begin_segment(&mut self) {
        self.pad(self.next_start());
        self.segments += 1;
        self.segment_start = self.filled;
    }

    /// Whether the last token written ended a document and has the next token as its target.
    pub(super) fn awaits_target(&self) -> bool {
        self.boundary_target().is_some()
    }

    /// Makes `token` the target of the last token written, if that ended a document and has the next token as its
    /// target.
    pub(super) fn write_boundary_target(&mut self, token: Token) {
        if let Some(index) = self.boundary_target() {
            self.boundary = None;
            let mut row = self.writer.row(self.row);
            rows::write_boundary_target(&mut row, index, self.segments as i32, token);
            self.has_label |= token.trained;
        }
    }

    /// Fills the rest of the current row with padding.
    pub(super) fn close_row(&mut self) {
        self.pad(self.length());
    }

    /// Fills the rows that are left of the lane's last step with padding. Returns whether the lane had already ended: then none
    /// is written.
    pub(super) fn close(&mut self) -> bool {
        // None of the row that comes next, if the last one was taken back.
        let first_unused = self.row + usize::from(self.filled > 0);
        if first_unused == 0 {
            return true;
        }
        for row in first_unused..self.writer.rows() {
            rows::clear(&mut self.writer.row(row));
        }
        false
    }

    /// Publishes the step with the lane's report, and begins the next one.
    pub(super) fn publish(&mut self, report: Report) {
        self.writer.publish(report);
        self.row = 0;
        self.filled = 0;
        self.begin_segments();
        self.images.parts.clear();
        self.images.pixels = PixelState::Collected;
    }

    pub(super) fn begin_row(&mut self) {
        if self.row_is_full() {
            self.row += 1;
            self.filled = 0;
            self.begin_segments();
        }
    }

    fn begin_segments(&mut self) {
        self.segments = 0;
        self.slices = 0;
        self.boundary = None;
        self.has_label = false;
        self.opening = None;
    }

    /// Fills the row with padding up to an index.
    fn pad(&mut self, end: usize) {
        if self.filled < end {
            rows::pad(&mut self.writer.row(self.row), &(self.filled..end));
            self.padding += end - self.filled;
            self.filled = end;
        }
    }

    /// Writes a part of a document's remaining tokens, inside of which nothing is cut.
    fn write_slice(&mut self, rest: &TokenSlice, part: Range<usize>) {
        let (start, end) = (rest.offset + part.start, rest.offset + part.end);
        let cut = self.spec().rows.cut(rest.document);
        let split = rest.document.split;
        let next = rest.get(part.end).filter(|_| cut != Some(end) && split != end);
        let mut tokens = rest.part(part);
        if split > 0 {
            let of_first = tokens.images.partition_point(|image| (image.token as usize) < split);
            let (first, second) = tokens.images.split_at(of_first);
            tokens.images = if start >= split { second } else { first };
        }
        if split > 0 && start >= split {
            tokens.values = tokens.values.of_next_sample();
        }
        if cut.is_some_and(|cut| cut <= start) {
            tokens.offset += rest.document.dropped;
        }
        let opens = start == 0 || cut == Some(start) || split == start;
        let segment = Segment {
            tokens,
            next,
            number: self.segments as i32,
            first_piece: self.stream.sources[self.source].first_piece,
            entry: self.slices,
            start: self.filled,
            position: self.filled - self.segment_start,
            opens,
            multiple: self.spec().rows.segment_multiple,
            images_before: self.images.images,
            provenance_width: self.provenance_width,
            mask_width: self.stream.image_rows().map_or(1, ImageRows::mask_width),
        };
        rows::write(&mut self.writer.row(self.row), &segment);
        let trained = tokens.trained.map_or(0, |trained| trained.iter().filter(|trained| **trained).count());
        if !tokens.images.is_empty() {
            self.add_images(&tokens, trained);
        }
        self.opening.get_or_insert((*tokens.document, tokens.offset));
        let next = next.is_some_and(|next| next.trained);
        self.has_label |= tokens.trained.is_none_or(|mask| has_label(self.spec().rows.layout, mask, next));
        self.slices += 1;
        self.filled += tokens.len();
        self.trained += trained;
        self.boundary = (end == tokens.document.tokens).then(|| self.filled - 1);
    }

    /// Adds the images of a document whose tokens are written next to those of the row.
    fn add_images(&mut self, tokens: &TokenSlice, trained: usize) {
        let Some(rows) = self.stream.image_rows() else { return };
        let StepImages { images, patches, tokens: image_tokens, parts, .. } = &mut self.images;
        for (number, image) in tokens.images.iter().enumerate() {
            let placed = PlacedImage {
                source: self.source,
                document: *tokens.document,
                number,
                file: image.file.clone(),
                elements: self.filled..self.filled + tokens.len(),
                trained,
            };
            let values = rows.values(*images, *patches, &image.plan);
            let end = values.end;
            parts.push(PixelPart { row: self.row, values, image: Some(placed) });
            if let Some(end_of_image) = rows.end(*images).filter(|end_of_image| end < *end_of_image) {
                parts.push(PixelPart { row: self.row, values: end..end_of_image, image: None });
            }
            *images += 1;
            *patches += image.plan.patches as usize;
            *image_tokens += image.plan.tokens as usize;
        }
    }

    /// The index in the row of the last token, if that ended a document and has the next token as its target.
    fn boundary_target(&self) -> Option<usize> {
        let has_target = match self.spec().rows.packing {
            Packing::Concat => true,
            // Nothing is trained together with the row's last document after it.
            Packing::BestFit { .. } => !self.row_is_full(),
            Packing::Pad => false,
        };
        self.boundary.filter(|_| self.spec().rows.boundary_targets && has_target)
    }

    fn length(&self) -> usize {
        self.spec().rows.sequence_length
    }

    fn spec(&self) -> &SourceSpec {
        &self.stream.sources[self.source]
    }
}

impl StepImages {
    fn take_back_row(&mut self, row: usize) {
        self.parts.retain(|part| part.row != row);
        (self.images, self.patches, self.tokens) = (0, 0, 0);
    }

    /// Ends a row, of which the pixels behind its images are zeros.
    fn end_row(&mut self, row: usize) {
        let Some((_, length)) = self.field else { return };
        let in_row = self.parts.last().filter(|part| part.row == row);
        let used = in_row.map_or(0, |part| part.values.end);
        if used < length {
            self.parts.push(PixelPart { row, values: used..length, image: None });
        }
        (self.images, self.patches, self.tokens) = (0, 0, 0);
    }
}
