//! The order of `best_fit`: a window of documents placed into as few rows as a greedy rule finds.
//!
//! ```text
//! window      aaaaaaE bbbbbE ccE ddddddddddddE eE         length 8
//! cut         d d d d d d d d                             full rows first; ddddE is left of d
//! place       a (7), b (6), d (5), c (3), e (2)           longest first
//!             aaaaaaE.  bbbbbE..  ddddE...  -> c with d, e with b
//! rows        aaaaaaE.                                    in the order of their earliest document,
//!             bbbbbEeE                                    in each row in stream order
//!             ccEddddE
//!             dddddddd
//! ```
//!
//! Each goes into the fullest row that has room for it, the oldest among equals. Rows are kept by their free room in an
//! ordered set: O(n log n) for a window of n documents, whatever their lengths. Documents with images also need room for
//! these, so that rows which lack it are passed over.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use crate::image::ImageRows;
use crate::spec::SourceSpec;

/// A part of a document in its place in the order of a window: one that shares a row with others, or all the full rows
/// that are cut from a document. They are one piece, since there may be as many as the document has tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Index of the document among those placed together.
    pub document: usize,
    /// The range of its tokens.
    pub tokens: Range<usize>,
    /// Whether the row is closed after it; after each of full rows.
    pub ends_row: bool,
}

/// The room that a document takes in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Tokens.
    pub tokens: usize,
    /// Elements between its segments, if it is a pair.
    pub filling: usize,
    /// Images. A document with some fits into a row.
    pub images: usize,
    /// Patches of images.
    pub patches: usize,
}

/// The most that a row has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Tokens.
    pub tokens: usize,
    /// The multiple at which segments begin, which `tokens` is one of.
    pub multiple: usize,
    /// Segments; of pairs as many as both have.
    pub segments: usize,
    /// Images.
    pub images: usize,
    /// Patches of images.
    pub patches: usize,
}

impl Room {
    /// The room of a stream's rows.
    pub fn of(spec: &SourceSpec) -> Self {
        let images = spec.prepare.image_rows();
        Self {
            tokens: spec.rows.sequence_length,
            multiple: spec.rows.segment_multiple,
            segments: spec.rows.max_segments.unwrap_or(usize::MAX) / spec.prepare.segments(),
            images: images.map_or(0, |rows| rows.max_images),
            patches: images.map_or(0, ImageRows::max_patches),
        }
    }
}

/// A row while it is being filled, or the full rows of a document: documents and their tokens.
type Row = Vec<(usize, Range<usize>)>;

/// Places documents in rows, and returns the pieces row by row. Documents without tokens have none.
pub fn place(costs: &[Cost], room: &Room) -> Vec<Placed> {
    let (mut rows, mut rests) = cut_full_rows(costs, room.tokens);
    let first_open = rows.len();
    // The sort is stable: equals stay in stream order.
    rests.sort_by_key(|(_, tokens)| Reverse(tokens.len()));
    let mut open: BTreeSet<(usize, usize)> = BTreeSet::new();
    // Images and patches that rows have room for, from the first open row on.
    let mut rooms: Vec<(usize, usize)> = Vec::new();
    for (document, tokens) in rests {
        let Cost { images, patches, filling, .. } = costs[document];
        let taken = (tokens.len() + filling).next_multiple_of(room.multiple);
        let has_room = |&&(_, row): &&(usize, usize)| {
            let (free_images, free_patches) = rooms[row - first_open];
            images <= free_images && patches <= free_patches
        };
        let fullest = open.range((taken, 0)..).find(has_room).copied();
        let (free, row) = fullest.unwrap_or((room.tokens, rows.len()));
        if fullest.is_some() {
            open.remove(&(free, row));
        } else {
            rows.push(Row::new());
            rooms.push((room.images, room.patches));
        }
        let free = free - taken;
        let (free_images, free_patches) = &mut rooms[row - first_open];
        *free_images -= images;
        *free_patches -= patches;
        rows[row].push((document, tokens));
        if free > 0 && rows[row].len() < room.segments {
            open.insert((free, row));
        }
    }
    for row in &mut rows[first_open..] {
        row.sort_unstable_by_key(|&(document, _)| document);
    }
    // Rows that begin with the same document are its full rows, followed by the row with its rest.
    rows.sort_unstable_by_key(|row| row.first().map(|(document, tokens)| (*document, tokens.start)));
    rows.into_iter().flat_map(pieces).collect()
}

/// Cuts full rows from documents longer than a row. Their rests, and shorter documents as a whole, remain to be placed.
fn cut_full_rows(costs: &[Cost], length: usize) -> (Vec<Row>, Row) {
    let (mut rows, mut rests) = (Vec::new(), Row::new());
    for (document, &Cost { tokens, .. }) in costs.iter().enumerate() {
        let cut = tokens / length * length;
        if cut > 0 {
            rows.push(vec![(document, 0..cut)]);
        }
        if cut < tokens {
            rests.push((document, cut..tokens));
        }
    }
    (rows, rests)
}

fn pieces(row: Row) -> impl Iterator<Item = Placed> {
    let last = row.len() - 1;
    row.into_iter().enumerate().map(move |(index, (document, tokens))| Placed {
        document,
        tokens,
        ends_row: index == last,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(lengths: &[usize]) -> Vec<Cost> {
        lengths.iter().map(|&tokens| Cost { tokens, ..Cost::default() }).collect()
    }

    fn room(tokens: usize, multiple: usize, segments: usize) -> Room {
        Room { tokens, multiple, segments, images: 0, patches: 0 }
    }

    /// The rule taken literally, looking at every row for every document.
    fn naive(costs: &[Cost], room: &Room) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let mut rests = Vec::new();
        for (document, &Cost { tokens, .. }) in costs.iter().enumerate() {
            let mut start = 0;
            while tokens - start > room.tokens {
                rows.push(vec![(document, start..start + room.tokens)]);
                start += room.tokens;
            }
            if tokens > start {
                rests.push((document, start..tokens));
            }
        }
        rests.sort_by_key(|(document, tokens)| (Reverse(tokens.len()), *document));
        for (document, tokens) in rests {
            let elements = |tokens: &Range<usize>| tokens.len().next_multiple_of(room.multiple);
            let filled = |row: &Row| row.iter().map(|(_, tokens)| elements(tokens)).sum::<usize>();
            let taken = |row: &Row, what: fn(&Cost) -> usize| {
                row.iter().map(|(document, _)| what(&costs[*document])).sum::<usize>()
                    + what(&costs[document])
            };
            let mut fullest: Option<usize> = None;
            for (index, row) in rows.iter().enumerate() {
                let fits = filled(row) + elements(&tokens) <= room.tokens
                    && row.len() < room.segments
                    && taken(row, |cost| cost.images) <= room.images
                    && taken(row, |cost| cost.patches) <= room.patches;
                if fits && fullest.is_none_or(|best| filled(row) > filled(&rows[best])) {
                    fullest = Some(index);
                }
            }
            match fullest {
                Some(row) => rows[row].push((document, tokens)),
                None => rows.push(vec![(document, tokens)]),
            }
        }
        for row in &mut rows {
            row.sort_by_key(|(document, _)| *document);
        }
        rows.sort_by_key(|row| (row[0].0, row[0].1.start));
        rows
    }

    fn rows(pieces: Vec<Placed>, length: usize) -> Vec<Row> {
        let mut rows = vec![Row::new()];
        for Placed { document, tokens, ends_row } in pieces {
            for start in tokens.clone().step_by(length) {
                rows.last_mut().unwrap().push((document, start..tokens.end.min(start + length)));
                if ends_row {
                    rows.push(Row::new());
                }
            }
        }
        assert_eq!(rows.pop(), Some(Row::new()));
        rows
    }

    #[test]
    fn the_window_of_the_module_documentation() {
        let placed = rows(place(&texts(&[7, 6, 3, 13, 2]), &room(8, 1, usize::MAX)), 8);
        assert_eq!(
            placed,
            [vec![(0, 0..7)], vec![(1, 0..6), (4, 0..2)], vec![(2, 0..3), (3, 8..13)], vec![(3, 0..8)]]
        );
    }

    #[test]
    fn a_long_document_is_a_piece_or_two_however_short_the_rows() {
        assert_eq!(place(&texts(&[1_000_001]), &room(10, 1, usize::MAX)).len(), 2);
    }

    #[test]
    fn no_documents_no_rows() {
        assert_eq!(place(&[], &room(8, 1, usize::MAX)), []);
        assert_eq!(place(&texts(&[0, 0]), &room(8, 1, 1)), []);
    }

    proptest! {
        #[test]
        fn places_as_the_rule_says(
            lengths in prop::collection::vec(prop_oneof![4 => 0usize..12, 1 => 0usize..60], 0..40),
            length in 1usize..20,
            multiple in 1usize..5,
            most in prop::option::of(1usize..5),
        ) {
            let length = length * multiple;
            let (costs, room) = (texts(&lengths), room(length, multiple, most.unwrap_or(usize::MAX)));
            prop_assert_eq!(rows(place(&costs, &room), length), naive(&costs, &room));
        }

        #[test]
        fn places_images_as_the_rule_says(
            costs in prop::collection::vec((1usize..20, 0usize..4, 0usize..9), 0..40),
            images in 3usize..6,
            patches in 24usize..40,
            segments in 1usize..9,
        ) {
            let cost = |(tokens, images, each)| Cost { tokens, filling: 0, images, patches: images * each };
            let costs: Vec<Cost> = costs.into_iter().map(cost).collect();
            let room = Room { tokens: 20, multiple: 1, segments, images, patches };
            prop_assert_eq!(rows(place(&costs, &room), 20), naive(&costs, &room));
        }
    }
}
