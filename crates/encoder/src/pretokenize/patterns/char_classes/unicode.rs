//! The classes of characters that the vector kernels look up, as bits of one byte.

use regex_syntax::hir::ClassUnicode;

use crate::lazy::Lazy;
use crate::pretokenize::patterns::char_classes::table::CharTable;
use crate::pretokenize::patterns::known_patterns::{ISOLATED_CJK, KnownPattern, Symbols, Words};
use crate::pretokenize::patterns::parse_pretokenizer::numeric;
use crate::pretokenize::patterns::regex::named_set;

pub const LETTER: u8 = 1 << 0;
pub const MARK: u8 = 1 << 1;
pub const NUMBER: u8 = 1 << 2;
pub const SPACE: u8 = 1 << 3;
/// Upper or title case.
pub const UPPER: u8 = 1 << 4;
pub const LOWER: u8 = 1 << 5;
/// Punctuation or symbol; with `Shape::han_apart` Han that is neither letter nor number.
pub const SYMBOL: u8 = 1 << 6;
/// The characters that DeepSeek-V3 isolates; with `Shape::han_apart` Han, which is then neither letter nor mark.
pub const CJK: u8 = 1 << 7;

/// From regex-syntax's tables, which equal the reference engine's (`tests::classes`). Built at first use, in about a
/// millisecond, and shared by all splitters.
static CLASSES: Lazy<UnicodeClasses> = Lazy::new();

/// With the numbers that the step `Digits` takes: the standard library may follow a later version of Unicode.
static DIGIT_CLASSES: Lazy<UnicodeClasses> = Lazy::new();

/// With marks among the letters.
static MARKED_CLASSES: Lazy<UnicodeClasses> = Lazy::new();

/// With Han apart.
static HAN_CLASSES: Lazy<UnicodeClasses> = Lazy::new();

pub struct UnicodeClasses {
    pub table: CharTable,
    /// Indexed by the low half of the first byte of three: the class, if it is the same for all characters that begin
    /// with that byte, else 0. It is the same for most of Han and Hangul.
    pub by_first_of_three: [u8; 16],
}

impl UnicodeClasses {
    /// The classes that a shape uses.
    pub fn of(shape: KnownPattern) -> &'static Self {
        if shape.han_apart {
            return HAN_CLASSES.get_or_make(Self::han_apart);
        }
        match (shape.words, shape.symbols) {
            (Words::AfterAnyMarked, _) => {
                MARKED_CLASSES.get_or_make(|| Self::new(named(r"[\p{L}\p{M}]"), named(r"\p{N}")))
            }
            (_, Symbols::RestWithoutNumbers) => {
                DIGIT_CLASSES.get_or_make(|| Self::new(named(r"\p{L}"), numeric()))
            }
            (_, Symbols::Rest | Symbols::Categories) => {
                CLASSES.get_or_make(|| Self::new(named(r"\p{L}"), named(r"\p{N}")))
            }
        }
    }

    fn new(letters: ClassUnicode, numbers: ClassUnicode) -> Self {
        Self::of_sets(letters, named(r"\p{M}"), numbers, named(r"[\p{P}\p{S}]"), named(ISOLATED_CJK))
    }

    fn han_apart() -> Self {
        let others = named(r"[\p{Han}--[\p{L}\p{N}]]");
        let (letters, marks) = (named(r"[\p{L}--\p{Han}]"), named(r"[\p{M}--\p{Han}]"));
        Self::of_sets(letters, marks, named(r"\p{N}"), others, named(r"\p{Han}"))
    }

    fn of_sets(
        letters: ClassUnicode,
        marks: ClassUnicode,
        numbers: ClassUnicode,
        symbols: ClassUnicode,
        cjk: ClassUnicode,
    ) -> Self {
        let (space, upper, lower) = (named(r"\s"), named(r"[\p{Lu}\p{Lt}]"), named(r"\p{Ll}"));
        // In the order of the bits.
        let sets = [letters, marks, numbers, space, upper, lower, symbols, cjk];
        let table = CharTable::of_sets(&sets.each_ref());
        let by_first_of_three = std::array::from_fn(|first| {
            let mut classes = (0..0x1000).map(|rest| table.of((first as u32) << 12 | rest));
            let class = classes.next().unwrap_or_default();
            if classes.all(|other| other == class) { class } else { 0 }
        });
        Self { table, by_first_of_three }
    }
}

fn named(class: &str) -> ClassUnicode {
    named_set(class).expect("regex-syntax knows all classes that are named here")
}
