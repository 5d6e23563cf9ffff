//! The splitter for every pattern and every processor: one automaton per step, character by character. It is the
//! fallback for the vector kernels and what they are tested against.

use super::automaton::{Automaton, DEAD, START};
use super::recognise::{Domain, RecognisedStep};
use crate::encode::model::spelling::CHARACTERS;

/// An attempt that has run this many bytes past its last match starts to leave a trail.
const TRAIL_AFTER: usize = 64;

/// One step of a pre-tokenizer: cuts each piece at the matches of a pattern and the gaps between.
pub struct Step {
    automaton: Automaton,
    /// One bit for each ASCII character that begins a match wherever it occurs outside one.
    always_matched: u128,
}

/// The states of an attempt that ran on without a match, so that later attempts stop where they meet it: without this,
/// `\s+$` is quadratic on a long run of spaces.
#[derive(Default)]
pub struct Trail {
    from: usize,
    states: Vec<u16>,
}

impl Step {
    pub fn new(step: &RecognisedStep) -> Result<Self, String> {
        let certain = step.pattern.certain();
        let spelled = &CHARACTERS;
        let is_certain = |byte: u8| {
            let c = match step.domain {
                Domain::Bytes => spelled[usize::from(byte)],
                Domain::Characters => char::from(byte),
            };
            certain.ranges().iter().any(|range| (range.start()..=range.end()).contains(&c))
        };
        let bits = (0..128).filter(|byte| is_certain(*byte)).map(|byte| 1 << byte);
        Ok(Self { automaton: Automaton::new(&step.pattern, step.domain)?, always_matched: bits.sum() })
    }

    /// Whether no match crosses a place between these two ASCII characters, nor depends on what follows it.
    pub fn always_parts(&self, left: u8, right: u8) -> bool {
        self.automaton.always_parts(left, right)
    }

    /// Whether a piece always ends at such a place, given that no match crosses it: one of the two characters is never
    /// in a gap between matches.
    pub fn always_cuts(&self, left: u8, right: u8) -> bool {
        (self.always_matched >> left | self.always_matched >> right) & 1 == 1
    }

    pub fn bytes(&self) -> usize {
        self.automaton.bytes()
    }

    /// Cuts `text`, which is already cut at `pieces`, and adds the ends of the parts to `ends`.
    pub fn refine(&self, text: &[u8], pieces: &[u32], trail: &mut Trail, ends: &mut Vec<u32>) {
        let mut start = 0;
        for &end in pieces {
            self.cut(&text[..end as usize], start, trail, ends);
            start = end as usize;
        }
    }

    /// Cuts `text[start..]`.
    #[inline]
    fn cut(&self, text: &[u8], start: usize, trail: &mut Trail, ends: &mut Vec<u32>) {
        trail.states.clear();
        let mut at = start;
        let mut cut = start;
        loop {
            // All but the broadest steps match little: this skips what they do not match.
            while at < text.len() && self.automaton.cannot_start(text[at]) {
                at += 1;
            }
            if at >= text.len() {
                break;
            }
            if let Some(end) = self.match_at(text, at, trail) {
                if cut < at {
                    ends.push(at as u32);
                }
                ends.push(end as u32);
                at = end;
                cut = end;
            } else {
                at += self.automaton.step(START, text, at).1;
            }
        }
        if cut < text.len() {
            ends.push(text.len() as u32);
        }
    }

    /// The end of the match that begins at `start`, by the priorities of the pattern.
    #[inline]
    fn match_at(&self, text: &[u8], start: usize, trail: &mut Trail) -> Option<usize> {
        let mut found = start;
        let mut noted = false;
        let mut state = START;
        let mut at = start;
        while at < text.len() {
            let (transition, width) = self.automaton.step(state, text, at);
            if transition.match_ends_here() {
                found = at;
                noted = false;
            }
            state = transition.state();
            if state == DEAD {
                return (found > start).then_some(found);
            }
            at += width;
            if at > found + TRAIL_AFTER {
                if trail.joins(at, state, !noted) {
                    return (found > start).then_some(found);
                }
                noted = true;
            }
        }
        if self.automaton.match_ends_with_text(state) {
            found = text.len();
        }
        (found > start).then_some(found)
    }
}

impl Trail {
    pub fn bytes(&self) -> usize {
        self.states.capacity() * size_of::<u16>()
    }

    /// Whether an earlier attempt was in `state` before `at` and found nothing from there on; if not, records the
    /// place. `fresh` says that this attempt starts to be recorded here.
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
        // Bytes inside a character hold DEAD, a state that no attempt is ever in.
        self.states.resize(at - self.from, DEAD);
        self.states.push(state);
        false
    }
}
