//! The search for what is trained on: where each message is in the text, and what of it the model would write.

use std::ops::Range;

use aho_corasick::AhoCorasick;

use super::messages::{ASSISTANT, CALLS, Message, REASONING, check_flags, is_wanted, messages_of};
use super::parts::Division;
use super::start::Start;
use super::{TrainOn, Training, search};
use crate::chat::{ChatTemplate, Rendered, Session};
use crate::error::{Error, ErrorKind, Result};
use crate::reasoning::without_empty_reasoning;
use crate::rendering::{Rendering, Source};
use crate::text::Run;
use crate::value::Val;

pub(crate) struct Finder<'a, 'r> {
    pub(super) template: &'r ChatTemplate,
    pub session: &'r mut Session<'a>,
    pub messages: Vec<Message<'a>>,
    pub(super) traces: Vec<Trace>,
    pub rendering: &'r Rendering,
    pub training: &'r Training,
    pub(super) stops: Option<AhoCorasick>,
    /// Whether the final stop token follows the text.
    pub(super) adds_stop: bool,
    /// How much ranges of bytes are trained on, where messages say so.
    pub(super) weights: Vec<(Range<usize>, f32)>,
    /// The messages whose ranges were derived, in order.
    pub(super) derived: Vec<usize>,
    /// Messages of these that end in no stop token.
    pub(super) unstopped: Vec<usize>,
    /// The divisions that were found in the template's text between parts of messages.
    pub(super) divisions: Vec<Division>,
}

/// The traces of a message in the text.
#[derive(Debug, Clone, Default)]
pub(super) struct Trace {
    /// The text that was written while a loop was at the message.
    pub(super) owned: Option<Range<usize>>,
    /// It was written in several places.
    pub(super) split: bool,
    /// The runs that are the message's own words: their bytes and their part.
    pub(super) own: Vec<(Range<usize>, Part)>,
}

/// Where a message is in the text.
#[derive(Debug, Clone)]
pub(super) struct Region {
    /// All that was written while the message was rendered.
    pub(super) bytes: Range<usize>,
    /// The runs that are the message's own words: their bytes and their part.
    pub(super) own: Vec<(Range<usize>, Part)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Content,
    Reasoning,
    ToolCalls,
}

/// The traces of each message in the text.
pub(super) fn traces(rendering: &Rendering, messages: usize) -> Vec<Trace> {
    let mut traces = vec![Trace::default(); messages];
    let mut start = 0;
    for run in rendering.runs() {
        let range = start..run.end as usize;
        start = range.end;
        if let Some(trace) = (run.owner as usize).checked_sub(1).and_then(|owner| traces.get_mut(owner)) {
            match &mut trace.owned {
                Some(owned) if owned.end == range.start => owned.end = range.end,
                Some(_) => trace.split = true,
                None => trace.owned = Some(range.clone()),
            }
        }
        if let Some((message, part)) = words_of(rendering, run)
            && let Some(trace) = traces.get_mut(message)
        {
            trace.own.push((range, part));
        }
    }
    traces
}

/// The message whose words a run is, and which part of it; roles and names, which stand in headers, are no words.
pub(super) fn words_of(rendering: &Rendering, run: &Run) -> Option<(usize, Part)> {
    match rendering.source(run.origin.0) {
        Source::Message { part: "role" | "name", .. } => None,
        Source::Message { message, part } if REASONING.contains(&part) => Some((message, Part::Reasoning)),
        Source::Message { message, part } if CALLS.contains(&part) => Some((message, Part::ToolCalls)),
        Source::Message { message, .. } => Some((message, Part::Content)),
        _ => None,
    }
}

pub(crate) fn mask_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Mask, message)
}

impl<'a, 'r> Finder<'a, 'r> {
    pub(super) fn new(
        template: &'r ChatTemplate,
        session: &'r mut Session<'a>,
        rendering: &'r Rendering,
        training: &'r Training,
    ) -> Result<Self> {
        let messages = messages_of(session.messages, training.train_key.as_deref())?;
        let stops = match &training.stop_tokens[..] {
            [] => None,
            tokens => Some(search(&[tokens, training.final_stop.as_slice()].concat())?),
        };
        Ok(Self {
            template,
            traces: traces(rendering, messages.len()),
            session,
            messages,
            rendering,
            training,
            stops,
            adds_stop: false,
            weights: Vec::new(),
            derived: Vec::new(),
            unstopped: Vec::new(),
            divisions: Vec::new(),
        })
    }

    pub(super) fn text(&self) -> &'r str {
        self.rendering.text()
    }

    /// Whether any of a message's text is in the ranges that are trained on.
    pub(crate) fn is_trained(&self, message: usize, ranges: &[Range<usize>]) -> bool {
        if !matches!(self.training.on, TrainOn::All | TrainOn::Template) {
            return self.derived.contains(&message);
        }
        let Message { role, trained, .. } = self.messages[message];
        let Trace { owned, own, .. } = &self.traces[message];
        let is_in = |bytes: &Range<usize>| {
            ranges.iter().any(|range| range.start < bytes.end && bytes.start < range.end)
        };
        let owned = owned.as_ref().filter(|_| own.is_empty());
        trained && role == ASSISTANT && own.iter().map(|(bytes, _)| bytes).chain(owned).any(is_in)
    }

    pub(super) fn ranges(&mut self) -> Result<Vec<Range<usize>>> {
        let key = self.training.train_key.as_deref();
        check_flags(&self.messages, self.session.messages, &self.training.on, key)?;
        let ranges = match &self.training.on {
            TrainOn::All => std::iter::once(0..self.text().len()).collect(),
            TrainOn::Template => self.generation_ranges()?,
            _ => self.message_ranges()?,
        };
        let ranges = match self.training.on {
            TrainOn::All | TrainOn::Template => {
                self.weigh_regions()?;
                self.without_untrained(ranges)?
            }
            _ => ranges,
        };
        let ranges = merged(ranges);
        Ok(if self.training.empty_reasoning {
            ranges
        } else {
            without_empty_reasoning(ranges, self.rendering)
        })
    }

    pub(super) fn generation_ranges(&self) -> Result<Vec<Range<usize>>> {
        if self.rendering.misplaced_generation {
            return Err(mask_error(
                "a generation block is inside of a macro or another block that collects its text, where transformers \
                 gets its place wrong",
            ));
        }
        Ok(self.rendering.generations.iter().map(|(start, end)| *start as usize..*end as usize).collect())
    }

    pub(super) fn message_ranges(&mut self) -> Result<Vec<Range<usize>>> {
        let mut ranges = Vec::new();
        for message in 0..self.messages.len() {
            if self.messages[message].trained && is_wanted(&self.training.on, &self.messages, message) {
                let before = ranges.len();
                self.add_message(message, &mut ranges)?;
                self.weigh(message, &ranges[before..]);
            }
        }
        Ok(ranges)
    }

    /// Notes the weight of a message that some ranges are of.
    fn weigh(&mut self, message: usize, ranges: &[Range<usize>]) {
        if let Some(weight) = self.messages[message].weight {
            self.weights.extend(ranges.iter().map(|range| (range.clone(), weight)));
        }
    }

    /// Notes the weights of messages wherever the text is trained on that is of them.
    fn weigh_regions(&mut self) -> Result<()> {
        for message in 0..self.messages.len() {
            if self.messages[message].weight.is_some()
                && let Some(region) = self.region(message)?
            {
                self.weigh(message, &[region.bytes]);
            }
        }
        Ok(())
    }

    /// Takes messages that are not to be trained on out of ranges.
    pub(super) fn without_untrained(&mut self, ranges: Vec<Range<usize>>) -> Result<Vec<Range<usize>>> {
        let mut ranges = ranges;
        for message in 0..self.messages.len() {
            if self.messages[message].trained {
                continue;
            }
            let Some(region) = self.region(message)? else { continue };
            for cut in self.without_trained(region.bytes) {
                ranges = ranges
                    .into_iter()
                    .flat_map(|range| {
                        [range.start..range.end.min(cut.start), range.start.max(cut.end)..range.end]
                    })
                    .filter(|range| range.start < range.end)
                    .collect();
            }
        }
        Ok(ranges)
    }

    /// A range without what messages in it say that are trained on.
    pub(super) fn without_trained(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let (mut left, mut start) = (Vec::new(), 0);
        for run in self.rendering.runs() {
            let bytes = range.start.max(start)..range.end.min(run.end as usize);
            start = run.end as usize;
            if words_of(self.rendering, run).is_none_or(|(message, _)| !self.messages[message].trained) {
                left.push(bytes);
            }
        }
        merged(left)
    }

    pub(super) fn add_message(&mut self, message: usize, ranges: &mut Vec<Range<usize>>) -> Result<()> {
        let Some(region) = self.region(message)? else { return Ok(()) };
        let describe =
            |error: Error| Error::new(error.kind(), format!("messages[{message}]: {}", error.message()));
        if self.messages[message].role == ASSISTANT {
            self.check_written(message, &region)?;
            let Start { at, parted } = self.start(message, &region).map_err(describe)?;
            let end = self.end_token(message, at, &region).map_err(describe)?;
            self.derived.push(message);
            if end.is_empty() && !self.is_stopped_last(message) {
                self.unstopped.push(message);
            }
            for (begin, end) in self.turns(at, end, &region).map_err(describe)? {
                self.check_words(message, begin..end.end).map_err(describe)?;
                self.check_header(begin, &region).map_err(describe)?;
                let start = match &parted {
                    Some(prompt) => self.opening(message, begin, &end, prompt).map_err(describe)?,
                    None => begin,
                };
                self.add_parts(message, start, end, &region, ranges).map_err(describe)?;
            }
        } else if let Some((first, _)) = region.own.first() {
            self.derived.push(message);
            self.add_parts(message, first.start, self.token_behind(&region), &region, ranges)
                .map_err(describe)?;
        }
        Ok(())
    }

    /// Some templates write one message as several turns: a tool call, and an empty answer. Each of them ends in the
    /// same token, and begins in the same way. Gives the start and the end token of each.
    pub(super) fn turns(
        &self,
        start: usize,
        end: Range<usize>,
        region: &Region,
    ) -> Result<Vec<(usize, Range<usize>)>> {
        let token = &self.text()[end.clone()];
        if token.is_empty() {
            return Ok(std::iter::once((start, end)).collect());
        }
        let prompt = &self.text()[region.bytes.start..start.max(region.bytes.start)];
        let mut turns = Vec::new();
        let mut begin = start;
        for (at, _) in self.text()[start..end.start].match_indices(token) {
            let found = start + at..start + at + token.len();
            if region.own.iter().any(|(own, _)| own.start < found.end && found.start < own.end) {
                continue; // The message says it.
            }
            if prompt.is_empty() || !self.text()[found.end..].starts_with(prompt) {
                return Err(mask_error(format!(
                    "the token that ends it, {token:?}, is in the middle of it as well"
                )));
            }
            turns.push((begin, found.clone()));
            begin = found.end + prompt.len();
        }
        turns.push((begin, end));
        if turns.iter().any(|(start, end)| *start < end.start) {
            turns.retain(|(start, end)| *start < end.start); // An empty turn beside a full one: nobody generates it.
        }
        Ok(turns)
    }

    /// Checks that the template, which writes the message, writes what it says: else an empty answer would be trained, or one
    /// that ends where its calls should be.
    pub(super) fn check_written(&mut self, message: usize, region: &Region) -> Result<()> {
        let Message { speaks, calls, .. } = self.messages[message];
        let has_calls = || region.own.iter().any(|(_, part)| *part == Part::ToolCalls);
        let found = if region.own.is_empty() && speaks {
            "nothing that it says"
        } else if calls && !has_calls() && self.is_same_without_calls(message)? {
            "none of its tool calls"
        } else {
            return Ok(());
        };
        Err(mask_error(format!(
            "messages[{message}]: expected its words in the text, found that the template writes {found}: give a template that \
             takes such messages, or write its content as a string"
        )))
    }

    /// Whether the conversation is the same without the tool calls of a message.
    pub(super) fn is_same_without_calls(&mut self, message: usize) -> Result<bool> {
        let messages = self.session.without(message, &CALLS)?;
        let same = self.render_messages(messages, self.session.add_generation_prompt)?;
        Ok(same.is_some_and(|same| same.text == self.text()))
    }

    /// Checks that no role, nor a name, is in front of the words that are trained on.
    pub(super) fn check_header(&self, start: usize, region: &Region) -> Result<()> {
        let words =
            region.own.iter().find(|(own, _)| own.end > start).map_or(region.bytes.end, |(own, _)| own.start);
        let mut begin = 0;
        for run in self.rendering.runs() {
            let bytes = begin..run.end as usize;
            begin = bytes.end;
            let source = self.rendering.source(run.origin.0);
            let is_role = matches!(source, Source::Message { part: "role" | "name", .. });
            if is_role && start <= bytes.start && bytes.end <= words {
                return Err(mask_error(format!(
                    "it begins with {:?}, and the template writes no such generation prompt: the model would be trained to \
                     write the header of its message; give a template whose add_generation_prompt writes it",
                    &self.text()[start..words]
                )));
            }
        }
        Ok(())
    }

    /// Checks that no other message has words in a range that is trained on.
    pub(super) fn check_words(&self, message: usize, range: Range<usize>) -> Result<()> {
        match self.other_words(message, range) {
            None => Ok(()),
            Some((other, _)) => Err(mask_error(format!(
                "the template writes messages[{other}] inside of it: name the tokens at which the model stops \
                 (stop_tokens)"
            ))),
        }
    }

    /// The first other message that has words in a range, and where they begin.
    pub(super) fn other_words(&self, message: usize, range: Range<usize>) -> Option<(usize, usize)> {
        let mut start = 0;
        for run in self.rendering.runs() {
            let bytes = start..run.end as usize;
            start = bytes.end;
            if bytes.end > range.start
                && bytes.start < range.end
                && let Some((other, _)) = words_of(self.rendering, run)
                && other != message
            {
                return Some((other, bytes.start));
            }
        }
        None
    }

    /// Where a message is in the text; `None`: the template left it out.
    pub(super) fn region(&mut self, message: usize) -> Result<Option<Region>> {
        let Trace { owned, split, own } = self.traces[message].clone();
        if split {
            return Err(mask_error(format!(
                "messages[{message}]: the template writes it in several places, and each may be what the model would generate"
            )));
        }
        let bytes = match (owned, own.first(), own.last()) {
            (Some(owned), ..) => owned,
            (None, Some((first, _)), Some((last, _))) => {
                // No loop was at the message. The template's text behind it ends where a conversation up to it ends.
                let whole =
                    self.render(message + 1, false)?.filter(|whole| self.text().starts_with(&whole.text));
                first.start..whole.map_or(0, |whole| whole.text.len()).max(last.end)
            }
            _ => return Ok(None),
        };
        let own = own.into_iter().filter(|(range, _)| bytes.contains(&range.start)).collect();
        Ok(Some(Region { bytes, own }))
    }

    /// The first messages by themselves; with a generation prompt, what the model would be given to generate the next
    /// one. `None`: the template refuses them.
    pub(super) fn render(
        &mut self,
        messages: usize,
        add_generation_prompt: bool,
    ) -> Result<Option<Rendered>> {
        let messages = &self.session.messages[..messages];
        self.render_messages(messages, add_generation_prompt)
    }

    /// Any messages. `None`: the template refuses them.
    pub(super) fn render_messages(
        &mut self,
        messages: &'a [Val<'a>],
        add_generation_prompt: bool,
    ) -> Result<Option<Rendered>> {
        match self.session.render(messages, add_generation_prompt) {
            Ok(rendered) => Ok(Some(rendered)),
            Err(error) if error.kind() == ErrorKind::Limit => Err(error),
            Err(_) => Ok(None),
        }
    }
}

pub(super) fn token_ranges(tokens: &AhoCorasick, text: &str) -> Vec<Range<usize>> {
    tokens.find_iter(text).map(|token| token.start()..token.end()).collect()
}

/// Joins ranges that touch.
pub(super) fn merged(ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges.into_iter().filter(|range| range.start < range.end) {
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
