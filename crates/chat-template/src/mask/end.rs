//! Where a message ends: the token at which the model stops.

use std::ops::Range;

use aho_corasick::AhoCorasick;

use super::finder::{Finder, Region, mask_error, token_ranges};
use super::messages::{ASSISTANT, Message};
use crate::error::Result;

impl Finder<'_, '_> {
    /// Whether the conversation ends with an assistant message, and the template writes no stop token behind it.
    pub(super) fn lacks_final_stop(&mut self) -> Result<bool> {
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

    /// Whether a message is the last one, and the final stop token follows it.
    pub(super) fn is_stopped_last(&self, message: usize) -> bool {
        self.adds_stop && message + 1 == self.messages.len()
    }

    /// The token that ends a message, behind its last own word.
    pub(super) fn end_token(&self, message: usize, start: usize, region: &Region) -> Result<Range<usize>> {
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
                "behind the last special token that the template writes, {tail:?} continues"
            )));
        }
        Ok(behind + last.start..behind + last.end)
    }

    /// The first stop token that the template writes in a range. Some templates write the result of a tool inside of
    /// the message that calls it, and both name the tool: then the message's last word is not the model's.
    pub(super) fn first_stop(
        &self,
        stops: &AhoCorasick,
        range: Range<usize>,
        region: &Region,
    ) -> Result<Range<usize>> {
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
    pub(super) fn stop_token(&self, stops: &AhoCorasick, behind: usize, region: &Region) -> Range<usize> {
        let end = self.next_words(behind);
        if let Some(token) = token_ranges(stops, &self.text()[behind..end.max(behind)]).first() {
            return behind + token.start..behind + token.end;
        }
        let end = behind + self.text()[behind..region.bytes.end.max(behind)].trim_end().len();
        end..end
    }

    pub(super) fn token_behind(&self, region: &Region) -> Range<usize> {
        let behind = region.own.last().map_or(region.bytes.end, |(last, _)| last.end);
        let Ok(tokens) = self.template.special_tokens() else { return behind..behind };
        match tokens.find(&self.text()[behind..]) {
            Some(token) if token.start() == 0 => behind..behind + token.end(),
            _ => behind..behind,
        }
    }
}
