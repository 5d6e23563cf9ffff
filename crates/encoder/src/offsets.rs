//! Where each token of a text begins: what a mask over bytes needs to become one over tokens.
//!
//! ```text
//! text     <|im_start|>assistant\nNaïve
//! tokens   <|im_start|> assistant \n Na ï ve
//! starts   0            12        21 22 24 26
//! ```
//!
//! Where nothing changes the text, the lengths of the tokens tell. Elsewhere the tokens' own spellings are laid along the
//! text. If they cover it exactly, they are the answer; if a form of Unicode changed the text, they are laid along that.
//! Otherwise another normalizer changed it, or an added token stripped space around it; then the reference tells, which
//! takes much longer.

use crate::byte_alphabet;
use crate::simd::prefetch;
use crate::vocab::MARKER_TEXT;

/// How many tokens before its use the entry of an id is prefetched: those of a vocabulary take megabytes, and waiting for
/// them took three quarters of the time.
const AHEAD: usize = 32;

/// How the tokens of a vocabulary spell the bytes of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    /// A character for each byte.
    Bytes,
    /// As the text does.
    Characters,
    /// As the text does, but for spaces, and with `<0x0A>` for bytes of characters that the vocabulary lacks.
    Markers,
}

/// The bytes of every token.
pub struct Spellings {
    bytes: Vec<u8>,
    /// For each id the end of its bytes, and whether it is an added token.
    tokens: Vec<(u32, bool)>,
    /// For each id its bytes again, if they are few: `bytes` is too large for the processor's cache.
    short: Vec<Short>,
    /// For each id how many bytes it has, or that it has too many: small enough for the cache.
    lengths: Vec<u16>,
}

/// The bytes of a short token in one number: its length, whether it is an added one, and then up to 14 bytes.
#[derive(Clone, Copy)]
struct Short(u128);

impl Short {
    const LONGEST: usize = 14;

    /// The length of a longer token is one that no other has.
    fn new(bytes: &[u8], is_added: bool) -> Self {
        let mut number = [0; 16];
        (number[0], number[1]) = (0xFF, u8::from(is_added));
        if bytes.len() <= Self::LONGEST {
            number[0] = bytes.len() as u8;
            number[2..2 + bytes.len()].copy_from_slice(bytes);
        }
        Self(u128::from_le_bytes(number))
    }

    fn is_added(self) -> bool {
        self.0 >> 8 & 1 != 0
    }

    /// The rest of a text that begins with these bytes. None also where that is not found out quickly.
    fn strip_from(self, text: &[u8]) -> Option<&[u8]> {
        let length = (self.0 & 0xFF) as usize;
        let first = u128::from_le_bytes(*text.first_chunk()?);
        let differs = (first ^ self.0 >> 16) << (8 * (16 - length.clamp(1, 16)));
        (length <= Self::LONGEST && (differs == 0 || length == 0)).then(|| &text[length..])
    }
}

impl Spellings {
    /// Makes the spellings of tokens in the order of their ids: the spelling in tokenizer.json, and whether it is an
    /// added token.
    pub fn new(spelling: Spelling, tokens: impl Iterator<Item = (String, bool)>) -> Self {
        let mut spellings =
            Self { bytes: Vec::new(), tokens: Vec::new(), short: Vec::new(), lengths: Vec::new() };
        for (token, is_added) in tokens {
            let start = spellings.bytes.len();
            match spelling {
                _ if is_added => spellings.bytes.extend_from_slice(token.as_bytes()),
                Spelling::Bytes => spellings.bytes.extend(byte_alphabet::bytes(&token).unwrap_or_default()),
                Spelling::Characters => spellings.bytes.extend_from_slice(token.as_bytes()),
                Spelling::Markers => match byte_token(&token) {
                    Some(byte) => spellings.bytes.push(byte),
                    None => spellings.bytes.extend(token.replace(MARKER_TEXT, " ").into_bytes()),
                },
            }
            spellings.tokens.push((spellings.bytes.len() as u32, is_added));
            let token = &spellings.bytes[start..];
            spellings.short.push(Short::new(token, is_added));
            spellings.lengths.push(u16::try_from(token.len()).unwrap_or(u16::MAX));
        }
        spellings
    }

    fn get(&self, id: u32) -> Option<(&[u8], bool)> {
        let (end, is_added) = *self.tokens.get(id as usize)?;
        let start = if id == 0 { 0 } else { self.tokens[id as usize - 1].0 };
        Some((&self.bytes[start as usize..end as usize], is_added))
    }

    /// The offset of each id's first byte in a text of so many bytes that they spell; none if they have not as many.
    pub fn starts_by_length(&self, length: usize, ids: &[u32]) -> Option<Vec<usize>> {
        let mut end = 0;
        let starts = ids.iter().map(|id| {
            let start = end;
            // An unknown id makes the sum too large.
            end += self.lengths.get(*id as usize).map_or(length + 1, |length| usize::from(*length));
            start
        });
        let starts = starts.collect();
        (end == length).then_some(starts)
    }

    /// The offset of each id's first byte in the text; none if the spellings do not cover the text exactly.
    pub fn starts(&self, text: &str, ids: &[u32]) -> Option<Vec<usize>> {
        let mut starts = Vec::with_capacity(ids.len());
        let mut rest = text.as_bytes();
        // At the start of a text, and behind an added token, a space may be prepended.
        let mut may_have_prefix = true;
        for (index, &id) in ids.iter().enumerate() {
            if let Some(later) = ids.get(index + AHEAD) {
                // Prefetching an entry that does not exist would have no effect.
                prefetch(self.short.as_ptr().wrapping_add(*later as usize));
            }
            starts.push(text.len() - rest.len());
            let short = self.short.get(id as usize)?;
            if let Some(after) = short.strip_from(rest) {
                (rest, may_have_prefix) = (after, short.is_added());
                continue;
            }
            let (bytes, is_added) = self.get(id)?;
            let without_prefix = bytes.strip_prefix(b" ").filter(|_| may_have_prefix);
            rest = rest.strip_prefix(bytes).or_else(|| rest.strip_prefix(without_prefix?))?;
            may_have_prefix = is_added;
        }
        rest.is_empty().then_some(starts)
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spellings(spelling: Spelling, tokens: &[(&str, bool)]) -> Spellings {
        Spellings::new(spelling, tokens.iter().map(|(token, is_added)| ((*token).to_owned(), *is_added)))
    }

    #[test]
    fn byte_level_tokens_split_characters() {
        let known = spellings(Spelling::Bytes, &[("<s>", true), ("Ġa", false), ("Ã", false), ("¯", false)]);
        assert_eq!(known.starts("<s> aï", &[0, 1, 2, 3]), Some(vec![0, 3, 5, 6]));
    }

    #[test]
    fn space_in_front_of_a_stretch_has_no_bytes() {
        let known = spellings(
            Spelling::Markers,
            &[("<s>", true), ("▁a", false), ("▁", false), ("<0xC3>", false), ("<0xAF>", false)],
        );
        assert_eq!(known.starts("a<s>a aï", &[1, 0, 1, 1, 3, 4]), Some(vec![0, 1, 4, 5, 7, 8]));
        // A space of the text after a prepended one.
        assert_eq!(known.starts(" a", &[2, 1]), None);
    }

    #[test]
    fn tokens_of_all_lengths_at_any_distance_from_the_end() {
        let tokens: Vec<String> = (0..18).map(|length| "abcdefghijklmnopqr"[..length].to_owned()).collect();
        let known = spellings(
            Spelling::Characters,
            &tokens.iter().map(|token| (&**token, false)).collect::<Vec<_>>(),
        );
        for first in 0..18 {
            for second in 0..18 {
                let text = tokens[first].clone() + &tokens[second];
                let expected = vec![0, first];
                assert_eq!(known.starts(&text, &[first as u32, second as u32]), Some(expected), "{text}");
                if second > 0 {
                    let other = text[..text.len() - 1].to_owned() + "x";
                    assert_eq!(known.starts(&other, &[first as u32, second as u32]), None, "{other}");
                }
            }
        }
    }

    #[test]
    fn unknown_id_far_ahead_is_not_covered() {
        let known = spellings(Spelling::Characters, &[("a", false)]);
        let count = 2 * AHEAD;
        let text = "a".repeat(count);
        assert_eq!(known.starts(&text, &vec![0; count]), Some((0..count).collect()));
        for id in [1, u32::MAX] {
            let ids = [vec![0; count - 1], vec![id]].concat();
            assert_eq!(known.starts(&text, &ids), None, "{id}");
        }
    }

    #[test]
    fn lengths_tell_where_tokens_start_if_they_add_up() {
        let long = "x".repeat(1 << 16);
        let known =
            spellings(Spelling::Characters, &[("ab", false), ("<s>", true), (&long, false), ("", false)]);
        assert_eq!(known.starts_by_length(7, &[0, 1, 3, 0]), Some(vec![0, 2, 5, 5]));
        for (length, ids) in [(6, &[0, 1, 0][..]), (8, &[0, 1, 0]), (2, &[4]), (1 << 16, &[2])] {
            assert_eq!(known.starts_by_length(length, ids), None, "{ids:?}");
        }
    }

    #[test]
    fn changed_text_is_not_covered() {
        let known = spellings(Spelling::Characters, &[("a", false), ("b", false)]);
        assert_eq!(known.starts("ab", &[0, 1]), Some(vec![0, 1]));
        for (text, ids) in [("aB", &[0, 1][..]), ("abb", &[0, 1]), ("a", &[0, 1]), ("ab", &[0, 7])] {
            assert_eq!(known.starts(text, ids), None, "{text}");
        }
    }
}
