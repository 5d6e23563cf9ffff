//! Truth, equality, order, membership and arithmetic, as Python has them.

use std::cmp::Ordering;

use super::expression::check_hashable;
use super::iterate::Iter;
use super::{Eval, undefined_error};
use crate::ast::{BinaryOp, CompareOp};
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::number::Number;
use crate::text::Origin;
use crate::value::{Dict, List, Val, View};

impl<'a> Eval<'a> {
    /// `bool(value)`.
    #[inline]
    pub(crate) fn truth(&mut self, value: &Val<'a>) -> Result<bool> {
        Ok(match value {
            Val::Bool(value, _) => *value,
            Val::Undefined(_) | Val::None(_) => false,
            Val::Str(string) | Val::Markup(string) => !string.text.is_empty(),
            Val::Int(value, _) => *value != 0,
            Val::Float(value, _) => *value != 0.0,
            Val::List(list) | Val::Tuple(list) => !list.items.is_empty(),
            Val::Dict(dict) | Val::View(_, dict) => !dict.entries.is_empty(),
            Val::Range(range) => range.length > 0,
            Val::Loop(state) => state.length(self)? > 0,
            _ => true,
        })
    }

    /// `a == b`.
    #[inline]
    pub(crate) fn equal(&mut self, a: &Val<'a>, b: &Val<'a>) -> Result<bool> {
        if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
            self.heap.work(a.text.len().min(b.text.len()))?;
            return Ok(a.text == b.text);
        }
        if let (Val::Int(a, _), Val::Int(b, _)) = (a, b) {
            return Ok(a == b);
        }
        self.equal_otherwise(a, b)
    }

    #[inline(never)]
    fn equal_otherwise(&mut self, a: &Val<'a>, b: &Val<'a>) -> Result<bool> {
        self.heap.step()?;
        Ok(match (a, b) {
            (Val::None(_), Val::None(_)) | (Val::Undefined(_), Val::Undefined(_)) => true,
            (Val::List(a), Val::List(b)) | (Val::Tuple(a), Val::Tuple(b)) => {
                self.nested(|eval| eval.equal_items(a.items, b.items))?
            }
            (Val::Dict(a), Val::Dict(b)) => self.nested(|eval| eval.equal_dicts(a, b))?,
            (Val::Range(a), Val::Range(b)) => {
                a.length == b.length
                    && (a.length == 0 || (a.start == b.start && (a.length == 1 || a.step == b.step)))
            }
            (Val::Namespace(a), Val::Namespace(b)) => std::ptr::eq(*a, *b),
            (Val::Macro(a), Val::Macro(b)) => std::ptr::eq(*a, *b),
            (Val::Generator(a), Val::Generator(b)) => std::ptr::eq(*a, *b),
            (Val::Function(a), Val::Function(b)) => a == b,
            (Val::View(..), Val::View(..))
            | (Val::Method(_), Val::Method(_))
            | (Val::Loop(_), Val::Loop(_)) => {
                return Err(Error::unsupported(format!(
                    "the comparison of values of type {}",
                    a.type_name()
                )));
            }
            _ => match (Number::of(a, self.heap)?, Number::of(b, self.heap)?) {
                (Some(a), Some(b)) => a.equals(&b),
                _ => false,
            },
        })
    }

    fn equal_items(&mut self, a: &[Val<'a>], b: &[Val<'a>]) -> Result<bool> {
        if a.len() != b.len() {
            return Ok(false);
        }
        for (a, b) in a.iter().zip(b) {
            if !self.equal_element(a, b)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Equality of elements: Python takes a value to equal itself, even a NaN.
    fn equal_element(&mut self, a: &Val<'a>, b: &Val<'a>) -> Result<bool> {
        if let (Val::Float(a, _), Val::Float(b, _)) = (a, b)
            && a.is_nan()
            && b.is_nan()
        {
            return Err(Error::unsupported("the comparison of elements that are NaN"));
        }
        self.equal(a, b)
    }

    fn equal_dicts(&mut self, a: &'a Dict<'a>, b: &'a Dict<'a>) -> Result<bool> {
        if a.entries.len() != b.entries.len() {
            return Ok(false);
        }
        if std::ptr::eq(a, b) {
            return Ok(true);
        }
        for (key, value) in a.entries {
            match self.dict_get(Val::Dict(b), *key)? {
                Some(other) if self.equal_element(value, &other)? => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    #[inline]
    pub(crate) fn compare(&mut self, op: CompareOp, a: &Val<'a>, b: &Val<'a>) -> Result<bool> {
        match op {
            CompareOp::Eq => self.equal(a, b),
            CompareOp::Ne => Ok(!self.equal(a, b)?),
            CompareOp::In => self.contains(b, a),
            CompareOp::NotIn => Ok(!self.contains(b, a)?),
            CompareOp::Lt => self.ordered(a, b, |order| order == Ordering::Less),
            CompareOp::Le => self.ordered(a, b, |order| order != Ordering::Greater),
            CompareOp::Gt => self.ordered(a, b, |order| order == Ordering::Greater),
            CompareOp::Ge => self.ordered(a, b, |order| order != Ordering::Less),
        }
    }

    fn ordered(&mut self, a: &Val<'a>, b: &Val<'a>, holds: impl Fn(Ordering) -> bool) -> Result<bool> {
        Ok(self.order(a, b)?.is_some_and(holds))
    }

    /// The order of two values; `None`: neither way, because of a NaN.
    pub(crate) fn order(&mut self, a: &Val<'a>, b: &Val<'a>) -> Result<Option<Ordering>> {
        self.heap.step()?;
        match (a, b) {
            (Val::Undefined(undefined), _) | (_, Val::Undefined(undefined)) => {
                Err(undefined_error(undefined))
            }
            (Val::Str(a) | Val::Markup(a), Val::Str(b) | Val::Markup(b)) => {
                self.heap.work(a.text.len().min(b.text.len()))?;
                Ok(Some(a.text.cmp(b.text)))
            }
            (Val::List(a), Val::List(b)) | (Val::Tuple(a), Val::Tuple(b)) => self.nested(|eval| {
                for (a, b) in a.items.iter().zip(b.items) {
                    if !eval.equal_element(a, b)? {
                        return eval.order(a, b);
                    }
                }
                Ok(Some(a.items.len().cmp(&b.items.len())))
            }),
            (Val::View(..), Val::View(..)) => Err(Error::unsupported("the order of views of dicts")),
            _ => match (Number::of(a, self.heap)?, Number::of(b, self.heap)?) {
                (Some(a), Some(b)) => Ok(a.compare(&b)),
                _ => {
                    Err(Error::runtime(format!("'{}' and '{}' have no order", a.type_name(), b.type_name())))
                }
            },
        }
    }

    /// `item in container`.
    #[inline(never)]
    pub(crate) fn contains(&mut self, container: &Val<'a>, item: &Val<'a>) -> Result<bool> {
        if let (Val::Dict(dict), Val::Str(key)) = (container, item) {
            return Ok(dict.get(key.text, self.heap)?.is_some());
        }
        match container {
            Val::Str(text) | Val::Markup(text) => match item.as_str() {
                Some(part) => {
                    self.heap.work(text.text.len())?;
                    Ok(memchr::memmem::find(text.text.as_bytes(), part.text.as_bytes()).is_some())
                }
                None => Err(Error::runtime(format!(
                    "'in <string>' requires a string as left operand, not {}",
                    item.type_name()
                ))),
            },
            Val::Dict(_) | Val::View(View::Keys, _) => {
                check_hashable(item)?;
                let (Val::Dict(dict) | Val::View(_, dict)) = container else { return Ok(false) };
                Ok(self.dict_get(Val::Dict(dict), *item)?.is_some())
            }
            Val::View(View::Items, dict) => {
                let Val::Tuple(List { items: [key, value], .. }) = item else { return Ok(false) };
                check_hashable(key)?;
                match self.dict_get(Val::Dict(dict), *key)? {
                    Some(found) => self.equal_element(&found, value),
                    None => Ok(false),
                }
            }
            Val::Range(range) if matches!(item, Val::Int(..) | Val::Bool(..)) => {
                let Some(Number::Int(value)) = Number::of(item, self.heap)? else { return Ok(false) };
                let distance = value.wrapping_sub(range.start);
                Ok(distance % range.step == 0 && (0..range.length).contains(&(distance / range.step)))
            }
            Val::Undefined(_) => Ok(false),
            Val::List(_) | Val::Tuple(_) | Val::View(..) | Val::Range(_) | Val::Generator(_) => {
                let mut iter = Iter::of(*container)?;
                while let Some(element) = iter.next(self)? {
                    if self.equal_element(&element, item)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Val::Loop(_) => Err(Error::unsupported("membership in the loop variable")),
            _ => Err(Error::runtime(format!("argument of type '{}' is not iterable", container.type_name()))),
        }
    }

    /// `a + b`.
    pub(crate) fn add(&mut self, a: Val<'a>, b: Val<'a>) -> Result<Val<'a>> {
        match (a, b) {
            (Val::Str(left), Val::Str(right)) => {
                let mark = self.out.mark();
                self.out.push_str(*left)?;
                self.out.push_str(*right)?;
                self.take_str(mark)
            }
            (Val::Str(_) | Val::Markup(_), Val::Str(_) | Val::Markup(_)) => {
                let mark = self.out.mark();
                self.write_escaped(&a)?;
                self.write_escaped(&b)?;
                self.take_markup(mark)
            }
            (Val::List(left), Val::List(right)) => {
                let origin = if left.origin == right.origin { left.origin } else { Origin::TEMPLATE };
                self.heap.list(self.join_items(left.items, right.items)?, origin)
            }
            (Val::Tuple(left), Val::Tuple(right)) => {
                self.heap.tuple(self.join_items(left.items, right.items)?)
            }
            _ => {
                let (left, right) = numbers("+", &a, &b, self.heap)?;
                left.add(&right)?.into_value(a.origin().or(b.origin()), self.heap)
            }
        }
    }

    fn join_items(&self, left: &'a [Val<'a>], right: &'a [Val<'a>]) -> Result<&'a [Val<'a>]> {
        self.heap.charge((left.len() + right.len()) * size_of::<Val<'a>>())?;
        let all = left.iter().chain(right).copied();
        Ok(bumpalo::collections::Vec::from_iter_in(all, self.heap.bump()).into_bump_slice())
    }

    #[inline(never)]
    pub(super) fn binary(&mut self, op: BinaryOp, a: Val<'a>, b: Val<'a>) -> Result<Val<'a>> {
        let name = match op {
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
            BinaryOp::FloorDiv => "//",
            BinaryOp::Mod => "%",
            BinaryOp::Pow => "**",
        };
        match (op, &a, &b) {
            (BinaryOp::Mod, Val::Str(_) | Val::Markup(_), _) => return self.percent_format(a, b),
            (BinaryOp::Mul, Val::Str(_) | Val::Markup(_) | Val::List(_) | Val::Tuple(_), count)
                if is_integer(count) =>
            {
                return self.repeat(a, &b);
            }
            (BinaryOp::Mul, count, Val::Str(_) | Val::Markup(_) | Val::List(_) | Val::Tuple(_))
                if is_integer(count) =>
            {
                return self.repeat(b, &a);
            }
            _ => {}
        }
        let (left, right) = numbers(name, &a, &b, self.heap)?;
        left.binary(op, &right)?.into_value(a.origin().or(b.origin()), self.heap)
    }

    /// `sequence * count`.
    fn repeat(&mut self, value: Val<'a>, count: &Val<'a>) -> Result<Val<'a>> {
        let count = match count {
            Val::Big(big) if big.digits.starts_with('-') => 0,
            count => super::access::as_index(count, "*")?.max(0) as usize,
        };
        match value {
            Val::Str(string) | Val::Markup(string) => {
                let mark = self.out.mark();
                if !string.text.is_empty() {
                    for _ in 0..count {
                        self.heap.step()?;
                        self.out.push_str(*string)?;
                    }
                }
                if matches!(value, Val::Markup(_)) { self.take_markup(mark) } else { self.take_str(mark) }
            }
            Val::List(list) | Val::Tuple(list) => {
                let length = list.items.len().saturating_mul(count);
                self.heap.charge(length.saturating_mul(size_of::<Val<'a>>()))?;
                let all = list.items.iter().copied().cycle().take(length);
                let all = bumpalo::collections::Vec::from_iter_in(all, self.heap.bump()).into_bump_slice();
                if matches!(value, Val::Tuple(_)) {
                    self.heap.tuple(all)
                } else {
                    self.heap.list(all, Origin::TEMPLATE)
                }
            }
            _ => Ok(value),
        }
    }
}

/// Both operands as numbers.
fn numbers<'a>(op: &str, a: &Val<'a>, b: &Val<'a>, heap: &Heap<'a>) -> Result<(Number, Number)> {
    if let (Val::Undefined(undefined), _) | (_, Val::Undefined(undefined)) = (a, b) {
        return Err(undefined_error(undefined));
    }
    match (Number::of(a, heap)?, Number::of(b, heap)?) {
        (Some(a), Some(b)) => Ok((a, b)),
        _ if matches!(a, Val::View(..)) => Err(Error::unsupported("sets")),
        _ => Err(Error::runtime(format!(
            "unsupported operand types for {op}: '{}' and '{}'",
            a.type_name(),
            b.type_name()
        ))),
    }
}

fn is_integer(value: &Val<'_>) -> bool {
    matches!(value, Val::Bool(..) | Val::Int(..) | Val::Big(_))
}
