//! Texts chosen to expose differences between the splitters and the reference.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};

use super::{Pair, ends, environment, families, mixtures};
use crate::pretokenize::PADDING;
use crate::pretokenize::patterns::Method;

/// Representatives of the classes that patterns distinguish, and known traps.
const TRAPS: &[char] = &[
    'a',
    'A',
    '1',
    '\'',
    ' ',
    '\n',
    '\r',
    '\t',
    '.',
    '/',
    's',
    't',
    'e',
    'l',
    'L',
    'é',
    'É',
    'ſ',
    '\u{212A}',
    '中',
    'あ',
    '\u{301}',
    '😀',
    '\u{A0}',
    '\u{3000}',
    '\u{85}',
    '\u{180E}',
    'ǅ',
    'ʰ',
    '²',
    '・',
    '\u{3040}',
    '\u{1}',
    '\u{200D}',
    '가',
    'ò',
    '“',
    '龦',
    '〇',
    '⺀',
    '々',
    '\u{16FF0}',
];

/// Phrases into which random texts insert the traps.
const PHRASES: &[&str] = &[
    "don't",
    "DON'T've",
    "'S",
    "'ſ",
    "we'll",
    "x'LL",
    "  ",
    "   \n",
    "\r\n",
    "\n\n  ",
    "    ",
    "0123456789",
    "３４",
    "HTMLParser",
    "日本語API",
    "1〇2",
    "二〇二五年",
    " ⺀中",
    "カタカナ・ひらがな",
    "한국어",
    "ﾊﾞ",
    "e\u{301}\u{301}",
    "!!\u{301}",
    " \u{301}",
    "//\n/",
    ".\n\n",
    "?!\r\n/",
    "(a",
    " (a",
    "((a",
    "\u{200D}\u{200D}x",
    "\u{7}",
    "the ",
    "of ",
    "and",
    "U.S.",
    "snake_case",
    "Ünïcödé",
    "ﬁ",
    "ß",
    "Ⅷ",
    "१२३",
    "नमस्ते",
    "❤\u{FE0F}",
    "👩\u{200D}💻",
    "\u{3000}\u{3000}",
    "\u{2028}",
    "𝔘𝔫",
    "𐐀",
];

/// Makes texts.
struct Random(mixtures::Random);

impl Random {
    fn new(seed: u64) -> Self {
        Self(mixtures::Random::new(seed))
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.below(n)
    }

    /// A text with runs and phrases; its start shifts what follows across block boundaries.
    fn text(&mut self, text: &mut String) {
        text.clear();
        if self.below(2) == 0 {
            let filler = ["a", " ", "1", "x ", "中", "!", "\n", "A"][self.below(8)];
            text.extend(std::iter::repeat_n(filler, self.below(70)));
        }
        // A few characters, repeated, meet in more combinations than many characters do once.
        let few: [char; 5] = std::array::from_fn(|_| TRAPS[self.below(TRAPS.len())]);
        for _ in 0..=self.below(30) {
            match self.below(8) {
                0 => text.push_str(PHRASES[self.below(PHRASES.len())]),
                1 => text.extend(std::iter::repeat_n(TRAPS[self.below(TRAPS.len())], self.below(9))),
                2 => text.push(TRAPS[self.below(TRAPS.len())]),
                3 => text.extend(char::from_u32(self.below(0x3_0000) as u32)),
                _ => text.push(few[self.below(5)]),
            }
        }
    }
}

#[test]
fn every_character_in_every_neighbourhood() {
    // Unless all are requested: those below Han, and a share of the others.
    let thorough = environment("GRISTMILL_CASES", 0) >= 1_000_000;
    let wanted = |c: char| thorough || c < '\u{3400}' || u32::from(c).is_multiple_of(16);
    let characters: Vec<char> = ('\0'..=char::MAX).filter(|&c| wanted(c)).collect();
    for mut pair in Pair::all() {
        let mut text = String::new();
        // Many characters in one text: far fewer calls, the same neighbours.
        for block in characters.chunks(64) {
            for between in [
                "a\u{1}a", " \u{1}", "\u{1} ", "\n\u{1}", "\u{1}\n", "1\u{1}1", "'\u{1}'", "A\u{1}b",
                "!\u{1}B",
            ] {
                text.clear();
                for c in block {
                    text.extend(between.chars().map(|b| if b == '\u{1}' { *c } else { b }));
                }
                pair.check(&text);
            }
        }
        for &c in characters.iter().step_by(if thorough { 1 } else { 16 }) {
            text.clear();
            text.push(c);
            pair.check(&text);
        }
    }
}

#[test]
fn every_short_text_over_the_traps() {
    let longest = environment("GRISTMILL_LENGTH", 2);
    for mut pair in Pair::all() {
        let mut text = String::new();
        for length in 0..=longest {
            for number in 0..TRAPS.len().pow(length as u32) {
                text.clear();
                text.extend((0..length).scan(number, |rest, _| {
                    let c = TRAPS[*rest % TRAPS.len()];
                    *rest /= TRAPS.len();
                    Some(c)
                }));
                pair.check(&text);
            }
        }
    }
}

#[test]
fn every_short_text_across_the_border_of_a_block() {
    let longest = environment("GRISTMILL_LENGTH", 2);
    for mut pair in Pair::all() {
        let mut text = String::new();
        for filler in ["a", "A", "1", " ", "\n", ".", "中"] {
            for number in 0..TRAPS.len().pow(longest as u32) {
                text.clear();
                let before = 64 - number % 5;
                text.extend(std::iter::repeat_n(filler, before / filler.len()));
                text.extend((0..longest).scan(number, |rest, _| {
                    let c = TRAPS[*rest % TRAPS.len()];
                    *rest /= TRAPS.len();
                    Some(c)
                }));
                pair.check(&text);
            }
        }
    }
}

#[test]
fn random_texts() {
    let cases = environment("GRISTMILL_CASES", 2000);
    for mut pair in Pair::all() {
        let mut random = Random::new(environment("GRISTMILL_SEED", 1) as u64);
        let mut text = String::new();
        for _ in 0..cases {
            random.text(&mut text);
            pair.check(&text);
        }
        println!("{}: {cases} random texts", pair.name);
    }
}

/// Real text: the shared vectors, naughty strings and the first documents of each shard.
#[test]
#[ignore = "needs the shared folder"]
fn shared_texts() {
    let folder = std::env::var("GRISTMILL_SHARED")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").into());
    let mut files = Vec::new();
    files_below(Path::new(&folder), &mut files);
    let documents = environment("GRISTMILL_CASES", 2000) / 500;
    let mut texts = Vec::new();
    for file in &files {
        let name = file.to_string_lossy();
        let inflated = || BufReader::new(MultiGzDecoder::new(File::open(file).unwrap()));
        if name.ends_with(".txt") && name.contains("/vectors/") {
            texts.push(std::fs::read_to_string(file).unwrap());
        } else if name.ends_with("/blns.json.gz") {
            texts.extend(serde_json::from_reader::<_, Vec<String>>(inflated()).unwrap());
        } else if name.contains("/corpus/") {
            texts.extend(inflated().lines().take(documents).map(|line| {
                let record: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
                record["raw_content"].as_str().unwrap().to_owned()
            }));
        }
    }
    assert!(!texts.is_empty(), "no texts in {folder}");
    for mut pair in Pair::all() {
        for text in &texts {
            pair.check(text);
        }
        println!(
            "{}: {} texts, {} bytes",
            pair.name,
            texts.len(),
            texts.iter().map(String::len).sum::<usize>()
        );
    }
}

fn files_below(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { files_below(&path, files) } else { files.push(path) }
    }
}

/// Combinations of the same parts that no family uses.
#[test]
fn other_patterns() {
    let patterns = [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]|\s+(?!\S)|\s",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"\p{N}{2}|\p{L}{2,3}|[^\p{L}]",
        r"\s+$|\p{L}+$|a*b|(?:ab|a)(?:c|bcd)",
        r"a{3,}(?=b)|\S+\s",
        r"[a-zA-Z-]+|\d+|[\-+*/]",
        r"(?:a|ab)(?:c|bcd)?|\p{Lu}\p{Ll}*",
        r"\s++(?!\S)|\p{L}++(?=[a-m ])|[^\s]++$|[^\n]",
        r"(?:\p{L}|'){2,3}+|[\p{N}[.,[^ -~]]-]+|[[ab]c[de]]",
        r"[\u4e00-\u9fa5\x{AC00}-\x{D7A3}]+|\x61[\x41-\x5A\x20]|\u0301|\x{1F600}+",
        r"\d{1,3}(?=(?:\d{3})*\b)",
        r"\d{1,2}(?=(\d{2})*(?!\d))",
        r"(?=(?:[1中]{2})+[a\s])",
        r"\w+|[^\w\s]+|\s+(?!\S)|\s",
        r" ?[\w'²]+|\W",
        r"[[:alpha:]]+|[[:^alpha:]&&[:digit:]]{1,3}|.",
        r".\h|\H+\s|[^.\f\v]",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
        r"(?:\r?\n)+(?!\r?\n)|(?:ab|a)+(?!ab|a)|\S",
        r"\s{512}|\s{256}|\s{70}| {3}|\s| ?\p{L}+| ?[^\s\p{L}]+",
        r"(?i:['’]s|['’]re|['’]ll)|\p{L}|\S|\s",
        r"[^a-m&&[^x]\p{L}]+|[\p{Latin}&&a-z[A-F]&&[^d-e]]|[&a]&[a&]|\P{Cyrillic}+",
    ];
    for pattern in patterns {
        let json = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
        let mut pair = Pair::new(pattern, &json);
        let mut random = Random::new(7);
        let mut text = String::new();
        for _ in 0..environment("GRISTMILL_CASES", 2000) {
            random.text(&mut text);
            pair.check(&text);
        }
        for length in (0..1200).step_by(7) {
            pair.check(&format!("{}a", " ".repeat(length)));
        }
    }
}

/// Sequences of steps that match runs, before and behind the byte level.
#[test]
fn sequences_of_runs() {
    const STEPS: &[&str] = &[
        r"[\r\n]",
        r"\s",
        r"\p{L}",
        r"[中あ\u0301]",
        r"\p{L}+",
        r"[\p{L}\p{M}]+",
        r"\s+",
        r"[^\p{L}\s]+",
        r"\s?\p{L}+",
        r" ?[^(\s|[.,!?…。,、।۔،])]+",
        r"[\x{3000}中é]?[a-zA-Z中]+",
        r"[^\r\n\p{L}]?\p{L}+",
        r"\s+$",
        r"[\s中]+$",
        r"\p{N}{1,3}",
        r"[\p{L}\p{N}]{2,5}",
        r"\p{L}{3}",
        "[e]",
        " ",
        r"[0-9][0-9][0-9]",
        r"中中",
        r"\d{1,3}(?=(?:\d{3})*\b)",
        r"(?=(\d{3})+(?!\d))",
        r"[1あ中]{1,2}(?=(?:[1あ中]{2})*$)",
        r"(?=(?:[1中]{2})+[a\s])",
    ];
    let mut random = Random::new(environment("GRISTMILL_SEED", 11) as u64);
    let mut text = String::new();
    let sequences = environment("GRISTMILL_CASES", 2000) / 10;
    let mut by_runs = 0;
    for _ in 0..sequences {
        let mut steps: Vec<Value> = (0..=random.below(5))
            .map(|_| match random.below(STEPS.len() + 4) {
                0 => json!({"type": "Digits", "individual_digits": true}),
                1 => json!({"type": "Digits", "individual_digits": false}),
                2 => json!({"type": "Punctuation", "behavior": "Contiguous"}),
                3 => json!({"type": "Punctuation", "behavior": "Isolated"}),
                number => {
                    json!({"type": "Split", "pattern": {"Regex": STEPS[number - 4]}, "behavior": "Isolated",
                                 "invert": false})
                }
            })
            .collect();
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                                "use_regex": random.below(3) == 0});
        steps.insert(random.below(steps.len() + 1), byte_level);
        let json = json!({"type": "Sequence", "pretokenizers": steps});
        let mut pair = Pair::new(&json.to_string(), &json);
        by_runs += usize::from(matches!(pair.pretokenizers[1].1.way, Method::Bitmap(_)));
        for _ in 0..100 {
            random.text(&mut text);
            pair.check(&text);
        }
    }
    // The others have too many classes, or end lines that are no pre-tokens.
    assert!(by_runs * 2 > sequences, "{by_runs} of {sequences}");
}

/// Steps that remove something, among others, with and without a byte level behind them.
#[test]
fn steps_that_remove() {
    let split = |pattern: &str, invert| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": invert});
    let removing = [
        json!({"type": "Whitespace"}),
        json!({"type": "WhitespaceSplit"}),
        json!({"type": "BertPreTokenizer"}),
        json!({"type": "CharDelimiterSplit", "delimiter": "中"}),
        json!({"type": "Punctuation", "behavior": "Removed"}),
        json!({"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": false}),
        split(r"[\n あ]+", false),
        split(r"\n|\p{N}+| |あ", false),
        split(r"\p{L}+|\p{N}+|[^\s\p{L}\p{N}]+", true),
        split(r"\p{L}|[\p{L}\p{N}]+|\r", true),
        split(r"\w+", true),
    ];
    let isolating = [
        json!({"type": "Digits", "individual_digits": false}),
        json!({"type": "Punctuation", "behavior": "MergedWithPrevious"}),
        json!({"type": "Split", "pattern": {"Regex": r"\s?\p{L}+"}, "behavior": "Isolated", "invert": false}),
        json!({"type": "Split", "pattern": {"Regex": r"a ?|\p{N}{1,3}|\s+(?!\S)"}, "behavior": "Isolated", "invert": false}),
    ];
    let mut random = Random::new(environment("GRISTMILL_SEED", 17) as u64);
    let mut text = String::new();
    let characters: Vec<char> = ('\0'..=char::MAX).collect();
    for step in &removing[..3] {
        let mut pair = Pair::new(&step.to_string(), step);
        for some in characters.chunks(64) {
            text.clear();
            text.extend(some.iter().flat_map(|c| ['a', *c, 'b', ' ', *c, *c, '.']));
            pair.check_kept(&text);
        }
    }
    for _ in 0..environment("GRISTMILL_CASES", 2000) / 10 {
        let mut steps: Vec<Value> = vec![removing[random.below(removing.len())].clone()];
        for _ in 0..random.below(3) {
            let other = random.below(removing.len() + isolating.len());
            let other = removing.get(other).unwrap_or_else(|| &isolating[other - removing.len()]);
            steps.insert(random.below(steps.len() + 1), other.clone());
        }
        if random.below(2) == 0 {
            steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                              "use_regex": random.below(2) == 0}));
        }
        let json = json!({"type": "Sequence", "pretokenizers": steps});
        let mut pair = Pair::new(&json.to_string(), &json);
        for _ in 0..100 {
            random.text(&mut text);
            pair.check_kept(&text);
        }
    }
}

/// The treatment of the matches, before and behind other steps.
#[test]
fn behaviours_of_a_split() {
    let mut random = Random::new(13);
    let mut text = String::new();
    for behavior in ["MergedWithPrevious", "MergedWithNext", "Contiguous", "Isolated"] {
        let split = |pattern: &str, invert| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert});
        let mut steps = vec![
            json!({"type": "Punctuation", "behavior": behavior}),
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": behavior, "invert": false}),
            json!({"type": "Split", "pattern": {"String": "a"}, "behavior": behavior, "invert": true}),
            split(r"\s+", false),
            split(r"\W+", true),
            split(r"\n|\p{N}+|[ e]", random.below(2) == 0),
        ];
        if behavior != "Contiguous" {
            steps.extend([
                split(r"a ?|\p{N}{1,3}|\s+(?!\S)", false),
                split(r"[^\r\n\p{L}]?\p{L}+|\s", true),
                split(r"(?:\r?\n)+(?!\r?\n)", false),
            ]);
        }
        let mut pairs = Vec::new();
        for first in &steps {
            for second in &steps {
                let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                                        "use_regex": false});
                let json = json!({"type": "Sequence", "pretokenizers": [first, byte_level, second]});
                pairs.push(Pair::new(&json.to_string(), &json));
            }
        }
        for _ in 0..environment("GRISTMILL_CASES", 2000) / 20 {
            random.text(&mut text);
            for pair in &mut pairs {
                pair.check(&text);
            }
        }
    }
}

/// Trinity's first step cuts them in parts of 510 digits, from the right.
#[test]
fn numbers_longer_than_a_part_of_groups() {
    let trinity = families().into_iter().find(|(name, _)| name == "trinity").unwrap().1;
    let mut pair = Pair::new("trinity", &trinity);
    for digit in ["7", "٣"] {
        for count in (0..12).chain(505..520).chain(1015..1030) {
            let number = digit.repeat(count);
            for text in [number.clone(), format!("a{number} {number}\n{number}."), format!("½{number}²x")] {
                pair.check(&text);
            }
        }
    }
}

/// Attempts to match that run on and fail, in states that depend on where they began.
#[test]
fn attempts_that_fail_far_behind_their_start() {
    const LONG: usize = 2 << 20;
    for (pattern, filler, pretokens_of_long) in [
        (r"(?: {4})+(?=\S)| |\S+|\s", " ", LONG + 1),
        (r"(?:\p{N}{3})+(?=\.)|\p{N}{1,2}|\D+", "1", LONG / 2 + 1),
        (r"(?:a{2})+b|(?:a{3})+c|a", "a", LONG + 1),
        (r"\s+$|\s", " ", 1),
        (r"\s+\.|\s", " ", LONG + 1),
    ] {
        let step =
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let mut pair = Pair::new(pattern, &json!({"type": "Sequence", "pretokenizers": [step, byte_level]}));
        for count in (0..12).chain((60..200).step_by(5)) {
            for end in ["", "\n", ".", "b", "c", "x"] {
                pair.check(&format!("{0}{end}{1}{end}", filler.repeat(count), filler.repeat(count + 37)));
            }
        }
        // If each attempt ran to the end, this would take hours.
        let long = filler.repeat(LONG) + "\n";
        pair.padded.clear();
        pair.padded.extend(long.bytes().chain([b' '; PADDING]));
        pair.pretokenizers[0].1.split(&pair.padded, long.len(), &mut pair.scratch, &mut pair.boundaries);
        assert_eq!(ends(&pair.boundaries).len(), pretokens_of_long);
    }
}
