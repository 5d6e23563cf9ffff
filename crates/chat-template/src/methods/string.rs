//! Methods of strings.

use crate::attribute::Attribute;
use crate::error::{Error, Result};
use crate::eval::Eval;
use crate::eval::access::as_index;
use crate::eval::expression::Given;
use crate::eval::iterate::Iter;
use crate::is_tests::is_cased;
use crate::text::{Origin, Str};
use crate::unicode::{self, is_space};
use crate::value::Val;

impl<'a> Eval<'a> {
    #[allow(clippy::too_many_lines)] // One arm for each method.
    pub(super) fn string_method(
        &mut self,
        this: Val<'a>,
        method: Attribute,
        given: Given<'a>,
    ) -> Result<Val<'a>> {
        let Some(string) = this.as_str() else {
            return Err(Error::runtime("expected a string"));
        };
        let is_markup = matches!(this, Val::Markup(_));
        self.heap.work(string.text.len())?;
        let bool_value = |value| Ok(Val::Bool(value, Origin::TEMPLATE));
        let text = string.text;
        match method {
            Attribute::Strip | Attribute::LStrip | Attribute::RStrip => {
                let [chars] = given.bind_positional("strip()")?;
                self.strip(this, chars, method != Attribute::RStrip, method != Attribute::LStrip)
            }
            Attribute::Split | Attribute::RSplit => {
                let [separator, limit] = given.bind("split()", ["sep", "maxsplit"])?;
                let limit = limit.map_or(Ok(-1), |limit| as_index(&limit, "split()"))?;
                let parts = self.split(string, separator, limit, method == Attribute::RSplit)?;
                self.strings(&parts, is_markup)
            }
            Attribute::SplitLines => {
                let [keep] = given.bind("splitlines()", ["keepends"])?;
                let keep = match keep {
                    None => false,
                    Some(keep) => as_index(&keep, "splitlines()")? != 0,
                };
                let parts = self.split_lines(string, keep)?;
                self.strings(&parts, is_markup)
            }
            Attribute::StartsWith | Attribute::EndsWith => {
                let [affix, start, stop] = given.bind_positional("startswith()")?;
                let inside = range_of(string, start, stop)?;
                let affix = affix.ok_or_else(|| Error::runtime("startswith() needs a string"))?;
                let Some((inside, _)) = inside else {
                    return bool_value(false);
                };
                let ends = method == Attribute::EndsWith;
                let has =
                    |affix: &str| if ends { inside.ends_with(affix) } else { inside.starts_with(affix) };
                match affix {
                    Val::Str(affix) | Val::Markup(affix) => bool_value(has(affix.text)),
                    Val::Tuple(affixes) => {
                        for affix in affixes.items {
                            self.heap.step()?;
                            if has(text_argument(affix, "startswith()")?.text) {
                                return bool_value(true);
                            }
                        }
                        bool_value(false)
                    }
                    _ => Err(Error::runtime("startswith() needs a string or a tuple of strings")),
                }
            }
            Attribute::Replace => {
                let [old, new, count] = given.bind_positional("replace()")?;
                let count = count.map_or(Ok(-1), |count| as_index(&count, "replace()"))?;
                let (Some(old), Some(new)) = (old, new) else {
                    return Err(Error::runtime("replace() needs two strings"));
                };
                let old = text_argument(&old, "replace()")?;
                if !is_markup {
                    text_argument(&new, "replace()")?;
                }
                let new = self.taken_in(new, is_markup)?;
                let replaced = self.replace(string, old, new, count)?;
                self.marked(replaced, is_markup)
            }
            Attribute::Join => {
                let [parts] = given.bind_positional("join()")?;
                let parts = parts.ok_or_else(|| Error::runtime("join() needs strings"))?;
                self.join(string, parts, is_markup)
            }
            Attribute::Upper => {
                let [] = given.bind_positional("upper()")?;
                self.map_text(this, Self::upper)
            }
            Attribute::Lower => {
                let [] = given.bind_positional("lower()")?;
                self.map_text(this, Self::lower)
            }
            Attribute::Capitalize => {
                let [] = given.bind_positional("capitalize()")?;
                self.map_text(this, Self::capitalize)
            }
            Attribute::Title => {
                let [] = given.bind_positional("title()")?;
                self.map_text(this, Self::title)
            }
            Attribute::Find | Attribute::RFind | Attribute::Index | Attribute::RIndex => {
                let [part, start, stop] = given.bind_positional("find()")?;
                let part = part.ok_or_else(|| Error::runtime("find() needs a string"))?;
                let part = text_argument(&part, "find()")?.text;
                let inside = range_of(string, start, stop)?;
                let last = matches!(method, Attribute::RFind | Attribute::RIndex);
                let found = inside.and_then(|(inside, before)| {
                    let at = if last { inside.rfind(part) } else { inside.find(part) }?;
                    Some(before + unicode::length(&inside[..at]))
                });
                match found {
                    Some(at) => Ok(Val::Int(at as i64, Origin::TEMPLATE)),
                    None if matches!(method, Attribute::Find | Attribute::RFind) => {
                        Ok(Val::Int(-1, Origin::TEMPLATE))
                    }
                    None => Err(Error::runtime("substring not found")),
                }
            }
            Attribute::Count => {
                let [part, start, stop] = given.bind_positional("count()")?;
                let part = part.ok_or_else(|| Error::runtime("count() needs a string"))?;
                let part = text_argument(&part, "count()")?.text;
                let inside = range_of(string, start, stop)?;
                let count = inside.map_or(0, |(inside, _)| match part {
                    "" => unicode::length(inside) + 1,
                    part => inside.matches(part).count(),
                });
                Ok(Val::Int(count as i64, Origin::TEMPLATE))
            }
            Attribute::Partition | Attribute::RPartition => {
                let [separator] = given.bind_positional("partition()")?;
                let separator = separator.ok_or_else(|| Error::runtime("partition() needs a separator"))?;
                let separator = text_argument(&separator, "partition()")?.text;
                if separator.is_empty() {
                    return Err(Error::runtime("empty separator"));
                }
                let last = method == Attribute::RPartition;
                let at = if last { text.rfind(separator) } else { text.find(separator) };
                let (before, middle, after) = match at {
                    Some(at) => (&text[..at], &text[at..at + separator.len()], &text[at + separator.len()..]),
                    None if last => (&text[..0], &text[..0], text),
                    None => (text, &text[text.len()..], &text[text.len()..]),
                };
                let mut parts = [this; 3];
                for (slot, part) in parts.iter_mut().zip([before, middle, after]) {
                    *slot = self.marked(string.part(part, self.heap)?, is_markup)?;
                }
                self.heap.tuple(self.heap.slice(&parts)?)
            }
            Attribute::RemovePrefix | Attribute::RemoveSuffix => {
                let [affix] = given.bind_positional("removeprefix()")?;
                let affix = affix.ok_or_else(|| Error::runtime("removeprefix() needs a string"))?;
                let affix = text_argument(&affix, "removeprefix()")?.text;
                let rest = match method {
                    Attribute::RemovePrefix => text.strip_prefix(affix),
                    _ => text.strip_suffix(affix),
                };
                self.marked(string.part(rest.unwrap_or(text), self.heap)?, is_markup)
            }
            Attribute::Format if is_markup => Err(Error::unsupported("format() of a string marked as safe")),
            Attribute::Format => self.format(string, given).and_then(|text| self.heap.str(text)),
            _ => {
                let [] = given.bind_positional("the method")?;
                bool_value(is_kind(text, method)?)
            }
        }
    }

    /// A string as Markup's methods take it in: escaped, if the method is one of Markup's.
    fn taken_in(&mut self, value: Val<'a>, is_markup: bool) -> Result<Str<'a>> {
        if !is_markup {
            return self.text_of(&value);
        }
        let mark = self.out.mark();
        self.write_escaped(&value)?;
        self.out.take(mark)
    }

    fn marked(&self, string: Str<'a>, is_markup: bool) -> Result<Val<'a>> {
        if is_markup { self.heap.markup(string) } else { self.heap.str(string) }
    }

    fn strings(&self, parts: &[Str<'a>], is_markup: bool) -> Result<Val<'a>> {
        self.heap.charge(size_of_val(parts))?;
        let mut values = bumpalo::collections::Vec::with_capacity_in(parts.len(), self.heap.bump());
        for part in parts {
            values.push(self.marked(*part, is_markup)?);
        }
        self.heap.list(values.into_bump_slice(), Origin::TEMPLATE)
    }

    /// `strip`, `lstrip`, `rstrip` and the filter `trim`.
    pub(crate) fn strip(
        &mut self,
        this: Val<'a>,
        chars: Option<Val<'a>>,
        left: bool,
        right: bool,
    ) -> Result<Val<'a>> {
        let chars = match &chars {
            None | Some(Val::None(_)) => None,
            Some(chars) => Some(text_argument(chars, "strip()")?.text),
        };
        self.map_text(this, |eval, string| {
            let stripped = |c: char| match chars {
                None => is_space(c),
                Some(chars) => chars.contains(c),
            };
            eval.heap.work(string.text.len().saturating_mul(chars.map_or(1, str::len)) / 16)?;
            let mut text = string.text;
            if left {
                text = text.trim_start_matches(stripped);
            }
            if right {
                text = text.trim_end_matches(stripped);
            }
            string.part(text, eval.heap)
        })
    }

    pub(crate) fn split(
        &mut self,
        string: Str<'a>,
        separator: Option<Val<'a>>,
        limit: i64,
        from_right: bool,
    ) -> Result<Vec<Str<'a>>> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let text = string.text;
        let mut parts: Vec<&str> = match separator {
            None | Some(Val::None(_)) => split_on_space(text, limit, from_right),
            Some(separator) => {
                let separator = text_argument(&separator, "split()")?.text;
                if separator.is_empty() {
                    return Err(Error::runtime("empty separator"));
                }
                let pieces = limit.saturating_add(1);
                if from_right {
                    text.rsplitn(pieces, separator).collect()
                } else {
                    text.splitn(pieces, separator).collect()
                }
            }
        };
        if from_right {
            parts.reverse();
        }
        self.heap.charge(parts.len() * size_of::<Str<'a>>())?;
        parts.into_iter().map(|part| string.part(part, self.heap)).collect()
    }

    pub(crate) fn split_lines(&mut self, string: Str<'a>, keep_ends: bool) -> Result<Vec<Str<'a>>> {
        let is_end = |c: char| {
            matches!(
                c,
                '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
            )
        };
        let mut parts = Vec::new();
        let mut rest = string.text;
        while !rest.is_empty() {
            let length = rest.find(is_end).unwrap_or(rest.len());
            let end = match rest[length..].chars().next() {
                Some('\r') if rest[length + 1..].starts_with('\n') => 2,
                Some(c) => c.len_utf8(),
                None => 0,
            };
            let line = if keep_ends { &rest[..length + end] } else { &rest[..length] };
            parts.push(string.part(line, self.heap)?);
            rest = &rest[length + end..];
        }
        self.heap.charge(parts.len() * size_of::<Str<'a>>())?;
        Ok(parts)
    }

    pub(crate) fn replace(
        &mut self,
        string: Str<'a>,
        old: Str<'a>,
        new: Str<'a>,
        count: i64,
    ) -> Result<Str<'a>> {
        let limit = usize::try_from(count).unwrap_or(usize::MAX);
        let text = string.text;
        self.heap.work(text.len())?;
        let mark = self.out.mark();
        let mut at = 0;
        let mut found = 0;
        for start in match_starts(text, old.text).take(limit) {
            let before = string.part(&text[at..start], self.heap)?;
            self.out.push_str(before)?;
            self.out.push_str(new)?;
            at = start + old.text.len();
            found += 1;
        }
        if found == 0 {
            return Ok(string);
        }
        let after = string.part(&text[at..], self.heap)?;
        self.out.push_str(after)?;
        self.out.take(mark)
    }

    fn join(&mut self, separator: Str<'a>, parts: Val<'a>, is_markup: bool) -> Result<Val<'a>> {
        let mut iter = Iter::of(parts)?;
        let mark = self.out.mark();
        let mut at = 0;
        while let Some(item) = iter.next(self)? {
            if at > 0 {
                self.out.push_str(separator)?;
            }
            match item {
                _ if is_markup => self.write_escaped(&item)?,
                Val::Str(text) | Val::Markup(text) => self.out.push_str(*text)?,
                _ => {
                    return Err(Error::runtime(format!(
                        "sequence item {at}: expected str instance, {} found",
                        item.type_name()
                    )));
                }
            }
            at += 1;
        }
        if is_markup { self.take_markup(mark) } else { self.take_str(mark) }
    }

    /// Makes a string of what a function makes of each character. It is told whether a cased character is before it.
    fn map_chars(&mut self, string: Str<'a>, mut f: impl FnMut(char, bool, &mut String)) -> Result<Str<'a>> {
        self.heap.charge(string.text.len())?;
        let mark = self.out.mark();
        let mut after_cased = false;
        let mut buffer = String::new();
        for (text, run) in string.runs(self.heap) {
            buffer.clear();
            for c in text.chars() {
                f(c, after_cased, &mut buffer);
                after_cased = unicode::is_cased(c);
            }
            self.out.open(&buffer)?;
            self.out.close(run.origin);
        }
        self.out.take(mark)
    }

    pub(crate) fn upper(&mut self, string: Str<'a>) -> Result<Str<'a>> {
        self.map_chars(string, |c, _, out| {
            if c.is_ascii() { out.push(c.to_ascii_uppercase()) } else { out.extend(c.to_uppercase()) }
        })
    }

    pub(crate) fn lower(&mut self, string: Str<'a>) -> Result<Str<'a>> {
        if string.text.contains('Σ') {
            return self.lower_with_sigma(string);
        }
        self.map_chars(string, |c, _, out| {
            if c.is_ascii() { out.push(c.to_ascii_lowercase()) } else { out.extend(c.to_lowercase()) }
        })
    }

    /// A capital sigma becomes ς at the end of a word, which Rust's `to_lowercase` knows for whole texts.
    fn lower_with_sigma(&mut self, string: Str<'a>) -> Result<Str<'a>> {
        let lower = string.text.to_lowercase();
        let mut sigmas = lower.chars().filter(|c| matches!(c, 'σ' | 'ς'));
        let mut lowered = Vec::new();
        for c in string.text.chars() {
            match c {
                'Σ' | 'σ' | 'ς' => lowered.extend(sigmas.next()),
                _ => {}
            }
        }
        let mut lowered = lowered.into_iter();
        self.map_chars(string, |c, _, out| match c {
            'Σ' | 'σ' | 'ς' => out.extend(lowered.next()),
            c => out.extend(c.to_lowercase()),
        })
    }

    pub(crate) fn capitalize(&mut self, string: Str<'a>) -> Result<Str<'a>> {
        let first = string.text.chars().next().map_or(0, char::len_utf8);
        let (head, tail) = string.text.split_at(first);
        if string.text.contains('Σ') {
            return Err(Error::unsupported("capitalize() of a capital sigma"));
        }
        let (head, tail) = (string.part(head, self.heap)?, string.part(tail, self.heap)?);
        let head = self.map_chars(head, |c, _, out| unicode::push_title(c, out))?;
        let tail = self.lower(tail)?;
        let mark = self.out.mark();
        self.out.push_str(head)?;
        self.out.push_str(tail)?;
        self.out.take(mark)
    }

    fn title(&mut self, string: Str<'a>) -> Result<Str<'a>> {
        if string.text.contains('Σ') {
            return Err(Error::unsupported("title() of a capital sigma"));
        }
        self.map_chars(string, |c, after_cased, out| {
            if after_cased { out.extend(c.to_lowercase()) } else { unicode::push_title(c, out) }
        })
    }
}

/// The text between two indices, and how many characters stand before it; `None` where Python finds nothing.
fn range_of<'a>(
    string: Str<'a>,
    start: Option<Val<'a>>,
    stop: Option<Val<'a>>,
) -> Result<Option<(&'a str, usize)>> {
    let text = string.text;
    let bound = |value: Option<Val<'a>>| match value {
        None | Some(Val::None(_)) => Ok(None),
        Some(value) => as_index(&value, "an index").map(Some),
    };
    let (start, stop) = (bound(start)?, bound(stop)?);
    if start.is_none() && stop.is_none() {
        return Ok(Some((text, 0)));
    }
    let length = unicode::length(text) as i64;
    let clamp = |index: i64| if index < 0 { index.saturating_add(length).max(0) } else { index };
    let (start, stop) = (clamp(start.unwrap_or(0)), clamp(stop.unwrap_or(length)).min(length));
    if start > stop {
        return Ok(None);
    }
    let byte = |index: i64| text.char_indices().nth(index as usize).map_or(text.len(), |(at, _)| at);
    Ok(Some((&text[byte(start)..byte(stop)], start as usize)))
}

/// An argument that must be a string.
pub(crate) fn text_argument<'a>(value: &Val<'a>, what: &str) -> Result<Str<'a>> {
    value.as_str().ok_or_else(|| Error::runtime(format!("{what} needs a string, not {}", value.type_name())))
}

/// Where a text has a part. An empty part is before each character and at the end.
fn match_starts<'t>(text: &'t str, part: &'t str) -> Box<dyn Iterator<Item = usize> + 't> {
    if part.is_empty() {
        return Box::new(text.char_indices().map(|(at, _)| at).chain([text.len()]));
    }
    Box::new(text.match_indices(part).map(|(at, _)| at))
}

/// `split()` without a separator: runs of white space separate, and none is at the ends. From the right, the parts are
/// in reverse.
fn split_on_space(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest =
        if from_right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    while !rest.is_empty() {
        if parts.len() == limit {
            parts.push(if from_right { rest.trim_end_matches(is_space) } else { rest });
            break;
        }
        if from_right {
            let at =
                rest.char_indices().rev().find(|(_, c)| is_space(*c)).map_or(0, |(at, c)| at + c.len_utf8());
            parts.push(&rest[at..]);
            rest = rest[..at].trim_end_matches(is_space);
        } else {
            let end = rest.find(is_space).unwrap_or(rest.len());
            parts.push(&rest[..end]);
            rest = rest[end..].trim_start_matches(is_space);
        }
    }
    parts
}

/// `isalpha()` and its kin.
fn is_kind(text: &str, method: Attribute) -> Result<bool> {
    let all = |f: fn(char) -> bool| !text.is_empty() && text.chars().all(f);
    Ok(match method {
        Attribute::IsAscii => text.is_ascii(),
        Attribute::IsSpace => all(is_space),
        Attribute::IsLower => is_cased(text, true),
        Attribute::IsUpper => is_cased(text, false),
        // Beyond ASCII, Python asks for other properties than Rust.
        _ if !text.is_ascii() => return Err(Error::unsupported("isalpha() and its kin beyond ASCII")),
        Attribute::IsAlnum => all(|c| c.is_ascii_alphanumeric()),
        Attribute::IsAlpha => all(|c| c.is_ascii_alphabetic()),
        _ => all(|c| c.is_ascii_digit()),
    })
}
