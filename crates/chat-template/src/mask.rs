//! The bytes of a rendering that are trained on. The README states the rules.

mod parts;
mod remedies;

use std::ops::Range;

use aho_corasick::AhoCorasick;

use crate::chat::{Chat, ChatTemplate, Rendered, Session, with_memory};
use crate::error::{Error, ErrorKind, Result};
use crate::reasoning::{LostReasoning, OnLostReasoning, Trial, field, lost_error, without_empty_reasoning};
use crate::rendering::{Rendering, Source};
use crate::text::Run;
use crate::value::Val;
use parts::Division;

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
    /// The reasoning of trained messages that the template does not write, if it is to be listed.
    pub lost_reasoning: Vec<LostReasoning>,
    /// The assistant messages that are trained on and end in no token at which the model stops.
    pub unstopped: Vec<usize>,
}

impl From<Rendering> for Trained {
    /// Nothing is trained on.
    fn from(rendering: Rendering) -> Self {
        Self { rendering, ranges: Vec::new(), lost_reasoning: Vec::new(), unstopped: Vec::new() }
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

/// The facts about a message that masks need.
pub(crate) struct Message<'a> {
    role: &'a str,
    trained: bool,
    /// It has content that is more than white space, calls, a refusal or a sound.
    speaks: bool,
    /// It has tool calls.
    calls: bool,
}

impl<'a> Message<'a> {
    fn of((index, value): (usize, &Val<'a>), train_key: Option<&str>) -> Result<Self> {
        let Val::Dict(dict) = value else {
            return Ok(Self { role: "", trained: true, speaks: false, calls: false });
        };
        let field =
            |name: &str| dict.entries.iter().find(|(key, _)| key.is_text(name)).map(|(_, value)| *value);
        let mut trained = true;
        let own: &[&str] = if let Some(key) = &train_key { std::slice::from_ref(key) } else { &KEYS };
        for name in own {
            let meaning = FLAGS.iter().find(|(flag, _)| flag == name).is_none_or(|(_, meaning)| *meaning);
            let says = field(name).filter(|value| !matches!(value, Val::None(_)));
            let says = says.map_or(Some(true), |value| is_on(value).map(|is_on| is_on == meaning));
            trained &= says.ok_or_else(|| {
                Error::new(
                    ErrorKind::Input,
                    format!(
                        "messages[{index}]: expected true, false, 1, 0 or null under its key {name:?}: a token is trained on \
                         or not; correct the key, or leave it out"
                    ),
                )
            })?;
        }
        let says = |names: &[&str]| names.iter().any(|name| field(name).is_some_and(is_said));
        let calls = says(&CALLS);
        Ok(Self {
            role: field("role").and_then(|role| role.as_str()).map_or("", |role| role.text),
            trained,
            speaks: calls || says(&["content", "refusal", "audio"]),
            calls,
        })
    }
}

/// Whether a flag is on; none if it says neither.
fn is_on(flag: Val<'_>) -> Option<bool> {
    match flag {
        Val::Bool(true, _) | Val::Int(1, _) | Val::Float(1.0, _) => Some(true),
        Val::Bool(false, _) | Val::Int(0, _) | Val::Float(0.0, _) => Some(false),
        _ => None,
    }
}

/// The keys by which messages say whether they are trained on.
const KEYS: [&str; 2] = ["train", "weight"];

/// All keys by which programs say so, and which value says so.
const FLAGS: [(&str, bool); 6] = [
    ("train", true),
    ("weight", true),
    ("loss", true),
    ("loss_mask", true),
    ("trainable", true),
    ("masked", false),
];

/// Checks that the flags of other programs in messages, which are not followed, say what is done. Where it was chosen which
/// messages are trained on, only the opposite of what is done for one counts.
fn check_flags(messages: &[Message<'_>], values: &[Val<'_>], on: &TrainOn, own: Option<&str>) -> Result<()> {
    let is_own = |name: &str| own.map_or_else(|| KEYS.contains(&name), |key| key == name);
    for (index, message) in messages.iter().enumerate() {
        let Val::Dict(dict) = values[index] else { continue };
        let is_trained = message.trained && is_wanted(on, messages, index);
        for (key, value) in dict.entries {
            let flag = FLAGS.iter().find(|(name, _)| key.is_text(name) && !is_own(name));
            let Some((name, meaning)) = flag else { continue };
            let says = is_on(*value).map(|is_on| is_on == *meaning);
            let is_followed = says == Some(is_trained) || says == Some(true) && *on != TrainOn::Assistant;
            if is_followed || matches!(value, Val::None(_)) {
                continue;
            }
            return Err(Error::new(
                ErrorKind::Input,
                format!(
                    "messages[{index}]: expected whether it is trained on under its key {:?}, found {name:?}, which is \
                     not followed, and {}; name it with train_key, or leave it out",
                    own.unwrap_or(KEYS[0]),
                    if is_trained { "the message is trained on" } else { "the message is not" }
                ),
            ));
        }
    }
    Ok(())
}

/// Whether what is trained on includes a message, if it does not say otherwise itself.
fn is_wanted(on: &TrainOn, messages: &[Message<'_>], index: usize) -> bool {
    let role = messages[index].role;
    let has_behind = |wanted: &str| messages[index + 1..].iter().any(|message| message.role == wanted);
    match on {
        TrainOn::All => true,
        TrainOn::Assistant | TrainOn::Template => role == ASSISTANT,
        TrainOn::Last => role == ASSISTANT && !has_behind(ASSISTANT),
        TrainOn::Final => role == ASSISTANT && !has_behind(USER),
        TrainOn::From(first) => role == ASSISTANT && index >= *first,
        TrainOn::Roles(roles) => roles.iter().any(|other| other == role),
    }
}

/// How many messages there are up to the next one of the user behind one.
pub(crate) fn end_of_round(values: &[Val<'_>], message: usize) -> usize {
    let is_user = |value: &Val<'_>| matches!(value, Val::Dict(dict) if field(dict, "role").is_some_and(|role| role.is_text(USER)));
    let behind = values[message + 1..].iter().position(is_user);
    behind.map_or(values.len(), |at| message + 1 + at)
}

/// The facts about all messages.
fn messages_of<'a>(values: &[Val<'a>], train_key: Option<&str>) -> Result<Vec<Message<'a>>> {
    values.iter().enumerate().map(|one| Message::of(one, train_key)).collect()
}

/// Whether a field says anything.
fn is_said(value: Val<'_>) -> bool {
    match value {
        Val::Str(text) => !text.text.trim().is_empty(),
        Val::List(list) => !list.items.is_empty(),
        Val::Dict(dict) => !dict.entries.is_empty(),
        _ => false,
    }
}

/// The keys that messages have calls under; the second one is the older form.
pub(crate) const CALLS: [&str; 2] = ["tool_calls", "function_call"];

/// The keys that messages have reasoning under.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The role whose messages the model generates.
const ASSISTANT: &str = "assistant";
/// The role of questions.
const USER: &str = "user";

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

    /// Renders the samples of a conversation, in the order of its messages, and finds what of them is trained on. Samples
    /// that are no whole conversation are those of [`TrainOn::Assistant`]; messages of it that are not trained on make none.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::render_trained`], of any of them.
    pub fn render_samples(
        &self,
        chat: &Chat<'_>,
        training: &Training,
        unit: SampleUnit,
    ) -> Result<Vec<Trained>> {
        let on = match unit {
            SampleUnit::Conversation => return Ok(vec![self.render_trained(chat, training)?]),
            SampleUnit::Turn => TrainOn::Last,
            SampleUnit::Round => TrainOn::Final,
        };
        let training = Training { on, ..training.clone() };
        with_memory(|bump| {
            let mut session = Session::open(self, bump, chat)?;
            let all = session.messages;
            let messages = messages_of(all, training.train_key.as_deref())?;
            check_flags(&messages, all, &TrainOn::Assistant, training.train_key.as_deref())?;
            let sample = |end: usize| {
                session.messages = &all[..end];
                let trained = self.train(&mut session, &training);
                self.explained(&Chat { messages_end: end, ..*chat }, &training, trained)
            };
            unit.ends(&messages).into_iter().map(sample).collect()
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

    /// Renders the conversation of a session, and finds what of it is trained on, and what is lost.
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
        let Finder { unstopped, adds_stop, .. } = finder;
        if let Some(stop) = training.final_stop.as_ref().filter(|_| adds_stop) {
            let start = rendering.text().len();
            rendering.append(stop, last);
            if trains_stop {
                ranges.push(start..rendering.text().len());
                ranges = merged(ranges);
            }
        }
        Ok(Trained { rendering, ranges, lost_reasoning, unstopped })
    }
}

pub(crate) fn search(tokens: &[String]) -> Result<AhoCorasick> {
    let tokens = tokens.iter().filter(|token| !token.is_empty());
    let builder = AhoCorasick::builder().match_kind(aho_corasick::MatchKind::LeftmostLongest).build(tokens);
    builder.map_err(|error| Error::new(ErrorKind::Input, format!("the special tokens: {error}")))
}

pub(crate) struct Finder<'a, 'r> {
    template: &'r ChatTemplate,
    pub session: &'r mut Session<'a>,
    pub messages: Vec<Message<'a>>,
    traces: Vec<Trace>,
    pub rendering: &'r Rendering,
    pub training: &'r Training,
    stops: Option<AhoCorasick>,
    /// Whether the final stop token follows the text.
    adds_stop: bool,
    /// The messages whose ranges were derived, in order.
    derived: Vec<usize>,
    /// Messages of these that end in no stop token.
    unstopped: Vec<usize>,
    /// The divisions that were found in the template's text between parts of messages.
    divisions: Vec<Division>,
}

/// The traces of a message in the text.
#[derive(Debug, Clone, Default)]
struct Trace {
    /// The text that was written while a loop was at the message.
    owned: Option<Range<usize>>,
    /// It was written in several places.
    split: bool,
    /// The runs that are the message's own words: their bytes and their part.
    own: Vec<(Range<usize>, Part)>,
}

/// Where a message is in the text.
#[derive(Debug, Clone)]
struct Region {
    /// All that was written while the message was rendered.
    bytes: Range<usize>,
    /// The runs that are the message's own words: their bytes and their part.
    own: Vec<(Range<usize>, Part)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Content,
    Reasoning,
    ToolCalls,
}

/// The traces of each message in the text.
fn traces(rendering: &Rendering, messages: usize) -> Vec<Trace> {
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

/// The message whose words a run is, and which part of it; roles are no words.
fn words_of(rendering: &Rendering, run: &Run) -> Option<(usize, Part)> {
    match rendering.source(run.origin.0) {
        Source::Message { part: "role", .. } => None,
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
    fn new(
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
            derived: Vec::new(),
            unstopped: Vec::new(),
            divisions: Vec::new(),
        })
    }

    fn text(&self) -> &'r str {
        self.rendering.text()
    }

    /// Whether the conversation ends with an assistant message, and the template writes no stop token behind it.
    fn lacks_final_stop(&mut self) -> Result<bool> {
        let Some(stop) = &self.training.final_stop else { return Ok(false) };
        let last = self.messages.len() - 1;
        let Message { role, speaks, .. } = self.messages[last];
        if role != ASSISTANT || self.session.add_generation_prompt {
            return Ok(false);
        }
        let Some(region) = self.region(last)? else { return Ok(false) };
        let behind = match region.own.last() {
            Some((words, _)) => words.end,
            None if speaks => return Ok(false), // The template leaves out its words.
            None => self.start(last, &region)?.at,
        };
        let text = self.text();
        let tail = &text[behind..];
        let has_stop = match &self.stops {
            Some(stops) => stops.is_match(tail),
            None => tail.contains(stop) || self.template.special_tokens()?.is_match(tail),
        };
        if has_stop {
            return Ok(false);
        }
        match self.template.special_tokens()?.find(&text[region.bytes.end.max(behind)..]) {
            None => Ok(true),
            Some(token) => Err(mask_error(format!(
                "messages[{last}]: expected no token between it and the final_stop {stop:?}, found that the template ends \
                 the conversation with {:?}: name that one in stop_tokens",
                &text[region.bytes.end.max(behind)..][token.range()]
            ))),
        }
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

    fn ranges(&mut self) -> Result<Vec<Range<usize>>> {
        let key = self.training.train_key.as_deref();
        check_flags(&self.messages, self.session.messages, &self.training.on, key)?;
        let ranges = match &self.training.on {
            TrainOn::All => std::iter::once(0..self.text().len()).collect(),
            TrainOn::Template => self.generation_ranges()?,
            _ => self.message_ranges()?,
        };
        let ranges = match self.training.on {
            TrainOn::All | TrainOn::Template => self.without_untrained(ranges)?,
            _ => ranges,
        };
        let ranges = merged(ranges);
        Ok(if self.training.empty_reasoning { ranges } else { without_empty_reasoning(ranges, self.text()) })
    }

    fn generation_ranges(&self) -> Result<Vec<Range<usize>>> {
        if self.rendering.misplaced_generation {
            return Err(mask_error(
                "a generation block is inside of a macro or another block that collects its text, where transformers \
                 gets its place wrong",
            ));
        }
        Ok(self.rendering.generations.iter().map(|(start, end)| *start as usize..*end as usize).collect())
    }

    fn message_ranges(&mut self) -> Result<Vec<Range<usize>>> {
        let mut ranges = Vec::new();
        for message in 0..self.messages.len() {
            if self.messages[message].trained && is_wanted(&self.training.on, &self.messages, message) {
                self.add_message(message, &mut ranges)?;
            }
        }
        Ok(ranges)
    }

    /// Takes messages that are not to be trained on out of ranges.
    fn without_untrained(&mut self, ranges: Vec<Range<usize>>) -> Result<Vec<Range<usize>>> {
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
    fn without_trained(&self, range: Range<usize>) -> Vec<Range<usize>> {
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

    fn add_message(&mut self, message: usize, ranges: &mut Vec<Range<usize>>) -> Result<()> {
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
    fn turns(&self, start: usize, end: Range<usize>, region: &Region) -> Result<Vec<(usize, Range<usize>)>> {
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
    fn check_written(&mut self, message: usize, region: &Region) -> Result<()> {
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
    fn is_same_without_calls(&mut self, message: usize) -> Result<bool> {
        let messages = self.session.without(message, &CALLS)?;
        let same = self.render_messages(messages, self.session.add_generation_prompt)?;
        Ok(same.is_some_and(|same| same.text == self.text()))
    }

    /// Checks that no role is in front of the words that are trained on.
    fn check_header(&self, start: usize, region: &Region) -> Result<()> {
        let words =
            region.own.iter().find(|(own, _)| own.end > start).map_or(region.bytes.end, |(own, _)| own.start);
        let mut begin = 0;
        for run in self.rendering.runs() {
            let bytes = begin..run.end as usize;
            begin = bytes.end;
            let is_role = matches!(self.rendering.source(run.origin.0), Source::Message { part: "role", .. });
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
    fn check_words(&self, message: usize, range: Range<usize>) -> Result<()> {
        match self.other_words(message, range) {
            None => Ok(()),
            Some((other, _)) => Err(mask_error(format!(
                "the template writes messages[{other}] inside of it: name the tokens at which the model stops \
                 (stop_tokens)"
            ))),
        }
    }

    /// The first other message that has words in a range, and where they begin.
    fn other_words(&self, message: usize, range: Range<usize>) -> Option<(usize, usize)> {
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
    fn region(&mut self, message: usize) -> Result<Option<Region>> {
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

    /// Where what the model generates begins: behind the generation prompt.
    fn start(&mut self, message: usize, region: &Region) -> Result<Start> {
        if let Some(prompt) = self.session.fixed_prompt()?
            && !prompt.is_empty()
            && self.text()[region.bytes.clone()].starts_with(&prompt)
        {
            return Ok(Start::behind(region.bytes.start + prompt.len()));
        }
        let prompt = self.render(message, true)?;
        if let Some(prompt) = &prompt
            && self.text().starts_with(&prompt.text)
            && prompt.text.len() <= region.bytes.end
            && self.other_words(message, prompt.text.len()..region.bytes.start).is_none()
        {
            let (at, is_message) = (prompt.text.len(), |plain: Rendered| plain.text == prompt.text);
            if self.has_header(at, region) && self.render(message, false)?.is_some_and(is_message) {
                return self.behind_usual_prompt(at);
            }
            return Ok(Start::behind(at));
        }
        // The text before is rendered differently in the whole conversation: the prompt's end is looked for where
        // the message begins.
        if let Some(prompt) = &prompt
            && let Some(tail) = self.tail(prompt, message)?
        {
            if tail.text.is_empty() && self.has_header(region.bytes.start, region) {
                return self.behind_usual_prompt(region.bytes.start);
            }
            return self.start_by_tail(&tail, region);
        }
        // The messages before cannot be rendered by themselves. Behind the whole conversation the prompt can.
        let all = self.messages.len();
        let tail = match self.render(all, true)? {
            Some(prompt) => self.tail(&prompt, all)?,
            None => None,
        };
        match tail {
            Some(tail)
                if self.text()[region.bytes.clone()].starts_with(&tail.text) && !tail.text.is_empty() =>
            {
                Ok(Start::behind(region.bytes.start + tail.text.len()))
            }
            _ => Err(mask_error("the prompt that the model would answer to cannot be rendered")),
        }
    }

    /// Whether the template writes something in front of a message's words, from a start on.
    fn has_header(&self, start: usize, region: &Region) -> bool {
        let words = region.own.first().map_or(region.bytes.end, |(own, _)| own.start);
        self.text().get(start..words).is_some_and(|header| !header.trim().is_empty())
    }

    /// The start of a message in front of which the template writes no generation prompt: behind the one that it writes
    /// behind the first question, if the message begins with that. Some templates begin a turn again behind the result of a
    /// tool.
    fn behind_usual_prompt(&mut self, start: usize) -> Result<Start> {
        let question = self.messages.iter().position(|message| message.role == USER).map_or(0, |at| at + 1);
        let (plain, prompt) = (self.render(question, false)?, self.render(question, true)?);
        let prompts = plain.zip(prompt);
        let usual = prompts.as_ref().and_then(|(plain, prompt)| prompt.text.strip_prefix(&*plain.text));
        let usual = usual.filter(|usual| self.text()[start..].starts_with(usual));
        Ok(Start::behind(start + usual.map_or(0, str::len)))
    }

    /// The first messages by themselves; with a generation prompt, what the model would be given to generate the next
    /// one. `None`: the template refuses them.
    fn render(&mut self, messages: usize, add_generation_prompt: bool) -> Result<Option<Rendered>> {
        let messages = &self.session.messages[..messages];
        self.render_messages(messages, add_generation_prompt)
    }

    /// Any messages. `None`: the template refuses them.
    fn render_messages(
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

    /// The generation prompt behind the first messages: what a template writes in addition if there is to be one, also
    /// where it does so while it is at the last message.
    fn tail(&mut self, prompt: &Rendered, messages: usize) -> Result<Option<Tail>> {
        let Some(last) = self.last_message_run(prompt) else { return Ok(None) };
        let behind = prompt.runs[last].end as usize;
        let start = match self.render(messages, false)? {
            Some(plain)
                if prompt.text != plain.text && self.text_behind(&plain) == self.text_behind(prompt) =>
            {
                parting_runs(prompt, &plain)
            }
            _ => behind,
        };
        let ends = prompt.runs.iter().map(|run| run.end as usize);
        let borders = ends.filter(|end| *end >= start).map(|end| end - start).collect();
        Ok(Some(Tail { text: prompt.text[start..].to_owned(), borders }))
    }

    /// The last run that was written while the template was at a message, or that a message says.
    fn last_message_run(&self, rendered: &Rendered) -> Option<usize> {
        rendered.runs.iter().rposition(|run| {
            run.owner != 0 || matches!(self.rendering.source(run.origin.0), Source::Message { .. })
        })
    }

    /// The text behind that.
    fn text_behind<'t>(&self, rendered: &'t Rendered) -> &'t str {
        let last = self.last_message_run(rendered);
        &rendered.text[last.map_or(0, |last| rendered.runs[last].end as usize)..]
    }

    /// Takes the generation prompt at the end of the text out of the last message, where the template writes it while it
    /// is at that message.
    fn leave_out_prompt(&mut self) -> Result<()> {
        let Some(plain) = self.render(self.messages.len(), false)? else { return Ok(()) };
        if self.text().starts_with(&plain.text) {
            for owned in self.traces.iter_mut().filter_map(|trace| trace.owned.as_mut()) {
                owned.end = owned.end.min(plain.text.len());
            }
        }
        Ok(())
    }

    /// The start of a message that begins like the generation prompt. It need not have all of it: many templates add
    /// the beginning of a reasoning that past messages do not have.
    fn start_by_tail(&self, tail: &Tail, region: &Region) -> Result<Start> {
        let text = &self.text()[region.bytes.clone()];
        if text.starts_with(&tail.text) {
            return Ok(Start::behind(region.bytes.start + tail.text.len()));
        }
        let first_own = region.own.first().map_or(text.len(), |(own, _)| own.start - region.bytes.start);
        let borders: Vec<usize> = self
            .rendering
            .runs()
            .iter()
            .map(|run| run.end as usize)
            .filter(|end| region.bytes.contains(end))
            .map(|end| end - region.bytes.start)
            .collect();
        let tokens = self.template.tokens()?;
        let header = Begin { text, tokens: token_ranges(tokens, text), borders: &borders };
        let prompt =
            Begin { text: &tail.text, tokens: token_ranges(tokens, &tail.text), borders: &tail.borders };
        if let Some(Start { at, parted }) = parting(&header, &prompt, first_own) {
            return Ok(Start { at: region.bytes.start + at, parted });
        }
        Err(mask_error(format!(
            "it begins with {:?}, but the generation prompt is {:?}: where the model's words begin cannot be told",
            text[..first_own].chars().take(200).collect::<String>(),
            tail.text
        )))
    }

    /// Whether a message is the last one, and the final stop token follows it.
    fn is_stopped_last(&self, message: usize) -> bool {
        self.adds_stop && message + 1 == self.messages.len()
    }

    /// The token that ends a message, behind its last own word.
    fn end_token(&self, message: usize, start: usize, region: &Region) -> Result<Range<usize>> {
        if self.is_stopped_last(message) {
            let end = self.text().len();
            return Ok(end..end);
        }
        if let Some(stops) = &self.stops
            && let Some((_, other)) = self.other_words(message, start..region.bytes.end)
        {
            return self.first_stop(stops, start..other, region);
        }
        let behind = region.own.last().map_or(start, |(last, _)| last.end.max(start));
        if let Some(stops) = &self.stops {
            return Ok(self.stop_token(stops, behind, region));
        }
        let tail = &self.text()[behind..region.bytes.end];
        let Some(last) = token_ranges(self.template.special_tokens()?, tail).pop() else {
            let found = if tail.is_empty() { String::new() } else { format!(", but {tail:?}") };
            return Err(mask_error(format!(
                "the template writes no special token behind it{found}: name the tokens at which the model stops \
                 (stop_tokens), and the one that is to end a conversation's last turn (final_stop)"
            )));
        };
        if !tail[last.end..].trim().is_empty() {
            return Err(mask_error(format!(
                "behind the last special token that the template writes, {tail:?} goes on"
            )));
        }
        Ok(behind + last.start..behind + last.end)
    }

    /// The first stop token that the template writes in a range. Some templates write the result of a tool inside of
    /// the message that calls it, and both name the tool: then the message's last word is not the model's.
    fn first_stop(&self, stops: &AhoCorasick, range: Range<usize>, region: &Region) -> Result<Range<usize>> {
        let found = token_ranges(stops, &self.text()[range.clone()]).into_iter();
        let mut found = found.map(|token| range.start + token.start..range.start + token.end);
        let is_said = |token: &Range<usize>| {
            region.own.iter().any(|(own, _)| own.start < token.end && token.start < own.end)
        };
        found.find(|token| !is_said(token)).ok_or_else(|| {
            mask_error("the template writes another message inside of it, and no stop token before that")
        })
    }

    /// The first stop token behind a message's words, before another message has any; else the end of its text.
    fn stop_token(&self, stops: &AhoCorasick, behind: usize, region: &Region) -> Range<usize> {
        let end = self.next_words(behind);
        if let Some(token) = token_ranges(stops, &self.text()[behind..end.max(behind)]).first() {
            return behind + token.start..behind + token.end;
        }
        let end = behind + self.text()[behind..region.bytes.end.max(behind)].trim_end().len();
        end..end
    }

    fn token_behind(&self, region: &Region) -> Range<usize> {
        let behind = region.own.last().map_or(region.bytes.end, |(last, _)| last.end);
        let Ok(tokens) = self.template.special_tokens() else { return behind..behind };
        match tokens.find(&self.text()[behind..]) {
            Some(token) if token.start() == 0 => behind..behind + token.end(),
            _ => behind..behind,
        }
    }
}

/// Where what the model generates begins.
struct Start {
    at: usize,
    /// The generation prompt, if the message goes on unlike it from there.
    parted: Option<String>,
}

impl Start {
    /// The end of the whole prompt.
    fn behind(at: usize) -> Self {
        Self { at, parted: None }
    }
}

/// The text of a generation prompt, and where its runs end.
struct Tail {
    text: String,
    borders: Vec<usize>,
}

/// The beginning of a message, or a generation prompt.
struct Begin<'a> {
    text: &'a str,
    tokens: Vec<Range<usize>>,
    /// Where its runs end.
    borders: &'a [usize],
}

impl Begin<'_> {
    /// Whether a piece that the template wrote, or a token, begins or ends here.
    fn has_border(&self, at: usize) -> bool {
        self.borders.contains(&at) || self.tokens.iter().any(|token| token.start == at || token.end == at)
    }

    /// Where pieces and tokens begin behind an index, in order.
    fn borders_behind(&self, at: usize) -> Vec<usize> {
        let starts = self.tokens.iter().map(|token| token.start);
        let all = self.borders.iter().copied().chain(starts);
        let mut borders: Vec<_> = all.filter(|border| (at + 1..self.text.len()).contains(border)).collect();
        borders.sort_unstable();
        borders
    }

    /// The tokens of a range, as text.
    fn tokens_in(&self, range: Range<usize>) -> impl Iterator<Item = &str> {
        let inside =
            self.tokens.iter().filter(move |token| range.start <= token.start && token.end <= range.end);
        inside.map(|token| &self.text[token.clone()])
    }
}

/// Where a message parts from the generation prompt, if that can be told. `words` is where its own words begin.
fn parting(message: &Begin<'_>, prompt: &Begin<'_>, words: usize) -> Option<Start> {
    let mut common = common_prefix(&message.text[..words], prompt.text);
    // A token is matched as a whole or not at all.
    for token in message.tokens.iter().chain(&prompt.tokens) {
        if token.start < common && common < token.end {
            common = token.start;
        }
    }
    let is_border = |at: usize| at > 0 && message.has_border(at) && prompt.has_border(at);
    if common < words && !is_border(common) {
        // Two markers that are no tokens have their brackets in common: `<think>` and `</think>`.
        common = message.text[..common].trim_end_matches(['<', '[', '|', '/']).len();
    }
    if !is_border(common) {
        return None;
    }
    // Behind what only the prompt has, both may go on alike, as in `<A><think></think>` and `<A></think>`: all of that
    // is prompt.
    let rest = &message.text[common..words];
    for from in prompt.borders_behind(common) {
        let alike = &prompt.text[from..];
        let end = common + alike.len();
        let is_token = prompt.tokens_in(from..prompt.text.len()).next().is_some();
        if rest == alike || is_token && rest.starts_with(alike) && message.has_border(end) {
            return Some(Start::behind(end));
        }
    }
    // A token in the rest of both: they differ in white space only, and the prompt goes on in the message.
    let prompt_rest: Vec<&str> = prompt.tokens_in(common..prompt.text.len()).collect();
    let differ = message.tokens_in(common..words).all(|token| !prompt_rest.contains(&token));
    differ.then(|| Start { at: common, parted: Some(prompt.text.to_owned()) })
}

/// Where a rendering with a generation prompt parts from one without: where the other one ends, or else the end of the
/// last run up to which they are the same.
fn parting_runs(prompt: &Rendered, plain: &Rendered) -> usize {
    if prompt.text.starts_with(&plain.text) {
        return plain.text.len();
    }
    let mut start = 0;
    for (run, other) in prompt.runs.iter().zip(&plain.runs) {
        let end = run.end as usize;
        if (run.end, run.origin) != (other.end, other.origin)
            || prompt.text[start..end] != plain.text[start..end]
        {
            break;
        }
        start = end;
    }
    start
}

fn token_ranges(tokens: &AhoCorasick, text: &str) -> Vec<Range<usize>> {
    tokens.find_iter(text).map(|token| token.start()..token.end()).collect()
}

/// How many bytes two texts have in common at their beginning, whole characters only.
fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.map(|(c, _)| c.len_utf8()).sum()
}

/// Joins ranges that touch.
fn merged(ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges.into_iter().filter(|range| range.start < range.end) {
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
