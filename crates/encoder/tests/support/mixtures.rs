//! Random texts biased towards what tokenizers get wrong.

/// Fragments of texts, each chosen to tempt an encoder into breaking some rule.
pub const FRAGMENTS: &[&str] = &[
    // Spaces of all kinds, and what they appear next to.
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\u{b}",
    "\u{c}",
    "\u{85}",
    "\u{a0}",
    "\u{2003}",
    "\u{3000}",
    "\u{2028}",
    "\u{200b}",
    "\u{feff}",
    "\u{180e}",
    "                    ",
    // The marker of SentencePiece, alone and where it meets spaces.
    "\u{2581}",
    "\u{2581}\u{2581}",
    " \u{2581}",
    "\u{2581} ",
    "\u{2581}a",
    // Words, contractions, case.
    "a",
    "the",
    "The",
    "THE",
    " the",
    "don't",
    "I'LL",
    "we've",
    "'s",
    "'S",
    "'\u{17f}",
    "\u{17f}",
    "'re",
    "'",
    "''",
    "\u{2019}s",
    "HelloWorld",
    "iPhone",
    "caf\u{e9}",
    "cafe\u{301}",
    "na\u{ef}ve",
    "\u{130}",
    "\u{131}",
    "ǅ",
    "ʰ",
    "ª",
    // Digits of several scripts.
    "0",
    "1",
    "12",
    "123",
    "1234",
    "1234567",
    "٣",
    "१२",
    "²",
    "½",
    "Ⅷ",
    "1.5",
    "1,000",
    // Punctuation and symbols.
    ".",
    ",",
    "!",
    "?",
    "-",
    "--",
    "---",
    "...",
    "(",
    ")",
    "[]",
    "{}",
    "/",
    "//",
    "\\",
    "_",
    "__init__",
    "=",
    "==",
    "=>",
    "<",
    ">",
    "</",
    "&amp;",
    "#",
    "$",
    "%",
    "^",
    "+",
    "~",
    "|",
    "`",
    "\"",
    "“",
    "”",
    "…",
    "€",
    "©",
    "•",
    "→",
    "\u{301}",
    "\u{20ac}1",
    "_-_",
    "----------------------------------------------------------------",
    // Scripts that do not separate words, joined scripts, marks.
    "日本語",
    "です。",
    "中文",
    "的",
    "한국어",
    "\u{1112}\u{1161}\u{11ab}",
    "ภาษาไทย",
    "हिन्दी",
    "العربية",
    "עִבְרִית",
    "Ελληνικά",
    "русский",
    "がｶﾞ",
    "か\u{3099}",
    "ー",
    "々",
    "〇",
    "一",
    "龥",
    "ࠀ",
    "가",
    "퟿",
    // Four-byte characters, joiners, rarely used planes, boundaries of the code space.
    "😀",
    "👩‍👩‍👧",
    "🇩🇪",
    "𝒳",
    "𐐀",
    "𠀀",
    "\u{e000}",
    "\u{fffd}",
    "\u{ffff}",
    "\u{10ffff}",
    "\u{d7ff}",
    "\u{80}",
    "\u{7ff}",
    "\u{800}",
    "\u{10000}",
    // Controls.
    "\0",
    "\u{1}",
    "\u{1b}",
    "\u{7f}",
    // Texts that tokenizers have as tokens.
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<|endoftext|>",
    "<|im_start|>",
    "<0x0A>",
    "<0x41>",
    "[INST]",
    "<mask>",
    "Ġthe",
    "Ċ",
    "##s",
    "<|",
    "|>",
    "<s",
    "s>",
];

/// A generator of random numbers; the same seed gives the same numbers everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound.max(1)
    }
}

/// A random text of the fragments above and of `more`, with runs and repetitions.
pub fn mixture(random: &mut Random, more: &[String]) -> String {
    let mut text = String::new();
    for _ in 0..random.below(25) {
        let fragment = match random.below(10) {
            0..5 => FRAGMENTS[random.below(FRAGMENTS.len())],
            5..8 if !more.is_empty() => &more[random.below(more.len())],
            8 => {
                let c = char::from_u32(random.below(0x11_0000) as u32).unwrap_or('?');
                text.push(c);
                continue;
            }
            _ => {
                text.push(char::from(b' ' + random.below(95) as u8));
                continue;
            }
        };
        let times = if random.below(12) == 0 { random.below(60) } else { 1 };
        text.extend(std::iter::repeat_n(fragment, times));
    }
    text
}
