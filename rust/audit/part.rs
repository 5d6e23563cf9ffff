//! The work on a chunk of records: they are rendered, masked and encoded, and counted.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use gristmill_chat_template::{Source, Span, Trained};

use super::Finding;
use super::figures::{Count, Figures};
use super::reasons::Reasons;
use crate::encode::Encoder;
use crate::error::Result;
use crate::prepare::chat::Conversations;
use crate::prepare::encoding::SampleEncoder;
use crate::prepare::sidecars::JoinedScratch;
use crate::prepare::{Sample, trained_tokens, trains_words};
use crate::prompts::{Chunk, Found, Left, PromptSpec, Reason, is_stopped, select};

/// The facts about records that follow one another.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// The figures of shards, by their indices.
    pub(super) shards: BTreeMap<u32, Figures>,
    pub(super) findings: Vec<Finding>,
    pub(super) reasons: Reasons,
    /// The hash of the texts of each conversation, with its shard and record.
    pub(super) texts: Vec<(u128, u32, u64)>,
}

/// Audits for one thread.
pub(super) struct Auditor<'a> {
    spec: &'a PromptSpec,
    conversations: &'a Conversations,
    encoder: SampleEncoder,
    scratch: JoinedScratch,
    sample: Sample,
    ids: Vec<u32>,
}

impl<'a> Auditor<'a> {
    pub(super) fn new(
        spec: &'a PromptSpec,
        conversations: &'a Conversations,
        encoder: &'a Encoder,
        long: &Arc<Mutex<()>>,
    ) -> Self {
        Self {
            spec,
            conversations,
            encoder: SampleEncoder::new(encoder, long),
            scratch: JoinedScratch::default(),
            sample: Sample::default(),
            ids: Vec::new(),
        }
    }

    pub(super) fn audit(&mut self, chunk: &Chunk, stop: &AtomicBool) -> Result<Part> {
        let mut part = Part::default();
        for found in chunk.records(self.spec) {
            is_stopped(stop)?;
            match found {
                Found::Left(left) => part.refuse(left),
                Found::Dropped(shard) => part.filter(shard),
                Found::Record(shard, _, record, joined) => {
                    let (position, conversations) = (record.position, self.conversations);
                    let scratch = &mut self.scratch;
                    let mut found = None;
                    let selected = select(self.spec, shard, record, &joined, scratch, |values| {
                        let messages = conversations.messages(values)?;
                        let roles = messages.roles().into_iter().map(Cow::into_owned).collect();
                        found = Some((roles, conversations.train(&messages, values)?));
                        Ok(())
                    });
                    let audited = selected.map_err(|error| error.reason).and_then(|_| {
                        let whole = |(roles, samples): (Vec<_>, _)| self.conversation(&roles, samples);
                        found.map(whole).transpose()
                    });
                    match audited {
                        Ok(Some(conversation)) => part.add(conversation, shard, position.record),
                        Ok(None) => part.filter(shard),
                        Err(reason) => part.refuse(Left::at(shard, position, Reason::Bad(reason))),
                    }
                }
            }
        }
        Ok(part)
    }

    /// The facts about a conversation with these roles and samples. The error is a message about the record.
    fn conversation(&mut self, roles: &[String], samples: Vec<Trained>) -> Result<Conversation, String> {
        let mut found = Conversation::default();
        for role in roles {
            found.figures.role(role).messages += 1;
        }
        if samples.is_empty() {
            found.has(Count::Untrained, 0, None, None);
        }
        let mut hashers = [DefaultHasher::new(), DefaultHasher::new()];
        hashers[1].write_u8(1);
        for (number, sample) in samples.into_iter().enumerate() {
            for hasher in &mut hashers {
                hasher.write(sample.rendering.text().as_bytes());
                hasher.write_usize(number);
            }
            self.sample(&mut found, roles, number, sample)?;
        }
        let [high, low] = hashers.map(|hasher| u128::from(hasher.finish()));
        found.hash = high << 64 | low;
        Ok(found)
    }

    /// Adds a sample to a conversation. The error is a message about the record.
    fn sample(
        &mut self,
        found: &mut Conversation,
        roles: &[String],
        number: usize,
        trained: Trained,
    ) -> Result<(), String> {
        // The message that each part of the text belongs to, by the part's end.
        let owners: Vec<_> = trained.rendering.spans().iter().map(|span| (span.end, owner(span))).collect();
        let lost_reasoning = trained.lost_reasoning.first().map(|lost| lost.message);
        let unwritten = trained.rendering.unwritten();
        let (unwritten, lacks_tools) = (unwritten.messages.first().copied(), unwritten.tools);
        let unstopped = trained.unstopped.clone();
        self.conversations.put(trained, &mut self.sample);
        self.ids.clear();
        let guarded = self.conversations.template.written_tokens();
        self.encoder.encode(&self.sample, guarded, &mut self.ids).map_err(|error| error.to_string())?;
        let Sample { text, trained, .. } = &self.sample;
        let starts = self.encoder.token_starts(text, &self.ids)?;
        let tokens = starts.len();
        let kept = match self.spec.cut {
            Some((first, last)) if first + last < tokens => first..tokens - last,
            _ => tokens..tokens,
        };
        let (mut answers, mut cut_answers) = (BTreeSet::new(), BTreeSet::new());
        let (mut trained_count, mut cut_trained, mut span) = (0, 0, 0);
        for (index, is_trained) in trained_tokens(trained, &starts, text.len()).into_iter().enumerate() {
            while span + 1 < owners.len() && owners[span].0 <= starts[index] {
                span += 1;
            }
            let owner = owners.get(span).and_then(|(_, owner)| *owner);
            let role = owner.and_then(|message| roles.get(message)).map_or("", String::as_str);
            let figures = found.figures.role(role);
            figures.tokens += 1;
            if is_trained {
                figures.trained += 1;
                trained_count += 1;
                answers.extend(owner);
                if kept.contains(&index) {
                    cut_trained += 1;
                    cut_answers.extend(owner);
                }
            }
        }
        let about = |message| (message, Some(tokens));
        let figures = &mut found.figures;
        figures[Count::Samples] += 1;
        *figures.lengths.entry(tokens).or_default() += 1;
        figures[Count::Answers] += answers.len() as u64;
        figures[Count::AnswersWithoutStop] += unstopped.len() as u64;
        figures[Count::CutTokens] += kept.len() as u64;
        figures[Count::CutTrainedTokens] += cut_trained;
        figures[Count::CutAnswers] += cut_answers.len() as u64;
        let only_stops = trained_count > 0 && !trains_words(trained, &starts, text.len());
        for (count, is_so, (message, tokens)) in [
            (Count::Untrained, trained_count == 0, about(None)),
            (Count::OnlyStops, only_stops, about(None)),
            (Count::WithoutStop, !unstopped.is_empty(), about(unstopped.first().copied())),
            (Count::LostReasoning, lost_reasoning.is_some(), about(lost_reasoning)),
            (Count::UnwrittenMessages, unwritten.is_some(), about(unwritten)),
            (Count::UnwrittenTools, lacks_tools, about(None)),
            (Count::Cut, !kept.is_empty(), about(cut_answers.first().copied())),
            (Count::CutUntrained, trained_count > 0 && cut_trained == trained_count, about(None)),
        ] {
            if is_so {
                found.has(count, number, message, tokens);
            }
        }
        Ok(())
    }
}

/// The message that a span is of; of the template's text that during which it was written.
fn owner(span: &Span<'_>) -> Option<usize> {
    match span.source {
        Source::Message { message, .. } => Some(message),
        _ => span.owner,
    }
}

/// The facts about a conversation.
#[derive(Default)]
struct Conversation {
    figures: Figures,
    findings: Vec<(Count, usize, Option<usize>, Option<usize>)>,
    hash: u128,
}

impl Conversation {
    /// It is such a one, as a sample shows: it is counted once.
    fn has(&mut self, count: Count, sample: usize, message: Option<usize>, tokens: Option<usize>) {
        if self.figures[count] == 0 {
            self.figures[count] = 1;
            self.findings.push((count, sample, message, tokens));
        }
    }
}

impl Part {
    fn shard(&mut self, shard: u32) -> &mut Figures {
        let figures = self.shards.entry(shard).or_default();
        figures[Count::Records] += 1;
        figures
    }

    fn filter(&mut self, shard: u32) {
        self.shard(shard)[Count::Filtered] += 1;
    }

    fn refuse(&mut self, left: Left) {
        let figures = self.shard(left.shard);
        figures[Count::Refused] += 1;
        figures[Count::LostShards] += u64::from(matches!(left.reason, Reason::Lost(_)));
        self.reasons.add(left);
    }

    fn add(&mut self, conversation: Conversation, shard: u32, record: u64) {
        let Conversation { figures, findings, hash } = conversation;
        let all = self.shard(shard);
        all.add(&figures);
        all[Count::Conversations] += 1;
        self.findings.extend(findings.into_iter().map(|(kind, sample, message, tokens)| Finding {
            kind,
            shard,
            record,
            sample,
            message,
            tokens,
            first: None,
        }));
        self.texts.push((hash, shard, record));
    }
}
