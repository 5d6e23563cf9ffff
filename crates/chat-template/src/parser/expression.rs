//! Expressions, from the loosest operator to the tightest.

use super::Parser;
use crate::ast::{
    Args, AttrName, BinaryOp, Call, CompareOp, Cond, Const, Expr, ExprKind, FilterCall, Slice, TestCall,
    UnaryOp,
};
use crate::attribute::Attribute;
use crate::error::{Error, Result};
use crate::filters::Filter;
use crate::format::check_format;
use crate::is_tests::Test;
use crate::lexer::Tok;

/// How many levels of nodes an expression may have.
const MAX_HEIGHT: u16 = 300;

impl Parser {
    /// An expression, with or without `a if b else c`.
    pub(super) fn expression(&mut self, with_condition: bool) -> Result<Expr> {
        self.nested(|parser| if with_condition { parser.conditional() } else { parser.or() })
    }

    /// One expression, or several with commas, which are a tuple. `ends` also ends a tuple, and an empty one is
    /// allowed in parentheses only.
    pub(super) fn tuple(
        &mut self,
        with_condition: bool,
        end: Option<&str>,
        parenthesized: bool,
    ) -> Result<Expr> {
        let mut line = self.line();
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.tuple_ends(end) {
                break;
            }
            items.push(self.expression(with_condition)?);
            if !self.is_op(",") {
                break;
            }
            is_tuple = true;
            line = self.line();
        }
        match (is_tuple, items.pop()) {
            (false, Some(only)) => Ok(only),
            (false, None) if !parenthesized => self.unexpected("an expression"),
            (_, last) => {
                items.extend(last);
                tree(line, ExprKind::Tuple(items))
            }
        }
    }

    pub(super) fn tuple_ends(&self, end: Option<&str>) -> bool {
        matches!(self.tok(), Tok::VariableEnd | Tok::BlockEnd)
            || self.is_op(")")
            || end.is_some_and(|end| self.is_name(end))
    }

    fn conditional(&mut self) -> Result<Expr> {
        let mut line = self.line();
        let mut then = self.or()?;
        while self.skip_name("if") {
            let test = self.or()?;
            let otherwise = if self.skip_name("else") { Some(self.nested(Self::conditional)?) } else { None };
            then = tree(line, ExprKind::Cond(Box::new(Cond { test, then, otherwise })))?;
            line = self.line();
        }
        Ok(then)
    }

    fn or(&mut self) -> Result<Expr> {
        self.chain(Self::and, |parser| parser.skip_name("or").then_some(ExprKind::Or as fn(_) -> _))
    }

    fn and(&mut self) -> Result<Expr> {
        self.chain(Self::not, |parser| parser.skip_name("and").then_some(ExprKind::And as fn(_) -> _))
    }

    /// `part (operator part)*`, grouped from the left.
    fn chain<M: FnOnce(Box<(Expr, Expr)>) -> ExprKind>(
        &mut self,
        part: impl Fn(&mut Self) -> Result<Expr>,
        operator: impl Fn(&mut Self) -> Option<M>,
    ) -> Result<Expr> {
        let mut line = self.line();
        let mut left = part(self)?;
        while let Some(make) = operator(self) {
            let right = part(self)?;
            left = tree(line, make(Box::new((left, right))))?;
            line = self.line();
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr> {
        let line = self.line();
        if self.skip_name("not") {
            let value = self.nested(Self::not)?;
            return tree(line, ExprKind::Unary(UnaryOp::Not, Box::new(value)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr> {
        let line = self.line();
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(op) = self.compare_op() {
            rest.push((op, self.sum()?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        if let [
            (op @ (CompareOp::Eq | CompareOp::Ne), Expr { kind: ExprKind::Const(Const::Str(text)), .. }),
        ] = rest.as_mut_slice()
        {
            let (text, negated) = (std::mem::take(text), *op == CompareOp::Ne);
            return tree(line, ExprKind::IsText { value: Box::new(first), text, negated });
        }
        tree(line, ExprKind::Compare(Box::new(first), rest))
    }

    fn compare_op(&mut self) -> Option<CompareOp> {
        let op = match self.tok() {
            Tok::Op("==") => CompareOp::Eq,
            Tok::Op("!=") => CompareOp::Ne,
            Tok::Op("<") => CompareOp::Lt,
            Tok::Op("<=") => CompareOp::Le,
            Tok::Op(">") => CompareOp::Gt,
            Tok::Op(">=") => CompareOp::Ge,
            Tok::Name(name) if name == "in" => CompareOp::In,
            Tok::Name(name) if name == "not" && *self.after() == Tok::Name("in".to_owned()) => {
                self.next();
                CompareOp::NotIn
            }
            _ => return None,
        };
        self.next();
        Some(op)
    }

    /// `+` and `-`. A run of `+` is one node, so that joined strings are copied once.
    fn sum(&mut self) -> Result<Expr> {
        let mut line = self.line();
        let mut left = self.concat()?;
        loop {
            let add = self.is_op("+");
            if !add && !self.is_op("-") {
                return Ok(left);
            }
            self.next();
            let right = self.concat()?;
            if add {
                left = match left {
                    Expr { kind: ExprKind::Add(mut items), height, weight, line } => {
                        let height = height.max(right.height.saturating_add(1));
                        let weight = weight.saturating_add(right.weight);
                        items.push(right);
                        Expr { line, height, weight, kind: ExprKind::Add(items) }
                    }
                    first => tree(line, ExprKind::Add(vec![first, right]))?,
                };
            } else {
                left = tree(line, ExprKind::Binary(BinaryOp::Sub, Box::new((left, right))))?;
            }
            line = self.line();
        }
    }

    fn concat(&mut self) -> Result<Expr> {
        let line = self.line();
        let mut items = vec![self.product()?];
        while self.skip_op("~") {
            items.push(self.product()?);
        }
        match items.pop() {
            Some(only) if items.is_empty() => Ok(only),
            last => {
                items.extend(last);
                tree(line, ExprKind::Concat(items))
            }
        }
    }

    fn product(&mut self) -> Result<Expr> {
        self.chain(Self::power, |parser| {
            let op = match parser.tok() {
                Tok::Op("*") => BinaryOp::Mul,
                Tok::Op("/") => BinaryOp::Div,
                Tok::Op("//") => BinaryOp::FloorDiv,
                Tok::Op("%") => BinaryOp::Mod,
                _ => return None,
            };
            parser.next();
            Some(move |sides| ExprKind::Binary(op, sides))
        })
    }

    fn power(&mut self) -> Result<Expr> {
        self.chain(
            |parser| parser.unary(true),
            |parser| parser.skip_op("**").then_some(|sides| ExprKind::Binary(BinaryOp::Pow, sides)),
        )
    }

    fn unary(&mut self, with_filter: bool) -> Result<Expr> {
        let line = self.line();
        let op = match self.tok() {
            Tok::Op("-") => Some(UnaryOp::Neg),
            Tok::Op("+") => Some(UnaryOp::Pos),
            _ => None,
        };
        let node = match op {
            Some(op) => {
                self.next();
                let value = self.nested(|parser| parser.unary(false))?;
                tree(line, ExprKind::Unary(op, Box::new(value)))?
            }
            None => self.primary()?,
        };
        let node = self.postfix(node)?;
        if with_filter { self.filters_and_tests(node) } else { Ok(node) }
    }

    /// A name, a literal, or an expression in brackets.
    pub(super) fn primary(&mut self) -> Result<Expr> {
        let line = self.line();
        let kind = match self.tok().clone() {
            Tok::Name(name) => {
                self.next();
                match name.as_str() {
                    "true" | "True" => ExprKind::Const(Const::Bool(true)),
                    "false" | "False" => ExprKind::Const(Const::Bool(false)),
                    "none" | "None" => ExprKind::Const(Const::None),
                    _ => self.read_name(&name),
                }
            }
            Tok::Str(mut text) => {
                self.next();
                while let Tok::Str(more) = self.tok().clone() {
                    text.push_str(&more);
                    self.next();
                }
                ExprKind::Const(Const::Str(text))
            }
            Tok::Number(value) => {
                self.next();
                ExprKind::Const(value)
            }
            Tok::Op("(") => {
                self.next();
                let inner = self.nested(|parser| parser.tuple(true, None, true))?;
                self.expect_op(")")?;
                return Ok(inner);
            }
            Tok::Op("[") => self.list()?,
            Tok::Op("{") => self.dict()?,
            _ => return self.unexpected("an expression"),
        };
        tree(line, kind)
    }

    fn list(&mut self) -> Result<ExprKind> {
        self.expect_op("[")?;
        let mut items = Vec::new();
        while !self.is_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.is_op("]") {
                break;
            }
            items.push(self.expression(true)?);
        }
        self.expect_op("]")?;
        Ok(ExprKind::List(items))
    }

    fn dict(&mut self) -> Result<ExprKind> {
        self.expect_op("{")?;
        let mut items = Vec::new();
        while !self.is_op("}") {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.is_op("}") {
                break;
            }
            let key = self.expression(true)?;
            if matches!(key.kind, ExprKind::List(_) | ExprKind::Dict(_)) {
                // jinja2 fails already when it compiles this, but only if all of it is constant.
                return Err(Error::unsupported("a list or dict as a dict's key").at(key.line));
            }
            self.expect_op(":")?;
            items.push((key, self.expression(true)?));
        }
        self.expect_op("}")?;
        Ok(ExprKind::Dict(items))
    }

    fn postfix(&mut self, mut node: Expr) -> Result<Expr> {
        loop {
            match self.tok() {
                Tok::Op("." | "[") => node = self.subscript(node)?,
                Tok::Op("(") => node = self.call(node)?,
                _ => return Ok(node),
            }
        }
    }

    fn filters_and_tests(&mut self, mut node: Expr) -> Result<Expr> {
        loop {
            match self.tok() {
                Tok::Op("|") => {
                    self.next();
                    node = self.one_filter(Some(node))?;
                }
                Tok::Name(name) if name == "is" => node = self.test(node)?,
                Tok::Op("(") => node = self.call(node)?,
                _ => return Ok(node),
            }
        }
    }

    fn subscript(&mut self, node: Expr) -> Result<Expr> {
        let line = self.line();
        if self.skip_op(".") {
            return match self.next() {
                Tok::Name(text) => {
                    check_attribute(&text, self.is_op("(")).map_err(|error| error.at(line))?;
                    let known = Attribute::named(&text);
                    tree(line, ExprKind::Attr(Box::new(node), AttrName { text, known }))
                }
                Tok::Number(index @ (Const::Int(_) | Const::Big(_))) => {
                    let index = tree(line, ExprKind::Const(index))?;
                    tree(line, ExprKind::Item(Box::new((node, index))))
                }
                _ => self.fail("expected a name or a number behind '.'"),
            };
        }
        self.expect_op("[")?;
        let mut items = Vec::new();
        while !self.is_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            items.push(self.subscribed()?);
        }
        self.expect_op("]")?;
        if items.len() == 1
            && let Some(Subscript::Slice(start, stop, step)) =
                items.pop_if(|s| matches!(s, Subscript::Slice(..)))
        {
            let constant = node.may_be_constant()
                && [&start, &stop, &step].into_iter().flatten().all(Expr::may_be_constant);
            let slice = Slice { target: node, start, stop, step, constant };
            return tree(line, ExprKind::Slice(Box::new(slice)));
        }
        let mut indices = Vec::new();
        for item in items {
            let Subscript::Index(index) = item else {
                return Err(Error::unsupported("a slice among several subscripts").at(line));
            };
            indices.push(index);
        }
        let index = match indices.pop() {
            Some(only) if indices.is_empty() => only,
            last => {
                indices.extend(last);
                tree(line, ExprKind::Tuple(indices))?
            }
        };
        if let ExprKind::Const(Const::Str(text)) = &index.kind {
            check_attribute(text, self.is_op("(")).map_err(|error| error.at(line))?;
            let name = AttrName { text: text.clone(), known: Attribute::named(text) };
            return tree(line, ExprKind::ItemNamed(Box::new(node), name));
        }
        tree(line, ExprKind::Item(Box::new((node, index))))
    }

    fn subscribed(&mut self) -> Result<Subscript> {
        let start = if self.is_op(":") { None } else { Some(self.expression(true)?) };
        if !self.skip_op(":") {
            // Without a colon there is an expression.
            return match start {
                Some(index) => Ok(Subscript::Index(index)),
                None => self.unexpected("a subscript"),
            };
        }
        let part = |parser: &mut Self| -> Result<Option<Expr>> {
            if parser.is_op(":") || parser.is_op("]") || parser.is_op(",") {
                return Ok(None);
            }
            parser.expression(true).map(Some)
        };
        let stop = part(self)?;
        let step = if self.skip_op(":") {
            if self.is_op(":") {
                return self.unexpected("an expression");
            }
            part(self)?
        } else {
            None
        };
        Ok(Subscript::Slice(start, stop, step))
    }

    pub(super) fn args(&mut self) -> Result<Args> {
        let line = self.line();
        self.expect_op("(")?;
        let mut args = Args::default();
        let mut first = true;
        while !self.is_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            first = false;
            let keywords_begun = args.double_star.is_some();
            let misplaced = if self.skip_op("*") {
                let misplaced = args.star.is_some() || keywords_begun;
                args.star = Some(self.expression(true)?);
                misplaced
            } else if self.skip_op("**") {
                args.double_star = Some(self.expression(true)?);
                keywords_begun
            } else if matches!(self.tok(), Tok::Name(_)) && matches!(self.after(), Tok::Op("=")) {
                let name = self.name()?;
                self.next();
                let repeated = args.keywords.iter().any(|(other, _)| *other == name);
                args.keywords.push((name, self.expression(true)?));
                keywords_begun || repeated
            } else {
                let misplaced = args.star.is_some() || keywords_begun || !args.keywords.is_empty();
                args.positional.push(self.expression(true)?);
                misplaced
            };
            if misplaced {
                return Err(Error::new(
                    crate::error::ErrorKind::Syntax,
                    "arguments in an order, or with a name twice, that Python does not allow",
                )
                .at(line));
            }
        }
        self.expect_op(")")?;
        Ok(args)
    }

    fn call(&mut self, target: Expr) -> Result<Expr> {
        let line = self.line();
        if let ExprKind::Attr(this, AttrName { known: Attribute::Format, .. }) = &target.kind
            && let ExprKind::Const(Const::Str(format)) = &this.kind
        {
            check_format(format).map_err(|error| error.at(line))?;
        }
        let args = self.nested(Self::args)?;
        tree(line, ExprKind::Call(Box::new(Call { target, args })))
    }

    /// `name` or `name.name`, as filters and tests are called.
    fn dotted_name(&mut self) -> Result<String> {
        let mut name = self.name()?;
        while self.skip_op(".") {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name)
    }

    /// One filter, the `|` passed.
    pub(super) fn one_filter(&mut self, value: Option<Expr>) -> Result<Expr> {
        let line = self.line();
        let name = self.dotted_name()?;
        let args = if self.is_op("(") { self.nested(Self::args)? } else { Args::default() };
        let filter = Filter::named(&name).map_err(|error| error.at(line))?;
        if let (Some(Filter::Map), Some(ExprKind::Const(Const::Str(inner)))) =
            (filter, args.positional.first().map(|first| &first.kind))
        {
            Filter::named(inner).map_err(|error| error.at(line))?;
        }
        tree(line, ExprKind::Filter(Box::new(FilterCall { value, name, filter, args })))
    }

    fn test(&mut self, value: Expr) -> Result<Expr> {
        let line = self.line();
        self.next();
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let mut args = Args::default();
        if self.is_op("(") {
            args = self.nested(Self::args)?;
        } else if self.test_has_argument() {
            if self.is_name("is") {
                return self.fail("a test cannot follow a test: put the first one in parentheses");
            }
            let argument = self.nested(|parser| {
                let argument = parser.primary()?;
                parser.postfix(argument)
            })?;
            args.positional.push(argument);
        }
        let test = Test::named(&name);
        let node = tree(line, ExprKind::Test(Box::new(TestCall { value, name, test, args })))?;
        if negated {
            return tree(line, ExprKind::Unary(UnaryOp::Not, Box::new(node)));
        }
        Ok(node)
    }

    fn test_has_argument(&self) -> bool {
        match self.tok() {
            Tok::Name(name) => !matches!(name.as_str(), "else" | "or" | "and"),
            Tok::Str(_) | Tok::Number(_) | Tok::Op("[" | "{") => true,
            _ => false,
        }
    }
}

/// A node of the tree, unless the tree becomes too high to be walked.
fn tree(line: u32, kind: ExprKind) -> Result<Expr> {
    let node = Expr::new(line, kind);
    if node.height > MAX_HEIGHT {
        return Err(Error::unsupported("an expression nested too deep").at(line));
    }
    Ok(node)
}

enum Subscript {
    Index(Expr),
    Slice(Option<Expr>, Option<Expr>, Option<Expr>),
}

/// Refuses attributes that Python has and this engine does not, where a template seems to mean them.
fn check_attribute(name: &str, called: bool) -> Result<()> {
    if name.starts_with("__") {
        return Err(Error::unsupported(format!("the attribute {name}")));
    }
    if called && Attribute::is_unsupported_method(name) {
        return Err(Error::unsupported(format!("the method {name}()")));
    }
    Ok(())
}
