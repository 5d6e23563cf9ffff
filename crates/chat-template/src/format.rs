//! `"..." % values` and `"...".format(values)`.

use num_traits::ToPrimitive;

use crate::attribute::Attribute;
use crate::error::{Error, Result};
use crate::eval::Eval;
use crate::eval::expression::Given;
use crate::heap::Heap;
use crate::number::{Number, parse_int};
use crate::text::{Origin, Str};
use crate::value::Val;

/// One `%` conversion: `%(key)-5.2f`.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // Each is a flag of the format.
struct Conversion<'t> {
    key: Option<&'t str>,
    left: bool,
    plus: bool,
    blank: bool,
    zeros: bool,
    width: usize,
    precision: Option<usize>,
    kind: char,
}

/// The values that `%` takes one after the other.
struct Arguments<'a> {
    values: &'a [Val<'a>],
    taken: usize,
    whole: Val<'a>,
}

/// How wide a field or how long a number may be made.
const MAX_WIDTH: usize = 1 << 16;

impl<'a> Arguments<'a> {
    fn next(&mut self) -> Result<Val<'a>> {
        let value = self.values.get(self.taken).copied();
        self.taken += 1;
        value.ok_or_else(|| Error::runtime("not enough arguments for format string"))
    }

    /// Whether Python takes the values as a mapping, of which not all need to be used.
    fn is_mapping(&self) -> bool {
        matches!(self.whole, Val::Dict(_) | Val::List(_) | Val::Range(_) | Val::Undefined(_))
    }
}

impl<'a> Eval<'a> {
    pub(crate) fn percent_format(&mut self, format: Val<'a>, values: Val<'a>) -> Result<Val<'a>> {
        let Val::Str(string) = format else {
            return Err(Error::unsupported("% of a string marked as safe"));
        };
        let one = [values];
        let items = match values {
            Val::Tuple(list) => list.items,
            _ => self.heap.slice(&one)?,
        };
        let mut arguments = Arguments { values: items, taken: 0, whole: values };
        self.heap.work(string.text.len())?;
        let mark = self.out.mark();
        let mut rest = string.text;
        while let Some(at) = rest.find('%') {
            let before = string.part(&rest[..at], self.heap)?;
            self.out.push_str(before)?;
            let (conversion, length) = parse_conversion(&rest[at + 1..], &mut arguments)?;
            if conversion.kind == '%' {
                let percent = string.part(&rest[at..=at], self.heap)?;
                self.out.push_str(percent)?;
            } else {
                let value = self.conversion_value(&conversion, &mut arguments)?;
                self.convert(&conversion, value)?;
            }
            rest = &rest[at + 1 + length..];
        }
        let after = string.part(rest, self.heap)?;
        self.out.push_str(after)?;
        if arguments.taken < items.len() && !arguments.is_mapping() {
            return Err(Error::runtime("not all arguments converted during string formatting"));
        }
        self.take_str(mark)
    }

    fn conversion_value(
        &mut self,
        conversion: &Conversion<'_>,
        arguments: &mut Arguments<'a>,
    ) -> Result<Val<'a>> {
        let Some(key) = conversion.key else { return arguments.next() };
        let Val::Dict(dict) = arguments.whole else {
            return Err(Error::runtime("format requires a mapping"));
        };
        dict.get(key, self.heap)?.ok_or_else(|| Error::runtime(format!("the format needs the key '{key}'")))
    }

    fn convert(&mut self, conversion: &Conversion<'_>, value: Val<'a>) -> Result<()> {
        match conversion.kind {
            's' | 'r' => {
                let mut text = if conversion.kind == 's' {
                    self.text_of(&value)?
                } else {
                    let mark = self.out.mark();
                    self.repr(&value)?;
                    self.out.take(mark)?
                };
                if let Some(precision) = conversion.precision {
                    let end = text.text.char_indices().nth(precision).map_or(text.text.len(), |(at, _)| at);
                    text = text.part(&text.text[..end], self.heap)?;
                }
                self.field(conversion, text)
            }
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'f' | 'F' => {
                let text = number_text(conversion, &value, self.heap)?;
                let text = Str::new(self.heap.text(&text)?, value.origin());
                self.field(conversion, text)
            }
            kind => Err(Error::unsupported(format!("the format %{kind}"))),
        }
    }

    /// Writes a text in a field of the conversion's width.
    fn field(&mut self, conversion: &Conversion<'_>, text: Str<'a>) -> Result<()> {
        let length = crate::unicode::length(text.text);
        let missing = conversion.width.saturating_sub(length);
        if missing > 0 {
            self.heap.charge(missing)?;
        }
        let blanks = " ".repeat(missing);
        if conversion.left {
            self.out.push_str(text)?;
            return self.out.push(&blanks, Origin::TEMPLATE);
        }
        self.out.push(&blanks, Origin::TEMPLATE)?;
        self.out.push_str(text)
    }

    /// `string.format(...)`, without format specifications.
    pub(crate) fn format(&mut self, string: Str<'a>, given: Given<'a>) -> Result<Str<'a>> {
        let mark = self.out.mark();
        let mut rest = string.text;
        let mut automatic = Some(0);
        while let Some(at) = rest.find(['{', '}']) {
            let literal = string.part(&rest[..at], self.heap)?;
            self.out.push_str(literal)?;
            let brace = &rest[at..=at];
            let behind = &rest[at + 1..];
            if behind.starts_with(brace) {
                let brace = string.part(brace, self.heap)?;
                self.out.push_str(brace)?;
                rest = &behind[1..];
                continue;
            }
            if brace == "}" {
                return Err(Error::runtime("Single '}' encountered in format string"));
            }
            let Some(end) = behind.find('}') else {
                return Err(Error::runtime("expected '}' before end of string"));
            };
            let field = string.part(&behind[..end], self.heap)?;
            let (name, repr) = split_field(field.text)?;
            let value = self.field_value(field.part(name, self.heap)?, given, &mut automatic)?;
            if repr {
                self.repr(&value)?;
            } else {
                if matches!(value, Val::Markup(_)) {
                    return Err(Error::unsupported("format() of a value marked as safe"));
                }
                self.write(&value)?;
            }
            rest = &behind[end + 1..];
        }
        let after = string.part(rest, self.heap)?;
        self.out.push_str(after)?;
        self.out.take(mark)
    }

    /// The value of a field: `0.name[key]`. `automatic` counts fields without a number, until one has a number.
    fn field_value(
        &mut self,
        field: Str<'a>,
        given: Given<'a>,
        automatic: &mut Option<usize>,
    ) -> Result<Val<'a>> {
        let end = field.text.find(['.', '[']).unwrap_or(field.text.len());
        let (first, mut rest) = field.text.split_at(end);
        let is_number = !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit());
        let positional = |at: usize| {
            let value = given.positional.get(at).copied();
            value.ok_or_else(|| Error::runtime("Replacement index out of range for positional args tuple"))
        };
        let mut value = if first.is_empty() {
            let Some(at) = *automatic else {
                return Err(Error::runtime(
                    "cannot switch from manual field specification to automatic field numbering",
                ));
            };
            *automatic = Some(at + 1);
            positional(at)?
        } else if is_number {
            if automatic.is_some_and(|at| at > 0) {
                return Err(Error::runtime(
                    "cannot switch from automatic field numbering to manual field specification",
                ));
            }
            *automatic = None;
            positional(first.parse().unwrap_or(usize::MAX))?
        } else {
            self.heap.work(given.keywords.len() * 16)?;
            let found = given.keywords.iter().find(|(name, _)| *name == first);
            found
                .map(|(_, value)| *value)
                .ok_or_else(|| Error::runtime(format!("the format needs '{first}'")))?
        };
        while !rest.is_empty() {
            if let Some(behind) = rest.strip_prefix('.') {
                let end = behind.find(['.', '[']).unwrap_or(behind.len());
                let name = &behind[..end];
                if name.is_empty() {
                    return Err(Error::runtime("Empty attribute in format string"));
                }
                value = self.attribute(value, name, Attribute::named(name))?;
                rest = &behind[end..];
                continue;
            }
            let inside = rest.strip_prefix('[').and_then(|inside| Some((inside, inside.find(']')?)));
            let Some((inside, end)) = inside else {
                return Err(Error::runtime("Missing ']' in format string"));
            };
            let key = &inside[..end];
            if key.is_empty() {
                return Err(Error::runtime("Empty attribute in format string"));
            }
            let index = match parse_int(key, 10)? {
                Some(index) if key.bytes().all(|byte| byte.is_ascii_digit()) => {
                    index.into_value(Origin::TEMPLATE, self.heap)?
                }
                _ => self.heap.constant(key)?,
            };
            value = self.item(value, index)?;
            rest = &inside[end + 1..];
            if !rest.is_empty() && !rest.starts_with(['.', '[']) {
                return Err(Error::runtime("Only '.' or '[' may follow ']' in format field specifier"));
            }
        }
        Ok(value)
    }
}

/// The name of a replacement field, and whether `repr()` is asked for.
fn split_field(field: &str) -> Result<(&str, bool)> {
    if field.contains(['{', ':']) {
        return Err(Error::unsupported("a format specification"));
    }
    match field.split_once('!') {
        None => Ok((field, false)),
        Some((name, "s")) => Ok((name, false)),
        Some((name, "r")) => Ok((name, true)),
        Some((_, "a")) => Err(Error::unsupported("the conversion !a")),
        Some(_) => Err(Error::runtime("unknown conversion in a format string")),
    }
}

/// Whether a template's own format string uses only what [`Eval::format`] knows.
pub(crate) fn check_format(format: &str) -> Result<()> {
    let plain = format.replace("{{", "").replace("}}", "");
    for field in plain.split('{').skip(1) {
        let field = field.split('}').next().unwrap_or(field);
        if field.contains(':') {
            return Err(Error::unsupported("a format specification"));
        }
    }
    Ok(())
}

/// Reads a conversion behind its `%`, with its length.
fn parse_conversion<'t>(text: &'t str, arguments: &mut Arguments<'_>) -> Result<(Conversion<'t>, usize)> {
    let mut conversion = Conversion::default();
    let incomplete = || Error::runtime("incomplete format");
    let mut rest = text;
    if let Some(inside) = rest.strip_prefix('(') {
        let mut depth = 1;
        let end = inside.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        let end = end.ok_or_else(|| Error::runtime("incomplete format key"))?;
        conversion.key = Some(&inside[..end]);
        rest = &inside[end + 1..];
    }
    while let Some(flag) = rest.chars().next() {
        match flag {
            '-' => conversion.left = true,
            '+' => conversion.plus = true,
            ' ' => conversion.blank = true,
            '0' => conversion.zeros = true,
            '#' => return Err(Error::unsupported("the format flag #")),
            _ => break,
        }
        rest = &rest[1..];
    }
    let number = |rest: &mut &'t str, arguments: &mut Arguments<'_>| -> Result<usize> {
        if let Some(behind) = rest.strip_prefix('*') {
            *rest = behind;
            let Val::Int(width, _) = arguments.next()? else {
                return Err(Error::runtime("* wants int"));
            };
            return usize::try_from(width).map_err(|_| Error::unsupported("a negative width"));
        }
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, behind) = rest.split_at(end);
        *rest = behind;
        Ok(if digits.is_empty() { 0 } else { digits.parse().unwrap_or(usize::MAX) })
    };
    conversion.width = number(&mut rest, arguments)?;
    if let Some(behind) = rest.strip_prefix('.') {
        rest = behind;
        conversion.precision = Some(number(&mut rest, arguments)?);
    }
    if conversion.width > MAX_WIDTH || conversion.precision.is_some_and(|precision| precision > MAX_WIDTH) {
        return Err(Error::unsupported("a field as wide as this"));
    }
    rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
    conversion.kind = rest.chars().next().ok_or_else(incomplete)?;
    let known = matches!(
        conversion.kind,
        's' | 'r' | 'a' | 'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'c' | '%'
    );
    if !known {
        return Err(Error::runtime(format!("unsupported format character '{}'", conversion.kind)));
    }
    Ok((conversion, text.len() - rest.len() + 1))
}

/// The text of a number in a conversion, with sign and zeros.
fn number_text<'a>(conversion: &Conversion<'_>, value: &Val<'a>, heap: &Heap<'a>) -> Result<String> {
    let Some(number) = Number::of(value, heap)? else {
        if let Val::Undefined(undefined) = value {
            return Err(crate::eval::undefined_error(undefined));
        }
        return Err(Error::runtime(format!("%{} format: a number is required", conversion.kind)));
    };
    let (negative, digits) = match conversion.kind {
        'd' | 'i' | 'u' => {
            let number = match number.truncate()? {
                Number::Big(big) => big,
                Number::Int(int) => int.into(),
                Number::Float(_) => return Err(Error::runtime("a number is required")),
            };
            if conversion.precision.is_some() {
                return Err(Error::unsupported("a precision of an integer"));
            }
            split_sign(&number.to_string())
        }
        'x' | 'X' | 'o' => {
            let number = match number {
                Number::Int(int) => int.into(),
                Number::Big(big) => big,
                Number::Float(_) => return Err(Error::runtime("an integer is required")),
            };
            if conversion.precision.is_some() {
                return Err(Error::unsupported("a precision of an integer"));
            }
            let text = number.to_str_radix(if conversion.kind == 'o' { 8 } else { 16 });
            split_sign(&if conversion.kind == 'X' { text.to_uppercase() } else { text })
        }
        _ => {
            let float = match &number {
                Number::Big(big) if big.to_f64().is_none_or(f64::is_infinite) => {
                    return Err(Error::runtime("the integer is too large to be a float"));
                }
                number => number.float()?,
            };
            let precision = conversion.precision.unwrap_or(6);
            if !float.is_finite() || precision > 60 {
                return Err(Error::unsupported("such a float in a format"));
            }
            split_sign(&format!("{float:.precision$}"))
        }
    };
    let sign = match (negative, conversion.plus, conversion.blank) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    };
    let width = if conversion.zeros && !conversion.left { conversion.width } else { 0 };
    let zeros = width.saturating_sub(sign.len() + digits.len());
    Ok(format!("{sign}{}{digits}", "0".repeat(zeros)))
}

fn split_sign(text: &str) -> (bool, String) {
    match text.strip_prefix('-') {
        Some(digits) => (true, digits.to_owned()),
        None => (false, text.to_owned()),
    }
}
