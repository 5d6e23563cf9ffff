//! Searches text for spellings: the leftmost match, of several the longest, and on behind it.

use std::ops::Range;

use aho_corasick::automaton::Automaton;
use aho_corasick::{
    AhoCorasick, AhoCorasickKind, Anchored, BuildError, Input, MatchKind, StartKind, dfa, nfa,
};

use super::prefilter::Prefilter;
use crate::simd::Simd;

/// Bytes of all spellings that a DFA may be made for.
const LARGE: usize = 16 << 10;

/// The longest spelling that is looked for wherever it may begin.
const LONGEST: usize = 128;

#[allow(clippy::large_enum_variant)] // a tokenizer has two
pub enum Search {
    /// Where a spelling may begin, and which one does.
    Places(Prefilter, Longest),
    /// If a spelling is so long that to begin anew at each byte could take long, an automaton reads all.
    All(AhoCorasick),
}

/// Finds the longest spelling that a text begins with.
pub struct Longest {
    /// By their first byte, those that an automaton would take several times as long for.
    runs: [Option<Box<Runs>>; 256],
    others: Others,
}

/// Any spellings.
enum Others {
    Dfa(dfa::DFA),
    Nfa(nfa::contiguous::NFA),
}

/// Spellings that are runs of one byte, like the indentations of GPT-NeoX: for each length of a run, up to that of the
/// longest, the longest in it.
#[derive(Default)]
struct Runs(Vec<Option<Spelling>>);

/// A spelling that was found: its number, and its length.
type Spelling = (usize, usize);

impl Search {
    /// For spellings that are not empty.
    pub fn new(spellings: &[String], simd: Simd) -> Result<Self, BuildError> {
        let match_kind = MatchKind::LeftmostLongest;
        // A DFA of many long spellings would take a kilobyte for each byte.
        let is_large = spellings.iter().map(String::len).sum::<usize>() > LARGE;
        if spellings.iter().any(|spelling| spelling.len() > LONGEST) {
            let kind = is_large.then_some(AhoCorasickKind::ContiguousNFA);
            return Ok(Self::All(AhoCorasick::builder().match_kind(match_kind).kind(kind).build(spellings)?));
        }
        let trie = nfa::noncontiguous::Builder::new().match_kind(match_kind).build(spellings)?;
        let others = if is_large {
            Others::Nfa(nfa::contiguous::Builder::new().build_from_noncontiguous(&trie)?)
        } else {
            let mut builder = dfa::Builder::new();
            Others::Dfa(builder.start_kind(StartKind::Anchored).build_from_noncontiguous(&trie)?)
        };
        let longest = Longest { runs: Runs::by_first_byte(spellings), others };
        Ok(Self::Places(Prefilter::new(spellings, simd), longest))
    }

    /// Visits the matches, each with the number of its spelling.
    pub fn for_each(&self, text: &str, mut visit: impl FnMut(usize, Range<usize>)) {
        let (prefilter, longest) = match self {
            Self::Places(prefilter, longest) => (prefilter, longest),
            Self::All(automaton) => {
                return automaton
                    .find_iter(text)
                    .for_each(|found| visit(found.pattern().as_usize(), found.range()));
            }
        };
        let mut positions = prefilter.positions(text.as_bytes());
        let mut from = 0;
        while let Some(position) = positions.first_from(from) {
            from = position + 1;
            if let Some((number, len)) = longest.find(&text.as_bytes()[position..]) {
                from = position + len;
                visit(number, position..from);
            }
        }
    }

    /// The first match that begins at the byte `from` or later.
    pub fn first(&self, text: &str, from: usize) -> Option<(usize, Range<usize>)> {
        let (prefilter, longest) = match self {
            Self::Places(prefilter, longest) => (prefilter, longest),
            Self::All(automaton) => {
                let found = automaton.find(Input::new(text).range(from..))?;
                return Some((found.pattern().as_usize(), found.range()));
            }
        };
        let mut positions = prefilter.positions(text.as_bytes());
        let mut from = from;
        loop {
            let position = positions.first_from(from)?;
            if let Some((number, len)) = longest.find(&text.as_bytes()[position..]) {
                return Some((number, position..position + len));
            }
            from = position + 1;
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Self::Places(_, longest) => size_of::<Prefilter>() + longest.bytes(),
            Self::All(automaton) => automaton.memory_usage(),
        }
    }
}

impl Longest {
    fn find(&self, text: &[u8]) -> Option<Spelling> {
        match (&self.runs[usize::from(text[0])], &self.others) {
            (Some(runs), _) => runs.find(text),
            (None, Others::Dfa(automaton)) => find_at_start(automaton, text),
            (None, Others::Nfa(automaton)) => find_at_start(automaton, text),
        }
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.others {
                Others::Dfa(automaton) => automaton.memory_usage(),
                Others::Nfa(automaton) => automaton.memory_usage(),
            }
    }
}

impl Runs {
    /// The runs of each byte, if all spellings that begin with it are runs of it.
    fn by_first_byte(spellings: &[String]) -> [Option<Box<Self>>; 256] {
        let mut runs = [const { None::<Box<Self>> }; 256];
        let mut has_others = [false; 256];
        for (number, spelling) in spellings.iter().enumerate() {
            let first = usize::from(spelling.as_bytes()[0]);
            if spelling.bytes().all(|byte| usize::from(byte) == first) {
                let Self(longest) = &mut **runs[first].get_or_insert_default();
                longest.resize(longest.len().max(spelling.len() + 1), None);
                longest[spelling.len()] = Some((number, spelling.len()));
            } else {
                has_others[first] = true;
            }
        }
        for (runs, has_others) in runs.iter_mut().zip(has_others) {
            match runs {
                Some(_) if has_others => *runs = None,
                Some(runs) => runs.fill_up(),
                None => {}
            }
        }
        runs
    }

    /// Where no spelling is as long as a run, a shorter one is the longest in it.
    fn fill_up(&mut self) {
        for len in 1..self.0.len() {
            self.0[len] = self.0[len].or(self.0[len - 1]);
        }
    }

    fn find(&self, text: &[u8]) -> Option<Spelling> {
        let most = text.len().min(self.0.len() - 1);
        let len = text[..most].iter().position(|byte| *byte != text[0]);
        self.0[len.unwrap_or(most)]
    }
}

/// The spelling that [`Longest::find`] finds. The crate's own search takes several times as long over a few bytes.
#[inline(always)]
fn find_at_start(automaton: &impl Automaton, text: &[u8]) -> Option<Spelling> {
    let mut state = automaton.start_state(Anchored::Yes).expect("it is built for searches at one offset");
    let mut found = None;
    for (position, byte) in text.iter().enumerate() {
        state = automaton.next_state(Anchored::Yes, state, *byte);
        if automaton.is_dead(state) {
            break;
        }
        if automaton.is_match(state) {
            // A state without a match of its own has those that begin behind the text's start and end here.
            let pattern = automaton.match_pattern(state, 0);
            if automaton.pattern_len(pattern) == position + 1 {
                found = Some((pattern.as_usize(), position + 1));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The matches that a search finds, and those of the crate.
    fn matches(spellings: &[String], text: &str) -> [Vec<(usize, Range<usize>)>; 2] {
        let all = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(spellings).unwrap();
        let expected = all.find_iter(text).map(|found| (found.pattern().as_usize(), found.range())).collect();
        let mut found = Vec::new();
        Search::new(spellings, Simd::detect())
            .unwrap()
            .for_each(text, |number, position| found.push((number, position)));
        let search = Search::new(spellings, Simd::detect()).unwrap();
        let mut from = 0;
        let one_by_one = std::iter::from_fn(|| {
            let found = search.first(text, from)?;
            from = found.1.end;
            Some(found)
        });
        assert_eq!(one_by_one.collect::<Vec<_>>(), found);
        [found, expected]
    }

    proptest! {
        /// By each kind of automaton, and with runs.
        #[test]
        fn matches_are_those_of_the_crate(
            spellings in prop::collection::btree_set("[abc]{1,5}|d{1,7}|e{2,9}", 1..8),
            text in "([abc]|d{1,9}|e{1,12}){0,60}",
        ) {
            let few: Vec<String> = spellings.into_iter().collect();
            let others = (0..LARGE / 100).map(|number| format!("{number:-^101}"));
            let many: Vec<String> = few.iter().cloned().chain(others).collect();
            let long = [&*few, &["-".repeat(LONGEST + 1)]].concat();
            for spellings in [few, many, long] {
                let [found, expected] = matches(&spellings, &text);
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn runs_have_a_way_of_their_own_unless_others_begin_like_them() {
        let spellings = ["  ", "    ", "\t", "\t\t", "\tx", "<|x|>", "é", "éé"].map(str::to_owned);
        let runs = Runs::by_first_byte(&spellings);
        let found: Vec<usize> = (0..256).filter(|byte| runs[*byte].is_some()).collect();
        assert_eq!(found, [usize::from(b' ')]);
        let spaces = runs[usize::from(b' ')].as_ref().unwrap();
        let longest = [None, None, Some((0, 2)), Some((0, 2)), Some((1, 4)), Some((1, 4))];
        for (len, expected) in longest.into_iter().enumerate().skip(1) {
            assert_eq!(spaces.find(" ".repeat(len).as_bytes()), expected);
            assert_eq!(spaces.find((" ".repeat(len) + "x").as_bytes()), expected);
        }
    }
}
