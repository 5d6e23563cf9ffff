//! From tokens to the tree, as jinja2's parser does with loop controls and generation blocks.

mod expression;
mod statement;

use std::collections::HashMap;

use crate::ast::{ExprKind, Name, NameId, Stmt, Variable};
use crate::error::{Error, ErrorKind, Result};
use crate::lexer::{Tok, Token};

/// How deep tags and expressions may nest.
const MAX_DEPTH: u32 = 100;

/// The names of a template.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    ids: HashMap<String, NameId>,
    texts: Vec<String>,
    /// How often each name is read in the template.
    reads: Vec<u32>,
    /// Whether anything in the template stores into a variable of this name.
    stored: Vec<bool>,
}

impl Names {
    pub(crate) fn id(&mut self, text: &str) -> NameId {
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let id = self.texts.len() as NameId;
        self.ids.insert(text.to_owned(), id);
        self.texts.push(text.to_owned());
        self.reads.push(0);
        self.stored.push(false);
        id
    }

    /// How often a name is read.
    pub(crate) fn reads(&self, id: NameId) -> u32 {
        self.reads[id as usize]
    }

    /// Whether anything stores into a variable of this name.
    pub(crate) fn is_stored(&self, id: NameId) -> bool {
        self.stored[id as usize]
    }

    pub(crate) fn find(&self, text: &str) -> Option<NameId> {
        self.ids.get(text).copied()
    }

    pub(crate) fn text(&self, id: NameId) -> &str {
        &self.texts[id as usize]
    }

    /// All names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (NameId, &str)> {
        self.texts.iter().enumerate().map(|(id, text)| (id as NameId, text.as_str()))
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }
}

/// Parses a template's tokens.
pub(crate) fn parse(tokens: Vec<Token>) -> Result<(Vec<Stmt>, Names)> {
    let mut parser = Parser { tokens, at: 0, names: Names::default(), depth: 0 };
    let body = parser.statements(&[])?;
    Ok((body, parser.names))
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    names: Names,
    depth: u32,
}

impl Parser {
    fn tok(&self) -> &Tok {
        &self.tokens[self.at].tok
    }

    fn after(&self) -> &Tok {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].tok
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    /// Passes one token. The last one, the end, stays.
    fn next(&mut self) -> Tok {
        let tok = self.tok().clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        tok
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Error::new(ErrorKind::Syntax, message).at(self.line()))
    }

    fn unexpected<T>(&self, expected: &str) -> Result<T> {
        self.fail(format!("expected {expected}, found {}", describe(self.tok())))
    }

    fn is_op(&self, operator: &str) -> bool {
        matches!(self.tok(), Tok::Op(op) if *op == operator)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.tok(), Tok::Name(text) if text == name)
    }

    fn skip_op(&mut self, operator: &str) -> bool {
        let found = self.is_op(operator);
        if found {
            self.next();
        }
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.next();
        }
        found
    }

    fn expect_op(&mut self, operator: &str) -> Result<()> {
        if self.skip_op(operator) { Ok(()) } else { self.unexpected(&format!("'{operator}'")) }
    }

    fn expect_name(&mut self, name: &str) -> Result<()> {
        if self.skip_name(name) { Ok(()) } else { self.unexpected(&format!("'{name}'")) }
    }

    fn expect(&mut self, tok: &Tok) -> Result<()> {
        if self.tok() == tok {
            self.next();
            return Ok(());
        }
        self.unexpected(&describe(tok))
    }

    /// Any name.
    fn name(&mut self) -> Result<String> {
        match self.tok().clone() {
            Tok::Name(name) => {
                self.next();
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    /// Runs a part of the parser one level deeper.
    fn nested<T>(&mut self, part: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(Error::unsupported("tags or expressions nested too deep").at(self.line()));
        }
        self.depth += 1;
        let result = part(self);
        self.depth -= 1;
        result
    }

    fn read_name(&mut self, text: &str) -> ExprKind {
        let id = self.names.id(text);
        self.names.reads[id as usize] += 1;
        ExprKind::Name(Name { id, variable: Variable::default(), may_miss: true })
    }

    /// A name that is stored into.
    fn store_name(&mut self, text: &str) -> NameId {
        let id = self.names.id(text);
        self.names.stored[id as usize] = true;
        id
    }
}

fn describe(tok: &Tok) -> String {
    match tok {
        Tok::Data(_) => "text".to_owned(),
        Tok::BlockBegin => "'{%'".to_owned(),
        Tok::BlockEnd => "'%}'".to_owned(),
        Tok::VariableBegin => "'{{'".to_owned(),
        Tok::VariableEnd => "'}}'".to_owned(),
        Tok::Name(name) => format!("'{name}'"),
        Tok::Str(_) => "a string".to_owned(),
        Tok::Number(_) => "a number".to_owned(),
        Tok::Op(operator) => format!("'{operator}'"),
        Tok::Eof => "the end of the template".to_owned(),
    }
}
