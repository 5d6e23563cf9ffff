//! Reads the regular expressions of split patterns, in the part of Oniguruma's syntax that
//! tokenizers use.
//!
//! Anything whose meaning in Oniguruma is not modelled exactly is refused with a message that names it; the reference
//! engine then does the work.

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use crate::pretokenize::patterns::regex::groups::digit_groups;
use crate::pretokenize::patterns::regex::{Node, first_of, named_set, negated, single, word, word_in_class};

/// The largest count in `{m,n}`, which repeats code of the automaton: Jais 2 has one of 512.
const MAX_COUNT: u32 = 1024;

/// The most possessive repetitions one after another: each is compared with all that follows.
const MAX_POSSESSIVE: usize = 64;

/// The deepest nesting of groups: parsing them, and compiling them to an automaton, is recursive.
const MAX_DEPTH: usize = 64;

/// General categories, other properties, and scripts.
pub const PROPERTIES: &str = "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs \
     C Cc Cf Co Letter Uppercase_Letter Lowercase_Letter Mark Number Decimal_Number Punctuation Symbol \
     Alphabetic Lowercase Uppercase Ideographic \
     Arabic Armenian Bengali Bopomofo Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han Hangul Hebrew \
     Hiragana Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya Sinhala Tamil Telugu Thai Tibetan";

/// Brackets of POSIX, and the same classes in regex-syntax's words.
pub const POSIX: [(&str, &str); 10] = [
    ("alnum", r"[\p{Alphabetic}\p{Nd}]"),
    ("alpha", r"\p{Alphabetic}"),
    ("blank", r"[\t\p{Zs}]"),
    ("cntrl", r"\p{Cc}"),
    ("digit", r"\p{Nd}"),
    ("lower", r"\p{Lowercase}"),
    ("punct", r"[\p{P}\p{S}]"),
    ("space", r"\s"),
    ("upper", r"\p{Uppercase}"),
    ("xdigit", "[0-9A-Fa-f]"),
];

/// Two ASCII letters that fold together into one character outside ASCII (ß, ﬀ, ﬁ, ﬂ, ﬆ), which
/// Oniguruma would match under `(?i:...)` and a set of single characters cannot express.
const MULTI_FOLDS: [[char; 2]; 5] = [['s', 's'], ['f', 'f'], ['f', 'i'], ['f', 'l'], ['s', 't']];

/// Parses a pattern in Oniguruma's default syntax.
pub fn parse(pattern: &str) -> Result<Node, String> {
    let mut parser = Parser { chars: pattern.chars().collect(), at: 0, ignore_case: false, depth: 0 };
    let node = parser.alternation()?;
    match parser.peek() {
        None => Ok(digit_groups(&node).map_or(node, Node::DigitGroups)),
        Some(c) => Err(format!("an unbalanced '{c}' in a split pattern")),
    }
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    ignore_case: bool,
    /// Number of open groups and nested classes.
    depth: usize,
}

/// A repetition as written.
struct Quantifier {
    min: u32,
    max: Option<u32>,
    suffix: Suffix,
}

/// The meaning of a plus after a quantifier.
#[derive(PartialEq, Eq)]
enum Suffix {
    /// There is none.
    Nothing,
    /// After `?`, `*` and `+`: what was matched is not given back.
    Possessive,
    /// After an interval: all of it one or more times.
    Again,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = text.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        if found {
            self.at += text.chars().count();
        }
        found
    }

    fn alternation(&mut self) -> Result<Node, String> {
        let mut alternatives = Vec::new();
        loop {
            match self.concatenation()? {
                Node::Alternate(nodes) => alternatives.extend(nodes),
                node => alternatives.push(node),
            }
            if !self.eat("|") {
                break;
            }
        }
        Ok(match alternatives.pop() {
            Some(only) if alternatives.is_empty() => only,
            last => {
                alternatives.extend(last);
                Node::Alternate(alternatives)
            }
        })
    }

    fn concatenation(&mut self) -> Result<Node, String> {
        let mut nodes = Vec::new();
        let mut possessive = Vec::new();
        while let Some(c) = self.peek() {
            if c == '|' || c == ')' {
                break;
            }
            let atom = self.atom()?;
            let node = match self.quantifier()? {
                None => atom,
                Some(_)
                    if matches!(atom, Node::Ahead { .. } | Node::Lookahead { .. } | Node::WordBoundary) =>
                {
                    return Err("a repeated lookahead in a split pattern".into());
                }
                Some(Quantifier { min, max, suffix }) => {
                    if suffix == Suffix::Possessive {
                        possessive.push(nodes.len());
                        if possessive.len() > MAX_POSSESSIVE {
                            return Err(format!(
                                "more than {MAX_POSSESSIVE} possessive repetitions in a row in a split pattern"
                            ));
                        }
                    }
                    let node = repeated(atom, min, max)?;
                    if suffix == Suffix::Again { repeated(node, 1, None)? } else { node }
                }
            };
            nodes.push(node);
        }
        for at in possessive {
            let (before, rest) = nodes.split_at_mut(at + 1);
            self.make_greedy(&before[at], rest)?;
        }
        if self.depth == 0 && is_never_followed(&nodes) {
            nodes.pop();
        }
        Ok(Node::concat(nodes))
    }

    /// A possessive repetition is equivalent to a greedy one if giving back could not help: nothing that it takes can
    /// begin what follows, or what follows cannot fail.
    fn make_greedy(&self, node: &Node, rest: &mut [Node]) -> Result<(), String> {
        let refused = || "a possessive repetition in a split pattern that is not equivalent to a greedy one";
        let Node::Repeat { node, max, .. } = node else { return Err(refused().into()) };
        let Node::Class(taken) = &**node else { return Err(refused().into()) };
        if let (None, Some(Node::Ahead { set, .. })) = (max, rest.first_mut()) {
            // After all that can be taken, nothing of its kind follows; if some were given back, it would.
            set.difference(taken);
        }
        if self.depth == 0 && rest.iter().all(Node::never_fails) {
            return Ok(());
        }
        let mut both = first_of(rest).ok_or_else(refused)?;
        both.intersect(taken);
        if both.ranges().is_empty() { Ok(()) } else { Err(refused().into()) }
    }

    fn quantifier(&mut self) -> Result<Option<Quantifier>, String> {
        let (min, max, plus) = match self.peek() {
            Some('?') => (0, Some(1), Suffix::Possessive),
            Some('*') => (0, None, Suffix::Possessive),
            Some('+') => (1, None, Suffix::Possessive),
            Some('{') => {
                let (min, max) = self.interval()?;
                (min, max, Suffix::Again)
            }
            _ => return Ok(None),
        };
        self.at += 1;
        let suffix = if self.eat("+") { plus } else { Suffix::Nothing };
        if matches!(self.peek(), Some('?' | '*' | '+' | '{')) {
            return Err("a lazy or nested repetition in a split pattern".into());
        }
        Ok(Some(Quantifier { min, max, suffix }))
    }

    /// Reads `{m}`, `{m,}`, `{m,n}` up to its closing brace.
    fn interval(&mut self) -> Result<(u32, Option<u32>), String> {
        let refused = || "an unsupported '{' in a split pattern".to_owned();
        let close = self.chars[self.at..].iter().position(|&c| c == '}').ok_or_else(refused)?;
        let body: String = self.chars[self.at + 1..self.at + close].iter().collect();
        let number = |text: &str| match text.parse::<u32>() {
            Ok(count) if text.bytes().all(|b| b.is_ascii_digit()) && count <= MAX_COUNT => Ok(count),
            _ => Err(refused()),
        };
        let (min, max) = match body.split_once(',') {
            None => (number(&body)?, Some(number(&body)?)),
            Some((min, "")) => (number(min)?, None),
            Some((min, max)) => (number(min)?, Some(number(max)?)),
        };
        let is_once = (min, max) == (1, Some(1));
        if max.is_some_and(|max| max < min || max == 0) || is_once && self.ignore_case {
            return Err(refused());
        }
        self.at += close;
        Ok((min, max))
    }

    fn atom(&mut self) -> Result<Node, String> {
        match self.next() {
            Some('(') => self.group(),
            Some('[') => self.class().map(Node::Class),
            Some('\\') if self.eat("b") => Ok(Node::WordBoundary),
            Some('\\') if self.eat("w") => Ok(Node::Class(word())),
            Some('\\') if self.eat("W") => Ok(Node::Class(negated(word()))),
            Some('\\') => self.escape().map(Node::Class),
            Some('.') => Ok(Node::Class(negated(single('\n')))),
            // In Oniguruma `$` is the end of a line, and the end of the text even after a newline.
            Some('$') => Ok(Node::Ahead { set: single('\n'), at_end: true }),
            Some(c @ ('^' | '*' | '+' | '?' | '{')) => Err(format!("'{c}' in a split pattern")),
            Some(c) => self.folded(c).map(Node::Class),
            None => Err("a split pattern that ends unexpectedly".into()),
        }
    }

    fn group(&mut self) -> Result<Node, String> {
        let was = self.ignore_case;
        let ahead = if self.eat("?!") {
            Some(true)
        } else if self.eat("?=") {
            Some(false)
        } else {
            if self.ignore_case && self.peek() == Some('?') {
                // Oniguruma joins the letters in it to those around it, to characters as in `MULTI_FOLDS`.
                return Err("a group in a case-insensitive one in a split pattern".into());
            }
            if self.eat("?i:") {
                self.ignore_case = true;
            } else if !self.eat("?:") && self.peek() == Some('?') {
                return Err("an unsupported kind of group in a split pattern".into());
            }
            None
        };
        self.enter()?;
        let node = self.alternation()?;
        self.depth -= 1;
        self.ignore_case = was;
        if !self.eat(")") {
            return Err("an unclosed group in a split pattern".into());
        }
        match (ahead, node) {
            (None, node) => Ok(node),
            (Some(negated), Node::Class(mut set)) => {
                if negated {
                    set.negate();
                }
                Ok(Node::Ahead { set, at_end: negated })
            }
            (Some(negated), node) => Ok(Node::Lookahead { node: Box::new(node), negated }),
        }
    }

    /// Counts a group or class that opens inside the open ones.
    fn enter(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} nested groups in a split pattern"));
        }
        Ok(())
    }

    /// The characters that a literal one matches.
    fn folded(&self, c: char) -> Result<ClassUnicode, String> {
        let mut set = single(c);
        if self.ignore_case {
            let after = self.chars.get(self.at).map_or(' ', char::to_ascii_lowercase);
            if !c.is_ascii() || MULTI_FOLDS.contains(&[c.to_ascii_lowercase(), after]) {
                return Err(format!("a case-insensitive '{c}' in a split pattern"));
            }
            set.case_fold_simple();
        }
        Ok(set)
    }

    fn escape(&mut self) -> Result<ClassUnicode, String> {
        match self.next() {
            Some('r') => Ok(single('\r')),
            Some('n') => Ok(single('\n')),
            Some('t') => Ok(single('\t')),
            Some('f') => Ok(single('\x0C')),
            Some('v') => Ok(single('\x0B')),
            Some('h') => named_set("[0-9A-Fa-f]"),
            Some('H') => named_set("[^0-9A-Fa-f]"),
            Some(c @ ('s' | 'S' | 'd' | 'D')) => named_set(&format!("\\{c}")),
            Some(c @ ('p' | 'P')) => self.property(c),
            Some(c @ ('u' | 'x')) if !self.ignore_case => self.code_point(c).map(single),
            Some(c) if c.is_ascii_punctuation() || c == ' ' => Ok(single(c)),
            Some(c) => Err(format!("'\\{c}' in a split pattern")),
            None => Err("a split pattern that ends in a backslash".into()),
        }
    }

    /// The rest of `\uHHHH`, `\x{H..}` or, in ASCII, `\xHH`.
    fn code_point(&mut self, letter: char) -> Result<char, String> {
        let refused = || format!("an unsupported \\{letter} in a split pattern");
        let is_braced = letter == 'x' && self.eat("{");
        let (digits, most) = match letter {
            'x' if is_braced => {
                (self.chars[self.at..].iter().position(|&c| c == '}').ok_or_else(refused)?, 0x10_FFFF)
            }
            'x' => (2, 0x7F),
            _ => (4, 0xFFFF),
        };
        let spelled: String = self.chars[self.at..].iter().take(digits).collect();
        let is_number = spelled.len() == digits && spelled.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.at += digits + usize::from(is_braced);
        let code = u32::from_str_radix(&spelled, 16).ok().filter(|code| is_number && *code <= most);
        code.and_then(char::from_u32).ok_or_else(refused)
    }

    /// `\p{..}` or `\P{..}` of a general category or a script; others are not verified against Oniguruma.
    fn property(&mut self, letter: char) -> Result<ClassUnicode, String> {
        let refused = || format!("an unsupported \\{letter} in a split pattern");
        if !self.eat("{") {
            return Err(refused());
        }
        let close = self.chars[self.at..].iter().position(|&c| c == '}').ok_or_else(refused)?;
        let name: String = self.chars[self.at..self.at + close].iter().collect();
        self.at += close + 1;
        if !PROPERTIES.split(' ').any(|property| property == name) {
            return Err(format!("\\{letter}{{{name}}} in a split pattern"));
        }
        named_set(&format!("\\{letter}{{{name}}}"))
    }

    /// The rest of a bracket of POSIX, `[:alpha:]` or `[:^alpha:]`.
    fn posix(&mut self) -> Result<ClassUnicode, String> {
        let is_negated = self.eat("^");
        let found = POSIX.into_iter().find(|(name, _)| self.eat(&format!("{name}:]")));
        let (_, class) = found.ok_or("an unsupported nested class in a split pattern")?;
        let set = named_set(class)?;
        Ok(if is_negated { negated(set) } else { set })
    }

    /// A bracketed class, its opening bracket already read: `^` binds least tightly, then `&&`.
    fn class(&mut self) -> Result<ClassUnicode, String> {
        let negated = self.eat("^");
        let mut set = self.class_items()?;
        if self.ignore_case {
            // Punctuation has no case.
            let mut letters = set.clone();
            letters.difference(&named_set(r"\p{P}")?);
            if negated || !letters.is_ascii() || self.peek() == Some('&') {
                return Err("an unsupported case-insensitive class in a split pattern".into());
            }
        }
        while self.eat("&&") {
            set.intersect(&self.class_items()?);
        }
        if !self.eat("]") {
            return Err("an unclosed class in a split pattern".into());
        }
        if self.ignore_case {
            set.case_fold_simple();
        }
        if negated {
            set.negate();
        }
        Ok(set)
    }

    /// The content of a class, up to its end or an intersection.
    fn class_items(&mut self) -> Result<ClassUnicode, String> {
        let mut set = ClassUnicode::empty();
        let mut empty = true;
        while !matches!(&self.chars[self.at..], [']', ..] | ['&', '&', ..] | []) {
            let nested = self.peek() == Some('[');
            let low = self.class_atom()?;
            empty = false;
            let ranged = self.peek() == Some('-') && self.chars.get(self.at + 1) != Some(&']');
            if ranged && nested {
                return Err("an unsupported range in a split pattern".into());
            }
            if !ranged {
                set.union(&low);
                continue;
            }
            self.at += 1;
            if self.peek() == Some('[') {
                // To Oniguruma the class alone counts there.
                return Err("an unsupported range in a split pattern".into());
            }
            let high = self.class_atom()?;
            match (low.ranges(), high.ranges()) {
                ([low], [high])
                    if low.start() == low.end()
                        && high.start() == high.end()
                        && low.start() <= high.start() =>
                {
                    set.push(ClassUnicodeRange::new(low.start(), high.start()));
                }
                _ => return Err("an unsupported range in a split pattern".into()),
            }
        }
        if empty {
            return Err("an empty class in a split pattern".into());
        }
        Ok(set)
    }

    fn class_atom(&mut self) -> Result<ClassUnicode, String> {
        match self.next() {
            Some('\\') if self.eat("w") => Ok(word_in_class()),
            Some('\\') if self.eat("W") => Ok(negated(word_in_class())),
            Some('\\') => self.escape(),
            Some('[') if self.ignore_case => Err("an unsupported nested class in a split pattern".into()),
            Some('[') if self.eat(":") => self.posix(),
            Some('[') => {
                self.enter()?;
                let set = self.class()?;
                self.depth -= 1;
                Ok(set)
            }
            Some('&') if self.peek() == Some('&') => Err("'&&' in a split pattern".into()),
            Some(c) => Ok(single(c)),
            None => Err("an unclosed class in a split pattern".into()),
        }
    }
}

/// Whether some nodes end as in `(?:\r?\n)+(?!\r?\n)`: after as many repetitions as there are, another one does not follow.
fn is_never_followed(nodes: &[Node]) -> bool {
    match nodes {
        [.., Node::Repeat { node, max: None, .. }, Node::Lookahead { node: other, negated: true }] => {
            node == other
        }
        _ => false,
    }
}

fn repeated(node: Node, min: u32, max: Option<u32>) -> Result<Node, String> {
    // With bounds, nested repetitions of the empty string would take 64^n steps to compile to nothing.
    if max.is_none_or(|max| max > 1) && node.may_be_empty() {
        return Err("a repetition of a possibly empty match in a split pattern".into());
    }
    Ok(Node::Repeat { node: Box::new(node), min, max })
}
