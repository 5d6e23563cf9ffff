//! Expressions.

use super::{Eval, undefined_error};
use crate::ast::{Args, CompareOp, Const, Expr, ExprKind, FilterCall, Slice, TestCall, UnaryOp};
use crate::error::{Error, ErrorKind, Result};
use crate::number::Number;
use crate::text::Origin;
use crate::value::{Big, Dict, Frame, Undefined, Val};

/// Arguments that were evaluated.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub positional: &'a [Val<'a>],
    pub keywords: &'a [(&'a str, Val<'a>)],
}

impl<'a> Given<'a> {
    /// The values of named parameters, in their order. More arguments, or unknown names, are an error.
    pub(crate) fn bind<const N: usize>(&self, what: &str, names: [&str; N]) -> Result<[Option<Val<'a>>; N]> {
        let mut values = [None; N];
        if self.positional.len() > N {
            return Err(Error::runtime(format!("{what} takes at most {N} arguments")));
        }
        for (value, given) in values.iter_mut().zip(self.positional) {
            *value = Some(*given);
        }
        for (name, given) in self.keywords {
            match names.iter().position(|known| known == name) {
                Some(at) if values[at].is_none() => values[at] = Some(*given),
                Some(_) => return Err(Error::runtime(format!("{what} got the argument {name} twice"))),
                None => return Err(Error::runtime(format!("{what} has no argument {name}"))),
            }
        }
        Ok(values)
    }

    /// The same, of a function of Python's that takes its arguments by position only.
    pub(crate) fn bind_positional<const N: usize>(&self, what: &str) -> Result<[Option<Val<'a>>; N]> {
        if !self.keywords.is_empty() {
            return Err(Error::runtime(format!("{what} takes no keyword arguments")));
        }
        self.bind(what, [""; N])
    }
}

impl<'a> Eval<'a> {
    /// Evaluates a whole expression: counts its steps, and its levels for as long as it takes.
    #[inline]
    pub(super) fn evaluate(&mut self, expr: &'a Expr, frame: &'a Frame<'a>) -> Result<Val<'a>> {
        match &expr.kind {
            ExprKind::Const(value) => self.constant(value),
            ExprKind::Name(name) => self.load(name, frame),
            _ => self.whole(expr, |eval| eval.eval(expr, frame)),
        }
    }

    /// Evaluates a whole expression for its truth.
    #[inline]
    pub(super) fn evaluate_truth(&mut self, expr: &'a Expr, frame: &'a Frame<'a>) -> Result<bool> {
        self.whole(expr, |eval| eval.holds(expr, frame))
    }

    #[inline]
    fn whole<T>(&mut self, expr: &'a Expr, evaluate: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.heap.steps(expr.weight.into())?;
        let depth = self.depth_left;
        self.depth_left = depth.checked_sub(expr.height.into()).ok_or_else(super::too_deep)?;
        let result = evaluate(self);
        self.depth_left = depth;
        result
    }

    /// The truth of an expression, without making a value of it where it is a condition.
    fn holds(&mut self, expr: &'a Expr, frame: &'a Frame<'a>) -> Result<bool> {
        match &expr.kind {
            ExprKind::And(sides) => Ok(self.holds(&sides.0, frame)? && self.holds(&sides.1, frame)?),
            ExprKind::Or(sides) => Ok(self.holds(&sides.0, frame)? || self.holds(&sides.1, frame)?),
            ExprKind::Unary(UnaryOp::Not, value) => Ok(!self.holds(value, frame)?),
            ExprKind::IsText { value, text, negated } => {
                let value = self.operand(value, frame)?;
                self.heap.work(text.len())?;
                Ok(value.is_text(text) != *negated)
            }
            ExprKind::Compare(first, rest) => self.comparison(first, rest, frame),
            ExprKind::Test(call) => self.test_expression(call, frame),
            _ => {
                let value = self.operand(expr, frame)?;
                self.truth(&value)
            }
        }
    }

    #[inline]
    fn constant(&self, value: &'a Const) -> Result<Val<'a>> {
        Ok(match value {
            Const::None => Val::None(Origin::TEMPLATE),
            Const::Bool(value) => Val::Bool(*value, Origin::TEMPLATE),
            Const::Int(value) => Val::Int(*value, Origin::TEMPLATE),
            Const::Big(digits) => Val::Big(self.heap.alloc(Big { digits, origin: Origin::TEMPLATE })?),
            Const::Float(value) => Val::Float(*value, Origin::TEMPLATE),
            Const::Str(text) => return self.heap.constant(text),
        })
    }

    /// Evaluates a part of an expression. Names and constants, as most parts are, without one more call.
    #[inline]
    fn operand(&mut self, expr: &'a Expr, frame: &'a Frame<'a>) -> Result<Val<'a>> {
        match &expr.kind {
            ExprKind::Const(value) => self.constant(value),
            ExprKind::Name(name) => self.load(name, frame),
            _ => self.eval(expr, frame),
        }
    }

    pub(super) fn eval(&mut self, expr: &'a Expr, frame: &'a Frame<'a>) -> Result<Val<'a>> {
        match &expr.kind {
            ExprKind::Const(value) => self.constant(value),
            ExprKind::Name(name) => self.load(name, frame),
            ExprKind::Attr(target, name) => {
                let target = self.operand(target, frame)?;
                self.attribute(target, &name.text, name.known)
            }
            ExprKind::ItemNamed(target, name) => {
                let target = self.operand(target, frame)?;
                self.item_named(target, &name.text, name.known)
            }
            ExprKind::IsText { .. }
            | ExprKind::Compare(..)
            | ExprKind::Test(_)
            | ExprKind::Unary(UnaryOp::Not, _) => Ok(Val::Bool(self.holds(expr, frame)?, Origin::TEMPLATE)),
            ExprKind::Item(sides) => {
                let target = self.operand(&sides.0, frame)?;
                let index = self.operand(&sides.1, frame)?;
                self.item(target, index)
            }
            ExprKind::Call(call) => self.call(call, frame, None),
            ExprKind::Filter(call) => self.filter_expression(call, frame),
            ExprKind::And(sides) => {
                let left = self.operand(&sides.0, frame)?;
                if self.truth(&left)? { self.operand(&sides.1, frame) } else { Ok(left) }
            }
            ExprKind::Or(sides) => {
                let left = self.operand(&sides.0, frame)?;
                if self.truth(&left)? { Ok(left) } else { self.operand(&sides.1, frame) }
            }
            ExprKind::Cond(cond) => {
                if self.holds(&cond.test, frame)? {
                    return self.operand(&cond.then, frame);
                }
                match &cond.otherwise {
                    Some(otherwise) => self.operand(otherwise, frame),
                    None => Ok(Val::Undefined(&Undefined::Hint(
                        "the inline if-expression evaluated to false and no else section was defined",
                    ))),
                }
            }
            ExprKind::Unary(op, value) => {
                let value = self.operand(value, frame)?;
                self.unary(*op, &value)
            }
            ExprKind::Add(items) => {
                let first = self.operand(&items[0], frame)?;
                self.sum(first, &items[1..], frame)
            }
            ExprKind::Concat(items) => {
                let mark = self.out.mark();
                for item in items {
                    let value = self.operand(item, frame)?;
                    self.write(&value)?;
                }
                self.take_str(mark)
            }
            ExprKind::Binary(op, sides) => {
                let left = self.operand(&sides.0, frame)?;
                let right = self.operand(&sides.1, frame)?;
                self.binary(*op, left, right)
            }
            ExprKind::Slice(slice) => self.slice_expression(slice, frame),
            ExprKind::Tuple(items) => {
                let items = self.values(items, frame)?;
                self.heap.tuple(items)
            }
            ExprKind::List(items) => {
                let items = self.values(items, frame)?;
                self.heap.list(items, Origin::TEMPLATE)
            }
            ExprKind::Dict(items) => self.dict(items, frame),
        }
    }

    /// Adds further values, from left to right. Strings are joined in one go.
    #[inline(never)]
    pub(super) fn sum(&mut self, first: Val<'a>, rest: &'a [Expr], frame: &'a Frame<'a>) -> Result<Val<'a>> {
        let mut total = first;
        let mut rest = rest.iter();
        while let Val::Str(start) = total {
            let Some(item) = rest.next() else { return Ok(total) };
            let value = self.eval(item, frame)?;
            let Val::Str(more) = value else {
                total = self.add(total, value)?;
                break;
            };
            let mark = self.out.mark();
            self.out.push_str(*start)?;
            self.out.push_str(*more)?;
            let mut stopped = None;
            for item in rest.by_ref() {
                match self.eval(item, frame)? {
                    Val::Str(more) => self.out.push_str(*more)?,
                    other => {
                        stopped = Some(other);
                        break;
                    }
                }
            }
            total = self.take_str(mark)?;
            if let Some(other) = stopped {
                total = self.add(total, other)?;
            }
        }
        for item in rest {
            let value = self.eval(item, frame)?;
            total = self.add(total, value)?;
        }
        Ok(total)
    }

    #[inline(never)]
    fn values(&mut self, items: &'a [Expr], frame: &'a Frame<'a>) -> Result<&'a [Val<'a>]> {
        self.heap.charge(size_of::<Val<'a>>() * items.len())?;
        let mut values = bumpalo::collections::Vec::with_capacity_in(items.len(), self.heap.bump());
        for item in items {
            values.push(self.eval(item, frame)?);
        }
        Ok(values.into_bump_slice())
    }

    #[inline(never)]
    fn dict(&mut self, items: &'a [(Expr, Expr)], frame: &'a Frame<'a>) -> Result<Val<'a>> {
        let mut entries = Vec::with_capacity(items.len());
        for (key, value) in items {
            let key = self.eval(key, frame)?;
            let value = self.eval(value, frame)?;
            self.insert(&mut entries, key, value)?;
        }
        self.make_dict(&entries)
    }

    pub(crate) fn make_dict(&self, entries: &[(Val<'a>, Val<'a>)]) -> Result<Val<'a>> {
        Ok(Val::Dict(self.heap.alloc(Dict::new(self.heap.slice(entries)?, Origin::TEMPLATE))?))
    }

    /// Stores into a dict under construction: a key that is there keeps its place.
    pub(crate) fn insert(
        &mut self,
        entries: &mut Vec<(Val<'a>, Val<'a>)>,
        key: Val<'a>,
        value: Val<'a>,
    ) -> Result<()> {
        check_hashable(&key)?;
        self.heap.work(entries.len() * 16)?;
        for (known, old) in entries.iter_mut() {
            if self.equal(known, &key)? {
                *old = value;
                return Ok(());
            }
        }
        entries.push((key, value));
        Ok(())
    }

    #[inline(never)]
    fn comparison(
        &mut self,
        first: &'a Expr,
        rest: &'a [(CompareOp, Expr)],
        frame: &'a Frame<'a>,
    ) -> Result<bool> {
        let mut left = self.operand(first, frame)?;
        let mut result = true;
        for (op, operand) in rest {
            let right = self.operand(operand, frame)?;
            result = self.compare(*op, &left, &right)?;
            if !result {
                break;
            }
            left = right;
        }
        Ok(result)
    }

    fn unary(&mut self, op: UnaryOp, value: &Val<'a>) -> Result<Val<'a>> {
        match op {
            UnaryOp::Not => Ok(Val::Bool(!self.truth(value)?, Origin::TEMPLATE)),
            UnaryOp::Neg | UnaryOp::Pos => {
                if let Val::Undefined(undefined) = value {
                    return Err(undefined_error(undefined));
                }
                let Some(number) = Number::of(value, self.heap)? else {
                    return Err(Error::runtime(format!(
                        "bad operand type for a sign: '{}'",
                        value.type_name()
                    )));
                };
                let number = if op == UnaryOp::Neg { number.negate() } else { number };
                number.into_value(value.origin(), self.heap)
            }
        }
    }

    #[inline(never)]
    fn slice_expression(&mut self, slice: &'a Slice, frame: &'a Frame<'a>) -> Result<Val<'a>> {
        let target = self.eval(&slice.target, frame)?;
        let mut bound = |part: &'a Option<Expr>| -> Result<Option<Val<'a>>> {
            part.as_ref().map(|part| self.eval(part, frame)).transpose()
        };
        let (start, stop, step) = (bound(&slice.start)?, bound(&slice.stop)?, bound(&slice.step)?);
        self.slice(target, start, stop, step).map_err(|error| {
            if slice.constant && error.kind() == ErrorKind::Runtime {
                return Error::unsupported("a slice of such a constant");
            }
            error
        })
    }

    /// Evaluates the arguments of a call, with one more keyword for the body of a call block.
    pub(super) fn given(
        &mut self,
        args: &'a Args,
        frame: &'a Frame<'a>,
        caller: Option<Val<'a>>,
    ) -> Result<Given<'a>> {
        if args.is_empty() && caller.is_none() {
            return Ok(Given { positional: &[], keywords: &[] });
        }
        let mut positional =
            if args.positional.is_empty() { &[][..] } else { self.values(&args.positional, frame)? };
        let none = args.keywords.is_empty() && args.double_star.is_none() && args.star.is_none();
        if none && caller.is_none() {
            return Ok(Given { positional, keywords: &[] });
        }
        let mut keywords: Vec<(&'a str, Val<'a>)> = Vec::new();
        for (name, value) in &args.keywords {
            keywords.push((name, self.eval(value, frame)?));
        }
        if let Some(caller) = caller {
            keywords.push(("caller", caller));
        }
        if let Some(star) = &args.star {
            let value = self.eval(star, frame)?;
            let more = self.collect_items(value)?;
            let all: Vec<_> = positional.iter().chain(more).copied().collect();
            positional = self.heap.slice(&all)?;
        }
        if let Some(double_star) = &args.double_star {
            let Val::Dict(more) = self.eval(double_star, frame)? else {
                return Err(Error::runtime("what follows ** must be a mapping"));
            };
            for (key, value) in more.entries {
                let Some(name) = key.as_str() else {
                    return Err(Error::runtime("keywords must be strings"));
                };
                keywords.push((name.text, *value));
            }
        }
        for (at, (name, _)) in keywords.iter().enumerate() {
            if keywords[..at].iter().any(|(other, _)| other == name) {
                return Err(Error::runtime(format!("the keyword argument {name} is there twice")));
            }
        }
        self.heap.work(keywords.len() * keywords.len())?;
        Ok(Given { positional, keywords: self.heap.slice(&keywords)? })
    }

    fn filter_expression(&mut self, call: &'a FilterCall, frame: &'a Frame<'a>) -> Result<Val<'a>> {
        let Some(value) = &call.value else {
            return Err(Error::runtime("a filter without a value"));
        };
        let value = self.operand(value, frame)?;
        self.apply_filter(call, value, frame)
    }

    /// Runs the filters of a filter block or set block on its text.
    pub(super) fn filter_block(
        &mut self,
        expr: &'a Expr,
        text: Val<'a>,
        frame: &'a Frame<'a>,
    ) -> Result<Val<'a>> {
        let ExprKind::Filter(call) = &expr.kind else {
            return Err(Error::runtime("expected a filter"));
        };
        let value = match &call.value {
            None => text,
            Some(inner) => self.nested(|eval| eval.filter_block(inner, text, frame))?,
        };
        self.apply_filter(call, value, frame).map_err(|error| error.at(expr.line))
    }

    #[inline(never)]
    fn apply_filter(
        &mut self,
        call: &'a FilterCall,
        value: Val<'a>,
        frame: &'a Frame<'a>,
    ) -> Result<Val<'a>> {
        let given = self.given(&call.args, frame, None)?;
        match call.filter {
            Some(filter) => self.filter(filter, value, given),
            None => Err(Error::runtime(format!("No filter named '{}' found.", call.name))),
        }
    }

    #[inline(never)]
    fn test_expression(&mut self, call: &'a TestCall, frame: &'a Frame<'a>) -> Result<bool> {
        let value = self.operand(&call.value, frame)?;
        let given = self.given(&call.args, frame, None)?;
        match call.test {
            Some(test) => self.test_holds(test, &value, given),
            None => Err(Error::runtime(format!("No test named '{}' found.", call.name))),
        }
    }
}

/// Lists and dicts cannot be keys.
pub(crate) fn check_hashable(value: &Val<'_>) -> Result<()> {
    match value {
        Val::List(_) | Val::Dict(_) | Val::View(..) => {
            Err(Error::runtime(format!("unhashable type: '{}'", value.type_name())))
        }
        Val::Tuple(list) => list.items.iter().try_for_each(check_hashable),
        _ => Ok(()),
    }
}
