//! The character classes against the reference's regex engine, for every code point.

use tokenizers::utils::SysRegex;
use unicode_categories::UnicodeCategories;

use crate::encode::split::parser::{PROPERTIES, parse};
use crate::encode::split::pattern::{Node, named_set, set_where};
use crate::encode::split::recognise::punctuation;
use crate::encode::split::right_groups::word;

/// Every Unicode scalar value in order.
fn every_character() -> String {
    ('\0'..=char::MAX).collect()
}

#[test]
fn every_code_point_has_the_reference_class() {
    let text = every_character();
    let properties =
        PROPERTIES.split(' ').flat_map(|name| [format!(r"\p{{{name}}}"), format!(r"\P{{{name}}}")]);
    for class in [r"\s", r"\S", r"\d", r"\D"].map(str::to_owned).into_iter().chain(properties) {
        let expected: String =
            SysRegex::new(&class).unwrap().find_iter(&text).map(|(start, end)| &text[start..end]).collect();
        let set = named_set(&class).unwrap();
        let own: String = set.ranges().iter().flat_map(|range| range.start()..=range.end()).collect();
        assert!(own == expected, "{class} differs from the reference's");
    }
}

#[test]
fn every_letter_folds_as_in_the_reference() {
    let text = every_character();
    for letter in 'a'..='z' {
        let pattern = format!("(?i:{letter})");
        let expected: String =
            SysRegex::new(&pattern).unwrap().find_iter(&text).map(|(start, end)| &text[start..end]).collect();
        let Node::Class(set) = parse(&pattern).unwrap() else { panic!("{pattern} is one class") };
        let own: String = set.ranges().iter().flat_map(|range| range.start()..=range.end()).collect();
        assert_eq!(own, expected, "{pattern}");
    }
}

#[test]
fn words_consist_of_the_reference_s_characters() {
    // What a word that begins with 1 goes on with: 1 is found where it does not end.
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
