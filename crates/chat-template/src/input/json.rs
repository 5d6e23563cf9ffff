//! A reader of JSON that borrows strings and keeps all digits of integers.

use super::{Place, Reader, input_error, is_message};
use crate::error::Result;
use crate::origin::Key;
use crate::text::{Origin, Str};
use crate::value::Val;

/// Reads one JSON value.
pub(super) fn read<'a>(
    reader: &mut Reader<'a, '_>,
    bytes: &'a [u8],
    place: Place,
    key: Key,
) -> Result<Val<'a>> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| input_error(format!("not UTF-8 at byte {}", error.valid_up_to())))?;
    let mut json = Json { reader, text, at: 0 };
    let value = json.value(place, key)?;
    json.space();
    if json.at < text.len() {
        return json.fail("expected the end");
    }
    Ok(value)
}

struct Json<'a, 'b, 'r> {
    reader: &'b mut Reader<'a, 'r>,
    text: &'a str,
    at: usize,
}

impl<'a> Json<'a, '_, '_> {
    fn fail<T>(&self, message: &str) -> Result<T> {
        Err(input_error(format!("{message} at byte {} of the JSON", self.at)))
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    #[inline]
    fn skip(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn skip_word(&mut self, word: &str) -> bool {
        let found = self.text[self.at..].starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    fn value(&mut self, place: Place, key: Key) -> Result<Val<'a>> {
        self.space();
        let node = self.reader.node(place, key);
        let origin = Origin(node);
        match self.peek() {
            Some(b'"') => {
                let text = self.string()?;
                self.reader.heap.str(Str::new(text, origin))
            }
            Some(b'{') => self.object(place, node),
            Some(b'[') => self.array(place, node),
            Some(b'-' | b'0'..=b'9') => self.number(origin),
            Some(b't') if self.skip_word("true") => Ok(Val::Bool(true, origin)),
            Some(b'f') if self.skip_word("false") => Ok(Val::Bool(false, origin)),
            Some(b'n') if self.skip_word("null") => Ok(Val::None(origin)),
            Some(b'N') if self.skip_word("NaN") => Ok(Val::Float(f64::NAN, origin)),
            Some(b'I') if self.skip_word("Infinity") => Ok(Val::Float(f64::INFINITY, origin)),
            _ => self.fail("expected a value"),
        }
    }

    fn array(&mut self, place: Place, node: u32) -> Result<Val<'a>> {
        self.reader.deeper()?;
        self.at += 1;
        let begin = self.reader.items.len();
        let mut index = 0;
        self.space();
        if !self.skip(b']') {
            loop {
                let inside = self.reader.inside(place, node, index);
                let item = self.value(inside, Key::Index(index))?;
                self.reader.items.push(item);
                index += 1;
                self.space();
                if self.skip(b']') {
                    break;
                }
                if !self.skip(b',') {
                    return self.fail("expected , or ]");
                }
            }
        }
        self.reader.depth -= 1;
        self.reader.list(begin, Origin(node))
    }

    fn object(&mut self, place: Place, node: u32) -> Result<Val<'a>> {
        self.reader.deeper()?;
        self.at += 1;
        let begin = self.reader.entries.len();
        let inside = self.reader.inside(place, node, 0);
        self.space();
        if !self.skip(b'}') {
            loop {
                self.space();
                if self.peek() != Some(b'"') {
                    return self.fail("expected a key in double quotes");
                }
                let name = self.string()?;
                self.space();
                if !self.skip(b':') {
                    return self.fail("expected :");
                }
                let key = self.reader.origins.name(name);
                let value = self.value(inside, key)?;
                let name = self.reader.heap.str(Str::new(name, Origin(node)))?;
                self.reader.entries.push((name, value));
                self.space();
                if self.skip(b'}') {
                    break;
                }
                if !self.skip(b',') {
                    return self.fail("expected , or }");
                }
            }
        }
        self.reader.depth -= 1;
        let is_message = is_message(place);
        self.reader.dict(begin, Origin(node), is_message)
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self, origin: Origin) -> Result<Val<'a>> {
        let start = self.at;
        let negative = self.skip(b'-');
        if negative && self.skip_word("Infinity") {
            return Ok(Val::Float(f64::NEG_INFINITY, origin));
        }
        if !self.skip(b'0') && self.digits() == 0 {
            return self.fail("expected a digit");
        }
        let mut is_float = false;
        let whole = self.at;
        if self.skip(b'.') {
            is_float = self.digits() > 0;
            if !is_float {
                self.at = whole;
                return self.fail("expected a digit behind the point");
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if !self.skip(b'+') {
                self.skip(b'-');
            }
            if self.digits() == 0 {
                return self.fail("expected a digit of the exponent");
            }
            is_float = true;
        }
        let text = &self.text[start..self.at];
        if !is_float {
            return self.reader.integer(if text == "-0" { "0" } else { text }, origin);
        }
        match text.parse() {
            Ok(value) => Ok(Val::Float(value, origin)),
            Err(_) => self.fail("a number that cannot be read"),
        }
    }

    /// The string that starts here: a part of the input, if nothing in it is escaped.
    fn string(&mut self) -> Result<&'a str> {
        let start = self.at + 1;
        let rest = &self.text.as_bytes()[start..];
        let Some(end) = special_byte(rest) else {
            return self.fail("the string has no end");
        };
        if rest[end] < 0x20 {
            self.at = start + end;
            return self.fail("a control character in a string");
        }
        if rest[end] == b'"' {
            self.at = start + end + 1;
            return Ok(&self.text[start..start + end]);
        }
        self.at = start + end;
        self.escaped_string(start)
    }

    fn escaped_string(&mut self, start: usize) -> Result<&'a str> {
        let mut value = String::from(&self.text[start..self.at]);
        loop {
            // At a backslash or the closing quote.
            if self.skip(b'"') {
                return self.reader.heap.text(&value);
            }
            self.at += 1;
            let Some(escape) = self.peek() else {
                return self.fail("the string has no end");
            };
            self.at += 1;
            match escape {
                b'"' | b'\\' | b'/' => value.push(char::from(escape)),
                b'b' => value.push('\u{8}'),
                b'f' => value.push('\u{c}'),
                b'n' => value.push('\n'),
                b'r' => value.push('\r'),
                b't' => value.push('\t'),
                b'u' => value.push(self.unicode_escape()?),
                _ => return self.fail("an unknown escape"),
            }
            let rest = &self.text.as_bytes()[self.at..];
            let Some(end) = special_byte(rest) else {
                return self.fail("the string has no end");
            };
            if rest[end] < 0x20 {
                self.at += end;
                return self.fail("a control character in a string");
            }
            value.push_str(&self.text[self.at..self.at + end]);
            self.at += end;
        }
    }

    fn hex4(&mut self) -> Result<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        match digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            Some(digits) => {
                self.at += 4;
                Ok(digits
                    .iter()
                    .fold(0, |code, digit| code * 16 + char::from(*digit).to_digit(16).unwrap_or(0)))
            }
            None => self.fail("expected four hexadecimal digits"),
        }
    }

    fn unicode_escape(&mut self) -> Result<char> {
        let first = self.hex4()?;
        if (0xd800..0xdc00).contains(&first) && self.skip_word("\\u") {
            let second = self.hex4()?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
        match char::from_u32(first) {
            Some(c) => Ok(c),
            None => self.fail("half of a surrogate pair, which no tokenizer can encode,"),
        }
    }
}

/// Where the first quote, backslash or control character is.
fn special_byte(bytes: &[u8]) -> Option<usize> {
    // Keys and many values are short: a word at a time. In longer strings, with the processor's vectors.
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().take(4).enumerate() {
        let found = special_bits(u64::from_le_bytes(*word));
        if found != 0 {
            return Some(at * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let is_special = |byte: &u8| *byte < 0x20 || matches!(byte, b'"' | b'\\');
    if words.len() < 4 {
        return rest.iter().position(is_special).map(|at| words.len() * 8 + at);
    }
    let far = &bytes[32..];
    let end = memchr::memchr2(b'"', b'\\', far);
    let before = &far[..end.unwrap_or(far.len())];
    if has_control(before) {
        return before.iter().position(is_special).map(|at| 32 + at);
    }
    end.map(|end| 32 + end)
}

/// The high bit of each byte that is a quote, a backslash or a control character. Bits above the lowest one that is
/// set may be wrong.
fn special_bits(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word & HIGH;
    below(word, 0x20) | below(word ^ (ONES * 0x22), 1) | below(word ^ (ONES * 0x5c), 1)
}

/// Whether a control character is among the bytes.
fn has_control(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<32>();
    let mut least = [u8::MAX; 32];
    for chunk in chunks {
        for (least, byte) in least.iter_mut().zip(chunk) {
            *least = (*least).min(*byte);
        }
    }
    least.iter().chain(rest).any(|byte| *byte < 0x20)
}
