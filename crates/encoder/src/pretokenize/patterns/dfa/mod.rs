//! The splitter for every pattern and every processor: one automaton per step, character by character.
//!
//! Text is read once, as the kinds of its characters; the automata of all steps then run over these.

use ahash::AHashSet;

mod automaton;

use crate::pretokenize::patterns::char_classes::partition::{ClassMask, Partition};
use crate::pretokenize::patterns::digit_groups::{DigitGroups, GroupCuts};
use crate::pretokenize::patterns::parse_pretokenizer::{Ends, PatternStep};
use crate::pretokenize::patterns::regex::Node;
use automaton::{Automaton, DEAD, START};

/// An attempt that has run this many bytes past its last match leaves a trace, and another after as many more.
const TRACE_EVERY: usize = 32;

/// Room for so many traces is kept from text to text.
const MOST_KEPT: usize = 1 << 12;

/// The most steps that share their kinds, more than there are in real tokenizers: it is tried with one less each time.
const MOST_ALIKE: usize = 16;

/// Some steps of a pre-tokenizer that see the same characters, and share the kinds of these.
pub struct StepGroup {
    partition: Partition,
    steps: Vec<Step>,
}

/// One step: cuts each pre-token at the matches of a pattern and the gaps between.
enum Step {
    Matches(Box<Matches>),
    DigitGroups(DigitGroupsOfClasses),
}

/// The step of an automaton.
struct Matches {
    automaton: Automaton,
    /// By kind: whether no match begins with it.
    is_skipped: [bool; 1 << u8::BITS],
    /// One bit for each ASCII character that begins a match wherever it occurs outside one.
    always_matched: u128,
    ends: Ends,
}

/// The step of [`DigitGroups`].
struct DigitGroupsOfClasses {
    class: ClassMask,
    /// The kind of the bytes of a character but its first.
    inside: u8,
    before: ClassMask,
    at_end: bool,
    boundaries: GroupCuts,
}

/// Where attempts ran on without a match, so that later ones stop where they meet one of them: without this, `\s+$` is
/// quadratic on a long run of spaces.
#[derive(Default)]
struct Traces {
    /// Offsets, and states behind them from which no match was found.
    failed: AHashSet<(usize, u16)>,
    /// The traces of the present attempt since its last match.
    present: Vec<(usize, u16)>,
}

impl StepGroup {
    /// All steps, in as few groups as have kinds in common.
    pub fn grouped(steps: &[PatternStep]) -> Result<Vec<Self>, String> {
        let mut groups = Vec::new();
        let mut rest = steps;
        while let Some(first) = rest.first() {
            let alike = rest.iter().take(MOST_ALIKE).take_while(|step| step.domain == first.domain);
            let mut count = alike.count();
            let partition = loop {
                match Partition::new(&rest[..count]) {
                    Ok(partition) => break partition,
                    Err(error) if count == 1 => return Err(error),
                    // Together they may have more kinds than there can be.
                    Err(_) => count -= 1,
                }
            };
            let steps =
                rest[..count].iter().map(|step| Step::new(step, &partition)).collect::<Result<_, _>>()?;
            groups.push(Self { partition, steps });
            rest = &rest[count..];
        }
        Ok(groups)
    }

    /// For each step, whether no match crosses the border between these two ASCII characters, nor depends on what
    /// follows it; and whether a pre-token then always ends there, since a match does or begins there.
    pub fn at(&self, left: u8, right: u8) -> impl Iterator<Item = (bool, bool)> {
        self.steps.iter().map(move |step| {
            let partition = [left, right].map(|byte| self.partition.of_byte(byte));
            match step {
                Step::Matches(step) => (
                    step.automaton.always_parts(partition[0], partition[1]),
                    step.ends != Ends::First && step.always_matched >> left & 1 == 1
                        || step.ends != Ends::Last && step.always_matched >> right & 1 == 1,
                ),
                Step::DigitGroups(step) => (step.always_parts(partition[0], partition[1]), false),
            }
        })
    }

    pub fn bytes(&self) -> usize {
        let of_automata = self.steps.iter().map(|step| match step {
            Step::Matches(step) => size_of_val(&**step) + step.automaton.bytes(),
            Step::DigitGroups(_) => 0,
        });
        self.partition.bytes() + size_of_val(&*self.steps) + of_automata.sum::<usize>()
    }

    /// Cuts `text`, which is already cut at `pre-tokens`, and replaces these by the ends of the parts.
    pub fn refine(&self, text: &[u8], pretokens: &mut Vec<u32>, scratch: &mut DfaScratch) {
        let DfaScratch { partition, parts, traces } = scratch;
        self.partition.read(text, partition);
        for step in &self.steps {
            parts.clear();
            let mut start = 0;
            for &end in &*pretokens {
                // One byte stays one part.
                if end as usize == start + 1 {
                    parts.push(end);
                } else {
                    let partition = &partition[..end as usize];
                    match step {
                        Step::Matches(step) => step.cut(partition, start, traces, parts),
                        Step::DigitGroups(step) => step.cut(partition, start, parts),
                    }
                }
                start = end as usize;
            }
            std::mem::swap(pretokens, parts);
        }
        traces.shrink();
    }
}

/// Reusable memory of one thread.
#[derive(Default)]
pub struct DfaScratch {
    partition: Vec<u8>,
    parts: Vec<u32>,
    traces: Traces,
}

impl Step {
    fn new(step: &PatternStep, partition: &Partition) -> Result<Self, String> {
        Ok(match &step.pattern {
            Node::DigitGroups(groups) => Self::DigitGroups(DigitGroupsOfClasses::new(groups, partition)),
            _ => Self::Matches(Box::new(Matches::new(step, partition)?)),
        })
    }
}

impl Matches {
    fn new(step: &PatternStep, partition: &Partition) -> Result<Self, String> {
        let certain = step.pattern.certain();
        let is_certain = |byte: u8| {
            let c = step.domain.character(byte);
            certain.ranges().iter().any(|range| (range.start()..=range.end()).contains(&c))
        };
        let bits = (0..128).filter(|byte| is_certain(*byte)).map(|byte| 1 << byte);
        let automaton = Automaton::new(&step.pattern, partition)?;
        let skipped = |kind: usize| {
            kind == usize::from(partition.inside())
                || (kind < partition.count() && automaton.cannot_start(kind as u8))
        };
        let (is_skipped, always_matched) = (std::array::from_fn(skipped), bits.sum());
        Ok(Self { automaton, is_skipped, always_matched, ends: step.ends })
    }

    /// Cuts a text from `start` on, given the kinds of its characters.
    #[inline]
    fn cut(&self, partition: &[u8], start: usize, traces: &mut Traces, ends: &mut Vec<u32>) {
        traces.failed.clear();
        let mut at = start;
        let mut cut = start;
        loop {
            // All but the broadest steps match little: this skips what they do not match.
            while at < partition.len() && self.is_skipped[usize::from(partition[at])] {
                at += 1;
            }
            if at >= partition.len() {
                break;
            }
            if let Some(end) = self.match_at(partition, at, traces) {
                if cut < at && self.ends != Ends::Last {
                    ends.push(at as u32);
                    cut = at;
                }
                if self.ends != Ends::First {
                    ends.push(end as u32);
                    cut = end;
                }
                at = end;
            } else {
                at += 1;
            }
        }
        if cut < partition.len() {
            ends.push(partition.len() as u32);
        }
    }

    /// The end of the match that begins at `start`, by the priorities of the pattern.
    #[inline]
    fn match_at(&self, partition: &[u8], start: usize, traces: &mut Traces) -> Option<usize> {
        let mut found = start;
        let mut state = START;
        for (at, kind) in (start..).zip(&partition[start..]) {
            let transition = self.automaton.step(state, *kind);
            if transition.match_ends_here() {
                found = at;
            }
            state = transition.state();
            if state == DEAD {
                break;
            }
            if at.is_multiple_of(TRACE_EVERY) && at >= found + TRACE_EVERY && traces.meets(at, state) {
                state = DEAD;
                break;
            }
        }
        if state != DEAD && self.automaton.match_ends_with_text(state) {
            found = partition.len();
        }
        traces.keep_behind(found);
        (found > start).then_some(found)
    }
}

impl DigitGroupsOfClasses {
    fn new(groups: &DigitGroups, partition: &Partition) -> Self {
        Self {
            class: partition.mask(&groups.class),
            inside: partition.inside(),
            before: partition.mask(&groups.before),
            at_end: groups.at_end,
            boundaries: groups.boundaries,
        }
    }

    /// As [`Automaton::always_parts`].
    fn always_parts(&self, left: u8, right: u8) -> bool {
        !contains(self.class, left)
            || !contains(self.class, right) && contains(self.before, right) == self.at_end
    }

    /// As [`Matches::cut`].
    fn cut(&self, partition: &[u8], start: usize, ends: &mut Vec<u32>) {
        let (mut at, mut cut) = (start, start);
        while let Some(skipped) = partition[at..].iter().position(|kind| contains(self.class, *kind)) {
            let begin = at + skipped;
            let belongs = |kind: &&u8| contains(self.class, **kind) || **kind == self.inside;
            let end = begin + partition[begin..].iter().take_while(belongs).count();
            if partition.get(end).map_or(self.at_end, |next| contains(self.before, *next)) {
                let starts = (begin..end).filter(|at| partition[*at] != self.inside);
                self.boundaries.for_each(starts.clone(), starts.count(), end, |at| {
                    if at > cut {
                        ends.push(at as u32);
                        cut = at;
                    }
                });
            }
            at = end;
        }
        if cut < partition.len() {
            ends.push(partition.len() as u32);
        }
    }
}

fn contains(mask: ClassMask, kind: u8) -> bool {
    mask >> kind & 1 == 1
}

impl Traces {
    /// Frees the memory of a text that left very many.
    fn shrink(&mut self) {
        if self.failed.capacity() > MOST_KEPT {
            *self = Self::default();
        }
    }

    /// Whether an earlier attempt was in `state` behind the byte at `at` and found nothing from there on; if not, leaves
    /// a trace there.
    #[cold]
    fn meets(&mut self, at: usize, state: u16) -> bool {
        let is_known = self.failed.contains(&(at, state));
        if !is_known {
            self.present.push((at, state));
        }
        is_known
    }

    /// An attempt has ended, with its last match at `found`.
    #[inline]
    fn keep_behind(&mut self, found: usize) {
        if !self.present.is_empty() {
            self.failed.extend(self.present.drain(..).filter(|(at, _)| *at >= found));
        }
    }
}
