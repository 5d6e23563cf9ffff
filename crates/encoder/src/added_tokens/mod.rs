//! Added tokens: found in the text before anything else, as the reference finds them.
//!
//! There are two rounds. Tokens that are not `normalized` are searched for in the raw text; those that are, by their
//! normalized spelling in each stretch that the first round leaves, once that is normalized. In both, the leftmost
//! match counts, of several the longest, and the search continues after it even when a flag then discards the match.

mod prefilter;
mod search;

use std::ops::Range;

use ahash::{AHashMap, AHashSet};

use crate::layout::MAX_IDS;
use crate::simd::Simd;
use crate::tokenizer_json::AddedTokenEntry;
use crate::vocab::MARKER_TEXT;
use crate::vocab::{Ids, Vocab};
use search::Search;

/// The added tokens of a file.
pub struct AddedTokens {
    ids: AHashMap<String, u32>,
    spellings: AHashMap<u32, String>,
    /// The ids of those that are special.
    special: AHashSet<u32>,
    /// Added tokens to search for in raw text, and added tokens to search for in normalized text.
    pub raw: Matcher,
    pub normalized: Matcher,
    /// How many tokens there are, those of the vocabulary included.
    pub all: usize,
}

/// Finds some of the tokens in text.
pub struct Matcher {
    /// None when there is nothing to find.
    search: Option<Search>,
    tokens: Vec<Flags>,
    /// Whether the text has spaces in place of the marker U+2581, which is not whitespace.
    spaces_are_markers: bool,
}

#[allow(clippy::struct_excessive_bools)] // the flags of the file format
struct Flags {
    id: u32,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    /// Marks structure.
    special: bool,
    /// Special, but treated as plain text.
    skipped: bool,
}

/// How far a text is cut.
#[derive(Default)]
struct Cut {
    done: usize,
    /// Where the space behind the last token that has stripped some ends: of a long run of it, the next token may be the
    /// next character, and would read the rest of the run again.
    stripped: usize,
}

/// The stretches that a text consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    /// Text without tokens, and its offset.
    Text(&'a str, usize),
    Token(u32),
}

/// How the tokens' spellings are derived and searched for.
pub struct Rules<'a> {
    pub normalize: &'a dyn Fn(&str) -> Result<String, String>,
    pub simd: Simd,
    /// Whether normalized text has spaces in place of markers.
    pub spaces_are_markers: bool,
    /// Whether special tokens are left in the text as plain text.
    pub special_as_text: bool,
}

impl AddedTokens {
    /// Gives each token its id by the reference's rule: the one it has in the vocabulary, else the next one from the
    /// vocabulary's size on. An error when the reference might refuse the file.
    pub fn new(
        entries: Vec<AddedTokenEntry>,
        vocab: &Vocab,
        known: &Ids,
        rules: &Rules,
    ) -> Result<Self, String> {
        let mut ids: AHashMap<String, u32> = AHashMap::new();
        // With what is searched for.
        let mut by_id: AHashMap<u32, (String, AddedTokenEntry)> = AHashMap::new();
        let mut special = AHashSet::new();
        let mut spellings = AHashMap::new();
        let mut next_id = vocab.len() as u32;
        for entry in entries.into_iter().filter(|entry| !entry.content.is_empty()) {
            let known = ids.get(&entry.content).or_else(|| known.get(&*entry.content)).copied();
            let id = known.unwrap_or_else(|| {
                next_id += 1;
                next_id - 1
            });
            if known.is_none() && entry.normalized && vocab.token(id).is_some() {
                // The reference may search for this one's spelling under that one's flags.
                return Err("one of its added tokens has the id of another token".into());
            }
            ids.insert(entry.content.clone(), id);
            if entry.special {
                special.insert(entry.content.clone());
            }
            let mut spelling = entry.content.clone();
            if entry.normalized {
                spelling = (rules.normalize)(&entry.content)?;
                let marked = rules.spaces_are_markers.then(|| spelling.replace(' ', MARKER_TEXT));
                let marked = marked.as_ref().unwrap_or(&spelling);
                if *marked != entry.content {
                    spellings.insert(id, marked.clone());
                }
            }
            by_id.insert(id, (spelling, entry));
        }
        if next_id > MAX_IDS {
            return Err(format!("its highest id is {}, expected one below {MAX_IDS}", next_id - 1));
        }
        let matcher = |normalized: bool| {
            let tokens = by_id.iter().filter(|(_, (_, entry))| entry.normalized == normalized);
            let (spelled, flags): (Vec<String>, Vec<Flags>) = tokens
                .map(|(id, (spelling, entry))| {
                    let skipped = rules.special_as_text && special.contains(&entry.content);
                    (spelling.clone(), Flags::new(*id, entry, skipped))
                })
                .unzip();
            Matcher::new(&spelled, flags, normalized && rules.spaces_are_markers, rules.simd)
        };
        let (raw, normalized) = (matcher(false)?, matcher(true)?);
        let special = by_id.iter().filter(|(_, (_, entry))| entry.special).map(|(id, _)| *id).collect();
        for (id, (_, entry)) in by_id {
            spellings.entry(id).or_insert(entry.content);
        }
        Ok(Self { ids, spellings, special, raw, normalized, all: next_id as usize })
    }

    pub fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    pub fn largest_id(&self) -> Option<u32> {
        self.ids.values().copied().max()
    }

    /// The spelling of an added token: the normalized one if it has one.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.spellings.get(&id).map(String::as_str)
    }

    /// Whether a token is special.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// Whether a token removes space around it.
    pub fn strip_space(&self) -> bool {
        let mut tokens = self.raw.tokens.iter().chain(&self.normalized.tokens);
        tokens.any(|token| token.lstrip || token.rstrip)
    }

    pub fn bytes(&self) -> usize {
        let spelled: usize = self.ids.keys().chain(self.spellings.values()).map(String::len).sum();
        let entries = (self.ids.len() + self.spellings.len()) * size_of::<(String, u32)>();
        self.raw.bytes() + self.normalized.bytes() + spelled + entries
    }
}

impl Flags {
    fn new(id: u32, entry: &AddedTokenEntry, skipped: bool) -> Self {
        let AddedTokenEntry { single_word, lstrip, rstrip, special, .. } = *entry;
        Self { id, single_word, lstrip, rstrip, special, skipped }
    }
}

impl Matcher {
    fn new(
        spellings: &[String],
        tokens: Vec<Flags>,
        spaces_are_markers: bool,
        simd: Simd,
    ) -> Result<Self, String> {
        let distinct: AHashSet<&String> = spellings.iter().collect();
        if distinct.len() < spellings.len() || spellings.iter().any(String::is_empty) {
            return Err("two of its added tokens have the same spelling, or one is empty".into());
        }
        let matcher = Self { search: None, tokens, spaces_are_markers };
        // A token of white space with `lstrip`, found inside the white space that a token with `rstrip` has consumed,
        // would end before it starts. The reference panics there.
        let is_space = |spelling: &String| spelling.chars().all(|c| matcher.is_space(c));
        let mut pairs = spellings.iter().zip(&matcher.tokens);
        let strips_back = pairs.any(|(spelling, token)| token.lstrip && !token.rstrip && is_space(spelling));
        if strips_back && matcher.tokens.iter().any(|token| token.rstrip) {
            return Err("one of its added tokens strips space in which another one is found".into());
        }
        let search = if spellings.is_empty() {
            None
        } else {
            let search = Search::new(spellings, simd);
            Some(search.map_err(|error| format!("its added tokens cannot be searched: {error}"))?)
        };
        Ok(Self { search, ..matcher })
    }

    pub fn is_empty(&self) -> bool {
        self.search.is_none()
    }

    /// Visits the parts of a text in order. They cover it, except for what tokens strip. If a token begins in the space
    /// that the one before it stripped, the next part begins at its own end, so that text may be visited twice, and a
    /// token of which nothing is left is dropped. The reference does the same.
    pub fn split<'a>(&self, text: &'a str, mut visit: impl FnMut(Found<'a>)) {
        let Some(search) = &self.search else {
            if !text.is_empty() {
                visit(Found::Text(text, 0));
            }
            return;
        };
        let mut cut = Cut::default();
        search.for_each(text, |number, position| self.cut(&mut cut, text, number, &position, &mut visit));
        if cut.done != text.len() {
            visit(Found::Text(&text[cut.done..], cut.done));
        }
    }

    /// Like [`split`](Self::split), but no special token and none of `guarded` is found that overlaps one of the ranges
    /// `data`, which are in order and do not touch. Such a match is text, and the search continues after its first byte;
    /// unless a token begins there, too, that ends before the data.
    pub fn split_around<'a>(
        &self,
        text: &'a str,
        data: &[Range<usize>],
        guarded: &AHashSet<u32>,
        mut visit: impl FnMut(Found<'a>),
    ) {
        let mut cut = Cut::default();
        self.find_around(text, data, guarded, |number, position, _| {
            self.cut(&mut cut, text, number, position, &mut visit);
        });
        if cut.done != text.len() {
            visit(Found::Text(&text[cut.done..], cut.done));
        }
    }

    /// Adds the tokens that a text has outside of the ranges `data` to those that are guarded. White space is none that
    /// marks anything.
    pub fn guard_written(&self, text: &str, data: &[Range<usize>], guarded: &mut AHashSet<u32>) {
        let mut written = Vec::new();
        self.find_around(text, data, guarded, |number, position, is_outside| {
            if is_outside && !text[position.clone()].trim().is_empty() {
                written.push(self.tokens[number].id);
            }
        });
        guarded.extend(written);
    }

    /// Whether one of the tokens is among those that are searched for.
    pub fn has_any(&self, ids: &AHashSet<u32>) -> bool {
        self.tokens.iter().any(|token| ids.contains(&token.id))
    }

    /// The matches of [`split_around`](Self::split_around): the token's number, its position, and whether no data overlaps
    /// it.
    fn find_around(
        &self,
        text: &str,
        mut data: &[Range<usize>],
        guarded: &AHashSet<u32>,
        mut found: impl FnMut(usize, &Range<usize>, bool),
    ) {
        let Some(search) = &self.search else { return };
        let mut from = 0;
        while let Some((number, position)) = search.first(text, from) {
            while data.first().is_some_and(|range| range.end <= position.start) {
                data = &data[1..];
            }
            let overlapped = data.first().filter(|range| range.start < position.end);
            let token = &self.tokens[number];
            let own = match overlapped {
                Some(range) if token.special || guarded.contains(&token.id) => search
                    .first(&text[..range.start], position.start)
                    .filter(|(_, own)| own.start == position.start)
                    .map(|(number, own)| (number, own, true)),
                _ => Some((number, position.clone(), overlapped.is_none())),
            };
            let Some((number, own, is_outside)) = own else {
                from = position.start + 1;
                continue;
            };
            from = own.end;
            found(number, &own, is_outside);
        }
    }

    /// Visits the token that was found at a position, and the text before it.
    #[inline(always)]
    fn cut<'a>(
        &self,
        cut: &mut Cut,
        text: &'a str,
        number: usize,
        position: &Range<usize>,
        visit: &mut impl FnMut(Found<'a>),
    ) {
        let token = &self.tokens[number];
        let (before, after) = (&text[..position.start], &text[position.end..]);
        if token.skipped || token.single_word && !stands_alone(before, after) {
            return;
        }
        let start = if token.lstrip { self.trimmed_end(before, cut.done) } else { position.start };
        if token.rstrip && cut.stripped < position.end {
            cut.stripped = position.end + self.space_at_start(after);
        }
        let end = if token.rstrip { cut.stripped } else { position.end };
        if cut.done < start {
            visit(Found::Text(&text[cut.done..start], cut.done));
        }
        if start < end {
            visit(Found::Token(token.id));
        }
        cut.done = end;
    }

    /// Whether a special token is among those that are searched for.
    pub fn has_special(&self) -> bool {
        self.tokens.iter().any(|token| token.special)
    }

    /// Where the space at the end of a text begins, or `least` if that is behind it.
    fn trimmed_end(&self, text: &str, least: usize) -> usize {
        let rest = text.get(least..).unwrap_or_default();
        least + rest.trim_end_matches(|c| self.is_space(c)).len()
    }

    fn space_at_start(&self, text: &str) -> usize {
        text.len() - text.trim_start_matches(|c| self.is_space(c)).len()
    }

    fn is_space(&self, c: char) -> bool {
        c.is_whitespace() && !(self.spaces_are_markers && c == ' ')
    }

    fn bytes(&self) -> usize {
        self.search.as_ref().map_or(0, Search::bytes)
    }
}

/// Whether there is no word character on either side.
fn stands_alone(before: &str, after: &str) -> bool {
    let is_word = |c: Option<char>| {
        c.is_some_and(|c| regex_syntax::try_is_word_character(c).unwrap_or(c.is_alphanumeric()))
    };
    !is_word(before.chars().next_back()) && !is_word(after.chars().next())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    /// A matcher of tokens, each with the mark whether it is special.
    fn matcher(tokens: &[(String, bool)]) -> Matcher {
        let flags = (0..).zip(tokens).map(|(id, (_, special))| {
            let (single_word, lstrip, rstrip, special) = (false, false, false, *special);
            Flags { id, single_word, lstrip, rstrip, special, skipped: false }
        });
        let spellings: Vec<_> = tokens.iter().map(|(token, _)| token.clone()).collect();
        Matcher::new(&spellings, flags.collect(), false, Simd::detect()).unwrap()
    }

    /// The tokens and their positions, by their definition.
    fn expected(tokens: &[(String, bool)], text: &str, data: &[Range<usize>]) -> Vec<(u32, usize)> {
        let longest = |at: usize, end: usize| {
            let begins = (0..).zip(tokens).filter(|(_, (token, _))| text[at..end].starts_with(&**token));
            begins.max_by_key(|(_, (token, _))| token.len())
        };
        let (mut found, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let is_data = |end: usize| data.iter().any(|range| range.start < end && at < range.end);
            let next_data =
                data.iter().map(|range| range.start).find(|start| at <= *start).unwrap_or(text.len());
            let token = longest(at, text.len())
                .filter(|(_, (token, special))| !special || !is_data(at + token.len()));
            let own = if is_data(at + 1) { None } else { longest(at, next_data) };
            match token.or(own.filter(|_| longest(at, text.len()).is_some())) {
                Some((id, (token, _))) => {
                    found.push((id, at));
                    at += token.len();
                }
                None => at += 1,
            }
        }
        found
    }

    proptest! {
        /// Special tokens are found outside of data only, and there all that a search of the template's text alone finds.
        #[test]
        fn special_tokens_are_found_around_data(
            tokens in prop::collection::btree_map("[<a>]{1,4}", any::<bool>(), 1..6),
            guards in prop::collection::vec(any::<bool>(), 6),
            text in "[<a>]{0,40}",
            cuts in prop::collection::vec(any::<Index>(), 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.sort_unstable();
            cuts.dedup();
            let data: Vec<Range<usize>> = cuts.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
            let (mut found, mut at) = (Vec::new(), 0);
            let guarded: AHashSet<u32> = (0..).zip(&guards).filter(|(_, is_guarded)| **is_guarded).map(|(id, _)| id).collect();
            let tokens: Vec<(String, bool)> = tokens
                .into_iter()
                .zip(0..)
                .map(|((token, special), id)| (token, special && !guarded.contains(&id)))
                .collect();
            matcher(&tokens).split_around(&text, &data, &guarded, |part| match part {
                Found::Text(stretch, offset) => {
                    assert_eq!((offset, &text[offset..offset + stretch.len()]), (at, stretch));
                    at += stretch.len();
                }
                Found::Token(id) => {
                    found.push((id, at));
                    at += tokens[id as usize].0.len();
                }
            });
            // A guarded token is found as a special one is.
            let tokens: Vec<(String, bool)> = tokens
                .into_iter()
                .zip(0..)
                .map(|((token, special), id)| (token, special || guarded.contains(&id)))
                .collect();
            prop_assert_eq!(at, text.len());
            prop_assert_eq!(&found, &expected(&tokens, &text, &data));
            for (id, at) in found {
                let (token, special) = &tokens[id as usize];
                let overlaps = data.iter().any(|range| range.start < at + token.len() && at < range.end);
                prop_assert!(!(*special && overlaps));
            }
        }

        #[test]
        fn without_data_all_tokens_are_found(
            tokens in prop::collection::btree_map("[<a>]{1,4}", any::<bool>(), 1..6),
            text in "[<a>]{0,40}",
        ) {
            let matcher = matcher(&tokens.into_iter().collect::<Vec<_>>());
            let (mut around, mut all) = (Vec::new(), Vec::new());
            matcher.split_around(&text, &[], &AHashSet::new(), |part| around.push(part));
            matcher.split(&text, |part| all.push(part));
            prop_assert_eq!(around, all);
        }
    }

    #[test]
    fn ids_of_added_tokens_have_as_many_bits_as_others() {
        let tokens: Vec<String> = (0..MAX_IDS - 1).map(|id| id.to_string()).collect();
        let entries: Vec<_> = (0..).zip(&tokens).map(|(id, token)| (token.as_str().into(), id)).collect();
        let (vocab, ids) = Vocab::new(&entries).unwrap();
        let rules = Rules {
            normalize: &|text| Ok(text.to_owned()),
            simd: Simd::Scalar,
            spaces_are_markers: false,
            special_as_text: false,
        };
        let add = |contents: &[&str]| {
            let entry = |content: &&str| AddedTokenEntry::plain(content);
            let entries = contents.iter().map(entry).collect();
            AddedTokens::new(entries, &vocab, &ids, &rules).map(|added| added.largest_id())
        };
        assert_eq!(add(&["7", "a"]), Ok(Some(MAX_IDS - 1)));
        assert_eq!(add(&["a", "b"]), Err("its highest id is 1048576, expected one below 1048576".into()));
    }
}
