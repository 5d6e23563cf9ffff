//! Gives each name its variable. Follows jinja2's code generator statement by statement: which scopes it opens, what it
//! loads when it enters one, and which functions it makes. A function's variables are the slots of one activation.

use std::collections::BTreeSet;

use crate::ast::{
    Expr, ExprKind, For, Load, MacroDef, Name, NameId, Scope, Stmt, StmtKind, Target, Variable,
};
use crate::error::{Error, ErrorKind, Result};
use crate::parser::Names;
use crate::scope::{Ident, ScopeId, Scopes, Start, undeclared};

/// The template's own function: its scope and its number of slots.
#[derive(Debug, Clone, Default)]
pub(crate) struct Root {
    pub scope: Scope,
    pub slots: u16,
}

/// Global functions of jinja2 that this engine does not have.
const UNSUPPORTED_GLOBALS: [&str; 4] = ["cycler", "joiner", "lipsum", "gettext"];

/// How many variables a function may have.
const MAX_SLOTS: usize = 4096;

pub(crate) fn resolve(body: &mut [Stmt], names: &mut Names) -> Result<Root> {
    let this = names.id("self");
    if undeclared(body, &[this]).contains(&this) {
        return Err(Error::unsupported("the variable self"));
    }
    let mut resolver =
        Resolver { names, scopes: Scopes::default(), functions: Vec::new(), pending: Vec::new() };
    let scope = resolver.scopes.open(None);
    resolver.scopes.analyze_body(scope, body);
    resolver.begin_function(scope);
    let enter = resolver.enter(scope)?;
    let result =
        resolver.body(body, Frame { scope, toplevel: true, soft: false, folded: false, in_loop: false });
    if resolver.scopes.is_too_large() {
        return Err(Error::unsupported("a template with so many variables and branches"));
    }
    result?;
    let slots = resolver.end_function()?;
    Ok(Root { scope: Scope { enter, leave: Vec::new() }, slots })
}

/// The state of jinja2's code generator where it writes.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_excessive_bools)] // As in jinja2.
struct Frame {
    scope: ScopeId,
    /// Assignments here are seen by macros.
    toplevel: bool,
    /// Directly inside of an `if`: unknown filters and tests raise when they are reached, not when compiled.
    soft: bool,
    /// Inside of an expression that jinja2 may compute when it compiles, without looking at all of it.
    folded: bool,
    /// A `break` here leaves a loop of the same function.
    in_loop: bool,
}

impl Frame {
    fn inner(self, scope: ScopeId) -> Self {
        Self { scope, toplevel: false, soft: false, ..self }
    }
}

/// A Python function: it owns the variables of all levels from `base` on.
struct Function {
    base: u32,
    slots: Vec<Ident>,
}

struct Resolver<'n> {
    names: &'n mut Names,
    scopes: Scopes,
    functions: Vec<Function>,
    /// Parameters that have no value yet, while the defaults of a macro are resolved.
    pending: Vec<BTreeSet<Ident>>,
}

impl Resolver<'_> {
    fn begin_function(&mut self, scope: ScopeId) {
        self.functions.push(Function { base: self.scopes.level(scope), slots: Vec::new() });
    }

    /// Ends the innermost function and gives its number of slots.
    fn end_function(&mut self) -> Result<u16> {
        let slots = self.functions.pop().map_or(0, |function| function.slots.len());
        if slots > MAX_SLOTS {
            return Err(Error::unsupported(format!("more than {MAX_SLOTS} variables in one scope")));
        }
        Ok(slots as u16)
    }

    fn variable(&mut self, ident: Ident) -> Variable {
        for (up, function) in self.functions.iter_mut().rev().enumerate() {
            if ident.0 >= function.base {
                let known = function.slots.iter().position(|slot| *slot == ident);
                let slot = known.unwrap_or_else(|| {
                    // Once there are too many, which is an error when the function ends, no more are kept.
                    if function.slots.len() <= MAX_SLOTS {
                        function.slots.push(ident);
                    }
                    function.slots.len() - 1
                });
                return Variable { up: up as u16, slot: slot as u16 };
            }
        }
        Variable::default()
    }

    fn enter(&mut self, scope: ScopeId) -> Result<Vec<Load>> {
        let starts: Vec<_> = self.scopes.starts(scope).collect();
        let mut loads = Vec::new();
        for (ident, start) in starts {
            let slot = self.variable(ident).slot;
            loads.push(match start {
                Start::Param => continue,
                Start::Alias(outer) => Load::Alias { slot, from: self.variable(outer) },
                Start::Unset => Load::Unset { slot },
                Start::Resolve => {
                    let text = self.names.text(ident.1);
                    if UNSUPPORTED_GLOBALS.contains(&text) {
                        return Err(Error::unsupported(format!("the function {text}")));
                    }
                    Load::Resolve { slot, name: ident.1 }
                }
            });
        }
        Ok(loads)
    }

    fn leave(&mut self, scope: ScopeId) -> Vec<u16> {
        let idents: Vec<_> = self.scopes.starts(scope).map(|(ident, _)| ident).collect();
        idents.into_iter().map(|ident| self.variable(ident).slot).collect()
    }

    fn scope(&mut self, scope: ScopeId) -> Result<Scope> {
        Ok(Scope { enter: self.enter(scope)?, leave: self.leave(scope) })
    }

    fn find(&self, scope: ScopeId, name: NameId, line: u32) -> Result<Ident> {
        self.scopes.find(scope, name).ok_or_else(|| {
            let text = self.names.text(name);
            Error::new(ErrorKind::Syntax, format!("jinja2 does not compile the name {text} here")).at(line)
        })
    }

    fn name(&mut self, name: &mut Name, frame: Frame, line: u32) -> Result<()> {
        let ident = self.find(frame.scope, name.id, line)?;
        let is_param = self.scopes.start(frame.scope, ident) == Some(Start::Param);
        let pending = self.pending.last().is_some_and(|pending| pending.contains(&ident));
        name.may_miss = !is_param || pending;
        name.variable = self.variable(ident);
        Ok(())
    }

    fn expression(&mut self, expr: &mut Expr, frame: Frame) -> Result<()> {
        let line = expr.line;
        let mut frame = frame;
        match &mut expr.kind {
            ExprKind::Name(name) => return self.name(name, frame, line),
            ExprKind::Filter(call) if call.filter.is_none() && !frame.soft => {
                return Err(unknown("filter", &call.name, frame).at(line));
            }
            ExprKind::Test(call) if call.test.is_none() && !frame.soft => {
                return Err(unknown("test", &call.name, frame).at(line));
            }
            _ => {}
        }
        frame.soft |= matches!(expr.kind, ExprKind::Cond(_));
        frame.folded |= expr.may_be_constant();
        expr.kind.try_each_child_mut(&mut |child| self.expression(child, frame))
    }

    fn target(&mut self, target: &mut Target, frame: Frame) -> Result<()> {
        match target {
            Target::Name { line, id, slot, exported } => {
                let ident = self.find(frame.scope, *id, *line)?;
                *slot = self.variable(ident).slot;
                *exported = frame.toplevel;
                Ok(())
            }
            Target::Attr { line, name, .. } => {
                let ident = self.find(frame.scope, name.id, *line)?;
                name.variable = self.variable(ident);
                Ok(())
            }
            Target::Tuple(items) => items.iter_mut().try_for_each(|item| self.target(item, frame)),
        }
    }

    fn body(&mut self, body: &mut [Stmt], frame: Frame) -> Result<()> {
        body.iter_mut().try_for_each(|stmt| self.statement(stmt, frame))
    }

    fn statement(&mut self, stmt: &mut Stmt, frame: Frame) -> Result<()> {
        match &mut stmt.kind {
            StmtKind::Data(_) => Ok(()),
            StmtKind::Output(value) => self.expression(value, frame),
            StmtKind::Break | StmtKind::Continue if frame.in_loop => Ok(()),
            StmtKind::Break | StmtKind::Continue => {
                Err(Error::new(ErrorKind::Syntax, "break or continue outside of a loop").at(stmt.line))
            }
            StmtKind::Assign { target, value } => {
                self.expression(value, frame)?;
                self.target(target, frame)
            }
            StmtKind::AssignBlock { target, filter, body, scope } => {
                let inner = self.scopes.open(Some(frame.scope));
                self.scopes.analyze_body(inner, body);
                *scope = self.scope(inner)?;
                self.body(body, frame.inner(inner))?;
                self.target(target, frame)?;
                filter.iter_mut().try_for_each(|filter| self.expression(filter, frame.inner(inner)))
            }
            StmtKind::If(node) => {
                let soft = Frame { soft: true, ..frame };
                for (_, test, body) in &mut node.branches {
                    self.expression(test, soft)?;
                    self.body(body, soft)?;
                }
                self.body(&mut node.otherwise, soft)
            }
            StmtKind::For(node) => self.for_loop(node, frame, stmt.line),
            StmtKind::With { targets, values, body, scope } => {
                let inner = self.scopes.open(Some(frame.scope));
                for target in targets.iter() {
                    self.scopes.declare_target(inner, target);
                }
                self.scopes.analyze_body(inner, body);
                *scope = self.scope(inner)?;
                for (target, value) in targets.iter_mut().zip(values) {
                    self.target(target, frame.inner(inner))?;
                    self.expression(value, frame)?;
                }
                self.body(body, frame.inner(inner))
            }
            StmtKind::Macro { target, def } => {
                self.macro_def(def, frame, stmt.line)?;
                self.target(target, frame)
            }
            StmtKind::CallBlock { call, def } => {
                self.macro_def(def, frame, stmt.line)?;
                call.iter_mut().try_for_each(|call| self.expression(call, frame))
            }
            StmtKind::FilterBlock { filter, body, scope } => {
                let inner = self.scopes.open(Some(frame.scope));
                self.scopes.analyze_body(inner, body);
                self.scopes.expression(inner, filter);
                *scope = self.scope(inner)?;
                self.body(body, frame.inner(inner))?;
                self.expression(filter, frame.inner(inner))
            }
        }
    }

    fn for_loop(&mut self, node: &mut For, frame: Frame, line: u32) -> Result<()> {
        let loop_name = self.names.id("loop");
        let inner = self.scopes.open(Some(frame.scope));
        let extended = node.recursive || undeclared(&node.body, &[loop_name]).contains(&loop_name);
        if extended {
            self.scopes.declare_param(inner, loop_name);
        }
        self.scopes.analyze_loop(inner, node);
        let else_scope = self.scopes.open(Some(frame.scope));
        self.scopes.analyze_body(else_scope, &node.otherwise);
        if let Some(test) = &mut node.test {
            let test_scope = self.scopes.open(Some(frame.scope));
            self.scopes.analyze_loop_test(test_scope, &test.target, &test.test);
            self.begin_function(test_scope);
            test.scope = self.scope(test_scope)?;
            self.target(&mut test.target, frame.inner(inner))?;
            self.expression(&mut test.test, frame.inner(test_scope))?;
            test.slots = self.end_function()?;
        }
        if stores_loop(node, loop_name) {
            let message = "the variable loop cannot be assigned to inside of a loop";
            return Err(Error::new(ErrorKind::Syntax, message).at(line));
        }
        self.expression(&mut node.iter, frame)?;
        if node.recursive {
            self.begin_function(inner);
        }
        let body_frame = Frame { in_loop: true, ..frame.inner(inner) };
        if extended {
            let ident = self.find(inner, loop_name, line)?;
            node.loop_slot = Some(self.variable(ident).slot);
        }
        self.target(&mut node.target, body_frame)?;
        node.scope = self.scope(inner)?;
        self.body(&mut node.body, body_frame)?;
        let in_loop = frame.in_loop && !node.recursive;
        node.else_scope = self.scope(else_scope)?;
        self.body(&mut node.otherwise, Frame { in_loop, ..frame.inner(else_scope) })?;
        if node.recursive {
            node.slots = self.end_function()?;
        }
        Ok(())
    }

    fn macro_def(&mut self, def: &mut MacroDef, frame: Frame, line: u32) -> Result<()> {
        let inner = self.scopes.open(Some(frame.scope));
        self.scopes.analyze_macro(inner, def);
        self.begin_function(inner);
        let specials = ["caller", "kwargs", "varargs"].map(|name| self.names.id(name));
        let used = undeclared(&def.body, &specials);
        let [caller, kwargs, varargs] = specials;
        let own = |name: NameId| def.params.iter().position(|param| param.id == name);
        let (own_kwargs, own_varargs) = (own(kwargs).is_some(), own(varargs).is_some());
        def.explicit_caller = own(caller).is_some();
        if used.contains(&caller)
            && let Some(at) = own(caller)
            && def.params[at].default.is_none()
        {
            let message = "a parameter named caller needs a default";
            return Err(Error::new(ErrorKind::Syntax, message).at(line));
        }
        let mut special = |name: NameId, own: bool| {
            let wanted = used.contains(&name) && !own;
            wanted.then(|| self.scopes.declare_param(inner, name))
        };
        let caller = special(caller, def.explicit_caller);
        let kwargs = special(kwargs, own_kwargs);
        let varargs = special(varargs, own_varargs);
        self.scopes.analyze_macro(inner, def);
        def.caller = caller.map(|ident| self.variable(ident).slot);
        def.kwargs = kwargs.map(|ident| self.variable(ident).slot);
        def.varargs = varargs.map(|ident| self.variable(ident).slot);
        def.scope = Scope { enter: self.enter(inner)?, leave: Vec::new() };
        let inner_frame = Frame { in_loop: false, ..frame.inner(inner) };
        self.pending.push(self.scopes.params(inner));
        for param in &mut def.params {
            let ident = self.find(inner, param.id, line)?;
            param.slot = self.variable(ident).slot;
            param.default.iter_mut().try_for_each(|default| self.expression(default, inner_frame))?;
            self.pending.last_mut().map(|pending| pending.remove(&ident));
        }
        self.pending.pop();
        self.body(&mut def.body, inner_frame)?;
        def.slots = self.end_function()?;
        Ok(())
    }
}

/// The error of a filter or test that jinja2 does not have.
fn unknown(what: &str, name: &str, frame: Frame) -> Error {
    let message = format!("there is no {what} {name}");
    if frame.folded { Error::unsupported(message) } else { Error::new(ErrorKind::Syntax, message) }
}

/// Whether a loop, or anything inside of it, assigns to the name `loop`.
fn stores_loop(node: &For, name: NameId) -> bool {
    target_stores(&node.target, name)
        || node.body.iter().chain(&node.otherwise).any(|stmt| statement_stores(stmt, name))
}

fn target_stores(target: &Target, name: NameId) -> bool {
    match target {
        Target::Name { id, .. } => *id == name,
        Target::Attr { .. } => false,
        Target::Tuple(items) => items.iter().any(|item| target_stores(item, name)),
    }
}

fn statement_stores(stmt: &Stmt, name: NameId) -> bool {
    let any = |body: &[Stmt]| body.iter().any(|stmt| statement_stores(stmt, name));
    match &stmt.kind {
        StmtKind::Assign { target, .. } => target_stores(target, name),
        StmtKind::AssignBlock { target, body, .. } => target_stores(target, name) || any(body),
        StmtKind::If(node) => node.branches.iter().any(|(_, _, body)| any(body)) || any(&node.otherwise),
        StmtKind::For(node) => stores_loop(node, name),
        StmtKind::With { body, .. } | StmtKind::FilterBlock { body, .. } => any(body),
        StmtKind::Macro { def, .. } | StmtKind::CallBlock { def, .. } => any(&def.body),
        _ => false,
    }
}
