//! The rules that every lane's rows must keep, checked against the documents that were written.

use std::collections::HashMap;
use std::ops::Range;

use _core::lane::cursor::Totals;
use _core::spec::{Layout, Packing, RowSpec, SourceSpec, Truncation};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

/// All documents of a case. Words occur once, so that a word names its document.
#[derive(Default)]
pub struct Corpus {
    documents: Vec<Document>,
    /// The document in a shard's line.
    places: HashMap<(usize, usize), usize>,
    /// Document and index in it, of each word.
    words: HashMap<i32, (usize, usize)>,
    /// Records that are no documents.
    pub bad: u64,
    /// Records that the filter leaves out, by shard.
    filtered: HashMap<usize, u64>,
}

struct Document {
    shard: usize,
    /// BOS and EOS included.
    ids: Vec<i32>,
}

/// An element of a row that is not padding.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Token {
    id: i32,
    segment: i32,
    position: i32,
    /// Document and index in it; `None` for a BOS or EOS that is alone in its segment.
    origin: Option<(usize, usize)>,
}

impl Corpus {
    /// Adds the document in a shard's line.
    pub fn add(&mut self, (shard, line): (usize, usize), ids: Vec<u32>) {
        self.places.insert((shard, line), self.documents.len());
        let ids: Vec<i32> = ids.into_iter().map(|id| id as i32).collect();
        for (index, &id) in ids.iter().enumerate() {
            self.words.insert(id, (self.documents.len(), index));
        }
        self.documents.push(Document { shard, ids });
    }

    /// Adds records of a shard that the filter leaves out.
    pub fn add_filtered(&mut self, shard: usize, records: u64) {
        *self.filtered.entry(shard).or_default() += records;
    }

    /// Checks all rows of a lane; `steps` holds for each step the arrays of its rows.
    pub fn check_lane(
        &self,
        source: &SourceSpec,
        lane: usize,
        steps: &[Vec<Vec<i32>>],
        totals: &Totals,
    ) -> TestCaseResult {
        let spec = &source.rows;
        let arrays = spec.layout.fields(1, 1, false).len() + 1;
        let rows: Vec<&[Vec<i32>]> = steps.iter().flat_map(|step| step.chunks(arrays)).collect();
        let mut lane_rows = Vec::new();
        for row in &rows {
            lane_rows.push(self.row(spec, row)?);
        }
        let used = lane_rows.iter().rposition(|row| !row.is_empty()).map_or(0, |last| last + 1);
        check_padding(spec, &lane_rows[..used])?;
        self.check_segments(spec, &lane_rows)?;
        for (index, row) in lane_rows.iter().enumerate() {
            self.check_provenance(spec, &rows[index][arrays - 1], row)?;
            let following = lane_rows[index + 1..].iter().flatten().next().copied();
            match spec.layout {
                Layout::MaxText => self.check_targets(spec, rows[index], row, following)?,
                Layout::Hf => self.check_labels(spec, rows[index], row)?,
                Layout::Varlen => self.check_next_token(spec, rows[index], row)?,
                Layout::Grain => {}
            }
        }
        let given: usize = lane_rows.iter().map(Vec::len).sum();
        prop_assert_eq!(totals.tokens, given as u64);
        prop_assert_eq!(totals.padding, (used * spec.sequence_length - given) as u64);
        self.check_counts(source, lane, &lane_rows, totals)
    }

    /// The tokens of a row, with all its padding behind them.
    fn row(&self, spec: &RowSpec, arrays: &[Vec<i32>]) -> Result<Vec<Token>, TestCaseError> {
        let expanded;
        let [ids, marks, positions] = match spec.layout {
            Layout::Varlen => {
                expanded = marks_and_positions(&arrays[1], spec.sequence_length)?;
                [&arrays[0], &expanded[0], &expanded[1]]
            }
            _ => [0, 1, 2].map(|array| &arrays[array]),
        };
        let range = 0..marks.iter().filter(|mark| **mark > 0).count();
        prop_assert!(marks[range.clone()].iter().all(|mark| *mark > 0), "{:?}", arrays);
        for array in [ids, marks, positions] {
            prop_assert!(is_all(array, &range, 0), "{:?}", arrays);
        }
        let mut tokens: Vec<Token> = Vec::new();
        for place in range {
            let before = tokens.last();
            let number = before.map_or(0, |token| token.segment);
            let starts = positions[place] == 0;
            let token = Token {
                id: ids[place],
                segment: number + i32::from(starts),
                position: positions[place],
                origin: self.words.get(&ids[place]).copied().filter(|_| ids[place] > 2),
            };
            // Segments are numbered from 1, and positions go up by one in each.
            prop_assert!(starts || before.is_some_and(|before| before.position + 1 == token.position));
            if spec.layout != Layout::Hf {
                prop_assert_eq!(marks[place], token.segment);
            }
            tokens.push(token);
        }
        self.find_origins(&mut tokens);
        Ok(tokens)
    }

    /// BOS and EOS belong to the document of the word beside them.
    fn find_origins(&self, tokens: &mut [Token]) {
        for segment in tokens.chunk_by_mut(|before, after| before.segment == after.segment) {
            let Some((document, _)) = segment.iter().find_map(|token| token.origin) else { continue };
            let last = self.documents[document].ids.len() - 1;
            for token in segment {
                let index = if token.id == 1 { last } else { 0 };
                token.origin = token.origin.or(Some((document, index)));
            }
        }
    }

    fn check_segments(&self, spec: &RowSpec, rows: &[Vec<Token>]) -> TestCaseResult {
        for row in rows {
            let segments: Vec<&[Token]> = row.chunk_by(|a, b| a.segment == b.segment).collect();
            let most = match spec.packing {
                Packing::Pad => 1,
                Packing::Concat | Packing::BestFit { .. } => spec.max_segments.unwrap_or(usize::MAX),
            };
            prop_assert!(segments.len() <= most);
            for segment in segments {
                let Some((document, first)) = segment[0].origin else { continue };
                let whole = self.documents[document].ids.len();
                let left = spec.sequence_length / 2;
                let has_cut =
                    spec.truncation == Truncation::Middle && whole > spec.sequence_length && first < left;
                for (offset, token) in segment.iter().enumerate() {
                    let is_behind = has_cut && first + offset >= left;
                    let dropped = if is_behind { whole - spec.sequence_length } else { 0 };
                    prop_assert_eq!(token.origin, Some((document, first + offset + dropped)));
                }
                if matches!(spec.packing, Packing::BestFit { .. }) && whole <= spec.sequence_length {
                    prop_assert_eq!(segment.len(), whole, "a document that fits was cut");
                }
            }
        }
        Ok(())
    }

    /// The entries name, one after another, the documents that hold exactly the row's tokens there.
    fn check_provenance(&self, spec: &RowSpec, provenance: &[i32], row: &[Token]) -> TestCaseResult {
        let mut rest = row;
        let mut room = provenance.len() / 4;
        for entry in provenance.chunks(4).map(|entry| [0, 1, 2, 3].map(|number| entry[number] as usize)) {
            let [shard, record, offset, length] = entry;
            if length == 0 {
                prop_assert_eq!(entry, [0; 4]);
                prop_assert!(rest.is_empty());
                continue;
            }
            room -= 1;
            let (tokens, behind) = rest.split_at(length);
            let Some(document) = self.places.get(&(shard, record)) else {
                return Err(TestCaseError::fail(format!("{entry:?} names no document")));
            };
            let expected = &self.documents[*document].ids[offset..offset + length];
            let found: Vec<i32> = tokens.iter().map(|token| token.id).collect();
            prop_assert_eq!(expected, &found);
            // As many entries as segments, but for the two sides of a cut.
            let is_middle = spec.truncation == Truncation::Middle;
            prop_assert!(tokens[0].position == 0 || is_middle);
            prop_assert!(tokens.iter().all(|token| token.segment == tokens[0].segment));
            rest = behind;
        }
        prop_assert!(rest.is_empty() || room == 0, "a segment has no entry");
        Ok(())
    }

    fn check_targets(
        &self,
        spec: &RowSpec,
        arrays: &[Vec<i32>],
        row: &[Token],
        following: Option<Token>,
    ) -> TestCaseResult {
        let [targets, segmentation, positions] = [3, 4, 5].map(|array| &arrays[array]);
        prop_assert_eq!(positions, &arrays[2]);
        let range = 0..row.len();
        prop_assert!(is_all(targets, &range, 0) && is_all(segmentation, &range, 0));
        for (place, token) in row.iter().enumerate() {
            let Some((document, index)) = token.origin else { continue };
            let in_row = row.get(place + 1);
            let next = self.documents[document].ids.get(index + 1).copied();
            let is_last = !self.goes_on(spec, (document, index));
            let is_before_cut =
                is_last && spec.truncation == Truncation::Middle && index + 1 == spec.sequence_length / 2;
            let boundary = match spec.packing {
                _ if !spec.boundary_targets => None,
                Packing::Concat => in_row.or(following.as_ref()),
                Packing::BestFit { .. } => in_row,
                Packing::Pad => None,
            };
            let expected = match next {
                Some(next) if !is_last => Some(next),
                Some(_) if is_before_cut => None,
                _ => boundary.map(|token| token.id),
            };
            let found = (targets[range.start + place], segmentation[range.start + place]);
            prop_assert_eq!(found, expected.map_or((0, 0), |id| (id, token.segment)), "place {}", place);
        }
        Ok(())
    }

    /// Whether a document continues in the stream behind a token of it.
    fn goes_on(&self, spec: &RowSpec, (document, index): (usize, usize)) -> bool {
        let (whole, length) = (self.documents[document].ids.len(), spec.sequence_length);
        let kept_before_cut = match spec.truncation {
            Truncation::Left => 0,
            Truncation::Middle => length / 2,
            _ => length,
        };
        let is_cut = spec.truncation != Truncation::Split && whole > length;
        index + 1 < whole && !(is_cut && index + 1 == kept_before_cut)
    }

    /// The id behind the row's last token in its document, if that continues in a later row.
    fn check_next_token(&self, spec: &RowSpec, arrays: &[Vec<i32>], row: &[Token]) -> TestCaseResult {
        let next = match row.last() {
            Some(Token { origin: Some((document, index)), .. }) => {
                self.goes_on(spec, (*document, *index)).then(|| self.documents[*document].ids[index + 1])
            }
            Some(Token { origin: None, .. }) => return Ok(()),
            _ => None,
        };
        prop_assert_eq!(&arrays[2], &[next.unwrap_or(-1)]);
        Ok(())
    }

    /// A label is its token, where the token before it in the row is the one before it in its document, or where the
    /// row continues a document of the row before.
    fn check_labels(&self, spec: &RowSpec, arrays: &[Vec<i32>], row: &[Token]) -> TestCaseResult {
        let labels = &arrays[3];
        let range = 0..row.len();
        prop_assert!(is_all(labels, &range, -100));
        for (place, token) in row.iter().enumerate() {
            let Some((document, index)) = token.origin else { continue };
            let left = if spec.truncation == Truncation::Middle { spec.sequence_length / 2 } else { 0 };
            let (whole, length) = (self.documents[document].ids.len(), spec.sequence_length);
            let cuts = matches!(spec.truncation, Truncation::Left | Truncation::Middle) && whole > length;
            let is_behind_cut = cuts && index == left + whole - length;
            let is_learnt = index > 0
                && match place {
                    0 => !is_behind_cut && range.start == 0,
                    _ => row[place - 1].origin == Some((document, index - 1)),
                };
            prop_assert_eq!(
                labels[range.start + place],
                if is_learnt { token.id } else { -100 },
                "place {}",
                place
            );
        }
        Ok(())
    }

    /// Everything once an epoch, or counted.
    fn check_counts(
        &self,
        spec: &SourceSpec,
        lane: usize,
        rows: &[Vec<Token>],
        totals: &Totals,
    ) -> TestCaseResult {
        let mut expected: HashMap<i32, u64> = HashMap::new();
        let (mut documents, mut filtered) = (0, 0);
        for epoch in 0..spec.epochs.unwrap() {
            let own = spec.plan.epoch(epoch);
            let is_own = |document: &&Document| own[lane].contains(&(document.shard as u32));
            filtered +=
                own[lane].iter().filter_map(|shard| self.filtered.get(&(*shard as usize))).sum::<u64>();
            for document in self.documents.iter().filter(is_own) {
                documents += 1;
                for id in &document.ids {
                    *expected.entry(*id).or_default() += 1;
                }
            }
        }
        prop_assert_eq!(totals.documents, documents);
        prop_assert_eq!(totals.filtered, filtered);
        prop_assert_eq!(totals.records, documents + filtered + totals.quarantined);
        let all: u64 = expected.values().sum();
        prop_assert_eq!(totals.tokens + totals.dropped, all);
        let mut given: HashMap<i32, u64> = HashMap::new();
        for token in rows.iter().flatten() {
            *given.entry(token.id).or_default() += 1;
        }
        if spec.rows.truncation == Truncation::Split {
            prop_assert_eq!(given, expected);
        } else {
            prop_assert!(given.iter().all(|(id, count)| *count <= expected[id]));
        }
        Ok(())
    }
}

/// The number of each token's segment, and its index in that, by the lengths of the segments.
fn marks_and_positions(lengths: &[i32], length: usize) -> Result<[Vec<i32>; 2], TestCaseError> {
    let used = lengths.iter().take_while(|length| **length > 0).count();
    prop_assert!(lengths[used..].iter().all(|length| *length == 0), "{:?}", lengths);
    let mut arrays = [Vec::new(), Vec::new()];
    for (number, &length) in (1..).zip(&lengths[..used]) {
        arrays[0].extend((0..length).map(|_| number));
        arrays[1].extend(0..length);
    }
    prop_assert!(arrays[0].len() <= length, "{:?}", lengths);
    Ok(arrays.map(|mut array| {
        array.resize(length, 0);
        array
    }))
}

/// Whether an array has this value everywhere but in a range.
fn is_all(array: &[i32], except: &Range<usize>, value: i32) -> bool {
    array.iter().enumerate().all(|(index, item)| except.contains(&index) || *item == value)
}

fn check_padding(spec: &RowSpec, rows: &[Vec<Token>]) -> TestCaseResult {
    for (index, row) in rows.iter().enumerate() {
        let is_last = index + 1 == rows.len();
        let is_closed = row.last().map(|token| token.segment as usize) == spec.max_segments;
        if spec.packing == Packing::Concat && !is_last && !is_closed {
            prop_assert_eq!(row.len(), spec.sequence_length);
        }
        prop_assert!(!row.is_empty(), "a row of padding before the lane's last");
    }
    Ok(())
}
