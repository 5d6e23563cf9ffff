//! Cuts inside pre-tokens, between characters that no merge joins.
//!
//! Chinese, Japanese and Thai are written without spaces, so pre-tokens in these scripts are whole clauses: hardly ever
//! met twice, which makes a cache of them useless. Nearly all their characters take three bytes. Cut where no merge can
//! join two of them, clauses become groups of a few characters, which are short pre-tokens like any others.
//!
//! Where no merge joins two spaces, as with GPT-2, a line's indentation is a pre-token of as many tokens. A run of
//! spaces is cut into parts whose ids a value of the cache holds.
//!
//! The vocabulary decides which pairs of characters are joined. A filter made of it answers without a branch: it never
//! denies a pair that is joined, and seldom lets through one that is not, which costs a longer group.

use ahash::AHashSet;

use super::{Boundaries, inside};
use crate::simd::blocks::{Blocks, ByteBlock, block_at};
use crate::simd::{Simd, Work};

/// The bytes of each of these characters.
const WIDTH: usize = 3;

/// The pairs of characters that are joined.
#[derive(Default)]
pub struct JoinedCharacters {
    keys: AHashSet<u64>,
    /// Any two may be, as far as is known.
    all: bool,
    /// Two spaces may be.
    spaces: bool,
}

/// With more keys any two characters are taken for joined: the filter would not stay in a cache. Real vocabularies have
/// a tenth of it.
const MOST_KEYS: usize = 1 << 19;

impl JoinedCharacters {
    /// Adds all that there are, so that nothing is cut.
    pub fn add_all(&mut self) {
        self.all = true;
    }

    /// Marks all pairs at the edges of a token as joined, so that it is never cut off from its neighbours.
    pub fn add_edges(&mut self, token: &[u8]) {
        self.spaces |= token.starts_with(b" ") || token.ends_with(b" ");
        if let (Some(last), Some(0x80..0xC0)) = (token.last_chunk(), token.last()) {
            self.add(key(*last, [0; WIDTH]));
        }
        if let (Some(first), Some(0xE0..0xF0)) = (token.first_chunk(), token.first()) {
            (0x80..0xC0).for_each(|before| self.add(key([0, 0, before], *first)));
        }
    }

    fn add(&mut self, key: u64) {
        if !self.all {
            self.keys.insert(key);
            self.all = self.keys.len() > MOST_KEYS;
        }
    }

    /// Adds those that a token holds side by side. The token may hold a part of the first and the last one: then all
    /// characters are added that may be meant.
    pub fn add_inside(&mut self, token: &[u8]) {
        for at in 1..token.len() {
            self.spaces |= token[at - 1..=at] == *b"  ";
            if !self.all && matches!(token[at], 0xE0..0xF0) && matches!(token[at - 1], 0x80..0xC0) {
                let left = token[..at].last_chunk().copied().unwrap_or([0, 0, token[at - 1]]);
                let right = &token[at..];
                let continuation = |bit: usize| match right.get(bit) {
                    Some(byte) => *byte..=*byte,
                    None => 0x80..=0xBF,
                };
                for second in continuation(1) {
                    for third in continuation(2) {
                        self.add(key(left, [right[0], second, third]));
                    }
                }
            }
        }
    }
}

/// The bytes of a pair, shifted up. Without the first two, or without the last three, it stands for all pairs that have
/// the others.
fn key(left: [u8; WIDTH], right: [u8; WIDTH]) -> u64 {
    let mut bytes = [0; 8];
    bytes[2..5].copy_from_slice(&left);
    bytes[5..].copy_from_slice(&right);
    u64::from_le_bytes(bytes)
}

/// The key with only the last byte of the left character.
#[inline(always)]
fn without_left(key: u64) -> u64 {
    key >> 32 << 32
}

#[inline(always)]
fn without_right(key: u64) -> u64 {
    key << 24 >> 24
}

/// Cuts text between characters that are not joined.
pub struct GroupCutter {
    /// One bit for each value of the upper bits of a key's hash, whose number is a power of two: set for the keys of
    /// pairs that are joined.
    filter: Box<[u64]>,
    shift: u32,
    /// Whether there are keys that stand for more than one pair.
    has_parts: bool,
    /// Whether no two spaces are joined.
    cuts_spaces: bool,
}

/// Where runs of spaces are cut: at every fourth byte of the text, behind two spaces. With a newline in front the first
/// part has up to six bytes, and the others have four.
const SPACE_CUTS: u64 = 0x1111_1111_1111_1111;

/// Bits of the filter for each key. A pair that is not joined asks for three of them.
const SPARSENESS: usize = 32;

impl GroupCutter {
    pub fn new(joined: &JoinedCharacters) -> Self {
        if joined.all {
            return Self { filter: [u64::MAX].into(), shift: 64 - 6, has_parts: false, cuts_spaces: false };
        }
        let bits = (joined.keys.len() * SPARSENESS).next_power_of_two().max(64);
        let has_parts = joined.keys.iter().any(|key| [without_left(*key), without_right(*key)].contains(key));
        let (filter, shift) = (vec![0; bits / 64].into_boxed_slice(), 64 - bits.ilog2());
        let mut cutter = Self { filter, shift, has_parts, cuts_spaces: !joined.spaces };
        for key in &joined.keys {
            let bit = cutter.bit(*key);
            cutter.filter[bit / 64] |= 1 << (bit % 64);
        }
        cutter
    }

    #[inline(always)]
    fn bit(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    #[inline(always)]
    fn may_have(&self, key: u64) -> bool {
        let bit = self.bit(key);
        self.filter.get(bit / 64).is_none_or(|word| word >> (bit % 64) & 1 == 1)
    }

    /// Whether the two characters that a padded text begins with may be joined. `PARTS` says whether there are keys that
    /// stand for more than one pair.
    #[inline(always)]
    fn may_join<const PARTS: bool>(&self, text: &[u8]) -> bool {
        let Some(bytes) = text.first_chunk() else { return true };
        let key = u64::from_le_bytes(*bytes) << 16;
        // No branch on the answers, which are unpredictable.
        let part = PARTS && self.may_have(without_left(key)) | self.may_have(without_right(key));
        self.may_have(key) | part
    }

    /// Adds to the cuts of a padded text those between two three-byte characters that no merge joins, but for a few, and
    /// some between spaces if no merge joins these.
    pub fn cut(&self, simd: Simd, text: &[u8], boundaries: &mut Boundaries) {
        simd.run(CutGroups { groups: self, text, boundaries });
    }

    /// The borders of two characters that no merge joins; bit 0 is the one at `at`.
    #[inline(never)]
    fn parted<const PARTS: bool>(&self, text: &[u8], at: usize, between: u64) -> u64 {
        let mut parted = between;
        let mut rest = between;
        while rest != 0 {
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            let joined = self.may_join::<PARTS>(&text[at + bit as usize - WIDTH..]);
            parted &= !(u64::from(joined) << bit);
        }
        parted
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.filter)
    }
}

struct CutGroups<'a> {
    groups: &'a GroupCutter,
    text: &'a [u8],
    boundaries: &'a mut Boundaries,
}

impl Work for CutGroups<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, blocks: impl Blocks) {
        let Self { groups, text, boundaries } = self;
        let n = boundaries.text_len();
        let (mut before, mut spaces_before) = (0, 0);
        for (index, word) in boundaries.words_mut().iter_mut().enumerate() {
            let at = index * 64;
            let block = blocks.load(block_at(text, at));
            let leads = inside(block.within(0xE0, 0xEF), at, n);
            if groups.cuts_spaces {
                let spaces = inside(block.equal(b' '), at, n);
                let behind_two = (spaces << 1 | spaces_before >> 63) & (spaces << 2 | spaces_before >> 62);
                *word |= spaces & behind_two & SPACE_CUTS;
                spaces_before = spaces;
            }
            let between = leads & (leads << WIDTH | before >> (64 - WIDTH)) & !*word;
            before = leads;
            if between != 0 {
                *word |= if groups.has_parts {
                    groups.parted::<true>(text, at, between)
                } else {
                    groups.parted::<false>(text, at, between)
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::pretokenize::PADDING;

    /// Tokens over a few characters, whole ones and parts of them.
    fn tokens() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let token = ("[a日本語のは、😀 ]{2,4}", 0usize..3, 0usize..3).prop_map(|(text, front, back)| {
            let bytes = text.as_bytes();
            bytes[front.min(bytes.len() - 1)..].iter().copied().rev().skip(back).rev().collect()
        });
        prop::collection::vec(token, 0..20)
    }

    /// Whether a token may stand across the boundary between two characters.
    fn holds(token: &[u8], left: char, right: char) -> bool {
        let (left, right) = (left.to_string().into_bytes(), right.to_string().into_bytes());
        (1..token.len()).any(|at| {
            let (front, back) = token.split_at(at);
            (front.ends_with(&left) || left.ends_with(front))
                && (back.starts_with(&right) || right.starts_with(back))
        })
    }

    proptest! {
        #[test]
        fn no_cut_is_inside_a_token(
            text in "([aé日本語のは、😀]| {1,9}){0,100}",
            pretokens: [bool; 200],
            tokens in tokens(),
        ) {
            let n = text.len();
            let mut joined = JoinedCharacters::default();
            for token in &tokens {
                joined.add_inside(token);
            }
            let cutter = GroupCutter::new(&joined);
            let mut pretokens: BTreeSet<u32> =
                text.char_indices().zip(pretokens).filter(|(_, is_cut)| *is_cut).map(|((at, _), _)| at as u32).collect();
            pretokens.remove(&0);
            // The bytes behind a text do not count.
            let padded = [text.as_bytes(), "日".repeat(PADDING).as_bytes()].concat();
            let mut found = None;
            for simd in Simd::all() {
                let (mut boundaries, mut ends) = (Boundaries::default(), Vec::new());
                boundaries.begin_uncut(n);
                for bit in &pretokens {
                    boundaries.add(*bit as usize);
                }
                cutter.cut(simd, &padded, &mut boundaries);
                boundaries.push_ends(simd, 0, &mut ends);
                let ends: BTreeSet<u32> = ends.into_iter().collect();
                prop_assert_eq!(found.get_or_insert(ends.clone()), &ends);
            }
            let ends = found.expect("there is a kernel");
            prop_assert!(ends.is_superset(&pretokens));
            for ((_, left), (at, right)) in text.char_indices().zip(text.char_indices().skip(1)) {
                let are_wide = left.len_utf8() == WIDTH && right.len_utf8() == WIDTH;
                if !(are_wide || [left, right] == [' '; 2]) || tokens.iter().any(|token| holds(token, left, right)) {
                    let at = at as u32;
                    prop_assert_eq!(ends.contains(&at), at as usize == n || pretokens.contains(&at), "{:?} {:?}", left, right);
                }
            }
        }
    }

    #[test]
    fn runs_of_spaces_become_parts_of_few_bytes() {
        for (start, spaces) in (0..70).flat_map(|start| (0..100).map(move |spaces| (start, spaces))) {
            let text = ["x".repeat(start), "\n".into(), " ".repeat(spaces)].concat();
            let padded = [text.as_bytes(), " ".repeat(PADDING).as_bytes()].concat();
            let parts = |token: &[u8]| {
                let mut joined = JoinedCharacters::default();
                joined.add_inside(token);
                let (mut boundaries, mut ends) = (Boundaries::default(), Vec::new());
                boundaries.begin_uncut(text.len());
                if start > 0 {
                    boundaries.add(start);
                }
                GroupCutter::new(&joined).cut(Simd::detect(), &padded, &mut boundaries);
                boundaries.push_ends(Simd::detect(), 0, &mut ends);
                let starts = [0].iter().chain(&ends);
                let lengths = ends.iter().zip(starts).map(|(end, start)| (end - start) as usize);
                lengths.skip(usize::from(start > 0)).collect::<Vec<_>>()
            };
            let apart = parts(b"\n ");
            assert!(apart.iter().all(|length| *length <= 6), "{start} {spaces}: {apart:?}");
            assert!(spaces > 2 || apart.len() == 1, "{start} {spaces}: {apart:?}");
            assert_eq!(parts(b"a  "), [1 + spaces]);
        }
    }

    #[test]
    fn hardly_a_cut_is_missing() {
        let characters: Vec<char> = ('一'..).take(100).collect();
        let is_joined = |left: usize, right: usize| (left * 7 + right * 3).is_multiple_of(10);
        let pairs = || (0..100).flat_map(|left| (0..100).map(move |right| (left, right)));
        let mut joined = JoinedCharacters::default();
        for (left, right) in pairs().filter(|(left, right)| is_joined(*left, *right)) {
            joined.add_inside(String::from_iter([characters[left], characters[right]]).as_bytes());
        }
        let cutter = GroupCutter::new(&joined);
        let missing = pairs().filter(|(left, right)| {
            let text = String::from_iter([characters[*left], characters[*right], ' ', ' ']);
            cutter.may_join::<true>(text.as_bytes()) && !is_joined(*left, *right)
        });
        assert!(missing.count() < 9000 / 20);
    }

    #[test]
    fn a_vocabulary_that_joins_too_many_is_not_cut() {
        let mut joined = JoinedCharacters::default();
        for character in ('一'..).take(200) {
            joined.add_inside(&[character.to_string().as_bytes(), b"\xE3"].concat());
        }
        let text = [b'\xE3', 0x81, 0xAE, 0xE3, 0x81, 0xAF, b' ', b' '];
        assert!(GroupCutter::new(&joined).may_join::<true>(&text));
        assert!(!GroupCutter::new(&JoinedCharacters::default()).may_join::<true>(&text));
    }
}
