//! The characters that begin a pre-token, by arithmetic on bitmaps over characters.
//!
//! The reasoning for each kind of pre-token is given at its function. All of it follows a backtracking matcher that
//! arrives from the left, so a bit depends on earlier ones and sometimes on the next, for which the last character of a
//! block waits. Two conditions may depend on later blocks and are then decided by scanning ahead in the text, once for
//! each run.

use super::KNOWN_PATTERNS;
use super::classify::Bitmaps;
use crate::pretokenize::patterns::char_classes::unicode::{self, UnicodeClasses};
use crate::pretokenize::patterns::contraction;
use crate::pretokenize::patterns::known_patterns::{
    Contractions, KnownPattern, Newlines, Numbers, Symbols, Words,
};
use crate::simd::blocks::{BLOCK, BitPacker, Blocks};
use crate::utf8::decode;

/// A map, and as bit 0 whether the last character of the block before is in it.
#[derive(Clone, Copy)]
struct Map {
    bits: u64,
    before: u64,
}

impl Map {
    /// The characters whose predecessor is in the map.
    #[inline(always)]
    fn then(self) -> u64 {
        self.bits << 1 | self.before
    }
}

/// Whether the last character of the block before is in each map, as bit 0.
#[derive(Clone, Copy, Default)]
struct History {
    word: u64,
    number: u64,
    newline: u64,
    /// Punctuation, without the slashes that are in `absorbed`.
    symbol: u64,
    blank: u64,
    lower: u64,
    cjk: u64,
    other: u64,
    /// Newlines and slashes after punctuation.
    absorbed: u64,
    /// Whitespace that is not absorbed.
    free_space: u64,
    /// Uncased letters and marks in the part of a word that a lower-case letter has begun; `uncased` has the others.
    after_lower: u64,
    uncased: u64,
    /// Symbols that cannot be the prefix of a word: the second of a run, or after a space.
    settled: u64,
    /// One symbol of ASCII that begins a pre-token.
    lone_ascii_symbol: u64,
}

/// The starts of pre-tokens, block after block.
pub struct Starts<'a, K, const SHAPE: usize> {
    blocks: K,
    text: &'a [u8],
    classes: &'a UnicodeClasses,
    before: History,
    /// How many characters of a group of numbers the last block ends in, 0 if in none.
    grouped: u32,
    /// Whether the last block ends in ASCII letters that follow an ASCII symbol.
    ascii_word: u64,
    /// Whether the last block ends in whitespace that begins a pre-token unless more of it follows, or in an unmatched
    /// character that does so if a word follows; and which byte of its block that character begins with.
    space_waits: u64,
    other_waits: u64,
    last_at: u32,
    /// Whether Han was met whose pre-token depends on more than this looks at.
    pub is_unsure: bool,
    /// The part of the last block's contractions, and of the bytes after them, that lies in this block.
    inside: u64,
    behind: u64,
}

impl<'a, K: Blocks, const SHAPE: usize> Starts<'a, K, SHAPE> {
    const SHAPE: KnownPattern = KNOWN_PATTERNS[SHAPE];

    pub fn new(blocks: K, text: &'a [u8], classes: &'a UnicodeClasses) -> Self {
        Self {
            blocks,
            text,
            classes,
            before: History::default(),
            grouped: 0,
            ascii_word: 0,
            space_waits: 0,
            other_waits: 0,
            last_at: 0,
            is_unsure: false,
            inside: 0,
            behind: 0,
        }
    }

    /// A bitmap of the bytes of the block before: its last character, if that turns out to begin a pre-token now that
    /// the next block is known.
    #[inline(always)]
    pub fn late(&self, block: &Bitmaps) -> u64 {
        let no_space = !(block.space | block.newline);
        let starts = match Self::SHAPE.symbols {
            Symbols::Rest => self.space_waits & no_space,
            // An earlier step has cut in front of numbers and CJK.
            Symbols::RestWithoutNumbers => self.space_waits & no_space & !block.number,
            Symbols::Categories => {
                self.space_waits & no_space & !(block.number | block.cjk)
                    | self.other_waits & block.word & !(block.cjk ^ self.before.cjk)
            }
        };
        // No character may begin in the last bytes of a text.
        (starts & u64::from(block.count != 0)) << self.last_at
    }

    /// The starts in a block, whose first byte is at `at` and whose characters `leads` packs, except for what
    /// [`Starts::late`] adds.
    #[inline(always)]
    pub fn of(&mut self, block: &Bitmaps, leads: impl BitPacker, at: usize) -> u64 {
        let before = self.before;
        let shape = Self::SHAPE;
        let last = block.count.wrapping_sub(1) & 63;
        let number = Map { bits: block.number, before: before.number };
        let newline = Map { bits: block.newline, before: before.newline };
        let blank = Map { bits: block.blank, before: before.blank };

        // Where an earlier step has cut, between CJK and other text: nothing looks across that boundary.
        let mut cut = 0;
        if shape.symbols == Symbols::Categories {
            let cjk = Map { bits: block.cjk, before: before.cjk };
            cut = self.blocks.lowest(cjk.bits ^ cjk.then(), block.count);
        }
        let joined = !cut;

        let (marks, absorbed) = self.punctuation(block, joined);
        let absorbed = Map { bits: absorbed, before: before.absorbed };
        let word = Map { bits: block.word | block.mark & !marks, before: before.word };
        let symbol = Map { bits: (block.symbol | marks) & !absorbed.bits, before: before.symbol };
        let symbol_then = symbol.then() & joined;
        // Symbols that cannot be the prefix of a word: the second of a run, or after a space.
        let settled =
            Map { bits: symbol.bits & (symbol_then | blank.then() & joined), before: before.settled };

        // Punctuation begins where it follows neither punctuation nor a space that it takes in.
        let mut starts = symbol.bits & !symbol_then & !(blank.then() & joined);
        starts |= self.numbers(number, blank, block.count, last);
        starts |= self.white_space(block, newline, absorbed, at, last);

        let word_starts = word.bits & !(word.then() & joined);
        if shape.words == Words::AfterSpace {
            starts |= word_starts & !blank.then();
        } else {
            let mut no_prefix = number.then() | newline.then() | absorbed.then() | settled.then();
            if shape.symbols == Symbols::Categories {
                let lone = Map {
                    bits: block.ascii_symbol & symbol.bits & !settled.bits,
                    before: before.lone_ascii_symbol,
                };
                no_prefix |= symbol.then() & !(lone.then() & block.ascii_letter);
                starts |= self.ascii_words(block, lone, word.bits, last);
                starts |= cut | self.others(block, word.bits, cut, last);
                self.before.lone_ascii_symbol = kept(lone.bits, last);
                self.before.cjk = kept(block.cjk, last);
            }
            if shape.han_apart {
                let han = Map { bits: block.cjk, before: before.cjk };
                let first = han.bits & !han.then();
                starts |= first;
                no_prefix |= han.then();
                // A group of numbers continues with Han that is a number, punctuation with what is a symbol: hardly
                // ever.
                let taken =
                    block.han_number & number.then() | block.han_symbol & (symbol.then() | blank.then());
                self.is_unsure |= first & taken != 0;
                self.before.cjk = kept(han.bits, last);
            }
            starts |= word_starts & no_prefix;
        }

        if shape.contractions == Contractions::None {
            if shape.words == Words::Cased {
                starts |= self.cases(block, word, 0, at, last);
            }
        } else {
            let candidates = match shape.contractions {
                Contractions::Suffix => block.apostrophe & word.then(),
                _ => block.apostrophe & starts,
            };
            let (inside, behind) = self.contractions(block, leads, candidates, at);
            if shape.words == Words::Cased {
                starts |= self.cases(block, word, behind, at, last);
            }
            starts = starts & !inside | behind & word.bits;
        }

        self.space_waits = block.space >> last & !(starts >> last);
        self.last_at = 63u32.wrapping_sub(block.leads.leading_zeros()) & 63;
        self.before = History {
            word: kept(word.bits, last),
            number: kept(number.bits, last),
            newline: kept(newline.bits, last),
            symbol: kept(symbol.bits, last),
            blank: kept(blank.bits, last),
            absorbed: kept(absorbed.bits, last),
            settled: kept(settled.bits, last),
            ..self.before
        };
        starts
    }

    /// The marks that punctuation takes in, and the newlines and slashes after punctuation.
    #[inline(always)]
    fn punctuation(&self, block: &Bitmaps, joined: u64) -> (u64, u64) {
        let before = &self.before;
        let shape = Self::SHAPE;
        if shape.newlines == Newlines::Plain {
            return (0, 0);
        }
        let absorbable = block.newline | block.slash;
        let blank = Map { bits: block.blank, before: before.blank };
        let mut marks = 0;
        loop {
            let symbol = Map { bits: block.symbol | marks, before: before.symbol };
            let preload = block.newline & symbol.then() & joined | absorbable & before.absorbed;
            let absorbed = flood(preload, absorbable);
            if shape.words != Words::Cased || block.mark == 0 {
                return (0, absorbed);
            }
            // A mark continues a word, but punctuation that cannot be a word's prefix takes it in, which may make more
            // punctuation: each round is right for at least one more character.
            let symbol = Map { bits: symbol.bits & !absorbed, before: before.symbol };
            let settled = Map { bits: symbol.bits & (symbol.then() | blank.then()), before: before.settled };
            let taken = flood(block.mark & settled.then(), block.mark);
            if taken == marks {
                return (marks, absorbed);
            }
            marks = taken;
        }
    }

    #[inline(always)]
    fn numbers(&mut self, number: Map, blank: Map, count: u32, last: u32) -> u64 {
        let first = number.bits & !number.then();
        let most = match Self::SHAPE.numbers {
            Numbers::AfterSpace => return first & !blank.then(),
            Numbers::Single => return number.bits,
            Numbers::Whole => return first,
            Numbers::UpTo(most) => most,
        };
        let mut starts = first;
        // A run that continues from the last block first fills the group that it is in.
        let missing = most.wrapping_sub(self.grouped);
        if self.grouped != 0 && number.bits.trailing_ones() > missing {
            starts |= 1 << missing;
        }
        // Digits that follow as many others as fill a group.
        let behind_group = (1..=most).fold(number.bits, |all, before| all & number.bits << before);
        loop {
            let more = starts << most & behind_group & !starts;
            if more == 0 {
                break;
            }
            starts |= more;
        }
        self.grouped = 0;
        if number.bits >> last != 0 {
            self.grouped = (starts.leading_zeros() + count).wrapping_sub(63);
        }
        starts
    }

    /// Whitespace begins where a run of it does, not counting newlines that punctuation has taken; after the run's last
    /// newline; and at its last character if something other than whitespace follows.
    #[inline(always)]
    fn white_space(&mut self, block: &Bitmaps, newline: Map, absorbed: Map, at: usize, last: u32) -> u64 {
        let space = block.space;
        let white = space | newline.bits;
        let free = Map { bits: white & !absorbed.bits, before: self.before.free_space };
        self.before.free_space = kept(free.bits, last);

        // The last character waits for the next block.
        let mut kept_whole = white >> 1 | 1 << last;
        if Self::SHAPE.symbols != Symbols::Rest {
            // An earlier step has cut there, so the lookahead sees the end of the text.
            kept_whole |= (block.number | block.cjk) >> 1;
        }
        let mut starts = free.bits & !free.then() | space & !kept_whole;

        let behind_newline = space & newline.then() & !absorbed.then();
        if behind_newline != 0 {
            let ahead = || self.newline_ahead(at + BLOCK);
            starts |= behind_newline
                & !runs_before(self.blocks, newline.bits, space, behind_newline, block.count, ahead);
        }
        starts
    }

    /// Words end at capitals: U*L+ or U+L*, where upper-case letters (a) are in U only, lower-case letters (b) in L
    /// only, and uncased letters and marks (c) in both.
    ///
    /// An a after a b, or after a c that itself follows a b, begins a word, since the previous word is in its L part.
    /// In the U part, capitals after a c (`c a`) belong to the word if more of it follows; if not, U* must give back
    /// until L+ can match the c, and the capitals are a word of their own.
    #[inline(always)]
    fn cases(&mut self, block: &Bitmaps, word: Map, fresh: u64, at: usize, last: u32) -> u64 {
        let lower = Map { bits: block.lower, before: self.before.lower };
        self.before.lower = kept(lower.bits, last);
        let mut starts = block.upper & lower.then();

        let uncased = word.bits & !(block.upper | block.lower);
        if uncased | self.before.uncased | self.before.after_lower != 0 {
            let preload = uncased & (lower.then() | self.before.after_lower) & !fresh;
            let after_lower = Map { bits: flood(preload, uncased), before: self.before.after_lower };
            let in_upper = Map { bits: uncased & !after_lower.bits, before: self.before.uncased };
            self.before.after_lower = kept(after_lower.bits, last);
            self.before.uncased = kept(in_upper.bits, last);
            starts |= block.upper & after_lower.then();
            let unsure = block.upper & in_upper.then();
            if unsure != 0 {
                let ahead = || self.word_ends_behind_capitals(at + BLOCK);
                starts |= runs_before(self.blocks, !word.bits, block.upper, unsure, block.count, ahead);
            }
        }
        starts
    }

    /// An ASCII symbol takes ASCII letters only: other letters that follow these begin a word.
    #[inline(always)]
    fn ascii_words(&mut self, block: &Bitmaps, symbol: Map, word: u64, last: u32) -> u64 {
        let letters = block.ascii_letter;
        let first = letters & (symbol.then() | self.ascii_word);
        let ends = letters.wrapping_add(first) & !letters | self.ascii_word & !letters;
        self.ascii_word = flood(first, letters) >> last & 1;
        ends & word
    }

    /// Characters that no alternative matches form a pre-token up to the next match, except that a word takes the last
    /// of them as its prefix.
    #[inline(always)]
    fn others(&mut self, block: &Bitmaps, word: u64, cut: u64, last: u32) -> u64 {
        let matched = word | block.number | block.space | block.newline | block.symbol;
        let other = Map { bits: self.blocks.lowest(!matched, block.count), before: self.before.other };
        self.before.other = kept(other.bits, last);
        let first = other.bits & (!other.then() | cut);
        self.other_waits = other.bits >> last & !(first >> last);
        first | other.bits & (word & !cut) >> 1
    }

    /// The bytes inside contractions, which are not starts, and those directly after contractions.
    #[inline(always)]
    fn contractions(
        &mut self,
        block: &Bitmaps,
        leads: impl BitPacker,
        mut candidates: u64,
        at: usize,
    ) -> (u64, u64) {
        let (mut inside, mut behind) = (u128::from(self.inside), u128::from(self.behind));
        while candidates != 0 {
            let character = candidates.trailing_zeros();
            let offset = leads.unpack(1 << character).trailing_zeros() as usize;
            candidates &= candidates - 1;
            let suffix = Self::SHAPE.contractions == Contractions::Suffix;
            if suffix && behind >> character & 1 == 1 {
                // The word already has its contraction: this apostrophe begins the next pre-token.
                continue;
            }
            let any_case = Self::SHAPE.contractions != Contractions::LowerCase;
            let letters = contraction(&self.text[at + offset + 1..], any_case);
            if letters != 0 {
                let first = if suffix { character } else { character + 1 };
                let next = character + 1 + letters;
                inside |= (1 << next) - (1 << first);
                behind |= 1 << next;
            }
        }
        self.inside = (inside >> block.count) as u64;
        self.behind = (behind >> block.count) as u64;
        (inside as u64, behind as u64)
    }

    /// Whether spaces, from the first character at or after `at` on, lead to a newline.
    #[cold]
    fn newline_ahead(&self, at: usize) -> bool {
        let text = self.text;
        let class = |&(at, code): &(usize, u32)| {
            self.classes.table.of(code) & unicode::SPACE != 0 && !matches!(text[at], b'\n' | b'\r')
        };
        characters_from(text, at)
            .find(|character| !class(character))
            .is_some_and(|(at, _)| matches!(text[at], b'\n' | b'\r'))
    }

    /// Whether capitals, from the first character at or after `at` on, end a word.
    #[cold]
    fn word_ends_behind_capitals(&self, at: usize) -> bool {
        let class = |(_, code)| self.classes.table.of(code);
        let next = characters_from(self.text, at).map(class).find(|class| class & unicode::UPPER == 0);
        next.is_none_or(|class| class & (unicode::LETTER | unicode::MARK) == 0)
    }
}

/// The runs of `members` beginning at `runs` that are followed by one of `wanted`. If the last one extends to
/// the end of the block, `ahead` decides.
#[inline(always)]
fn runs_before(
    blocks: impl Blocks,
    wanted: u64,
    members: u64,
    runs: u64,
    count: u32,
    ahead: impl FnOnce() -> bool,
) -> u64 {
    // The carry of the addition comes out after each run.
    let ends = blocks.lowest(members.wrapping_add(runs) & !members, count);
    let mut found = blocks.starts_before(blocks.lowest(wanted, count), members, runs, ends);
    if ends.count_ones() < runs.count_ones() && ahead() {
        found |= 1 << 63 >> (runs.leading_zeros() & 63);
    }
    found
}

/// The characters that begin at or after `at`, each with its place.
fn characters_from(text: &[u8], at: usize) -> impl Iterator<Item = (usize, u32)> {
    let mut at = at;
    while text.get(at).is_some_and(|byte| byte & 0xC0 == 0x80) {
        at += 1;
    }
    std::iter::from_fn(move || {
        (at < text.len()).then(|| {
            let (code, width) = decode(&text[at..]);
            at += width;
            (at - width, code)
        })
    })
}

/// The last character of a map, as [`History`] keeps it: no map has bits after it.
#[inline(always)]
fn kept(bits: u64, last: u32) -> u64 {
    bits >> last
}

/// The part of each run of `runs` from the first of `seeds` in it on.
#[inline(always)]
fn flood(preload: u64, runs: u64) -> u64 {
    ((runs.wrapping_add(preload) ^ runs) | preload) & runs
}
