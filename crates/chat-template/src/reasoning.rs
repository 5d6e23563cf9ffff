//! Reasoning of trained messages that the template does not write. The README states the rules.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use memchr::memmem;

use crate::ast::NameId;
use crate::chat::{Chat, ChatTemplate, Session, with_memory};
use crate::error::{Error, Result};
use crate::mask::{Finder, REASONING, TrainOn, Training, end_of_round, mask_error};
use crate::origin::{Key, Node, Origins};
use crate::rendering::{Rendering, Source};
use crate::text::{Origin, Run, Str};
use crate::value::{Dict, Val};

/// The treatment of a conversation with reasoning that the template does not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnLostReasoning {
    /// It is an error.
    Error,
    /// The rest of it is trained on.
    Ignore,
    /// The same, and [`Trained::lost_reasoning`](crate::Trained) lists it.
    List,
}

/// Reasoning of a trained message of which no byte is in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostReasoning {
    /// The message, counted from 0.
    pub message: usize,
    /// The message's field: a reasoning of its own, or "content" with a part that is one.
    pub field: String,
}

/// The types of parts of content that are reasoning.
pub(crate) const TYPES: [&str; 2] = ["thinking", "reasoning"];
/// The keys of such a part, or of such a field that is no string, that hold its words.
const WORDS: [&str; 6] = ["thinking", "reasoning", "reasoning_content", "text", "content", "summary"];
/// The marks that begin and end reasoning inside of content, of most models and of Gemma 4, and the bytes that both
/// share.
const MARKS: [(&str, &str, &[u8]); 2] =
    [("<think>", "</think>", b"think>"), ("<|channel>", "<channel|>", b"channel")];

/// The marks around reasoning that templates write, beside those of [`MARKS`].
const FURTHER_MARKS: [(&str, &str); 5] = [
    ("<seed:think>", "</seed:think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
];

/// Ranges that are trained on without marks of reasoning between which there is no word, and the white space behind them.
pub(crate) fn without_empty_reasoning(ranges: Vec<Range<usize>>, rendering: &Rendering) -> Vec<Range<usize>> {
    let text = rendering.text();
    let marks = MARKS.iter().map(|(open, close, _)| (*open, *close)).chain(FURTHER_MARKS);
    let mut left = ranges;
    for (open, close) in marks {
        for (at, _) in text.match_indices(close) {
            let Some(before) = text[..at].trim_end().strip_suffix(open) else { continue };
            let empty = before.len()..end_of_white_space(rendering, at + close.len());
            let outside = |range: Range<usize>| {
                [range.start..range.end.min(empty.start), range.start.max(empty.end)..range.end]
            };
            left = left.into_iter().flat_map(outside).filter(|range| range.start < range.end).collect();
        }
    }
    left
}

/// Where the white space behind a mark ends, without that with which an answer begins by itself: behind a mark of the
/// template it is the template's, and behind one that a message spells out the message's.
fn end_of_white_space(rendering: &Rendering, mark_end: usize) -> usize {
    let runs = rendering.runs();
    let says = |run: &Run| matches!(rendering.source(run.origin.0), Source::Message { .. });
    let mark = runs.partition_point(|run| (run.end as usize) < mark_end);
    let alike = runs[mark..].iter().take_while(|run| says(run) == says(&runs[mark])).last();
    let end = alike.map_or(mark_end, |run| run.end as usize);
    end - rendering.text()[mark_end..end].trim_start().len()
}

/// A message's reasoning in one field.
struct Reasoning<'a> {
    field: String,
    /// Without white space around it.
    words: Cow<'a, str>,
    holder: Holder<'a>,
}

enum Holder<'a> {
    /// The strings of these origins.
    Strings(Vec<u32>),
    /// A part of a string.
    Part { string: Str<'a>, part: Range<usize> },
}

impl Finder<'_, '_> {
    /// The reasoning of trained messages of which no byte is in the text.
    pub(crate) fn lost_reasoning(&mut self, ranges: &[Range<usize>]) -> Result<Vec<LostReasoning>> {
        let mut lost = Vec::new();
        if !self.training.reasoning || self.training.on_lost_reasoning == OnLostReasoning::Ignore {
            return Ok(lost);
        }
        let mut written = None;
        for message in 0..self.messages.len() {
            if !self.is_trained(message, ranges) {
                continue;
            }
            let found = reasoning_of(&self.session.messages[message], &self.session.origins);
            if found.is_empty() {
                continue;
            }
            let written = written.get_or_insert_with(|| Written::of(self.rendering));
            let mut is_written = Vec::with_capacity(found.len());
            for one in &found {
                is_written.push(match written.has(one, &self.session.origins) {
                    Some(known) => known,
                    None => part_is_written(self.session, message, one)?,
                });
            }
            for one in &found {
                // If the same words stand under two names, one is enough.
                let is_kept =
                    found.iter().zip(&is_written).any(|(other, is)| *is && other.words == one.words);
                let found = LostReasoning { message, field: one.field.clone() };
                if !is_kept && !lost.contains(&found) {
                    lost.push(found);
                }
            }
        }
        Ok(lost)
    }
}

/// The reasoning that a message has.
fn reasoning_of<'a>(message: &Val<'a>, origins: &Origins) -> Vec<Reasoning<'a>> {
    let mut found: Vec<Reasoning<'a>> = Vec::new();
    let Val::Dict(dict) = message else { return found };
    for (key, value) in dict.entries {
        match key.as_str() {
            Some(name) if REASONING.contains(&name.text) => {
                // transformers gives a message's reasoning a second name.
                let node = value.origin().0;
                let is_seen =
                    |one: &Reasoning<'_>| matches!(&one.holder, Holder::Strings(all) if all.contains(&node));
                if !found.iter().any(is_seen) {
                    let own = origins.key_text(origins.nodes[node as usize].key).unwrap_or(name.text);
                    found.extend(whole(own, value));
                }
            }
            Some(name) if name.text == "content" => in_content(value, &mut found),
            _ => {}
        }
    }
    found
}

/// The reasoning inside of content: parts of a type of their own, and between marks.
fn in_content<'a>(content: &Val<'a>, found: &mut Vec<Reasoning<'a>>) {
    match content {
        Val::Str(string) => between_marks(**string, found),
        Val::List(list) => {
            for item in list.items {
                let Val::Dict(part) = item else {
                    in_content(item, found);
                    continue;
                };
                let is_reasoning =
                    field(part, "type").is_some_and(|kind| TYPES.iter().any(|name| kind.is_text(name)));
                if is_reasoning {
                    found.extend(whole("content", item));
                } else if let Some(Val::Str(text)) = field(part, "text") {
                    between_marks(*text, found);
                }
            }
        }
        _ => {}
    }
}

/// The value of a key.
pub(crate) fn field<'a>(dict: &Dict<'a>, name: &str) -> Option<Val<'a>> {
    dict.entries.iter().find(|(key, _)| key.is_text(name)).map(|(_, value)| *value)
}

/// A value that is reasoning as a whole, if it has any words.
fn whole<'a>(field: &str, value: &Val<'a>) -> Option<Reasoning<'a>> {
    let (mut words, mut nodes) = (Cow::Borrowed(""), Vec::new());
    strings(value, &mut |string| {
        if !string.text.trim().is_empty() {
            words += string.text.trim();
            nodes.push(string.origin().0);
        }
    });
    (!nodes.is_empty()).then(|| Reasoning { field: field.to_owned(), words, holder: Holder::Strings(nodes) })
}

/// The strings of a value that hold its words.
fn strings<'a>(value: &Val<'a>, take: &mut impl FnMut(Str<'a>)) {
    match value {
        Val::Str(string) => take(**string),
        Val::List(list) => list.items.iter().for_each(|item| strings(item, take)),
        Val::Dict(dict) => {
            let words = dict.entries.iter().filter(|(key, _)| WORDS.iter().any(|name| key.is_text(name)));
            words.for_each(|(_, value)| strings(value, take));
        }
        _ => {}
    }
}

/// Reasoning between marks. The first mark may be missing, as a generation prompt may have written it.
fn between_marks<'a>(string: Str<'a>, found: &mut Vec<Reasoning<'a>>) {
    let text = string.text;
    for (open, close, common) in MARKS {
        if memmem::find(text.as_bytes(), common).is_none() {
            continue;
        }
        let mut at = 0;
        while at < text.len() {
            let (begin, end) = (text[at..].find(open), text[at..].find(close));
            let start = match (begin, end) {
                (None, None) => break,
                (Some(begin), end) if end.is_none_or(|end| begin < end) => at + begin + open.len(),
                _ => at,
            };
            let end = text[start..].find(close).map_or(text.len(), |end| start + end);
            let words = text[start..end].trim();
            if !words.is_empty() {
                let holder = Holder::Part { string, part: start..end };
                found.push(Reasoning { field: "content".to_owned(), words: Cow::Borrowed(words), holder });
            }
            at = end + close.len();
        }
    }
}

/// The values of messages that a text has.
pub(crate) struct Written<'r> {
    rendering: &'r Rendering,
    /// Whether any piece is of a node.
    nodes: Vec<bool>,
}

impl<'r> Written<'r> {
    pub(crate) fn of(rendering: &'r Rendering) -> Self {
        let mut written = Self { rendering, nodes: Vec::with_capacity(64) };
        for (origin, _) in written.pieces() {
            let at = origin as usize;
            if at >= written.nodes.len() {
                written.nodes.resize(at + 1, false);
            }
            written.nodes[at] = true;
        }
        written
    }

    /// The pieces that are more than white space, with their origins.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u32, &'r str)> + use<'r> {
        let (runs, text) = (self.rendering.runs(), self.rendering.text());
        let mut start = 0;
        let pieces = runs.iter().map(move |run| {
            let piece = &text[start..run.end as usize];
            start = run.end as usize;
            (run.origin.0, piece)
        });
        pieces.filter(|(origin, piece)| *origin != 0 && !piece.trim().is_empty())
    }

    /// Whether any byte of a node is there.
    pub(crate) fn has_node(&self, node: u32) -> bool {
        self.nodes.get(node as usize).is_some_and(|is_there| *is_there)
    }

    /// Whether a value is there whose text begins so.
    pub(crate) fn begins(&self, node: u32, begin: &str) -> bool {
        self.pieces().any(|(origin, text)| origin == node && text.trim_start().starts_with(begin))
    }

    /// Whether any byte of a reasoning is there; none if that cannot be told from the pieces.
    fn has(&self, one: &Reasoning<'_>, origins: &Origins) -> Option<bool> {
        match &one.holder {
            Holder::Strings(nodes) => Some(nodes.iter().any(|node| self.has_string(*node, origins))),
            Holder::Part { string, part } => {
                let node = string.origin().0;
                if !self.has_string(node, origins) {
                    return Some(false);
                }
                let words = memmem::Finder::new(one.words.as_bytes());
                let is_in = |text: &str| words.find(text.as_bytes()).is_some();
                let is_elsewhere = is_in(&string.text[..part.start]) || is_in(&string.text[part.end..]);
                let mut pieces = self.pieces().filter(|(origin, _)| *origin == node);
                let has_all = !is_elsewhere && pieces.any(|(_, text)| is_in(text));
                (has_all || self.has_string(origins.nodes[node as usize].parent, origins)).then_some(true)
            }
        }
    }

    /// Whether any byte is there of a string, or of a value that holds it and was written as a whole.
    pub(crate) fn has_string(&self, node: u32, origins: &Origins) -> bool {
        let mut at = node;
        while at != 0 {
            if self.has_node(at) {
                return true;
            }
            at = origins.nodes[at as usize].parent;
        }
        false
    }
}

/// Whether any byte of a part of a message's string is in the text: the conversation is rendered once more, with an
/// origin for that part.
fn part_is_written(session: &mut Session<'_>, message: usize, one: &Reasoning<'_>) -> Result<bool> {
    let Holder::Part { string, part } = &one.holder else { return Ok(false) };
    let parent = string.origin().0;
    let Node { root, message: number, part: of, .. } = session.origins.nodes[parent as usize];
    let node = Node { root, message: number, parent, part: of, key: Key::Index(0) };
    let origin = Origin(Arc::make_mut(&mut session.origins).add(node));
    let marked = marked(session, &session.messages[message], &Mark { parent, part, origin })?;
    let messages = session.with_message(message, marked)?;
    let rendered = session.render(messages, session.add_generation_prompt)?;
    let rendering = session.finish(rendered)?;
    Ok(Written::of(&rendering).has_node(origin.0))
}

/// A part of a string and its origin.
struct Mark<'p> {
    /// The origin of the string.
    parent: u32,
    part: &'p Range<usize>,
    origin: Origin,
}

/// A value in which a part of one string has an origin of its own.
fn marked<'a>(session: &Session<'a>, value: &Val<'a>, mark: &Mark<'_>) -> Result<Val<'a>> {
    let heap = session.heap;
    Ok(match value {
        Val::Str(string) if string.origin().0 == mark.parent => {
            let run = |end: usize, origin| Run { end: end as u32, origin, owner: 0, border: 0 };
            let ends = [
                run(mark.part.start, string.origin()),
                run(mark.part.end, mark.origin),
                run(string.text.len(), string.origin()),
            ];
            let first = usize::from(mark.part.start == 0);
            let last = if mark.part.end == string.text.len() { 2 } else { 3 };
            heap.str(Str::of_runs(string.text, heap.slice(&ends[first..last])?, heap)?)?
        }
        Val::List(list) => {
            let items: Vec<_> =
                list.items.iter().map(|item| marked(session, item, mark)).collect::<Result<_>>()?;
            heap.list(heap.slice(&items)?, list.origin)?
        }
        Val::Dict(dict) => {
            let entries: Vec<_> = dict
                .entries
                .iter()
                .map(|(key, value)| Ok((*key, marked(session, value, mark)?)))
                .collect::<Result<_>>()?;
            Val::Dict(heap.alloc(Dict::new(heap.slice(&entries)?, dict.origin))?)
        }
        other => *other,
    })
}

/// The error of a conversation that loses reasoning, with all that helps: each was tried.
#[cold]
pub(crate) fn lost_error(trial: &Trial<'_>, lost: &[LostReasoning]) -> Error {
    let [LostReasoning { message, field }, others @ ..] = lost else { return mask_error("") };
    let what = if field == "content" {
        "the reasoning in its \"content\"".to_owned()
    } else {
        format!("its {field:?}")
    };
    let mut more: Vec<_> =
        others.iter().map(|other| other.message).filter(|other| other != message).collect();
    more.dedup();
    let more = match &more[..] {
        [] => String::new(),
        [other] => format!(", nor that of messages[{other}]"),
        many => format!(", nor that of {} more messages", many.len()),
    };
    let mut ways = Vec::new();
    if let Some(switch) = trial.switch(|settings| trial.keeps(trial.training, settings)) {
        ways.push(format!("set template_kwargs={{{switch}}}, with which it is written"));
    }
    let train = |on| Training { on, ..trial.training.clone() };
    let (last, rounds) = (train(TrainOn::Last), train(TrainOn::Final));
    if trial.chat.messages_end == usize::MAX && trial.training.on != TrainOn::Last {
        if trial.keeps(&last, &[]) {
            ways.push("train on the last turn alone (train_on=\"last\")".to_owned());
        }
        let all_keep =
            |training: &Training, end: fn(&[Val<'_>], usize) -> usize, settings: &[Setting<'_>]| {
                lost.iter()
                    .all(|one| trial.keeps_up_to(|messages| end(messages, one.message), training, settings))
            };
        let keep_rounds = |settings: &[Setting<'_>]| all_keep(&rounds, end_of_round, settings);
        let keep_turns = |settings: &[Setting<'_>]| all_keep(&last, |_, message| message + 1, settings);
        let rounds = "make a sample of each round (samples=\"rounds\")";
        let turns = "make a sample of each turn (samples=\"turns\")";
        if keep_rounds(&[]) {
            ways.push(rounds.to_owned());
        } else if keep_turns(&[]) {
            ways.push(turns.to_owned());
        } else if ways.is_empty()
            && let Some(switch) = trial.switch(keep_turns)
        {
            ways.push(format!("set template_kwargs={{{switch}}}, and {turns}"));
        }
    } else if trial.training.on == TrainOn::Final && trial.keeps(&last, &[]) {
        ways.push("make a sample of each turn (samples=\"turns\")".to_owned());
    }
    if ways.is_empty() {
        ways.push("use a template that writes it (template=)".to_owned());
    }
    ways.push("train without it (on_lost_reasoning=\"ignore\")".to_owned());
    mask_error(format!(
        "messages[{message}]: expected {what} in the text, found that the template does not write it{more}: {}",
        ways.join("; or ")
    ))
}

/// A conversation that is rendered in other ways.
pub(crate) struct Trial<'t> {
    pub template: &'t ChatTemplate,
    pub chat: &'t Chat<'t>,
    pub training: &'t Training,
}

/// A variable of a template, and its value.
type Setting<'n> = (NameId, &'n str, bool);

impl Trial<'_> {
    /// Whether nothing is lost with these values, and the mask can be derived.
    fn keeps(&self, training: &Training, settings: &[Setting<'_>]) -> bool {
        self.keeps_up_to(|messages| messages.len(), training, settings)
    }

    /// The same of the conversation's first messages, whose number `end` gives.
    fn keeps_up_to(
        &self,
        end: impl FnOnce(&[Val<'_>]) -> usize,
        training: &Training,
        settings: &[Setting<'_>],
    ) -> bool {
        let trained = with_memory(|bump| {
            let mut session = Session::open(self.template, bump, self.chat)?;
            for (id, _, value) in settings {
                session.set(*id, Val::Bool(*value, Origin::TEMPLATE));
            }
            session.messages = &session.messages[..end(session.messages)];
            self.template.train(&mut session, training)
        });
        trained.is_ok_and(|trained| trained.lost_reasoning.is_empty())
    }

    /// The variables with which reasoning is kept, one or else two, as the entries of a dict of Python's.
    fn switch(&self, keeps: impl Fn(&[Setting<'_>]) -> bool) -> Option<String> {
        let names = self.template.program.names.all();
        let names = names.filter(|(_, name)| name.contains("think") || name.contains("reason"));
        let mut names: Vec<_> = names.collect();
        // About earlier turns before those about all reasoning.
        names.sort_by_key(|(_, name)| !OF_EARLIER_TURNS.iter().any(|word| name.contains(word)));
        let settings: Vec<Setting<'_>> =
            names.iter().flat_map(|(id, name)| [(*id, *name, true), (*id, *name, false)]).collect();
        let pairs = settings.iter().enumerate().flat_map(|(at, one)| {
            let others = settings[at + 1..].iter().filter(|other| other.0 != one.0);
            others.map(|other| vec![*one, *other])
        });
        let mut choices = settings.iter().map(|one| vec![*one]).chain(pairs.take(MOST_PAIRS));
        let found = choices.find(|choice| keeps(choice))?;
        let entry =
            |(_, name, value): &Setting<'_>| format!("{name:?}: {}", if *value { "True" } else { "False" });
        Some(found.iter().map(entry).collect::<Vec<_>>().join(", "))
    }
}

/// Words in the names of variables that are about the reasoning of earlier turns.
const OF_EARLIER_TURNS: [&str; 6] = ["preserve", "keep", "clear", "drop", "truncate", "history"];

/// How many pairs of variables are tried.
const MOST_PAIRS: usize = 500;
