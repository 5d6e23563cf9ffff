//! Where no merge can cross: cutting SentencePiece-style text into pre-tokens worth caching.
//!
//! Every product of a merge is a token. If no token that a merge makes contains the characters a and b side by side, no
//! merge ever joins text across a point between a and b, and cutting there changes nothing. In Llama 2's vocabulary,
//! for example, a space marker occurs only at the start of a token, so documents of megabytes, which the reference
//! merges as one word, fall apart into words.
//!
//! The rule is derived from the vocabulary at load. For speed it is coarsened to classes of ASCII characters: two
//! classes are cut apart if no pair of their members can be joined. Runs of one class are never cut, although many
//! could be (digits): fewer pre-tokens mean fewer look-ups.
//!
//! The space stands for the marker (U+2581) here and in all pre-tokens: see [`characters`](crate::model::characters).

use super::Boundaries;
use crate::simd::Simd;

/// The classes of bytes. `ODD` holds the characters that would forbid cuts for all of their class: Gemma joins `-` to
/// letters, Llama 2 joins `\r` to punctuation.
const SPACE: u8 = 0;
const CONTROL: u8 = 1;
const LETTER: u8 = 2;
const DIGIT: u8 = 3;
const PUNCTUATION: u8 = 4;
const ODD: u8 = 5;
/// Every byte of a character that is not ASCII.
const OTHER: u8 = 6;
const CLASSES: usize = 7;

/// Which pairs of characters stand side by side in some product of a merge; characters that are not
/// ASCII count as one.
#[derive(Clone)]
pub struct JoinedPairs {
    /// Indexed by the left character, with one bit for each right one.
    rows: [u128; 128],
    /// Left characters that are joined to one that is not ASCII, right ones that one is joined to.
    to_other: u128,
    from_other: u128,
}

impl JoinedPairs {
    pub fn new() -> Self {
        Self { rows: [0; 128], to_other: 0, from_other: 0 }
    }

    pub fn add(&mut self, left: char, right: char) {
        let bit = |c: char| 1u128 << c as u32;
        match (left.is_ascii(), right.is_ascii()) {
            (true, true) => self.rows[left as usize] |= bit(right),
            (true, false) => self.to_other |= bit(left),
            (false, true) => self.from_other |= bit(right),
            (false, false) => {}
        }
    }

    fn has(&self, left: u8, right: u8) -> bool {
        match (left < 128, right < 128) {
            (true, true) => self.rows[usize::from(left)] >> right & 1 == 1,
            (true, false) => self.to_other >> left & 1 == 1,
            (false, true) => self.from_other >> right & 1 == 1,
            (false, false) => true,
        }
    }
}

/// Cuts text into pre-tokens by the classes of neighbouring bytes.
pub struct ClassCutter {
    class: [u8; 256],
    /// Indexed by the left class, with one bit for each right class that must not be cut off.
    joined: [u8; CLASSES],
    /// Whether every space begins a pre-token: the rule of a splitting Metaspace.
    before_each_space: bool,
    simd: Simd,
}

impl ClassCutter {
    pub fn new(pairs: &JoinedPairs, before_each_space: bool, simd: Simd) -> Self {
        let mut class = [OTHER; 256];
        for byte in 0..128u8 {
            let plain = plain_class(byte);
            let forbids = (0..128).any(|other| {
                crosses(plain, plain_class(other)) && (pairs.has(byte, other) || pairs.has(other, byte))
            });
            class[usize::from(byte)] = if forbids { ODD } else { plain };
        }
        // Runs stay whole, and no cut is inside a character.
        let mut joined: [u8; CLASSES] = std::array::from_fn(|class| 1 << class);
        for left in 0..=128u8 {
            for right in (0..=128u8).filter(|right| pairs.has(left, *right)) {
                joined[usize::from(class[usize::from(left)])] |= 1 << class[usize::from(right)];
            }
        }
        Self { class, joined, before_each_space, simd }
    }

    /// Cuts nothing except at the spaces of a splitting Metaspace.
    pub fn whole(before_each_space: bool, simd: Simd) -> Self {
        let mut cutter = Self::new(&JoinedPairs::new(), before_each_space, simd);
        cutter.joined = [!0; CLASSES];
        cutter
    }

    /// Whether letters are cut from a space after them.
    pub fn ends_words(&self) -> bool {
        let [letter, space] = [b'e', b' '].map(|byte| self.class[usize::from(byte)]);
        self.joined[usize::from(letter)] >> space & 1 == 0
    }

    /// Replaces `cuts` by those of `text[..n]`. At least 64 bytes after `n` are readable.
    pub fn cut(&self, text: &[u8], n: usize, boundaries: &mut Boundaries) {
        boundaries.begin(n);
        match self.simd {
            Simd::Scalar => self.cut_scalar(&text[..n], boundaries),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2(avx2) => match avx2.avx512() {
                // SAFETY: having an `Avx512` proves that the processor has these features.
                Some(avx512) => unsafe { self.cut_avx512(avx512, text, n, boundaries) },
                // SAFETY: having an `Avx2` proves that the processor has these features.
                None => unsafe { self.cut_avx2(text, n, boundaries) },
            },
        }
    }

    fn cut_scalar(&self, text: &[u8], boundaries: &mut Boundaries) {
        let splits_spaces = if self.before_each_space { 1 << SPACE } else { 0 };
        let joined = self.joined.map(|rights| rights & !splits_spaces);
        let mut left = OTHER;
        for block in text.chunks(64) {
            let mut word = 0;
            for (index, byte) in block.iter().enumerate() {
                let right = self.class[usize::from(*byte)];
                word |= u64::from(!joined[usize::from(left)] >> right & 1) << index;
                left = right;
            }
            boundaries.push(word);
        }
    }
}

/// The class of an ASCII character that forbids nothing.
fn plain_class(byte: u8) -> u8 {
    match byte {
        b' ' => SPACE,
        b'a'..=b'z' | b'A'..=b'Z' => LETTER,
        b'0'..=b'9' => DIGIT,
        0..=31 | 127 => CONTROL,
        _ => PUNCTUATION,
    }
}

/// Whether joining a control or punctuation character to one of class `other` makes it odd.
fn crosses(class: u8, other: u8) -> bool {
    match class {
        CONTROL => matches!(other, LETTER | DIGIT | PUNCTUATION),
        PUNCTUATION => matches!(other, LETTER | DIGIT),
        _ => false,
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm_loadu_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_cmpeq_epi8,
        _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_set1_epi8, _mm256_setzero_si256,
        _mm256_shuffle_epi8, _mm256_srli_epi16,
    };

    use super::{Boundaries, CLASSES, ClassCutter, OTHER, SPACE};
    use crate::simd::blocks::block_at;

    /// For one class, indexed by the low half of a byte: one bit for each high half that makes a member.
    type Members = [u8; 16];

    impl ClassCutter {
        /// 64 bytes at a time: a bitmap of each class by two table look-ups per byte, then the cuts by word arithmetic.
        /// Eight times as fast as the portable loop.
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
        pub(super) fn cut_avx2(&self, text: &[u8], n: usize, boundaries: &mut Boundaries) {
            let tables: [Members; CLASSES - 1] = std::array::from_fn(|class| self.members(class as u8));
            // All ones where a class must not be cut off the one before it, so that the rules need no branches below.
            let masks: [[u64; CLASSES]; CLASSES] = self
                .joined
                .map(|rights| std::array::from_fn(|right| u64::from(rights >> right & 1).wrapping_neg()));
            let mut carries = [0u64; CLASSES];
            let mut at = 0;
            while at < n {
                let maps = classify(block_at(text, at), &tables);
                let mut kept = 0;
                for ((map, carry), masks) in maps.iter().zip(&mut carries).zip(&masks) {
                    let before = map << 1 | *carry;
                    *carry = map >> 63;
                    let mut followers = 0;
                    for (map, mask) in maps.iter().zip(masks) {
                        followers |= map & mask;
                    }
                    kept |= before & followers;
                }
                let mut word = !kept;
                if self.before_each_space {
                    word |= maps[usize::from(SPACE)];
                }
                boundaries.push(word);
                at += 64;
            }
        }

        fn members(&self, class: u8) -> Members {
            std::array::from_fn(|low| {
                (0..8).filter(|high| self.class[high << 4 | low] == class).map(|high| 1 << high).sum()
            })
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn classify(block: &[u8; 64], tables: &[Members; CLASSES - 1]) -> [u64; CLASSES] {
        let (low, high) = (load(block, 0), load(block, 32));
        let (low_bits, high_bits) = (high_half_bit(low), high_half_bit(high));
        let mut maps = [0; CLASSES];
        for (map, table) in maps.iter_mut().zip(tables) {
            *map = !(absent(low, low_bits, table) | absent(high, high_bits, table) << 32);
        }
        let other = |half| u64::from(_mm256_movemask_epi8(half) as u32);
        maps[usize::from(OTHER)] = other(low) | other(high) << 32;
        maps
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(block: &[u8; 64], from: usize) -> __m256i {
        // SAFETY: `from` is 0 or 32, so 32 bytes of the block follow it.
        unsafe { _mm256_loadu_si256(block.as_ptr().add(from).cast()) }
    }

    /// For each byte, the bit of its high half; none for bytes that are not ASCII.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn high_half_bit(bytes: __m256i) -> __m256i {
        const BITS: Members = [1, 2, 4, 8, 16, 32, 64, 128, 0, 0, 0, 0, 0, 0, 0, 0];
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(15));
        _mm256_shuffle_epi8(broadcast(&BITS), high)
    }

    /// A bitmap of the bytes outside a class.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn absent(bytes: __m256i, bits: __m256i, table: &Members) -> u64 {
        // Bytes with the top bit set look up zero.
        let member = _mm256_and_si256(_mm256_shuffle_epi8(broadcast(table), bytes), bits);
        u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(member, _mm256_setzero_si256())) as u32)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn broadcast(table: &Members) -> __m256i {
        // SAFETY: the table is 16 bytes long.
        _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) })
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Boundaries, CLASSES, ClassCutter, SPACE};
    use crate::simd::Avx512;
    use crate::simd::blocks::{Blocks, ByteBlock, block_at};

    impl ClassCutter {
        /// 64 bytes at a time: the class of each byte, as a bit, is tested against the classes that must not be cut off
        /// the byte before it.
        #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
        pub(super) fn cut_avx512(&self, avx512: Avx512, text: &[u8], n: usize, boundaries: &mut Boundaries) {
            let by_class = |bits: [u8; CLASSES]| -> [u8; 16] {
                std::array::from_fn(|class| bits.get(class).copied().unwrap_or(0))
            };
            let joined = by_class(self.joined);
            let own = by_class(std::array::from_fn(|class| 1 << class));
            let mut before = None;
            for at in (0..n).step_by(64) {
                let classes = avx512.load(block_at(text, at)).look_up(&self.class);
                let joined = classes.look_up_half(&joined);
                let mut word = !joined.behind(before.unwrap_or(joined)).meets(classes.look_up_half(&own));
                before = Some(joined);
                if self.before_each_space {
                    word |= classes.equal(SPACE);
                }
                boundaries.push(word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(list: &[&str]) -> JoinedPairs {
        let mut pairs = JoinedPairs::new();
        for text in list {
            for (left, right) in text.chars().zip(text.chars().skip(1)) {
                pairs.add(left, right);
            }
        }
        pairs
    }

    fn pretokens(cutter: &ClassCutter, text: &str) -> Vec<String> {
        let padded = [text.as_bytes(), &[b'a'; 64]].concat();
        let (mut boundaries, mut ends) = (Boundaries::default(), Vec::new());
        cutter.cut(&padded, text.len(), &mut boundaries);
        boundaries.push_ends(Simd::Scalar, 0, &mut ends);
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(&ends).map(|(start, end)| text[start as usize..*end as usize].to_owned()).collect()
    }

    #[test]
    fn words_fall_apart_where_nothing_is_joined() {
        let pairs = pairs(&[" the", "  ", "ab", " 1", " (", "é", " é", "aé", "éa", "()", "é)", ")é"]);
        let cases: [(&str, &[&str]); 6] = [
            ("the cat", &["the", " cat"]),
            ("  a", &["  a"]),
            ("a1b", &["a", "1", "b"]),
            ("f(x) 12", &["f", "(", "x", ")", " 12"]),
            ("aéa é\n\nx", &["aéa", " é", "\n\n", "x"]),
            ("", &[]),
        ];
        for simd in Simd::all() {
            let cutter = ClassCutter::new(&pairs, false, simd);
            for (text, expected) in cases {
                assert_eq!(pretokens(&cutter, text), expected, "{text:?}");
            }
        }
    }

    #[test]
    fn an_odd_character_forbids_cuts_for_itself_only() {
        let cutter = ClassCutter::new(&pairs(&["a-b", ".\r"]), false, Simd::Scalar);
        assert_eq!(pretokens(&cutter, "a-b.c.\r\n"), ["a-b", ".", "c", ".\r", "\n"]);
    }

    #[test]
    fn each_space_begins_a_piece_when_asked() {
        for simd in Simd::all() {
            let cutter = ClassCutter::new(&pairs(&["  ", " a"]), true, simd);
            assert_eq!(pretokens(&cutter, "  a b  "), [" ", " a", " b", " ", " "]);
        }
    }

    proptest! {
        #[test]
        fn no_joined_pair_is_cut_and_the_kernels_agree(
            tokens in prop::collection::vec("[ -~\t\r\n\u{c}é日]{2,4}", 0..12),
            text in "[ a-z0-9()\\-.,\t\r\n\u{c}é日]{0,200}",
            before_each_space: bool,
        ) {
            let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            let pairs = pairs(&tokens);
            let portable = pretokens(&ClassCutter::new(&pairs, before_each_space, Simd::Scalar), &text);
            for simd in Simd::all() {
                prop_assert_eq!(&portable, &pretokens(&ClassCutter::new(&pairs, before_each_space, simd), &text));
            }
            prop_assert_eq!(portable.concat(), text);
            for (left, right) in portable.iter().zip(portable.iter().skip(1)) {
                let (left, right) = (left.as_bytes()[left.len() - 1], right.as_bytes()[0]);
                prop_assert!(!pairs.has(left, right) || before_each_space && right == b' ');
            }
        }
    }
}
