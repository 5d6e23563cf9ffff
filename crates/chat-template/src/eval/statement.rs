//! Statements.

use super::iterate::Iter;
use super::{Eval, read_variable};
use crate::ast::{Const, Expr, ExprKind, If, MacroDef, Stmt, StmtKind, Target};
use crate::error::{Error, Result};
use crate::text::{Mark, Origin, Str};
use crate::value::{Frame, Macro, Val};

/// Where a statement continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

impl<'a> Eval<'a> {
    pub(super) fn body(&mut self, body: &'a [Stmt], frame: &'a Frame<'a>) -> Result<Flow> {
        for stmt in body {
            let flow = self.statement(stmt, frame).map_err(|error| error.at(stmt.line))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    #[inline]
    fn statement(&mut self, stmt: &'a Stmt, frame: &'a Frame<'a>) -> Result<Flow> {
        self.heap.step()?;
        match &stmt.kind {
            StmtKind::Data(text) => {
                let mark = self.out.mark();
                self.out.push(text, Origin::TEMPLATE)?;
                self.out.end_statement(mark);
            }
            StmtKind::Output(value) => {
                let mark = self.out.mark();
                self.out.writing += 1;
                self.output(value, frame)?;
                self.out.writing -= 1;
                self.out.end_statement(mark);
            }
            StmtKind::Assign { target, value } => self.assign_statement(target, value, frame)?,
            StmtKind::If(node) => return self.if_statement(node, frame),
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
            _ => return self.nested(|eval| eval.block_statement(stmt, frame)),
        }
        Ok(Flow::Next)
    }

    fn if_statement(&mut self, node: &'a If, frame: &'a Frame<'a>) -> Result<Flow> {
        for (line, test, body) in &node.branches {
            if self.evaluate_truth(test, frame).map_err(|error| error.at(*line))? {
                return self.nested(|eval| eval.body(body, frame));
            }
        }
        self.nested(|eval| eval.body(&node.otherwise, frame))
    }

    /// Writes a value. Joined strings are written part by part, without making the whole first.
    fn output(&mut self, expr: &'a Expr, frame: &'a Frame<'a>) -> Result<()> {
        match &expr.kind {
            ExprKind::Const(Const::Str(text)) => self.out.push(text, Origin::TEMPLATE),
            ExprKind::Add(items) => self.output_sum(items, frame),
            ExprKind::Concat(items) => {
                self.nested(|eval| items.iter().try_for_each(|item| eval.output(item, frame)))
            }
            _ => {
                let value = self.evaluate(expr, frame)?;
                self.write(&value)
            }
        }
    }

    #[inline(never)]
    fn output_sum(&mut self, items: &'a [Expr], frame: &'a Frame<'a>) -> Result<()> {
        self.nested(|eval| {
            let mark = eval.out.mark();
            for (at, item) in items.iter().enumerate() {
                if let ExprKind::Const(Const::Str(text)) = &item.kind {
                    eval.out.push(text, Origin::TEMPLATE)?;
                    continue;
                }
                let value = eval.evaluate(item, frame)?;
                let Val::Str(string) = value else {
                    let first = if at == 0 {
                        value
                    } else {
                        let before = eval.take_str(mark)?;
                        eval.add(before, value)?
                    };
                    let sum = eval.sum(first, &items[at + 1..], frame)?;
                    return eval.write(&sum);
                };
                eval.out.push_str(*string)?;
            }
            Ok(())
        })
    }

    fn assign_statement(&mut self, target: &'a Target, value: &'a Expr, frame: &'a Frame<'a>) -> Result<()> {
        check_namespaces(target, frame)?;
        let value = self.evaluate(value, frame)?;
        self.assign(target, value, frame)
    }

    pub(super) fn assign(&mut self, target: &'a Target, value: Val<'a>, frame: &'a Frame<'a>) -> Result<()> {
        match target {
            Target::Name { slot, id, exported, .. } => {
                frame.slots[usize::from(*slot)].set(value);
                if *exported {
                    self.exported[*id as usize].set(value);
                }
                Ok(())
            }
            Target::Attr { line, name, attr } => match read_variable(name.variable, frame)? {
                Val::Namespace(_) if attr.starts_with('_') => {
                    Err(Error::runtime(format!("a namespace cannot store {attr}: it begins with _"))
                        .at(*line))
                }
                Val::Namespace(namespace) => {
                    namespace.set(Str::new(attr, Origin::TEMPLATE), value, self.heap)
                }
                Val::Dict(_) => Err(Error::unsupported("an assignment into a dict").at(*line)),
                _ => Err(Error::runtime("cannot assign an attribute of what is no namespace").at(*line)),
            },
            Target::Tuple(items) => {
                let mut values = Iter::of(value)?;
                for (at, item) in items.iter().enumerate() {
                    let Some(value) = values.next(self)? else {
                        let expected = items.len();
                        return Err(Error::runtime(format!(
                            "not enough values to unpack: expected {expected}, found {at}"
                        )));
                    };
                    self.assign(item, value, frame)?;
                }
                match values.next(self)? {
                    None => Ok(()),
                    Some(_) => {
                        Err(Error::runtime(format!("too many values to unpack: expected {}", items.len())))
                    }
                }
            }
        }
    }

    #[inline(never)]
    fn block_statement(&mut self, stmt: &'a Stmt, frame: &'a Frame<'a>) -> Result<Flow> {
        match &stmt.kind {
            StmtKind::For(node) => return self.for_loop(node, frame),
            StmtKind::With { targets, values, body, scope } => {
                self.enter(scope, frame)?;
                for (target, value) in targets.iter().zip(values) {
                    let value = self.evaluate(value, frame)?;
                    self.assign(target, value, frame)?;
                }
                let flow = self.body(body, frame)?;
                if flow == Flow::Next {
                    Self::leave(scope, frame);
                }
                return Ok(flow);
            }
            StmtKind::AssignBlock { target, filter, body, scope } => {
                self.enter(scope, frame)?;
                let (flow, mark) = self.collect(body, frame)?;
                if flow != Flow::Next {
                    self.out.truncate(mark);
                    return Ok(flow);
                }
                let mut value = self.take_str(mark)?;
                if let Some(filter) = filter {
                    value = self.filter_block(filter, value, frame)?;
                }
                self.assign(target, value, frame)?;
                Self::leave(scope, frame);
            }
            StmtKind::FilterBlock { filter, body, scope } => {
                self.enter(scope, frame)?;
                let (flow, mark) = self.collect(body, frame)?;
                if flow != Flow::Next {
                    self.out.truncate(mark);
                    return Ok(flow);
                }
                let text = self.take_str(mark)?;
                let value = self.filter_block(filter, text, frame)?;
                self.write_string(&value)?;
                Self::leave(scope, frame);
            }
            StmtKind::Macro { target, def } => {
                let value = self.heap.alloc(Macro { def, frame })?;
                self.assign(target, Val::Macro(value), frame)?;
            }
            StmtKind::CallBlock { call: Some(call), def } => {
                let caller = Val::Macro(self.heap.alloc(Macro { def, frame })?);
                let ExprKind::Call(call) = &call.kind else {
                    return Err(Error::runtime("expected a call"));
                };
                let value = self.call(call, frame, Some(caller))?;
                self.write_string(&value)?;
            }
            StmtKind::CallBlock { call: None, def } => self.generation(def, frame)?,
            _ => {}
        }
        Ok(Flow::Next)
    }

    /// Runs a body whose text is collected: the text is what the output has behind the mark.
    fn collect(&mut self, body: &'a [Stmt], frame: &'a Frame<'a>) -> Result<(Flow, Mark)> {
        let mark = self.out.mark();
        self.captures += 1;
        let flow = self.body(body, frame);
        self.captures -= 1;
        Ok((flow?, mark))
    }

    /// Writes what must be a string already.
    fn write_string(&mut self, value: &Val<'a>) -> Result<()> {
        match value.as_str() {
            Some(string) => self.out.push_str(string),
            None => Err(Error::runtime(format!("expected a string to write, found {}", value.type_name()))),
        }
    }

    /// A generation block: its body is a function, and its range in the output is noted.
    fn generation(&mut self, def: &'a MacroDef, frame: &'a Frame<'a>) -> Result<()> {
        let inner = self.frame(def.slots, Some(frame))?;
        if let Some(slot) = def.caller {
            inner.slots[usize::from(slot)]
                .set(Val::Undefined(&crate::value::Undefined::Hint("No caller defined")));
        }
        if let Some(slot) = def.kwargs {
            inner.slots[usize::from(slot)].set(self.empty_dict()?);
        }
        if let Some(slot) = def.varargs {
            inner.slots[usize::from(slot)].set(self.heap.tuple(&[])?);
        }
        let start = self.out.text.len() as u32;
        self.misplaced_generation |= self.captures > 0;
        self.enter(&def.scope, inner)?;
        self.captures += 1;
        let result = self.body(&def.body, inner);
        self.captures -= 1;
        result?;
        self.generations.push((start, self.out.text.len() as u32));
        Ok(())
    }
}

/// Attributes can be set of namespaces only, which is checked before the value is computed.
fn check_namespaces<'a>(target: &'a Target, frame: &'a Frame<'a>) -> Result<()> {
    match target {
        Target::Name { .. } => Ok(()),
        Target::Attr { line, name, .. } => match read_variable(name.variable, frame)? {
            Val::Namespace(_) => Ok(()),
            _ => Err(Error::runtime("cannot assign an attribute of what is no namespace").at(*line)),
        },
        Target::Tuple(items) => items.iter().try_for_each(|item| check_namespaces(item, frame)),
    }
}
