//! The tests of jinja2: what stands behind `is`.

use crate::ast::{BinaryOp, CompareOp};
use crate::error::{Error, Result};
use crate::eval::Eval;
use crate::eval::expression::Given;
use crate::filters::Filter;
use crate::heap::Heap;
use crate::number::Number;
use crate::text::Origin;
use crate::unicode::is_title;
use crate::value::Val;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    Odd,
    Even,
    DivisibleBy,
    Defined,
    Undefined,
    Filter,
    #[allow(clippy::enum_variant_names)] // Its name in jinja2.
    Test,
    None,
    Boolean,
    False,
    True,
    Integer,
    Float,
    Lower,
    Upper,
    String,
    Mapping,
    Number,
    Sequence,
    Iterable,
    Callable,
    SameAs,
    Escaped,
    In,
    Compare(CompareOp),
}

impl Test {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "odd" => Self::Odd,
            "even" => Self::Even,
            "divisibleby" => Self::DivisibleBy,
            "defined" => Self::Defined,
            "undefined" => Self::Undefined,
            "filter" => Self::Filter,
            "test" => Self::Test,
            "none" => Self::None,
            "boolean" => Self::Boolean,
            "false" => Self::False,
            "true" => Self::True,
            "integer" => Self::Integer,
            "float" => Self::Float,
            "lower" => Self::Lower,
            "upper" => Self::Upper,
            "string" => Self::String,
            "mapping" => Self::Mapping,
            "number" => Self::Number,
            "sequence" => Self::Sequence,
            "iterable" => Self::Iterable,
            "callable" => Self::Callable,
            "sameas" => Self::SameAs,
            "escaped" => Self::Escaped,
            "in" => Self::In,
            "==" | "eq" | "equalto" => Self::Compare(CompareOp::Eq),
            "!=" | "ne" => Self::Compare(CompareOp::Ne),
            ">" | "gt" | "greaterthan" => Self::Compare(CompareOp::Gt),
            ">=" | "ge" => Self::Compare(CompareOp::Ge),
            "<" | "lt" | "lessthan" => Self::Compare(CompareOp::Lt),
            "<=" | "le" => Self::Compare(CompareOp::Le),
            _ => return None,
        })
    }

    /// The name of the parameter behind the value, if there is one. Operators take theirs by position only.
    fn parameter(self) -> Option<&'static str> {
        match self {
            Self::DivisibleBy => Some("num"),
            Self::SameAs => Some("other"),
            Self::In => Some("seq"),
            Self::Compare(_) => Some(""),
            _ => None,
        }
    }
}

impl<'a> Eval<'a> {
    /// Whether a test holds for a value.
    pub(crate) fn test_holds(&mut self, test: Test, value: &Val<'a>, given: Given<'a>) -> Result<bool> {
        let argument = if let Some(name) = test.parameter() {
            let [argument] = given.bind("the test", [name])?;
            argument.ok_or_else(|| Error::runtime("the test needs an argument"))?
        } else {
            let [] = given.bind("the test", [])?;
            Val::Missing
        };
        Ok(match test {
            Test::Defined => !value.is_undefined(),
            Test::Undefined => value.is_undefined(),
            Test::None => matches!(value, Val::None(_)),
            Test::Boolean => matches!(value, Val::Bool(..)),
            Test::False => matches!(value, Val::Bool(false, _)),
            Test::True => matches!(value, Val::Bool(true, _)),
            Test::Integer => matches!(value, Val::Int(..) | Val::Big(_)),
            Test::Float => matches!(value, Val::Float(..)),
            Test::Number => matches!(value, Val::Bool(..) | Val::Int(..) | Val::Big(_) | Val::Float(..)),
            Test::String => value.as_str().is_some(),
            Test::Mapping => matches!(value, Val::Dict(_)),
            Test::Escaped => matches!(value, Val::Markup(_)),
            Test::Sequence => matches!(
                value,
                Val::Undefined(_)
                    | Val::Str(_)
                    | Val::Markup(_)
                    | Val::List(_)
                    | Val::Tuple(_)
                    | Val::Dict(_)
                    | Val::Range(_)
            ),
            Test::Iterable => matches!(
                value,
                Val::Undefined(_)
                    | Val::Str(_)
                    | Val::Markup(_)
                    | Val::List(_)
                    | Val::Tuple(_)
                    | Val::Dict(_)
                    | Val::Range(_)
                    | Val::View(..)
                    | Val::Generator(_)
                    | Val::Loop(_)
            ),
            Test::Callable => matches!(
                value,
                Val::Undefined(_) | Val::Macro(_) | Val::Method(_) | Val::Function(_) | Val::Loop(_)
            ),
            Test::Odd | Test::Even => {
                let rest = modulo(value, &Val::Int(2, Origin::TEMPLATE), self.heap)?;
                rest.equals(&Number::Int(i64::from(test == Test::Odd)))
            }
            Test::DivisibleBy => modulo(value, &argument, self.heap)?.is_zero(),
            Test::Lower | Test::Upper => {
                let text = self.text_of(value)?.text;
                self.heap.work(text.len())?;
                is_cased(text, test == Test::Lower)
            }
            Test::Filter => {
                crate::eval::expression::check_hashable(value)?;
                value.as_str().is_some_and(|name| !matches!(Filter::named(name.text), Ok(None)))
            }
            Test::Test => {
                crate::eval::expression::check_hashable(value)?;
                value.as_str().is_some_and(|name| Test::named(name.text).is_some())
            }
            Test::In => self.contains(&argument, value)?,
            Test::Compare(op) => self.compare(op, value, &argument)?,
            Test::SameAs => same(value, &argument)?,
        })
    }
}

/// `islower()` or `isupper()`.
pub(crate) fn is_cased(text: &str, lower: bool) -> bool {
    let mut cased = false;
    for c in text.chars() {
        let (same, other) =
            if lower { (c.is_lowercase(), c.is_uppercase()) } else { (c.is_uppercase(), c.is_lowercase()) };
        if other || is_title(c) {
            return false;
        }
        cased |= same;
    }
    cased
}

fn modulo<'a>(a: &Val<'a>, b: &Val<'a>, heap: &Heap<'a>) -> Result<Number> {
    if let Val::Undefined(undefined) = a {
        return Err(crate::eval::undefined_error(undefined));
    }
    match (Number::of(a, heap)?, Number::of(b, heap)?) {
        (Some(a), Some(b)) => a.binary(BinaryOp::Mod, &b),
        _ if a.as_str().is_some() => Err(Error::unsupported("this test of a string")),
        _ => Err(Error::runtime(format!("expected numbers, found '{}'", a.type_name()))),
    }
}

/// `a is b`, where Python leaves no choice.
fn same<'a>(a: &Val<'a>, b: &Val<'a>) -> Result<bool> {
    match (a, b) {
        (Val::None(_), Val::None(_)) => Ok(true),
        (Val::Bool(a, _), Val::Bool(b, _)) => Ok(a == b),
        (Val::None(_) | Val::Bool(..), _) | (_, Val::None(_) | Val::Bool(..)) => Ok(false),
        (Val::Namespace(a), Val::Namespace(b)) => Ok(std::ptr::eq(*a, *b)),
        _ if a.type_name() != b.type_name() => Ok(false),
        _ => Err(Error::unsupported("the identity of values of this type")),
    }
}
