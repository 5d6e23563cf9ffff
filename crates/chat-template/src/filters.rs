//! The filters of jinja2.

mod sequences;
mod strings;

use std::cell::RefCell;

use crate::error::{Error, Result};
use crate::eval::Eval;
use crate::eval::expression::Given;
use crate::is_tests::Test;
use crate::number::{Number, parse_float, parse_int};
use crate::text::Origin;
use crate::value::Val;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    Abs,
    Capitalize,
    Default,
    DictSort,
    Escape,
    First,
    Float,
    Format,
    Indent,
    Int,
    Items,
    Join,
    Last,
    Length,
    List,
    Lower,
    Map,
    Max,
    Min,
    Reject,
    RejectAttr,
    Replace,
    Reverse,
    Safe,
    Select,
    SelectAttr,
    Sort,
    String,
    Sum,
    Title,
    ToJson,
    Trim,
    Unique,
    Upper,
}

/// The step that `map` takes with each item.
pub(crate) enum Mapping<'a> {
    Attribute {
        path: Path<'a>,
        default: Option<Val<'a>>,
    },
    Filter {
        name: Val<'a>,
        given: Given<'a>,
    },
    /// The arguments make no sense, which jinja2 notices when the first item is asked for.
    Invalid(&'a str),
}

/// The condition of items that `select`, `reject` and their `attr` forms keep.
pub(crate) struct Selection<'a> {
    pub path: Option<Path<'a>>,
    /// `None`: what is true.
    pub test: Option<Val<'a>>,
    pub given: Given<'a>,
    pub reject: bool,
    /// `selectattr` without the name of an attribute.
    pub no_attribute: bool,
}

/// The key that `unique` compares by, and the keys that it has seen.
pub(crate) struct Uniqueness<'a> {
    pub path: Path<'a>,
    pub case_sensitive: bool,
    pub seen: RefCell<bumpalo::collections::Vec<'a, Val<'a>>>,
}

/// An attribute as filters name it: `"a.b.0"`.
pub(crate) type Path<'a> = &'a [Val<'a>];

impl Filter {
    /// The filter of a name; `None`: jinja2 has no such filter. One that this engine does not have is an error.
    pub(crate) fn named(name: &str) -> Result<Option<Self>> {
        Ok(Some(match name {
            "abs" => Self::Abs,
            "capitalize" => Self::Capitalize,
            "d" | "default" => Self::Default,
            "dictsort" => Self::DictSort,
            "e" | "escape" => Self::Escape,
            "first" => Self::First,
            "float" => Self::Float,
            "format" => Self::Format,
            "indent" => Self::Indent,
            "int" => Self::Int,
            "items" => Self::Items,
            "join" => Self::Join,
            "last" => Self::Last,
            "count" | "length" => Self::Length,
            "list" => Self::List,
            "lower" => Self::Lower,
            "map" => Self::Map,
            "max" => Self::Max,
            "min" => Self::Min,
            "reject" => Self::Reject,
            "rejectattr" => Self::RejectAttr,
            "replace" => Self::Replace,
            "reverse" => Self::Reverse,
            "safe" => Self::Safe,
            "select" => Self::Select,
            "selectattr" => Self::SelectAttr,
            "sort" => Self::Sort,
            "string" => Self::String,
            "sum" => Self::Sum,
            "title" => Self::Title,
            "tojson" => Self::ToJson,
            "trim" => Self::Trim,
            "unique" => Self::Unique,
            "upper" => Self::Upper,
            "attr" | "batch" | "center" | "filesizeformat" | "forceescape" | "groupby" | "pprint"
            | "random" | "round" | "slice" | "striptags" | "truncate" | "urlencode" | "urlize"
            | "wordcount" | "wordwrap" | "xmlattr" => {
                return Err(Error::unsupported(format!("the filter {name}")));
            }
            _ => return Ok(None),
        }))
    }
}

impl<'a> Eval<'a> {
    pub(crate) fn filter(&mut self, filter: Filter, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        match filter {
            Filter::Abs => {
                let [] = given.bind_positional("abs")?;
                match Number::of(&value, self.heap)? {
                    Some(number) => number.abs().into_value(value.origin(), self.heap),
                    None => {
                        Err(Error::runtime(format!("bad operand type for abs(): '{}'", value.type_name())))
                    }
                }
            }
            Filter::Default => {
                let [default, boolean] = given.bind("default", ["default_value", "boolean"])?;
                let replace = value.is_undefined()
                    || (boolean.map_or(Ok(false), |boolean| self.truth(&boolean))? && !self.truth(&value)?);
                Ok(if replace { default.map_or_else(|| self.heap.constant(""), Ok)? } else { value })
            }
            Filter::Length => {
                let [] = given.bind_positional("length")?;
                match self.sized(&value)? {
                    Some(length) => Ok(Val::Int(length, Origin::TEMPLATE)),
                    None => {
                        Err(Error::runtime(format!("object of type '{}' has no len()", value.type_name())))
                    }
                }
            }
            Filter::Int => self.int(value, given),
            Filter::Float => self.float(value, given),
            Filter::ToJson => self.tojson(value, given),
            Filter::Capitalize
            | Filter::Escape
            | Filter::Format
            | Filter::Indent
            | Filter::Lower
            | Filter::Replace
            | Filter::Safe
            | Filter::String
            | Filter::Title
            | Filter::Trim
            | Filter::Upper => self.string_filter(filter, value, given),
            _ => self.sequence_filter(filter, value, given),
        }
    }

    fn int(&mut self, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let [default, base] = given.bind("int", ["default", "base"])?;
        let default = default.unwrap_or(Val::Int(0, Origin::TEMPLATE));
        let origin = value.origin();
        if let Some(string) = value.as_str() {
            self.heap.work(string.text.len())?;
            let base = match base {
                None => 10,
                Some(Val::Int(base, _)) => base,
                Some(_) => return Err(Error::unsupported("such a base")),
            };
            if !(base == 0 || (2..=36).contains(&base)) {
                // int() raises a ValueError, and then the text is read as a float.
                return Err(Error::unsupported("such a base"));
            }
            if let Some(number) = parse_int(string.text, base as u32)? {
                return number.into_value(origin, self.heap);
            }
            return match parse_float(string.text)? {
                Some(float) if float.is_finite() => {
                    Number::Float(float).truncate()?.into_value(origin, self.heap)
                }
                _ => Ok(default),
            };
        }
        if let Val::Undefined(undefined) = value {
            return Err(crate::eval::undefined_error(undefined));
        }
        match Number::of(&value, self.heap)? {
            Some(Number::Float(float)) if float.is_nan() => Ok(default),
            Some(number) => number.truncate()?.into_value(origin, self.heap),
            None => Ok(default),
        }
    }

    fn float(&mut self, value: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        let [default] = given.bind("float", ["default"])?;
        let default = default.unwrap_or(Val::Float(0.0, Origin::TEMPLATE));
        if let Val::Undefined(undefined) = value {
            return Err(crate::eval::undefined_error(undefined));
        }
        let float = match value.as_str() {
            Some(string) => {
                self.heap.work(string.text.len())?;
                parse_float(string.text)?
            }
            None => Number::of(&value, self.heap)?.map(|number| number.float()).transpose()?,
        };
        Ok(float.map_or(default, |float| Val::Float(float, value.origin())))
    }

    /// An item that `map` gives.
    pub(crate) fn map_item(&mut self, mapping: &'a Mapping<'a>, item: Val<'a>) -> Result<Val<'a>> {
        match mapping {
            Mapping::Attribute { path, default } => self.path_value(item, path, *default),
            Mapping::Filter { name, given } => {
                let filter = if let Some(name) = name.as_str() {
                    Filter::named(name.text)?
                } else {
                    crate::eval::expression::check_hashable(name)?;
                    None
                };
                match filter {
                    Some(filter) => self.filter(filter, item, *given),
                    None => Err(Error::runtime("map: no filter of this name")),
                }
            }
            Mapping::Invalid(message) => Err(Error::runtime(*message)),
        }
    }

    /// Whether `select` and its kin keep an item.
    pub(crate) fn selects(&mut self, selection: &'a Selection<'a>, item: Val<'a>) -> Result<bool> {
        if selection.no_attribute {
            return Err(Error::runtime("Missing parameter for attribute name"));
        }
        let value = match selection.path {
            Some(path) => self.path_value(item, path, None)?,
            None => item,
        };
        let holds = match selection.test {
            None => self.truth(&value)?,
            Some(name) => match name.as_str().and_then(|name| Test::named(name.text)) {
                Some(test) => self.test_holds(test, &value, selection.given)?,
                None => return Err(Error::runtime("no test of this name")),
            },
        };
        Ok(holds != selection.reject)
    }

    /// The parts of an attribute's path.
    pub(crate) fn path(&mut self, attribute: Option<Val<'a>>) -> Result<Path<'a>> {
        let Some(attribute) = attribute else { return Ok(&[]) };
        let parts: Vec<_> = match attribute {
            Val::None(_) => Vec::new(),
            Val::Str(string) | Val::Markup(string) => {
                let parts = string.text.split('.').map(|part| {
                    if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
                        return self.heap.str(string.part(part, self.heap)?);
                    }
                    parse_int(part, 10)?.unwrap_or(Number::Int(0)).into_value(Origin::TEMPLATE, self.heap)
                });
                parts.collect::<Result<_>>()?
            }
            other => vec![other],
        };
        self.heap.slice(&parts)
    }

    /// The attribute at a path; what is undefined on the way becomes the default.
    pub(crate) fn path_value(
        &mut self,
        value: Val<'a>,
        path: Path<'a>,
        default: Option<Val<'a>>,
    ) -> Result<Val<'a>> {
        let mut value = value;
        for part in path {
            value = self.item(value, *part)?;
            if value.is_undefined()
                && let Some(default) = default
            {
                value = default;
            }
        }
        Ok(value)
    }
}
