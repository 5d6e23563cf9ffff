//! From the template's text to tokens, as jinja2's lexer does with `trim_blocks` and `lstrip_blocks`.

use std::fmt::Write;

use num_bigint::BigInt;

use crate::ast::Const;
use crate::error::{Error, ErrorKind, Result};
use crate::unicode::is_space;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tok {
    /// Text between tags.
    Data(String),
    BlockBegin,
    BlockEnd,
    VariableBegin,
    VariableEnd,
    Name(String),
    Str(String),
    /// An integer or a float.
    Number(Const),
    Op(&'static str),
    Eof,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub line: u32,
    pub tok: Tok,
}

/// Longest first, so that `//` is not two divisions.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";",
];

/// The template with all line ends as `\n`, and without the last one, as jinja2 reads it.
pub(crate) fn normalize_newlines(source: &str) -> String {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// The tokens of a template whose line ends are normalized.
pub(crate) fn tokenize(source: &str) -> Result<Vec<Token>> {
    let mut lexer = Lexer { source, at: 0, line: 1, line_starting: true, tokens: Vec::new() };
    lexer.run()?;
    lexer.push(Tok::Eof);
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    line: u32,
    /// Whether what was read last ends in a line end: then the text that follows starts a line.
    line_starting: bool,
    tokens: Vec<Token>,
}

/// The syntax that opens at a `{`.
#[derive(Clone, Copy, PartialEq)]
enum Opening {
    Block,
    Variable,
    Comment,
    /// The raw block, and the length of its whole opening tag.
    Raw(usize),
}

impl<'s> Lexer<'s> {
    fn push(&mut self, tok: Tok) {
        self.tokens.push(Token { line: self.line, tok });
    }

    fn rest(&self) -> &'s str {
        &self.source[self.at..]
    }

    /// Continues by `length` bytes, counting lines.
    fn advance(&mut self, length: usize) {
        let passed = &self.source.as_bytes()[self.at..self.at + length];
        self.line += memchr::memchr_iter(b'\n', passed).count() as u32;
        self.line_starting = passed.last() == Some(&b'\n');
        self.at += length;
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Error::new(ErrorKind::Syntax, message).at(self.line))
    }

    fn run(&mut self) -> Result<()> {
        while let Some((start, opening)) = self.next_opening() {
            let text = &self.rest()[..start];
            let tag = &self.rest()[start..];
            let sign = tag.as_bytes().get(2).copied().filter(|sign| matches!(sign, b'-' | b'+'));
            self.data(text, sign, opening != Opening::Variable);
            self.advance(start);
            let opened = 2 + usize::from(sign.is_some());
            match opening {
                Opening::Raw(length) => {
                    self.advance(length);
                    self.raw()?;
                }
                Opening::Comment => {
                    self.advance(opened);
                    self.comment()?;
                }
                Opening::Block => {
                    self.push(Tok::BlockBegin);
                    self.advance(opened);
                    self.tag("%}")?;
                }
                Opening::Variable => {
                    self.push(Tok::VariableBegin);
                    self.advance(opened);
                    self.tag("}}")?;
                }
            }
        }
        if !self.rest().is_empty() {
            self.push(Tok::Data(self.rest().to_owned()));
        }
        Ok(())
    }

    /// Where the next tag opens, relative to here.
    fn next_opening(&self) -> Option<(usize, Opening)> {
        let rest = self.rest();
        memchr::memchr_iter(b'{', rest.as_bytes()).find_map(|start| {
            let opening = match rest.as_bytes().get(start + 1)? {
                b'%' => raw_opening(&rest[start..]).map_or(Opening::Block, Opening::Raw),
                b'{' => Opening::Variable,
                b'#' => Opening::Comment,
                _ => return None,
            };
            Some((start, opening))
        })
    }

    /// Pushes the text before a tag, without the white space that the tag takes away.
    fn data(&mut self, text: &str, sign: Option<u8>, lstrip: bool) {
        let kept = match sign {
            Some(b'-') => text.trim_end_matches(is_space),
            None if lstrip => {
                let line = text.rfind('\n').map_or(0, |newline| newline + 1);
                let blank = text.len() > line && text[line..].chars().all(is_space);
                if blank && (line > 0 || self.line_starting) { &text[..line] } else { text }
            }
            _ => text,
        };
        if !kept.is_empty() {
            self.push(Tok::Data(kept.to_owned()));
        }
    }

    fn comment(&mut self) -> Result<()> {
        let Some(end) = self.rest().find("#}") else {
            return self.fail("the comment has no end: write #}");
        };
        let sign = self.rest()[..end].bytes().last().filter(|sign| matches!(sign, b'-' | b'+'));
        self.advance(end + 2);
        self.after_end(sign);
        Ok(())
    }

    /// Behind the end of a block or comment: the white space that belongs to it.
    fn after_end(&mut self, sign: Option<u8>) {
        let length = match sign {
            Some(b'-') => self.rest().len() - self.rest().trim_start_matches(is_space).len(),
            None if self.rest().starts_with('\n') => 1,
            _ => 0,
        };
        if length > 0 {
            self.advance(length);
        }
    }

    /// The text of a raw block, up to and with its end tag.
    fn raw(&mut self) -> Result<()> {
        let rest = self.rest();
        let found = memchr::memmem::find_iter(rest.as_bytes(), b"{%")
            .find_map(|start| Some((start, raw_closing(&rest[start..])?)));
        let Some((start, (sign, length, end_sign))) = found else {
            return self.fail("the raw block has no end: write {% endraw %}");
        };
        self.data(&rest[..start], sign, true);
        self.advance(start + length);
        self.after_end(end_sign);
        Ok(())
    }

    /// The tokens inside of a tag, up to and with its end.
    fn tag(&mut self, end: &'static str) -> Result<()> {
        let mut brackets: Vec<char> = Vec::new();
        loop {
            if brackets.is_empty() && self.tag_end(end) {
                return Ok(());
            }
            let rest = self.rest();
            let Some(first) = rest.chars().next() else {
                return Ok(()); // The parser reports the tag that has no end.
            };
            if is_space(first) {
                self.advance(rest.len() - rest.trim_start_matches(is_space).len());
            } else if let Some(length) = float_length(rest, self.source[..self.at].ends_with('.')) {
                let digits = rest[..length].replace('_', "");
                let value =
                    digits.parse::<f64>().map_err(|e| Error::new(ErrorKind::Syntax, e.to_string()))?;
                if value.is_infinite() {
                    return Err(Error::unsupported("a float that is too large").at(self.line));
                }
                self.push(Tok::Number(Const::Float(value)));
                self.advance(length);
            } else if first.is_ascii_digit() {
                self.integer()?;
            } else if first.is_ascii_alphabetic() || first == '_' {
                let length =
                    rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
                if rest[length..].starts_with(|c: char| !c.is_ascii() && c.is_alphanumeric()) {
                    return Err(Error::unsupported("a name with letters beyond ASCII").at(self.line));
                }
                self.push(Tok::Name(rest[..length].to_owned()));
                self.advance(length);
            } else if let Some((value, length)) = self.string()? {
                self.push(Tok::Str(value));
                self.advance(length);
            } else {
                self.operator(first, &mut brackets)?;
            }
        }
    }

    /// Passes the end of the tag if it is here.
    fn tag_end(&mut self, end: &'static str) -> bool {
        let rest = self.rest();
        let block = end == "%}";
        let sign = match rest.as_bytes().first() {
            Some(&sign) if sign == b'-' || (block && sign == b'+') => Some(sign),
            _ => None,
        };
        let signs = usize::from(sign.is_some());
        if !rest[signs..].starts_with(end) {
            return false;
        }
        self.push(if block { Tok::BlockEnd } else { Tok::VariableEnd });
        self.advance(signs + 2);
        if block || sign.is_some() {
            self.after_end(sign);
        }
        true
    }

    fn integer(&mut self) -> Result<()> {
        let (radix, length) = integer_length(self.rest());
        let digits = self.rest()[if radix == 10 { 0 } else { 2 }..length].replace('_', "");
        let value = i64::from_str_radix(&digits, radix)
            .ok()
            .map(Const::Int)
            .or_else(|| BigInt::parse_bytes(digits.as_bytes(), radix).map(|big| Const::Big(big.to_string())));
        match value {
            Some(Const::Big(digits)) if digits.len() > crate::number::MAX_DIGITS => {
                self.fail("the integer has more than 4300 digits, which Python refuses")
            }
            Some(value) => {
                self.push(Tok::Number(value));
                self.advance(length);
                Ok(())
            }
            None => self.fail("a number that cannot be read"),
        }
    }

    /// The string literal that starts here, with its length in the source.
    fn string(&self) -> Result<Option<(String, usize)>> {
        let rest = self.rest();
        let quote @ (b'\'' | b'"') = rest.as_bytes()[0] else { return Ok(None) };
        let mut at = 1;
        while let Some(&byte) = rest.as_bytes().get(at) {
            match byte {
                b'\\' => at += 2,
                byte if byte == quote => {
                    let value = unescape(&rest[1..at]).map_err(|error| error.at(self.line))?;
                    return Ok(Some((value, at + 1)));
                }
                _ => at += 1,
            }
        }
        self.fail("the string has no end")
    }

    fn operator(&mut self, first: char, brackets: &mut Vec<char>) -> Result<()> {
        let Some(operator) = OPERATORS.into_iter().find(|operator| self.rest().starts_with(operator)) else {
            if first.is_alphanumeric() {
                return Err(Error::unsupported("a name with letters beyond ASCII").at(self.line));
            }
            return self.fail(format!("the character {first:?} is not expected here"));
        };
        match operator {
            "{" => brackets.push('}'),
            "(" => brackets.push(')'),
            "[" => brackets.push(']'),
            "}" | ")" | "]" if brackets.pop() != operator.chars().next() => {
                return self.fail(format!("'{operator}' closes nothing that is open"));
            }
            _ => {}
        }
        self.push(Tok::Op(operator));
        self.advance(operator.len());
        Ok(())
    }
}

/// The length of `{%- raw -%}` and the white space it takes, if the text starts with such a tag.
fn raw_opening(tag: &str) -> Option<usize> {
    let inner = tag[2..].strip_prefix(['-', '+']).unwrap_or(&tag[2..]);
    let inner = inner.trim_start_matches(is_space).strip_prefix("raw")?.trim_start_matches(is_space);
    let after = match inner.strip_prefix("-%}") {
        Some(after) => after.trim_start_matches(is_space),
        None => inner.strip_prefix("%}")?,
    };
    Some(tag.len() - after.len())
}

/// If the text starts with `{% endraw %}`: its first sign, its length, and its last sign.
fn raw_closing(tag: &str) -> Option<(Option<u8>, usize, Option<u8>)> {
    let sign = tag.as_bytes().get(2).copied().filter(|sign| matches!(sign, b'-' | b'+'));
    let inner = &tag[2 + usize::from(sign.is_some())..];
    let inner = inner.trim_start_matches(is_space).strip_prefix("endraw")?.trim_start_matches(is_space);
    let end_sign = inner.as_bytes().first().copied().filter(|sign| matches!(sign, b'-' | b'+'));
    let after = inner[usize::from(end_sign.is_some())..].strip_prefix("%}")?;
    Some((sign, tag.len() - after.len(), end_sign))
}

/// The length of digits with single underscores between them, at the start of a text.
fn digits_length(text: &[u8]) -> usize {
    let mut length = 0;
    while text.get(length).is_some_and(u8::is_ascii_digit) {
        length += 1;
        if text.get(length) == Some(&b'_') && text.get(length + 1).is_some_and(u8::is_ascii_digit) {
            length += 1;
        }
    }
    length
}

/// The length of the float that a text starts with.
fn float_length(text: &str, after_dot: bool) -> Option<usize> {
    let bytes = text.as_bytes();
    let whole = digits_length(bytes);
    if whole == 0 || after_dot {
        return None;
    }
    let mut length = whole;
    if bytes.get(length) == Some(&b'.') {
        let fraction = digits_length(&bytes[length + 1..]);
        if fraction == 0 {
            return None;
        }
        length += 1 + fraction;
    }
    if matches!(bytes.get(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
        let exponent = digits_length(&bytes[(length + 1 + sign).min(bytes.len())..]);
        if exponent > 0 {
            return Some(length + 1 + sign + exponent);
        }
    }
    (length > whole).then_some(length)
}

/// The radix and the length of the integer that a text starts with.
fn integer_length(text: &str) -> (u32, usize) {
    let bytes = text.as_bytes();
    if bytes[0] == b'0' {
        let radix = match bytes.get(1) {
            Some(b'b' | b'B') => 2,
            Some(b'o' | b'O') => 8,
            Some(b'x' | b'X') => 16,
            _ => 0,
        };
        let digit = |byte: Option<&u8>| byte.is_some_and(|&byte| char::from(byte).is_digit(radix));
        if radix > 0 {
            let mut length = 2;
            loop {
                let underscore = usize::from(bytes.get(length) == Some(&b'_'));
                if !digit(bytes.get(length + underscore)) {
                    break;
                }
                length += underscore + 1;
            }
            if length > 2 {
                return (radix, length);
            }
        }
        let mut length = 1;
        loop {
            let underscore = usize::from(bytes.get(length) == Some(&b'_'));
            if bytes.get(length + underscore) != Some(&b'0') {
                return (10, length);
            }
            length += underscore + 1;
        }
    }
    (10, digits_length(bytes))
}

/// The value of a string literal, as Python's `unicode-escape` codec reads it.
fn unescape(literal: &str) -> Result<String> {
    let mut value = String::with_capacity(literal.len());
    let mut chars = literal.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            value.push(c);
            continue;
        }
        let Some(escaped) = chars.next() else {
            return Err(Error::new(ErrorKind::Syntax, "a \\ at the end of a string"));
        };
        let mut hex = |digits: usize| -> Result<char> {
            let text: String = (0..digits).filter_map(|_| chars.next_if(char::is_ascii_hexdigit)).collect();
            if text.len() < digits {
                return Err(Error::new(ErrorKind::Syntax, format!("a truncated \\{escaped} in a string")));
            }
            let code = u32::from_str_radix(&text, 16).unwrap_or(u32::MAX);
            match char::from_u32(code) {
                Some(c) => Ok(c),
                None if (0xd800..0xe000).contains(&code) => {
                    Err(Error::unsupported("a string with half a surrogate pair"))
                }
                None => Err(Error::new(ErrorKind::Syntax, "a character beyond Unicode in a string")),
            }
        };
        match escaped {
            '\n' => {}
            '\\' | '\'' | '"' => value.push(escaped),
            'a' => value.push('\u{7}'),
            'b' => value.push('\u{8}'),
            'f' => value.push('\u{c}'),
            'n' => value.push('\n'),
            'r' => value.push('\r'),
            't' => value.push('\t'),
            'v' => value.push('\u{b}'),
            'x' => value.push(hex(2)?),
            'u' => value.push(hex(4)?),
            'U' => value.push(hex(8)?),
            'N' => return Err(Error::unsupported("a character by its name (\\N{...}) in a string")),
            '0'..='7' => {
                let mut code = escaped as u32 - '0' as u32;
                for _ in 0..2 {
                    if let Some(digit) = chars.next_if(|c| ('0'..='7').contains(c)) {
                        code = code * 8 + (digit as u32 - '0' as u32);
                    }
                }
                value.extend(char::from_u32(code));
            }
            _ if escaped.is_ascii() => value.extend(['\\', escaped]),
            // jinja2 writes the character as an escape first, whose \ the other one then escapes.
            _ => {
                let code = escaped as u32;
                let (letter, digits) = match code {
                    0..=0xff => ('x', 2),
                    0x100..=0xffff => ('u', 4),
                    _ => ('U', 8),
                };
                let _ = write!(value, "\\{letter}{code:0digits$x}");
            }
        }
    }
    Ok(value)
}
