//! BERT's normalizer: cleans text, puts spaces around Chinese characters, strips accents, lower-cases.
//!
//! Most characters stay as they are whatever surrounds them, and are copied in runs. Only accents depend on their
//! neighbours, by the canonical order of marks, so a run of characters that may have some is decomposed together.

use std::ops::RangeInclusive;

use tokenizers::normalizers::BertNormalizer;
use unicode_categories::UnicodeCategories;
use unicode_normalization_alignments::UnicodeNormalization;

use super::unicode_forms::{Form, UnicodeNormalizer};
use crate::pretokenize::patterns::char_classes::table::CharTable;
use crate::utf8::decode;

/// Stays as it is.
const SAME: u8 = 0;
/// Is removed, before its neighbours are decomposed.
const REMOVED: u8 = 1;
const SPACE: u8 = 2;
/// Gets a space on each side.
const CHINESE: u8 = 3;
/// Becomes lower case, and has no accent.
const UPPER: u8 = 4;
/// An accent, or what has one.
const ACCENTED: u8 = 5;

/// From here on only these characters begin a range of others that are treated alike: the kinds of all of them would take
/// a tenth of a second at load.
const FIRST_SPARSE: char = '\u{30000}';
const SPARSE: [RangeInclusive<char>; 5] = [
    FIRST_SPARSE..=FIRST_SPARSE,
    '\u{E0000}'..='\u{E1000}',
    '\u{F0000}'..='\u{F0000}',
    '\u{FFFFE}'..='\u{100000}',
    '\u{10FFFE}'..='\u{10FFFF}',
];

/// BERT's normalizer with some options.
pub struct Bert {
    /// The treatment of each character.
    kinds: CharTable,
    strip_accents: bool,
    lowercase: bool,
}

impl Bert {
    pub fn new(options: BertNormalizer) -> Self {
        let BertNormalizer { clean_text, handle_chinese_chars, lowercase, .. } = options;
        let strip_accents = options.strip_accents.unwrap_or(lowercase);
        let forms = strip_accents.then(|| UnicodeNormalizer::get(Form::Nfd));
        let kind = |c: char| match c {
            '\t' | '\n' | '\r' if clean_text => SPACE,
            '\0' | '\u{FFFD}' if clean_text => REMOVED,
            _ if clean_text && c.is_other() => REMOVED,
            ' ' => SAME,
            _ if clean_text && c.is_whitespace() => SPACE,
            _ if handle_chinese_chars && is_chinese(c) => CHINESE,
            _ if forms.is_some_and(|forms| !forms.is_settled(c.into()) || c.is_mark_nonspacing()) => ACCENTED,
            _ if lowercase && !c.to_lowercase().eq([c]) => UPPER,
            _ => SAME,
        };
        let mut ranges: Vec<(u32, u8)> = Vec::new();
        for c in ('\0'..FIRST_SPARSE).chain(SPARSE.into_iter().flatten()) {
            let kind = kind(c);
            if ranges.last().is_none_or(|last| last.1 != kind) {
                ranges.push((c.into(), kind));
            }
        }
        Self { kinds: CharTable::new(&ranges), strip_accents, lowercase }
    }

    /// Writes the normalized text to an empty buffer, unless it is the text itself; says whether it did.
    pub fn normalize(&self, text: &str, buffer: &mut String) -> bool {
        let bytes = text.as_bytes();
        buffer.reserve(text.len());
        let (mut index, mut copied) = (0, 0);
        while index < bytes.len() {
            let (code, len) = decode(&bytes[index..]);
            let kind = self.kinds.of(code);
            if kind == SAME {
                index += len;
                continue;
            }
            buffer.push_str(&text[copied..index]);
            let end = match kind {
                REMOVED | ACCENTED => self.end_of_accented(bytes, index + len),
                _ => index + len,
            };
            let changed = &text[index..end];
            match kind {
                SPACE => buffer.push(' '),
                UPPER => buffer.extend(changed.chars().flat_map(char::to_lowercase)),
                CHINESE => {
                    buffer.push(' ');
                    self.push_accented(changed, buffer);
                    buffer.push(' ');
                }
                _ => self.push_accented(changed, buffer),
            }
            (index, copied) = (end, end);
        }
        if copied > 0 {
            buffer.push_str(&text[copied..]);
        }
        copied > 0
    }

    /// The end of a run of characters that may have accents, and of those that are removed among them.
    fn end_of_accented(&self, text: &[u8], mut index: usize) -> usize {
        while index < text.len() {
            let (code, len) = decode(&text[index..]);
            if !matches!(self.kinds.of(code), REMOVED | ACCENTED) {
                break;
            }
            index += len;
        }
        index
    }

    fn push_accented(&self, text: &str, buffer: &mut String) {
        let kept = text.chars().filter(|c| self.kinds.of(u32::from(*c)) != REMOVED);
        if !self.strip_accents {
            return buffer.extend(kept);
        }
        let bare = kept.nfd().map(|(c, _)| c).filter(|c| !c.is_mark_nonspacing());
        if self.lowercase {
            buffer.extend(bare.flat_map(char::to_lowercase));
        } else {
            buffer.extend(bare);
        }
    }

    pub fn bytes(&self) -> usize {
        self.kinds.bytes()
    }
}

/// The blocks of ideographs that the reference puts spaces around.
fn is_chinese(c: char) -> bool {
    matches!(
        u32::from(c),
        0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0x2_0000..=0x2_A6DF | 0x2_A700..=0x2_B73F
            | 0x2_B740..=0x2_B81F | 0x2_B920..=0x2_CEAF | 0x2_F800..=0x2_FA1F
    )
}
