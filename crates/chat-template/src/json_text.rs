//! `tojson` as transformers has it: `json.dumps` of Python's, without escaping for HTML.

use crate::error::{Error, Result};
use crate::eval::Eval;
use crate::eval::expression::Given;
use crate::eval::strings::is_mixed;
use crate::number::float_text;
use crate::text::{Origin, Str};
use crate::value::{Dict, Val};

/// How JSON is written.
struct Style<'a> {
    ascii: bool,
    indent: Option<&'a str>,
    between_items: &'a str,
    behind_key: &'a str,
    sort_keys: bool,
}

impl<'a> Eval<'a> {
    pub(crate) fn tojson(&mut self, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let mark = self.out.mark();
        self.write_json(value, given)?;
        self.take_str(mark)
    }

    fn write_json(&mut self, value: Val<'a>, given: Given<'a>) -> Result<()> {
        let [ascii, indent, separators, sort_keys] =
            given.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
        let indent = match indent {
            None | Some(Val::None(_)) => None,
            Some(Val::Str(indent) | Val::Markup(indent)) => Some(indent.text),
            Some(width) => {
                let width = crate::eval::access::as_index(&width, "tojson")?.max(0) as usize;
                self.heap.charge(width)?;
                Some(self.heap.text(&" ".repeat(width))?)
            }
        };
        let (between_items, behind_key) = match separators {
            None | Some(Val::None(_)) if indent.is_some() => (",", ": "),
            None | Some(Val::None(_)) => (", ", ": "),
            Some(separators) => {
                let parts = self.collect_items(separators)?;
                let [Some(between), Some(behind)] = [0, 1].map(|at| parts.get(at).and_then(Val::as_str))
                else {
                    return Err(Error::runtime("tojson: separators must be two strings"));
                };
                if parts.len() != 2 {
                    return Err(Error::runtime("tojson: separators must be two strings"));
                }
                (between.text, behind.text)
            }
        };
        let style = Style {
            ascii: ascii.map_or(Ok(false), |ascii| self.truth(&ascii))?,
            indent,
            between_items,
            behind_key,
            sort_keys: sort_keys.map_or(Ok(false), |sort| self.truth(&sort))?,
        };
        self.json(&value, &style, 0, None)
    }

    /// Writes a value. Inside of something that has one origin as a whole, `origin`, no runs are ended.
    fn json(
        &mut self,
        value: &Val<'a>,
        style: &Style<'_>,
        level: usize,
        origin: Option<Origin>,
    ) -> Result<()> {
        self.heap.step()?;
        if origin.is_none() && value.origin() != Origin::TEMPLATE && !is_mixed(value) {
            self.json(value, style, level, Some(value.origin()))?;
            self.out.close(value.origin());
            return Ok(());
        }
        match value {
            Val::None(_) => self.out.open("null")?,
            Val::Bool(value, _) => self.out.open(if *value { "true" } else { "false" })?,
            Val::Int(value, _) => self.open_int(*value)?,
            Val::Big(big) => self.out.open(big.digits)?,
            Val::Float(value, _) => self.out.open(&json_float(*value))?,
            Val::Str(string) | Val::Markup(string) => self.json_str(**string, style.ascii, origin)?,
            Val::List(list) | Val::Tuple(list) => {
                self.nested(|eval| eval.json_items(list.items, style, level, origin))?;
            }
            Val::Dict(dict) => self.nested(|eval| eval.json_dict(dict, style, level, origin))?,
            _ => {
                return Err(Error::runtime(format!(
                    "Object of type {} is not JSON serializable",
                    value.type_name()
                )));
            }
        }
        if origin.is_none() {
            self.out.close(Origin::TEMPLATE);
        }
        Ok(())
    }

    fn json_items(
        &mut self,
        items: &[Val<'a>],
        style: &Style<'_>,
        level: usize,
        origin: Option<Origin>,
    ) -> Result<()> {
        self.out.open("[")?;
        for (at, item) in items.iter().enumerate() {
            self.json_separator(at, style, level + 1)?;
            self.close_own(origin);
            self.json(item, style, level + 1, origin)?;
        }
        self.json_end(items.is_empty(), style, level)?;
        self.out.open("]")
    }

    fn json_dict(
        &mut self,
        dict: &'a Dict<'a>,
        style: &Style<'_>,
        level: usize,
        origin: Option<Origin>,
    ) -> Result<()> {
        let entries = if style.sort_keys { self.sorted_entries(dict)? } else { dict.entries };
        self.out.open("{")?;
        for (at, (key, value)) in entries.iter().enumerate() {
            self.json_separator(at, style, level + 1)?;
            self.close_own(origin);
            let key = self.json_key(key)?;
            self.json_str(key, style.ascii, origin)?;
            self.out.open(style.behind_key)?;
            self.close_own(origin);
            self.json(value, style, level + 1, origin)?;
        }
        self.json_end(entries.is_empty(), style, level)?;
        self.out.open("}")
    }

    fn sorted_entries(&mut self, dict: &'a Dict<'a>) -> Result<&'a [(Val<'a>, Val<'a>)]> {
        let entries: Vec<_> = dict.entries.to_vec();
        let sorted = self.merge_sort(entries)?;
        self.heap.slice(&sorted)
    }

    fn close_own(&mut self, origin: Option<Origin>) {
        if origin.is_none() {
            self.out.close(Origin::TEMPLATE);
        }
    }

    fn json_separator(&mut self, at: usize, style: &Style<'_>, level: usize) -> Result<()> {
        if at > 0 {
            self.out.open(style.between_items)?;
        }
        self.json_newline(style, level)
    }

    fn json_end(&mut self, empty: bool, style: &Style<'_>, level: usize) -> Result<()> {
        if empty { Ok(()) } else { self.json_newline(style, level) }
    }

    fn json_newline(&mut self, style: &Style<'_>, level: usize) -> Result<()> {
        let Some(indent) = style.indent else { return Ok(()) };
        self.heap.work(indent.len() * level)?;
        self.out.open("\n")?;
        (0..level).try_for_each(|_| self.out.open(indent))
    }

    /// A dict's key as JSON has it: a string.
    fn json_key(&mut self, key: &Val<'a>) -> Result<Str<'a>> {
        let text = match key {
            Val::Str(string) | Val::Markup(string) => return Ok(**string),
            Val::None(_) => "null".to_owned(),
            Val::Bool(value, _) => if *value { "true" } else { "false" }.to_owned(),
            Val::Float(value, _) => json_float(*value),
            Val::Int(..) | Val::Big(_) => return self.text_of(key),
            _ => {
                return Err(Error::runtime(format!(
                    "keys must be str, int, float, bool or None, not {}",
                    key.type_name()
                )));
            }
        };
        Ok(Str::new(self.heap.text(&text)?, key.origin()))
    }

    fn json_str(&mut self, string: Str<'a>, ascii: bool, origin: Option<Origin>) -> Result<()> {
        self.out.open("\"")?;
        for (text, run) in string.runs(self.heap) {
            self.heap.work(text.len())?;
            self.json_escaped(text, ascii)?;
            if origin.is_none() {
                self.out.close(run.origin);
            }
        }
        self.out.open("\"")
    }

    fn json_escaped(&mut self, text: &str, ascii: bool) -> Result<()> {
        let special = |byte: &u8| *byte < 0x20 || matches!(byte, b'"' | b'\\') || (ascii && *byte >= 0x7f);
        let mut rest = text;
        while let Some(at) = rest.as_bytes().iter().position(special) {
            self.out.open(&rest[..at])?;
            let c = rest[at..].chars().next().unwrap_or_default();
            match c {
                '"' => self.out.open("\\\"")?,
                '\\' => self.out.open("\\\\")?,
                '\n' => self.out.open("\\n")?,
                '\r' => self.out.open("\\r")?,
                '\t' => self.out.open("\\t")?,
                '\u{8}' => self.out.open("\\b")?,
                '\u{c}' => self.out.open("\\f")?,
                c => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.open(&format!("\\u{unit:04x}"))?;
                    }
                }
            }
            rest = &rest[at + c.len_utf8()..];
        }
        self.out.open(rest)
    }
}

fn json_float(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        value => float_text(value),
    }
}
