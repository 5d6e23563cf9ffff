//! A compiled template.

use std::collections::BTreeMap;

use crate::ast::{Expr, ExprKind, NameId, Stmt, StmtKind};
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
    /// The statement from which on the template writes the generation prompt, if that prompt does not depend on the
    /// messages, and nothing before depends on whether there is one.
    pub tail: Option<usize>,
}

impl Program {
    pub(crate) fn compile(source: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(Error::unsupported("a template of more than a million bytes"));
        }
        let (mut body, mut names) = parse(tokenize(&normalize_newlines(source))?)?;
        let root = resolve(&mut body, &mut names)?;
        let tail = fixed_tail(&body, &names);
        Ok(Self { body, names, root, tail })
    }
}

/// Where the last loop ends, if the text there depends only on values that the template was given beside
/// messages.
fn fixed_tail(body: &[Stmt], names: &Names) -> Option<usize> {
    let begin = body.iter().rposition(|stmt| matches!(stmt.kind, StmtKind::For(_)))? + 1;
    let prompt = names.find("add_generation_prompt")?;
    let messages = names.find("messages");
    let mut reads = BTreeMap::new();
    let is_plain = body[begin..].iter().all(|stmt| plain_reads(stmt, &mut reads));
    let fixed = reads.keys().all(|name| !names.is_stored(*name) && Some(*name) != messages);
    let only_here = reads.get(&prompt).copied() == Some(names.reads(prompt));
    (is_plain && fixed && only_here).then_some(begin)
}

/// Counts how often each name is read.
fn expression_reads(expr: &Expr, reads: &mut BTreeMap<NameId, u32>) {
    if let ExprKind::Name(name) = &expr.kind {
        *reads.entry(name.id).or_default() += 1;
    }
    expr.kind.each_child(&mut |child| expression_reads(child, reads));
}

/// Counts what a statement reads, if it only writes text and decides.
fn plain_reads(stmt: &Stmt, reads: &mut BTreeMap<NameId, u32>) -> bool {
    match &stmt.kind {
        StmtKind::Data(_) => true,
        StmtKind::Output(value) => {
            expression_reads(value, reads);
            true
        }
        StmtKind::If(node) => {
            let branches = node.branches.iter().all(|(_, test, body)| {
                expression_reads(test, reads);
                body.iter().all(|stmt| plain_reads(stmt, reads))
            });
            branches && node.otherwise.iter().all(|stmt| plain_reads(stmt, reads))
        }
        _ => false,
    }
}
