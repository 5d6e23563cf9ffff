//! Attributes, elements and slices.

use super::Eval;
use super::expression::check_hashable;
use crate::attribute::Attribute;
use crate::error::{Error, Result};
use crate::text::{Origin, Str};
use crate::value::{Method, Range, Undefined, Val};

/// The member of a type that a name finds.
enum Found<'a> {
    Value(Val<'a>),
    Missing,
}

impl<'a> Eval<'a> {
    /// `value.name`: the attribute of this name, else the element.
    #[inline]
    pub(crate) fn attribute(&mut self, value: Val<'a>, name: &'a str, known: Attribute) -> Result<Val<'a>> {
        if let Val::Dict(dict) = value
            && !known.is_dict_method()
            && !known.changes_dict()
        {
            // A dict has no other attributes.
            if known == Attribute::FromKeys {
                return Err(Error::unsupported("the method fromkeys"));
            }
            return match dict.get(name, self.heap)? {
                Some(found) => Ok(found),
                None => self.undefined(Undefined::Attr("dict", name)),
            };
        }
        match self.python_attribute(value, name, known)? {
            Found::Value(value) => Ok(value),
            Found::Missing => self.undefined(Undefined::Attr(value.type_name(), name)),
        }
    }

    /// `getattr()` of Python's, behind the sandbox.
    #[inline(never)]
    fn python_attribute(&mut self, value: Val<'a>, name: &'a str, known: Attribute) -> Result<Found<'a>> {
        let method = |eval: &Self| -> Result<Found<'a>> {
            let method = Method { this: value, method: known };
            Ok(Found::Value(Val::Method(eval.heap.alloc(method)?)))
        };
        let hidden =
            |eval: &Self| eval.undefined(Undefined::Unsafe(value.type_name(), name)).map(Found::Value);
        let unsupported =
            || Err(Error::unsupported(format!("the attribute {name} of a {}", value.type_name())));
        if name.starts_with("__") {
            return unsupported();
        }
        match value {
            Val::Undefined(undefined) => Err(super::undefined_error(undefined)),
            Val::Dict(_) if known.is_dict_method() => method(self),
            Val::Dict(_) if known.changes_dict() => hidden(self),
            Val::Dict(_) if known == Attribute::FromKeys => unsupported(),
            Val::List(_) if known.is_list_method() => method(self),
            Val::List(_) if known.changes_list() => hidden(self),
            Val::Tuple(_) if matches!(known, Attribute::Count | Attribute::Index) => method(self),
            Val::Str(_) | Val::Markup(_) if known.is_str_method() => method(self),
            Val::Str(_) | Val::Markup(_) if known == Attribute::OtherStr => unsupported(),
            Val::Markup(_) if known == Attribute::OtherMarkup => unsupported(),
            Val::Bool(..) | Val::Int(..) | Val::Big(_) | Val::Float(..)
                if known == Attribute::OtherNumber =>
            {
                unsupported()
            }
            Val::Namespace(namespace) => {
                Ok(namespace.get(name, self.heap)?.map_or(Found::Missing, Found::Value))
            }
            Val::Loop(_) if matches!(known, Attribute::Cycle | Attribute::Changed) => method(self),
            Val::Loop(state) => Ok(state.attribute(name, self)?.map_or(Found::Missing, Found::Value)),
            _ if rare_attributes(&value).contains(&name) => unsupported(),
            _ => Ok(Found::Missing),
        }
    }

    /// `value["name"]`: the element, else the attribute.
    #[inline]
    pub(super) fn item_named(&mut self, value: Val<'a>, name: &'a str, known: Attribute) -> Result<Val<'a>> {
        if let Val::Dict(dict) = value
            && let Some(found) = dict.get(name, self.heap)?
        {
            return Ok(found);
        }
        match self.python_attribute(value, name, known)? {
            Found::Value(value) => Ok(value),
            Found::Missing => self.undefined(Undefined::Attr(value.type_name(), name)),
        }
    }

    /// `value[index]`: the element, else the attribute of this name.
    pub(crate) fn item(&mut self, value: Val<'a>, index: Val<'a>) -> Result<Val<'a>> {
        if let Val::Dict(dict) = value
            && let Some(key) = index.as_str()
        {
            if let Some(found) = dict.get(key.text, self.heap)? {
                return Ok(found);
            }
        } else if let Val::Undefined(undefined) = value {
            return Err(super::undefined_error(undefined));
        } else if let Some(found) = self.element(value, index)? {
            return Ok(found);
        }
        let Some(name) = index.as_str() else {
            return self.undefined(Undefined::Element(value.type_name()));
        };
        match self.python_attribute(value, name.text, Attribute::named(name.text))? {
            Found::Value(value) => Ok(value),
            Found::Missing => self.undefined(Undefined::Attr(value.type_name(), name.text)),
        }
    }

    /// The element at an index or under a key; `None` where Python raises a `TypeError` or `LookupError`.
    fn element(&mut self, value: Val<'a>, index: Val<'a>) -> Result<Option<Val<'a>>> {
        if let Val::Dict(_) = value {
            return if check_hashable(&index).is_ok() { self.dict_get(value, index) } else { Ok(None) };
        }
        let index = match index {
            Val::Int(index, _) => index,
            Val::Bool(index, _) => i64::from(index),
            _ => return Ok(None),
        };
        Ok(match value {
            Val::List(list) | Val::Tuple(list) => position(index, list.items.len()).map(|at| list.items[at]),
            Val::Str(string) => {
                self.character(*string, index)?.map(|text| self.heap.str(text)).transpose()?
            }
            Val::Markup(string) => {
                self.character(*string, index)?.map(|text| self.heap.markup(text)).transpose()?
            }
            Val::Range(range) => position(index, range.length as usize)
                .map(|at| Val::Int(range.start + at as i64 * range.step, Origin::TEMPLATE)),
            _ => None,
        })
    }

    /// The value of any key of a dict.
    pub(crate) fn dict_get(&mut self, value: Val<'a>, key: Val<'a>) -> Result<Option<Val<'a>>> {
        let Val::Dict(dict) = value else { return Ok(None) };
        if let Some(key) = key.as_str() {
            return dict.get(key.text, self.heap);
        }
        self.heap.work(dict.entries.len() * 16)?;
        for (known, value) in dict.entries {
            if self.equal(known, &key)? {
                return Ok(Some(*value));
            }
        }
        Ok(None)
    }

    fn character(&self, string: Str<'a>, index: i64) -> Result<Option<Str<'a>>> {
        let text = string.text;
        self.heap.work(text.len())?;
        let part = if index >= 0 {
            text.char_indices().nth(index as usize).map(|(at, c)| &text[at..at + c.len_utf8()])
        } else {
            let back = index.unsigned_abs() as usize - 1;
            text.char_indices().nth_back(back).map(|(at, c)| &text[at..at + c.len_utf8()])
        };
        part.map(|part| string.part(part, self.heap)).transpose()
    }

    /// `value[start:stop:step]`.
    pub(crate) fn slice(
        &mut self,
        value: Val<'a>,
        start: Option<Val<'a>>,
        stop: Option<Val<'a>>,
        step: Option<Val<'a>>,
    ) -> Result<Val<'a>> {
        if let Val::Undefined(undefined) = value {
            return Err(super::undefined_error(undefined));
        }
        let length = match value {
            Val::Str(_) | Val::Markup(_) | Val::List(_) | Val::Tuple(_) | Val::Range(_) => {
                self.sized(&value)?.unwrap_or(0)
            }
            _ => return Err(Error::runtime(format!("'{}' object cannot be sliced", value.type_name()))),
        };
        let step = slice_index(step)?.unwrap_or(1);
        let bounds = Bounds::new(slice_index(start)?, slice_index(stop)?, step, length)?;
        Ok(match value {
            Val::Str(_) | Val::Markup(_) => {
                self.map_text(value, |eval, string| eval.slice_text(string, &bounds))?
            }
            Val::List(list) => self.heap.list(self.slice_items(list.items, &bounds)?, list.origin)?,
            Val::Tuple(list) => self.heap.tuple(self.slice_items(list.items, &bounds)?)?,
            Val::Range(range) => {
                let start = range.start + bounds.start * range.step;
                let step =
                    range.step.checked_mul(bounds.step).ok_or_else(|| Error::unsupported("such a range"))?;
                let stop = start + bounds.count * step;
                Val::Range(self.heap.alloc(Range { start, step, length: bounds.count, stop })?)
            }
            _ => value,
        })
    }

    fn slice_items(&self, items: &'a [Val<'a>], bounds: &Bounds) -> Result<&'a [Val<'a>]> {
        if bounds.step == 1 {
            return Ok(&items[bounds.start as usize..(bounds.start + bounds.count) as usize]);
        }
        self.heap.charge(bounds.count as usize * size_of::<Val<'a>>())?;
        let picked = bounds.indices().map(|at| items[at as usize]);
        Ok(bumpalo::collections::Vec::from_iter_in(picked, self.heap.bump()).into_bump_slice())
    }

    fn slice_text(&mut self, string: Str<'a>, bounds: &Bounds) -> Result<Str<'a>> {
        let text = string.text;
        if bounds.step == 1 {
            let start = byte_of(text, bounds.start as usize);
            let length = byte_of(&text[start..], bounds.count as usize);
            return string.part(&text[start..start + length], self.heap);
        }
        self.heap.charge(text.len() * 20)?;
        let mut chars = Vec::with_capacity(text.len());
        for (text, run) in string.runs(self.heap) {
            chars.extend(text.chars().map(|c| (c, run.origin)));
        }
        let mark = self.out.mark();
        let mut last = string.origin();
        for at in bounds.indices() {
            let (c, origin) = chars[at as usize];
            if origin != last {
                self.out.close(last);
                last = origin;
            }
            self.out.open(c.encode_utf8(&mut [0; 4]))?;
        }
        self.out.close(last);
        self.out.take(mark)
    }
}

/// Attributes that no template should depend on.
fn rare_attributes(value: &Val<'_>) -> &'static [&'static str] {
    match value {
        Val::View(..) => &["isdisjoint", "mapping"],
        Val::Range(_) => &["count", "index", "start", "step", "stop"],
        Val::Generator(_) => {
            &["close", "gi_code", "gi_frame", "gi_running", "gi_suspended", "gi_yieldfrom", "send", "throw"]
        }
        Val::Macro(_) => &["arguments", "caller", "catch_kwargs", "catch_varargs", "explicit_caller", "name"],
        Val::Function(_) => &["fromkeys", "mro"],
        _ => &[],
    }
}

/// The byte at which the character of this number starts; the end, if there are fewer.
fn byte_of(text: &str, chars: usize) -> usize {
    if chars >= text.len() || text.as_bytes()[..chars].is_ascii() {
        return chars.min(text.len());
    }
    text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at)
}

/// Python's index, of which negative ones count from the end.
fn position(index: i64, length: usize) -> Option<usize> {
    let at = if index < 0 { index.checked_add(length as i64)? } else { index };
    usize::try_from(at).ok().filter(|at| *at < length)
}

/// A bound of a slice.
fn slice_index(value: Option<Val<'_>>) -> Result<Option<i64>> {
    match value {
        None | Some(Val::None(_)) => Ok(None),
        Some(Val::Int(value, _)) => Ok(Some(value)),
        Some(Val::Bool(value, _)) => Ok(Some(i64::from(value))),
        Some(Val::Big(big)) => Ok(Some(if big.digits.starts_with('-') { i64::MIN } else { i64::MAX })),
        Some(_) => Err(Error::runtime("slice indices must be integers or None")),
    }
}

/// The elements that a slice picks.
struct Bounds {
    start: i64,
    step: i64,
    count: i64,
}

impl Bounds {
    fn new(start: Option<i64>, stop: Option<i64>, step: i64, length: i64) -> Result<Self> {
        if step == 0 {
            return Err(Error::runtime("slice step cannot be zero"));
        }
        let (lowest, highest) = if step < 0 { (-1, length - 1) } else { (0, length) };
        let clamp = |bound: Option<i64>, default: i64| match bound {
            None => default,
            Some(bound) if bound < 0 => bound.saturating_add(length).max(lowest),
            Some(bound) => bound.min(highest),
        };
        let start = clamp(start, if step < 0 { highest } else { lowest });
        let stop = clamp(stop, if step < 0 { lowest } else { highest });
        let distance = if step < 0 { start - stop } else { stop - start };
        let stride = step.unsigned_abs() as i64;
        let stride = if stride <= 0 { i64::MAX } else { stride };
        let count = if distance <= 0 { 0 } else { (distance - 1) / stride + 1 };
        Ok(Self { start: if count == 0 { 0 } else { start }, step, count })
    }

    fn indices(&self) -> impl Iterator<Item = i64> {
        (0..self.count).map(|at| self.start + at * self.step)
    }
}

/// The integer that an argument is, as Python takes it through `__index__`.
pub(crate) fn as_index(value: &Val<'_>, what: &str) -> Result<i64> {
    match value {
        Val::Undefined(undefined) => Err(super::undefined_error(undefined)),
        Val::Int(value, _) => Ok(*value),
        Val::Bool(value, _) => Ok(i64::from(*value)),
        Val::Big(_) => Err(Error::runtime(format!("{what}: the integer is too large"))),
        _ => Err(Error::runtime(format!("{what}: expected an integer, found {}", value.type_name()))),
    }
}
