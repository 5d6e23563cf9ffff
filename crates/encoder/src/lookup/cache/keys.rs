//! The keys of pre-tokens, and finding one in a cache line. [`layout`](crate::layout) draws both.

use gristmill_system::memory::{Aligned, CacheLine};

use crate::layout::{
    FIRST_BYTES, KEY_BYTES, KIND_BITS, LINE_WORDS, MEDIUM, MediumKey, PART_TAG, SHORT, ShortKey, TAGS,
    TINY_TAG, Value,
};
use crate::simd::probe::Probe;

/// Whether a key's pre-token is tiny, so that one word of the key suffices.
#[inline(always)]
pub fn is_tiny(key: ShortKey) -> bool {
    (key >> 120) as u8 & KIND_BITS != 0
}

/// Whether a word of a key is all of a tiny pre-token.
pub fn is_tiny_word(word: u64) -> bool {
    (word >> 56) as u8 > TINY_TAG
}

/// The key of a medium pre-token.
#[inline(always)]
pub fn medium_key(text: &[u8], start: usize, len: usize) -> MediumKey {
    let rest = load(text, start + KEY_BYTES) & FIRST_BYTES[(len - KEY_BYTES) & SHORT] | TAGS[len & MEDIUM];
    let first = load(text, start);
    [first as u64, (first >> 64) as u64, rest as u64, (rest >> 64) as u64]
}

/// The key of a part of a pre-token, of up to [`SHORT`] bytes. It always takes two words.
pub fn short_part_key(text: &[u8], start: usize, len: usize) -> ShortKey {
    load(text, start) & FIRST_BYTES[len & SHORT] | ShortKey::from(PART_TAG | len as u8) << 120
}

/// The key of a part of a pre-token, of [`SHORT`] + 1 to [`MEDIUM`] bytes.
pub fn medium_part_key(text: &[u8], start: usize, len: usize) -> MediumKey {
    let [a, b, c, d] = medium_key(text, start, len);
    [a, b, c, d | u64::from(PART_TAG) << 56]
}

/// The index of a word after the values. A line has two words from there on as well.
const NO_VALUE: usize = LINE_WORDS;

/// The index of the word at which a key's value begins, or [`NO_VALUE`], by the kind bits of the key and by which words
/// of a line equal those of the key.
static VALUES: Aligned<[u8; 128]> = Aligned({
    let mut values = [NO_VALUE as u8; 128];
    let mut equal = 1;
    while equal < 16 {
        values[KIND_BITS as usize | equal] = equal.trailing_zeros() as u8;
        if equal & 0b0011 == 0b0011 {
            values[equal] = 0;
        } else if equal & 0b1100 == 0b1100 {
            values[equal] = 2;
        }
        equal += 1;
    }
    values
});

/// The value of a key as two words of a line, or arbitrary ones; and whether the key is there.
#[inline(always)]
pub fn find(probe: impl Probe, line: &CacheLine, key: ShortKey) -> (&Value, bool) {
    let kind = (key >> 120) as usize & KIND_BITS as usize;
    let word = usize::from(VALUES.0[kind | probe.equal(line, key) & 15]);
    // SAFETY: no entry of the table exceeds `NO_VALUE`, from which on there are two words.
    (unsafe { &*line.0.as_ptr().add(word).cast() }, word < NO_VALUE)
}

/// The bytes of a padded text from `start` on.
#[inline(always)]
pub fn bytes(text: &[u8], start: usize) -> &[u8; KEY_BYTES] {
    text[start..].first_chunk().expect("texts are padded")
}

#[inline(always)]
fn load(text: &[u8], start: usize) -> u128 {
    u128::from_le_bytes(*bytes(text, start))
}
