//! The splitter for every pattern and every processor: one automaton a step, character by
//! character. It is the fallback of the vector kernels and what they are tested against.

use super::automaton::{Automaton, DEAD, START};
use super::kinds::Kinds;
use super::pattern::Node;

/// An attempt that has run this many characters past its last match leaves a trail.
const TRAIL_AFTER: usize = 16;

/// One step of a pre-tokenizer: cuts each piece at the matches of a pattern and the gaps between.
pub struct Step {
    automaton: Automaton,
    alphabet: Alphabet,
}

/// What a step takes as a character.
enum Alphabet {
    Unicode(Kinds),
    /// Behind a `ByteLevel` the reference sees each byte as the character that stands for it.
    Bytes(Box<[u8; 256]>),
}

/// The states of an attempt that ran on without a match, so that later attempts stop where they
/// join it: without this, `\s+$` is quadratic on a long run of spaces.
#[derive(Default)]
pub struct Trail {
    from: usize,
    states: Vec<u16>,
}

impl Step {
    /// A step over the characters of the text.
    pub fn over_characters(pattern: &Node) -> Result<Self, String> {
        let kinds = kinds_of(pattern)?;
        Ok(Self { automaton: Automaton::new(pattern, &kinds)?, alphabet: Alphabet::Unicode(kinds) })
    }

    /// A step behind a `ByteLevel`.
    pub fn over_bytes(pattern: &Node) -> Result<Self, String> {
        let kinds = kinds_of(pattern)?;
        let of_byte = byte_level_characters().map(|c| kinds.of(c));
        Ok(Self { automaton: Automaton::new(pattern, &kinds)?, alphabet: Alphabet::Bytes(Box::new(of_byte)) })
    }

    /// Cuts `text`, which is cut at `pieces` already, and adds the ends of the parts to `ends`.
    pub fn refine(&self, text: &[u8], pieces: &[u32], trail: &mut Trail, ends: &mut Vec<u32>) {
        let mut start = 0;
        for &end in pieces {
            let end = end as usize;
            match &self.alphabet {
                Alphabet::Unicode(kinds) => {
                    self.cut(&text[..end], start, |at| kinds.at(text, at), trail, ends);
                }
                Alphabet::Bytes(kinds) => {
                    self.cut(&text[..end], start, |at| (kinds[usize::from(text[at])], 1), trail, ends);
                }
            }
            start = end;
        }
    }

    /// Cuts `text[start..]`.
    #[inline]
    fn cut(
        &self,
        text: &[u8],
        start: usize,
        kind: impl Fn(usize) -> (u8, usize),
        trail: &mut Trail,
        ends: &mut Vec<u32>,
    ) {
        trail.states.clear();
        let mut at = start;
        let mut cut = start;
        while at < text.len() {
            if let Some(end) = self.longest(text.len(), at, &kind, trail) {
                if cut < at {
                    ends.push(at as u32);
                }
                ends.push(end as u32);
                at = end;
                cut = end;
            } else {
                at += kind(at).1;
            }
        }
        if cut < text.len() {
            ends.push(text.len() as u32);
        }
    }

    /// The end of the match that begins at `start`, by the priorities of the pattern.
    #[inline]
    fn longest(
        &self,
        len: usize,
        start: usize,
        kind: &impl Fn(usize) -> (u8, usize),
        trail: &mut Trail,
    ) -> Option<usize> {
        let mut found = None;
        let mut state = START;
        let mut at = start;
        let mut without_match = 0;
        while at < len {
            let (kind, width) = kind(at);
            let transition = self.automaton.step(state, kind);
            without_match += 1;
            if transition.match_ends_here() {
                found = Some(at);
                without_match = 0;
            }
            state = transition.state();
            if state == DEAD {
                return found;
            }
            at = (at + width).min(len);
            if without_match >= TRAIL_AFTER && trail.joins(at, state, without_match == TRAIL_AFTER) {
                return found;
            }
        }
        if self.automaton.step(state, self.automaton.end_kind()).match_ends_here() {
            found = Some(len);
        }
        found
    }
}

impl Trail {
    /// Whether an earlier attempt was in `state` in front of `at` and found nothing from there on;
    /// if not, notes the place. `fresh` says that the attempt starts to be noted here.
    #[inline]
    fn joins(&mut self, at: usize, state: u16, fresh: bool) -> bool {
        let known = at.checked_sub(self.from).and_then(|offset| self.states.get(offset));
        if known == Some(&state) {
            return true;
        }
        if fresh {
            self.from = at;
            self.states.clear();
        }
        // Bytes inside a character hold DEAD, which no attempt is ever in.
        self.states.resize(at - self.from, DEAD);
        self.states.push(state);
        false
    }
}

fn kinds_of(pattern: &Node) -> Result<Kinds, String> {
    let mut sets = Vec::new();
    pattern.for_each_set(&mut |set| sets.push(set));
    Kinds::new(sets.into_iter())
}

/// The character that stands for each byte behind a `ByteLevel`: printable Latin-1 for itself, the
/// others in order from U+0100 on.
fn byte_level_characters() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            return char::from(byte);
        }
        let stand_in = char::from_u32(next).unwrap_or_default();
        next += 1;
        stand_in
    })
}
