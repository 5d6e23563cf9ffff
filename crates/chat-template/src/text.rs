//! Strings that know where their bytes come from.

use crate::error::{Error, ErrorKind, Result};
use crate::heap::Heap;

/// Where bytes come from: an index into the rendering's table of origins. See `origin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin(pub u32);

impl Origin {
    /// The template's own text.
    pub(crate) const TEMPLATE: Self = Self(0);

    /// The origin of what is computed from two values: that of the first one that is not the template's.
    pub(crate) fn or(self, other: Self) -> Self {
        if self == Self::TEMPLATE { other } else { self }
    }
}

/// A run of bytes with one origin. Runs that follow one another stay apart even if they agree: where one write ends
/// and the next one begins is what masks are cut at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub end: u32,
    pub origin: Origin,
    /// The message that was being rendered, counted from 1; 0: none.
    pub owner: u32,
    /// The outermost statement that ends with the run: inside of how many others it wrote; [`INSIDE`]: none ends there.
    pub border: u32,
}

/// The border of a run that ends inside of a statement.
pub(crate) const INSIDE: u32 = u32::MAX;

/// A string: its text and where it comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Str<'a> {
    pub text: &'a str,
    /// An origin, or an index into the heap's table of mixes.
    from: u32,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Many,
}

/// Several runs. The string's first byte is the byte `start` in the runs' numbering.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mix<'a> {
    runs: &'a [Run],
    start: u32,
}

impl<'a> Str<'a> {
    pub(crate) const EMPTY: Self = Self::new("", Origin::TEMPLATE);

    pub(crate) const fn new(text: &'a str, origin: Origin) -> Self {
        Self { text, from: origin.0, kind: Kind::One }
    }

    /// A text of several runs.
    pub(crate) fn of_runs(text: &'a str, runs: &'a [Run], heap: &Heap<'a>) -> Result<Self> {
        Self::many(text, Mix { runs, start: 0 }, heap)
    }

    /// The part of this string that `part`, a slice of its text, is.
    #[inline]
    pub(crate) fn part(self, part: &'a str, heap: &Heap<'a>) -> Result<Self> {
        match self.kind {
            Kind::One => Ok(Self { text: part, ..self }),
            Kind::Many => self.part_of_many(part, heap),
        }
    }

    fn part_of_many(self, part: &'a str, heap: &Heap<'a>) -> Result<Self> {
        let mix = heap.mix(self.from);
        let at = (part.as_ptr() as usize) - (self.text.as_ptr() as usize);
        let start = mix.start + at as u32;
        let end = start + part.len() as u32;
        let first = mix.runs.partition_point(|run| run.end <= start);
        match mix.runs.get(first) {
            None => Ok(Self::new(part, Origin::TEMPLATE)),
            Some(run) if run.end >= end && run.owner == 0 => Ok(Self::new(part, run.origin)),
            Some(_) => Self::many(part, Mix { runs: &mix.runs[first..], start }, heap),
        }
    }

    fn many(text: &'a str, mix: Mix<'a>, heap: &Heap<'a>) -> Result<Self> {
        Ok(Self { text, from: heap.add_mix(mix)?, kind: Kind::Many })
    }

    /// Where all of the string comes from; the template, if it has several origins.
    pub(crate) fn origin(self) -> Origin {
        self.only_origin().unwrap_or(Origin::TEMPLATE)
    }

    /// The one origin that all bytes have, if it is one.
    pub(crate) fn only_origin(self) -> Option<Origin> {
        (self.kind == Kind::One).then_some(Origin(self.from))
    }

    /// Each run of the string, with its text.
    pub(crate) fn runs(self, heap: &Heap<'a>) -> Runs<'a> {
        if let Some(origin) = self.only_origin() {
            Runs { rest: self.text, one: Some(origin), many: &[], at: 0 }
        } else {
            let Mix { runs, start } = heap.mix(self.from);
            Runs { rest: self.text, one: None, many: runs, at: start }
        }
    }
}

/// The runs of a string.
#[derive(Debug, Clone)]
pub(crate) struct Runs<'a> {
    rest: &'a str,
    one: Option<Origin>,
    many: &'a [Run],
    at: u32,
}

impl<'a> Iterator for Runs<'a> {
    type Item = (&'a str, Run);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        if let Some(origin) = self.one {
            let text = std::mem::take(&mut self.rest);
            return Some((text, Run { end: text.len() as u32, origin, owner: 0, border: INSIDE }));
        }
        let (run, runs) = self.many.split_first()?;
        let length = (run.end - self.at) as usize;
        let border = if length > self.rest.len() { INSIDE } else { run.border };
        let (text, rest) = self.rest.split_at(length.min(self.rest.len()));
        (self.rest, self.many, self.at) = (rest, runs, run.end);
        Some((text, Run { border, ..*run }))
    }
}

/// Where a string begins in the output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    text: usize,
    runs: usize,
}

/// Text under construction: the output, and above it the strings that are being put together, like a stack.
pub(crate) struct Output<'a> {
    heap: &'a Heap<'a>,
    pub text: String,
    pub runs: Vec<Run>,
    /// Bytes that the text may have.
    pub limit: usize,
    /// The message that is being rendered, counted from 1; 0: none.
    pub owner: u32,
    /// How many statements are writing at the moment.
    pub writing: u32,
}

impl<'a> Output<'a> {
    pub(crate) fn new(heap: &'a Heap<'a>, limit: usize) -> Self {
        Self {
            heap,
            text: String::with_capacity(4096),
            runs: Vec::with_capacity(128),
            limit,
            owner: 0,
            writing: 0,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, text: &str, origin: Origin) -> Result<()> {
        self.push_run(text, origin, self.owner, INSIDE)
    }

    #[inline]
    fn push_run(&mut self, text: &str, origin: Origin, owner: u32, border: u32) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if text.len() > self.limit - self.text.len() {
            return Err(too_long());
        }
        self.heap.work(text.len())?;
        self.text.push_str(text);
        self.runs.push(Run { end: self.text.len() as u32, origin, owner, border });
        Ok(())
    }

    #[inline]
    pub(crate) fn push_str(&mut self, string: Str<'a>) -> Result<()> {
        match string.only_origin() {
            Some(origin) => self.push(string.text, origin),
            None => self.push_many(string),
        }
    }

    fn push_many(&mut self, string: Str<'a>) -> Result<()> {
        let current = self.owner;
        string.runs(self.heap).try_for_each(|(text, run)| {
            self.push_run(text, run.origin, if current == 0 { run.owner } else { current }, run.border)
        })
    }

    /// Ends a statement that began to write at the mark.
    #[inline]
    pub(crate) fn end_statement(&mut self, mark: Mark) {
        let writing = self.writing;
        if let Some(run) = self.runs[mark.runs..].last_mut() {
            run.border = run.border.min(writing);
        }
    }

    #[inline]
    pub(crate) fn mark(&self) -> Mark {
        Mark { text: self.text.len(), runs: self.runs.len() }
    }

    /// Drops what was written since the mark.
    pub(crate) fn truncate(&mut self, mark: Mark) {
        self.text.truncate(mark.text);
        self.runs.truncate(mark.runs);
    }

    /// Takes what was written since the mark, as a string of its own.
    pub(crate) fn take(&mut self, mark: Mark) -> Result<Str<'a>> {
        let text = self.heap.text(&self.text[mark.text..])?;
        let string = match &mut self.runs[mark.runs..] {
            [] => Str::new(text, Origin::TEMPLATE),
            [run] if run.owner == self.owner => Str::new(text, run.origin),
            runs => {
                for run in runs.iter_mut() {
                    run.end -= mark.text as u32;
                    if run.owner == self.owner {
                        run.owner = 0;
                    }
                }
                Str::many(text, Mix { runs: self.heap.slice(runs)?, start: 0 }, self.heap)?
            }
        };
        self.truncate(mark);
        Ok(string)
    }

    /// Appends without a run of its own. [`Output::close`] ends the run.
    pub(crate) fn open(&mut self, text: &str) -> Result<()> {
        if text.len() > self.limit - self.text.len() {
            return Err(too_long());
        }
        self.text.push_str(text);
        Ok(())
    }

    /// Ends the run of all that was appended since the last run's end.
    pub(crate) fn close(&mut self, origin: Origin) {
        let end = self.text.len() as u32;
        if self.runs.last().map_or(0, |run| run.end) < end {
            self.runs.push(Run { end, origin, owner: self.owner, border: INSIDE });
        }
    }
}

#[cold]
fn too_long() -> Error {
    Error::new(ErrorKind::Limit, "the rendered text is longer than is allowed")
}
