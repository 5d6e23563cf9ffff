//! The audit of conversations: counts of what a run would make of them, in one pass over all records on all threads.
//!
//! ```text
//! shards ──> chunks of raw records ──> Part (figures of each shard, findings) ──> Audit, in the order of the records
//!            (as prompts are read)     rendered, masked and encoded
//! ```
//!
//! No record ends it: one that cannot be used is counted, and listed with its reason.

mod figures;
mod part;
mod reasons;

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};

use gristmill_chat_template::OnLostReasoning;

use crate::encode::Encoder;
use crate::error::{Error, Result};
use crate::prepare::chat::Conversations;
use crate::prompts::{self, Chunk, Left, Prompt, PromptSpec};

pub use figures::{Count, Figures, RoleFigures};
use part::{Auditor, Part};
use reasons::Reasons;

/// How many records are listed of each kind.
const LISTED: usize = 5;
/// Conversations that are remembered to find duplicates, which takes some 4 GiB.
const MOST_REMEMBERED: usize = 1 << 26;

/// All that was found.
#[derive(Debug, Default)]
pub struct Audit {
    /// The figures of each shard.
    pub shards: Vec<Figures>,
    /// The first records of each kind, in the order of the records.
    pub findings: Vec<Finding>,
    /// Records that cannot be used, by reasons that are alike: how many, and the first of them.
    pub reasons: Vec<(String, u64, Vec<Left>)>,
    /// Conversations that were compared with those before them: all, or those that fit into memory and their equals.
    pub compared: u64,
}

/// A conversation of a kind.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The count that it is one of.
    pub kind: Count,
    /// The index of its shard.
    pub shard: u32,
    /// The number of its record.
    pub record: u64,
    /// The number of the first such sample of the record.
    pub sample: usize,
    /// The message that it is about.
    pub message: Option<usize>,
    /// The tokens of the sample.
    pub tokens: Option<usize>,
    /// Shard and record of the first conversation with the same text.
    pub first: Option<(u32, u64)>,
}

/// Audits all records of a spec, whose only prompt is a conversation. Samples are cut as the spec says. None if it was
/// interrupted: `is_interrupted` is asked now and then on this thread, and told the index of the shard that it is at, and
/// how many conversations were found.
pub fn audit(
    spec: &PromptSpec,
    encoder: &Encoder,
    mut is_interrupted: impl FnMut(u32, u64) -> bool,
) -> Result<Option<Audit>> {
    let [Prompt::Chat(conversations)] = &*spec.prompts else {
        return Err(Error::Bug("an audit has one conversation of each record".to_owned()));
    };
    let mut conversations = Conversations::clone(conversations);
    if let Some(training) = &mut conversations.training {
        training.on_lost_reasoning = OnLostReasoning::List;
    }
    let long = Arc::new(Mutex::new(()));
    let new_worker = || {
        let mut auditor = Auditor::new(spec, &conversations, encoder, &long);
        move |chunk: Chunk, stop: &_| auditor.audit(&chunk, stop)
    };
    let mut joined = Joined::new(spec.shards.len());
    let progress = Cell::new((0, 0));
    let join = |part: Part| {
        let (shard, conversations) = progress.get();
        let last = part.shards.last_key_value().map_or(shard, |(shard, _)| *shard);
        progress.set((last, conversations + part.texts.len() as u64));
        joined.join(part);
        Ok(())
    };
    let asked = || {
        let (shard, conversations) = progress.get();
        is_interrupted(shard, conversations)
    };
    let is_done = prompts::in_order(spec, new_worker, join, asked)?;
    Ok(is_done.then(|| joined.finish()))
}

/// The parts so far.
struct Joined {
    audit: Audit,
    /// How many records are listed of each kind.
    listed: HashMap<Count, usize>,
    /// Shard and record of the first conversation of each text, by its hash.
    first: HashMap<u128, (u32, u64)>,
    reasons: Reasons,
}

impl Joined {
    fn new(shards: usize) -> Self {
        Self {
            audit: Audit { shards: vec![Figures::default(); shards], ..Audit::default() },
            listed: HashMap::new(),
            first: HashMap::new(),
            reasons: Reasons::default(),
        }
    }

    fn join(&mut self, part: Part) {
        let Part { shards, findings, reasons, texts } = part;
        for (shard, figures) in shards {
            self.audit.shards[shard as usize].add(&figures);
        }
        for finding in findings {
            self.list(finding);
        }
        self.reasons.join(reasons);
        for (hash, shard, record) in texts {
            let is_full = self.first.len() >= MOST_REMEMBERED;
            match self.first.entry(hash) {
                Entry::Occupied(first) => {
                    let (kind, first) = (Count::Duplicates, Some(*first.get()));
                    self.audit.shards[shard as usize][kind] += 1;
                    self.list(Finding { kind, shard, record, sample: 0, message: None, tokens: None, first });
                }
                Entry::Vacant(_) if is_full => continue,
                Entry::Vacant(entry) => {
                    entry.insert((shard, record));
                }
            }
            self.audit.compared += 1;
        }
    }

    fn list(&mut self, finding: Finding) {
        let listed = self.listed.entry(finding.kind).or_default();
        if *listed < LISTED {
            *listed += 1;
            self.audit.findings.push(finding);
        }
    }

    fn finish(self) -> Audit {
        Audit { reasons: self.reasons.most_first(), ..self.audit }
    }
}
