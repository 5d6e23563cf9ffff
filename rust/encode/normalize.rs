//! Normalizers: NFC with the reference's Unicode tables.
//!
//! The reference's NFC is that of Unicode 9, whatever is current, so its own crate does the work here. But nearly all
//! text is in NFC already, and that is quick to see: a character is *settled* when it has combining class 0, its
//! decomposition begins with class 0, and it never changes or composes with what precedes it (`NFC_Quick_Check=Yes`).
//! Text of settled characters is unchanged, and the effect of NFC ends at the next one. So only the stretches between
//! settled characters are normalized, each together with the settled character before it, the base of its marks.

use unicode_normalization_alignments::char::{canonical_combining_class, decompose_canonical};
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::lazy::Lazy;
use super::utf8::decode;

/// Bytes below this begin or continue characters below U+0300, all of them settled.
const FIRST_UNSURE: u8 = 0xCC;

/// Normalizes to NFC.
pub struct Nfc {
    /// One bit for each code point: whether it is settled.
    settled: Box<[u64]>,
}

impl Nfc {
    /// The only instance: building it takes tens of milliseconds.
    pub fn get() -> &'static Self {
        static TABLE: Lazy<Nfc> = Lazy::new();
        TABLE.get_or_make(Self::new)
    }

    fn new() -> Self {
        let mut settled = vec![0u64; 0x11_0000 / 64].into_boxed_slice();
        for c in ('\0'..=char::MAX).filter(|c| is_settled(*c)) {
            settled[c as usize / 64] |= 1 << (c as u32 % 64);
        }
        Self { settled }
    }

    /// The text in NFC, written to `buffer`, or none if `text` is in NFC already.
    pub fn normalize<'a>(&self, text: &str, buffer: &'a mut String) -> Option<&'a str> {
        let mut unsure = self.find(text.as_bytes(), 0, false)?;
        buffer.clear();
        let mut copied = 0;
        while unsure < text.len() {
            let before = text[copied..unsure].chars().next_back().map_or(0, char::len_utf8);
            let start = unsure - before;
            let end = self.find(text.as_bytes(), unsure, true).unwrap_or(text.len());
            buffer.push_str(&text[copied..start]);
            push_nfc(&text[start..end], buffer);
            copied = end;
            unsure = self.find(text.as_bytes(), end, false).unwrap_or(text.len());
        }
        buffer.push_str(&text[copied..]);
        Some(buffer)
    }

    /// The place of the first character from `place` on that is settled, or that is not.
    fn find(&self, text: &[u8], mut place: usize, settled: bool) -> Option<usize> {
        while place < text.len() {
            if !settled && text[place] < FIRST_UNSURE {
                place += skip(&text[place..]);
                continue;
            }
            let (c, len) = decode(&text[place..]);
            if (self.settled[c as usize / 64] >> (c % 64) & 1 == 1) == settled {
                return Some(place);
            }
            place += len;
        }
        None
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.settled)
    }
}

/// How many bytes at the start are below [`FIRST_UNSURE`], at least one: 32 at a time, which the compiler vectorizes.
fn skip(text: &[u8]) -> usize {
    let (blocks, _) = text.as_chunks::<32>();
    let clear = |block: &&[u8; 32]| block.iter().fold(0, |most, byte| most.max(*byte)) < FIRST_UNSURE;
    let blocks = blocks.iter().take_while(clear).count() * 32;
    let rest = &text[blocks..];
    blocks + rest.iter().position(|byte| *byte >= FIRST_UNSURE).unwrap_or(rest.len())
}

fn push_nfc(stretch: &str, buffer: &mut String) {
    // Marks in canonical order that compose with nothing, as in Thai or Arabic.
    if is_nfc_quick(stretch.chars()) == IsNormalized::Yes {
        buffer.push_str(stretch);
    } else {
        buffer.extend(stretch.chars().nfc().map(|(c, _)| c));
    }
}

fn is_settled(c: char) -> bool {
    let mut first = None;
    decompose_canonical(c, |part| _ = first.get_or_insert(part));
    canonical_combining_class(c) == 0
        && first.is_some_and(|first| canonical_combining_class(first) == 0)
        && is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nfc(text: &str) -> String {
        text.chars().nfc().map(|(c, _)| c).collect()
    }

    fn normalized(table: &Nfc, text: &str) -> String {
        let mut buffer = "left over".to_owned();
        table.normalize(text, &mut buffer).unwrap_or(text).to_owned()
    }

    #[test]
    fn settled_characters_are_what_they_are_said_to_be() {
        let table = Nfc::get();
        for c in '\0'..=char::MAX {
            let text = c.to_string();
            assert_eq!(normalized(table, &text), nfc(&text), "{c:?}");
            assert!(c >= '\u{300}' || is_settled(c), "{c:?}");
            // A character that composes with what precedes it is not settled.
            if nfc(&text) == text {
                for (part, _) in std::iter::once(c).nfd().skip(1) {
                    assert!(!is_settled(part), "{part:?} of {c:?}");
                }
            }
        }
    }

    /// Texts of characters that NFC reorders, composes or decomposes, among some that it leaves alone.
    const TRAPS: &str = "[ aeo\u{300}\u{301}\u{323}\u{338}\u{345}\u{c5}\u{1e9b}\u{212b}\u{340}\u{344}\
        \u{3b1}\u{5d9}\u{5b4}\u{5bc}\u{fb1d}\u{64b}\u{651}\u{915}\u{93c}\u{94d}\u{958}\u{e01}\u{e48}\u{e38}\
        \u{1100}\u{1161}\u{11a8}\u{ac00}\u{ac01}\u{f71}\u{f72}\u{f73}\u{2adc}\u{1d157}\u{1d165}\u{1d15e}\
        \u{2f800}日本]{0,80}";

    proptest! {
        #[test]
        fn stretches_give_what_the_whole_gives(text in TRAPS) {
            prop_assert_eq!(normalized(Nfc::get(), &text), nfc(&text));
        }
    }
}
