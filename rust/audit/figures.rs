//! The figures of the records of a shard.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

/// A count of records, unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Count {
    /// All that were read.
    Records,
    /// Records that the filter or the row list leaves out.
    Filtered,
    /// Records that cannot be used.
    Refused,
    /// Shards whose rest cannot be read; a refused record, too.
    LostShards,
    /// The others.
    Conversations,
    /// Samples that these become.
    Samples,
    /// Messages of samples with a trained token.
    Answers,
    /// A sample has no trained token, or there is no sample.
    Untrained,
    /// Only the tokens that end messages are trained of a sample.
    OnlyStops,
    /// An answer ends in no token at which the model stops.
    WithoutStop,
    /// Such answers.
    AnswersWithoutStop,
    /// The template does not write a reasoning.
    LostReasoning,
    /// It does not write a message, such as a system prompt.
    UnwrittenMessages,
    /// It writes none of the tools.
    UnwrittenTools,
    /// A sample is cut.
    Cut,
    /// Tokens that are cut off.
    CutTokens,
    /// Trained ones of them.
    CutTrainedTokens,
    /// Answers of which trained tokens are cut off.
    CutAnswers,
    /// No trained token is left of a sample that had some.
    CutUntrained,
    /// The texts are those of an earlier conversation.
    Duplicates,
}

impl Count {
    /// The names that Python has for them, in their order.
    pub const NAMES: [&str; 20] = [
        "records",
        "filtered",
        "refused",
        "lost_shards",
        "conversations",
        "samples",
        "answers",
        "untrained",
        "only_stops",
        "without_stop",
        "answers_without_stop",
        "lost_reasoning",
        "unwritten_messages",
        "unwritten_tools",
        "cut",
        "cut_tokens",
        "cut_trained_tokens",
        "cut_answers",
        "cut_untrained",
        "duplicates",
    ];

    /// The name that Python has for it.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// The contents of records, and of what a run would make of them.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    counts: [u64; Count::NAMES.len()],
    /// Messages and tokens, by the role of the message; of text that belongs to none, by the empty role.
    pub roles: BTreeMap<String, RoleFigures>,
    /// How many samples there are of each number of tokens.
    pub lengths: BTreeMap<usize, u64>,
}

/// The messages of a role, and the tokens that belong to them.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoleFigures {
    /// The messages.
    pub messages: u64,
    /// Their tokens in all samples.
    pub tokens: u64,
    /// The trained ones of them.
    pub trained: u64,
}

impl Figures {
    /// The numbers, in the order of their names.
    pub fn counts(&self) -> &[u64; Count::NAMES.len()] {
        &self.counts
    }

    /// The figures of a role.
    pub(super) fn role(&mut self, role: &str) -> &mut RoleFigures {
        self.roles.entry(role.to_owned()).or_default()
    }

    /// Adds those of further records.
    pub(super) fn add(&mut self, other: &Self) {
        for (own, other) in self.counts.iter_mut().zip(&other.counts) {
            *own += other;
        }
        for (role, other) in &other.roles {
            let own = self.role(role);
            own.messages += other.messages;
            own.tokens += other.tokens;
            own.trained += other.trained;
        }
        for (length, count) in &other.lengths {
            *self.lengths.entry(*length).or_default() += count;
        }
    }
}

impl Index<Count> for Figures {
    type Output = u64;

    fn index(&self, count: Count) -> &u64 {
        &self.counts[count as usize]
    }
}

impl IndexMut<Count> for Figures {
    fn index_mut(&mut self, count: Count) -> &mut u64 {
        &mut self.counts[count as usize]
    }
}
