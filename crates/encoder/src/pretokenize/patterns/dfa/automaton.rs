//! A split pattern as a deterministic automaton over kinds of characters.
//!
//! The automaton gives exactly the matches of backtracking: its states are lists of the nodes at which a backtracking
//! matcher could be, in the order in which it would try them, and a match cuts off the nodes of lower priority. It
//! takes one step per character, whatever the pattern.

use std::collections::HashMap;

use crate::pretokenize::patterns::char_classes::partition::{ClassMask, MAX_CLASSES, Partition};
use crate::pretokenize::patterns::regex::Node;

/// The end of the text, as a symbol in masks.
const END_BIT: usize = MAX_CLASSES + 1;

/// Patterns in use need fewer than 100 states.
const MAX_STATES: usize = 4096;
const MAX_INSTRUCTIONS: usize = 4096;

/// The next state for a kind, and whether the match may end before the character.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Transition(u16);

impl Transition {
    pub fn match_ends_here(self) -> bool {
        self.0 & 1 == 1
    }

    pub fn state(self) -> u16 {
        self.0 >> 1
    }
}

/// The dead state: no match is possible from here.
pub const DEAD: u16 = 0;
/// The initial state.
pub const START: u16 = 1;

pub struct Automaton {
    /// Indexed by state, then by kind, those for the inside of a character and for the end of the text included.
    by_kind: Vec<Transition>,
    /// Binary logarithm of the length of a row.
    row_shift: u32,
    /// The kind that stands for the end of the text.
    end: u8,
}

impl Automaton {
    /// The automaton of a pattern whose sets are among those of `kinds`.
    pub fn new(pattern: &Node, partition: &Partition) -> Result<Self, String> {
        let mut program = Program { partition, code: vec![Instruction::Match] };
        let entry = program.compile(pattern, 0)?;
        let row_shift = (usize::from(partition.end()) + 1).next_power_of_two().trailing_zeros();
        let mut build = Build { code: &program.code, states: vec![vec![]], numbers: HashMap::new() };
        build.numbers.insert(vec![], DEAD);
        let mut start = Places::new(&program.code);
        build.follow(entry, &mut start);
        build.number(start.list)?;

        let mut by_kind = vec![Transition(0); 1 << row_shift];
        let mut state = 1;
        while state < build.states.len() {
            for kind in 0..1u8 << row_shift {
                by_kind.push(match usize::from(kind) {
                    // Nothing happens inside a character.
                    _ if kind == partition.inside() => Transition((state as u16) << 1),
                    _ if kind == partition.end() => build.step(state, END_BIT)?,
                    symbol => build.step(state, symbol.min(MAX_CLASSES))?,
                });
            }
            state += 1;
        }
        let automaton = Self { by_kind, row_shift, end: partition.end() };
        if (0..=partition.end()).any(|kind| automaton.step(START, kind).match_ends_here()) {
            return Err("a split pattern that can match the empty string".into());
        }
        Ok(automaton)
    }

    /// The transition on a character of this kind.
    #[inline]
    pub fn step(&self, state: u16, kind: u8) -> Transition {
        self.by_kind[(usize::from(state) << self.row_shift) + usize::from(kind)]
    }

    /// Whether no match begins with a character of this kind.
    pub fn cannot_start(&self, kind: u8) -> bool {
        self.step(START, kind) == Transition(DEAD << 1)
    }

    /// Whether a match may end where the text does.
    #[inline]
    pub fn match_ends_with_text(&self, state: u16) -> bool {
        self.step(state, self.end).match_ends_here()
    }

    /// Whether a match that takes a character of kind `left` always ends before one of kind `right`, as if the text
    /// ended there.
    pub fn always_parts(&self, left: u8, right: u8) -> bool {
        let states = 1..(self.by_kind.len() >> self.row_shift) as u16;
        let mut behind_left =
            states.map(|state| self.step(state, left).state()).filter(|state| *state != DEAD);
        behind_left.all(|state| {
            let transition = self.step(state, right);
            transition.state() == DEAD && transition.match_ends_here() == self.match_ends_with_text(state)
        })
    }

    pub fn bytes(&self) -> usize {
        self.by_kind.capacity() * size_of::<Transition>()
    }
}

/// One instruction of the nondeterministic program; instruction 0 is the match.
enum Instruction {
    Match,
    /// Consumes one character of these kinds.
    Partition(ClassMask, usize),
    /// Continues if the next symbol is of these kinds (or the end), without consuming it.
    Ahead(ClassMask, usize),
    /// Tries the first, then the second.
    Either(usize, usize),
}

struct Program<'a> {
    partition: &'a Partition,
    code: Vec<Instruction>,
}

impl Program<'_> {
    fn push(&mut self, instruction: Instruction) -> Result<usize, String> {
        if self.code.len() >= MAX_INSTRUCTIONS {
            return Err("a split pattern that is too large".into());
        }
        self.code.push(instruction);
        Ok(self.code.len() - 1)
    }

    /// Adds `node` before the instruction `next` and returns where it begins.
    fn compile(&mut self, node: &Node, next: usize) -> Result<usize, String> {
        match node {
            Node::Class(set) => self.push(Instruction::Partition(self.partition.mask(set), next)),
            Node::Ahead { set, at_end } => {
                let mask = self.partition.mask(set) | (ClassMask::from(*at_end) << END_BIT);
                self.push(Instruction::Ahead(mask, next))
            }
            Node::Lookahead { .. } | Node::DigitGroups(_) => {
                Err("a lookahead at more than one character in a split pattern".into())
            }
            Node::WordBoundary => Err(r"'\b' in a split pattern".into()),
            Node::Concat(nodes) => nodes.iter().rev().try_fold(next, |next, node| self.compile(node, next)),
            Node::Alternate(nodes) => {
                let Some((last, others)) = nodes.split_last() else { return Ok(next) };
                let mut entry = self.compile(last, next)?;
                for node in others.iter().rev() {
                    let first = self.compile(node, next)?;
                    entry = self.push(Instruction::Either(first, entry))?;
                }
                Ok(entry)
            }
            Node::Repeat { node, min, max } => self.compile_repeat(node, *min, *max, next),
        }
    }

    fn compile_repeat(
        &mut self,
        node: &Node,
        min: u32,
        max: Option<u32>,
        next: usize,
    ) -> Result<usize, String> {
        let mut entry = next;
        if let Some(max) = max {
            for _ in min..max {
                let body = self.compile(node, entry)?;
                entry = self.push(Instruction::Either(body, next))?;
            }
        } else {
            let again = self.push(Instruction::Either(0, next))?;
            let body = self.compile(node, again)?;
            self.code[again] = Instruction::Either(body, next);
            entry = again;
        }
        (0..min).try_fold(entry, |entry, _| self.compile(node, entry))
    }
}

/// Instructions, none of them `Either`, in order of priority.
struct Places {
    list: Vec<usize>,
    /// By instruction, whether it has been followed. The first one of two paths to the same node counts, and
    /// consecutive alternatives that may be empty have more paths than could be walked.
    followed: Vec<bool>,
}

impl Places {
    fn new(code: &[Instruction]) -> Self {
        Self { list: Vec::new(), followed: vec![false; code.len()] }
    }
}

struct Build<'a> {
    code: &'a [Instruction],
    /// Each state: its [`Places`].
    states: Vec<Vec<usize>>,
    numbers: HashMap<Vec<usize>, u16>,
}

impl Build<'_> {
    fn number(&mut self, state: Vec<usize>) -> Result<u16, String> {
        if let Some(&number) = self.numbers.get(&state) {
            return Ok(number);
        }
        if self.states.len() >= MAX_STATES {
            return Err("a split pattern with too many states".into());
        }
        let number = self.states.len() as u16;
        self.states.push(state.clone());
        self.numbers.insert(state, number);
        Ok(number)
    }

    fn step(&mut self, state: usize, symbol: usize) -> Result<Transition, String> {
        let mut after = Places::new(self.code);
        let mut seen = vec![false; self.code.len()];
        let matched = self.states[state].iter().any(|&at| self.advance(at, symbol, &mut seen, &mut after));
        Ok(Transition(self.number(after.list)? << 1 | u16::from(matched)))
    }

    /// Adds to `after` where `symbol` leads from the instruction `at`; true if `at` leads to the match without
    /// consuming it, which ends the list.
    fn advance(&self, at: usize, symbol: usize, seen: &mut [bool], after: &mut Places) -> bool {
        if std::mem::replace(&mut seen[at], true) {
            return false;
        }
        match self.code[at] {
            Instruction::Match => true,
            Instruction::Partition(mask, next) => {
                if mask >> symbol & 1 == 1 {
                    self.follow(next, after);
                }
                false
            }
            Instruction::Ahead(mask, next) => {
                mask >> symbol & 1 == 1 && self.advance(next, symbol, seen, after)
            }
            Instruction::Either(first, second) => {
                self.advance(first, symbol, seen, after) || self.advance(second, symbol, seen, after)
            }
        }
    }

    /// Adds the instructions reached from `at` without looking at the text.
    fn follow(&self, at: usize, indices: &mut Places) {
        if std::mem::replace(&mut indices.followed[at], true) {
            return;
        }
        if let Instruction::Either(first, second) = self.code[at] {
            self.follow(first, indices);
            self.follow(second, indices);
        } else {
            indices.list.push(at);
        }
    }
}
