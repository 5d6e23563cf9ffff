//! Python's notion of white space, of titles and of printable characters, where it is not Rust's.

mod tables;

/// `str.isspace()` of one character: white space of Unicode and the four separators U+001C to U+001F.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Whether `repr()` shows a character as it is.
pub(crate) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    let code = c as u32;
    let after = tables::UNPRINTABLE.partition_point(|&(first, _)| first <= code);
    after == 0 || tables::UNPRINTABLE[after - 1].1 < code
}

/// Appends the title case of a character: upper case, except for those that have a form of their own.
pub(crate) fn push_title(c: char, out: &mut String) {
    if c.is_ascii() {
        out.push(c.to_ascii_uppercase());
        return;
    }
    match tables::TITLES.binary_search_by_key(&c, |&(from, _)| from) {
        Ok(at) => out.push_str(tables::TITLES[at].1),
        Err(_) => out.extend(c.to_uppercase()),
    }
}

/// Whether a character has case in the sense of `str.title()`: it is lower, upper or title case.
pub(crate) fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title(c)
}

/// The characters of category Lt.
pub(crate) fn is_title(c: char) -> bool {
    matches!(c, '\u{1c5}' | '\u{1c8}' | '\u{1cb}' | '\u{1f2}' | '\u{1f88}'..='\u{1f8f}' | '\u{1f98}'..='\u{1f9f}'
        | '\u{1fa8}'..='\u{1faf}' | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}')
}

/// How many characters a text has.
pub(crate) fn length(text: &str) -> usize {
    text.chars().count()
}
