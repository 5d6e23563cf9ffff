//! Filters of strings.

use super::Filter;
use crate::error::{Error, Result};
use crate::eval::Eval;
use crate::eval::access::as_index;
use crate::eval::expression::Given;
use crate::text::{Origin, Str};
use crate::value::Val;

impl<'a> Eval<'a> {
    /// `soft_str(value)`: a string stays what it is, all else becomes one.
    fn soft_str(&mut self, value: Val<'a>) -> Result<Val<'a>> {
        match value {
            Val::Str(_) | Val::Markup(_) => Ok(value),
            _ => {
                let text = self.text_of(&value)?;
                self.heap.str(text)
            }
        }
    }

    pub(super) fn string_filter(
        &mut self,
        filter: Filter,
        value: Val<'a>,
        given: Given<'a>,
    ) -> Result<Val<'a>> {
        if let Some(string) = value.as_str() {
            self.heap.work(string.text.len())?;
        }
        match filter {
            Filter::Trim => {
                let [chars] = given.bind("trim", ["chars"])?;
                let value = self.soft_str(value)?;
                self.strip(value, chars, true, true)
            }
            Filter::String => {
                let [] = given.bind_positional("string")?;
                self.soft_str(value)
            }
            Filter::Upper | Filter::Lower | Filter::Capitalize => {
                let [] = given.bind("the filter", [])?;
                let value = self.soft_str(value)?;
                self.map_text(value, |eval, string| match filter {
                    Filter::Upper => eval.upper(string),
                    Filter::Lower => eval.lower(string),
                    _ => eval.capitalize(string),
                })
            }
            Filter::Title => {
                let [] = given.bind("title", [])?;
                let text = self.text_of(&value)?;
                self.title_filter(text).and_then(|text| self.heap.str(text))
            }
            Filter::Replace => {
                let [old, new, count] = given.bind("replace", ["old", "new", "count"])?;
                let (Some(old), Some(new)) = (old, new) else {
                    return Err(Error::runtime("replace needs what to replace, and by what"));
                };
                let count = match count {
                    None | Some(Val::None(_)) => -1,
                    Some(count) => as_index(&count, "replace")?,
                };
                let (text, old, new) = (self.text_of(&value)?, self.text_of(&old)?, self.text_of(&new)?);
                self.replace(text, old, new, count).and_then(|text| self.heap.str(text))
            }
            Filter::Safe => {
                let [] = given.bind("safe", [])?;
                self.text_of(&value).and_then(|text| self.heap.markup(text))
            }
            Filter::Escape => {
                let [] = given.bind_positional("escape")?;
                self.escape(&value)
            }
            Filter::Format => {
                if !given.positional.is_empty() && !given.keywords.is_empty() {
                    return Err(Error::runtime(
                        "can't handle positional and keyword arguments at the same time",
                    ));
                }
                let value = self.soft_str(value)?;
                let arguments = if given.keywords.is_empty() {
                    self.heap.tuple(given.positional)?
                } else {
                    let entries: Vec<_> = given
                        .keywords
                        .iter()
                        .map(|(name, value)| Ok((self.heap.constant(name)?, *value)))
                        .collect::<Result<_>>()?;
                    self.make_dict(&entries)?
                };
                self.percent_format(value, arguments)
            }
            _ => self.indent(value, given),
        }
    }

    fn escape(&mut self, value: &Val<'a>) -> Result<Val<'a>> {
        let mark = self.out.mark();
        self.write_escaped(value)?;
        self.take_markup(mark)
    }

    /// Applies a function to a string; what is Markup stays so.
    pub(crate) fn map_text(
        &mut self,
        value: Val<'a>,
        f: impl FnOnce(&mut Self, Str<'a>) -> Result<Str<'a>>,
    ) -> Result<Val<'a>> {
        match value {
            Val::Markup(string) => f(self, *string).and_then(|text| self.heap.markup(text)),
            Val::Str(string) => f(self, *string).and_then(|text| self.heap.str(text)),
            _ => Err(Error::runtime(format!("expected a string, found {}", value.type_name()))),
        }
    }

    fn indent(&mut self, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let [width, first, blank] = given.bind("indent", ["width", "first", "blank"])?;
        let string = match value {
            Val::Str(string) => *string,
            Val::Markup(_) => return Err(Error::unsupported("indent of a string marked as safe")),
            Val::Undefined(undefined) => return Err(crate::eval::undefined_error(undefined)),
            _ => return Err(Error::runtime(format!("a '{}' cannot be indented", value.type_name()))),
        };
        let indention = match width {
            None => Str::new("    ", Origin::TEMPLATE),
            Some(Val::Str(width)) => *width,
            Some(Val::Markup(_)) => return Err(Error::unsupported("indent by a string marked as safe")),
            Some(width) => {
                let width = as_index(&width, "indent")?.max(0) as usize;
                self.heap.charge(width)?;
                Str::new(self.heap.text(&" ".repeat(width))?, Origin::TEMPLATE)
            }
        };
        let first = first.map_or(Ok(false), |first| self.truth(&first))?;
        let blank = blank.map_or(Ok(false), |blank| self.truth(&blank))?;
        let newline = Str::new("\n", Origin::TEMPLATE);
        let mark = self.out.mark();
        self.out.push_str(string)?;
        self.out.push_str(newline)?;
        let whole = self.out.take(mark)?;
        let lines = self.split_lines(whole, false)?;
        let mark = self.out.mark();
        if first {
            self.out.push_str(indention)?;
        }
        for (at, line) in lines.iter().enumerate() {
            if at > 0 {
                self.out.push_str(newline)?;
                if blank || !line.text.is_empty() {
                    self.out.push_str(indention)?;
                }
            }
            self.out.push_str(*line)?;
        }
        self.take_str(mark)
    }

    /// The filter `title`: words begin behind white space and opening brackets, unlike those of `str.title()`.
    fn title_filter(&mut self, string: Str<'a>) -> Result<Str<'a>> {
        let delimiter = |c: char| crate::unicode::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
        let text = string.text;
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let inside = text[at..].starts_with(delimiter);
            let length = text[at..].find(|c| delimiter(c) != inside).unwrap_or(text.len() - at);
            pieces.push(&text[at..at + length]);
            at += length;
        }
        let mark = self.out.mark();
        for piece in pieces {
            let first = piece.chars().next().map_or(0, char::len_utf8);
            let (head, tail) =
                (string.part(&piece[..first], self.heap)?, string.part(&piece[first..], self.heap)?);
            let (head, tail) = (self.upper(head)?, self.lower(tail)?);
            self.out.push_str(head)?;
            self.out.push_str(tail)?;
        }
        self.out.take(mark)
    }
}
