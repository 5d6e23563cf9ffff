//! SentencePiece's normalizer: a map of strings, asked for each grapheme, and for its characters if it has none.
//!
//! In ASCII each character is a grapheme, but for "\r\n", and few are mapped. So only the stretches around others go to
//! the library: from a character before them, which a mark may follow, to where two characters of ASCII meet.

use tokenizers::normalizers::precompiled::Precompiled;

use crate::reference::library_call;

/// A map of strings, and what it makes of ASCII characters.
pub struct CharsMap {
    library: Precompiled,
    /// The bytes that stay as they are, whatever surrounds them in ASCII.
    plain: [bool; 256],
    mapped: Vec<Option<Box<str>>>,
}

impl CharsMap {
    /// The error is the library's, of a damaged map.
    pub fn new(library: Precompiled) -> Result<Self, String> {
        let ascii = (0..128).map(|byte| {
            let c = char::from(byte).to_string();
            let mapped = library_call(|| Ok(library.transform(&c))).map_err(|error| error.to_string())?;
            Ok(mapped.filter(|mapped| *mapped != c).map(Box::from))
        });
        let mapped: Vec<Option<Box<str>>> = ascii.collect::<Result<_, String>>()?;
        let plain =
            std::array::from_fn(|byte| byte < 128 && byte != usize::from(b'\r') && mapped[byte].is_none());
        Ok(Self { library, plain, mapped })
    }

    /// Writes the normalized text to an empty buffer, unless it is the text itself; says whether it did. A damaged map may
    /// make the library panic.
    pub fn normalize(&self, text: &str, buffer: &mut String) -> bool {
        let bytes = text.as_bytes();
        let next = |from: usize| bytes[from..].iter().position(|byte| !self.plain[usize::from(*byte)]);
        let mut copied = 0;
        while let Some(index) = next(copied).map(|index| copied + index) {
            let start = if bytes[index].is_ascii() { index } else { index.saturating_sub(1).max(copied) };
            let end = (index + 1..bytes.len())
                .find(|end| parts(bytes[end - 1], bytes[*end]))
                .unwrap_or(bytes.len());
            buffer.push_str(&text[copied..start]);
            match bytes[start..end] {
                [byte] => match &self.mapped[usize::from(byte)] {
                    Some(mapped) => buffer.push_str(mapped),
                    None => buffer.push(char::from(byte)),
                },
                _ => buffer.push_str(&self.library.normalize_string(&text[start..end])),
            }
            copied = end;
        }
        if copied > 0 {
            buffer.push_str(&text[copied..]);
        }
        copied > 0
    }
}

/// Whether a grapheme ends between two bytes, whatever surrounds them.
fn parts(left: u8, right: u8) -> bool {
    left.is_ascii() && right.is_ascii() && (left, right) != (b'\r', b'\n')
}
