//! The documents that may be delivered now, in delivery order: those of a whole window, or without windows those of a
//! block.

use super::balance::{self, RowCost};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use super::placement::{self, Cost, Placed, Room};
use crate::image::Image;
use crate::lane::block::{Block, BlockEnd, Document};
use crate::lane::carried::{Carried, Given, without};
use crate::lane::cursor::{RecordPosition, Totals};
use crate::lane::values::Values;
use crate::random::{Purpose, hash, permutation};
use crate::spec::{Packing, RowSpec, Shuffle, SourceSpec};

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
    /// The end of the last of the document's parts: once it is delivered, the document counts.
    pub last: usize,
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
        carried: Option<&Carried>,
    ) -> Self {
        let mut parts = in_stream_order(&blocks);
        let mut without_tokens = Totals::default();
        if let Some(carried) = carried {
            parts = parts
                .into_iter()
                .flat_map(|part| {
                    let document = &blocks[part.block as usize].documents[part.document as usize];
                    let mut left = left_of(document, carried, &spec.rows);
                    if !matches!(spec.rows.packing, Packing::BestFit { .. }) {
                        // Tokens before delivered ones that another truncation keeps come too late.
                        left = left.pop().into_iter().collect();
                    }
                    if left.is_empty() && carried.of_sample(document.position) != Some(&Given::All) {
                        count_without_tokens(&mut without_tokens, document);
                    }
                    let last = left.last().map_or(0, |range| range.end);
                    left.into_iter().map(move |Range { start, end }| Part {
                        from: start,
                        to: end,
                        last,
                        ..part
                    })
                })
                .collect();
        }
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
                count_without_tokens(&mut without_tokens, document);
            }
            let in_rows = |share| placed(share, &blocks, spec);
            parts.retain(|part| part.to > part.from);
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

    /// Adds the documents of which something was delivered, if the next interval continues after `offset` tokens. Returns how
    /// many records are among them all of which were delivered, and which `carried` did not have; and the documents that
    /// count although some of their tokens were not delivered.
    pub fn carry(&self, offset: usize, rows: &RowSpec, carried: &mut Carried) -> (u64, Vec<Document>) {
        let mut left: HashMap<(u32, u32), Vec<Range<usize>>> = HashMap::new();
        let mut counted: HashSet<(u32, u32)> = HashSet::new();
        for (index, part) in self.parts[self.next..].iter().enumerate() {
            let from = part.from + if index == 0 { offset } else { 0 };
            left.entry((part.block, part.document)).or_default().push(from..part.to);
            counted.insert((part.block, part.document));
        }
        for part in self.parts[self.next..].iter().filter(|part| part.to == part.last) {
            counted.remove(&(part.block, part.document));
        }
        let counted = counted.into_iter().collect::<BTreeSet<_>>();
        let again = counted
            .iter()
            .map(|(block, document)| self.blocks[*block as usize].documents[*document as usize]);
        let again = again.collect();
        let finished: HashSet<(u32, u32)> =
            self.parts[..self.next].iter().map(|part| (part.block, part.document)).collect();
        let mut records = 0;
        // Samples of the record that is looked at, while all of them are delivered.
        let mut of_record: Option<Vec<RecordPosition>> = Some(Vec::new());
        for (block, Block { documents, .. }) in (0..).zip(&self.blocks) {
            for (number, document) in (0..).zip(documents) {
                let mut left = left.remove(&(block, number)).unwrap_or_default();
                left.sort_by_key(|range| range.start);
                let was_all = carried.of_sample(document.position) == Some(&Given::All);
                let is_all = match document.tokens {
                    0 => was_all || finished.contains(&(block, number)) && left.is_empty(),
                    _ => left.iter().all(Range::is_empty),
                };
                if is_all {
                    if let Some(samples) = &mut of_record {
                        samples.push(document.position);
                    }
                } else {
                    for position in of_record.take().into_iter().flatten() {
                        carried.add_sample(position, Given::All);
                    }
                    #[allow(clippy::single_range_in_vec_init)]
                    let given = without(&[0..document.tokens], &left);
                    let mut given = original(&given, document, rows);
                    if let Some(Given::Tokens(before)) = carried.of_sample(document.position) {
                        // Another truncation may not have kept some of them.
                        given.extend(without(before, &given));
                        given.sort_by_key(|range| range.start);
                    }
                    if !given.is_empty() {
                        carried.add_sample(document.position, Given::Tokens(given));
                    }
                }
                if is_all && of_record.is_none() {
                    carried.add_sample(document.position, Given::All);
                }
                if document.ends_record {
                    if of_record.is_some() {
                        records += u64::from(carried.add_record(document.position));
                    }
                    of_record = Some(Vec::new());
                }
            }
        }
        for position in of_record.into_iter().flatten() {
            carried.add_sample(position, Given::All);
        }
        (records, again)
    }

    /// Adds the part's document, of which the tokens before `offset` of the part were delivered.
    pub fn carry_part(&self, part: &Part, offset: usize, rows: &RowSpec, carried: &mut Carried) {
        let document = self.document(part);
        let given = original(&[Range { start: 0, end: part.from + offset }], document, rows);
        carried.add_sample(document.position, Given::Tokens(given));
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
            let to = *tokens;
            parts.push(Part { block, document, start, from: 0, to, last: to, ends_row: false, first_image });
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
        Cost { tokens: part.to - part.from, filling, images: images.len(), patches }
    };
    let costs: Vec<Cost> = documents.iter().map(cost).collect();
    let pieces = placement::place(&costs, &Room::of(spec));
    pieces.into_iter().map(|Placed { document, tokens, ends_row }| Part {
        from: documents[document].from + tokens.start,
        to: documents[document].from + tokens.end,
        ends_row,
        ..documents[document]
    })
}

fn count_without_tokens(totals: &mut Totals, document: &Document) {
    totals.documents += 1;
    totals.text_bytes += document.text_bytes as u64;
    totals.filtered_samples += u64::from(document.filtered_samples);
}

/// The ranges of a document's tokens that were not delivered before a border, one for a document without any.
#[allow(clippy::single_range_in_vec_init)]
fn left_of(document: &Document, carried: &Carried, rows: &RowSpec) -> Vec<Range<usize>> {
    match carried.of_sample(document.position) {
        None => vec![0..document.tokens],
        Some(Given::All) => Vec::new(),
        Some(Given::Tokens(given)) => {
            let left = original(&[0..document.tokens], document, rows);
            let mut found: Vec<Range<usize>> = Vec::new();
            for range in without(&left, given) {
                let range = kept(range, document, rows);
                match found.last_mut() {
                    Some(before) if before.end == range.start => before.end = range.end,
                    _ => found.push(range),
                }
            }
            // Behind the cut of another truncation, nothing follows what was delivered before it.
            let ends = given.last().is_some_and(|given| given.end >= document.tokens + document.dropped);
            if ends && !matches!(rows.packing, Packing::BestFit { .. }) { Vec::new() } else { found }
        }
    }
}

/// Ranges of a document's tokens as ranges of the whole document, before truncation.
fn original(ranges: &[Range<usize>], document: &Document, rows: &RowSpec) -> Vec<Range<usize>> {
    let Some(cut) = rows.cut(document) else { return ranges.to_vec() };
    let mut found = Vec::new();
    for range in ranges {
        let before = range.start.min(cut)..range.end.min(cut);
        let behind = range.start.max(cut) + document.dropped..range.end.max(cut) + document.dropped;
        found.extend([before, behind].into_iter().filter(|range| !range.is_empty()));
    }
    found
}

/// A range of the whole document, on one side of the cut, as one of its tokens.
fn kept(range: Range<usize>, document: &Document, rows: &RowSpec) -> Range<usize> {
    match rows.cut(document) {
        Some(cut) if range.start >= cut => range.start - document.dropped..range.end - document.dropped,
        _ => range,
    }
}
