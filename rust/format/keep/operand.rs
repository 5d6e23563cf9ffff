//! Operands, and the operations on them.

use std::borrow::Cow;
use std::cmp::Ordering;

use memchr::memmem;

use super::{Arithmetic, Comparison, Constants, Extreme};
use crate::format::{Content, View};

/// A value on the stack.
#[derive(Debug, Clone)]
pub enum Operand<'a> {
    /// A missing key, null, or a result that is not defined.
    Nothing,
    /// True or false: in operations on numbers 1 or 0.
    Boolean(bool),
    /// A number; never NaN.
    Number(f64),
    /// A text.
    Text(Cow<'a, str>),
    /// A text that is compared with a number as one.
    Label(Cow<'a, str>),
    /// An array.
    Array(View<'a>),
    /// An object.
    Object(View<'a>),
}

impl<'a> From<Option<View<'a>>> for Operand<'a> {
    fn from(value: Option<View<'a>>) -> Self {
        let Some(value) = value else { return Self::Nothing };
        match value.content() {
            Content::Null => Self::Nothing,
            Content::Boolean(value) => Self::Boolean(value),
            Content::Number(number) => Self::number(number),
            Content::Text(text) => Self::Text(text),
            Content::Array => Self::Array(value),
            Content::Object => Self::Object(value),
        }
    }
}

impl Operand<'_> {
    /// A number, or nothing for one that is not defined.
    pub fn number(number: f64) -> Self {
        if number.is_nan() { Self::Nothing } else { Self::Number(number) }
    }

    /// Whether there is nothing.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// Whether it counts as true: nothing, false, 0 and what is empty do not.
    pub fn is_true(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Boolean(value) => *value,
            Self::Number(number) => *number != 0.0,
            Self::Text(text) | Self::Label(text) => !text.is_empty(),
            Self::Array(value) => value.items().next().is_some(),
            Self::Object(value) => !value.has_no_members(),
        }
    }

    /// Its number, if it is one.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Boolean(value) => Some(f64::from(*value)),
            Self::Number(number) => Some(*number),
            Self::Label(text) => text.parse().ok().filter(|number: &f64| !number.is_nan()),
            _ => None,
        }
    }

    /// Its text, if it is one.
    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Label(text) => Some(text),
            _ => None,
        }
    }

    /// The length of a text in characters, or of an array in items.
    pub fn length(&self) -> Option<usize> {
        match self {
            Self::Text(text) | Self::Label(text) => Some(text.chars().count()),
            Self::Array(value) => Some(value.items().count()),
            _ => None,
        }
    }

    /// The order of two numbers or of two texts. Values of other types have none.
    fn order(&self, other: &Self) -> Option<Ordering> {
        match (self.as_text(), other.as_text()) {
            (Some(text), Some(other)) => Some(text.cmp(other)),
            _ => self.as_number()?.partial_cmp(&other.as_number()?),
        }
    }

    /// Whether it is an item of an array or a part of a text; nothing if the question makes no sense.
    pub fn is_in(&self, container: &Self) -> Option<bool> {
        match (self, container) {
            (Self::Nothing, _) => None,
            (_, Self::Array(array)) => {
                Some(array.items().any(|item| Comparison::Equal.holds(self, &Operand::from(Some(item)))))
            }
            _ => {
                let (text, whole) = (self.as_text()?, container.as_text()?);
                Some(memmem::find(whole.as_bytes(), text.as_bytes()).is_some())
            }
        }
    }

    /// Whether it is one of some constants; nothing if it is nothing itself.
    pub fn is_one_of(&self, constants: &Constants) -> Option<bool> {
        if self.is_nothing() {
            return None;
        }
        let is_text = |text: &str| constants.texts.binary_search_by(|other| other.as_str().cmp(text)).is_ok();
        let find = |number: f64| constants.numbers.binary_search_by(|other| other.total_cmp(&number));
        // Minus zero is zero.
        let is_number = |number: f64| find(number + 0.0).is_ok();
        Some(self.as_text().is_some_and(is_text) || self.as_number().is_some_and(is_number))
    }
}

impl Comparison {
    /// Whether it holds: never of nothing, nor of two values of different types.
    pub fn holds(self, left: &Operand<'_>, right: &Operand<'_>) -> bool {
        left.order(right).is_some_and(|order| match self {
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::GreaterOrEqual => order.is_ge(),
            Self::Greater => order.is_gt(),
        })
    }
}

impl Arithmetic {
    /// The result for two numbers; nothing for other values, and for a division by zero.
    pub fn apply<'a>(self, left: &Operand<'_>, right: &Operand<'_>) -> Operand<'a> {
        let (Some(left), Some(right)) = (left.as_number(), right.as_number()) else {
            return Operand::Nothing;
        };
        Operand::number(match self {
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
            _ if right == 0.0 => f64::NAN,
            Self::Divide => left / right,
            Self::FloorDivide => floor_divide(left, right),
            Self::Modulo => modulo(left, right),
        })
    }
}

/// The remainder of a division towards minus infinity.
fn modulo(left: f64, right: f64) -> f64 {
    let rest = left % right;
    if rest != 0.0 && (rest < 0.0) != (right < 0.0) { rest + right } else { rest }
}

/// The quotient, towards minus infinity. Not the floor of the rounded quotient, which may be one too many.
fn floor_divide(left: f64, right: f64) -> f64 {
    let rest = left % right;
    let towards_zero = ((left - rest) / right).round();
    if rest != 0.0 && (rest < 0.0) != (right < 0.0) { towards_zero - 1.0 } else { towards_zero }
}

impl Extreme {
    /// The one of two numbers.
    pub fn of(self, one: f64, other: f64) -> f64 {
        let takes_other = match self {
            Self::Smallest => other < one,
            Self::Largest => other > one,
        };
        if takes_other { other } else { one }
    }
}
