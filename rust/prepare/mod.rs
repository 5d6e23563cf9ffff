//! From a record to a sample: what a worker does with the raw bytes of a record before it encodes them.
//!
//! Reading is serial within a lane, and this is not: it runs in the same job as encoding, on any worker. Lines are
//! filtered here. A sample of plain text is the string under one key. Other samples are variants of [`Prepare`], so that
//! plain text costs no dynamic call: they have ranges of bytes that are trained on, which become a mask over tokens once
//! the whole text is encoded.

pub mod chat;
pub mod completion;
pub mod encoding;
pub mod field;
pub mod fill_in_the_middle;
pub mod image_columns;
mod image_messages;
pub mod image_text;
pub mod instruction;
mod message;
pub mod record_function;
mod share_gpt;
pub mod sidecars;
pub mod tokens;
pub mod turns;
pub mod values;

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use gristmill_chat_template::{SampleUnit, TrainedSpan};

use crate::error::{Error, ShardError};
use crate::format::{GroupImages, Medium, Projection, RawKind, RawRecord, ReadOptions, Values};
use crate::image::{Image, ImageModel, ImageRows};
use crate::store::Shard;
use chat::Conversations;
use completion::Completions;
use field::Field;
use fill_in_the_middle::FillInTheMiddle;
use image_columns::Files;
use image_text::ImageTexts;
use sidecars::{Joined, JoinedScratch, located};
use tokens::ReadyTokens;
use turns::Fit;
use values::SourceFields;

/// The kind of sample that a record becomes.
#[derive(Debug, Clone)]
pub enum Prepare {
    /// The text of the one column that is projected.
    Text,
    /// The same, of which some documents are cut before they are encoded.
    FillInTheMiddle(FillInTheMiddle),
    /// A text of which other columns are read, too.
    TextWithFields(TextWithFields),
    /// Ready ids.
    Tokens(Box<ReadyTokens>),
    /// Two samples that stay together.
    Pair(Box<Pair>),
    /// A conversation.
    Chat(Arc<Conversations>),
    /// A prompt and its completion.
    Completion(Completions),
    /// Images with a text or a conversation.
    ImageText(Arc<ImageTexts>),
}

/// How records become pairs: an answer that was chosen, and one that was rejected.
#[derive(Debug, Clone)]
pub struct Pair {
    /// How many of the projection's paths are those of the filter.
    pub filter_paths: usize,
    /// How records become each of them: one sample with a mask.
    pub halves: [Prepare; 2],
}

/// How records become texts with values of fields.
#[derive(Debug, Clone)]
pub struct TextWithFields {
    /// How many of the projection's paths are those of the filter.
    pub filter_paths: usize,
    /// The key of the text.
    pub text: Field,
    /// How documents are cut before they are encoded.
    pub fill: Option<FillInTheMiddle>,
}

/// A sample before it is encoded.
#[derive(Debug, Default)]
pub struct Sample {
    /// Its text.
    pub text: String,
    /// The bytes that are trained on, in order, if samples have a mask.
    pub trained: Vec<TrainedSpan>,
    /// How much ranges of bytes are trained on, if the sample says so; else 1.
    pub weights: Vec<(Range<usize>, f32)>,
    /// The bytes in which no special token is recognised, in order.
    pub data: Vec<Range<usize>>,
    /// The images, in order.
    pub images: Vec<Image>,
    /// Its ids, if they are ready, or if the text was encoded to see whether it fits into a row.
    pub ids: Vec<u32>,
    /// Whether each of ready ids is trained on, if that is known.
    pub trained_ids: Vec<bool>,
    /// Whether ready ids end with the token that ends documents.
    pub is_ended: bool,
    /// For each of the stream's fields the values of the sample or its ids; empty where it has none.
    pub values: Vec<Vec<u8>>,
    /// Messages and tokens that were left out, because it did not fit.
    pub dropped: (u32, usize),
}

impl Sample {
    /// Empties it, and keeps its memory.
    pub fn clear(&mut self) {
        let Self { text, trained, weights, data, images, ids, trained_ids, is_ended, values, dropped } = self;
        trained_ids.clear();
        *is_ended = false;
        values.clear();
        text.clear();
        trained.clear();
        weights.clear();
        data.clear();
        images.clear();
        ids.clear();
        *dropped = (0, 0);
    }

    /// Sets the values of a field.
    fn set_values(&mut self, field: usize, values: Vec<u8>) {
        self.values.resize_with(self.values.len().max(field + 1), Vec::new);
        self.values[field] = values;
    }

    /// The bytes that it takes in memory while it waits for its row: of ready ids four each, and their values.
    pub fn bytes(&self) -> usize {
        let values = self.values.iter().map(Vec::len).sum::<usize>();
        self.text.len() + if self.text.is_empty() { size_of_val(&*self.ids) + values } else { 0 }
    }
}

/// The samples of a record, in memory that is used again.
#[derive(Debug, Default)]
pub struct Samples {
    all: Vec<Sample>,
    /// How many of them are the record's; the others are memory.
    count: usize,
    /// The record's key in the tar, if samples have images.
    pub key: String,
    /// Why the run stops, where a record is not to blame.
    pub failed: Option<Error>,
}

impl Samples {
    fn clear(&mut self) {
        self.count = 0;
        self.key.clear();
        self.failed = None;
    }

    /// Appends an empty sample.
    pub fn add(&mut self) -> &mut Sample {
        if self.count == self.all.len() {
            self.all.push(Sample::default());
        }
        self.count += 1;
        let sample = &mut self.all[self.count - 1];
        sample.clear();
        sample
    }

    /// Keeps the memory of one sample, if its text takes at most `most` bytes.
    pub fn shrink(&mut self, most: usize) {
        self.clear();
        self.all.truncate(1);
        self.all
            .retain(|sample| sample.text.capacity().max(size_of::<u32>() * sample.ids.capacity()) <= most);
    }
}

impl Deref for Samples {
    type Target = [Sample];

    fn deref(&self) -> &[Sample] {
        &self.all[..self.count]
    }
}

impl DerefMut for Samples {
    fn deref_mut(&mut self) -> &mut [Sample] {
        &mut self.all[..self.count]
    }
}

/// A prepared record, in memory that is used again.
#[derive(Default)]
pub struct Prepared {
    /// Its samples.
    pub samples: Samples,
    /// The size of rows, if conversations lose turns that do not fit.
    pub fit: Option<Fit>,
    /// Set when nobody waits for the record any longer.
    pub stop: Arc<AtomicBool>,
    scratch: JoinedScratch,
}

impl Prepare {
    /// Whether samples say which of their tokens are trained on.
    pub fn has_mask(&self) -> bool {
        match self {
            Self::Text | Self::FillInTheMiddle(_) | Self::TextWithFields(_) => false,
            Self::Tokens(tokens) => tokens.mask.is_some(),
            Self::Chat(_) | Self::Completion(_) | Self::Pair(_) | Self::ImageText(_) => true,
        }
    }

    /// How many segments a sample has.
    pub fn segments(&self) -> usize {
        match self {
            Self::Pair(_) => 2,
            Self::ImageText(samples) => samples.text.segments(),
            _ => 1,
        }
    }

    /// Whether of a record the text under one key is all that is wanted.
    fn is_text(&self) -> bool {
        matches!(self, Self::Text | Self::FillInTheMiddle(_))
    }

    /// Whether a record may become several samples.
    pub fn makes_several(&self) -> bool {
        matches!(self, Self::Chat(conversations) if conversations.unit != SampleUnit::Conversation)
    }

    /// Whether the token after the sample is trained on.
    pub fn trains_eos(&self) -> bool {
        match self {
            Self::Text
            | Self::FillInTheMiddle(_)
            | Self::TextWithFields(_)
            | Self::Tokens(_)
            | Self::Chat(_) => false,
            Self::Completion(_) => true,
            Self::Pair(pair) => pair.halves[0].trains_eos(),
            Self::ImageText(samples) => samples.text.trains_eos(),
        }
    }

    /// The added tokens, other than special ones, that are text in what conversations say.
    pub fn guarded_tokens(&self) -> &[String] {
        match self {
            Self::Chat(conversations) => conversations.template.written_tokens(),
            Self::Pair(pair) => pair.halves[0].guarded_tokens(),
            Self::ImageText(samples) => samples.text.guarded_tokens(),
            Self::Text
            | Self::FillInTheMiddle(_)
            | Self::TextWithFields(_)
            | Self::Tokens(_)
            | Self::Completion(_) => &[],
        }
    }

    /// The arrays that rows hold of images; none if samples have none.
    pub fn image_rows(&self) -> Option<&ImageRows> {
        if let Self::ImageText(samples) = self { Some(&samples.rows) } else { None }
    }

    /// The model of the images.
    pub fn image_model(&self) -> Option<&dyn ImageModel> {
        if let Self::ImageText(samples) = self { Some(&*samples.model) } else { None }
    }

    /// The medium that its model reads.
    pub fn medium(&self) -> Medium {
        if let Self::ImageText(samples) = self { samples.tokens.medium } else { Medium::default() }
    }

    /// Whether a sample without trained tokens is left out; else it is a bad record.
    pub fn drops_untrained(&self) -> bool {
        match self {
            Self::Text | Self::FillInTheMiddle(_) | Self::TextWithFields(_) => false,
            Self::Tokens(tokens) => tokens.drops_untrained,
            Self::Pair(pair) => pair.halves.iter().any(Self::drops_untrained),
            Self::Chat(conversations) => conversations.drops_untrained,
            Self::Completion(completions) => completions.drops_untrained,
            Self::ImageText(samples) => samples.text.drops_untrained(),
        }
    }

    /// Puts the samples of a record of `shard` in place of those in `prepared`. Returns false if the record is left out by the
    /// filter.
    pub fn record(
        &self,
        options: &ReadOptions,
        fields: &SourceFields,
        of_record: &Shard,
        record: RawRecord<'_>,
        prepared: &mut Prepared,
    ) -> Result<bool, ShardError> {
        let Prepared { samples, scratch, fit, stop } = prepared;
        let (shard, files) = (of_record.name(), files(options, of_record, record.position.record, stop));
        samples.clear();
        if self.is_text() {
            return options.extract(shard, record, &mut samples.add().text, &mut scratch.own);
        }
        if let RawKind::Ids { kind, is_ended } = record.kind {
            let sample = samples.add();
            sample.is_ended = is_ended;
            return kind.ids(record.bytes, &mut sample.ids).map(|()| true).map_err(|(index, found)| {
                let reason = format!("expected ids from 0 to {}, found {found} at index {index}", i32::MAX);
                located(shard, record.position, reason)
            });
        }
        options.select(shard, record, &mut scratch.own, |values| {
            let filled = self.fill(values, record.images, files, samples, fit.as_mut());
            filled.and_then(|()| fields.read(values, samples))
        })
    }

    /// Appends the samples of a record. The error is a message about the record.
    fn fill(
        &self,
        values: &Values<'_>,
        images: Option<&GroupImages>,
        files: Files<'_>,
        samples: &mut Samples,
        fit: Option<&mut Fit>,
    ) -> Result<(), String> {
        match self {
            Self::Text | Self::FillInTheMiddle(_) => {}
            Self::TextWithFields(texts) => {
                samples.add().text.push_str(&texts.text.text_of(values, "text_field")?);
            }
            Self::Tokens(tokens) => tokens.read(values, samples.add())?,
            Self::Chat(conversations) => conversations.render(values, samples, fit)?,
            Self::Completion(completions) => completions.join(values, samples.add())?,
            Self::Pair(pair) => {
                for half in &pair.halves {
                    half.fill(values, images, files, samples, None)?;
                }
            }
            Self::ImageText(texts) => texts.fill(values, images, files, samples)?,
        }
        Ok(())
    }

    /// How many of the projection's paths are those of the filter; they come first.
    fn filter_paths(&self, projection: &Projection) -> usize {
        match self {
            Self::Text | Self::FillInTheMiddle(_) => projection.paths().len(),
            Self::TextWithFields(texts) => texts.filter_paths,
            Self::Tokens(tokens) => tokens.filter_paths,
            Self::Pair(pair) => pair.filter_paths,
            Self::Chat(conversations) => conversations.filter_paths,
            Self::Completion(completions) => completions.filter_paths,
            Self::ImageText(samples) => samples.filter_paths,
        }
    }

    /// Like [`record`](Self::record) of a record with sidecars, whose paths come after those of its filter.
    pub fn joined_record(
        &self,
        options: &ReadOptions,
        fields: &SourceFields,
        of_record: &Shard,
        record: RawRecord<'_>,
        sidecars: Joined<'_>,
        prepared: &mut Prepared,
    ) -> Result<bool, ShardError> {
        let Prepared { samples, scratch, fit, stop } = prepared;
        let (shard, files) = (of_record.name(), files(options, of_record, record.position.record, stop));
        let projection = &options.projection;
        samples.clear();
        let filter_paths = self.filter_paths(projection);
        if !self.is_text() {
            let fill = |values: &Values<'_>| {
                let filled = self.fill(values, record.images, files, samples, fit.as_mut());
                filled.and_then(|()| fields.read(values, samples))
            };
            return sidecars.select(projection, filter_paths, shard, record, scratch, fill);
        }
        let text = &mut samples.add().text;
        let bad = |reason| located(shard, record.position, reason);
        let lines = sidecars.values(&mut scratch.beside).map_err(bad)?;
        let mut checked = Ok(());
        let is_kept = projection.extract_if(shard, record, text, &mut scratch.own, |values| {
            let values = values.with_sidecars(filter_paths, &lines);
            sidecars.keeps(&values, shard, record.position.record).unwrap_or_else(|reason| {
                checked = Err(reason);
                false
            })
        });
        checked.map_err(bad)?;
        is_kept
    }
}

/// The access to the files of a record's images.
fn files<'a>(
    options: &'a ReadOptions,
    shard: &'a Shard,
    record: u64,
    stop: &'a Arc<AtomicBool>,
) -> Files<'a> {
    Files { access: &options.access, shard, record, stop, longest: options.max_document_bytes }
}

/// Whether each token of a text is trained on: whether its first byte is, or what it has in front of a range that is
/// trained on is white space of the template.
pub fn trained_tokens(trained: &[TrainedSpan], starts: &[usize], end: usize) -> Vec<bool> {
    let mut mask = vec![false; starts.len()];
    for (tokens, _) in tokens_of_spans(trained, starts, end) {
        mask[tokens].fill(true);
    }
    mask
}

/// Whether some token that is trained on has a byte of what messages say.
pub fn trains_words(trained: &[TrainedSpan], starts: &[usize], end: usize) -> bool {
    tokens_of_spans(trained, starts, end).any(|(tokens, TrainedSpan { words, .. })| {
        let begin_before = starts[tokens.clone()].partition_point(|start| *start < words.end);
        begin_before > 0 && words.start < end_of_token(starts, tokens.start + begin_before - 1, end)
    })
}

/// How much each token of a text is trained on: as much as its first byte that is; 0 if none is.
pub fn token_weights(sample: &Sample, starts: &[usize]) -> Vec<f32> {
    let weight_at = |byte: usize| {
        let own = sample.weights.iter().find(|(bytes, _)| bytes.contains(&byte));
        own.map_or(1.0, |(_, weight)| *weight)
    };
    let mut weights = vec![0.0; starts.len()];
    for (tokens, span) in tokens_of_spans(&sample.trained, starts, sample.text.len()) {
        for token in tokens {
            weights[token] = weight_at(starts[token].max(span.bytes.start));
        }
    }
    weights
}

/// The tokens that are trained on because of each range. Only those at its ends are looked at.
fn tokens_of_spans<'a>(
    trained: &'a [TrainedSpan],
    starts: &'a [usize],
    end: usize,
) -> impl Iterator<Item = (Range<usize>, &'a TrainedSpan)> {
    let (mut token, mut end_before) = (0, 0);
    trained.iter().map(move |span| {
        let first_from = |token: usize, byte| token + starts[token..].partition_point(|start| *start < byte);
        let inside = first_from(token, span.bytes.start);
        let begins_before = inside.checked_sub(1).is_some_and(|before| {
            span.lead.max(end_before) <= starts[before]
                && span.bytes.start < end_of_token(starts, before, end)
        });
        let tokens = inside - usize::from(begins_before)..first_from(inside, span.bytes.end);
        (token, end_before) = (tokens.end, span.bytes.end);
        (tokens, span)
    })
}

/// Where a token ends in a text.
fn end_of_token(starts: &[usize], token: usize, end: usize) -> usize {
    starts.get(token + 1).copied().unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tokens_that_begin_in_white_space_of_the_template_are_trained() {
        // Q: A.\n A: B.\n with " A", ": ", " B" and so on, of which "B.\n" is trained on.
        let span = TrainedSpan { bytes: 9..12, lead: 8, words: 9..10 };
        let mask = |starts: &[usize]| trained_tokens(std::slice::from_ref(&span), starts, 13);
        assert_eq!(
            mask(&[0, 6, 8, 10, 12]),
            [false, false, true, true, false],
            "white space and the first word"
        );
        assert_eq!(mask(&[0, 6, 8, 9, 10]), [false, false, false, true, true], "white space by itself");
        assert_eq!(mask(&[0, 7, 10]), [false, false, true], "other text in front of the first word");
        assert_eq!(mask(&[0, 8, 8, 9]), [false, false, false, true], "a token that stands for no text");
        let says = |starts: &[usize]| trains_words(std::slice::from_ref(&span), starts, 13);
        assert!(says(&[0, 8, 10]) && says(&[0, 9, 10]));
        assert!(!says(&[0, 7, 10]), "only what is behind the word");
    }

    /// The bytes of each token, and the range by which it is trained on, token by token.
    fn naive<'a>(
        trained: &'a [TrainedSpan],
        starts: &'a [usize],
        end: usize,
    ) -> Vec<(Range<usize>, Option<&'a TrainedSpan>)> {
        let ends = starts.iter().skip(1).copied().chain([end]);
        let of_token = |(&start, end): (&usize, usize)| {
            let span = trained.iter().find(|span| start < span.bytes.end).filter(|span| {
                let leads = span.lead <= start && start < span.bytes.start && span.bytes.start < end;
                span.bytes.contains(&start) || leads
            });
            (start..end, span)
        };
        starts.iter().zip(ends).map(of_token).collect()
    }

    proptest! {
        #[test]
        fn tokens_at_the_ends_of_ranges_tell_all_that_are_trained(
            tokens in prop::collection::vec(0usize..4, 0..30),
            borders in prop::collection::btree_set(0usize..60, 0..12),
            leads in prop::collection::vec((0usize..4, 0usize..3, 0usize..3), 6),
        ) {
            let mut end = 0;
            let starts: Vec<usize> = tokens.iter().map(|length| { end += length; end - length }).collect();
            let borders: Vec<usize> = borders.into_iter().filter(|border| *border <= end).collect();
            let span = |(pair, (lead, first, last)): (&[usize], &(usize, usize, usize))| {
                let (from, to) = (pair[0], pair[1]);
                let words = (from + first).min(to)..(from + first + last).min(to);
                TrainedSpan { bytes: from..to, lead: from.saturating_sub(*lead), words }
            };
            let trained: Vec<_> = borders.chunks_exact(2).zip(&leads).map(span).collect();
            let expected = naive(&trained, &starts, end);
            let mask: Vec<bool> = expected.iter().map(|(_, span)| span.is_some()).collect();
            prop_assert_eq!(trained_tokens(&trained, &starts, end), mask);
            let says = expected.iter().any(|(token, span)| span.is_some_and(|span| {
                token.start < span.words.end && span.words.start < token.end
            }));
            prop_assert_eq!(trains_words(&trained, &starts, end), says);
            let weights: Vec<_> = trained.iter().zip(1u8..).map(|(span, weight)| (span.bytes.clone(), weight.into())).collect();
            let weight_at = |byte| weights.iter().find(|(bytes, _)| bytes.contains(&byte)).map_or(1.0, |own| own.1);
            let of_token = |(token, span): &(Range<usize>, Option<&TrainedSpan>)| {
                span.map_or(0.0, |span| weight_at(token.start.max(span.bytes.start)))
            };
            let expected: Vec<f32> = expected.iter().map(of_token).collect();
            let sample = Sample { text: "x".repeat(end), trained, weights, ..Sample::default() };
            prop_assert_eq!(token_weights(&sample, &starts), expected);
        }
    }
}
