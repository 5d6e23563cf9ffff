//! The documents that may be delivered now, in delivery order: those of a whole window, or without windows those of a
//! block.

use super::balance::{self, RowCost};
use super::placement::{self, Cost, Placed, Room};
use crate::image::Image;
use crate::lane::block::{Block, BlockEnd, Document};
use crate::lane::cursor::{RecordPosition, Totals};
use crate::lane::values::Values;
use crate::random::{Purpose, hash, permutation};
use crate::spec::{Packing, Shuffle, SourceSpec};

/// Encoded documents, put in order, and how far they are delivered.
#[derive(Default)]
pub struct Window {
    blocks: Vec<Block>,
    /// In `best_fit` the full rows of a document are one part here, and delivered as several.
    parts: Vec<Part>,
    next: usize,
    /// Tokens of all parts, and of those from there on.
    pub tokens: usize,
    pub left: usize,
    /// The most tokens that a part has when it is delivered.
    longest: usize,
    /// How many records end in it, of those with documents.
    pub records: usize,
    /// Whether any of them has a token.
    pub has_tokens: bool,
    /// Tells it from a window that begins at the same position and has other documents, because other records were left
    /// out.
    pub hash: u64,
    /// The totals of those documents that have no tokens and thus, in `best_fit`, no part.
    pub without_tokens: Totals,
    /// The event that follows once all are delivered.
    pub end: BlockEnd,
}

/// A document, or in `best_fit` a piece of one. Kept small, since a window of short documents has very many.
#[derive(Clone, Copy)]
pub struct Part {
    /// The document: which of the window's blocks, which document of that, and where in its ids.
    block: u32,
    document: u32,
    start: usize,
    /// The start of its tokens.
    pub from: usize,
    pub to: usize,
    /// Whether `best_fit` closes the row after it.
    pub ends_row: bool,
    /// Where its document's images begin among those of the block.
    first_image: u32,
}

impl Window {
    /// The documents of `blocks`, which `then` follows, in the lane's order. `first` is where the
    /// window begins.
    pub fn new(
        blocks: Vec<Block>,
        end: BlockEnd,
        spec: &SourceSpec,
        lane: usize,
        first: RecordPosition,
    ) -> Self {
        let mut parts = in_stream_order(&blocks);
        let documents = parts.len();
        let records = blocks.iter().flat_map(|block| &block.documents);
        let records = records.filter(|document| document.ends_record).count();
        let has_tokens = parts.iter().any(|part| part.to > 0);
        let all = blocks.iter().flat_map(|block| &block.documents);
        let hash = hash(all.flat_map(
            |&Document { position: RecordPosition { shard, record, .. }, tokens, dropped, .. }| {
                [shard, record, (tokens + dropped) as u64]
            },
        ));
        let mut without_tokens = Totals::default();
        if let Some(Shuffle { seed, .. }) = spec.shuffle {
            let key = [lane as u64, first.epoch, first.shard, first.record];
            let order = permutation(documents, seed, Purpose::Window, &key);
            parts = order.into_iter().map(|index| parts[index as usize]).collect();
        }
        let mut longest = usize::MAX;
        if let Packing::BestFit { window } = spec.rows.packing {
            longest = spec.rows.sequence_length;
            for document in
                blocks.iter().flat_map(|block| &block.documents).filter(|document| document.tokens == 0)
            {
                without_tokens.documents += 1;
                without_tokens.text_bytes += document.text_bytes as u64;
                without_tokens.filtered_samples += u64::from(document.filtered_samples);
            }
            let in_rows = |share| placed(share, &blocks, spec);
            parts = parts.chunks(window).flat_map(in_rows).collect();
            if let Some(cost) = &spec.balance {
                parts = balanced(&parts, &blocks, spec, cost);
            }
        }
        let tokens = parts.iter().map(|part| part.to - part.from).sum();
        Self {
            blocks,
            parts,
            next: 0,
            tokens,
            left: tokens,
            longest,
            records,
            has_tokens,
            hash,
            without_tokens,
            end,
        }
    }

    /// The part that is delivered next.
    pub fn part(&self) -> Option<Part> {
        let part = *self.parts.get(self.next)?;
        Some(Part { to: part.to.min(part.from.saturating_add(self.longest)), ..part })
    }

    /// A part's document.
    pub fn document(&self, part: &Part) -> &Document {
        &self.blocks[part.block as usize].documents[part.document as usize]
    }

    /// The tokens of a part's document.
    pub fn tokens(&self, part: &Part) -> &[u32] {
        &self.blocks[part.block as usize].ids[part.start..][..self.document(part).tokens]
    }

    /// Whether each of its tokens is trained on; `None`: all are.
    pub fn trained(&self, part: &Part) -> Option<&[bool]> {
        self.blocks[part.block as usize].ids.trained.get(part.start..part.start + self.document(part).tokens)
    }

    /// The values of fields of a part's document.
    pub fn values(&self, part: &Part) -> Values<'_> {
        let Block { ids, first_sample, .. } = &self.blocks[part.block as usize];
        // All documents of a source have as many segments.
        let before = part.document as usize * self.document(part).segments();
        Values::new(&ids.columns, part.start, first_sample + before)
    }

    /// The images of a part's document.
    pub fn images(&self, part: &Part) -> &[Image] {
        images(&self.blocks, part)
    }

    /// Moves past the current part.
    pub fn advance(&mut self) {
        let (Some(delivered), Some(part)) = (self.part(), self.parts.get_mut(self.next)) else { return };
        self.left -= delivered.to - delivered.from;
        if delivered.to < part.to {
            part.from = delivered.to;
        } else {
            self.next += 1;
        }
    }

    /// Moves past the first `count` documents, or with `rows` past that many rows. False if there are not that many.
    pub fn skip(&mut self, count: u64, rows: bool) -> bool {
        let mut left = count;
        while left > 0 {
            let Some(part) = self.part() else { return false };
            left -= u64::from(!rows || part.ends_row);
            self.advance();
        }
        true
    }
}

fn in_stream_order(blocks: &[Block]) -> Vec<Part> {
    let mut parts = Vec::with_capacity(blocks.iter().map(|block| block.documents.len()).sum());
    for (block, Block { documents, first_id, first_image, .. }) in (0..).zip(blocks) {
        let (mut start, mut first_image) = (*first_id, *first_image as u32);
        for (document, Document { tokens, images, .. }) in (0..).zip(documents) {
            parts.push(Part { block, document, start, from: 0, to: *tokens, ends_row: false, first_image });
            start += tokens;
            first_image += images;
        }
    }
    parts
}

/// The rows of placed documents in an order in which each step's share costs nearly the same.
fn balanced(parts: &[Part], blocks: &[Block], spec: &SourceSpec, cost: &RowCost) -> Vec<Part> {
    let mut rows: Vec<Vec<Part>> = vec![Vec::new()];
    for part in parts {
        // The full rows of a long document, which are one part.
        for from in (part.from..part.to).step_by(spec.rows.sequence_length) {
            let to = part.to.min(from + spec.rows.sequence_length);
            rows.last_mut().into_iter().for_each(|row| row.push(Part { from, to, ..*part }));
            if part.ends_row {
                rows.push(Vec::new());
            }
        }
    }
    rows.retain(|row| !row.is_empty());
    let segments = |part: &Part| {
        let split = blocks[part.block as usize].documents[part.document as usize].split;
        [split, part.to - part.from - split]
    };
    let costs: Vec<f64> = rows.iter().map(|row| cost.of(row.iter().flat_map(segments))).collect();
    let order = balance::order(&costs, spec.rows.rows_per_lane);
    order.into_iter().flat_map(|row| std::mem::take(&mut rows[row])).collect()
}

fn images<'a>(blocks: &'a [Block], part: &Part) -> &'a [Image] {
    let Block { documents, ids, .. } = &blocks[part.block as usize];
    let count = documents[part.document as usize].images as usize;
    &ids.images[part.first_image as usize..][..count]
}

fn placed<'a>(
    documents: &'a [Part],
    blocks: &[Block],
    spec: &SourceSpec,
) -> impl Iterator<Item = Part> + use<'a> {
    let cost = |part: &Part| {
        let images = images(blocks, part);
        let patches = images.iter().map(|image| image.plan.patches as usize).sum();
        let document = &blocks[part.block as usize].documents[part.document as usize];
        let filling = spec.rows.elements(document.split) - document.split;
        Cost { tokens: part.to, filling, images: images.len(), patches }
    };
    let costs: Vec<Cost> = documents.iter().map(cost).collect();
    let pieces = placement::place(&costs, &Room::of(spec));
    pieces.into_iter().map(|Placed { document, tokens, ends_row }| Part {
        from: tokens.start,
        to: tokens.end,
        ends_row,
        ..documents[document]
    })
}
