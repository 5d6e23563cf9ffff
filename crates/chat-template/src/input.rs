//! Conversations as they come: JSON bytes, or values in memory. Both become the evaluator's values, each with its
//! origin; strings are borrowed, not copied.

use std::borrow::Cow;

use bumpalo::collections::Vec as BumpVec;
use gristmill_json::{Begin, MAX_DEPTH, Read, ReadError, Source, Text, Tree, Value, View};

use crate::error::{Error, ErrorKind, Result};
use crate::heap::Heap;
use crate::mask::CALLS;
use crate::number::MAX_DIGITS;
use crate::origin::{Key, Node, Origins, Root};
use crate::text::{Origin, Str};
use crate::value::{Big, Dict, Val};

/// An input: JSON text, or a value in memory.
#[derive(Debug, Clone, Copy)]
pub enum Data<'v> {
    /// JSON, read as Python's `json.loads` reads it.
    Json(&'v [u8]),
    /// A value of a record.
    View(View<'v>),
    /// A value in memory.
    Value(&'v Value<'v>),
}

/// The treatment of message fields that are None.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum NoneFields {
    /// They are left out, also where a struct of a row fills them in further inside, and reasoning is known by the names `reasoning_content` and `thinking`, whichever one the
    /// message has: as transformers 5.24 does it.
    #[default]
    Drop,
    /// They stay, and nothing is renamed: as transformers 4 to 5.10 do it.
    Keep,
}

/// The treatment of arguments of calls that are strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum StringArguments {
    /// They stay.
    #[default]
    Keep,
    /// Each that is the JSON of an object is that object.
    Decode,
}

/// Stands for a value whose type JSON lacks: a character that no text has. Every part of a string of it shows that there
/// was one.
pub(crate) const STAND_IN: &str = "\u{fdd0}";
/// The same in JSON of ASCII.
const ESCAPED_STAND_IN: &str = "\\ufdd0";
/// Up to how many entries of a dict are compared one by one to find a key that is there twice.
const SMALL_DICT: usize = 24;

/// The part of the input that is being read.
#[derive(Debug, Clone, Copy)]
struct Context {
    root: Root,
    message: u32,
    parent: u32,
    /// How many nodes are above: 0 for the input itself, 1 for a message, 2 for its parts.
    level: u32,
    part: u32,
}

/// Reads inputs into the memory of one rendering.
pub(crate) struct Reader<'a, 'r> {
    pub heap: &'a Heap<'a>,
    pub origins: &'r mut Origins,
    pub none_fields: NoneFields,
    string_arguments: StringArguments,
    items: BumpVec<'a, Val<'a>>,
    entries: BumpVec<'a, (Val<'a>, Val<'a>)>,
    depth: u32,
    /// The keys of values whose types JSON lacks, in place of which there are stand-ins.
    pub typed: Vec<String>,
}

impl<'a, 'r> Reader<'a, 'r> {
    pub(crate) fn new(
        heap: &'a Heap<'a>,
        origins: &'r mut Origins,
        none_fields: NoneFields,
        string_arguments: StringArguments,
    ) -> Self {
        let items = BumpVec::with_capacity_in(16, heap.bump());
        let entries = BumpVec::with_capacity_in(16, heap.bump());
        Self { heap, origins, none_fields, string_arguments, items, entries, depth: 0, typed: Vec::new() }
    }

    /// Reads an input that is known by this name.
    pub(crate) fn read(&mut self, data: Data<'a>, name: &str, root: Root) -> Result<Val<'a>> {
        let key = self.origins.name(name);
        let context = Context { root, message: 0, parent: 0, level: 0, part: 0 };
        let value = match data {
            Data::Json(bytes) => self.json(bytes, context, key),
            Data::View(view) => match view.source() {
                Source::Text(mut text) => self.value(&mut text, context, key),
                Source::Packed(mut packed) => self.value(&mut packed, context, key),
            },
            Data::Value(value) => self.value(&mut Tree(value), context, key),
        };
        value.map_err(|error| Error::new(error.kind(), format!("{name}: {}", error.message())))
    }

    /// Reads a dict of inputs, each known by its key.
    pub(crate) fn read_named(
        &mut self,
        data: Data<'a>,
        what: &str,
        root: Root,
    ) -> Result<&'a [(Val<'a>, Val<'a>)]> {
        match self.read(data, what, root)? {
            Val::Dict(dict) => Ok(dict.entries),
            _ => Err(input_error(format!("{what} must be an object"))),
        }
    }

    fn node(&mut self, context: Context, key: Key) -> u32 {
        let part = if context.level == 2 { self.origins.nodes.len() as u32 } else { context.part };
        let Context { root, message, parent, .. } = context;
        self.origins.add(Node { root, message, parent, part, key })
    }

    /// Where the values inside of a node are.
    fn inside(&self, context: Context, node: u32, index: u32) -> Context {
        // The elements of `messages` are the messages.
        let is_messages = context.root == Root::Message && context.level == 0;
        Context {
            root: context.root,
            message: if is_messages { index + 1 } else { context.message },
            parent: node,
            level: context.level + 1,
            part: self.origins.nodes[node as usize].part,
        }
    }

    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::Limit, ReadError::too_deep().to_string()));
        }
        Ok(())
    }

    fn json(&mut self, bytes: &'a [u8], context: Context, key: Key) -> Result<Val<'a>> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| input_error(format!("not UTF-8 at byte {}", error.valid_up_to())))?;
        let mut text = Text::new(text);
        let value = self.value(&mut text, context, key)?;
        text.end()?;
        Ok(value)
    }

    fn value<R: Read<'a>>(&mut self, reader: &mut R, context: Context, key: Key) -> Result<Val<'a>> {
        let begin = reader.begin()?;
        self.begun(begin, reader, context, key)
    }

    /// Reads on after the beginning of a value.
    fn begun<R: Read<'a>>(
        &mut self,
        begin: Begin<'a, R::Inside>,
        reader: &mut R,
        context: Context,
        key: Key,
    ) -> Result<Val<'a>> {
        if let Begin::Json(text) = begin {
            return self.value(&mut Text::new(text), context, key);
        }
        if let Begin::Str(text) = &begin
            && self.string_arguments == StringArguments::Decode
            && self.is_arguments(context, key)
            && is_object(text)
        {
            let text = self.text(text.clone())?;
            return self.value(&mut Text::new(text), context, key);
        }
        let node = self.node(context, key);
        let origin = Origin(node);
        Ok(match begin {
            Begin::Null | Begin::Filled | Begin::Json(_) => Val::None(origin),
            Begin::Typed => {
                self.note_typed(node);
                self.heap.str(Str::new(STAND_IN, origin))?
            }
            Begin::Bool(value) => Val::Bool(value, origin),
            Begin::Int(value) => Val::Int(value, origin),
            Begin::BigInt(digits) => self.integer(self.text(digits)?, origin)?,
            Begin::Float(value) => Val::Float(value, origin),
            Begin::Str(text) => self.heap.str(Str::new(self.text(text)?, origin))?,
            Begin::List(mut list) => {
                self.deeper()?;
                let begin = self.items.len();
                let mut index = 0;
                while reader.next_item(&mut list)? {
                    let item = self.value(reader, self.inside(context, node, index), Key::Index(index))?;
                    self.items.push(item);
                    index += 1;
                }
                self.depth -= 1;
                self.list(begin, origin)?
            }
            Begin::Object(mut object) => {
                self.deeper()?;
                let begin = self.entries.len();
                let inside = self.inside(context, node, 0);
                while let Some(name) = reader.next_key(&mut object)? {
                    let name = self.text(name)?;
                    let begin = reader.begin()?;
                    if matches!(begin, Begin::Filled) && self.none_fields == NoneFields::Drop {
                        continue;
                    }
                    let key = self.origins.name(name);
                    // A template that loops over an object may write its keys without the values.
                    let own = if inside.root == Root::Message && inside.level > 2 {
                        Origin(self.node(inside, key))
                    } else {
                        origin
                    };
                    let value = self.begun(begin, reader, inside, key)?;
                    self.entries.push((self.heap.str(Str::new(name, own))?, value));
                }
                self.depth -= 1;
                self.dict(begin, origin, is_message(context))?
            }
        })
    }

    /// Whether a key is that of the arguments of a call.
    fn is_arguments(&self, context: Context, key: Key) -> bool {
        let is = |key, name| self.origins.key_text(key) == Some(name);
        context.root == Root::Message
            && is(key, "arguments")
            && self.origins.path(context.parent).iter().any(|key| CALLS.iter().any(|name| is(*key, *name)))
    }

    /// Notes the key of a value whose type JSON lacks.
    fn note_typed(&mut self, node: u32) {
        let path = self.origins.path(node);
        let name = path.iter().rev().find_map(|key| self.origins.key_text(*key)).unwrap_or_default();
        let name = format!("{name:?}");
        if !self.typed.contains(&name) {
            self.typed.push(name);
        }
    }

    fn text(&self, text: Cow<'a, str>) -> Result<&'a str> {
        match text {
            Cow::Borrowed(text) => Ok(text),
            Cow::Owned(text) => self.heap.text(&text),
        }
    }

    /// An integer in decimal digits.
    fn integer(&self, digits: &'a str, origin: Origin) -> Result<Val<'a>> {
        if let Ok(value) = digits.parse() {
            return Ok(Val::Int(value, origin));
        }
        let magnitude = digits.strip_prefix('-').unwrap_or(digits);
        if magnitude.is_empty() || !magnitude.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(input_error(format!("'{digits}' is no integer")));
        }
        if magnitude.len() > MAX_DIGITS {
            return Err(input_error("an integer of more than 4300 digits, which Python refuses"));
        }
        let plain = magnitude.trim_start_matches('0');
        if plain.len() == magnitude.len() {
            return Ok(Val::Big(self.heap.alloc(Big { digits, origin })?));
        }
        let sign = if magnitude.len() == digits.len() { "" } else { "-" };
        self.integer(self.heap.text(&format!("{sign}{plain}"))?, origin)
    }

    /// Makes a list of the items since `begin`.
    fn list(&mut self, begin: usize, origin: Origin) -> Result<Val<'a>> {
        let items = self.heap.slice(&self.items[begin..])?;
        self.items.truncate(begin);
        self.heap.list(items, origin)
    }

    /// Makes a dict of the entries since `begin`.
    fn dict(&mut self, begin: usize, origin: Origin, is_message: bool) -> Result<Val<'a>> {
        self.drop_repeated(begin);
        if is_message && self.none_fields == NoneFields::Drop {
            self.normalize_message(begin)?;
        }
        let entries = self.heap.slice(&self.entries[begin..])?;
        self.entries.truncate(begin);
        Ok(Val::Dict(self.heap.alloc(Dict::new(entries, origin))?))
    }

    /// Keeps the first one's index and the last one's value of entries with one key.
    fn drop_repeated(&mut self, begin: usize) {
        let entries = &mut self.entries[begin..];
        let text = |entry: &(Val<'a>, Val<'a>)| entry.0.as_str().map_or("", |key| key.text);
        let repeated = if entries.len() <= SMALL_DICT {
            (1..entries.len()).any(|at| entries[..at].iter().any(|other| text(other) == text(&entries[at])))
        } else {
            let mut seen = std::collections::HashSet::with_capacity(entries.len());
            !entries.iter().all(|entry| seen.insert(text(entry)))
        };
        if !repeated {
            return;
        }
        let mut numbers = std::collections::HashMap::new();
        let mut kept = 0;
        for at in 0..entries.len() {
            let entry = entries[at];
            let number = *numbers.entry(text(&entry)).or_insert(kept);
            if number == kept {
                entries[kept] = entry;
                kept += 1;
            } else {
                entries[number].1 = entry.1;
            }
        }
        self.entries.truncate(begin + kept);
    }

    /// Leaves out fields that are None, and gives reasoning its two names.
    fn normalize_message(&mut self, begin: usize) -> Result<()> {
        let special = |(key, value): &(Val<'a>, Val<'a>)| {
            let name = key.as_str().map_or("", |key| key.text);
            matches!(value, Val::None(_)) || matches!(name, "reasoning_content" | "thinking" | "reasoning")
        };
        if !self.entries[begin..].iter().any(special) {
            return Ok(());
        }
        let mut kept = begin;
        for at in begin..self.entries.len() {
            if !matches!(self.entries[at].1, Val::None(_)) {
                self.entries[kept] = self.entries[at];
                kept += 1;
            }
        }
        self.entries.truncate(kept);
        let find = |entries: &[(Val<'a>, Val<'a>)], name: &str| {
            entries.iter().position(|(key, _)| key.is_text(name))
        };
        let message = &self.entries[begin..];
        let names = ["reasoning_content", "thinking", "reasoning"];
        let Some(at) = names.into_iter().find_map(|name| find(message, name)) else { return Ok(()) };
        let (_, reasoning) = message[at];
        let heap = self.heap;
        let key = |name| heap.str(Str::new(name, reasoning.origin()));
        match find(message, "reasoning_content") {
            Some(at) => self.entries[begin + at].1 = reasoning,
            None => self.entries.push((key("reasoning_content")?, reasoning)),
        }
        match find(&self.entries[begin..], "thinking") {
            // It comes first, as in a dict that begins with it, and keeps its own value.
            Some(at) => self.entries[begin..=begin + at].rotate_right(1),
            None => self.entries.insert(begin, (key("thinking")?, reasoning)),
        }
        Ok(())
    }
}

/// Whether a string is the JSON of an object.
fn is_object(text: &str) -> bool {
    let mut json = Text::new(text);
    text.trim_start().starts_with('{') && Value::read(&mut json, true).is_ok() && json.end().is_ok()
}

impl From<ReadError> for Error {
    #[cold]
    fn from(error: ReadError) -> Self {
        input_error(error.to_string())
    }
}

/// Checks that no stand-in is in a text that was rendered, if there are any, for values under the keys `typed`.
pub(crate) fn check_printed(typed: &[String], text: &str) -> Result<()> {
    if typed.is_empty() || ![STAND_IN, ESCAPED_STAND_IN].iter().any(|found| text.contains(found)) {
        return Ok(());
    }
    Err(input_error(format!(
        "expected values that JSON has where the template prints them, found a date, a time, a duration, a decimal, bytes or \
         NaN under {}; write them as strings or numbers",
        typed.join(", ")
    )))
}

pub(crate) fn input_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Input, message)
}

fn is_message(context: Context) -> bool {
    context.root == Root::Message && context.level == 1
}
