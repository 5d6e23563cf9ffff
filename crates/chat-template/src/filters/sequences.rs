//! Filters of sequences and dicts.

use std::cmp::Ordering;

use super::{Filter, Mapping, Path, Selection, Uniqueness};
use crate::error::{Error, Result};
use crate::eval::Eval;
use crate::eval::expression::{Given, check_hashable};
use crate::eval::iterate::{Generator, Iter, Step};
use crate::text::Origin;
use crate::value::{Undefined, Val, View};

impl<'a> Eval<'a> {
    pub(super) fn sequence_filter(
        &mut self,
        filter: Filter,
        value: Val<'a>,
        given: Given<'a>,
    ) -> Result<Val<'a>> {
        match filter {
            Filter::List => {
                let [] = given.bind("list", [])?;
                let origin = if let Val::List(list) = value { list.origin } else { Origin::TEMPLATE };
                let items = self.collect_items(value)?;
                self.heap.list(items, origin)
            }
            Filter::Items => {
                let [] = given.bind("items", [])?;
                match value {
                    Val::Undefined(_) => self.generator(Generator::of(Iter::Items(&[]))),
                    Val::Dict(dict) => {
                        self.generator(Generator::of(Iter::Entries(View::Items, dict.entries)))
                    }
                    // jinja2 raises only when the first item is asked for.
                    _ => self.invalid_generator("Can only get item pairs from a mapping."),
                }
            }
            Filter::First => {
                let [] = given.bind("first", [])?;
                let first = Iter::of(value)?.next(self)?;
                Ok(first.unwrap_or(Val::Undefined(&Undefined::Hint("No first item, sequence was empty."))))
            }
            Filter::Last => {
                let [] = given.bind("last", [])?;
                let last = self.reversed(value)?.next(self)?;
                Ok(last.unwrap_or(Val::Undefined(&Undefined::Hint("No last item, sequence was empty."))))
            }
            Filter::Reverse => {
                let [] = given.bind("reverse", [])?;
                self.reverse(value)
            }
            Filter::Join => self.join_filter(value, given),
            Filter::Map => self.map_filter(value, given),
            Filter::Select | Filter::Reject | Filter::SelectAttr | Filter::RejectAttr => {
                self.select_filter(filter, value, given)
            }
            Filter::Sort => self.sort_filter(value, given),
            Filter::DictSort => self.dictsort(value, given),
            Filter::Unique => self.unique(value, given),
            Filter::Min | Filter::Max => self.extreme(filter, value, given),
            Filter::Sum => self.sum_filter(value, given),
            _ => Err(Error::unsupported("this filter")),
        }
    }

    fn generator(&self, generator: Generator<'a>) -> Result<Val<'a>> {
        Ok(Val::Generator(self.heap.alloc(generator)?))
    }

    fn list(&self, items: &[Val<'a>]) -> Result<Val<'a>> {
        self.heap.list(self.heap.slice(items)?, Origin::TEMPLATE)
    }

    /// A generator that raises when it is read.
    fn invalid_generator(&self, message: &str) -> Result<Val<'a>> {
        let mapping = self.heap.alloc(Mapping::Invalid(self.heap.text(message)?))?;
        let one = self.heap.slice(&[Val::None(Origin::TEMPLATE)])?;
        self.generator(Generator::new(self.heap.list(one, Origin::TEMPLATE)?, Step::Map(mapping)))
    }

    /// `reversed(value)`.
    fn reversed(&mut self, value: Val<'a>) -> Result<Iter<'a>> {
        Ok(match value {
            Val::Undefined(_) => Iter::Items(&[]),
            Val::List(list) | Val::Tuple(list) => Iter::Reversed(list.items),
            Val::Str(_) | Val::Markup(_) | Val::Dict(_) | Val::View(..) | Val::Range(_) => {
                Iter::Reversed(self.collect_items(value)?)
            }
            _ => return Err(Error::runtime(format!("'{}' object is not reversible", value.type_name()))),
        })
    }

    fn reverse(&mut self, value: Val<'a>) -> Result<Val<'a>> {
        match value {
            Val::Str(_) | Val::Markup(_) => {
                self.slice(value, None, None, Some(Val::Int(-1, Origin::TEMPLATE)))
            }
            Val::Generator(_) => {
                let mut items = self.collect_items(value)?.to_vec();
                items.reverse();
                self.list(&items)
            }
            _ => {
                let reversed = self.reversed(value)?;
                self.generator(Generator::of(reversed))
            }
        }
    }

    fn join_filter(&mut self, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let [separator, attribute] = given.bind("join", ["d", "attribute"])?;
        let separator = match separator {
            Some(separator) => self.text_of(&separator)?,
            None => crate::text::Str::EMPTY,
        };
        let path = match attribute {
            None | Some(Val::None(_)) => None,
            attribute => Some(self.path(attribute)?),
        };
        let mut iter = Iter::of(value)?;
        let mark = self.out.mark();
        let mut first = true;
        while let Some(item) = iter.next(self)? {
            if !first {
                self.out.push_str(separator)?;
            }
            first = false;
            let item = match path {
                Some(path) => self.path_value(item, path, None)?,
                None => item,
            };
            self.write(&item)?;
        }
        self.take_str(mark)
    }

    fn map_filter(&mut self, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let attribute = given.keywords.iter().find(|(name, _)| *name == "attribute");
        let mapping = match (given.positional.split_first(), attribute) {
            (None, Some((_, attribute))) => {
                let default =
                    given.keywords.iter().find(|(name, _)| *name == "default").map(|(_, value)| *value);
                let default = default.filter(|value| !matches!(value, Val::None(_)));
                let unknown =
                    given.keywords.iter().find(|(name, _)| !matches!(*name, "attribute" | "default"));
                match unknown {
                    Some((name, _)) => {
                        Mapping::Invalid(self.heap.text(&format!("Unexpected keyword argument '{name}'"))?)
                    }
                    None => Mapping::Attribute { path: self.path(Some(*attribute))?, default },
                }
            }
            (None, None) => Mapping::Invalid("map requires a filter argument"),
            (Some((name, rest)), _) => {
                Mapping::Filter { name: *name, given: Given { positional: rest, keywords: given.keywords } }
            }
        };
        let mapping = self.heap.alloc(mapping)?;
        self.generator(Generator::new(value, Step::Map(mapping)))
    }

    fn select_filter(&mut self, filter: Filter, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let by_attribute = matches!(filter, Filter::SelectAttr | Filter::RejectAttr);
        let mut rest = given.positional;
        let mut path = None;
        let mut no_attribute = false;
        if by_attribute {
            match rest.split_first() {
                Some((attribute, others)) => {
                    path = Some(self.path(Some(*attribute))?);
                    rest = others;
                }
                None => no_attribute = true,
            }
        }
        let (test, rest) = match rest.split_first() {
            Some((test, others)) => (Some(*test), others),
            None => (None, rest),
        };
        let selection = self.heap.alloc(Selection {
            path,
            test,
            given: Given { positional: rest, keywords: given.keywords },
            reject: matches!(filter, Filter::Reject | Filter::RejectAttr),
            no_attribute,
        })?;
        self.generator(Generator::new(value, Step::Select(selection)))
    }

    /// The key that a value is compared by: strings without case, unless case counts.
    fn sort_key(&mut self, value: Val<'a>, case_sensitive: bool) -> Result<Val<'a>> {
        match value {
            Val::Str(_) | Val::Markup(_) if !case_sensitive => self.map_text(value, Self::lower),
            value => Ok(value),
        }
    }

    fn flag(&mut self, value: Option<Val<'a>>) -> Result<bool> {
        value.map_or(Ok(false), |value| self.truth(&value))
    }

    /// Sorts items by their keys, keeping the order of equal ones. Python compares with `<` only.
    fn sort_by_keys(
        &mut self,
        mut items: Vec<(Val<'a>, Val<'a>)>,
        reverse: bool,
    ) -> Result<Vec<(Val<'a>, Val<'a>)>> {
        if reverse {
            // As Python does it: equal items keep their order also then.
            items.reverse();
        }
        let mut sorted = self.merge_sort(items)?;
        if reverse {
            sorted.reverse();
        }
        Ok(sorted)
    }

    pub(crate) fn merge_sort(
        &mut self,
        mut items: Vec<(Val<'a>, Val<'a>)>,
    ) -> Result<Vec<(Val<'a>, Val<'a>)>> {
        if items.len() < 2 {
            return Ok(items);
        }
        let right = items.split_off(items.len() / 2);
        let left = self.merge_sort(items)?;
        let right = self.merge_sort(right)?;
        let mut merged = Vec::with_capacity(left.len() + right.len());
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            let Some(order) = self.order(&b.0, &a.0)? else {
                return Err(Error::unsupported("sorting with a NaN"));
            };
            let less = order == Ordering::Less;
            merged.extend(if less { right.next() } else { left.next() });
        }
        merged.extend(left);
        merged.extend(right);
        Ok(merged)
    }

    fn sort_filter(&mut self, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let [reverse, case_sensitive, attribute] =
            given.bind("sort", ["reverse", "case_sensitive", "attribute"])?;
        let (reverse, case_sensitive) = (self.flag(reverse)?, self.flag(case_sensitive)?);
        let paths = self.paths(attribute)?;
        let mut items = Vec::new();
        for item in self.collect_items(value)? {
            let mut keys = Vec::with_capacity(paths.len());
            for path in &paths {
                let key = self.path_value(*item, path, None)?;
                keys.push(self.sort_key(key, case_sensitive)?);
            }
            items.push((self.list(&keys)?, *item));
        }
        let sorted: Vec<_> = self.sort_by_keys(items, reverse)?.into_iter().map(|(_, item)| item).collect();
        self.list(&sorted)
    }

    /// `sort` takes several attributes, with commas between them.
    fn paths(&mut self, attribute: Option<Val<'a>>) -> Result<Vec<Path<'a>>> {
        match attribute {
            Some(Val::Str(string) | Val::Markup(string)) => {
                let parts: Vec<_> = string.text.split(',').collect();
                parts
                    .into_iter()
                    .map(|part| {
                        let part = self.heap.str(string.part(part, self.heap)?)?;
                        self.path(Some(part))
                    })
                    .collect()
            }
            other => Ok(vec![self.path(other)?]),
        }
    }

    fn dictsort(&mut self, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let [case_sensitive, by, reverse] = given.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
        let by_value = match by {
            None => false,
            Some(by) if by.is_text("key") => false,
            Some(by) if by.is_text("value") => true,
            Some(_) => return Err(Error::runtime("You can only sort by either \"key\" or \"value\"")),
        };
        let (case_sensitive, reverse) = (self.flag(case_sensitive)?, self.flag(reverse)?);
        let Val::Dict(dict) = value else {
            return Err(Error::runtime(format!("'{}' has no items to sort", value.type_name())));
        };
        let mut items = Vec::new();
        for (key, value) in dict.entries {
            let sort_key = self.sort_key(if by_value { *value } else { *key }, case_sensitive)?;
            items.push((sort_key, self.heap.tuple(self.heap.slice(&[*key, *value])?)?));
        }
        let sorted: Vec<_> = self.sort_by_keys(items, reverse)?.into_iter().map(|(_, item)| item).collect();
        self.list(&sorted)
    }

    fn unique(&mut self, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let [case_sensitive, attribute] = given.bind("unique", ["case_sensitive", "attribute"])?;
        let uniqueness = Uniqueness {
            path: self.path(attribute)?,
            case_sensitive: self.flag(case_sensitive)?,
            seen: bumpalo::collections::Vec::new_in(self.heap.bump()).into(),
        };
        let uniqueness = self.heap.alloc(uniqueness)?;
        self.generator(Generator::new(value, Step::Unique(uniqueness)))
    }

    /// Whether `unique` has not seen an item like this one.
    pub(crate) fn is_new(&mut self, uniqueness: &'a Uniqueness<'a>, item: Val<'a>) -> Result<bool> {
        let key = self.path_value(item, uniqueness.path, None)?;
        let key = self.sort_key(key, uniqueness.case_sensitive)?;
        check_hashable(&key)?;
        let mut seen = uniqueness.seen.borrow_mut();
        self.heap.work(seen.len() * 16)?;
        for other in seen.iter() {
            if self.equal(other, &key)? {
                return Ok(false);
            }
        }
        self.heap.charge(2 * size_of::<Val<'a>>())?;
        seen.push(key);
        Ok(true)
    }

    fn extreme(&mut self, filter: Filter, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let [case_sensitive, attribute] = given.bind("min or max", ["case_sensitive", "attribute"])?;
        let case_sensitive = self.flag(case_sensitive)?;
        let path = self.path(attribute)?;
        let wanted = if filter == Filter::Min { Ordering::Less } else { Ordering::Greater };
        let mut iter = Iter::of(value)?;
        let mut best: Option<(Val<'a>, Val<'a>)> = None;
        while let Some(item) = iter.next(self)? {
            let key = self.path_value(item, path, None)?;
            let key = self.sort_key(key, case_sensitive)?;
            match &best {
                Some((best_key, _)) if self.order(&key, best_key)? != Some(wanted) => {}
                _ => best = Some((key, item)),
            }
        }
        Ok(best.map_or(
            Val::Undefined(&Undefined::Hint("No aggregated item, sequence was empty.")),
            |(_, item)| item,
        ))
    }

    fn sum_filter(&mut self, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let [attribute, start] = given.bind("sum", ["attribute", "start"])?;
        let path = match attribute {
            None | Some(Val::None(_)) => None,
            attribute => Some(self.path(attribute)?),
        };
        let mut total = start.unwrap_or(Val::Int(0, Origin::TEMPLATE));
        if total.as_str().is_some() {
            return Err(Error::runtime("sum() can't sum strings"));
        }
        let mut iter = Iter::of(value)?;
        while let Some(item) = iter.next(self)? {
            let item = match path {
                Some(path) => self.path_value(item, path, None)?,
                None => item,
            };
            if matches!(total, Val::Float(..)) || matches!(item, Val::Float(..)) {
                // Python 3.12 and later add floats with a correction.
                return Err(Error::unsupported("a sum of floats"));
            }
            total = self.add(total, item)?;
        }
        Ok(total)
    }
}
