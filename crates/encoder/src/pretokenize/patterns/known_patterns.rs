//! The shape that widely used split patterns share, recognised alternative by alternative.
//!
//! All of them match words with an optional preceding character, numbers, punctuation with an optional preceding space
//! and perhaps trailing newlines, and runs of whitespace that leave their last character to what follows. One vector
//! kernel, configured by a `Shape`, splits them all.

use std::collections::VecDeque;

use crate::pretokenize::patterns::parse_pretokenizer::{Domain, Ends, PatternStep, numeric};
use crate::pretokenize::patterns::regex::Node;
use crate::pretokenize::patterns::regex::parser::parse;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownPattern {
    pub words: Words,
    pub contractions: Contractions,
    pub numbers: Numbers,
    pub newlines: Newlines,
    /// The characters that count as punctuation, and whether CJK runs are cut off first.
    pub symbols: Symbols,
    /// `\p{Han}+` comes first, and words contain no Han: as in Kimi K2.
    pub han_apart: bool,
    /// `\s++$` comes before other whitespace: that at the end of a text is one pre-token.
    pub white_end: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// ` ?\p{L}+`
    AfterSpace,
    /// `[^\r\n\p{L}\p{N}]?\p{L}+`
    AfterAny,
    /// `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+`, and no marks in punctuation: like `AfterAny` with marks as letters, since a
    /// mark as the optional first character belongs to the same run.
    AfterAnyMarked,
    /// `[^\r\n\p{L}\p{N}]?` and upper-case letters and marks, then lower-case letters and marks.
    Cased,
    /// `[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`, or one of ASCII's symbols and ASCII letters.
    WithMarks,
}

/// `'s 't 're 've 'm 'll 'd`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contractions {
    None,
    LowerCase,
    AnyCase,
    /// At the end of a word, in any case.
    Suffix,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// ` ?\p{N}+`
    AfterSpace,
    /// `\p{N}`
    Single,
    /// `\p{N}{1,n}`
    UpTo(u32),
    /// `\p{N}{1,3}+`, which is not possessive to Oniguruma: any number of groups.
    Whole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newlines {
    /// Whitespace like any other.
    Plain,
    /// `[\r\n]*` after punctuation, and `\s*[\r\n]+`.
    Kept,
    /// As `Kept`, with `[\r\n/]*` after punctuation.
    KeptWithSlash,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symbols {
    /// `[^\s\p{L}\p{N}]`
    Rest,
    /// As `Rest`, after a separate step for the numbers.
    RestWithoutNumbers,
    /// `[\p{P}\p{S}]`, after separate steps for the numbers and for runs of CJK.
    Categories,
}

/// The CJK characters that DeepSeek-V3 isolates.
pub const ISOLATED_CJK: &str = "[一-龥぀-ゟ゠-ヿ]";

impl KnownPattern {
    pub const GPT2: Self = Self {
        words: Words::AfterSpace,
        contractions: Contractions::LowerCase,
        numbers: Numbers::AfterSpace,
        newlines: Newlines::Plain,
        symbols: Symbols::Rest,
        han_apart: false,
        white_end: false,
    };
    /// As in `StarCoder` and Command-R.
    pub const GPT2_SINGLE_NUMBERS: Self =
        Self { numbers: Numbers::Single, symbols: Symbols::RestWithoutNumbers, ..Self::GPT2 };
    pub const DEEPSEEK_V3: Self = Self {
        words: Words::WithMarks,
        contractions: Contractions::None,
        numbers: Numbers::UpTo(3),
        newlines: Newlines::Kept,
        symbols: Symbols::Categories,
        han_apart: false,
        white_end: false,
    };
}

/// The patterns that only the kernels know.
impl KnownPattern {
    pub const CL100K: Self = Self {
        words: Words::AfterAny,
        contractions: Contractions::AnyCase,
        numbers: Numbers::UpTo(3),
        newlines: Newlines::Kept,
        symbols: Symbols::Rest,
        han_apart: false,
        white_end: false,
    };
    /// As `tiktoken` writes it today, read as Oniguruma does.
    pub const CL100K_POSSESSIVE: Self = Self { numbers: Numbers::Whole, white_end: true, ..Self::CL100K };
    pub const QWEN2: Self = Self { numbers: Numbers::Single, ..Self::CL100K };
    /// As in nanochat.
    pub const CL100K_PAIRS: Self = Self { numbers: Numbers::UpTo(2), ..Self::CL100K };
    pub const QWEN3_5: Self = Self { words: Words::AfterAnyMarked, ..Self::QWEN2 };
    pub const O200K: Self = Self {
        words: Words::Cased,
        contractions: Contractions::Suffix,
        numbers: Numbers::UpTo(3),
        newlines: Newlines::KeptWithSlash,
        symbols: Symbols::Rest,
        han_apart: false,
        white_end: false,
    };
    /// As in Falcon-H1.
    pub const O200K_SINGLE_NUMBERS: Self = Self { numbers: Numbers::Single, ..Self::O200K };
    pub const KIMI_K2: Self = Self { newlines: Newlines::Kept, han_apart: true, ..Self::O200K };
    pub const TEKKEN: Self = Self { contractions: Contractions::None, ..Self::O200K_SINGLE_NUMBERS };
}

impl KnownPattern {
    /// The shape of some steps, if they have one.
    pub fn match_known(steps: &[PatternStep]) -> Option<Self> {
        if steps.iter().any(|step| step.domain == Domain::Bytes || step.ends != Ends::Both) {
            return None;
        }
        match steps {
            [step] => Self::of_one_step(&step.pattern),
            [digits, rest] if digits.pattern == Node::Class(numeric()) => {
                (Self::of_one_step(&rest.pattern)? == Self::GPT2).then_some(Self::GPT2_SINGLE_NUMBERS)
            }
            [numbers, cjk, rest]
                if is(&cjk.pattern, &format!("{ISOLATED_CJK}+")) && is_deepseek_v3(&rest.pattern) =>
            {
                Some(Self { numbers: Numbers::recognise(&numbers.pattern)?, ..Self::DEEPSEEK_V3 })
            }
            _ => None,
        }
    }

    fn of_one_step(pattern: &Node) -> Option<Self> {
        let Node::Alternate(alternatives) = pattern else { return None };
        let mut rest: VecDeque<&Node> = alternatives.iter().collect();
        let han_apart = takes(&mut rest, r"\p{Han}+");
        let mut contractions = Contractions::recognise(&mut rest);
        let words = if takes(&mut rest, r" ?\p{L}+") {
            Words::AfterSpace
        } else if takes(&mut rest, r"[^\r\n\p{L}\p{N}]?\p{L}+") {
            Words::AfterAny
        } else if takes(&mut rest, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+") {
            Words::AfterAnyMarked
        } else if contractions == Contractions::None {
            contractions = cased_words(&mut rest, han_apart)?;
            Words::Cased
        } else {
            return None;
        };
        if han_apart && words != Words::Cased {
            return None;
        }
        let numbers = match words {
            Words::AfterSpace => Numbers::AfterSpace,
            _ => Numbers::recognise(rest.pop_front()?)?,
        };
        let (symbols, newlines) = match words {
            Words::AfterSpace if takes(&mut rest, r" ?\p{N}+") => (r" ?[^\s\p{L}\p{N}]+", Newlines::Plain),
            Words::AfterSpace => return None,
            Words::AfterAnyMarked => (r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", Newlines::Kept),
            Words::Cased if !han_apart => (r" ?[^\s\p{L}\p{N}]+[\r\n/]*", Newlines::KeptWithSlash),
            _ => (r" ?[^\s\p{L}\p{N}]+[\r\n]*", Newlines::Kept),
        };
        if !takes(&mut rest, symbols) {
            return None;
        }
        let white_end = newlines != Newlines::Plain && takes(&mut rest, r"\s++$");
        // Whitespace that leads to a newline is taken up to the last one either way, and what the last alternative meets
        // is one character.
        let mut takes_one = |spellings: &[&str]| spellings.iter().any(|spelling| takes(&mut rest, spelling));
        let spaces = (newlines == Newlines::Plain || takes_one(&[r"\s*[\r\n]+", r"\s*[\r\n]"]))
            && takes_one(&[r"\s+(?!\S)"])
            && takes_one(&[r"\s+", r"\s"]);
        (spaces && rest.is_empty()).then_some(Self {
            words,
            contractions,
            numbers,
            newlines,
            symbols: Symbols::Rest,
            han_apart,
            white_end,
        })
    }

    pub fn describe(self) -> String {
        let style = match (self.words, self.symbols) {
            (Words::AfterSpace, _) => "GPT-2-style split",
            (Words::AfterAny, _) => "cl100k-style split",
            (Words::AfterAnyMarked, _) => "cl100k-style split, marks as letters",
            (Words::Cased, _) => "o200k-style split",
            (Words::WithMarks, _) => "DeepSeek-V3-style split",
        };
        let contractions = match self.contractions {
            Contractions::None if self.words != Words::WithMarks => ", no contractions",
            _ => "",
        };
        let numbers = match self.numbers {
            Numbers::AfterSpace => "",
            Numbers::Whole => ", numbers whole",
            Numbers::Single => ", digits one by one",
            Numbers::UpTo(count) => &format!(", numbers in groups of {count}"),
        };
        let han = if self.han_apart { ", Han apart" } else { "" };
        let end = if self.white_end { ", whitespace at the end in one" } else { "" };
        format!("{style}{contractions}{numbers}{han}{end}")
    }
}

impl Contractions {
    /// Removes the contractions from the front of some alternatives. None is a prefix of another, so their order does
    /// not matter.
    fn recognise(rest: &mut VecDeque<&Node>) -> Self {
        const LOWER_CASE: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];
        const ANY_CASE: [&str; 7] =
            ["(?i:'s)", "(?i:'t)", "(?i:'re)", "(?i:'ve)", "(?i:'m)", "(?i:'ll)", "(?i:'d)"];
        if rest.front().is_some_and(|node| is(node, "'(?i:[sdmt]|ll|ve|re)")) {
            rest.pop_front();
            return Self::AnyCase;
        }
        for (all, kind) in [(LOWER_CASE, Self::LowerCase), (ANY_CASE, Self::AnyCase)] {
            if rest.len() >= 7 && all.iter().all(|one| rest.iter().take(7).any(|node| is(node, one))) {
                rest.drain(..7);
                return kind;
            }
        }
        Self::None
    }
}

impl Numbers {
    fn recognise(pattern: &Node) -> Option<Self> {
        if is(pattern, r"\p{N}") {
            Some(Self::Single)
        } else if is(pattern, r"\p{N}{1,3}+") {
            Some(Self::Whole)
        } else {
            (2..=3).find(|count| is(pattern, &format!(r"\p{{N}}{{1,{count}}}"))).map(Self::UpTo)
        }
    }
}

/// Removes the first of some alternatives if it is the one that is spelled so, and tells whether it was.
fn takes(rest: &mut VecDeque<&Node>, spelling: &str) -> bool {
    let found = rest.front().is_some_and(|node| is(node, spelling));
    if found {
        rest.pop_front();
    }
    found
}

/// Takes the two alternatives for words by case, and returns the contractions that end them.
fn cased_words(rest: &mut VecDeque<&Node>, han_apart: bool) -> Option<Contractions> {
    const PREFIX: &str = r"[^\r\n\p{L}\p{N}]?";
    const SUFFIX: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
    let but = if han_apart { r"&&[^\p{Han}]" } else { "" };
    let upper = format!(r"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]");
    let lower = format!(r"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]");
    for (suffix, contractions) in [(SUFFIX, Contractions::Suffix), ("", Contractions::None)] {
        if takes(rest, &format!("{PREFIX}{upper}*{lower}+{suffix}")) {
            return takes(rest, &format!("{PREFIX}{upper}+{lower}*{suffix}")).then_some(contractions);
        }
    }
    None
}

fn is_deepseek_v3(pattern: &Node) -> bool {
    is(
        pattern,
        &[
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
            r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
            r" ?[\p{P}\p{S}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
        .join("|"),
    )
}

/// Whether a pattern is the one that is spelled `pre-token`, its classes compared as sets.
fn is(node: &Node, pretoken: &str) -> bool {
    parse(pretoken).as_ref() == Ok(node)
}
