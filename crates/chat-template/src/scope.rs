//! The variable that a name means. jinja2 compiles a template to Python functions, and what a name means follows from
//! the Python variables it makes: one for each name and level of scopes. This module finds the same variables.

use std::collections::{BTreeMap, BTreeSet};

use crate::ast::{Expr, ExprKind, For, MacroDef, NameId, Stmt, StmtKind, Target};

/// A variable: the level of the scope that has it, and its name.
pub(crate) type Ident = (u32, NameId);

/// How a variable starts when its scope is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// The scope's owner stores into it: a loop's target, a macro's parameter.
    Param,
    /// It is looked up in the context.
    Resolve,
    /// It has the value of an outer variable.
    Alias(Ident),
    /// It is unset.
    Unset,
}

/// The variables of one scope.
#[derive(Debug, Clone)]
struct Symbols {
    level: u32,
    parent: Option<ScopeId>,
    refs: BTreeMap<NameId, Ident>,
    starts: BTreeMap<Ident, Start>,
    stores: BTreeSet<NameId>,
}

/// An index into [`Scopes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScopeId(usize);

/// All scopes of a template.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    all: Vec<Symbols>,
    /// How many variables were copied for the branches of `if`s.
    copied: usize,
}

/// How many variables may be copied: their number grows with the square of a template's length.
const MAX_COPIED: usize = 2_000_000;

impl Scopes {
    /// The outermost scope, or one inside of another.
    pub(crate) fn open(&mut self, parent: Option<ScopeId>) -> ScopeId {
        self.all.push(Symbols {
            level: parent.map_or(0, |parent| self.level(parent) + 1),
            parent,
            refs: BTreeMap::new(),
            starts: BTreeMap::new(),
            stores: BTreeSet::new(),
        });
        ScopeId(self.all.len() - 1)
    }

    /// Whether the template has more than can be analyzed in time. The variables found are incomplete then.
    pub(crate) fn is_too_large(&self) -> bool {
        self.copied > MAX_COPIED
    }

    pub(crate) fn level(&self, scope: ScopeId) -> u32 {
        self.all[scope.0].level
    }

    /// Each variable of this scope and how it starts.
    pub(crate) fn starts(&self, scope: ScopeId) -> impl Iterator<Item = (Ident, Start)> {
        self.all[scope.0].starts.iter().map(|(ident, start)| (*ident, *start))
    }

    /// This scope and those around it, from the inside out.
    fn outwards(&self, scope: ScopeId) -> impl Iterator<Item = &Symbols> {
        std::iter::successors(Some(&self.all[scope.0]), |symbols| Some(&self.all[symbols.parent?.0]))
    }

    /// The variable that a name means here.
    pub(crate) fn find(&self, scope: ScopeId, name: NameId) -> Option<Ident> {
        self.outwards(scope).find_map(|symbols| symbols.refs.get(&name).copied())
    }

    pub(crate) fn start(&self, scope: ScopeId, ident: Ident) -> Option<Start> {
        self.outwards(scope).find_map(|symbols| symbols.starts.get(&ident).copied())
    }

    /// The parameters of this scope and of those around it.
    pub(crate) fn params(&self, scope: ScopeId) -> BTreeSet<Ident> {
        let all = self.outwards(scope).flat_map(|symbols| &symbols.starts);
        all.filter(|(_, start)| **start == Start::Param).map(|(ident, _)| *ident).collect()
    }

    fn define(&mut self, scope: ScopeId, name: NameId, start: Start) -> Ident {
        let symbols = &mut self.all[scope.0];
        let ident = (symbols.level, name);
        symbols.refs.insert(name, ident);
        symbols.starts.insert(ident, start);
        ident
    }

    pub(crate) fn declare_param(&mut self, scope: ScopeId, name: NameId) -> Ident {
        self.all[scope.0].stores.insert(name);
        self.define(scope, name, Start::Param)
    }

    fn store(&mut self, scope: ScopeId, name: NameId) {
        let symbols = &mut self.all[scope.0];
        symbols.stores.insert(name);
        if symbols.refs.contains_key(&name) {
            return;
        }
        let outer = symbols.parent.and_then(|parent| self.find(parent, name));
        self.define(scope, name, outer.map_or(Start::Unset, Start::Alias));
    }

    fn load(&mut self, scope: ScopeId, name: NameId) {
        if self.find(scope, name).is_none() {
            self.define(scope, name, Start::Resolve);
        }
    }

    /// Takes over what the branches of an `if` found. A variable that only some of them store starts as it was outside.
    fn join_branches(&mut self, scope: ScopeId, branches: &[ScopeId]) {
        let mut stored = BTreeSet::new();
        for branch in branches {
            stored.extend(self.all[branch.0].stores.iter().copied());
        }
        stored.retain(|name| !self.all[scope.0].stores.contains(name));
        for branch in branches {
            let Symbols { refs, starts, stores, .. } = self.all[branch.0].clone();
            let symbols = &mut self.all[scope.0];
            symbols.refs.extend(refs);
            symbols.starts.extend(starts);
            symbols.stores.extend(stores);
        }
        for name in stored {
            let Some(ident) = self.find(scope, name) else { continue };
            let outer = self.all[scope.0].parent.and_then(|parent| self.find(parent, name));
            self.all[scope.0].starts.insert(ident, outer.map_or(Start::Resolve, Start::Alias));
        }
    }

    pub(crate) fn analyze_body(&mut self, scope: ScopeId, body: &[Stmt]) {
        for stmt in body {
            self.statement(scope, stmt);
        }
    }

    pub(crate) fn analyze_loop(&mut self, scope: ScopeId, node: &For) {
        self.declare_target(scope, &node.target);
        self.analyze_body(scope, &node.body);
    }

    pub(crate) fn analyze_loop_test(&mut self, scope: ScopeId, target: &Target, test: &Expr) {
        self.declare_target(scope, target);
        self.expression(scope, test);
    }

    pub(crate) fn analyze_macro(&mut self, scope: ScopeId, def: &MacroDef) {
        for param in &def.params {
            self.declare_param(scope, param.id);
        }
        for default in def.params.iter().filter_map(|param| param.default.as_ref()) {
            self.expression(scope, default);
        }
        self.analyze_body(scope, &def.body);
    }

    pub(crate) fn declare_target(&mut self, scope: ScopeId, target: &Target) {
        match target {
            Target::Name { id, .. } => {
                self.declare_param(scope, *id);
            }
            Target::Attr { name, .. } => self.load(scope, name.id),
            Target::Tuple(items) => items.iter().for_each(|item| self.declare_target(scope, item)),
        }
    }

    fn store_target(&mut self, scope: ScopeId, target: &Target) {
        match target {
            Target::Name { id, .. } => self.store(scope, *id),
            Target::Attr { name, .. } => self.load(scope, name.id),
            Target::Tuple(items) => items.iter().for_each(|item| self.store_target(scope, item)),
        }
    }

    pub(crate) fn expression(&mut self, scope: ScopeId, expr: &Expr) {
        if let ExprKind::Name(name) = &expr.kind {
            self.load(scope, name.id);
        }
        expr.kind.each_child(&mut |child| self.expression(scope, child));
    }

    /// Statements that open a scope are not entered, except for what is evaluated outside of that scope.
    fn statement(&mut self, scope: ScopeId, stmt: &Stmt) {
        match &stmt.kind {
            StmtKind::Data(_) | StmtKind::Break | StmtKind::Continue => {}
            StmtKind::Output(value) => self.expression(scope, value),
            StmtKind::Assign { target, value } => {
                self.expression(scope, value);
                self.store_target(scope, target);
            }
            StmtKind::AssignBlock { target, .. } | StmtKind::Macro { target, .. } => {
                self.store_target(scope, target);
            }
            StmtKind::If(node) => self.branches(scope, &node.branches, &node.otherwise),
            StmtKind::For(node) => self.expression(scope, &node.iter),
            StmtKind::With { values, .. } => values.iter().for_each(|value| self.expression(scope, value)),
            StmtKind::CallBlock { call, .. } => call.iter().for_each(|call| self.expression(scope, call)),
            StmtKind::FilterBlock { filter, .. } => self.expression(scope, filter),
        }
    }

    /// `if`, each `elif` and `else`: the branches do not see what the others store.
    fn branches(&mut self, scope: ScopeId, branches: &[(u32, Expr, Vec<Stmt>)], otherwise: &[Stmt]) {
        let Some(((_, test, body), elifs)) = branches.split_first() else { return };
        if self.is_too_large() {
            return;
        }
        self.expression(scope, test);
        let copy = |scopes: &mut Self| {
            scopes.copied += scopes.all[scope.0].refs.len();
            scopes.all.push(scopes.all[scope.0].clone());
            ScopeId(scopes.all.len() - 1)
        };
        let first = copy(self);
        self.analyze_body(first, body);
        let middle = copy(self);
        for branch in elifs {
            self.branches(middle, std::slice::from_ref(branch), &[]);
        }
        let last = copy(self);
        self.analyze_body(last, otherwise);
        self.join_branches(scope, &[first, middle, last]);
    }
}

/// The names that are read somewhere in the statements before anything stores into them there, whatever the
/// scopes in between.
pub(crate) fn undeclared(body: &[Stmt], names: &[NameId]) -> BTreeSet<NameId> {
    let mut search =
        Undeclared { wanted: names.iter().copied().collect(), all: names.len(), found: BTreeSet::new() };
    for stmt in body {
        search.statement(stmt);
    }
    search.found
}

struct Undeclared {
    wanted: BTreeSet<NameId>,
    all: usize,
    found: BTreeSet<NameId>,
}

impl Undeclared {
    fn done(&self) -> bool {
        self.found.len() == self.all || self.wanted.is_empty()
    }

    fn body(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.statement(stmt);
        }
    }

    fn expression(&mut self, expr: &Expr) {
        if self.done() {
            return;
        }
        if let ExprKind::Name(name) = &expr.kind
            && self.wanted.contains(&name.id)
        {
            self.found.insert(name.id);
        }
        expr.kind.each_child(&mut |child| self.expression(child));
    }

    fn target(&mut self, target: &Target) {
        match target {
            Target::Name { id, .. } => {
                self.wanted.remove(id);
            }
            Target::Attr { .. } => {}
            Target::Tuple(items) => items.iter().for_each(|item| self.target(item)),
        }
    }

    fn macro_def(&mut self, def: &MacroDef) {
        for param in &def.params {
            self.wanted.remove(&param.id);
        }
        for default in def.params.iter().filter_map(|param| param.default.as_ref()) {
            self.expression(default);
        }
        self.body(&def.body);
    }

    fn statement(&mut self, stmt: &Stmt) {
        if self.done() {
            return;
        }
        match &stmt.kind {
            StmtKind::Data(_) | StmtKind::Break | StmtKind::Continue => {}
            StmtKind::Output(value) => self.expression(value),
            StmtKind::Assign { target, value } => {
                self.target(target);
                self.expression(value);
            }
            StmtKind::AssignBlock { target, filter, body, .. } => {
                self.target(target);
                if let Some(filter) = filter {
                    self.expression(filter);
                }
                self.body(body);
            }
            StmtKind::If(node) => {
                let mut branches = node.branches.iter();
                for (_, test, body) in branches.by_ref() {
                    self.expression(test);
                    self.body(body);
                }
                self.body(&node.otherwise);
            }
            StmtKind::For(node) => {
                self.target(&node.target);
                self.expression(&node.iter);
                self.body(&node.body);
                self.body(&node.otherwise);
                if let Some(test) = &node.test {
                    self.expression(&test.test);
                }
            }
            StmtKind::With { targets, values, body, .. } => {
                for target in targets {
                    self.target(target);
                }
                for value in values {
                    self.expression(value);
                }
                self.body(body);
            }
            StmtKind::Macro { def, .. } => self.macro_def(def),
            StmtKind::CallBlock { call, def } => {
                if let Some(call) = call {
                    self.expression(call);
                }
                self.macro_def(def);
            }
            StmtKind::FilterBlock { filter, body, .. } => {
                self.body(body);
                self.expression(filter);
            }
        }
    }
}
