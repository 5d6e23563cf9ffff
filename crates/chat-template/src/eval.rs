//! The evaluator: walks the tree, writes the text, and keeps track of where each byte comes from.

pub(crate) mod access;
mod call;
pub(crate) mod expression;
pub(crate) mod iterate;
pub(crate) mod looping;
mod operators;
mod statement;
pub(crate) mod strings;

use std::cell::Cell;
use std::sync::Arc;

use crate::ast::{Load, Name, Scope, Variable};
use crate::error::{Error, ErrorKind, Result};
use crate::heap::{Heap, Limits};
use crate::origin::Origins;
use crate::program::Program;
use crate::strftime::DateTime;
use crate::text::Output;
use crate::value::{Frame, Namespace, Undefined, Val};

/// The surroundings that a template may look at beside its values.
pub(crate) struct Setting<'a> {
    /// The value of each of the template's names that it was given, else `Val::Missing`.
    pub globals: &'a [Val<'a>],
    /// The table of origins.
    pub origins: Arc<Origins>,
    /// The time that `strftime_now` prints.
    pub now: Option<DateTime>,
}

pub(crate) struct Eval<'a> {
    pub heap: &'a Heap<'a>,
    pub out: Output<'a>,
    /// The ranges of generation blocks, in bytes of the output.
    pub generations: Vec<(u32, u32)>,
    /// A generation block was inside of something that collects its text, where transformers misplaces it.
    pub misplaced_generation: bool,
    program: &'a Program,
    setting: Setting<'a>,
    /// The variables assigned at the top level: macros see them.
    exported: &'a [Cell<Val<'a>>],
    /// The namespaces whose text is being written.
    printing: Vec<&'a Namespace<'a>>,
    depth_left: u32,
    /// How many macros, blocks and so on are collecting text at the moment.
    captures: u32,
}

impl<'a> Eval<'a> {
    pub(crate) fn new(
        program: &'a Program,
        heap: &'a Heap<'a>,
        setting: Setting<'a>,
        limits: &Limits,
    ) -> Self {
        let exported = heap.bump().alloc_slice_fill_with(program.names.len(), |_| Cell::new(Val::Missing));
        Self {
            heap,
            out: Output::new(heap, limits.output.min(1 << 31)),
            generations: Vec::new(),
            misplaced_generation: false,
            program,
            setting,
            exported,
            printing: Vec::new(),
            depth_left: limits.depth,
            captures: 0,
        }
    }

    /// Renders the template into the output.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.run_from(0)
    }

    /// Runs the template's statements from this one on.
    pub(crate) fn run_from(&mut self, first: usize) -> Result<()> {
        let program = self.program;
        let frame = self.frame(program.root.slots, None)?;
        self.enter(&program.root.scope, frame)?;
        self.body(&program.body[first..], frame)?;
        Ok(())
    }

    /// Runs a part one level deeper.
    #[inline]
    pub(crate) fn nested<T>(&mut self, part: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth_left == 0 {
            return Err(too_deep());
        }
        self.depth_left -= 1;
        let result = part(self);
        self.depth_left += 1;
        result
    }

    /// The variables of a new call of a function.
    fn frame(&self, slots: u16, outer: Option<&'a Frame<'a>>) -> Result<&'a Frame<'a>> {
        self.heap.charge(usize::from(slots) * size_of::<Val<'a>>())?;
        let slots = self.heap.bump().alloc_slice_fill_with(slots.into(), |_| Cell::new(Val::Unbound));
        self.heap.alloc(Frame { slots, outer })
    }

    fn enter(&self, scope: &Scope, frame: &'a Frame<'a>) -> Result<()> {
        self.heap.steps(scope.enter.len() as u64)?;
        for load in &scope.enter {
            let (slot, value) = match *load {
                Load::Resolve { slot, name } => (slot, self.resolve(name)),
                Load::Alias { slot, from } => (slot, read_variable(from, frame)?),
                Load::Unset { slot } => (slot, Val::Missing),
            };
            frame.slots[usize::from(slot)].set(value);
        }
        Ok(())
    }

    fn leave(scope: &Scope, frame: &'a Frame<'a>) {
        for slot in &scope.leave {
            frame.slots[usize::from(*slot)].set(Val::Missing);
        }
    }

    /// A name of the context: what was set at the top level so far, else what the template was given.
    fn resolve(&self, name: u32) -> Val<'a> {
        match self.exported[name as usize].get() {
            Val::Missing => self.setting.globals[name as usize],
            value => value,
        }
    }

    #[cold]
    pub(crate) fn undefined(&self, why: Undefined<'a>) -> Result<Val<'a>> {
        Ok(Val::Undefined(self.heap.alloc(why)?))
    }

    #[inline]
    fn load(&self, name: &Name, frame: &'a Frame<'a>) -> Result<Val<'a>> {
        match read_variable(name.variable, frame)? {
            Val::Missing if name.may_miss => {
                self.undefined(Undefined::Name(self.program.names.text(name.id)))
            }
            Val::Missing => Err(Error::unsupported("a variable that is read after its loop has ended")),
            value => Ok(value),
        }
    }
}

/// The value of a variable.
#[inline]
fn read_variable<'a>(variable: Variable, frame: &'a Frame<'a>) -> Result<Val<'a>> {
    let mut frame = frame;
    for _ in 0..variable.up {
        frame = frame.outer.unwrap_or(frame);
    }
    match frame.slots[usize::from(variable.slot)].get() {
        Val::Unbound => Err(Error::runtime("a variable is read before its scope sets it")),
        value => Ok(value),
    }
}

#[cold]
fn too_deep() -> Error {
    Error::new(ErrorKind::Limit, "the template nests deeper than is allowed")
}

/// The error of using an undefined value.
#[cold]
pub(crate) fn undefined_error(undefined: &Undefined<'_>) -> Error {
    Error::runtime(undefined.message())
}
