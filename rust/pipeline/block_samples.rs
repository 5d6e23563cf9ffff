//! The samples of a block: what becomes of each of its records, and of the parts of a pair.
//!
//! [`encode_block`](super::encode_block) has what makes ids of their texts.

use crate::error::{Error, Result, ShardError};
use crate::format::{AfterError, Position, RawRecord};
use crate::lane::block::{BadRecord, Document, RawBlock, RawEntry, SampleBlock, SampleEntry};
use crate::lane::cursor::RecordPosition;
use crate::lane::id_buffer::IdBuffer;
use crate::prepare::image_text::of_sample;
use crate::prepare::sidecars::Joined;
use crate::prepare::{Prepare, Prepared, Sample};
use crate::spec::{OnError, RowSpec, SourceSpec, Truncation};

/// The result of encoding a prepared record.
pub(crate) enum Encoded {
    /// A document with its number of tokens.
    Document(Document),
    /// Nothing, because it was asked for.
    Filtered,
    /// Nothing, because it cannot be used.
    Bad(ShardError),
}

/// Turns raw records into samples, and removes them from `raw`. `encode` appends the ids of a document's text, whose
/// number it fills in; of other results they are removed again. A document that it cannot encode ends the block, and so does a bad record that stops the run.
pub(crate) fn samples_of(
    spec: &SourceSpec,
    raw: &mut RawBlock,
    ids: IdBuffer,
    prepared: &mut Prepared,
    encode: impl FnMut(&Sample, Document, &mut IdBuffer) -> Result<Encoded>,
) -> SampleBlock {
    let mut block = Block { spec, encode, entries: Vec::with_capacity(raw.entries.len()), ids };
    let mut bytes = &*raw.bytes;
    let mut sidecars = &*raw.sidecars;
    let carried = raw.carried.take();
    for entry in raw.entries.drain(..) {
        let entry = match entry {
            RawEntry::Record { kind, position, shard, next, length, images } => {
                let (record, rest) = bytes.split_at(length);
                bytes = rest;
                let RecordPosition { record: number, byte, .. } = position;
                let at = Position { record: number, byte };
                let record = RawRecord { images: images.as_deref(), ..RawRecord::new(kind, at, record) };
                let of_record = &spec.shards[shard as usize];
                let joined = (!spec.sidecars.kinds.is_empty())
                    .then(|| Joined::take(&spec.sidecars, shard, &mut sidecars, &mut bytes));
                if carried.as_ref().is_some_and(|carried| carried.has_record(position)) {
                    block.entries.push(SampleEntry::Carried(next));
                    continue;
                }
                let is_kept = if let Some(joined) = joined {
                    spec.prepare.joined_record(&spec.read, &spec.fields, of_record, record, joined, prepared)
                } else {
                    spec.prepare.record(&spec.read, &spec.fields, of_record, record, prepared)
                };
                let failed = prepared.samples.failed.take();
                let samples = &prepared.samples;
                let encoded = match is_kept {
                    Ok(true) => {
                        let record = Document { position, shard, ..Document::default() };
                        block.add_record(samples, record, next)
                    }
                    Ok(false) => Ok(Record::Filtered),
                    Err(error) => failed.map_or(Ok(Record::Bad(error)), Err),
                };
                match encoded {
                    Ok(Record::Samples) => continue,
                    Ok(Record::Filtered) => block.filtered(next),
                    Ok(Record::Bad(mut error)) => {
                        error.reason = of_sample(&samples.key, &error.reason);
                        SampleEntry::Bad(BadRecord { error, after: AfterError::Readable, shard, next })
                    }
                    Err(error) => SampleEntry::Failed { error, position },
                }
            }
            RawEntry::Dropped(next) => block.filtered(next),
            RawEntry::Carried(next) => SampleEntry::Carried(next),
            RawEntry::Unreadable(bad) => SampleEntry::Bad(bad),
            RawEntry::ShardEnd(end) => SampleEntry::ShardEnd(end),
        };
        let stops = match &entry {
            SampleEntry::Failed { .. } => true,
            SampleEntry::Bad(_) => spec.on_error == OnError::Raise,
            SampleEntry::Document { .. }
            | SampleEntry::Filtered { .. }
            | SampleEntry::Carried(_)
            | SampleEntry::ShardEnd(_) => false,
        };
        block.entries.push(entry);
        if stops {
            break;
        }
    }
    SampleBlock { entries: block.entries, ids: block.ids, end: std::mem::take(&mut raw.end) }
}

/// The result of encoding the samples of a record.
enum Record {
    /// Entries, of which the last one ends the record.
    Samples,
    /// Nothing, because it was asked for.
    Filtered,
    /// Nothing, because it cannot be used.
    Bad(ShardError),
}

/// A block in the making.
struct Block<'a, E> {
    spec: &'a SourceSpec,
    encode: E,
    entries: Vec<SampleEntry>,
    ids: IdBuffer,
}

impl<E: FnMut(&Sample, Document, &mut IdBuffer) -> Result<Encoded>> Block<'_, E> {
    /// Adds the entries and ids of the samples of a record, or of the pair that they are.
    fn add_record(&mut self, samples: &[Sample], record: Document, next: Position) -> Result<Record> {
        if self.spec.prepare.segments() > 1 {
            self.add_pair(samples, record, next)
        } else {
            self.add_samples(samples, record, next)
        }
    }

    /// Adds the entries and ids of samples, from that of the record's position on. There are none unless each of them can be
    /// used or is left out.
    fn add_samples(&mut self, samples: &[Sample], record: Document, next: Position) -> Result<Record> {
        let (first_entry, before) = (self.entries.len(), self.ids.mark());
        let first = record.position.sample as usize;
        if first > 0 && first >= samples.len() {
            let reason = format!(
                "the state is at sample {first} of a record, found that it has {}, counted from 0: it was saved with \
                 other data or settings",
                samples.len()
            );
            return Err(Error::State(self.error(record, reason).to_string()));
        }
        let mut filtered_samples = 0;
        for (number, sample) in samples.iter().enumerate().skip(first) {
            let position = RecordPosition { sample: number as u64, ..record.position };
            let document = Document { position, text_bytes: sample.bytes(), ..record };
            let before_sample = self.ids.mark();
            let error = match (self.encode)(sample, document, &mut self.ids) {
                Ok(Encoded::Document(document)) => {
                    let document =
                        Document { filtered_samples: std::mem::take(&mut filtered_samples), ..document };
                    self.entries.push(SampleEntry::Document { document, next: None });
                    self.ids.add_sample(&sample.values);
                    continue;
                }
                Ok(Encoded::Filtered) => {
                    self.ids.return_to(before_sample);
                    filtered_samples += 1;
                    continue;
                }
                Ok(Encoded::Bad(error)) => Ok(Record::Bad(error)),
                Err(error) => Err(error),
            };
            self.ids.return_to(before);
            self.entries.truncate(first_entry);
            return error;
        }
        match self.entries[first_entry..].last_mut() {
            Some(SampleEntry::Document { document, next: end }) => {
                document.filtered_samples += filtered_samples;
                *end = Some(next);
                Ok(Record::Samples)
            }
            _ => Ok(Record::Filtered),
        }
    }

    /// The same of a pair, which is one document: of a length that fits into a row.
    fn add_pair(&mut self, samples: &[Sample], record: Document, next: Position) -> Result<Record> {
        if samples.is_empty() {
            return Ok(Record::Filtered);
        }
        let before = self.ids.mark();
        let first_image = self.ids.images.len();
        let mut pair = Document { only_stops: true, ..record };
        for sample in samples {
            let images_before = self.ids.images.len();
            match (self.encode)(sample, record, &mut self.ids) {
                Ok(Encoded::Document(own)) => {
                    pair.split = pair.tokens;
                    for image in &mut self.ids.images[images_before..] {
                        image.token += pair.split as u32;
                    }
                    pair.images += own.images;
                    pair.tokens += own.tokens;
                    pair.text_bytes += sample.bytes();
                    pair.only_stops &= own.only_stops;
                    self.ids.add_sample(&sample.values);
                }
                left_out => {
                    self.ids.return_to(before);
                    return left_out.map(|left_out| match left_out {
                        Encoded::Bad(error) => Record::Bad(error),
                        _ => Record::Filtered,
                    });
                }
            }
        }
        let RowSpec { sequence_length, truncation, .. } = self.spec.rows;
        let elements = self.spec.rows.elements(pair.split) + pair.tokens - pair.split;
        if let Prepare::ImageText(rules) = &self.spec.prepare
            && let Some(misfit) = rules.misfit(elements, &self.ids.images[first_image..], sequence_length)
        {
            self.ids.return_to(before);
            return Ok(match truncation {
                Truncation::Drop => Record::Filtered,
                _ => Record::Bad(self.error(pair, misfit)),
            });
        }
        if elements > sequence_length {
            self.ids.return_to(before);
            if truncation == Truncation::Drop {
                return Ok(Record::Filtered);
            }
            let reason = format!(
                "expected chosen and rejected of at most sequence_length={sequence_length} tokens together, as \
                 truncation=\"error\" demands, found {elements}; raise sequence_length=, or leave such pairs out with \
                 truncation=\"drop\""
            );
            return Err(self.error(pair, reason).into());
        }
        self.entries.push(SampleEntry::Document { document: pair, next: Some(next) });
        Ok(Record::Samples)
    }

    /// The entry for one more record that is left out: one for a run of them, as a filter may leave out nearly all records.
    fn filtered(&mut self, next: Position) -> SampleEntry {
        let before = match self.entries.last() {
            Some(SampleEntry::Filtered { records, .. }) => *records,
            _ => return SampleEntry::Filtered { records: 1, next },
        };
        self.entries.pop();
        SampleEntry::Filtered { records: before + 1, next }
    }

    /// The error of a document.
    fn error(&self, document: Document, reason: String) -> ShardError {
        document.position.error(&self.spec.shards[document.shard as usize], reason)
    }
}
