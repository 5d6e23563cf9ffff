//! The character classes against the reference's regex engine, for every code point.

use tokenizers::utils::SysRegex;
use unicode_categories::UnicodeCategories;

use crate::pretokenize::patterns::parse_pretokenizer::punctuation;
use crate::pretokenize::patterns::regex::parser::{POSIX, PROPERTIES, parse};
use crate::pretokenize::patterns::regex::{Node, set_where, word};

/// Every Unicode scalar value in order.
fn every_character() -> String {
    ('\0'..=char::MAX).collect()
}

/// The matches that the reference finds of a pattern in every character, and the characters of the class that is made
/// of it.
fn both(pattern: &str, text: &str) -> (String, String) {
    let found = SysRegex::new(pattern).unwrap();
    let Node::Class(set) = parse(pattern).unwrap() else { panic!("{pattern} is one class") };
    let own = set.ranges().iter().flat_map(|range| range.start()..=range.end()).collect();
    (found.find_iter(text).map(|(start, end)| &text[start..end]).collect(), own)
}

#[test]
fn every_code_point_has_the_reference_class() {
    let text = every_character();
    let properties =
        PROPERTIES.split(' ').flat_map(|name| [format!(r"\p{{{name}}}"), format!(r"\P{{{name}}}")]);
    let posix = POSIX.iter().flat_map(|(name, _)| [format!("[[:{name}:]]"), format!("[x[:^{name}:]]")]);
    let others = r". \s \S \d \D \w \W [\w] [^\w] [\W] [^\W.] [\w&&[^x]] [[\w]一] \h \H [\h] [^\H] \f \v [\f\v] (?i:\w)";
    for class in others.split(' ').map(str::to_owned).chain(properties).chain(posix) {
        let (expected, own) = both(&class, &text);
        assert!(own == expected, "{class} differs from the reference's");
    }
}

#[test]
fn every_letter_folds_as_in_the_reference() {
    let text = every_character();
    for letter in 'a'..='z' {
        let pattern = format!("(?i:{letter})");
        let (expected, own) = both(&pattern, &text);
        assert_eq!(own, expected, "{pattern}");
    }
}

#[test]
fn character_classes_equal_those_of_the_reference() {
    // Characters that continue a word that begins with 1: it is found where it does not end.
    let text: String = ('\0'..=char::MAX).flat_map(|c| ['1', c, '\n']).collect();
    let going_on = SysRegex::new(r"1(?!\b)").unwrap();
    let found = going_on.find_iter(&text);
    let expected: String = found.filter_map(|(_, end)| text[end..].chars().next()).collect();
    let own: String = word().ranges().iter().flat_map(|range| range.start()..=range.end()).collect();
    assert_eq!(own, expected);
}

#[test]
fn punctuation_is_that_of_the_reference() {
    // The crate that the reference uses, which follows Unicode 8.
    let expected = set_where(|c| c.is_ascii_punctuation() || c.is_punctuation());
    assert_eq!(punctuation(), expected);
}
