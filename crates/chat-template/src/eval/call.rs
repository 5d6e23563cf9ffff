//! Calls of macros, methods and functions.

use super::expression::Given;
use super::iterate::Iter;
use super::{Eval, undefined_error};
use crate::ast::{Call, ExprKind};
use crate::attribute::Attribute;
use crate::error::{Error, ErrorKind, Result};
use crate::text::{Origin, Str};
use crate::value::{Frame, Function, Macro, Namespace, Range, Undefined, Val};

/// How many elements a range may have in jinja2's sandbox.
const MAX_RANGE: i64 = 100_000;

impl<'a> Eval<'a> {
    #[inline(never)]
    pub(super) fn call(
        &mut self,
        call: &'a Call,
        frame: &'a Frame<'a>,
        caller: Option<Val<'a>>,
    ) -> Result<Val<'a>> {
        // A method of a string or dict is called without being made a value first.
        if let ExprKind::Attr(target, name) = &call.target.kind {
            let this = self.eval(target, frame)?;
            let is_method = match this {
                Val::Str(_) | Val::Markup(_) => name.known.is_str_method(),
                Val::Dict(_) => name.known.is_dict_method(),
                _ => false,
            };
            if is_method {
                let given = self.given(&call.args, frame, caller)?;
                return self.method(this, name.known, given);
            }
            let function = self.attribute(this, &name.text, name.known)?;
            let given = self.given(&call.args, frame, caller)?;
            return self.call_value(function, given);
        }
        let function = self.eval(&call.target, frame)?;
        if let Val::Undefined(undefined) = function {
            return Err(undefined_error(undefined));
        }
        let given = self.given(&call.args, frame, caller)?;
        self.call_value(function, given)
    }

    fn call_value(&mut self, function: Val<'a>, given: Given<'a>) -> Result<Val<'a>> {
        match function {
            Val::Undefined(undefined) => Err(undefined_error(undefined)),
            Val::Macro(value) => self.call_macro(value, given).and_then(|text| self.heap.str(text)),
            Val::Method(method) => self.method(method.this, method.method, given),
            Val::Function(function) => self.function(function, given),
            Val::Loop(state) => {
                let [iterable] = given.bind("loop()", ["iterable"])?;
                let iterable =
                    iterable.ok_or_else(|| Error::runtime("loop() needs something to iterate over"))?;
                state.recurse(iterable, self)
            }
            _ => Err(Error::runtime(format!("'{}' object is not callable", function.type_name()))),
        }
    }

    #[inline(never)]
    fn call_macro(&mut self, value: &'a Macro<'a>, given: Given<'a>) -> Result<Str<'a>> {
        let def = value.def;
        let frame = self.frame(def.slots, Some(value.frame))?;
        self.bind_macro(value, given, frame)?;
        self.nested(|eval| {
            let mark = eval.out.mark();
            eval.captures += 1;
            let result = eval.macro_body(value, frame);
            eval.captures -= 1;
            result?;
            eval.out.take(mark)
        })
    }

    fn macro_body(&mut self, value: &'a Macro<'a>, frame: &'a Frame<'a>) -> Result<()> {
        let def = value.def;
        self.enter(&def.scope, frame)?;
        for param in &def.params {
            let slot = &frame.slots[usize::from(param.slot)];
            if matches!(slot.get(), Val::Missing) {
                let value = match &param.default {
                    Some(default) => self.evaluate(default, frame)?,
                    None => self.undefined(Undefined::Param(&param.name))?,
                };
                slot.set(value);
            }
        }
        self.body(&def.body, frame)?;
        Ok(())
    }

    /// Puts arguments into the slots of a macro's parameters.
    fn bind_macro(&mut self, value: &'a Macro<'a>, given: Given<'a>, frame: &'a Frame<'a>) -> Result<()> {
        let def = value.def;
        self.heap.work((given.keywords.len() + def.params.len()) * 16)?;
        let set = |slot: u16, value| frame.slots[usize::from(slot)].set(value);
        let mut keywords: Vec<(&'a str, Val<'a>)> = given.keywords.to_vec();
        let mut take = |name: &str| {
            keywords.iter().position(|(known, _)| *known == name).map(|at| keywords.remove(at).1)
        };
        let count = given.positional.len().min(def.params.len());
        for (param, value) in def.params.iter().zip(given.positional) {
            set(param.slot, *value);
        }
        let rest = &def.params[count..];
        for param in rest {
            set(param.slot, take(&param.name).unwrap_or(Val::Missing));
        }
        if let Some(slot) = def.caller {
            let caller = match take("caller") {
                None | Some(Val::None(_)) => Val::Undefined(&Undefined::Hint("No caller defined")),
                Some(caller) => caller,
            };
            set(slot, caller);
        } else if def.explicit_caller && !rest.is_empty() && rest.iter().all(|param| param.name != "caller") {
            return Err(Error::unsupported("a macro whose parameter named caller was given by position"));
        }
        match def.kwargs {
            Some(slot) => {
                let entries: Vec<_> = keywords
                    .iter()
                    .map(|(name, value)| Ok((self.heap.constant(name)?, *value)))
                    .collect::<Result<_>>()?;
                set(slot, self.make_dict(&entries)?);
            }
            None => {
                if let Some((name, _)) = keywords.first() {
                    return Err(Error::runtime(format!("the macro takes no keyword argument '{name}'")));
                }
            }
        }
        match def.varargs {
            Some(slot) => set(slot, self.heap.tuple(&given.positional[count..])?),
            None if given.positional.len() > def.params.len() => {
                return Err(Error::runtime(format!(
                    "the macro takes not more than {} argument(s)",
                    def.params.len()
                )));
            }
            None => {}
        }
        Ok(())
    }

    fn function(&mut self, function: Function, given: Given<'a>) -> Result<Val<'a>> {
        match function {
            Function::Range => self.range(given),
            Function::Dict => {
                let entries = self.dict_entries(given)?;
                self.make_dict(&entries)
            }
            Function::Namespace => self.namespace(given),
            Function::RaiseException => {
                let [message] = given.bind("raise_exception()", ["message"])?;
                let message = message.ok_or_else(|| Error::runtime("raise_exception() needs a message"))?;
                let message = self.text_of(&message)?;
                Err(Error::new(ErrorKind::Raised, message.text))
            }
            Function::StrftimeNow => self.strftime_now(given),
        }
    }

    fn range(&mut self, given: Given<'a>) -> Result<Val<'a>> {
        let bounds: [Option<Val<'a>>; 3] = given.bind_positional("range()")?;
        let number =
            |value: Option<Val<'a>>| value.map(|v| super::access::as_index(&v, "range()")).transpose();
        let (start, stop, step) = match (number(bounds[0])?, number(bounds[1])?, number(bounds[2])?) {
            (None, ..) => return Err(Error::runtime("range expected at least 1 argument")),
            (Some(stop), None, _) => (0, stop, 1),
            (Some(start), Some(stop), step) => (start, stop, step.unwrap_or(1)),
        };
        if step == 0 {
            return Err(Error::runtime("range() arg 3 must not be zero"));
        }
        let distance = if step > 0 {
            i128::from(stop) - i128::from(start)
        } else {
            i128::from(start) - i128::from(stop)
        };
        let stride = i128::from(step.unsigned_abs());
        let length = if distance <= 0 { 0 } else { (distance - 1) / stride + 1 };
        if length > i128::from(MAX_RANGE) {
            return Err(Error::runtime(format!(
                "Range too big. The sandbox blocks ranges larger than {MAX_RANGE}"
            )));
        }
        Ok(Val::Range(self.heap.alloc(Range { start, step, length: length as i64, stop })?))
    }

    /// The entries of `dict(...)` and `namespace(...)`.
    fn dict_entries(&mut self, given: Given<'a>) -> Result<Vec<(Val<'a>, Val<'a>)>> {
        let mut entries = Vec::new();
        match given.positional {
            [] => {}
            [Val::Dict(dict)] => entries.extend_from_slice(dict.entries),
            // It is an empty sequence elsewhere, but `dict` looks for its keys first.
            [Val::Undefined(undefined)] => return Err(super::undefined_error(undefined)),
            [Val::Namespace(_) | Val::Loop(_)] => return Err(Error::unsupported("a dict of such a value")),
            [pairs] => {
                let mut pairs = Iter::of(*pairs)?;
                while let Some(pair) = pairs.next(self)? {
                    let pair = self.collect_items(pair)?;
                    let [key, value] = pair else {
                        return Err(Error::runtime("an element of a dict's sequence must have length 2"));
                    };
                    self.insert(&mut entries, *key, *value)?;
                }
            }
            _ => return Err(Error::runtime("dict expected at most 1 argument")),
        }
        for (name, value) in given.keywords {
            let name = self.heap.constant(name)?;
            self.insert(&mut entries, name, *value)?;
        }
        Ok(entries)
    }

    fn namespace(&mut self, given: Given<'a>) -> Result<Val<'a>> {
        let entries = self.dict_entries(given)?;
        let namespace = Namespace { entries: bumpalo::collections::Vec::new_in(self.heap.bump()).into() };
        for (key, value) in entries {
            let Some(name) = key.as_str() else {
                return Err(Error::unsupported("a namespace with keys that are no strings"));
            };
            if name.text.starts_with('_') {
                return Err(Error::runtime(format!(
                    "a namespace cannot store {}: it begins with _",
                    name.text
                )));
            }
            namespace.set(name, value, self.heap)?;
        }
        Ok(Val::Namespace(self.heap.alloc(namespace)?))
    }

    fn strftime_now(&mut self, given: Given<'a>) -> Result<Val<'a>> {
        let [format] = given.bind("strftime_now()", ["format"])?;
        let Some(format) = format.and_then(|format| format.as_str()) else {
            return Err(Error::runtime("strftime_now() needs a format, which is a string"));
        };
        let Some(now) = self.setting.now else {
            return Err(Error::new(ErrorKind::Date, "the template prints today's date: give a date"));
        };
        let text = self.heap.text(&crate::strftime::strftime(&now, format.text)?)?;
        self.heap.constant(text)
    }

    /// `loop.cycle(...)` and `loop.changed(...)`; the methods of other types are in `methods`.
    pub(crate) fn loop_method(
        &mut self,
        this: Val<'a>,
        method: Attribute,
        given: Given<'a>,
    ) -> Result<Val<'a>> {
        let Val::Loop(state) = this else {
            return Err(Error::runtime("expected the loop variable"));
        };
        if !given.keywords.is_empty() {
            return Err(Error::runtime("methods of loop take no keyword arguments"));
        }
        match method {
            Attribute::Cycle => state.cycle(given.positional),
            _ => Ok(Val::Bool(state.changed(given.positional, self)?, Origin::TEMPLATE)),
        }
    }
}
