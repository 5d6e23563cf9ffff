//! Statements: the contents of `{% %}`.

use super::Parser;
use crate::ast::{
    Expr, ExprKind, For, If, LoopTest, MacroDef, Name, Param, Scope, Stmt, StmtKind, Target, Variable,
};
use crate::error::{Error, Result};
use crate::lexer::Tok;

/// Tags of jinja2 that this engine does not render, all of which need other templates or escaping.
const UNSUPPORTED: [&str; 6] = ["block", "extends", "include", "import", "from", "autoescape"];

impl Parser {
    /// Statements up to one of the end tags, of which `{%` is passed and the name is not; without end tags, up to the
    /// end of the template.
    pub(super) fn statements(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        self.nested(|parser| parser.statements_inside(ends))
    }

    fn statements_inside(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.next() {
                Tok::Data(text) => body.push(Stmt { line, kind: StmtKind::Data(text) }),
                Tok::VariableBegin => {
                    let value = self.tuple(true, None, false)?;
                    self.expect(&Tok::VariableEnd)?;
                    body.push(Stmt { line: value.line, kind: StmtKind::Output(value) });
                }
                Tok::BlockBegin => {
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    self.statement(&mut body)?;
                    self.expect(&Tok::BlockEnd)?;
                }
                Tok::Eof if ends.is_empty() => return Ok(body),
                Tok::Eof => {
                    return self.fail(format!("the template ends, but {} is missing", ends.join(" or ")));
                }
                _ => return self.unexpected("text or a tag"),
            }
        }
    }

    /// The body of a tag: from the tag's own end up to one of the end tags.
    fn body(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        self.skip_op(":");
        self.expect(&Tok::BlockEnd)?;
        self.statements(ends)
    }

    fn statement(&mut self, body: &mut Vec<Stmt>) -> Result<()> {
        let line = self.line();
        let tag = self.name()?;
        let kind = match tag.as_str() {
            "for" => self.for_loop()?,
            "if" => self.if_statement(line)?,
            "set" => self.set()?,
            "with" => self.with()?,
            "macro" => self.macro_statement(line)?,
            "call" => self.call_block()?,
            "filter" => {
                let mut filter = self.one_filter(None)?;
                while self.skip_op("|") {
                    filter = self.one_filter(Some(filter))?;
                }
                let body = self.body(&["endfilter"])?;
                self.next();
                StmtKind::FilterBlock { filter, body, scope: Scope::default() }
            }
            "print" => {
                let mut first = true;
                while *self.tok() != Tok::BlockEnd {
                    if !first {
                        self.expect_op(",")?;
                    }
                    first = false;
                    let value = self.expression(true)?;
                    body.push(Stmt { line, kind: StmtKind::Output(value) });
                }
                return Ok(());
            }
            "generation" => {
                let body = self.body(&["endgeneration"])?;
                self.next();
                StmtKind::CallBlock { call: None, def: Box::new(MacroDef { body, ..MacroDef::default() }) }
            }
            "break" => StmtKind::Break,
            "continue" => StmtKind::Continue,
            tag if UNSUPPORTED.contains(&tag) => {
                return Err(Error::unsupported(format!("the tag {{% {tag} %}}")).at(line));
            }
            tag => return self.fail(format!("there is no tag {{% {tag} %}} here")),
        };
        body.push(Stmt { line, kind });
        Ok(())
    }

    fn for_loop(&mut self) -> Result<StmtKind> {
        let target = self.target(Some("in"), false)?;
        self.expect_name("in")?;
        let iter = self.tuple(false, Some("recursive"), false)?;
        let test = if self.skip_name("if") {
            let test = self.expression(true)?;
            Some(LoopTest { target: target.clone(), test, scope: Scope::default(), slots: 0 })
        } else {
            None
        };
        let recursive = self.skip_name("recursive");
        let body = self.body(&["endfor", "else"])?;
        let mut otherwise = Vec::new();
        if self.next() == Tok::Name("else".to_owned()) {
            otherwise = self.body(&["endfor"])?;
            self.next();
        }
        Ok(StmtKind::For(Box::new(For {
            target,
            iter,
            test,
            body,
            otherwise,
            recursive,
            loop_slot: None,
            scope: Scope::default(),
            else_scope: Scope::default(),
            slots: 0,
        })))
    }

    fn if_statement(&mut self, line: u32) -> Result<StmtKind> {
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        let mut line = line;
        loop {
            let test = self.tuple(false, None, false)?;
            let body = self.body(&["elif", "else", "endif"])?;
            branches.push((line, test, body));
            line = self.line();
            match self.next() {
                Tok::Name(end) if end == "elif" => {}
                Tok::Name(end) if end == "else" => {
                    otherwise = self.body(&["endif"])?;
                    self.next();
                    break;
                }
                _ => break,
            }
        }
        Ok(StmtKind::If(Box::new(If { branches, otherwise })))
    }

    fn set(&mut self) -> Result<StmtKind> {
        let target = self.target(None, true)?;
        if self.skip_op("=") {
            let value = self.tuple(true, None, false)?;
            return Ok(StmtKind::Assign { target, value });
        }
        let mut filter = None;
        while self.skip_op("|") {
            filter = Some(self.one_filter(filter)?);
        }
        let body = self.body(&["endset"])?;
        self.next();
        Ok(StmtKind::AssignBlock { target, filter, body, scope: Scope::default() })
    }

    fn with(&mut self) -> Result<StmtKind> {
        let (mut targets, mut values) = (Vec::new(), Vec::new());
        while *self.tok() != Tok::BlockEnd {
            if !targets.is_empty() {
                self.expect_op(",")?;
            }
            targets.push(self.target(None, false)?);
            self.expect_op("=")?;
            values.push(self.expression(true)?);
        }
        let body = self.body(&["endwith"])?;
        self.next();
        Ok(StmtKind::With { targets, values, body, scope: Scope::default() })
    }

    fn macro_statement(&mut self, line: u32) -> Result<StmtKind> {
        let name = self.target_name()?;
        let target = Target::Name { line, id: self.store_name(&name), slot: 0, exported: false };
        let params = self.signature()?;
        let body = self.body(&["endmacro"])?;
        self.next();
        let def = Box::new(MacroDef { name: Some(name), params, body, ..MacroDef::default() });
        Ok(StmtKind::Macro { target, def })
    }

    fn call_block(&mut self) -> Result<StmtKind> {
        let params = if self.is_op("(") { self.signature()? } else { Vec::new() };
        let call = self.expression(true)?;
        if !matches!(call.kind, ExprKind::Call(_)) {
            return self.fail("expected a call behind {% call");
        }
        let body = self.body(&["endcall"])?;
        self.next();
        let def = Box::new(MacroDef { params, body, ..MacroDef::default() });
        Ok(StmtKind::CallBlock { call: Some(call), def })
    }

    /// The parameters of a macro: `(a, b, c=1)`.
    fn signature(&mut self) -> Result<Vec<Param>> {
        self.expect_op("(")?;
        let mut params: Vec<Param> = Vec::new();
        while !self.is_op(")") {
            if !params.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.target_name()?;
            if params.iter().any(|param| param.name == name) {
                return self.fail(format!("the parameter {name} is there twice"));
            }
            let default = if self.skip_op("=") {
                Some(self.expression(true)?)
            } else if params.last().is_some_and(|param| param.default.is_some()) {
                return self.fail("a parameter without a default behind one that has a default");
            } else {
                None
            };
            params.push(Param { id: self.store_name(&name), name, slot: 0, default });
        }
        self.expect_op(")")?;
        Ok(params)
    }

    /// A name that can be stored into.
    fn target_name(&mut self) -> Result<String> {
        let name = self.name()?;
        if matches!(name.as_str(), "true" | "false" | "none" | "True" | "False" | "None") {
            return self.fail(format!("cannot assign to {name}"));
        }
        Ok(name)
    }

    /// The target of an assignment: names, tuples of names, and with `namespaces` attributes of namespaces.
    fn target(&mut self, end: Option<&str>, namespaces: bool) -> Result<Target> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.tuple_ends(end) {
                break;
            }
            items.push(self.one_target(namespaces)?);
            if !self.is_op(",") {
                break;
            }
            is_tuple = true;
        }
        match items.pop() {
            Some(only) if !is_tuple => Ok(only),
            None => self.unexpected("a name to assign to"),
            last => {
                items.extend(last);
                Ok(Target::Tuple(items))
            }
        }
    }

    fn one_target(&mut self, namespaces: bool) -> Result<Target> {
        let line = self.line();
        if namespaces
            && matches!(self.tok(), Tok::Name(_))
            && matches!(self.after(), Tok::Op("."))
            && !matches!(self.tok(), Tok::Name(name) if is_constant(name))
        {
            let name = self.name()?;
            self.next();
            let attr = self.name()?;
            let name = Name { id: self.names.id(&name), variable: Variable::default(), may_miss: true };
            return Ok(Target::Attr { line, name, attr });
        }
        let expr = self.primary()?;
        self.as_target(expr)
    }

    fn as_target(&mut self, expr: Expr) -> Result<Target> {
        match expr.kind {
            ExprKind::Name(name) => {
                self.names.reads[name.id as usize] -= 1;
                self.names.stored[name.id as usize] = true;
                Ok(Target::Name { line: expr.line, id: name.id, slot: 0, exported: false })
            }
            ExprKind::Tuple(items) => {
                let items = items.into_iter().map(|item| self.as_target(item)).collect::<Result<_>>()?;
                Ok(Target::Tuple(items))
            }
            _ => self.fail("cannot assign to this"),
        }
    }
}

fn is_constant(name: &str) -> bool {
    matches!(name, "true" | "false" | "none" | "True" | "False" | "None")
}
