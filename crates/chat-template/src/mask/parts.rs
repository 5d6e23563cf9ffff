//! The text of the template that belongs to a message's reasoning, to its content and to its calls: what is left out
//! with a part, and where an answer begins that the generation prompt does not lead to.
//!
//! Text between two parts closes the first one and opens the second one. The same conversation without the second part
//! shows what closes the first one, and without the first part what opens the second one.

use std::ops::Range;

use super::finder::{Finder, Part, Region, mask_error, token_ranges};
use super::messages::{CALLS, REASONING};
use super::start::common_prefix;
use crate::chat::Rendered;
use crate::error::Result;

/// The words of a part, with all that the template writes between them.
#[derive(Debug, Clone)]
struct Section {
    bytes: Range<usize>,
    part: Part,
    /// Where its first run ends, and where its last one begins.
    first_end: usize,
    last_start: usize,
}

/// How the template's text between two parts is divided.
#[derive(Debug, Clone)]
pub(super) struct Division {
    parts: (Option<Part>, Option<Part>),
    text: String,
    /// `None`: it cannot be told.
    cut: Option<Cut>,
}

/// Text up to `close` belongs to the part before it, and text from `open` on to the part behind it.
#[derive(Debug, Clone, Copy)]
struct Cut {
    close: usize,
    open: usize,
    /// The text between is written without either of the parts too, as around a content that is empty.
    is_neither: bool,
}

impl Cut {
    fn at(at: usize) -> Self {
        Self { close: at, open: at, is_neither: false }
    }
}

impl Finder<'_, '_> {
    /// Adds what of a message is trained on: from its start to its end, without parts that are left out.
    pub(super) fn add_parts(
        &mut self,
        message: usize,
        start: usize,
        end: Range<usize>,
        region: &Region,
        ranges: &mut Vec<Range<usize>>,
    ) -> Result<()> {
        let sections = self.sections(message, start..end.end);
        let mut begin = sections.first().is_none_or(|first| self.keeps(first.part)).then_some(start);
        for pair in sections.windows(2) {
            let [left, right] = pair else { continue };
            if self.keeps(left.part) && self.keeps(right.part) {
                continue;
            }
            let at = left.bytes.end;
            let Cut { close, open, is_neither } = self.between(message, left, right)?;
            ranges.extend(begin.take().map(|begin| begin..at + close));
            ranges.extend(is_neither.then_some(at + close..at + open));
            begin = self.keeps(right.part).then_some(at + open);
        }
        let begin = match (begin, sections.last()) {
            (None, Some(last)) => self.behind(message, last, &end, region)?,
            _ => begin.unwrap_or(start),
        };
        ranges.push(begin..end.end);
        Ok(())
    }

    fn keeps(&self, part: Part) -> bool {
        match part {
            Part::Content => true,
            Part::Reasoning => self.training.reasoning,
            Part::ToolCalls => self.training.tool_calls,
        }
    }

    /// The sections of a message in a range, part by part.
    fn sections(&self, message: usize, range: Range<usize>) -> Vec<Section> {
        let mut sections: Vec<Section> = Vec::new();
        for (bytes, part) in &self.traces[message].own {
            if bytes.end <= range.start || bytes.start >= range.end {
                continue;
            }
            match sections.last_mut() {
                Some(last) if last.part == *part => {
                    (last.bytes.end, last.last_start) = (bytes.end, bytes.start);
                }
                _ => sections.push(Section {
                    bytes: bytes.clone(),
                    part: *part,
                    first_end: bytes.end,
                    last_start: bytes.start,
                }),
            }
        }
        sections
    }

    /// How the text between two parts is divided.
    fn between(&mut self, message: usize, left: &Section, right: &Section) -> Result<Cut> {
        let gap = left.bytes.end..right.bytes.start;
        let cut = self.divided((Some(left.part), Some(right.part)), gap.clone(), |finder| {
            let (before, after) = (left.last_start..gap.start, gap.end..right.first_end);
            let close = finder.without(message, right.part, |finder, reduced| {
                let at = finder.same_run(&before, reduced)?.end;
                Some(finder.same_start(&gap, &reduced.text[at..]))
            })?;
            let open = finder.without(message, left.part, |finder, reduced| {
                let at = finder.same_run(&after, reduced)?.start;
                Some(finder.same_end(&gap, &reduced.text[..at]))
            })?;
            let text = &finder.text()[gap.clone()];
            Ok(match (close, open) {
                (Some(close), Some(open)) if close <= open => Some(Cut { close, open, is_neither: false }),
                (close, Some(open)) => {
                    // Text that is written both without the one and without the other leads to the second one, or if
                    // that has an opening of its own, it is neither's. If nothing is before it, it is written behind an
                    // empty first part too, which its first piece closes.
                    let end = close.unwrap_or(text.len());
                    let open = if open > 0 { Some(open) } else { finder.first_piece(&gap, end) };
                    open.map(|open| {
                        if text[open..end].trim().is_empty() {
                            Cut::at(end)
                        } else if end == text.len() {
                            Cut::at(open)
                        } else {
                            Cut { close: open, open: end, is_neither: true }
                        }
                    })
                }
                (Some(close), None) => Some(Cut::at(close)),
                (None, None) if finder.is_one_piece(&gap) => {
                    Some(Cut { close: 0, open: text.len(), is_neither: false })
                }
                (None, None) => None,
            })
        })?;
        cut.ok_or_else(|| {
            mask_error(format!(
                "the template writes {:?} between its {} and its {}, of which only one is trained on, and does not show what \
                 belongs to which: train on both",
                &self.text()[gap],
                left.part.name(),
                right.part.name()
            ))
        })
    }

    /// Where a message begins that the generation prompt does not lead to: behind what closes a reasoning that the prompt
    /// opens, as the model would not close it there. If its first word is a call's, with what opens the calls. If it says
    /// nothing, with the token that ends it.
    pub(super) fn opening(
        &mut self,
        message: usize,
        start: usize,
        end: &Range<usize>,
        prompt: &str,
    ) -> Result<usize> {
        match self.sections(message, start..end.start).first() {
            None => Ok(end.start),
            Some(first) if first.part == Part::ToolCalls => {
                self.calls_start(message, start, first)?.ok_or_else(|| {
                    mask_error(format!(
                        "the template writes {:?} in front of its calls, and does not render it without them: where they \
                         begin cannot be told",
                        &self.text()[start..first.bytes.start]
                    ))
                })
            }
            Some(first) => {
                let words = first.bytes.start.max(start);
                let lead = &self.text()[start..words];
                let marker = self.marker_end(lead).unwrap_or(lead.len());
                let closed = if letters(prompt).ends_with(&marker_name(&lead[..marker])) { marker } else { 0 };
                Ok(if lead[closed..].trim().is_empty() { words } else { start + closed })
            }
        }
    }

    /// Where a message's calls, its first part, begin: behind what the template writes without them too.
    fn calls_start(&mut self, message: usize, start: usize, first: &Section) -> Result<Option<usize>> {
        let gap = start..first.bytes.start.max(start);
        let cut = self.divided((None, Some(first.part)), gap.clone(), |finder| {
            let same = finder.without(message, first.part, |finder, reduced| {
                let rest = reduced.text.strip_prefix(&finder.text()[..start])?;
                Some(finder.same_start(&gap, rest))
            })?;
            Ok(same.or_else(|| finder.is_one_piece(&gap).then_some(0)).map(Cut::at))
        })?;
        Ok(cut.map(|cut| start + cut.open))
    }

    /// Where the text begins that is behind a message without its last part too. At least the token that ends it is.
    fn behind(
        &mut self,
        message: usize,
        last: &Section,
        end: &Range<usize>,
        region: &Region,
    ) -> Result<usize> {
        let gap = last.bytes.end..end.end;
        let token = self.text()[end.clone()].to_owned();
        if token.is_empty() {
            return Ok(end.start);
        }
        let before = self.traces[message]
            .own
            .iter()
            .rev()
            .find(|(own, part)| own.end <= last.bytes.start && *part != last.part);
        let before = before.map(|(own, _)| own.clone());
        let cut = self.divided((Some(last.part), None), gap.clone(), |finder| {
            let open = finder.without(message, last.part, |finder, reduced| {
                let rest = match &before {
                    Some(before) => &reduced.text[finder.same_run(before, reduced)?.end..],
                    None => reduced.text.strip_prefix(&finder.text()[..region.bytes.start])?,
                };
                let length = rest.find(&token)? + token.len();
                Some(finder.same_end(&gap, &rest[..length]))
            })?;
            let at_token = gap.len() - token.len();
            let open = open.unwrap_or(at_token).min(at_token);
            let is_blank = finder.text()[gap.start + open..end.start].trim().is_empty();
            Ok(Some(Cut::at(if is_blank { at_token } else { open })))
        })?;
        Ok(cut.map_or(end.start, |cut| gap.start + cut.open))
    }

    /// The cut that was found before in such a stretch between such parts, or one that is found now.
    fn divided(
        &mut self,
        parts: (Option<Part>, Option<Part>),
        gap: Range<usize>,
        find: impl FnOnce(&mut Self) -> Result<Option<Cut>>,
    ) -> Result<Option<Cut>> {
        let text = self.text()[gap].to_owned();
        if let Some(known) = self.divisions.iter().find(|known| known.parts == parts && known.text == text) {
            return Ok(known.cut);
        }
        let cut = find(self)?;
        self.divisions.push(Division { parts, text, cut });
        Ok(cut)
    }

    /// The result of the search in the conversation without a part of a message, or else in the messages up to that
    /// one.
    fn without<T>(
        &mut self,
        message: usize,
        part: Part,
        find: impl Fn(&Self, &Rendered) -> Option<T>,
    ) -> Result<Option<T>> {
        let all = self.session.without(message, part.fields())?;
        for messages in [all, &all[..=message]] {
            let reduced = self.render_messages(messages, false)?;
            if let Some(found) = reduced.and_then(|reduced| find(self, &reduced)) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The run of another rendering that is the same piece of what a message says.
    fn same_run(&self, bytes: &Range<usize>, other: &Rendered) -> Option<Range<usize>> {
        let runs = self.rendering.runs();
        let at = runs.partition_point(|run| (run.end as usize) < bytes.end);
        let origin = runs.get(at)?.origin;
        let before = runs[..at].iter().filter(|run| run.origin == origin).count();
        let mut numbered = other.runs.iter().enumerate().filter(|(_, run)| run.origin == origin);
        let (at, run) = numbered.nth(before)?;
        let start = at.checked_sub(1).map_or(0, |at| other.runs[at].end);
        Some(start as usize..run.end as usize)
    }

    /// How much of a stretch a text begins with, up to where the stretch can be divided.
    fn same_start(&self, gap: &Range<usize>, other: &str) -> usize {
        let text = &self.text()[gap.clone()];
        let common = common_prefix(text, other);
        if common == text.len() {
            return common;
        }
        let borders = self.borders(gap).into_iter().filter(|(_, at)| *at <= common);
        borders.min_by_key(|(level, at)| (*level, usize::MAX - at)).map_or(0, |(_, at)| at)
    }

    /// Where what a stretch and a text both end with begins, from where the stretch can be divided; not if it is white
    /// space only.
    fn same_end(&self, gap: &Range<usize>, other: &str) -> usize {
        let text = &self.text()[gap.clone()];
        let same = text.chars().rev().zip(other.chars().rev()).take_while(|(a, b)| a == b);
        let from = text.len() - same.map(|(c, _)| c.len_utf8()).sum::<usize>();
        if text[from..].trim().is_empty() {
            return text.len();
        }
        if from == 0 {
            return 0;
        }
        let borders = self.borders(gap).into_iter().filter(|(_, at)| *at >= from);
        let at = borders.min().map_or(text.len(), |(_, at)| at);
        if text[at..].trim().is_empty() { text.len() } else { at }
    }

    /// The end of the first piece that the template wrote of the beginning of a stretch: of a string, or of several that
    /// one statement wrote. If markers follow one another in a string, the first one is a piece. `None`: it cannot be told.
    fn first_piece(&self, gap: &Range<usize>, end: usize) -> Option<usize> {
        let borders = self.borders(gap);
        let (written, others): (Vec<_>, Vec<_>) = borders.into_iter().partition(|(level, _)| *level < TOKEN);
        let end = written.iter().filter(|(_, at)| *at < end).min().map_or(end, |(_, at)| *at);
        let text = &self.text()[gap.start..gap.start + end];
        let is_divided = |at: usize| {
            let is_inside = at < end && written.iter().all(|(_, border)| *border != at);
            is_inside && !text[..at].trim().is_empty() && !text[at..].trim().is_empty()
        };
        if !others.iter().any(|(_, at)| is_divided(*at)) {
            return Some(end);
        }
        let first = self.marker_end(text)?;
        let rest = text[first..].trim_start();
        self.marker_end(rest).map(|_| text.len() - rest.len())
    }

    /// The end of the token, or of what is in brackets like one, that a text begins with.
    fn marker_end(&self, text: &str) -> Option<usize> {
        let marker = text.trim_start();
        let token = self.template.tokens().ok().and_then(|tokens| tokens.find(marker));
        let end = match token.filter(|token| token.start() == 0) {
            Some(token) => token.end(),
            None if marker.starts_with('<') => marker.find('>')? + 1,
            None if marker.starts_with('[') => marker.find(']')? + 1,
            None => return None,
        };
        Some(text.len() - marker.len() + end)
    }

    /// Whether nothing shows where a stretch could be divided.
    fn is_one_piece(&self, gap: &Range<usize>) -> bool {
        self.first_piece(gap, gap.len()) == Some(gap.len())
    }

    /// Where a stretch can be divided, each with its level: best where a statement of the template ended that is inside of
    /// few others, then where a piece of text did, then at a token, then where a marker may begin that is none.
    fn borders(&self, gap: &Range<usize>) -> Vec<(u64, usize)> {
        let text = &self.text()[gap.clone()];
        let runs = self.rendering.runs().iter().map(|run| (u64::from(run.border), run.end as usize));
        let runs = runs.filter(|(_, end)| gap.contains(end)).map(|(level, end)| (level, end - gap.start));
        let tokens = self.template.tokens().map(|tokens| token_ranges(tokens, text)).unwrap_or_default();
        let tokens = tokens.into_iter().flat_map(|token| [(TOKEN, token.start), (TOKEN, token.end)]);
        let markers = text.match_indices(['<', '[']).map(|(at, _)| (MARKER, at));
        runs.chain(tokens).chain(markers).filter(|(_, at)| (1..text.len()).contains(at)).collect()
    }
}

/// The letters of a text, in lower case.
fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphabetic()).flat_map(char::to_lowercase).collect()
}

/// The name of the part that a marker opens or closes: for `</think>` and `<|END_THINK|>` it is `think`.
fn marker_name(marker: &str) -> String {
    let name = letters(marker);
    let rest = ["start", "begin", "end"].iter().find_map(|word| name.strip_prefix(word));
    rest.filter(|rest| !rest.is_empty()).unwrap_or(&name).to_owned()
}

/// The level of a border that only a token has.
const TOKEN: u64 = 1 << 32;
/// The level of a border that is none but for a bracket.
const MARKER: u64 = 1 << 33;

impl Part {
    /// The keys of a message that hold it.
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Content => &["content"],
            Self::Reasoning => &REASONING,
            Self::ToolCalls => &CALLS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Content => "content",
            Self::Reasoning => "reasoning",
            Self::ToolCalls => "tool calls",
        }
    }
}
