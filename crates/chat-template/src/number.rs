//! Numbers as Python computes with them: integers without bound, floats, and bools, which are integers.

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{Signed, ToPrimitive, Zero};

use crate::ast::BinaryOp;
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::text::Origin;
use crate::value::{Big, Val};

/// How many digits an integer may have: Python neither reads nor prints longer ones.
pub(crate) const MAX_DIGITS: usize = 4300;

/// A number to compute with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Number {
    Int(i64),
    Big(BigInt),
    Float(f64),
}

impl Number {
    /// The number that a value is, if it is one.
    pub(crate) fn of<'a>(value: &Val<'a>, heap: &Heap<'a>) -> Result<Option<Self>> {
        Ok(match value {
            Val::Bool(value, _) => Some(Self::Int(i64::from(*value))),
            Val::Int(value, _) => Some(Self::Int(*value)),
            Val::Big(big) => {
                // Arithmetic with long integers takes time.
                heap.steps(big.digits.len() as u64)?;
                big.digits.parse().ok().map(Self::Big)
            }
            Val::Float(value, _) => Some(Self::Float(*value)),
            _ => None,
        })
    }

    pub(crate) fn into_value<'a>(self, origin: Origin, heap: &Heap<'a>) -> Result<Val<'a>> {
        match self {
            Self::Int(value) => Ok(Val::Int(value, origin)),
            Self::Float(value) => Ok(Val::Float(value, origin)),
            Self::Big(value) => match value.to_i64() {
                Some(value) => Ok(Val::Int(value, origin)),
                None if value.bits() > 16_000 => {
                    Err(Error::unsupported("an integer with more than 4300 digits"))
                }
                None => {
                    let digits = heap.text(&value.to_string())?;
                    Ok(Val::Big(heap.alloc(Big { digits, origin })?))
                }
            },
        }
    }

    fn big(&self) -> Option<BigInt> {
        match self {
            Self::Int(value) => Some(BigInt::from(*value)),
            Self::Big(value) => Some(value.clone()),
            Self::Float(_) => None,
        }
    }

    /// As a float, as Python converts an integer for arithmetic with one.
    pub(crate) fn float(&self) -> Result<f64> {
        match self {
            Self::Int(value) => Ok(*value as f64),
            Self::Float(value) => Ok(*value),
            Self::Big(value) => match value.to_f64() {
                Some(float) if float.is_finite() => Ok(float),
                _ => Err(Error::runtime("the integer is too large to be a float")),
            },
        }
    }

    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Int(value) => *value == 0,
            Self::Big(value) => value.is_zero(),
            Self::Float(value) => *value == 0.0,
        }
    }

    pub(crate) fn equals(&self, other: &Self) -> bool {
        self.compare(other) == Some(std::cmp::Ordering::Equal)
    }

    /// The order of two numbers by their exact values; `None` with a NaN.
    pub(crate) fn compare(&self, other: &Self) -> Option<std::cmp::Ordering> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(b),
            (Self::Float(a), b) => b.compare_float(*a).map(std::cmp::Ordering::reverse),
            (a, Self::Float(b)) => a.compare_float(*b),
            (a, b) => Some(a.big()?.cmp(&b.big()?)),
        }
    }

    fn compare_float(&self, float: f64) -> Option<std::cmp::Ordering> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        if float.is_nan() {
            return None;
        }
        if float.is_infinite() {
            return Some(if float > 0.0 { Less } else { Greater });
        }
        let whole = num_traits::FromPrimitive::from_f64(float.trunc()).unwrap_or_else(BigInt::zero);
        Some(self.big()?.cmp(&whole).then(match float.fract() {
            fraction if fraction > 0.0 => Less,
            fraction if fraction < 0.0 => Greater,
            _ => Equal,
        }))
    }

    pub(crate) fn add(&self, other: &Self) -> Result<Self> {
        if let (Self::Int(a), Self::Int(b)) = (self, other)
            && let Some(sum) = a.checked_add(*b)
        {
            return Ok(Self::Int(sum));
        }
        self.exact_or_float(other, |a, b| Ok(a + b), |a, b| Ok(a + b))
    }

    /// Two integers exactly, anything with a float as floats.
    fn exact_or_float(
        &self,
        other: &Self,
        exact: impl FnOnce(&BigInt, &BigInt) -> Result<BigInt>,
        floats: impl FnOnce(f64, f64) -> Result<f64>,
    ) -> Result<Self> {
        match (self.big(), other.big()) {
            (Some(a), Some(b)) => exact(&a, &b).map(Self::Big),
            _ => floats(self.float()?, other.float()?).map(Self::Float),
        }
    }

    pub(crate) fn binary(&self, op: BinaryOp, other: &Self) -> Result<Self> {
        if let (Self::Int(a), Self::Int(b)) = (self, other)
            && *b > 0
        {
            match op {
                BinaryOp::Mod => return Ok(Self::Int(a.rem_euclid(*b))),
                BinaryOp::FloorDiv => return Ok(Self::Int(a.div_euclid(*b))),
                _ => {}
            }
        }
        match op {
            BinaryOp::Sub => match (self, other) {
                (Self::Int(a), Self::Int(b)) if a.checked_sub(*b).is_some() => Ok(Self::Int(a - b)),
                _ => self.exact_or_float(other, |a, b| Ok(a - b), |a, b| Ok(a - b)),
            },
            BinaryOp::Mul => match (self, other) {
                (Self::Int(a), Self::Int(b)) if a.checked_mul(*b).is_some() => Ok(Self::Int(a * b)),
                _ => self.exact_or_float(other, |a, b| Ok(a * b), |a, b| Ok(a * b)),
            },
            BinaryOp::Div => self.divide(other),
            BinaryOp::FloorDiv | BinaryOp::Mod if other.is_zero() => Err(division_by_zero()),
            BinaryOp::FloorDiv => {
                self.exact_or_float(other, |a, b| Ok(a.div_floor(b)), |a, b| Ok(float_divmod(a, b).0))
            }
            BinaryOp::Mod => {
                self.exact_or_float(other, |a, b| Ok(a.mod_floor(b)), |a, b| Ok(float_divmod(a, b).1))
            }
            BinaryOp::Pow => self.power(other),
        }
    }

    fn divide(&self, other: &Self) -> Result<Self> {
        if other.is_zero() {
            return Err(division_by_zero());
        }
        // Beyond 2^53 Python rounds the exact quotient, not that of the rounded operands.
        let exact = |number: &Self| match number {
            Self::Int(value) => value.unsigned_abs() <= 1 << 53,
            Self::Big(_) => false,
            Self::Float(_) => true,
        };
        let mixed = matches!(self, Self::Float(_)) || matches!(other, Self::Float(_));
        if !(mixed || exact(self) && exact(other)) {
            return Err(Error::unsupported("a division of integers beyond 2^53"));
        }
        Ok(Self::Float(self.float()? / other.float()?))
    }

    fn power(&self, other: &Self) -> Result<Self> {
        if let (Some(base), Some(exponent)) = (self.big(), other.big())
            && !exponent.is_negative()
        {
            if base.is_zero() || base.abs() == BigInt::from(1) {
                let odd = exponent.is_odd();
                let one = BigInt::from(1);
                let value = if exponent.is_zero() {
                    one
                } else if odd {
                    base
                } else {
                    &base * &base
                };
                return Ok(Self::Big(value));
            }
            return match exponent.to_u64() {
                Some(exponent) if exponent.saturating_mul(base.bits()) <= 16_000 => {
                    Ok(Self::Big(base.pow(exponent as u32)))
                }
                _ => Err(Error::unsupported("an integer with more than 4300 digits")),
            };
        }
        let (base, exponent) = (self.float()?, other.float()?);
        if base == 0.0 && exponent < 0.0 {
            return Err(Error::runtime("0.0 cannot be raised to a negative power"));
        }
        if base < 0.0 && base.is_finite() && exponent.is_finite() && exponent.fract() != 0.0 {
            return Err(Error::unsupported("a complex number"));
        }
        let value = base.powf(exponent);
        if value.is_infinite() && base.is_finite() && exponent.is_finite() {
            return Err(Error::runtime("the result of ** is too large for a float"));
        }
        Ok(Self::Float(value))
    }

    pub(crate) fn negate(&self) -> Self {
        match self {
            Self::Int(value) => {
                value.checked_neg().map_or_else(|| Self::Big(-BigInt::from(*value)), Self::Int)
            }
            Self::Big(value) => Self::Big(-value),
            Self::Float(value) => Self::Float(-value),
        }
    }

    pub(crate) fn abs(&self) -> Self {
        match self {
            Self::Float(value) => Self::Float(value.abs()),
            Self::Int(value) if *value >= 0 => Self::Int(*value),
            Self::Big(value) if !value.is_negative() => self.clone(),
            _ => self.negate(),
        }
    }

    /// `int(x)` of a number.
    pub(crate) fn truncate(&self) -> Result<Self> {
        match self {
            Self::Float(value) if value.is_nan() => Err(Error::runtime("NaN is no integer")),
            Self::Float(value) if value.is_infinite() => Err(Error::runtime("infinity is no integer")),
            Self::Float(value) => {
                Ok(num_traits::FromPrimitive::from_f64(value.trunc()).map_or(Self::Int(0), Self::Big))
            }
            _ => Ok(self.clone()),
        }
    }
}

fn division_by_zero() -> Error {
    Error::runtime("division by zero")
}

/// Python's `divmod` of floats: the remainder has the divisor's sign.
fn float_divmod(a: f64, b: f64) -> (f64, f64) {
    let mut modulo = a % b;
    let mut div = (a - modulo) / b;
    if modulo == 0.0 {
        modulo = 0.0_f64.copysign(b);
    } else if (b < 0.0) != (modulo < 0.0) {
        modulo += b;
        div -= 1.0;
    }
    let floor = if div == 0.0 {
        0.0_f64.copysign(a / b)
    } else {
        let floor = div.floor();
        if div - floor > 0.5 { floor + 1.0 } else { floor }
    };
    (floor, modulo)
}

/// `int(text, base)`: `None` where Python raises a `ValueError`.
pub(crate) fn parse_int(text: &str, base: u32) -> Result<Option<Number>> {
    let text = text.trim_matches(crate::unicode::is_space);
    if text.chars().any(|c| !c.is_ascii() && c.is_numeric()) {
        return Err(Error::unsupported("digits beyond ASCII"));
    }
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let prefix = digits.get(..2).map(str::to_ascii_lowercase);
    let prefixed = match prefix.as_deref() {
        Some("0b") => 2,
        Some("0o") => 8,
        Some("0x") => 16,
        _ => 0,
    };
    let (base, mut digits) = match (base, prefixed) {
        (0, 0) => {
            let zeros = digits.trim_start_matches(['0', '_']);
            if digits.starts_with('0') && !zeros.is_empty() {
                return Ok(None);
            }
            (10, digits)
        }
        (0, prefixed) => (prefixed, &digits[2..]),
        (base, prefixed) if base == prefixed => (base, &digits[2..]),
        (base, _) => (base, digits),
    };
    if prefixed == base
        && let Some(after) = digits.strip_prefix('_')
    {
        digits = after;
    }
    let parts: Vec<&str> = digits.split('_').collect();
    if parts.iter().any(|part| part.is_empty() || !part.chars().all(|c| c.is_digit(base))) {
        return Ok(None);
    }
    let digits = parts.concat();
    if base == 10 && digits.len() > MAX_DIGITS {
        return Ok(None);
    }
    if digits.len() > 4 * MAX_DIGITS {
        return Err(Error::unsupported("an integer with more than 4300 digits"));
    }
    let value = BigInt::parse_bytes(digits.as_bytes(), base);
    Ok(value.map(|value| Number::Big(if negative { -value } else { value })))
}

/// `float(text)`: `None` where Python raises a `ValueError`.
pub(crate) fn parse_float(text: &str) -> Result<Option<f64>> {
    let text = text.trim_matches(crate::unicode::is_space);
    if text.chars().any(|c| !c.is_ascii() && c.is_numeric()) {
        return Err(Error::unsupported("digits beyond ASCII"));
    }
    let bytes = text.as_bytes();
    let digit = |at: Option<&u8>| at.is_some_and(u8::is_ascii_digit);
    let misplaced = (0..bytes.len())
        .any(|at| bytes[at] == b'_' && !(at > 0 && digit(bytes.get(at - 1)) && digit(bytes.get(at + 1))));
    if misplaced {
        return Ok(None);
    }
    Ok(text.replace('_', "").parse().ok())
}

/// `repr()` of a float.
pub(crate) fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let mut scientific = format!("{value:e}");
    round_tie_to_even(value, &mut scientific);
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let mut text = format!("{value}");
    if text.contains('.') {
        text.pop();
        text.extend(digits.chars().last());
    } else {
        text.push_str(".0");
    }
    text
}

/// Where two shortest texts are equally near to a float, Rust writes the greater one, and Python the one whose last
/// digit is even: 747526608712544.25 is 747526608712544.2.
fn round_tie_to_even(value: f64, scientific: &mut String) {
    let Some(at) = scientific.find('e').and_then(|e| e.checked_sub(1)) else { return };
    let last = scientific.as_bytes()[at];
    // Texts of fewer than 15 digits are no two in one float.
    if last.is_multiple_of(2) || at < 15 {
        return;
    }
    let mut lower = scientific.clone();
    lower.replace_range(at..=at, char::from(last - 1).encode_utf8(&mut [0; 4]));
    // All digits of the float: in a tie, those behind the last one of the lower text are a 5 and zeros.
    let exact = format!("{value:.60e}");
    let rest = exact.strip_prefix(&lower[..=at]).and_then(|rest| rest.split_once('e'));
    let is_tie = rest.is_some_and(|(rest, _)| rest.trim_end_matches('0') == "5");
    if is_tie && lower.parse() == Ok(value) {
        *scientific = lower;
    }
}
