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
use crate::simd::blocks::{AsciiClasses, BLOCK, Blocks, ByteBlock, block_at};
use crate::simd::{Simd, Work};

/// The classes of bytes; every byte of a character that is not ASCII is in class 0. `ODD` holds the characters that would
/// forbid cuts for all of their class: Gemma joins `-` to letters, Llama 2 joins `\r` to punctuation.
const SPACE: u8 = 1;
const CONTROL: u8 = 2;
const LETTER: u8 = 3;
const DIGIT: u8 = 4;
const PUNCTUATION: u8 = 5;
const ODD: u8 = 6;
const CLASSES: usize = 7;

/// The pairs of characters that stand side by side in some product of a merge; characters that are not ASCII count as
/// one.
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
    classes: AsciiClasses,
    /// Indexed by the left class, with one bit for each right class that must not be cut off.
    joined: [u8; CLASSES],
    /// Whether every space begins a pre-token: the rule of a splitting Metaspace.
    before_each_space: bool,
    simd: Simd,
}

impl ClassCutter {
    pub fn new(pairs: &JoinedPairs, before_each_space: bool, simd: Simd) -> Self {
        let classes = AsciiClasses::new(std::array::from_fn(|byte| {
            let byte = byte as u8;
            let plain = plain_class(byte);
            let forbids = (0..128).any(|other| {
                crosses(plain, plain_class(other)) && (pairs.has(byte, other) || pairs.has(other, byte))
            });
            if forbids { ODD } else { plain }
        }));
        // Runs stay whole, and no cut is inside a character.
        let mut joined: [u8; CLASSES] = std::array::from_fn(|class| 1 << class);
        for left in 0..=128u8 {
            for right in (0..=128u8).filter(|right| pairs.has(left, *right)) {
                joined[usize::from(classes.of(left))] |= 1 << classes.of(right);
            }
        }
        Self { classes, joined, before_each_space, simd }
    }

    /// Cuts nothing except at the spaces of a splitting Metaspace.
    pub fn whole(before_each_space: bool, simd: Simd) -> Self {
        let mut cutter = Self::new(&JoinedPairs::new(), before_each_space, simd);
        cutter.joined = [!0; CLASSES];
        cutter
    }

    /// Whether letters are cut from a space after them.
    pub fn ends_words(&self) -> bool {
        let [letter, space] = [b'e', b' '].map(|byte| self.classes.of(byte));
        self.joined[usize::from(letter)] >> space & 1 == 0
    }

    /// Replaces `cuts` by those of `text[..n]`. At least 64 bytes after `n` are readable.
    pub fn cut(&self, text: &[u8], n: usize, boundaries: &mut Boundaries) {
        boundaries.begin(n);
        self.simd.run(CutClasses { cutter: self, text, n, boundaries });
    }
}

/// [`ClassCutter::cut`], 64 bytes at a time: the class of each byte, as a bit, is tested against the classes that must
/// not be cut off the byte before it.
struct CutClasses<'a> {
    cutter: &'a ClassCutter,
    text: &'a [u8],
    n: usize,
    boundaries: &'a mut Boundaries,
}

impl Work for CutClasses<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, blocks: impl Blocks) {
        let Self { cutter, text, n, boundaries } = self;
        let by_class = |bits: [u8; CLASSES]| -> [u8; 16] {
            std::array::from_fn(|class| bits.get(class).copied().unwrap_or(0))
        };
        let splits_spaces = if cutter.before_each_space { 1 << SPACE } else { 0 };
        let joined = by_class(cutter.joined.map(|rights| rights & !splits_spaces));
        let own = by_class(std::array::from_fn(|class| 1 << class));
        // Nothing is cut off in front of a text.
        let mut before = blocks.load(&[!0; BLOCK]);
        for at in (0..n).step_by(BLOCK) {
            let classes = blocks.load(block_at(text, at)).ascii_classes(&cutter.classes);
            let joined = classes.look_up_half(&joined);
            boundaries.push(!joined.behind(before).meets(classes.look_up_half(&own)));
            before = joined;
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
