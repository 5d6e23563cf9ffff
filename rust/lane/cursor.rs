//! Cursors: a lane's position between two rows, and its counts up to there.

use std::sync::Arc;

use crate::error::{Error, Result, ShardError};
use crate::format::Position;
use crate::spec::SourceSpec;
use crate::store::Shard;

/// The position of a record in a lane's stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordPosition {
    /// Epoch, from 0. Equals the number of epochs once the lane has ended.
    pub epoch: u64,
    /// Index into the lane's shards in this epoch's order.
    pub shard: u64,
    /// 0-based line of the shard.
    pub record: u64,
    /// Inflated offset of the line's first byte.
    pub byte: u64,
    /// Index of the sample among those of the record.
    pub sample: u64,
}

impl RecordPosition {
    /// Whether its epoch begins here.
    pub fn begins_epoch(self) -> bool {
        self.shard == 0 && self.record == 0 && self.sample == 0
    }

    /// The first sample of another record of its shard.
    #[must_use]
    pub fn at(self, Position { record, byte }: Position) -> Self {
        Self { record, byte, sample: 0, ..self }
    }

    /// The next sample of its record.
    #[must_use]
    pub fn next_sample(self) -> Self {
        Self { sample: self.sample + 1, ..self }
    }

    /// An error of the record at this position, which is in `shard`.
    pub fn error(self, shard: &Shard, reason: String) -> ShardError {
        let byte = Position { record: self.record, byte: self.byte }.shown_byte();
        ShardError { shard: Arc::clone(shard.name()), record: Some(self.record), byte, reason }
    }
}

/// Running totals of a lane since the start of the run, kept across restarts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records before [`Cursor::window`]: valid, filtered and quarantined.
    pub records: u64,
    /// Quarantined records before [`Cursor::window`].
    pub quarantined: u64,
    /// Documents whose last token was delivered.
    pub documents: u64,
    /// Elements of rows that are not padding.
    pub tokens: u64,
    /// Bytes of UTF-8 text of those documents.
    pub text_bytes: u64,
    /// Elements of padding in the lane's rows, up to its last row with a token.
    pub padding: u64,
    /// Tokens dropped by truncation.
    pub dropped: u64,
    /// Shards before [`Cursor::window`] that were not read to their end, once for each epoch.
    pub lost_shards: u64,
    /// Records before [`Cursor::window`] that were left out because it was asked for.
    pub filtered: u64,
    /// Delivered tokens that a mask selects; 0 where there are no masks.
    pub trained: u64,
    /// Images of the lane's rows.
    pub images: u64,
    /// Tokens of those images.
    pub image_tokens: u64,
    /// Delivered documents that are not trained on, because one of their images cannot be decoded.
    pub undecodable: u64,
    /// Delivered documents that nothing is trained of but the tokens that end messages.
    pub only_stops: u64,
    /// Samples left out because it was asked for, of records of which others are delivered.
    pub filtered_samples: u64,
    /// Messages of delivered documents that were left out by truncation.
    pub dropped_messages: u64,
    /// Rows before the last border of the stream.
    pub earlier_rows: u64,
    /// Their elements.
    pub earlier_elements: u64,
}

impl Totals {
    /// These without the counts of documents in others, which count as not delivered.
    #[must_use]
    pub fn without(self, documents: &Self) -> Self {
        // A saved state may hold any numbers.
        Self {
            documents: self.documents.saturating_sub(documents.documents),
            text_bytes: self.text_bytes.saturating_sub(documents.text_bytes),
            dropped: self.dropped.saturating_sub(documents.dropped),
            only_stops: self.only_stops.saturating_sub(documents.only_stops),
            filtered_samples: self.filtered_samples.saturating_sub(documents.filtered_samples),
            dropped_messages: self.dropped_messages.saturating_sub(documents.dropped_messages),
            ..self
        }
    }
}

/// Everything needed to produce a lane's next row: constant in size, whatever the packing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    /// First record of the current window; without windows, of the next document.
    pub window: RecordPosition,
    /// How many documents of the window, in its permuted order, are completely delivered (`best_fit`: how many of its
    /// rows).
    pub delivered: u64,
    /// How many tokens of the next document are delivered.
    pub offset: u64,
    /// Inside a window, a hash of its documents' positions and lengths; else 0.
    pub window_hash: u64,
    /// Whether the records between the start of the epoch and `window` have no token, 0 or 1: an endless lane stops at
    /// the end of an epoch without any. 0 where an epoch begins, and in lanes that end.
    pub tokenless: u64,
    /// Tokens or samples that the current stage of a mixture has had of the source so far: see
    /// [`Unit`](crate::spec::mixture::Unit). 0 where weights count rows.
    pub in_stage: u64,
    /// The number of the window's [size](Self::window_bytes), from 1 to [`WINDOW_SIZES`]. 0 in states from before windows
    /// grew, when all had the largest: so the stream continues as it was. [`LARGE_WINDOWS`] at the start of such a stream.
    pub window_size: u64,
    /// The counts up to here.
    pub totals: Totals,
}

/// The most text in a window, not counting its last document: bounds the memory that long documents can take. Part of
/// the stream's definition.
pub const LARGEST_WINDOW_BYTES: usize = 16 << 20;

/// How many sizes windows have. The first window of a run ends at 64 KiB, since no row is delivered before it is whole.
/// Part of the stream's definition.
pub const WINDOW_SIZES: u64 = 9;
/// The size at the start of a stream all of whose windows have the largest.
pub const LARGE_WINDOWS: u64 = WINDOW_SIZES + 1;

/// The largest value of a number in a saved state: sums of such numbers do not overflow.
pub const LARGEST: u64 = 1 << 62;

impl Cursor {
    /// Where a run begins to read a source. In one whose windows are all large, those of the source are too.
    pub fn start(spec: &SourceSpec, has_large_windows: bool) -> Self {
        let first = if has_large_windows { LARGE_WINDOWS } else { 1 };
        Self { window_size: spec.window().map_or(0, |_| first), ..Self::default() }
    }

    /// Where the run of this cursor began to read the source.
    #[must_use]
    pub fn at_start(&self) -> Self {
        Self { window_size: if self.has_large_windows() { LARGE_WINDOWS } else { 0 }, ..Self::default() }
    }

    /// Whether all windows of its run are large, which began before windows grew.
    pub fn has_large_windows(&self) -> bool {
        matches!(self.window_size, 0 | LARGE_WINDOWS) && self.saved() != Self::default()
    }

    /// Whether the next window may be larger.
    pub fn window_grows(&self) -> bool {
        (1..WINDOW_SIZES).contains(&self.window_size)
    }

    /// Its form in a state. The size of the first window is left out, which is known; and that all are large, where a
    /// window that was read shows it.
    #[must_use]
    pub fn saved(&self) -> Self {
        let others = Self { window_size: 0, ..*self };
        let is_start = others == Self::default();
        match self.window_size {
            1 if is_start => others,
            LARGE_WINDOWS if !is_start => others,
            _ => *self,
        }
    }

    /// The most text in its window, not counting the last document.
    pub fn window_bytes(&self) -> usize {
        if self.window_grows() {
            LARGEST_WINDOW_BYTES >> (WINDOW_SIZES - self.window_size)
        } else {
            LARGEST_WINDOW_BYTES
        }
    }

    /// All its numbers with their names in a saved state, in the order in which they are shown. A new one is added at
    /// the end.
    fn fields(&mut self) -> [(&'static str, &mut u64); 29] {
        let Self { window, delivered, offset, window_hash, tokenless, in_stage, window_size, totals } = self;
        [
            ("epoch", &mut window.epoch),
            ("shard", &mut window.shard),
            ("record", &mut window.record),
            ("byte", &mut window.byte),
            ("delivered", delivered),
            ("offset", offset),
            ("window_hash", window_hash),
            ("records", &mut totals.records),
            ("quarantined", &mut totals.quarantined),
            ("documents", &mut totals.documents),
            ("tokens", &mut totals.tokens),
            ("text_bytes", &mut totals.text_bytes),
            ("padding", &mut totals.padding),
            ("dropped", &mut totals.dropped),
            ("lost_shards", &mut totals.lost_shards),
            ("filtered", &mut totals.filtered),
            ("trained", &mut totals.trained),
            ("tokenless", tokenless),
            ("in_stage", in_stage),
            ("images", &mut totals.images),
            ("image_tokens", &mut totals.image_tokens),
            ("undecodable", &mut totals.undecodable),
            ("only_stops", &mut totals.only_stops),
            ("sample", &mut window.sample),
            ("filtered_samples", &mut totals.filtered_samples),
            ("dropped_messages", &mut totals.dropped_messages),
            ("earlier_rows", &mut totals.earlier_rows),
            ("earlier_elements", &mut totals.earlier_elements),
            ("window_size", window_size),
        ]
    }

    /// The numbers and their names.
    pub fn numbers(mut self) -> impl Iterator<Item = (&'static str, u64)> {
        self.fields().map(|(name, number)| (name, *number)).into_iter()
    }

    /// The number of that name, to be set.
    pub fn number_mut(&mut self, name: &str) -> Option<&mut u64> {
        self.fields().into_iter().find_map(|(known, number)| (known == name).then_some(number))
    }

    /// A state from outside may hold any numbers: the checks here, and at the first document, make sure that they lead
    /// either to the stream or to an error.
    pub fn check(&self, spec: &SourceSpec, lane: usize) -> Result<()> {
        let RecordPosition { epoch, shard, sample, .. } = self.window;
        let wrong =
            |what: String| Err(Error::State(format!("the state of lane {lane} does not fit: {what}")));
        let Totals { records, quarantined, lost_shards, filtered, .. } = self.totals;
        if self.numbers().any(|(_, number)| number > LARGEST) {
            return wrong(format!("it holds a number above {LARGEST}"));
        }
        if quarantined + filtered > records || lost_shards > quarantined {
            return wrong(format!(
                "it counts {lost_shards} lost shards, {quarantined} quarantined, {filtered} filtered and {records} read \
                 records"
            ));
        }
        if self.window_size > LARGE_WINDOWS {
            return wrong(format!("its window has size {}, and there are {WINDOW_SIZES}", self.window_size));
        }
        if sample > 0 && !spec.prepare.makes_several() {
            return wrong(format!("it is at sample {sample} of a record, and each has one"));
        }
        if let Some(epochs) = spec.epochs {
            if epoch > epochs {
                return wrong(format!("it is in epoch {epoch}, and epochs={epochs}"));
            }
            if epoch == epochs {
                let names_record = self.window != RecordPosition { epoch, ..RecordPosition::default() };
                if names_record || self.delivered | self.offset | self.window_hash > 0 {
                    return wrong("it has ended, but names a record".into());
                }
                return Ok(());
            }
        }
        let shards = spec.plan.epoch(epoch)[lane].len();
        if shard >= shards as u64 {
            return wrong(format!("it is in shard {shard} of {shards}"));
        }
        if self.delivered | self.window_hash > 0 && spec.window().is_none() {
            return wrong("it is inside a window, and this stream has none".into());
        }
        if self.offset > 0 && !spec.rows.can_pause_at(self.offset) {
            return wrong(format!("it is at token {} of a document, where no row ends", self.offset));
        }
        Ok(())
    }
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        // The sum over lanes may be too large, if states hold odd numbers.
        self.records = self.records.saturating_add(other.records);
        self.quarantined = self.quarantined.saturating_add(other.quarantined);
        self.documents = self.documents.saturating_add(other.documents);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.text_bytes = self.text_bytes.saturating_add(other.text_bytes);
        self.padding = self.padding.saturating_add(other.padding);
        self.dropped = self.dropped.saturating_add(other.dropped);
        self.lost_shards = self.lost_shards.saturating_add(other.lost_shards);
        self.filtered = self.filtered.saturating_add(other.filtered);
        self.trained = self.trained.saturating_add(other.trained);
        self.images = self.images.saturating_add(other.images);
        self.image_tokens = self.image_tokens.saturating_add(other.image_tokens);
        self.undecodable = self.undecodable.saturating_add(other.undecodable);
        self.only_stops = self.only_stops.saturating_add(other.only_stops);
        self.filtered_samples = self.filtered_samples.saturating_add(other.filtered_samples);
        self.dropped_messages = self.dropped_messages.saturating_add(other.dropped_messages);
        self.earlier_rows = self.earlier_rows.saturating_add(other.earlier_rows);
        self.earlier_elements = self.earlier_elements.saturating_add(other.earlier_elements);
    }
}
