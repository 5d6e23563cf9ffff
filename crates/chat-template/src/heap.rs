//! The memory of one rendering: everything that a template computes lives until the text is finished, within bounds.

use std::cell::{Cell, RefCell};

use bumpalo::Bump;

use crate::error::{Error, ErrorKind, Result};
use crate::text::{Mix, Origin, Str};
use crate::value::{List, Val};

/// Bounds on one rendering. A rendering that exceeds one is an error of kind [`ErrorKind::Limit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Steps: statements and expressions evaluated, and one more for each 64 bytes that an operation reads or writes.
    pub steps: u64,
    /// Bytes of all values that are computed, beside the input.
    pub memory: usize,
    /// Bytes of the rendered text. At most 2^31.
    pub output: usize,
    /// How deep statements, expressions, macros and values may nest. Each level takes up to 1 KiB of the stack.
    pub depth: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: 50_000_000, memory: 1 << 28, output: 1 << 27, depth: 1000 }
    }
}

pub(crate) struct Heap<'a> {
    bump: &'a Bump,
    bytes_left: Cell<usize>,
    steps_left: Cell<u64>,
    /// The runs of strings that have several.
    mixes: RefCell<bumpalo::collections::Vec<'a, Mix<'a>>>,
}

impl<'a> Heap<'a> {
    pub(crate) fn new(bump: &'a Bump, limits: &Limits) -> Self {
        Self {
            bump,
            bytes_left: Cell::new(limits.memory),
            steps_left: Cell::new(limits.steps),
            mixes: bumpalo::collections::Vec::new_in(bump).into(),
        }
    }

    pub(crate) fn bump(&self) -> &'a Bump {
        self.bump
    }

    /// Counts one step.
    #[inline]
    pub(crate) fn step(&self) -> Result<()> {
        self.steps(1)
    }

    /// Counts steps.
    #[inline]
    pub(crate) fn steps(&self, steps: u64) -> Result<()> {
        match self.steps_left.get().checked_sub(steps) {
            Some(left) => {
                self.steps_left.set(left);
                Ok(())
            }
            None => Err(too_many_steps()),
        }
    }

    /// Counts the steps of an operation that reads or writes so many bytes.
    #[inline]
    pub(crate) fn work(&self, bytes: usize) -> Result<()> {
        self.steps(bytes as u64 / 64)
    }

    /// Takes bytes of the memory that is allowed, before they are used.
    #[inline]
    pub(crate) fn charge(&self, bytes: usize) -> Result<()> {
        match self.bytes_left.get().checked_sub(bytes) {
            Some(left) => {
                self.bytes_left.set(left);
                self.work(bytes)
            }
            None => Err(Error::new(ErrorKind::Limit, "the template uses more memory than is allowed")),
        }
    }

    pub(crate) fn mix(&self, index: u32) -> Mix<'a> {
        self.mixes.borrow()[index as usize]
    }

    /// Keeps the runs of a string. Gives their index.
    pub(crate) fn add_mix(&self, mix: Mix<'a>) -> Result<u32> {
        self.charge(2 * size_of::<Mix<'a>>())?;
        let mut mixes = self.mixes.borrow_mut();
        mixes.push(mix);
        Ok(mixes.len() as u32 - 1)
    }

    /// A string as a value.
    #[inline]
    pub(crate) fn str(&self, string: Str<'a>) -> Result<Val<'a>> {
        Ok(Val::Str(self.alloc(string)?))
    }

    /// A string that the template holds, as a value.
    #[inline]
    pub(crate) fn constant(&self, text: &'a str) -> Result<Val<'a>> {
        self.str(Str::new(text, Origin::TEMPLATE))
    }

    pub(crate) fn markup(&self, string: Str<'a>) -> Result<Val<'a>> {
        Ok(Val::Markup(self.alloc(string)?))
    }

    pub(crate) fn list(&self, items: &'a [Val<'a>], origin: Origin) -> Result<Val<'a>> {
        Ok(Val::List(self.alloc(List { items, origin })?))
    }

    pub(crate) fn tuple(&self, items: &'a [Val<'a>]) -> Result<Val<'a>> {
        Ok(Val::Tuple(self.alloc(List { items, origin: Origin::TEMPLATE })?))
    }

    pub(crate) fn text(&self, text: &str) -> Result<&'a str> {
        self.charge(text.len())?;
        Ok(self.bump.alloc_str(text))
    }

    pub(crate) fn slice<T: Copy>(&self, items: &[T]) -> Result<&'a [T]> {
        self.charge(size_of_val(items))?;
        Ok(self.bump.alloc_slice_copy(items))
    }

    pub(crate) fn alloc<T>(&self, value: T) -> Result<&'a T> {
        self.charge(size_of::<T>())?;
        Ok(self.bump.alloc(value))
    }
}

#[cold]
fn too_many_steps() -> Error {
    Error::new(ErrorKind::Limit, "the template takes more steps than are allowed")
}
