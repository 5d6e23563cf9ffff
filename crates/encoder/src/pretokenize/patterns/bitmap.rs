//! The splitter for steps that match runs of a class of characters, as many pre-tokenizers consist of: word arithmetic on
//! bitmaps over the bytes of a text, for any processor.
//!
//! A character of several bytes is in the bitmap of its class with all of them, so that runs of characters are runs of
//! bits. Every step only adds cuts: a pre-token ends where a cut is, and no step looks across one.

use regex_syntax::hir::ClassUnicode;

use crate::pretokenize::boundaries::{Boundaries, inside};
use crate::pretokenize::patterns::char_classes::table::CharTable;
use crate::pretokenize::patterns::contraction;
use crate::pretokenize::patterns::digit_groups::GroupCuts;
use crate::pretokenize::patterns::parse_pretokenizer::{
    BYTE_LEVEL_PATTERN, Domain, Ends, PatternStep, classes_of,
};
use crate::pretokenize::patterns::regex::parser::parse;
use crate::pretokenize::patterns::regex::{Node, named_set, single};
use crate::simd::blocks::{BLOCK, Blocks, ByteBlock, PaddedBlock, block_at, ones, part};
use crate::simd::{Simd, Work};
use crate::utf8::decode;

/// The classes of a character are the bits of a byte.
const MOST_CLASSES: usize = 8;

/// All steps of a pre-tokenizer.
pub struct BitmapSplitter {
    groups: Vec<Group>,
    simd: Simd,
}

/// Consecutive steps that see the same characters.
struct Group {
    domain: Domain,
    table: CharTable,
    /// The classes of characters of one byte, and none for other bytes.
    of_byte: [u8; 256],
    steps: Vec<Step>,
}

/// Where one step cuts; classes are numbers of bitmaps.
#[derive(Clone, Copy)]
enum Step {
    /// `B`
    Each(usize),
    /// `B+`
    Run(usize),
    /// `A?B+`
    RunAfter { first: usize, run: usize },
    /// `B+$`, where lines are pre-tokens of their own already.
    RunAtEnd(usize),
    /// `B{min,max}`
    Numbered { class: usize, min: u32, max: u32 },
    /// `DigitGroups`
    DigitGroups { class: usize, before: usize, at_end: bool, boundaries: GroupCuts },
    /// [`BYTE_LEVEL_PATTERN`]
    ByteLevel(ByteLevel),
}

/// The classes of [`BYTE_LEVEL_PATTERN`].
#[derive(Clone, Copy)]
struct ByteLevel {
    letter: usize,
    number: usize,
    space: usize,
    blank: usize,
    apostrophe: usize,
}

/// The bitmaps of 64 bytes of text.
#[derive(Clone, Copy, Default)]
pub struct BlockMaps {
    /// The first bytes of characters.
    leads: u64,
    /// The bytes of the characters of each class.
    classes: [u64; MOST_CLASSES],
}

impl BitmapSplitter {
    /// The splitter for some steps, if all of them match runs.
    pub fn match_steps(steps: &[PatternStep], simd: Simd) -> Option<Self> {
        let groups = steps.chunk_by(|one, next| one.domain == next.domain);
        Some(Self { groups: groups.map(Group::recognise).collect::<Option<_>>()?, simd })
    }

    /// Whether there are no steps.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Replaces `cuts` by those of `text[..n]`, `n` > 0, after which `PADDING` bytes follow.
    pub fn split(&self, text: &[u8], n: usize, blocks: &mut Vec<BlockMaps>, boundaries: &mut Boundaries) {
        boundaries.begin_uncut(n);
        let words = boundaries.words_mut();
        // The end of the text is one of a pre-token.
        cut_at(words, n);
        for group in &self.groups {
            self.simd.run(Read { group, text, n, blocks });
            for step in &group.steps {
                step.cut(&text[..n], blocks, words);
            }
        }
        words[0] &= !1;
        if let Some(last) = words.get_mut(n / BLOCK) {
            *last = inside(*last, 0, n % BLOCK);
        }
    }

    pub fn bytes(&self) -> usize {
        self.groups.iter().map(|group| size_of_val(group) + group.table.bytes()).sum()
    }
}

impl Group {
    fn recognise(steps: &[PatternStep]) -> Option<Self> {
        let mut sets = Vec::new();
        // The characters that are always a pre-token by themselves.
        let mut alone = ClassUnicode::empty();
        let mut recognised = Vec::new();
        for step in steps {
            if step.ends != Ends::Both {
                return None;
            }
            for pattern in one_after_another(&step.pattern) {
                recognised.push(Step::recognise(pattern, &alone, &mut sets)?);
            }
            if sets.len() > MOST_CLASSES {
                return None;
            }
            if let Node::Class(set) = &step.pattern {
                alone.union(set);
            }
        }
        let table = CharTable::of_sets(&sets.iter().collect::<Vec<_>>());
        let domain = steps.first()?.domain;
        let of_byte = std::array::from_fn(|byte| match domain {
            Domain::Characters if byte >= 128 => 0,
            _ => table.of(domain.character(byte as u8).into()),
        });
        Some(Self { domain, table, of_byte, steps: recognised })
    }
}

/// A pattern, or its alternatives if each is one character or a run of a class that has nothing in common with the
/// others.
fn one_after_another(pattern: &Node) -> &[Node] {
    let are_disjoint = |sets: &[&ClassUnicode]| {
        let mut all = ClassUnicode::empty();
        sets.iter().all(|set| {
            let mut common = all.clone();
            common.intersect(set);
            all.union(set);
            common.ranges().is_empty()
        })
    };
    match (pattern, classes_of(pattern)) {
        (Node::Alternate(nodes), Some(classes)) if are_disjoint(&classes) => nodes,
        _ => std::slice::from_ref(pattern),
    }
}

/// Replaces `blocks` by those of `text[..n]`.
struct Read<'a> {
    group: &'a Group,
    text: &'a [u8],
    n: usize,
    blocks: &'a mut Vec<BlockMaps>,
}

impl Work for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, loader: impl Blocks) {
        let Self { group, text, n, blocks } = self;
        blocks.clear();
        blocks.reserve(n.div_ceil(BLOCK));
        // The classes of a block, and behind it of those bytes of the next one that belong to its last character.
        let mut classes: PaddedBlock = [0; BLOCK + 3];
        for at in (0..n).step_by(BLOCK) {
            let window: &PaddedBlock = block_at(text, at);
            let bytes = loader.load(part(window, 0));
            let mut found = bytes.look_up(&group.of_byte);
            let mut leads = inside(!0, at, n);
            let high = bytes.high();
            if high != 0 && group.domain == Domain::Characters {
                leads &= !bytes.continuation();
                let begun: [u8; 3] = *part(&classes, BLOCK);
                classes[..BLOCK].copy_from_slice(&found.bytes());
                classes[..3].iter_mut().zip(begun).for_each(|(class, begun)| *class |= begun);
                classes[BLOCK..].fill(0);
                for bit in ones(high & leads) {
                    let (code, width) = decode(&window[bit..]);
                    classes[bit..bit + width].fill(group.table.of(code));
                }
                found = loader.load(part(&classes, 0));
            }
            let maps = found.bits().map(|map| inside(map, at, n));
            blocks.push(BlockMaps { leads, classes: maps });
        }
    }
}

impl Step {
    /// `sets` are the classes numbered so far. Characters that are `alone` are pre-tokens by themselves before this
    /// step.
    fn recognise(pattern: &Node, alone: &ClassUnicode, sets: &mut Vec<ClassUnicode>) -> Option<Self> {
        let mut class = |set: &ClassUnicode| {
            sets.iter().position(|known| known == set).unwrap_or_else(|| {
                sets.push(set.clone());
                sets.len() - 1
            })
        };
        match pattern {
            Node::Class(set) => Some(Self::Each(class(set))),
            Node::Repeat { min, max, .. } => {
                let set = pattern.repeated()?;
                match max {
                    None => (*min == 1).then(|| Self::Run(class(set))),
                    Some(max) => {
                        (*min > 0).then(|| Self::Numbered { class: class(set), min: *min, max: *max })
                    }
                }
            }
            Node::Concat(nodes) => match nodes.as_slice() {
                [
                    first @ Node::Repeat { min: 0, max: Some(1), .. },
                    run @ Node::Repeat { min: 1, max: None, .. },
                ] => {
                    // A character in both classes belongs to the run, wherever the match began.
                    Some(Self::RunAfter { first: class(first.repeated()?), run: class(run.repeated()?) })
                }
                [run @ Node::Repeat { min: 1, max: None, .. }, Node::Ahead { set, at_end: true }] => {
                    let mut other = set.clone();
                    other.difference(alone);
                    let run = run.repeated()?;
                    other.ranges().is_empty().then(|| Self::RunAtEnd(class(run)))
                }
                [Node::Class(set), rest @ ..] => {
                    let count = nodes.len() as u32;
                    let same = rest.iter().all(|node| matches!(node, Node::Class(other) if other == set));
                    same.then(|| Self::Numbered { class: class(set), min: count, max: count })
                }
                _ => None,
            },
            Node::Alternate(_) if parse(BYTE_LEVEL_PATTERN).as_ref() == Ok(pattern) => {
                Some(Self::ByteLevel(ByteLevel {
                    letter: class(&named_set(r"\p{L}").ok()?),
                    number: class(&named_set(r"\p{N}").ok()?),
                    space: class(&named_set(r"\s").ok()?),
                    blank: class(&single(' ')),
                    apostrophe: class(&single('\'')),
                }))
            }
            Node::DigitGroups(groups) => Some(Self::DigitGroups {
                class: class(&groups.class),
                before: class(&groups.before),
                at_end: groups.at_end,
                boundaries: groups.boundaries,
            }),
            Node::Alternate(_) | Node::Ahead { .. } | Node::Lookahead { .. } | Node::WordBoundary => None,
        }
    }

    /// Adds the cuts of this step to those of the steps before it and of the text's end.
    fn cut(self, text: &[u8], blocks: &[BlockMaps], boundaries: &mut [u64]) {
        match self {
            Self::Each(class) => cut_each(blocks, class, boundaries),
            Self::Run(run) => cut_runs(blocks, run, None, boundaries),
            Self::RunAfter { first, run } => cut_runs(blocks, run, Some(first), boundaries),
            Self::RunAtEnd(class) => cut_runs_at_end(blocks, class, boundaries),
            Self::Numbered { class, min, max } => cut_numbered(blocks, class, min, max, boundaries),
            Self::DigitGroups { class, before, at_end, boundaries: of_run } => {
                cut_digit_groups(blocks, class, before, at_end, of_run, boundaries);
            }
            Self::ByteLevel(classes) => cut_byte_level(text, blocks, classes, boundaries),
        }
    }
}

/// Whether the last byte of the block before is in a bitmap, as bit 0.
#[derive(Default)]
struct Before(u64);

impl Before {
    /// The bytes of the next block whose predecessors are in the bitmap.
    #[inline(always)]
    fn then(&mut self, bits: u64) -> u64 {
        let then = bits << 1 | self.0;
        self.0 = bits >> (BLOCK - 1);
        then
    }
}

fn cut_each(blocks: &[BlockMaps], class: usize, boundaries: &mut [u64]) {
    let mut before = Before::default();
    for (block, boundaries) in blocks.iter().zip(boundaries) {
        let members = block.classes[class];
        *boundaries |= members & block.leads | before.then(members) & !members;
    }
}

fn cut_runs(blocks: &[BlockMaps], run: usize, first: Option<usize>, boundaries: &mut [u64]) {
    let (mut before, mut before_first) = (Before::default(), Before::default());
    for (index, block) in blocks.iter().enumerate() {
        let members = block.classes[run];
        let then = before.then(members);
        // Cuts inside a run are there already.
        let starts = members & !then;
        // A match that begins one character earlier.
        let later =
            first.map_or(0, |first| starts & !boundaries[index] & before_first.then(block.classes[first]));
        boundaries[index] |= starts & !later | then & !members;
        cut_before_last(blocks, index, later, boundaries);
    }
}

/// Cuts in front of the characters that end where `places` of a block are.
fn cut_before_last(blocks: &[BlockMaps], index: usize, bits: u64, boundaries: &mut [u64]) {
    let leads_before = if index > 0 { blocks[index - 1].leads >> (BLOCK - 1) } else { 0 };
    let of_one_byte = bits & (blocks[index].leads << 1 | leads_before);
    boundaries[index] |= of_one_byte >> 1;
    if of_one_byte & 1 == 1 {
        boundaries[index - 1] |= 1 << (BLOCK - 1);
    }
    for bit in ones(bits & !of_one_byte) {
        let mut at = index * BLOCK + bit - 2;
        while blocks[at / BLOCK].leads >> (at % BLOCK) & 1 == 0 {
            at -= 1;
        }
        boundaries[at / BLOCK] |= 1 << (at % BLOCK);
    }
}

fn cut_runs_at_end(blocks: &[BlockMaps], class: usize, boundaries: &mut [u64]) {
    let mut before = Before::default();
    // Where the last run before this block begins.
    let mut start = 0;
    for (index, block) in blocks.iter().enumerate() {
        let members = block.classes[class];
        let then = before.then(members);
        // A later pre-token of a run begins at a cut that is there already.
        let starts = members & !then;
        for end in ones(then & boundaries[index]) {
            let earlier = starts & ((1 << end) - 1);
            let at = last_of(earlier).map_or(start, |bit| index * BLOCK + bit);
            boundaries[at / BLOCK] |= 1 << (at % BLOCK);
        }
        start = last_of(starts).map_or(start, |bit| index * BLOCK + bit);
    }
    // The end of a text that fills its blocks is in none of them.
    if before.0 == 1 {
        boundaries[start / BLOCK] |= 1 << (start % BLOCK);
    }
}

/// The index of the highest bit that is set.
fn last_of(bits: u64) -> Option<usize> {
    bits.checked_ilog2().map(|bit| bit as usize)
}

/// Whether a bitmap of the block in which `at` lies has its bit.
fn has(bits: u64, at: usize) -> bool {
    bits >> (at % BLOCK) & 1 == 1
}

fn cut_numbered(blocks: &[BlockMaps], class: usize, min: u32, max: u32, boundaries: &mut [u64]) {
    let mut before = Before::default();
    for (index, block) in blocks.iter().enumerate() {
        let members = block.classes[class];
        let starts = members & (!before.then(members) | boundaries[index]);
        for start in ones(starts).map(|bit| index * BLOCK + bit) {
            let (mut at, mut begin, mut count) = (start, start, 0);
            while let Some(block) = blocks.get(at / BLOCK) {
                let is_lead = has(block.leads, at);
                if !has(block.classes[class], at) || at > start && has(boundaries[at / BLOCK], at) {
                    break;
                }
                if is_lead && count == max {
                    cut_at(boundaries, begin);
                    cut_at(boundaries, at);
                    (begin, count) = (at, 0);
                }
                count += u32::from(is_lead);
                at += 1;
            }
            if count >= min {
                cut_at(boundaries, begin);
                cut_at(boundaries, at);
            }
        }
    }
}

fn cut_digit_groups(
    blocks: &[BlockMaps],
    class: usize,
    before: usize,
    at_end: bool,
    of_run: GroupCuts,
    boundaries: &mut [u64],
) {
    let mut preceding = Before::default();
    for (index, block) in blocks.iter().enumerate() {
        let members = block.classes[class];
        let starts = members & (!preceding.then(members) | boundaries[index]);
        for start in ones(starts).map(|bit| index * BLOCK + bit) {
            let (mut end, mut count) = (start, 0);
            let is_cut = loop {
                match blocks.get(end / BLOCK) {
                    None => break at_end,
                    Some(_) if end > start && has(boundaries[end / BLOCK], end) => break at_end,
                    Some(block) if !has(block.classes[class], end) => break has(block.classes[before], end),
                    Some(block) => count += usize::from(has(block.leads, end)),
                }
                end += 1;
            };
            if is_cut {
                let leads = (start..end).filter(|at| has(blocks[at / BLOCK].leads, *at));
                of_run.for_each(leads, count, end, |at| cut_at(boundaries, at));
            }
        }
    }
}

/// Adds a cut, unless it is at the end of a text that fills its blocks.
fn cut_at(boundaries: &mut [u64], at: usize) {
    if let Some(word) = boundaries.get_mut(at / BLOCK) {
        *word |= 1 << (at % BLOCK);
    }
}

/// Runs of letters, of numbers and of what is neither nor whitespace, each with a blank in front if there is one; runs
/// of whitespace, without their last character if more follows in the pre-token; and contractions.
fn cut_byte_level(text: &[u8], blocks: &[BlockMaps], classes: ByteLevel, boundaries: &mut [u64]) {
    let mut before: [Before; 5] = Default::default();
    // The part of the last block's contractions that is in this one, and the bytes behind them.
    let (mut within, mut behind) = (0, 0);
    for (index, block) in blocks.iter().enumerate() {
        let at = index * BLOCK;
        let cut = boundaries[index];
        let map = |class: usize| block.classes[class];
        let (letter, number, space) = (map(classes.letter), map(classes.number), map(classes.space));
        let other = inside(!(letter | number | space), at, text.len());
        let [before_letter, before_number, before_other, before_space, before_blank] = &mut before;
        let starts = letter & (!before_letter.then(letter) | cut)
            | number & (!before_number.then(number) | cut)
            | other & (!before_other.then(other) | cut);
        let starts = starts & !(before_blank.then(map(classes.blank)) & !cut);

        let (mut contracted, mut after) = (u128::from(within), u128::from(behind));
        for bit in ones(starts & map(classes.apostrophe)) {
            let letters = contraction(&text[at + bit + 1..], false) as usize;
            let is_cut = |bit: usize| {
                boundaries.get((at + bit) / BLOCK).is_some_and(|word| word >> (bit % BLOCK) & 1 == 1)
            };
            if letters > 0 && !(bit + 1..=bit + letters).any(is_cut) {
                contracted |= ((1 << letters) - 1) << (bit + 1);
                after |= 1 << (bit + 1 + letters);
            }
        }
        (within, behind) = ((contracted >> BLOCK) as u64, (after >> BLOCK) as u64);

        let space_then = before_space.then(space);
        boundaries[index] |= starts & !contracted as u64 | after as u64 | space & (!space_then | cut);
        cut_before_last(blocks, index, space_then & !cut & (letter | number | other), boundaries);
    }
}
