//! From values to text: `str()`, `repr()`, and escaping.

use super::Eval;
use crate::error::{Error, Result};
use crate::number::float_text;
use crate::text::{Mark, Origin, Str};
use crate::unicode::is_printable;
use crate::value::{Namespace, Val, View};

impl<'a> Eval<'a> {
    /// Writes `str(value)`.
    #[inline]
    pub(crate) fn write(&mut self, value: &Val<'a>) -> Result<()> {
        match value {
            Val::Str(string) | Val::Markup(string) => self.out.push_str(**string),
            Val::Undefined(_) => Ok(()),
            _ => self.repr(value),
        }
    }

    /// The text written since `mark`, as a string.
    pub(crate) fn take_str(&mut self, mark: Mark) -> Result<Val<'a>> {
        let text = self.out.take(mark)?;
        self.heap.str(text)
    }

    /// The same as a string that is marked as safe.
    pub(crate) fn take_markup(&mut self, mark: Mark) -> Result<Val<'a>> {
        let text = self.out.take(mark)?;
        self.heap.markup(text)
    }

    /// `str(value)`.
    pub(crate) fn text_of(&mut self, value: &Val<'a>) -> Result<Str<'a>> {
        match value {
            Val::Str(string) | Val::Markup(string) => Ok(**string),
            Val::Undefined(_) => Ok(Str::EMPTY),
            _ => {
                let mark = self.out.mark();
                self.repr(value)?;
                self.out.take(mark)
            }
        }
    }

    /// Writes a string as Markup takes it in: escaped, unless it is Markup itself.
    pub(crate) fn write_escaped(&mut self, value: &Val<'a>) -> Result<()> {
        if let Val::Markup(string) = value {
            return self.out.push_str(**string);
        }
        let string = self.text_of(value)?;
        for (text, run) in string.runs(self.heap) {
            self.heap.work(text.len())?;
            for c in text.chars() {
                match c {
                    '&' => self.out.open("&amp;")?,
                    '<' => self.out.open("&lt;")?,
                    '>' => self.out.open("&gt;")?,
                    '\'' => self.out.open("&#39;")?,
                    '"' => self.out.open("&#34;")?,
                    _ => self.out.open(c.encode_utf8(&mut [0; 4]))?,
                }
            }
            self.out.close(run.origin);
        }
        Ok(())
    }

    /// Writes `repr(value)`.
    #[inline(never)]
    pub(crate) fn repr(&mut self, value: &Val<'a>) -> Result<()> {
        self.repr_inside(value, None)
    }

    /// Writes the representation of a value. Inside of something that has one origin as a whole, `origin`, no
    /// runs are ended.
    fn repr_inside(&mut self, value: &Val<'a>, origin: Option<Origin>) -> Result<()> {
        self.heap.step()?;
        if origin.is_none() && value.origin() != Origin::TEMPLATE && !is_mixed(value) {
            self.repr_inside(value, Some(value.origin()))?;
            self.out.close(value.origin());
            return Ok(());
        }
        match value {
            Val::Undefined(_) => self.out.open("Undefined")?,
            Val::None(_) => self.out.open("None")?,
            Val::Bool(value, _) => self.out.open(if *value { "True" } else { "False" })?,
            Val::Int(value, _) => self.open_int(*value)?,
            Val::Big(big) => self.out.open(big.digits)?,
            Val::Float(value, _) => self.out.open(&float_text(*value))?,
            Val::Str(string) => self.repr_str(**string, origin)?,
            Val::Markup(string) => {
                self.out.open("Markup(")?;
                self.repr_str(**string, origin)?;
                self.out.open(")")?;
            }
            Val::List(list) => {
                self.out.open("[")?;
                self.repr_items(list.items, origin)?;
                self.out.open("]")?;
            }
            Val::Tuple(list) => {
                self.out.open("(")?;
                self.repr_items(list.items, origin)?;
                self.out.open(if list.items.len() == 1 { ",)" } else { ")" })?;
            }
            Val::Dict(dict) => self.repr_entries(dict.entries.iter().copied(), origin)?,
            Val::View(view, dict) => {
                self.out.open(value.type_name())?;
                self.out.open("([")?;
                for (at, (key, value)) in dict.entries.iter().enumerate() {
                    self.out.open(if at > 0 { ", " } else { "" })?;
                    match view {
                        View::Keys => self.repr_element(key, origin)?,
                        View::Values => self.repr_element(value, origin)?,
                        View::Items => {
                            self.repr_element(&self.heap.tuple(self.heap.slice(&[*key, *value])?)?, origin)?;
                        }
                    }
                }
                self.out.open("])")?;
            }
            Val::Range(range) => {
                let text = match range.step {
                    1 => format!("range({}, {})", range.start, range.stop),
                    step => format!("range({}, {}, {step})", range.start, range.stop),
                };
                self.out.open(&text)?;
            }
            Val::Namespace(namespace) => self.repr_namespace(namespace, origin)?,
            Val::Macro(value) => {
                self.out.open("<Macro ")?;
                match &value.def.name {
                    Some(name) => self.repr_str(Str::new(name, Origin::TEMPLATE), origin)?,
                    None => self.out.open("anonymous")?,
                }
                self.out.open(">")?;
            }
            Val::Loop(state) => {
                let (index, length) = (state.attribute("index", self)?, state.length(self)?);
                let index = index.map_or(0, |index| if let Val::Int(index, _) = index { index } else { 0 });
                self.out.open(&format!("<LoopContext {index}/{length}>"))?;
            }
            // Their text has an address in it.
            _ => return Err(Error::unsupported(format!("printing a {}", value.type_name()))),
        }
        if origin.is_none() {
            self.out.close(Origin::TEMPLATE);
        }
        Ok(())
    }

    fn repr_namespace(&mut self, namespace: &'a Namespace<'a>, origin: Option<Origin>) -> Result<()> {
        if self.printing.iter().any(|outer| std::ptr::eq(*outer, namespace)) {
            return self.out.open("<Namespace {...}>");
        }
        self.printing.push(namespace);
        let mut entries = Vec::new();
        for (key, value) in namespace.entries.borrow().iter() {
            self.heap.step()?;
            entries.push((self.heap.str(*key)?, *value));
        }
        self.out.open("<Namespace ")?;
        self.repr_entries(entries.into_iter(), origin)?;
        self.printing.pop();
        self.out.open(">")
    }

    fn repr_items(&mut self, items: &[Val<'a>], origin: Option<Origin>) -> Result<()> {
        for (at, item) in items.iter().enumerate() {
            self.out.open(if at > 0 { ", " } else { "" })?;
            self.repr_element(item, origin)?;
        }
        Ok(())
    }

    fn repr_entries(
        &mut self,
        entries: impl Iterator<Item = (Val<'a>, Val<'a>)>,
        origin: Option<Origin>,
    ) -> Result<()> {
        self.out.open("{")?;
        for (at, (key, value)) in entries.enumerate() {
            self.out.open(if at > 0 { ", " } else { "" })?;
            self.repr_element(&key, origin)?;
            self.out.open(": ")?;
            self.repr_element(&value, origin)?;
        }
        self.out.open("}")
    }

    fn repr_element(&mut self, value: &Val<'a>, origin: Option<Origin>) -> Result<()> {
        if origin.is_none() {
            self.out.close(Origin::TEMPLATE);
        }
        self.nested(|eval| eval.repr_inside(value, origin))
    }

    pub(crate) fn open_int(&mut self, value: i64) -> Result<()> {
        if (0..10).contains(&value) {
            return self.out.open(&"0123456789"[value as usize..=value as usize]);
        }
        self.out.open(&value.to_string())
    }

    fn repr_str(&mut self, string: Str<'a>, origin: Option<Origin>) -> Result<()> {
        let quote = if string.text.contains('\'') && !string.text.contains('"') { "\"" } else { "'" };
        self.out.open(quote)?;
        for (text, run) in string.runs(self.heap) {
            self.heap.work(text.len())?;
            let mut plain = 0;
            for (at, c) in text.char_indices() {
                let escaped = match c {
                    '\\' => "\\\\".to_owned(),
                    '\n' => "\\n".to_owned(),
                    '\r' => "\\r".to_owned(),
                    '\t' => "\\t".to_owned(),
                    '\'' if quote == "'" => "\\'".to_owned(),
                    c if is_printable(c) => continue,
                    c => match c as u32 {
                        code @ 0..=0xff => format!("\\x{code:02x}"),
                        code @ 0x100..=0xffff => format!("\\u{code:04x}"),
                        code => format!("\\U{code:08x}"),
                    },
                };
                self.out.open(&text[plain..at])?;
                self.out.open(&escaped)?;
                plain = at + c.len_utf8();
            }
            self.out.open(&text[plain..])?;
            if origin.is_none() {
                self.out.close(run.origin);
            }
        }
        self.out.open(quote)
    }
}

/// Whether a string has several origins.
pub(crate) fn is_mixed(value: &Val<'_>) -> bool {
    value.as_str().is_some_and(|string| string.only_origin().is_none())
}
