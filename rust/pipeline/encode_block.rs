//! The preparing and encoding of a block, which takes most of the workers' time.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::encode::{EncodeWorker, Encoder, Engine};
use crate::error::{Error, Result, ShardError, caught};
use crate::lane::block::{Document, RawBlock, SampleBlock};
use crate::lane::cursor::RecordPosition;
use crate::lane::id_buffer::{IdBuffer, IdPool};
use crate::pack::trained;
use crate::pipeline::block_samples::{Encoded, samples_of};
use crate::prepare::fill_in_the_middle::Part;
use crate::prepare::image_text::{ImageTexts, TextPart};
use crate::prepare::turns::Fit;
use crate::prepare::{
    Prepare, Prepared, Sample, TextWithFields, token_weights, trained_tokens, trains_words,
};
use crate::random::hash;
use crate::spec::{RowSpec, SourceSpec, Truncation, UntrainedRows};

/// The reference takes a hundred times the size of a text in memory. Longer ones are not verified, and where it is the
/// engine, they are encoded by one thread at a time.
const LONG: usize = 1 << 20;
/// The longest text whose memory is kept: enormous documents are rare.
const KEPT_TEXT: usize = 4 << 20;

/// Turns the records of blocks into samples with ids, for one thread.
pub struct BlockEncoder {
    spec: Arc<SourceSpec>,
    encoder: Encoder,
    worker: EncodeWorker,
    /// Share of the documents that are also encoded by the reference.
    verify: f64,
    /// One record, in memory that is used again.
    prepared: Prepared,
    ids: Arc<IdPool>,
    /// Held while the reference encodes a long text; shared by all threads.
    long: Arc<Mutex<()>>,
    /// Set when the consumer no longer waits: encoding then ends with the next document.
    stop: Arc<AtomicBool>,
}

impl BlockEncoder {
    /// An encoder for one thread. `verify` is the share of documents, 0 to 1, whose ids are compared with those of the
    /// reference. Blocks get their memory from `ids`.
    pub fn new(spec: &Arc<SourceSpec>, encoder: &Encoder, verify: f64, ids: Arc<IdPool>) -> Self {
        Self {
            spec: Arc::clone(spec),
            encoder: encoder.clone(),
            worker: encoder.worker(),
            verify,
            prepared: Prepared::default(),
            ids,
            long: Arc::default(),
            stop: Arc::default(),
        }
    }

    /// Makes it take turns with others that share `long` where texts take much memory.
    #[must_use]
    pub fn taking_turns(mut self, long: &Arc<Mutex<()>>) -> Self {
        self.long = Arc::clone(long);
        self
    }

    /// Makes encoding end with the document at which `stop` is set.
    #[must_use]
    pub fn stopped_by(mut self, stop: &Arc<AtomicBool>) -> Self {
        self.stop = Arc::clone(stop);
        self.prepared.stop = Arc::clone(stop);
        self
    }

    /// Makes it encode records of another source from now on.
    pub fn set_source(&mut self, spec: &Arc<SourceSpec>) {
        if !Arc::ptr_eq(&self.spec, spec) {
            self.spec = Arc::clone(spec);
        }
    }

    /// Turns raw records into samples, and removes them from `raw`. Returns also how many documents were compared with
    /// the reference and found equal.
    pub fn encode(&mut self, raw: &mut RawBlock) -> (SampleBlock, u64) {
        let spec = Arc::clone(&self.spec);
        let ids = self.ids.take(&spec.fields.all);
        let mut prepared = std::mem::take(&mut self.prepared);
        let RowSpec { truncation, sequence_length, .. } = spec.rows;
        if truncation == Truncation::Turns && prepared.fit.is_none() {
            prepared.fit = Some(Fit::new(&self.encoder, &self.long, sequence_length));
        }
        let mut verified = 0;
        let samples = samples_of(&spec, raw, ids, &mut prepared, |sample, document, ids| {
            let (encoded, compared) = self.encode_document(sample, document, ids)?;
            verified += u64::from(compared);
            Ok(encoded)
        });
        prepared.samples.shrink(KEPT_TEXT);
        self.prepared = prepared;
        (samples, verified)
    }

    /// Appends a document's ids, BOS and EOS included, and counts them. Says whether they were compared with the
    /// reference's. Unless it is a document, the caller removes what was appended.
    fn encode_document(
        &mut self,
        sample: &Sample,
        document: Document,
        ids: &mut IdBuffer,
    ) -> Result<(Encoded, bool)> {
        if let Prepare::ImageText(rules) = &self.spec.prepare {
            let rules = Arc::clone(rules);
            return self.encode_with_images(&rules, sample, document, ids);
        }
        let before = ids.len();
        if let Prepare::Tokens(_) = &self.spec.prepare {
            let tokens = self.add_ids(sample, ids);
            return Ok((self.finish(sample, Document { tokens, ..document }, before, ids)?, false));
        }
        ids.extend(self.spec.bos);
        let Sample { text, data, .. } = sample;
        let parts = match &self.spec.prepare {
            Prepare::FillInTheMiddle(fill)
            | Prepare::TextWithFields(TextWithFields { fill: Some(fill), .. }) => fill.parts(text, &document),
            _ => None,
        };
        let compared = match parts {
            None if !sample.ids.is_empty() => {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(Error::Closed);
                }
                ids.extend_from_slice(&sample.ids);
                self.verify(text, data, &document, &sample.ids)
            }
            None => self.encode_text(text, data, &document, ids),
            Some(parts) => self.encode_parts(parts, &document, ids),
        };
        let compared = compared?;
        ids.extend(self.spec.eos);
        let document = Document { tokens: ids.len() - before, ..document };
        Ok((self.finish(sample, document, before, ids)?, compared))
    }

    /// Appends ready ids, their mask and their values, and says how many ids it were. A sample without any has neither BOS nor
    /// EOS.
    fn add_ids(&self, sample: &Sample, ids: &mut IdBuffer) -> usize {
        let Sample { ids: own, trained_ids, is_ended, values, .. } = sample;
        if own.is_empty() {
            return 0;
        }
        let (bos, eos) = (self.spec.bos, self.spec.eos.filter(|_| !is_ended));
        ids.extend(bos);
        ids.extend_from_slice(own);
        ids.extend(eos);
        if let Some(&is_trained) = trained_ids.last() {
            ids.trained.extend(bos.map(|_| false));
            ids.trained.extend_from_slice(trained_ids);
            ids.trained.extend(eos.map(|_| is_trained));
        }
        let (before, after) = (usize::from(bos.is_some()), usize::from(eos.is_some()));
        ids.add_token_values(before, values, after);
        before + own.len() + after
    }

    /// Appends the mask of a document whose ids begin at `before`, if it has one, and cuts what is longer than a row.
    fn finish(
        &self,
        sample: &Sample,
        mut document: Document,
        before: usize,
        ids: &mut IdBuffer,
    ) -> Result<Encoded> {
        let SourceSpec { rows: RowSpec { sequence_length, truncation, .. }, ref prepare, .. } = *self.spec;
        let is_overlong = document.tokens > sequence_length;
        if is_overlong && matches!(truncation, Truncation::Drop | Truncation::Turns) {
            return Ok(Encoded::Filtered);
        }
        (document.dropped_messages, document.dropped) = sample.dropped;
        let has_mask = prepare.has_mask();
        if has_mask && !matches!(prepare, Prepare::Tokens(_)) {
            match self.mask(sample, before, ids) {
                Ok(only_stops) => document.only_stops = only_stops,
                Err(reason) => return Ok(Encoded::Bad(self.located(&document, reason))),
            }
        } else {
            self.add_equal_weights(before, ids);
        }
        if is_overlong {
            match truncation {
                Truncation::Split | Truncation::Drop | Truncation::Turns => {}
                Truncation::Error => {
                    let reason = too_long(document.tokens, sequence_length);
                    return Err(self.located(&document, reason).into());
                }
                Truncation::Right | Truncation::Left | Truncation::Middle => {
                    document.dropped = document.tokens - sequence_length;
                    document.tokens = sequence_length;
                    let cut = before + self.spec.rows.kept_before_cut();
                    let dropped = cut..cut + document.dropped;
                    ids.remove_tokens(&dropped);
                }
            }
        }
        // An empty list of ready ids is a sample; a conversation of which the template writes nothing is none.
        let is_judged = has_mask && (document.tokens > 0 || !matches!(prepare, Prepare::Tokens(_)));
        Ok(if is_judged { self.judge(document, &ids.trained[before..]) } else { Encoded::Document(document) })
    }

    /// The result of encoding a document, by which of its tokens are trained on.
    fn judge(&self, document: Document, mask: &[bool]) -> Encoded {
        let SourceSpec { rows: RowSpec { sequence_length, .. }, untrained_rows, ref prepare, .. } =
            *self.spec;
        let found = |mask: &[bool]| {
            if mask.contains(&true) { "only ones without a token before them in their row" } else { "none" }
        };
        let mut untrained = None;
        let mut is_untrained = untrained_rows != UntrainedRows::Deliver || !mask.contains(&true);
        for (part, is_trained) in trained::parts(&self.spec, &document, mask) {
            is_untrained &= !is_trained;
            untrained = untrained.or((!is_trained).then_some(part));
        }
        let Document { tokens, dropped, .. } = document;
        if is_untrained {
            if prepare.drops_untrained() {
                return Encoded::Filtered;
            }
            let left = if dropped > 0 {
                format!(" that truncation leaves of {}", tokens + dropped)
            } else {
                String::new()
            };
            let found = found(mask);
            let reason = format!(
                "expected a token to train on, found {found} among the {tokens} tokens{left}; {}{}",
                if tokens == 0 {
                    "give the record's own format= and field=, and a template that writes its messages; "
                } else {
                    ""
                },
                advice(prepare)
            );
            return Encoded::Bad(self.located(&document, reason));
        }
        match untrained {
            Some(part) if untrained_rows == UntrainedRows::Error => {
                let found = found(&mask[part.clone()]);
                let Range { start, end } = part;
                let reason = format!(
                    "expected a token to train on in each of the parts of sequence_length={sequence_length} tokens that this document of \
                     {tokens} is cut into, found {found} among the tokens {start} to {}; raise sequence_length=, cut long documents \
                     with truncation=\"right\" or \"left\", or set on_untrained=\"drop\" to leave out rows that train nothing",
                    end - 1
                );
                Encoded::Bad(self.located(&document, reason))
            }
            _ => Encoded::Document(document),
        }
    }

    /// An error of a document.
    fn located(&self, document: &Document, reason: String) -> ShardError {
        document.position.error(&self.spec.shards[document.shard as usize], reason)
    }

    /// As [`encode_document`](Self::encode_document), of a sample with images.
    fn encode_with_images(
        &mut self,
        rules: &ImageTexts,
        sample: &Sample,
        document: Document,
        ids: &mut IdBuffer,
    ) -> Result<(Encoded, bool)> {
        let mut text_ids = Vec::new();
        let compared = self.encode_text(&sample.text, &sample.data, &document, &mut text_ids)?;
        Ok((self.expand(rules, sample, &text_ids, document, ids), compared))
    }

    /// Appends the ids of a sample whose text has these, its mask, and its images.
    fn expand(
        &self,
        rules: &ImageTexts,
        sample: &Sample,
        text_ids: &[u32],
        document: Document,
        ids: &mut IdBuffer,
    ) -> Encoded {
        let SourceSpec { bos, eos, rows: RowSpec { sequence_length, truncation, .. }, ref prepare, .. } =
            *self.spec;
        let bad = |reason| Encoded::Bad(self.located(&document, reason));
        if !sample.weights.is_empty() {
            return bad("expected messages that are trained on or not, found weights, which samples with images do not follow; \
                        leave them out"
                .to_owned());
        }
        let starts = match self.token_starts(&sample.text, text_ids) {
            Ok(starts) => starts,
            Err(reason) => return bad(reason),
        };
        let (start, first_image) = (ids.len(), ids.images.len());
        let mut images = std::mem::take(&mut ids.images);
        let mut trained = std::mem::take(&mut ids.trained);
        images.extend_from_slice(&sample.images);
        ids.extend(bos);
        trained.extend(bos.map(|_| false));
        let is_trained = trained_tokens(&sample.trained, &starts, sample.text.len());
        let of_sample = &mut images[first_image..];
        let expanded = rules.expand(text_ids, &is_trained, of_sample, start, ids, &mut trained);
        ids.extend(eos);
        trained.extend(eos.map(|_| prepare.trains_eos()));
        (ids.images, ids.trained) = (images, trained);
        self.add_equal_weights(start, ids);
        if let Err(reason) = expanded {
            return bad(reason);
        }
        let of_sample = &ids.images[first_image..];
        let only_stops = !trains_words(&sample.trained, &starts, sample.text.len());
        let (tokens, images) = (ids.len() - start, of_sample.len() as u32);
        let document = Document { images, tokens, only_stops, ..document };
        if let Some(misfit) = rules.misfit(document.tokens, of_sample, sequence_length) {
            return if truncation == Truncation::Drop { Encoded::Filtered } else { bad(misfit) };
        }
        self.judge(document, &ids.trained[start..])
    }

    /// Appends which of a document's tokens, which begin at `before`, are trained on, and says whether none of them is of
    /// what its messages say. The error is a message about the record.
    fn mask(&self, sample: &Sample, before: usize, ids: &mut IdBuffer) -> Result<bool, String> {
        let SourceSpec { bos, eos, ref prepare, .. } = *self.spec;
        let text_ids = before + usize::from(bos.is_some())..ids.len() - usize::from(eos.is_some());
        let starts = self.token_starts(&sample.text, &ids[text_ids])?;
        ids.trained.extend(bos.map(|_| false));
        ids.trained.extend(trained_tokens(&sample.trained, &starts, sample.text.len()));
        ids.trained.extend(eos.map(|_| prepare.trains_eos()));
        match self.spec.fields.weight() {
            Some(field) if !sample.weights.is_empty() => {
                let weights = token_weights(sample, &starts);
                let after = eos.map(|_| f32::from(u8::from(prepare.trains_eos())));
                ids.add_values(field, bos.map(|_| 0.0).into_iter().chain(weights).chain(after));
            }
            _ => self.add_equal_weights(before, ids),
        }
        Ok(!trains_words(&sample.trained, &starts, sample.text.len()))
    }

    /// Appends the weights of a document's tokens, which begin at `before`, if rows have such: 1 for each that is trained on.
    fn add_equal_weights(&self, before: usize, ids: &mut IdBuffer) {
        if let Some(field) = self.spec.fields.weight() {
            let weights: Vec<f32> = match ids.trained.get(before..) {
                Some(trained) if !trained.is_empty() => {
                    trained.iter().map(|trained| f32::from(u8::from(*trained))).collect()
                }
                _ => vec![1.0; ids.len() - before],
            };
            ids.add_values(field, weights.into_iter());
        }
    }

    /// Where in a text its tokens begin. The error is a message about the record.
    fn token_starts(&self, text: &str, ids: &[u32]) -> Result<Vec<usize>, String> {
        caught(|| Ok(self.encoder.token_starts(text, ids)?))
            .map_err(|error| format!("the mask of trained tokens cannot be derived: {error}"))
    }

    /// Appends the ids of the parts of a document, and says whether all were compared with the reference's.
    fn encode_parts(
        &mut self,
        parts: [Part<'_>; 6],
        document: &Document,
        ids: &mut Vec<u32>,
    ) -> Result<bool> {
        let mut compared = true;
        for part in parts {
            match part {
                Part::Sentinel(id) => ids.push(id),
                Part::Section(text) => compared &= self.encode_text(text, &[], document, ids)?,
            }
        }
        Ok(compared)
    }

    /// Appends the ids of a text of a document, in which no special token is recognised in the ranges `data`, and says
    /// whether they were compared with the reference's.
    fn encode_text(
        &mut self,
        text: &str,
        data: &[Range<usize>],
        document: &Document,
        ids: &mut Vec<u32>,
    ) -> Result<bool> {
        let is_reference = self.encoder.engine() == Engine::Reference;
        let takes_turn = is_reference && text.len() > LONG;
        let _turn = takes_turn.then(|| self.long.lock().unwrap_or_else(PoisonError::into_inner));
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        let Document { position, shard, .. } = *document;
        let located = |reason| Error::Shard(position.error(&self.spec.shards[shard as usize], reason));
        let before = ids.len();
        if let Err(error) = caught(|| {
            Ok(if data.is_empty() {
                self.worker.encode(text, ids)
            } else {
                self.worker.encode_around(text, data, self.spec.prepare.guarded_tokens(), ids)
            }?)
        }) {
            if matches!(error, Error::Bug(_)) {
                self.worker = self.encoder.worker(); // a panic may have left anything in the old one
            }
            let advice = if matches!(error, Error::Tokenizer(_)) {
                "; on_error=\"quarantine\" does not cover errors of the tokenizer: fix the tokenizer, or remove the record"
            } else {
                ""
            };
            return Err(located(format!("{error}{advice}")));
        }
        self.verify(text, data, document, &ids[before..])
    }

    /// Compares the ids of a text of a document with the reference's, if it is one of those that are, and says whether it is.
    fn verify(&self, text: &str, data: &[Range<usize>], document: &Document, found: &[u32]) -> Result<bool> {
        let Document { position, shard, .. } = *document;
        let located = |reason| Error::Shard(position.error(&self.spec.shards[shard as usize], reason));
        let is_reference = self.encoder.engine() == Engine::Reference;
        // The reference recognises special tokens everywhere.
        if is_reference || !data.is_empty() || text.len() > LONG || !is_sampled(document, self.verify) {
            return Ok(false);
        }
        let mut expected = Vec::new();
        let encoded = self.encoder.encode_with_reference(text, &mut expected);
        encoded.map_err(|error| located(error.to_string()))?;
        if found == expected {
            return Ok(true);
        }
        let equal = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        let id = |ids: &[u32]| ids.get(equal).map_or("the end".to_owned(), u32::to_string);
        Err(located(format!(
            "expected the ids of the reference engine, found a difference at token {equal}: {} instead of {}. This is \
             a bug in the fast engine, please report it; Encoder(..., engine=\"reference\") avoids it",
            id(found),
            id(&expected),
        )))
    }
}

fn too_long(found: usize, length: usize) -> String {
    format!(
        "expected a document of at most sequence_length={length} tokens, BOS and EOS included, as \
         truncation=\"error\" demands, found one of {found}; raise sequence_length=, cut it with truncation=\"right\", \
         \"left\" or \"middle\", or keep all of it with \"split\""
    )
}

/// Advice against samples that train nothing.
fn advice(prepare: &Prepare) -> &'static str {
    match prepare {
        Prepare::ImageText(samples) if matches!(samples.text, TextPart::Text(_)) => {
            "leave out samples without a text with keep="
        }
        _ => "set on_untrained=\"drop\" to leave out such records",
    }
}

/// Whether a document is in the share that is verified: the same documents in every run.
fn is_sampled(document: &Document, share: f64) -> bool {
    let Document { position: RecordPosition { epoch, record, .. }, shard, .. } = *document;
    hash([epoch, shard.into(), record]) as f64 <= share * 2f64.powi(62)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::block::SampleEntry;
    use crate::lane::cursor::Cursor;
    use crate::lane::reader::LaneReader;
    use crate::pack::tests::{folder_of, lines};

    /// An encoder for two letters.
    fn encoder(vocab: &str) -> Encoder {
        let pre_tokenizer = r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}"#;
        let model = format!(r#"{{"type": "BPE", "vocab": {vocab}, "merges": []}}"#);
        Encoder::from_bytes(
            format!(r#"{{"pre_tokenizer": {pre_tokenizer}, "model": {model}, "added_tokens": []}}"#)
                .as_bytes(),
        )
        .unwrap()
    }

    /// How many documents a block has, and the error that ends it, if one does.
    fn contents(samples: &SampleBlock) -> (usize, Option<&Error>) {
        let is_document = |entry: &&SampleEntry| matches!(entry, SampleEntry::Document { .. });
        let error = match samples.entries.last() {
            Some(SampleEntry::Failed { error, .. }) => Some(error),
            _ => None,
        };
        (samples.entries.iter().filter(is_document).count(), error)
    }

    #[test]
    fn document_with_other_ids_than_the_reference_ends_the_block() {
        let shard = lines(&["aa", "aab", "aa"]);
        let folder = folder_of([("0.jsonl".to_owned(), shard)].into_iter());
        let spec = Arc::new(folder.spec);
        let mut raw = RawBlock::default();
        LaneReader::new(Arc::clone(&spec), 0, &Cursor::default()).read(&mut raw);
        let new = |vocab| BlockEncoder::new(&spec, &encoder(vocab), 1.0, IdPool::new(1));
        // As if the fast engine had a bug.
        let worker = encoder(r#"{"a": 0, "b": 2}"#).worker();
        let (samples, verified) = BlockEncoder { worker, ..new(r#"{"a": 0, "b": 1}"#) }.encode(&mut raw);
        let (documents, error) = contents(&samples);
        assert_eq!((documents, &**samples.ids, verified), (1, &[0, 0][..], 1));
        let error = error.unwrap().to_string();
        assert!(error.contains("0.jsonl: record 1, byte 15: "), "{error}");
        assert!(error.contains("a difference at token 2: 2 instead of 1. "), "{error}");
    }

    #[test]
    fn long_documents_are_not_compared() {
        let long = "a".repeat(LONG + 1);
        let folder = folder_of([("0.jsonl".to_owned(), lines(&["a", &long, "a"]))].into_iter());
        let spec = Arc::new(folder.spec);
        let mut raw = RawBlock::default();
        let mut reader = LaneReader::new(Arc::clone(&spec), 0, &Cursor::default());
        let mut encoder = BlockEncoder::new(&spec, &encoder(r#"{"a": 0, "b": 1}"#), 1.0, IdPool::new(1));
        let (mut documents, mut verified) = (0, 0);
        while !reader.is_done() {
            reader.read(&mut raw);
            let (samples, compared) = encoder.encode(&mut raw);
            verified += compared;
            documents += contents(&samples).0;
        }
        assert_eq!((documents, verified), (3, 2));
    }

    #[test]
    fn block_is_not_encoded_after_a_stop() {
        let folder = folder_of([("0.jsonl".to_owned(), lines(&["a", "b"]))].into_iter());
        let spec = Arc::new(folder.spec);
        let mut raw = RawBlock::default();
        LaneReader::new(Arc::clone(&spec), 0, &Cursor::default()).read(&mut raw);
        let encoder = encoder(r#"{"a": 0, "b": 1}"#);
        let stop = Arc::new(AtomicBool::new(true));
        let mut encoder = BlockEncoder::new(&spec, &encoder, 0.0, IdPool::new(1)).stopped_by(&stop);
        let (samples, _) = encoder.encode(&mut raw);
        assert!(matches!(contents(&samples), (0, Some(Error::Closed))), "{samples:?}");
        assert!(samples.ids.is_empty());
    }

    #[test]
    fn verified_documents_are_the_requested_share() {
        let documents: Vec<Document> = (0..10_000)
            .map(|i| Document {
                position: RecordPosition { epoch: i / 5000, record: i % 5000, ..RecordPosition::default() },
                shard: i as u32 % 7,
                ..Document::default()
            })
            .collect();
        for share in [0.0, 1e-4, 0.01, 0.5, 1.0] {
            let count = documents.iter().filter(|document| is_sampled(document, share)).count() as f64;
            let deviation = (10_000.0 * share * (1.0 - share)).sqrt();
            assert!((count - share * 10_000.0).abs() <= 5.0 * deviation, "{share}: {count}");
        }
    }
}
