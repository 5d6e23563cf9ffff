//! The values that a template computes with: Python's, as far as templates can make them. None of them can be changed
//! once it is made, as the sandbox forbids it, except for namespaces and for iterators, which move on.

use std::cell::{Cell, OnceCell, RefCell};
use std::hash::{DefaultHasher, Hasher};

use crate::ast::{Expr, For, MacroDef};
use crate::attribute::Attribute;
use crate::error::Result;
use crate::eval::iterate::Generator;
use crate::eval::looping::LoopState;
use crate::heap::Heap;
use crate::text::{Origin, Str};

/// A value. It is small and copied freely; what it points to lives as long as the rendering.
#[derive(Clone, Copy)]
pub(crate) enum Val<'a> {
    /// A variable into which nothing was stored yet. Python raises when it is read.
    Unbound,
    /// The value of a variable that is jinja2's `missing`.
    Missing,
    Undefined(&'a Undefined<'a>),
    None(Origin),
    Bool(bool, Origin),
    Int(i64, Origin),
    /// An integer beyond i64.
    Big(&'a Big<'a>),
    Float(f64, Origin),
    Str(&'a Str<'a>),
    /// A string that `|safe` or `|escape` marked: what is added to it is escaped.
    Markup(&'a Str<'a>),
    List(&'a List<'a>),
    Tuple(&'a List<'a>),
    Dict(&'a Dict<'a>),
    View(View, &'a Dict<'a>),
    Range(&'a Range),
    Generator(&'a Generator<'a>),
    Namespace(&'a Namespace<'a>),
    Macro(&'a Macro<'a>),
    Loop(&'a LoopState<'a>),
    Method(&'a Method<'a>),
    Function(Function),
}

/// The elements of a list or tuple.
#[derive(Clone, Copy)]
pub(crate) struct List<'a> {
    pub items: &'a [Val<'a>],
    pub origin: Origin,
}

/// A long integer: its decimal digits, without superfluous ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Big<'a> {
    pub digits: &'a str,
    pub origin: Origin,
}

/// Why a value is undefined; becomes the message when it is used.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Undefined<'a> {
    /// No variable of this name.
    Name(&'a str),
    /// No such attribute of a value of this type.
    Attr(&'static str, &'a str),
    /// No such element of a value of this type.
    Element(&'static str),
    /// A method that would change the value, which the sandbox hides.
    Unsafe(&'static str, &'a str),
    /// A parameter of a macro without a value.
    Param(&'a str),
    Hint(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Keys,
    Values,
    Items,
}

/// A dict. Its entries keep their order.
pub(crate) struct Dict<'a> {
    pub entries: &'a [(Val<'a>, Val<'a>)],
    pub origin: Origin,
    /// The index of a large dict: a hash table of the entries whose keys are strings.
    index: OnceCell<&'a [u32]>,
}

/// Up to how many entries a dict is searched one by one.
const SMALL_DICT: usize = 16;

impl<'a> Dict<'a> {
    pub(crate) fn new(entries: &'a [(Val<'a>, Val<'a>)], origin: Origin) -> Self {
        Self { entries, origin, index: OnceCell::new() }
    }

    /// The value of a key that is a string.
    #[inline]
    pub(crate) fn get(&self, key: &str, heap: &Heap<'a>) -> Result<Option<Val<'a>>> {
        heap.work(key.len())?;
        if self.entries.len() <= SMALL_DICT {
            let found = self.entries.iter().find(|(name, _)| name.is_text(key));
            return Ok(found.map(|(_, value)| *value));
        }
        self.get_indexed(key, heap)
    }

    fn get_indexed(&self, key: &str, heap: &Heap<'a>) -> Result<Option<Val<'a>>> {
        let index = if let Some(index) = self.index.get() {
            index
        } else {
            let made = self.make_index(heap)?;
            self.index.get_or_init(|| made)
        };
        let mut at = hash(key) as usize;
        loop {
            heap.step()?;
            let entry = index[at & (index.len() - 1)];
            if entry == 0 {
                return Ok(None);
            }
            let (name, value) = &self.entries[entry as usize - 1];
            if name.is_text(key) {
                return Ok(Some(*value));
            }
            at += 1;
        }
    }

    fn make_index(&self, heap: &Heap<'a>) -> Result<&'a [u32]> {
        let size = (self.entries.len() * 2).next_power_of_two();
        heap.charge(size * 4)?;
        let index = heap.bump().alloc_slice_fill_copy(size, 0_u32);
        for (entry, (key, _)) in self.entries.iter().enumerate() {
            let Some(text) = key.as_str() else { continue };
            let mut at = hash(text.text) as usize;
            while index[at & (size - 1)] != 0 {
                heap.step()?;
                at += 1;
            }
            index[at & (size - 1)] = entry as u32 + 1;
        }
        Ok(index)
    }
}

/// A hash that is the same in each run, so that bounds are exceeded by the same conversations in each run.
fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub start: i64,
    pub step: i64,
    pub length: i64,
    pub stop: i64,
}

/// `namespace(...)`: the one thing that a template can change.
pub(crate) struct Namespace<'a> {
    pub entries: RefCell<bumpalo::collections::Vec<'a, (Str<'a>, Val<'a>)>>,
}

impl<'a> Namespace<'a> {
    pub(crate) fn get(&self, name: &str, heap: &Heap<'a>) -> Result<Option<Val<'a>>> {
        let entries = self.entries.borrow();
        heap.work(entries.len() * 16)?;
        Ok(entries.iter().find(|(key, _)| key.text == name).map(|(_, value)| *value))
    }

    pub(crate) fn set(&self, name: Str<'a>, value: Val<'a>, heap: &Heap<'a>) -> Result<()> {
        let mut entries = self.entries.borrow_mut();
        heap.work(entries.len() * 16)?;
        if let Some((_, old)) = entries.iter_mut().find(|(key, _)| key.text == name.text) {
            *old = value;
        } else {
            heap.charge(2 * size_of::<(Str<'a>, Val<'a>)>())?;
            entries.push((name, value));
        }
        Ok(())
    }
}

/// The variables of one call of a function: the template, a macro, a recursive loop, a loop's test.
pub(crate) struct Frame<'a> {
    pub slots: &'a [Cell<Val<'a>>],
    pub outer: Option<&'a Frame<'a>>,
}

pub(crate) struct Macro<'a> {
    pub def: &'a MacroDef,
    pub frame: &'a Frame<'a>,
}

/// A method that was read but not called yet.
pub(crate) struct Method<'a> {
    pub this: Val<'a>,
    pub method: Attribute,
}

/// Functions that every template has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
}

/// The parts of a recursive loop that it runs again.
#[derive(Clone, Copy)]
pub(crate) struct Recursion<'a> {
    pub node: &'a For,
    pub frame: &'a Frame<'a>,
}

/// The test of a `for` loop, with the activation of its own.
#[derive(Clone, Copy)]
pub(crate) struct Condition<'a> {
    pub test: &'a Expr,
    pub node: &'a crate::ast::LoopTest,
    pub frame: &'a Frame<'a>,
}

impl<'a> Val<'a> {
    /// The string, marked or not.
    #[inline]
    pub(crate) fn as_str(&self) -> Option<Str<'a>> {
        match self {
            Self::Str(string) | Self::Markup(string) => Some(**string),
            _ => None,
        }
    }

    /// Whether this is a string of this text.
    #[inline]
    pub(crate) fn is_text(&self, text: &str) -> bool {
        matches!(self, Self::Str(string) | Self::Markup(string) if string.text == text)
    }

    pub(crate) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// Where a value comes from, as far as it has one origin.
    pub(crate) fn origin(&self) -> Origin {
        match self {
            Self::None(origin) | Self::Bool(_, origin) | Self::Int(_, origin) | Self::Float(_, origin) => {
                *origin
            }
            Self::Big(big) => big.origin,
            Self::List(list) | Self::Tuple(list) => list.origin,
            Self::Str(string) | Self::Markup(string) => string.origin(),
            Self::Dict(dict) | Self::View(_, dict) => dict.origin,
            _ => Origin::TEMPLATE,
        }
    }

    /// The name of the type, as Python says it.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Unbound | Self::Missing => "missing",
            Self::Undefined(_) => "Undefined",
            Self::None(_) => "None",
            Self::Bool(..) => "bool",
            Self::Int(..) | Self::Big(_) => "int",
            Self::Float(..) => "float",
            Self::Str(_) => "str",
            Self::Markup(_) => "Markup",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::View(View::Keys, _) => "dict_keys",
            Self::View(View::Values, _) => "dict_values",
            Self::View(View::Items, _) => "dict_items",
            Self::Range(_) => "range",
            Self::Generator(_) => "generator",
            Self::Namespace(_) => "namespace",
            Self::Macro(_) => "macro",
            Self::Loop(_) => "loop",
            Self::Method(_) => "method",
            Self::Function(_) => "function",
        }
    }
}

impl Undefined<'_> {
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Name(name) => format!("'{name}' is undefined"),
            Self::Attr("None", name) => format!("'None' has no attribute '{name}'"),
            Self::Attr(kind, name) => format!("'{kind} object' has no attribute '{name}'"),
            Self::Element("None") => "None has no such element".to_owned(),
            Self::Element(kind) => format!("{kind} object has no such element"),
            Self::Unsafe(kind, name) => format!("access to attribute '{name}' of '{kind}' object is unsafe"),
            Self::Param(name) => format!("parameter '{name}' was not provided"),
            Self::Hint(hint) => (*hint).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_small() {
        assert_eq!(size_of::<Val<'_>>(), 16);
        assert_eq!(size_of::<Result<Val<'_>>>(), 16);
    }
}
