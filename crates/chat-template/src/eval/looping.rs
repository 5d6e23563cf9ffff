//! `for` loops and their `loop` variable.

use std::cell::{Cell, RefCell};

use super::Eval;
use super::iterate::{Generator, Iter};
use super::statement::Flow;
use crate::ast::For;
use crate::error::{Error, Result};
use crate::origin::Node;
use crate::text::Str;
use crate::value::{Condition, Frame, Recursion, Undefined, Val};

/// The `loop` variable.
pub(crate) struct LoopState<'a> {
    /// The value that is iterated over: its length is the loop's, if it has one.
    iterable: Val<'a>,
    iter: RefCell<Iter<'a>>,
    index0: Cell<i64>,
    length: Cell<Option<i64>>,
    /// The next item, if it was looked at already.
    after: Cell<Option<Val<'a>>>,
    before: Cell<Val<'a>>,
    current: Cell<Val<'a>>,
    changed: Cell<Option<Val<'a>>>,
    recursion: Option<Recursion<'a>>,
    depth0: i64,
}

impl<'a> LoopState<'a> {
    fn next(&self, eval: &mut Eval<'a>) -> Result<Option<Val<'a>>> {
        let item = match self.after.take() {
            Some(item) => Some(item),
            None => self.advance(eval)?,
        };
        if let Some(item) = item {
            self.index0.set(self.index0.get() + 1);
            self.before.set(self.current.get());
            self.current.set(item);
        }
        Ok(item)
    }

    /// The next item of the iterator. It is taken out meanwhile, as its test may look at this loop.
    fn advance(&self, eval: &mut Eval<'a>) -> Result<Option<Val<'a>>> {
        let mut iter = self.iter.replace(Iter::Running);
        let item = iter.next(eval);
        self.iter.replace(iter);
        item
    }

    fn peek(&self, eval: &mut Eval<'a>) -> Result<Option<Val<'a>>> {
        if self.after.get().is_none() {
            self.after.set(self.advance(eval)?);
        }
        Ok(self.after.get())
    }

    pub(crate) fn length(&self, eval: &mut Eval<'a>) -> Result<i64> {
        if let Some(length) = self.length.get() {
            return Ok(length);
        }
        let length = if let Some(length) = eval.sized(&self.iterable)? {
            length
        } else {
            let mut rest = bumpalo::collections::Vec::new_in(eval.heap.bump());
            while let Some(item) = self.advance(eval)? {
                eval.heap.charge(2 * size_of::<Val<'a>>())?;
                rest.push(item);
            }
            let rest = rest.into_bump_slice();
            self.iter.replace(Iter::Items(rest));
            let peeked = i64::from(self.after.get().is_some());
            rest.len() as i64 + self.index0.get() + 1 + peeked
        };
        self.length.set(Some(length));
        Ok(length)
    }

    /// An attribute of `loop`; `None`: there is none of this name.
    pub(crate) fn attribute(&self, name: &str, eval: &mut Eval<'a>) -> Result<Option<Val<'a>>> {
        let number = |value| Val::Int(value, crate::text::Origin::TEMPLATE);
        let truth = |value| Val::Bool(value, crate::text::Origin::TEMPLATE);
        let index0 = self.index0.get();
        Ok(Some(match name {
            "index" => number(index0 + 1),
            "index0" => number(index0),
            "first" => truth(index0 == 0),
            "last" => truth(self.peek(eval)?.is_none()),
            "length" => number(self.length(eval)?),
            "revindex" => number(self.length(eval)? - index0),
            "revindex0" => number(self.length(eval)? - index0 - 1),
            "depth" => number(self.depth0 + 1),
            "depth0" => number(self.depth0),
            "previtem" if index0 == 0 => Val::Undefined(&Undefined::Hint("there is no previous item")),
            "previtem" => self.before.get(),
            "nextitem" => {
                self.peek(eval)?.unwrap_or(Val::Undefined(&Undefined::Hint("there is no next item")))
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn cycle(&self, items: &[Val<'a>]) -> Result<Val<'a>> {
        if items.is_empty() {
            return Err(Error::runtime("no items for cycling given"));
        }
        Ok(items[self.index0.get().rem_euclid(items.len() as i64) as usize])
    }

    pub(super) fn changed(&self, items: &'a [Val<'a>], eval: &mut Eval<'a>) -> Result<bool> {
        let now = eval.heap.tuple(items)?;
        let same = match self.changed.get() {
            Some(last) => eval.equal(&last, &now)?,
            None => false,
        };
        self.changed.set(Some(now));
        Ok(!same)
    }

    /// `loop(iterable)`: renders the loop again for other items.
    pub(super) fn recurse(&self, iterable: Val<'a>, eval: &mut Eval<'a>) -> Result<Val<'a>> {
        let Some(Recursion { node, frame }) = self.recursion else {
            return Err(Error::runtime("the loop is called, but it is not marked as recursive"));
        };
        let text = eval.recursive_loop(node, frame, iterable, self.depth0 + 1)?;
        eval.heap.str(text)
    }
}

impl<'a> Eval<'a> {
    pub(super) fn for_loop(&mut self, node: &'a For, frame: &'a Frame<'a>) -> Result<Flow> {
        let iterable = self.evaluate(&node.iter, frame)?;
        if node.recursive {
            let text = self.recursive_loop(node, frame, iterable, 0)?;
            self.out.push_str(text)?;
            return Ok(Flow::Next);
        }
        self.run_loop(node, frame, frame, iterable, 0)
    }

    /// A recursive loop is a function: it has its own variables, and gives its text.
    fn recursive_loop(
        &mut self,
        node: &'a For,
        outer: &'a Frame<'a>,
        iterable: Val<'a>,
        depth0: i64,
    ) -> Result<Str<'a>> {
        self.nested(|eval| {
            let frame = eval.frame(node.slots, Some(outer))?;
            let mark = eval.out.mark();
            eval.captures += 1;
            let result = eval.run_loop(node, outer, frame, iterable, depth0);
            eval.captures -= 1;
            result?;
            eval.out.take(mark)
        })
    }

    /// Runs a loop whose variables are in `frame`; `outer` is the frame around the loop.
    fn run_loop(
        &mut self,
        node: &'a For,
        outer: &'a Frame<'a>,
        frame: &'a Frame<'a>,
        iterable: Val<'a>,
        depth0: i64,
    ) -> Result<Flow> {
        let iterable = match &node.test {
            None => iterable,
            Some(test) => {
                let frame = self.frame(test.slots, Some(outer))?;
                let condition = Condition { test: &test.test, node: test, frame };
                Val::Generator(self.heap.alloc(Generator::filtered(iterable, condition))?)
            }
        };
        let mut iter = Iter::of(iterable)?;
        let state = match node.loop_slot {
            None => None,
            Some(_) => Some(self.heap.alloc(LoopState {
                iterable,
                iter: RefCell::new(std::mem::replace(&mut iter, Iter::Running)),
                index0: Cell::new(-1),
                length: Cell::new(None),
                after: Cell::new(None),
                before: Cell::new(Val::Missing),
                current: Cell::new(Val::Missing),
                changed: Cell::new(None),
                recursion: node.recursive.then_some(Recursion { node, frame: outer }),
                depth0,
            })?),
        };
        let owner = self.out.owner;
        let mut all_cut_short = true;
        loop {
            let item = match state {
                Some(state) => state.next(self)?,
                None => iter.next(self)?,
            };
            let Some(item) = item else { break };
            self.assign(&node.target, item, frame)?;
            if let (Some(slot), Some(state)) = (node.loop_slot, state) {
                frame.slots[usize::from(slot)].set(Val::Loop(state));
            }
            self.enter(&node.scope, frame)?;
            if owner == 0 {
                self.out.owner = self.message_of(&item);
            }
            match self.body(&node.body, frame)? {
                Flow::Break => break,
                Flow::Continue => {}
                Flow::Next => all_cut_short = false,
            }
        }
        self.out.owner = owner;
        Self::leave(&node.scope, frame);
        // jinja2 runs the `else` of a loop unless one of its rounds reached the end of the body.
        if all_cut_short && !node.otherwise.is_empty() {
            self.enter(&node.else_scope, frame)?;
            let flow = self.body(&node.otherwise, frame)?;
            if flow == Flow::Next {
                Self::leave(&node.else_scope, frame);
            }
            return Ok(flow);
        }
        Ok(Flow::Next)
    }

    /// The message that a loop over messages is at, counted from 1: its item is the message, a field of it, or a dict that
    /// is made of one message and has a field of it. 0: it is a loop over something else, such as the calls of a message.
    fn message_of(&self, item: &Val<'a>) -> u32 {
        let nodes = &self.setting.origins.nodes;
        let place = |value: &Val<'a>| {
            let origin = value.origin().0;
            let Node { message, part, .. } = nodes[origin as usize];
            (message, part == 0 || part == origin)
        };
        let (mut message, mut is_whole) = place(item);
        if let (0, Val::Dict(dict)) = (message, item) {
            for (of, is_field) in
                dict.entries.iter().map(|(_, value)| place(value)).filter(|(of, _)| *of != 0)
            {
                if message != 0 && of != message {
                    return 0;
                }
                (message, is_whole) = (of, is_whole && message != 0 || is_field);
            }
        }
        if is_whole { message } else { 0 }
    }
}
