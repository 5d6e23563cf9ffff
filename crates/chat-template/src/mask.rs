//! The bytes of a rendering that are trained on. The README states the rules.

mod end;
mod finder;
mod messages;
mod parts;
mod remedies;
mod start;

use std::ops::Range;

use aho_corasick::AhoCorasick;

use crate::chat::{Chat, ChatTemplate, Session, with_memory};
use crate::error::{Error, ErrorKind, Result};
use crate::heap::Limits;
use crate::reasoning::{LostReasoning, OnLostReasoning, Trial, lost_error};
use crate::rendering::{Rendering, Source};
use finder::{merged, words_of};
use messages::{Message, check_flags, messages_of};

pub(crate) use finder::{Finder, mask_error};
pub(crate) use messages::{ASSISTANT, CALLS, REASONING, USER, end_of_round};

/// The parts of a conversation that are trained on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TrainOn {
    /// Each assistant message: what the model would have to generate.
    Assistant,
    /// The last assistant message only.
    Last,
    /// The assistant messages behind the last message of the user.
    Final,
    /// The assistant messages from this one on.
    From(usize),
    /// The whole text.
    All,
    /// The messages of these roles. For other roles than the assistant's these are the text of the message, and the
    /// token right behind it.
    Roles(Vec<String>),
    /// The text that the template's generation blocks write.
    Template,
}

/// The samples that a conversation becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SampleUnit {
    /// One.
    #[default]
    Conversation,
    /// One for each assistant message that is trained on: the messages up to and with it, trained on it alone.
    Turn,
    /// One for each message of the user: the messages before the next one of the user, trained on those of the assistant
    /// behind it. Assistant messages before the first one of the user are such a sample, too.
    Round,
}

impl SampleUnit {
    /// How a sample is trained that ends with its last message.
    fn training(self, training: &Training) -> Training {
        let on = match self {
            Self::Conversation => training.on.clone(),
            Self::Turn => TrainOn::Last,
            Self::Round => TrainOn::Final,
        };
        Training { on, ..training.clone() }
    }

    /// The numbers of messages that its samples have.
    fn ends(self, messages: &[Message<'_>]) -> Vec<usize> {
        let is_trained = |message: &Message<'_>| message.role == ASSISTANT && message.trained;
        let ends_round = |at: usize| messages.get(at + 1).is_none_or(|next| next.role == USER);
        let (mut ends, mut trains) = (Vec::new(), false);
        for (at, message) in messages.iter().enumerate() {
            trains |= is_trained(message);
            let ends_here = match self {
                Self::Conversation => at + 1 == messages.len(),
                Self::Turn => is_trained(message),
                Self::Round => ends_round(at) && std::mem::take(&mut trains),
            };
            if ends_here {
                ends.push(at + 1);
            }
        }
        ends
    }
}

/// How to train.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Training {
    /// The parts that are trained on.
    pub on: TrainOn,
    /// Whether reasoning is, where it is a field of its own.
    pub reasoning: bool,
    /// Whether tool calls are.
    pub tool_calls: bool,
    /// Whether the marks of a reasoning are that has no words, with the white space behind them.
    pub empty_reasoning: bool,
    /// The tokens at which the model stops. If empty, the token that ends a message is found in what the template
    /// writes behind it; needed for templates that write none.
    pub stop_tokens: Vec<String>,
    /// A token that is written behind an assistant message at the end of the conversation, if the template writes none
    /// there at which the model stops. It is trained on if the message is.
    pub final_stop: Option<String>,
    /// The key of a message that says whether it is trained on, if that is neither `train` nor `weight`: with the meaning
    /// that it has in other programs.
    pub train_key: Option<String>,
    /// The treatment of a conversation with reasoning that the template does not write.
    pub on_lost_reasoning: OnLostReasoning,
}

impl Training {
    /// Everything that an assistant message says.
    pub fn on(on: TrainOn) -> Self {
        Self {
            on,
            reasoning: true,
            tool_calls: true,
            empty_reasoning: true,
            stop_tokens: Vec::new(),
            final_stop: None,
            train_key: None,
            on_lost_reasoning: OnLostReasoning::Error,
        }
    }
}

/// A rendering, and what of it is trained on.
#[derive(Debug, Clone)]
pub struct Trained {
    /// The text and its origins.
    pub rendering: Rendering,
    /// Ranges of bytes, in order, none empty, none touching the next one.
    pub ranges: Vec<Range<usize>>,
    /// How much ranges of bytes are trained on, where messages say so; else 1.
    pub weights: Vec<(Range<usize>, f32)>,
    /// The reasoning of trained messages that the template does not write, if it is to be listed.
    pub lost_reasoning: Vec<LostReasoning>,
    /// The assistant messages that are trained on and end in no token at which the model stops.
    pub unstopped: Vec<usize>,
    /// How many of the messages count, from the first one on; `usize::MAX`: all.
    pub messages_end: usize,
}

impl From<Rendering> for Trained {
    /// Nothing is trained on.
    fn from(rendering: Rendering) -> Self {
        let (ranges, weights, lost_reasoning, unstopped) = Default::default();
        Self { rendering, ranges, weights, lost_reasoning, unstopped, messages_end: usize::MAX }
    }
}

/// A range that is trained on, with what tells which tokens are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainedSpan {
    /// The range of bytes.
    pub bytes: Range<usize>,
    /// Where the template's white space right before the range begins: a token that begins there and ends in the range is
    /// trained on, such as the first word of an answer to a prompt that ends in a space.
    pub lead: usize,
    /// From the first to the last byte of what messages say in the range; empty if they say nothing there.
    pub words: Range<usize>,
}

impl TrainedSpan {
    /// A range that is all of what a record says, and nothing around it.
    pub fn whole(bytes: Range<usize>) -> Self {
        Self { lead: bytes.start, words: bytes.clone(), bytes }
    }
}

impl Trained {
    /// The ranges with what tells which tokens are trained on.
    pub fn spans(&self) -> Vec<TrainedSpan> {
        let span = |range: &Range<usize>| TrainedSpan {
            bytes: range.clone(),
            lead: self.lead(range.start),
            words: self.words(range),
        };
        self.ranges.iter().map(span).collect()
    }

    /// Where the template's white space begins that ends here.
    fn lead(&self, end: usize) -> usize {
        let (runs, text) = (self.rendering.runs(), self.rendering.text());
        let last = runs.partition_point(|run| (run.end as usize) < end);
        let mut lead = end;
        for at in (0..=last).rev() {
            let start = at.checked_sub(1).map_or(0, |before| runs[before].end as usize);
            if !matches!(self.rendering.source(runs[at].origin.0), Source::Template) {
                break;
            }
            lead = start + text[start..lead].trim_end().len();
            if lead > start {
                break;
            }
        }
        lead
    }

    /// From the first to the last byte of what messages say in a range.
    fn words(&self, range: &Range<usize>) -> Range<usize> {
        let runs = self.rendering.runs();
        let first = runs.partition_point(|run| run.end as usize <= range.start);
        let mut start = first.checked_sub(1).map_or(0, |before| runs[before].end as usize);
        let mut words = range.start..range.start;
        for run in &runs[first..] {
            if start >= range.end {
                break;
            }
            let bytes = start.max(range.start)..range.end.min(run.end as usize);
            start = run.end as usize;
            if words_of(&self.rendering, run).is_some() {
                words.start = if words.is_empty() { bytes.start } else { words.start };
                words.end = bytes.end;
            }
        }
        words
    }

    /// Whether something is trained on, but nothing that a message says: only the tokens that end messages, and other text
    /// of the template.
    pub fn trains_only_stops(&self) -> bool {
        !self.ranges.is_empty() && self.spans().iter().all(|span| span.words.is_empty())
    }
}

impl ChatTemplate {
    /// Renders a conversation, and finds what of it is trained on.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::render`]; and if the ranges cannot be derived, or the template does not write the reasoning of
    /// a trained message. No range at all is no error.
    pub fn render_trained(&self, chat: &Chat<'_>, training: &Training) -> Result<Trained> {
        let trained = with_memory(|bump| self.train(&mut Session::open(self, bump, chat)?, training));
        self.explained(chat, training, trained)
    }

    /// Renders the sample of a conversation that has all its messages.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::render_trained`].
    pub fn render_whole(&self, chat: &Chat<'_>, training: &Training, unit: SampleUnit) -> Result<Trained> {
        self.render_trained(chat, &unit.training(training))
    }

    /// Renders the samples of a conversation, in the order of its messages, and finds what of them is trained on. Samples
    /// that are no whole conversation are those of [`TrainOn::Assistant`]; messages of it that are not trained on make none.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::render_trained`], of any of them; and if their texts together are longer than one may be.
    pub fn render_samples(
        &self,
        chat: &Chat<'_>,
        training: &Training,
        unit: SampleUnit,
    ) -> Result<Vec<Trained>> {
        if unit == SampleUnit::Conversation {
            return Ok(vec![self.render_trained(chat, training)?]);
        }
        let training = unit.training(training);
        with_memory(|bump| {
            let mut session = Session::open(self, bump, chat)?;
            let all = session.messages;
            let messages = messages_of(all, training.train_key.as_deref())?;
            check_flags(&messages, all, &TrainOn::Assistant, training.train_key.as_deref())?;
            let (mut samples, mut bytes) = (Vec::new(), 0);
            for end in unit.ends(&messages) {
                session.messages = &all[..end];
                let trained = self.train(&mut session, &training);
                let sample = self.explained(&Chat { messages_end: end, ..*chat }, &training, trained)?;
                bytes += sample.rendering.text().len();
                if bytes > self.limits().output {
                    return Err(too_long(&self.limits()));
                }
                samples.push(Trained { messages_end: end, ..sample });
            }
            Ok(samples)
        })
    }

    /// A result, whose error names other settings that avoid it.
    fn explained(&self, chat: &Chat<'_>, training: &Training, trained: Result<Trained>) -> Result<Trained> {
        match trained {
            Err(error) if error.kind() == ErrorKind::Mask && self.has_tokens() => {
                Err(self.with_remedies(chat, training, &error))
            }
            Ok(trained)
                if training.on_lost_reasoning == OnLostReasoning::Error
                    && !trained.lost_reasoning.is_empty() =>
            {
                Err(lost_error(&Trial { template: self, chat, training }, &trained.lost_reasoning))
            }
            trained => trained,
        }
    }

    /// Renders the conversation, and finds what of it is trained on, and what is lost.
    pub(crate) fn train(&self, session: &mut Session<'_>, training: &Training) -> Result<Trained> {
        let mut rendering = session.render_all()?;
        let adds_prompt = session.add_generation_prompt;
        let mut finder = Finder::new(self, session, &rendering, training)?;
        if adds_prompt {
            finder.leave_out_prompt()?;
        }
        finder.adds_stop = finder.lacks_final_stop()?;
        let mut ranges = finder.ranges()?;
        let lost_reasoning = finder.lost_reasoning(&ranges)?;
        let last = finder.messages.len() - 1;
        let trains_stop = finder.is_trained(last, &ranges);
        let stop_weight = finder.messages[last].weight;
        let Finder { unstopped, adds_stop, mut weights, .. } = finder;
        if let Some(stop) = training.final_stop.as_ref().filter(|_| adds_stop) {
            let start = rendering.text().len();
            rendering.append(stop, last);
            if trains_stop {
                let stop = start..rendering.text().len();
                weights.extend(stop_weight.map(|weight| (stop.clone(), weight)));
                ranges.push(stop);
                ranges = merged(ranges);
            }
        }
        Ok(Trained { rendering, ranges, weights, lost_reasoning, unstopped, messages_end: usize::MAX })
    }
}

#[cold]
fn too_long(limits: &Limits) -> Error {
    let message = format!(
        "expected samples with at most {} bytes of text together, found more, as each has all messages before it: divide the \
         conversation, or leave it out",
        limits.output
    );
    Error::new(ErrorKind::Limit, message)
}

pub(crate) fn search(tokens: &[String]) -> Result<AhoCorasick> {
    let tokens = tokens.iter().filter(|token| !token.is_empty());
    let builder = AhoCorasick::builder().match_kind(aho_corasick::MatchKind::LeftmostLongest).build(tokens);
    builder.map_err(|error| Error::new(ErrorKind::Input, format!("the special tokens: {error}")))
}
