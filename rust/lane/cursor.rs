//! A lane's place between two rows, and its counts up to there.

/// The place of a record in a lane's stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// Epoch, from 0. Equals the number of epochs once the lane has ended.
    pub epoch: u64,
    /// Index into the lane's shards in this epoch's order.
    pub shard: u64,
    /// 0-based line of the shard.
    pub record: u64,
    /// Inflated offset of the line's first byte.
    pub byte: u64,
}

/// Running totals of a lane since the start of the run, kept across restarts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records before [`Cursor::window`], sound and quarantined.
    pub records: u64,
    /// Quarantined records before [`Cursor::window`].
    pub quarantined: u64,
    /// Documents whose last token was delivered.
    pub documents: u64,
    /// Places in rows that are not padding.
    pub tokens: u64,
    /// Bytes of UTF-8 text of those documents.
    pub text_bytes: u64,
    /// Places of padding in the lane's rows, up to its last row with a token.
    pub padding: u64,
    /// Tokens dropped by truncation.
    pub dropped: u64,
    /// Shards before [`Cursor::window`] that were not read to their end, once for each epoch.
    pub lost_shards: u64,
}

/// Everything needed to produce a lane's next row: constant in size, whatever the packing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    /// First record of the current window; without windows, of the next document.
    pub window: Place,
    /// How many documents of the window, in its permuted order, are completely delivered (`best_fit`: how many of its
    /// rows).
    pub given: u64,
    /// How many tokens of the next document are delivered.
    pub offset: u64,
    /// The counts up to here.
    pub totals: Totals,
}

impl Cursor {
    /// The names of the numbers of [`Cursor::to_array`], in its order.
    pub const FIELDS: [&'static str; 14] = [
        "epoch",
        "shard",
        "record",
        "byte",
        "given",
        "offset",
        "records",
        "quarantined",
        "documents",
        "tokens",
        "text_bytes",
        "padding",
        "dropped",
        "lost_shards",
    ];

    /// The cursor as stored in a saved state.
    pub fn to_array(&self) -> [u64; 14] {
        let Self { window, given, offset, totals } = *self;
        [
            window.epoch,
            window.shard,
            window.record,
            window.byte,
            given,
            offset,
            totals.records,
            totals.quarantined,
            totals.documents,
            totals.tokens,
            totals.text_bytes,
            totals.padding,
            totals.dropped,
            totals.lost_shards,
        ]
    }

    /// The cursor of a saved state.
    pub fn from_array(array: [u64; 14]) -> Self {
        let [
            epoch,
            shard,
            record,
            byte,
            given,
            offset,
            records,
            quarantined,
            documents,
            tokens,
            text_bytes,
            padding,
            dropped,
            lost_shards,
        ] = array;
        Self {
            window: Place { epoch, shard, record, byte },
            given,
            offset,
            totals: Totals {
                records,
                quarantined,
                documents,
                tokens,
                text_bytes,
                padding,
                dropped,
                lost_shards,
            },
        }
    }
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        // A saved state may hold any numbers.
        self.records = self.records.saturating_add(other.records);
        self.quarantined = self.quarantined.saturating_add(other.quarantined);
        self.documents = self.documents.saturating_add(other.documents);
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.text_bytes = self.text_bytes.saturating_add(other.text_bytes);
        self.padding = self.padding.saturating_add(other.padding);
        self.dropped = self.dropped.saturating_add(other.dropped);
        self.lost_shards = self.lost_shards.saturating_add(other.lost_shards);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_and_cursors_are_the_same_thing() {
        let array = std::array::from_fn(|i| 100 + i as u64);
        let cursor = Cursor::from_array(array);
        assert_eq!(cursor.to_array(), array);
        let Cursor { window, given, offset, totals } = cursor;
        let fields = [
            ("epoch", window.epoch),
            ("shard", window.shard),
            ("record", window.record),
            ("byte", window.byte),
            ("given", given),
            ("offset", offset),
            ("records", totals.records),
            ("quarantined", totals.quarantined),
            ("documents", totals.documents),
            ("tokens", totals.tokens),
            ("text_bytes", totals.text_bytes),
            ("padding", totals.padding),
            ("dropped", totals.dropped),
            ("lost_shards", totals.lost_shards),
        ];
        assert_eq!(fields.map(|(name, _)| name), Cursor::FIELDS);
        assert_eq!(fields.map(|(_, number)| number), array);
    }
}
