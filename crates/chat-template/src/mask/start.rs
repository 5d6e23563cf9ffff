//! Where what the model generates begins: behind the generation prompt.

use std::ops::Range;

use super::finder::{Finder, Region, mask_error, token_ranges};
use super::messages::USER;
use crate::chat::Rendered;
use crate::error::Result;
use crate::rendering::Source;

impl Finder<'_, '_> {
    /// Where what the model generates begins: behind the generation prompt.
    pub(super) fn start(&mut self, message: usize, region: &Region) -> Result<Start> {
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
    pub(super) fn has_header(&self, start: usize, region: &Region) -> bool {
        let words = region.own.first().map_or(region.bytes.end, |(own, _)| own.start);
        self.text().get(start..words).is_some_and(|header| !header.trim().is_empty())
    }

    /// The start of a message in front of which the template writes no generation prompt: behind the one that it writes
    /// behind the first question, if the message begins with that. Some templates begin a turn again behind the result of a
    /// tool.
    pub(super) fn behind_usual_prompt(&mut self, start: usize) -> Result<Start> {
        let question = self.messages.iter().position(|message| message.role == USER).map_or(0, |at| at + 1);
        let (plain, prompt) = (self.render(question, false)?, self.render(question, true)?);
        let prompts = plain.zip(prompt);
        let usual = prompts.as_ref().and_then(|(plain, prompt)| prompt.text.strip_prefix(&*plain.text));
        let usual = usual.filter(|usual| self.text()[start..].starts_with(usual));
        Ok(Start::behind(start + usual.map_or(0, str::len)))
    }

    /// The generation prompt behind the first messages: what a template writes in addition if there is to be one, also
    /// where it does so while it is at the last message.
    pub(super) fn tail(&mut self, prompt: &Rendered, messages: usize) -> Result<Option<Tail>> {
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
    pub(super) fn last_message_run(&self, rendered: &Rendered) -> Option<usize> {
        rendered.runs.iter().rposition(|run| {
            run.owner != 0 || matches!(self.rendering.source(run.origin.0), Source::Message { .. })
        })
    }

    /// The text behind that.
    pub(super) fn text_behind<'t>(&self, rendered: &'t Rendered) -> &'t str {
        let last = self.last_message_run(rendered);
        &rendered.text[last.map_or(0, |last| rendered.runs[last].end as usize)..]
    }

    /// Takes the generation prompt at the end of the text out of the last message, where the template writes it while it
    /// is at that message.
    pub(super) fn leave_out_prompt(&mut self) -> Result<()> {
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
    pub(super) fn start_by_tail(&self, tail: &Tail, region: &Region) -> Result<Start> {
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
}

/// Where what the model generates begins.
pub(super) struct Start {
    pub(super) at: usize,
    /// The generation prompt, if the message continues unlike it from there.
    pub(super) parted: Option<String>,
}

impl Start {
    /// The end of the whole prompt.
    pub(super) fn behind(at: usize) -> Self {
        Self { at, parted: None }
    }
}

/// The text of a generation prompt, and where its runs end.
pub(super) struct Tail {
    pub(super) text: String,
    pub(super) borders: Vec<usize>,
}

/// The beginning of a message, or a generation prompt.
pub(super) struct Begin<'a> {
    pub(super) text: &'a str,
    pub(super) tokens: Vec<Range<usize>>,
    /// Where its runs end.
    pub(super) borders: &'a [usize],
}

impl Begin<'_> {
    /// Whether a piece that the template wrote, or a token, begins or ends here.
    pub(super) fn has_border(&self, at: usize) -> bool {
        self.borders.contains(&at) || self.tokens.iter().any(|token| token.start == at || token.end == at)
    }

    /// Where pieces and tokens begin behind an index, in order.
    pub(super) fn borders_behind(&self, at: usize) -> Vec<usize> {
        let starts = self.tokens.iter().map(|token| token.start);
        let all = self.borders.iter().copied().chain(starts);
        let mut borders: Vec<_> = all.filter(|border| (at + 1..self.text.len()).contains(border)).collect();
        borders.sort_unstable();
        borders
    }

    /// The tokens of a range, as text.
    pub(super) fn tokens_in(&self, range: Range<usize>) -> impl Iterator<Item = &str> {
        let inside =
            self.tokens.iter().filter(move |token| range.start <= token.start && token.end <= range.end);
        inside.map(|token| &self.text[token.clone()])
    }
}

/// Where a message parts from the generation prompt, if that can be told. `words` is where its own words begin.
pub(super) fn parting(message: &Begin<'_>, prompt: &Begin<'_>, words: usize) -> Option<Start> {
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
    // Behind what only the prompt has, both may continue alike, as in `<A><think></think>` and `<A></think>`: all of
    // that is prompt.
    let rest = &message.text[common..words];
    for from in prompt.borders_behind(common) {
        let alike = &prompt.text[from..];
        let end = common + alike.len();
        let is_token = prompt.tokens_in(from..prompt.text.len()).next().is_some();
        if rest == alike || is_token && rest.starts_with(alike) && message.has_border(end) {
            return Some(Start::behind(end));
        }
    }
    // A token in the rest of both: they differ in white space only, and the prompt continues in the message.
    let prompt_rest: Vec<&str> = prompt.tokens_in(common..prompt.text.len()).collect();
    let differ = message.tokens_in(common..words).all(|token| !prompt_rest.contains(&token));
    differ.then(|| Start { at: common, parted: Some(prompt.text.to_owned()) })
}

/// Where a rendering with a generation prompt parts from one without: where the other one ends, or else the end of the
/// last run up to which they are the same.
pub(super) fn parting_runs(prompt: &Rendered, plain: &Rendered) -> usize {
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

/// How many bytes two texts have in common at their beginning, whole characters only.
pub(super) fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.map(|(c, _)| c.len_utf8()).sum()
}
