//! A compiled template.

use crate::ast::Stmt;
use crate::error::{Error, Result};
use crate::lexer::{normalize_newlines, tokenize};
use crate::parser::{Names, parse};
use crate::resolve::{Root, resolve};

/// How long a template may be. The longest known ones have 20 thousand bytes.
const MAX_SOURCE: usize = 1 << 20;

#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub body: Vec<Stmt>,
    pub names: Names,
    pub root: Root,
}

impl Program {
    pub(crate) fn compile(source: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(Error::unsupported("a template of more than a million bytes"));
        }
        let (mut body, mut names) = parse(tokenize(&normalize_newlines(source))?)?;
        let root = resolve(&mut body, &mut names)?;
        Ok(Self { body, names, root })
    }
}
