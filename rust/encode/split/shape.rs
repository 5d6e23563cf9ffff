//! The shape that widely used split patterns share, recognised alternative by alternative.
//!
//! All of them match words with an optional preceding character, numbers, punctuation with an optional preceding space
//! and perhaps trailing newlines, and runs of whitespace that leave their last character to what follows. One vector
//! kernel, configured by a [`Shape`], splits them all.

use std::collections::VecDeque;

use super::parser::parse;
use super::pattern::Node;
use super::recognise::{Domain, Ends, RecognisedStep, numeric};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub words: Words,
    pub contractions: Contractions,
    pub numbers: Numbers,
    pub newlines: Newlines,
    /// What counts as punctuation, and whether CJK runs are cut off first.
    pub symbols: Symbols,
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

impl Shape {
    pub const GPT2: Self = Self {
        words: Words::AfterSpace,
        contractions: Contractions::LowerCase,
        numbers: Numbers::AfterSpace,
        newlines: Newlines::Plain,
        symbols: Symbols::Rest,
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
    };
}

/// Those that only the kernels know.
#[cfg(target_arch = "x86_64")]
impl Shape {
    pub const CL100K: Self = Self {
        words: Words::AfterAny,
        contractions: Contractions::AnyCase,
        numbers: Numbers::UpTo(3),
        newlines: Newlines::Kept,
        symbols: Symbols::Rest,
    };
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
    };
    /// As in Falcon-H1.
    pub const O200K_SINGLE_NUMBERS: Self = Self { numbers: Numbers::Single, ..Self::O200K };
    pub const TEKKEN: Self = Self { contractions: Contractions::None, ..Self::O200K_SINGLE_NUMBERS };
}

impl Shape {
    /// The shape of some steps, if they have one.
    pub fn recognise(steps: &[RecognisedStep]) -> Option<Self> {
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
        let mut contractions = Contractions::recognise(&mut rest);
        let mut take = |piece: &str| {
            let found = rest.front().is_some_and(|node| is(node, piece));
            if found {
                rest.pop_front();
            }
            found
        };
        let words = if take(r" ?\p{L}+") {
            Words::AfterSpace
        } else if take(r"[^\r\n\p{L}\p{N}]?\p{L}+") {
            Words::AfterAny
        } else if take(r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+") {
            Words::AfterAnyMarked
        } else if contractions == Contractions::None {
            contractions = cased_words(&mut take)?;
            Words::Cased
        } else {
            return None;
        };
        let numbers = match words {
            Words::AfterSpace => Numbers::AfterSpace,
            _ => Numbers::recognise(rest.pop_front()?)?,
        };
        let mut next_is = |spellings: &[&str]| {
            rest.pop_front().is_some_and(|node| spellings.iter().any(|spelling| is(node, spelling)))
        };
        let newlines = match words {
            Words::AfterSpace => {
                (next_is(&[r" ?\p{N}+"]) && next_is(&[r" ?[^\s\p{L}\p{N}]+"])).then_some(Newlines::Plain)?
            }
            Words::AfterAny => next_is(&[r" ?[^\s\p{L}\p{N}]+[\r\n]*"]).then_some(Newlines::Kept)?,
            Words::AfterAnyMarked => {
                next_is(&[r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"]).then_some(Newlines::Kept)?
            }
            _ => next_is(&[r" ?[^\s\p{L}\p{N}]+[\r\n/]*"]).then_some(Newlines::KeptWithSlash)?,
        };
        // Whitespace that leads to a newline is taken up to the last one either way, and what the last alternative meets
        // is one character.
        let spaces = (newlines == Newlines::Plain || next_is(&[r"\s*[\r\n]+", r"\s*[\r\n]"]))
            && next_is(&[r"\s+(?!\S)"])
            && next_is(&[r"\s+", r"\s"]);
        (spaces && rest.is_empty()).then_some(Self {
            words,
            contractions,
            numbers,
            newlines,
            symbols: Symbols::Rest,
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
            Numbers::Single => ", digits one by one",
            Numbers::UpTo(count) => &format!(", numbers in groups of {count}"),
        };
        format!("{style}{contractions}{numbers}")
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
        } else {
            (2..=3).find(|count| is(pattern, &format!(r"\p{{N}}{{1,{count}}}"))).map(Self::UpTo)
        }
    }
}

/// Takes the two alternatives for words by case, and returns the contractions that end them.
fn cased_words(take: &mut impl FnMut(&str) -> bool) -> Option<Contractions> {
    const PREFIX: &str = r"[^\r\n\p{L}\p{N}]?";
    const UPPER: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
    const LOWER: &str = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
    const SUFFIX: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
    for (suffix, contractions) in [(SUFFIX, Contractions::Suffix), ("", Contractions::None)] {
        if take(&format!("{PREFIX}{UPPER}*{LOWER}+{suffix}")) {
            return take(&format!("{PREFIX}{UPPER}+{LOWER}*{suffix}")).then_some(contractions);
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

/// Whether a pattern is the one that is spelled `piece`, its classes compared as sets.
fn is(node: &Node, piece: &str) -> bool {
    parse(piece).as_ref() == Ok(node)
}
