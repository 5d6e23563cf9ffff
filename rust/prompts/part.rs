//! The work on a chunk of records: they are rendered, encoded, and measured.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::input::{Chunk, Found};
use super::{Prompt, PromptSpec, is_stopped};
use crate::encode::Encoder;
use crate::error::{Result, ShardError};
use crate::format::{self, Position, RawRecord, Values};
use crate::prepare::encoding::SampleEncoder;
use crate::prepare::sidecars::{Joined, JoinedScratch};
use crate::prepare::{Sample, trained_tokens};

/// The prompts of some records that follow one another, and the records that are left out.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// How many records there were.
    pub(super) read: u64,
    /// How many the filter left out.
    pub(super) filtered: u64,
    /// The ids of all prompts of all records that are kept.
    pub(super) ids: Vec<u32>,
    /// For each id whether it is trained on, if any prompt has a mask.
    pub(super) trained: Vec<bool>,
    /// The number of ids of each prompt.
    pub(super) id_counts: Vec<usize>,
    /// The rendered texts, one after another.
    pub(super) texts: String,
    /// The bytes of each.
    pub(super) text_bytes: Vec<usize>,
    /// The records as JSON, one after another.
    pub(super) records: Vec<u8>,
    /// The bytes of each.
    pub(super) record_bytes: Vec<usize>,
    /// Shard, number in the shard, and index among all records, of each record that is kept.
    pub(super) places: Vec<(u32, u64, u64)>,
    /// The records that are left out, but for those that the filter leaves out.
    pub(super) left: Vec<Left>,
    /// The keys of the records that are kept, as JSON writes them, where they occur for the first time.
    pub(super) keys: Vec<String>,
}

/// A record that is left out.
#[derive(Debug, Clone)]
pub struct Left {
    /// The index of the shard.
    pub shard: u32,
    /// Its number. None if the shard could not be opened.
    pub record: Option<u64>,
    /// The byte at which it starts, where the format has one.
    pub byte: Option<u64>,
    /// Why.
    pub reason: Reason,
}

/// Why a record is left out.
#[derive(Debug, Clone)]
pub enum Reason {
    /// Its longest prompt has so many tokens.
    Overlong(usize),
    /// It cannot be used.
    Bad(String),
    /// From it on the shard cannot be read.
    Lost(String),
}

/// Prepares and encodes for one thread.
pub(super) struct Preparer<'a> {
    spec: &'a PromptSpec,
    encoder: SampleEncoder,
    scratch: JoinedScratch,
    sample: Sample,
    /// The keys that this thread has seen.
    keys: HashSet<String>,
}

impl Left {
    /// A record that can be read, and not used.
    pub(crate) fn at(shard: u32, position: Position, reason: Reason) -> Self {
        Self { shard, record: Some(position.record), byte: position.shown_byte(), reason }
    }
}

/// Calls `take` with the values of a record, if it is kept; returns whether it is.
pub(crate) fn select(
    spec: &PromptSpec,
    shard: u32,
    record: RawRecord<'_>,
    joined: &Joined<'_>,
    scratch: &mut JoinedScratch,
    take: impl FnOnce(&Values<'_>) -> Result<(), String>,
) -> Result<bool, ShardError> {
    let PromptSpec { shards, read, filter_paths, sidecars, .. } = spec;
    let name = shards[shard as usize].name();
    if sidecars.kinds.is_empty() {
        read.select(name, record, &mut scratch.own, take)
    } else {
        joined.select(&read.projection, *filter_paths, name, record, scratch, take)
    }
}

/// All prompts of a record.
#[derive(Debug, Default)]
struct Prompts {
    /// How many tokens the longest has.
    longest: usize,
    /// Why the record is bad, if one of them trains nothing.
    untrained: Option<String>,
    /// Whether such a record is left out.
    is_left_out: bool,
}

/// The result of one record.
enum Outcome {
    Kept,
    Filtered,
    Left(Reason),
}

impl<'a> Preparer<'a> {
    pub(super) fn new(spec: &'a PromptSpec, encoder: &'a Encoder, long: &Arc<Mutex<()>>) -> Self {
        Self {
            spec,
            encoder: SampleEncoder::new(encoder, long),
            scratch: JoinedScratch::default(),
            sample: Sample::default(),
            keys: HashSet::new(),
        }
    }

    /// Prepares and encodes the records of a chunk. A bad record that ends the reading is the last one of the part.
    pub(super) fn prepare(&mut self, chunk: &Chunk, stop: &AtomicBool) -> Result<Part> {
        let mut part = Part::default();
        for found in chunk.records(self.spec) {
            is_stopped(stop)?;
            part.read += 1;
            let left = match found {
                Found::Left(left) => left,
                Found::Dropped(_) => {
                    part.filtered += 1;
                    continue;
                }
                Found::Record(shard, index, record, joined) => {
                    let position = record.position;
                    match self.record((shard, index), record, joined, &mut part)? {
                        Outcome::Kept => continue,
                        Outcome::Filtered => {
                            part.filtered += 1;
                            continue;
                        }
                        Outcome::Left(reason) => Left::at(shard, position, reason),
                    }
                }
            };
            let ends = self.spec.raises && !matches!(left.reason, Reason::Overlong(_));
            part.left.push(left);
            if ends {
                break;
            }
        }
        Ok(part)
    }

    /// Appends a record to the part, unless it is left out.
    fn record(
        &mut self,
        (shard, index): (u32, u64),
        record: RawRecord<'_>,
        joined: Joined<'_>,
        part: &mut Part,
    ) -> Result<Outcome> {
        let (ids, texts) = (part.ids.len(), part.texts.len());
        let (id_counts, text_counts) = (part.id_counts.len(), part.text_bytes.len());
        let trained = part.trained.len();
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut prompts = Ok(Prompts::default());
        let spec = self.spec;
        let mut take = |values: &Values<'_>| {
            prompts = self.prompts(values, part)?;
            Ok(())
        };
        let selected = select(spec, shard, record, &joined, &mut scratch, &mut take);
        self.scratch = scratch;
        let outcome = match (selected, prompts) {
            (Err(error), _) => Outcome::Left(Reason::Bad(error.reason)),
            (Ok(true), Err(error)) => {
                let (number, byte) = (Some(record.position.record), record.position.shown_byte());
                let shard = Arc::clone(self.spec.shards[shard as usize].name());
                return Err(ShardError { shard, record: number, byte, reason: error.to_string() }.into());
            }
            (Ok(true), Ok(Prompts { longest, .. }))
                if self.spec.longest.is_some_and(|most| longest > most) =>
            {
                Outcome::Left(Reason::Overlong(longest))
            }
            (Ok(false), _) | (Ok(true), Ok(Prompts { is_left_out: true, .. })) => Outcome::Filtered,
            (Ok(true), Ok(Prompts { untrained: Some(reason), .. })) => Outcome::Left(Reason::Bad(reason)),
            (Ok(true), Ok(_)) => Outcome::Kept,
        };
        if matches!(outcome, Outcome::Kept) {
            self.keep((shard, index), record, part);
        } else {
            part.ids.truncate(ids);
            part.trained.truncate(trained);
            part.id_counts.truncate(id_counts);
            part.texts.truncate(texts);
            part.text_bytes.truncate(text_counts);
        }
        Ok(outcome)
    }

    /// Appends all prompts of a record. The outer error is a message about the record, the inner one is that of the tokenizer.
    fn prompts(&mut self, values: &Values<'_>, part: &mut Part) -> Result<Result<Prompts>, String> {
        let PromptSpec { prompts, bos, eos, keeps_texts, .. } = self.spec;
        let has_masks = prompts.iter().any(Prompt::has_mask);
        let mut found = Prompts::default();
        for prompt in prompts {
            self.sample.clear();
            match prompt {
                Prompt::Chat(chat) => {
                    let messages = chat.messages(values)?;
                    let rendered = chat.render_one(&messages, values, &mut self.sample);
                    if rendered.is_err() && prompt.has_mask() && !self.spec.needs_trained {
                        chat.render_untrained(&messages, values, &mut self.sample)?;
                    } else {
                        rendered?;
                    }
                }
                Prompt::Text(field) => self.sample.text.push_str(&field.text(values)?),
                Prompt::Completion(completions) => completions.join(values, &mut self.sample)?,
            }
            let before = part.ids.len();
            part.ids.extend(bos);
            if let Err(error) = self.encoder.encode(&self.sample, prompt.guarded_tokens(), &mut part.ids) {
                return Ok(Err(error));
            }
            part.ids.extend(eos);
            let tokens = part.ids.len() - before;
            found.longest = found.longest.max(tokens);
            part.id_counts.push(tokens);
            if prompt.has_mask() {
                self.mask(prompt, before, part)?;
                if self.spec.needs_trained && !self.trains(&part.trained[before..]) {
                    found.is_left_out |= prompt.drops_untrained();
                    found.untrained.get_or_insert_with(|| self.untrained(tokens));
                }
            } else if has_masks {
                part.trained.resize(part.ids.len(), false);
            }
            if *keeps_texts {
                part.texts.push_str(&self.sample.text);
                part.text_bytes.push(self.sample.text.len());
            }
        }
        Ok(Ok(found))
    }

    /// Appends which of the ids of a prompt, which begin at `before`, are trained on. The error is a message about the record.
    fn mask(&self, prompt: &Prompt, before: usize, part: &mut Part) -> Result<(), String> {
        let PromptSpec { bos, eos, .. } = self.spec;
        let text_ids = before + usize::from(bos.is_some())..part.ids.len() - usize::from(eos.is_some());
        let Sample { text, trained, .. } = &self.sample;
        let starts = self.encoder.token_starts(text, &part.ids[text_ids])?;
        part.trained.extend(bos.map(|_| false));
        part.trained.extend(trained_tokens(trained, &starts, text.len()));
        part.trained.extend(eos.map(|_| matches!(prompt, Prompt::Completion(_))));
        Ok(())
    }

    /// Whether what is kept of a prompt has a trained token.
    fn trains(&self, mask: &[bool]) -> bool {
        match self.spec.cut {
            Some((first, last)) if mask.len() > first + last => {
                mask[..first].contains(&true) || mask[mask.len() - last..].contains(&true)
            }
            _ => mask.contains(&true),
        }
    }

    /// A message about a record of which a prompt with so many tokens has none that is trained on.
    fn untrained(&self, tokens: usize) -> String {
        let cut = self.spec.cut.map(|(first, last)| first + last).filter(|kept| tokens > *kept);
        let left = cut.map_or(String::new(), |kept| format!("{kept} that overlong= leaves of its "));
        format!(
            "expected a token to train on, found none among the {left}{tokens} tokens; set on_untrained=\"drop\" to leave \
             out such records, or add_generation_prompt=True for a prompt without an answer"
        )
    }

    fn keep(&mut self, (shard, index): (u32, u64), record: RawRecord<'_>, part: &mut Part) {
        part.places.push((shard, record.position.record, index));
        if !self.spec.keeps_records {
            return;
        }
        let before = part.records.len();
        format::write_exact(record, &mut part.records, |key| {
            if !self.keys.contains(key) {
                self.keys.insert(key.to_owned());
                part.keys.push(key.to_owned());
            }
        });
        part.record_bytes.push(part.records.len() - before);
    }
}
