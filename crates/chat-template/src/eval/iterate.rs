//! Iteration, and the iterators that filters such as `map` and `select` give: they compute their items when asked, and
//! can be read once.

use std::cell::RefCell;

use super::Eval;
use crate::error::{Error, Result};
use crate::filters::{Mapping, Selection, Uniqueness};
use crate::heap::Heap;
use crate::text::{Origin, Str};
use crate::value::{Condition, Dict, Val, View};

/// A position in something that is iterated over.
pub(crate) enum Iter<'a> {
    Items(&'a [Val<'a>]),
    /// From the last to the first.
    Reversed(&'a [Val<'a>]),
    Chars(Str<'a>),
    Entries(View, &'a [(Val<'a>, Val<'a>)]),
    Range {
        next: i64,
        step: i64,
        left: i64,
    },
    Generator(&'a Generator<'a>),
    /// Its items are being computed right now.
    Running,
}

impl<'a> Iter<'a> {
    /// Begins to iterate over a value.
    pub(crate) fn of(value: Val<'a>) -> Result<Self> {
        Ok(match value {
            Val::Undefined(_) => Iter::Items(&[]),
            // The characters of Markup are not Markup.
            Val::Str(string) | Val::Markup(string) => Iter::Chars(*string),
            Val::List(list) | Val::Tuple(list) => Iter::Items(list.items),
            Val::Dict(dict) => Iter::Entries(View::Keys, dict.entries),
            Val::View(view, dict) => Iter::Entries(view, dict.entries),
            Val::Range(range) => Iter::Range { next: range.start, step: range.step, left: range.length },
            Val::Generator(generator) => Iter::Generator(generator),
            Val::Loop(_) => return Err(Error::unsupported("iteration over the loop variable")),
            _ => return Err(Error::runtime(format!("'{}' object is not iterable", value.type_name()))),
        })
    }

    #[inline]
    pub(crate) fn next(&mut self, eval: &mut Eval<'a>) -> Result<Option<Val<'a>>> {
        eval.heap.step()?;
        Ok(match self {
            Iter::Items(items) => items.split_first().map(|(first, rest)| {
                *items = rest;
                *first
            }),
            Iter::Reversed(items) => items.split_last().map(|(last, rest)| {
                *items = rest;
                *last
            }),
            Iter::Chars(string) => match string.text.chars().next() {
                None => None,
                Some(c) => {
                    let (first, rest) = string.text.split_at(c.len_utf8());
                    let item = string.part(first, eval.heap)?;
                    *string = string.part(rest, eval.heap)?;
                    Some(eval.heap.str(item)?)
                }
            },
            Iter::Entries(view, entries) => match entries.split_first() {
                None => None,
                Some((entry, rest)) => {
                    *entries = rest;
                    Some(view_item(*view, entry, eval.heap)?)
                }
            },
            Iter::Range { next, step, left } => (*left > 0).then(|| {
                let item = *next;
                *next = next.wrapping_add(*step);
                *left -= 1;
                Val::Int(item, Origin::TEMPLATE)
            }),
            Iter::Generator(generator) => return generator.next(eval),
            Iter::Running => return Err(Error::runtime("generator already executing")),
        })
    }
}

fn view_item<'a>(view: View, (key, value): &(Val<'a>, Val<'a>), heap: &Heap<'a>) -> Result<Val<'a>> {
    Ok(match view {
        View::Keys => *key,
        View::Values => *value,
        View::Items => heap.tuple(heap.slice(&[*key, *value])?)?,
    })
}

/// An iterator as a value: a Python generator, or what `reversed()` gives.
pub(crate) struct Generator<'a>(RefCell<State<'a>>);

enum State<'a> {
    /// Not begun: what it iterates over is looked at only then.
    Fresh(Val<'a>, Step<'a>),
    Begun(Iter<'a>, Step<'a>),
    Running,
    Done,
}

/// The step that a generator takes with each item of its input.
#[derive(Clone, Copy)]
pub(crate) enum Step<'a> {
    Plain,
    Map(&'a Mapping<'a>),
    Select(&'a Selection<'a>),
    Unique(&'a Uniqueness<'a>),
    /// `for ... if`.
    Condition(Condition<'a>),
}

impl<'a> Generator<'a> {
    pub(crate) fn new(iterable: Val<'a>, step: Step<'a>) -> Self {
        Self(RefCell::new(State::Fresh(iterable, step)))
    }

    pub(crate) fn of(iter: Iter<'a>) -> Self {
        Self(RefCell::new(State::Begun(iter, Step::Plain)))
    }

    pub(crate) fn filtered(iterable: Val<'a>, condition: Condition<'a>) -> Self {
        Self::new(iterable, Step::Condition(condition))
    }

    fn next(&self, eval: &mut Eval<'a>) -> Result<Option<Val<'a>>> {
        let (mut iter, step) = match self.0.replace(State::Running) {
            State::Running => return Err(Error::runtime("generator already executing")),
            State::Done => {
                self.0.replace(State::Done);
                return Ok(None);
            }
            State::Begun(iter, step) => (iter, step),
            State::Fresh(iterable, step) => {
                if let Step::Map(_) | Step::Select(_) = step
                    && !eval.truth(&iterable)?
                {
                    self.0.replace(State::Done);
                    return Ok(None);
                }
                if let Step::Condition(condition) = step {
                    eval.enter(&condition.node.scope, condition.frame)?;
                }
                (Iter::of(iterable)?, step)
            }
        };
        let item = eval.nested(|eval| eval.generate(&mut iter, step))?;
        self.0.replace(match item {
            Some(_) => State::Begun(iter, step),
            None => State::Done,
        });
        Ok(item)
    }
}

impl<'a> Eval<'a> {
    /// The next item of a generator.
    fn generate(&mut self, iter: &mut Iter<'a>, step: Step<'a>) -> Result<Option<Val<'a>>> {
        while let Some(item) = iter.next(self)? {
            match step {
                Step::Plain => return Ok(Some(item)),
                Step::Map(mapping) => return self.map_item(mapping, item).map(Some),
                Step::Select(selection) => {
                    if self.selects(selection, item)? {
                        return Ok(Some(item));
                    }
                }
                Step::Unique(uniqueness) => {
                    if self.is_new(uniqueness, item)? {
                        return Ok(Some(item));
                    }
                }
                Step::Condition(Condition { test, node, frame }) => {
                    self.assign(&node.target, item, frame)?;
                    if self.evaluate_truth(test, frame)? {
                        return Ok(Some(item));
                    }
                }
            }
        }
        Ok(None)
    }

    /// All items of a value, as `list()` gives them.
    pub(crate) fn collect_items(&mut self, value: Val<'a>) -> Result<&'a [Val<'a>]> {
        if let Val::List(list) | Val::Tuple(list) = value {
            return Ok(list.items);
        }
        let mut iter = Iter::of(value)?;
        let mut items = bumpalo::collections::Vec::new_in(self.heap.bump());
        while let Some(item) = iter.next(self)? {
            self.heap.charge(2 * size_of::<Val<'a>>())?;
            items.push(item);
        }
        Ok(items.into_bump_slice())
    }

    /// `len()`, of what has one.
    pub(crate) fn sized(&mut self, value: &Val<'a>) -> Result<Option<i64>> {
        Ok(Some(match value {
            Val::Undefined(_) => 0,
            Val::Str(string) | Val::Markup(string) => {
                self.heap.work(string.text.len())?;
                crate::unicode::length(string.text) as i64
            }
            Val::List(list) | Val::Tuple(list) => list.items.len() as i64,
            Val::Dict(dict) | Val::View(_, dict) => dict.entries.len() as i64,
            Val::Range(range) => range.length,
            Val::Loop(state) => state.length(self)?,
            _ => return Ok(None),
        }))
    }

    pub(crate) fn empty_dict(&self) -> Result<Val<'a>> {
        Ok(Val::Dict(self.heap.alloc(Dict::new(&[], Origin::TEMPLATE))?))
    }
}
