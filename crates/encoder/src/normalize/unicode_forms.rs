//! The normalization forms of Unicode, with the reference's tables.
//!
//! The reference's forms are those of Unicode 9, whatever is current, so its own crate does the work here. But nearly
//! all text is in NFC already, and that is quick to see: a character is *settled* when it has combining class 0, its
//! decomposition begins with class 0, and it never changes or composes with what precedes it (its quick check for the
//! form is "yes"). Text of settled characters is unchanged, and the effect of a form ends at the next one. So only the
//! stretches between settled characters are normalized, each together with the settled character before it, the base of
//! its marks.

use std::iter;

use tokenizers::NormalizedString;
use unicode_normalization_alignments::char::{
    canonical_combining_class, decompose_canonical, decompose_compatible,
};
use unicode_normalization_alignments::{
    IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick,
};

use crate::lazy::Lazy;
use crate::simd::blocks::{BLOCK, Blocks, ByteBlock, block_at, ones};
use crate::simd::{Simd, Work};
use crate::utf8::decode;

/// A normalization form of Unicode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

impl Form {
    #[cfg(test)]
    const ALL: [Self; 4] = [Self::Nfc, Self::Nfd, Self::Nfkc, Self::Nfkd];

    fn quick_check(self, text: impl Iterator<Item = char>) -> IsNormalized {
        match self {
            Self::Nfc => is_nfc_quick(text),
            Self::Nfd => is_nfd_quick(text),
            Self::Nfkc => is_nfkc_quick(text),
            Self::Nfkd => is_nfkd_quick(text),
        }
    }

    /// Appends a text in this form.
    fn push(self, text: &str, buffer: &mut String) {
        let chars = text.chars();
        match self {
            Self::Nfc => buffer.extend(chars.nfc().map(|(c, _)| c)),
            Self::Nfd => buffer.extend(chars.nfd().map(|(c, _)| c)),
            Self::Nfkc => buffer.extend(chars.nfkc().map(|(c, _)| c)),
            Self::Nfkd => buffer.extend(chars.nfkd().map(|(c, _)| c)),
        }
    }

    fn is_settled(self, c: char) -> bool {
        let mut first = None;
        let keep = |part| _ = first.get_or_insert(part);
        match self {
            Self::Nfc | Self::Nfd => decompose_canonical(c, keep),
            Self::Nfkc | Self::Nfkd => decompose_compatible(c, keep),
        }
        canonical_combining_class(c) == 0
            && first.is_some_and(|first| canonical_combining_class(first) == 0)
            && self.quick_check(iter::once(c)) == IsNormalized::Yes
    }
}

/// Normalizes to a form.
pub struct UnicodeNormalizer {
    form: Form,
    /// One bit for each code point: whether it is settled.
    settled: Box<[u64]>,
    /// For the first bytes of those that are not, and their second bytes, by the lower six bits: first bytes have one
    /// bit each, which up to five of them share, and second bytes the bits of those that they follow.
    first: [u8; 64],
    second: [u8; 64],
}

impl UnicodeNormalizer {
    /// The only instance of a form: building it takes tens of milliseconds.
    pub fn get(form: Form) -> &'static Self {
        static TABLES: [Lazy<UnicodeNormalizer>; 4] = [const { Lazy::new() }; 4];
        TABLES[form as usize].get_or_make(|| Self::new(form))
    }

    fn new(form: Form) -> Self {
        let mut settled = vec![0u64; 0x11_0000 / 64].into_boxed_slice();
        let (mut first, mut second) = ([0; 64], [0; 64]);
        let mut firsts = 0;
        for c in '\0'..=char::MAX {
            if form.is_settled(c) {
                settled[c as usize / 64] |= 1 << (c as u32 % 64);
                continue;
            }
            let mut bytes = [0; 4];
            c.encode_utf8(&mut bytes);
            let [left, right] = [bytes[0], bytes[1]].map(|byte| usize::from(byte & 0x3F));
            if first[left] == 0 {
                first[left] = 1 << (firsts % 8);
                firsts += 1;
            }
            second[right] |= first[left];
        }
        Self { form, settled, first, second }
    }

    /// The normalized text, written to `buffer`, or none if `text` is that already.
    pub fn normalize<'a>(&self, simd: Simd, text: &str, buffer: &'a mut String) -> Option<&'a str> {
        let next = |from| simd.run(FindUnsettled { of: self, text, from });
        let mut found = next(0);
        found?;
        buffer.clear();
        let mut copied = 0;
        while let Some(unsettled) = found {
            let before = text[copied..unsettled].chars().next_back().map_or(0, char::len_utf8);
            let start = unsettled - before;
            let end = self.next_settled(text, unsettled);
            buffer.push_str(&text[copied..start]);
            let stretch = &text[start..end];
            // Marks in canonical order that compose with nothing, as in Thai or Arabic.
            if self.form.quick_check(stretch.chars()) == IsNormalized::Yes {
                buffer.push_str(stretch);
            } else {
                self.form.push(stretch, buffer);
            }
            copied = end;
            found = next(end);
        }
        buffer.push_str(&text[copied..]);
        Some(buffer)
    }

    /// Whether all of a text is settled, so that it stays as it is.
    pub fn settles(&self, simd: Simd, text: &str) -> bool {
        simd.run(FindUnsettled { of: self, text, from: 0 }).is_none()
    }

    /// The normalized text as the reference has it, which knows where each byte comes from, and takes much longer.
    pub fn align(&self, text: &str) -> NormalizedString {
        let mut aligned = NormalizedString::from(text);
        match self.form {
            Form::Nfc => aligned.nfc(),
            Form::Nfd => aligned.nfd(),
            Form::Nfkc => aligned.nfkc(),
            Form::Nfkd => aligned.nfkd(),
        };
        aligned
    }

    #[inline(always)]
    pub fn is_settled(&self, c: u32) -> bool {
        self.settled[c as usize / 64] >> (c % 64) & 1 == 1
    }

    /// Where the first settled character from `place` on begins, or the text ends.
    fn next_settled(&self, text: &str, index: usize) -> usize {
        let settled = text[index..].char_indices().find(|(_, c)| self.is_settled(*c as u32));
        settled.map_or(text.len(), |(at, _)| index + at)
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.settled)
    }
}

/// Finds the first character from an offset on that is not settled.
struct FindUnsettled<'a> {
    of: &'a UnicodeNormalizer,
    text: &'a str,
    from: usize,
}

impl Work for FindUnsettled<'_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run(self, blocks: impl Blocks) -> Option<usize> {
        let Self { of, text, from: mut at } = self;
        let bytes = text.as_bytes();
        let is_unsettled = |index: &usize| !of.is_settled(decode(&bytes[*index..]).0);
        while at + BLOCK < bytes.len() {
            let block = blocks.load(block_at(bytes, at));
            if block.high() != 0 {
                let leads = block.leads(&of.first, blocks.load(block_at(bytes, at + 1)), &of.second);
                let found = ones(leads).map(|index| at + index).find(is_unsettled);
                if found.is_some() {
                    return found;
                }
            }
            at += BLOCK;
        }
        (at..bytes.len()).find(|index| bytes[*index] >= 0xC0 && is_unsettled(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expected(form: Form, text: &str) -> String {
        let mut whole = String::new();
        form.push(text, &mut whole);
        whole
    }

    fn normalized(form: Form, text: &str) -> String {
        let mut normalized = Simd::all().into_iter().map(|simd| {
            let mut buffer = "left over".to_owned();
            UnicodeNormalizer::get(form).normalize(simd, text, &mut buffer).unwrap_or(text).to_owned()
        });
        let first = normalized.next().expect("there is a kernel");
        assert!(normalized.all(|other| other == first), "{form:?} {text:?}");
        first
    }

    #[test]
    fn settled_characters_do_not_change() {
        for form in Form::ALL {
            for c in '\0'..=char::MAX {
                let text = c.to_string();
                let alone = expected(form, &text);
                assert_eq!(normalized(form, &text), alone, "{form:?} {c:?}");
                // In a block of text, too.
                let around = "a".repeat(BLOCK);
                let long = around.clone() + &text + &around;
                assert_eq!(normalized(form, &long), expected(form, &long), "{form:?} {c:?}");
                assert!(!c.is_ascii() || form.is_settled(c), "{form:?} {c:?}");
                // A character that composes with what precedes it is not settled.
                if matches!(form, Form::Nfc | Form::Nfkc) && alone == text {
                    for (part, _) in iter::once(c).nfd().skip(1) {
                        assert!(!form.is_settled(part), "{form:?}: {part:?} of {c:?}");
                    }
                }
            }
        }
    }

    /// Texts of characters that a form reorders, composes or decomposes, among some that it leaves alone.
    const TRAPS: &str = "[ aeo\u{300}\u{301}\u{323}\u{338}\u{345}\u{c5}\u{1e9b}\u{212b}\u{340}\u{344}\
        \u{3b1}\u{5d9}\u{5b4}\u{5bc}\u{fb1d}\u{64b}\u{651}\u{915}\u{93c}\u{94d}\u{958}\u{e01}\u{e48}\u{e38}\
        \u{1100}\u{1161}\u{11a8}\u{ac00}\u{ac01}\u{f71}\u{f72}\u{f73}\u{2adc}\u{1d157}\u{1d165}\u{1d15e}\
        \u{2f800}\u{a0}\u{a8}\u{b4}\u{bd}\u{fb01}\u{fb05}\u{fdfa}\u{ff76}\u{ff9e}\u{3131}\u{3164}\u{ffa1}\u{33a0}日本]{0,80}";

    proptest! {
        #[test]
        fn stretches_normalize_like_the_whole_text(text in TRAPS) {
            for form in Form::ALL {
                prop_assert_eq!(normalized(form, &text), expected(form, &text), "{:?}", form);
            }
        }
    }
}
