//! Faults of a line, and their messages.

/// A fault of a line, and its byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub(super) at: usize,
    pub(super) kind: Kind,
}

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Not UTF-8.
    Utf8,
    /// Not an object.
    NotAnObject,
    /// Not JSON: this was expected.
    Expected(&'static str),
    /// The object lacks the wanted key.
    NoSuchKey,
    /// The wanted key's value is not a string.
    NotText,
    /// The wanted string has an unpaired surrogate.
    LoneSurrogate,
}

/// A byte order mark in UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";
const OBJECT: &str = "a JSON object ('{')";
/// Bytes of the line shown around a fault.
const EXCERPT_BYTES: usize = 24;
/// Keys shown of a record that lacks the wanted one, and characters shown of each.
const KEYS_SHOWN: usize = 8;
const KEY_CHARS: usize = 32;

impl Fault {
    /// The fault of a line that is not UTF-8.
    pub(super) fn utf8(line: &[u8]) -> Self {
        let at = simdutf8::compat::from_utf8(line).map_or_else(|error| error.valid_up_to(), |_| 0);
        Self { at, kind: Kind::Utf8 }
    }

    /// The fault of an unpaired surrogate.
    pub(crate) fn lone_surrogate(at: usize) -> Self {
        Self { at, kind: Kind::LoneSurrogate }
    }

    /// The message about a text that is one value.
    pub(crate) fn in_text(&self) -> String {
        let at = self.at;
        match self.kind {
            Kind::NotAnObject => format!("expected {OBJECT} at byte {at} of the JSON"),
            Kind::Expected(what) => format!("expected {what} at byte {at} of the JSON"),
            Kind::LoneSurrogate => {
                format!("half of a surrogate pair, which no tokenizer can encode, at byte {at} of the JSON")
            }
            Kind::Utf8 => format!("not UTF-8 at byte {at}"),
            Kind::NoSuchKey | Kind::NotText => "not a text".to_owned(),
        }
    }

    /// The message: expected, found, where, and what to do. `skipped` bytes precede `line` in the shard's line;
    /// `key` is the wanted one.
    pub fn describe(&self, line: &[u8], skipped: usize, key: &str) -> String {
        let at = self.at + skipped;
        let (before, rest) = line.split_at_checked(self.at).unwrap_or((line, b""));
        let expected = |what, advice| {
            let (found, excerpt) = (found(rest), excerpt(line, self.at));
            format!("expected {what}, found {found} at byte {at} of the line{excerpt}{advice}")
        };
        match self.kind {
            Kind::Utf8 => format!(
                "expected UTF-8, found byte 0x{:02x} at byte {at} of the line{}",
                rest.first().copied().unwrap_or_default(),
                excerpt(line, self.at)
            ),
            Kind::NotAnObject => expected(OBJECT, no_object_advice(rest)),
            Kind::Expected(what) => expected(what, advice(before, rest)),
            Kind::NoSuchKey => format!(
                "expected the key {key:?}, found an object {}; name the key that holds the text with text_field=",
                keys(line)
            ),
            Kind::NotText => format!(
                "expected a string under the key {key:?}, found {} at byte {at} of the line{}",
                value_kind(rest),
                excerpt(line, self.at)
            ),
            Kind::LoneSurrogate => format!(
                "expected text under the key {key:?}, found the lone surrogate {} at byte {at} of the line, which \
                 is not a character and cannot be encoded in UTF-8{}",
                String::from_utf8_lossy(rest.get(..6).unwrap_or_default()),
                excerpt(line, self.at)
            ),
        }
    }
}

/// Describes the start of `rest` for a person.
fn found(rest: &[u8]) -> String {
    if let Some(word) = ["NaN", "Infinity"].iter().find(|word| rest.starts_with(word.as_bytes())) {
        return format!("{word}, which is not JSON,");
    }
    let char =
        match rest[..rest.len().min(4)].utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next()) {
            Some(char) => char,
            None if rest.is_empty() => return "the end of the line".to_owned(),
            None => return format!("byte 0x{:02x}", rest[0]),
        };
    match char {
        '\u{feff}' => "a byte order mark (U+FEFF), which is allowed only at the start of a shard,".to_owned(),
        '\'' => "\"'\"".to_owned(),
        ' '..='~' => format!("'{char}'"),
        '\0'..='\u{7f}' => format!("byte 0x{:02x}", u32::from(char)),
        _ => format!("'{}' (U+{:04X})", char.escape_debug(), u32::from(char)),
    }
}

/// Advice if a line, which begins with no object but with `rest`, shows that the file is JSON or a table but not JSON lines.
fn no_object_advice(rest: &[u8]) -> &'static str {
    match rest {
        [b'[', ..] => ARRAY,
        [b'!'..=b'~' | 0xc2.., ..]
            if !rest.starts_with(MARK) && rest.iter().any(|byte| b",\t".contains(byte)) =>
        {
            "; if the file is CSV or TSV, convert it to Parquet"
        }
        _ => "",
    }
}

/// The same of a line with a fault between `before` and `rest`.
fn advice(before: &[u8], rest: &[u8]) -> &'static str {
    match (before.trim_ascii(), rest.trim_ascii()) {
        ([.., b'}'], b",") => ARRAY,
        ([.., b'}'], [b'{', ..]) => {
            "; if lines hold several objects, convert the file to one object per line with jq -c ."
        }
        (b"{", b"") => "; if objects span lines, convert the file to one object per line with jq -c .",
        _ => "",
    }
}

const ARRAY: &str = "; if the file is one JSON array, convert it to one object per line with jq -c '.[]'";

fn value_kind(rest: &[u8]) -> &'static str {
    match rest.first() {
        Some(b'n') => "null",
        Some(b't') => "true",
        Some(b'f') => "false",
        Some(b'[') => "an array",
        Some(b'{') => "an object",
        _ => "a number",
    }
}

/// An excerpt of the line around byte `at`, printable and short.
fn excerpt(line: &[u8], at: usize) -> String {
    let at = at.min(line.len());
    let from = at.saturating_sub(EXCERPT_BYTES / 2);
    let to = line.len().min(from + EXCERPT_BYTES);
    let before = if from > 0 { "…" } else { "" };
    let after = if to < line.len() { "…" } else { "" };
    format!(": {before}{}{after}", printable(&line[from..to]))
}

/// Bytes as text: everything but printable ASCII is escaped, so that a message is one line on any terminal.
fn printable(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|&byte| match byte {
            b' '..=b'~' => char::from(byte).to_string(),
            _ => format!("\\x{byte:02x}"),
        })
        .collect()
}

/// The keys of the object that a line holds, for messages.
pub fn keys(line: &[u8]) -> String {
    let mut shown = Vec::new();
    let mut more = 0;
    super::for_each_key(line, |key| {
        if shown.len() < KEYS_SHOWN {
            shown.push(shortened(key));
        } else {
            more += 1;
        }
    });
    match more {
        _ if shown.is_empty() => "without keys".to_owned(),
        0 => format!("with the keys {}", shown.join(", ")),
        _ => format!("with the keys {} and {more} more", shown.join(", ")),
    }
}

fn shortened(key: &str) -> String {
    let short: String = key.chars().take(KEY_CHARS).collect();
    let ellipsis = if short.len() < key.len() { "…" } else { "" };
    // As the line spells it, but invisible characters are escaped.
    let seen = short.chars().map(|char| match char {
        '\\' | '"' | '\'' => char.to_string(),
        _ => char.escape_debug().to_string(),
    });
    format!("\"{}{ellipsis}\"", seen.collect::<String>())
}
