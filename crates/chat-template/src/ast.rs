//! The tree of a template. The parser makes it, `resolve` fills in where each name lives, and the evaluator walks it.

use crate::attribute::Attribute;
use crate::filters::Filter;
use crate::is_tests::Test;

/// An index into the template's table of names.
pub(crate) type NameId = u32;

/// Where a variable lives: `up` functions out, in that activation's slot. See `resolve`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Variable {
    pub up: u16,
    pub slot: u16,
}

/// A name that is read.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    pub id: NameId,
    pub variable: Variable,
    /// Whether the variable may be unset, which makes it undefined.
    pub may_miss: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub line: u32,
    /// How many levels of nodes this one has, itself included.
    pub height: u16,
    /// How many nodes it has in all.
    pub weight: u32,
    pub kind: ExprKind,
}

impl Expr {
    pub(crate) fn new(line: u32, kind: ExprKind) -> Self {
        let (mut height, mut weight) = (0, 1_u32);
        kind.each_child(&mut |child| {
            height = height.max(child.height);
            weight = weight.saturating_add(child.weight);
        });
        Self { line, height: height.saturating_add(1), weight, kind }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Const {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond i64, in decimal digits.
    Big(String),
    Float(f64),
    Str(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnaryOp {
    Not,
    Neg,
    Pos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

#[derive(Debug, Clone)]
pub(crate) enum ExprKind {
    Const(Const),
    Name(Name),
    Tuple(Vec<Expr>),
    List(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Unary(UnaryOp, Box<Expr>),
    Binary(BinaryOp, Box<(Expr, Expr)>),
    /// `a + b + c`, from left to right.
    Add(Vec<Expr>),
    And(Box<(Expr, Expr)>),
    Or(Box<(Expr, Expr)>),
    /// `a ~ b ~ c`.
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(CompareOp, Expr)>),
    Cond(Box<Cond>),
    /// `a == "text"`, or with `!=` its opposite: the most common comparison.
    IsText {
        value: Box<Expr>,
        text: String,
        negated: bool,
    },
    Attr(Box<Expr>, AttrName),
    Item(Box<(Expr, Expr)>),
    /// `a["name"]`.
    ItemNamed(Box<Expr>, AttrName),
    Slice(Box<Slice>),
    Filter(Box<FilterCall>),
    Test(Box<TestCall>),
    Call(Box<Call>),
}

impl Expr {
    /// Whether jinja2 may compute an expression when it compiles: a variable or a call in it is never reached.
    pub(crate) fn may_be_constant(&self) -> bool {
        match &self.kind {
            ExprKind::Name(_) | ExprKind::Call(_) => false,
            ExprKind::And(sides) | ExprKind::Or(sides) => sides.0.may_be_constant(),
            ExprKind::Compare(first, rest) => {
                first.may_be_constant() && rest.first().is_none_or(|(_, operand)| operand.may_be_constant())
            }
            ExprKind::Cond(cond) => {
                let otherwise = cond.otherwise.as_ref().is_some_and(Self::may_be_constant);
                cond.test.may_be_constant() && (cond.then.may_be_constant() || otherwise)
            }
            kind => {
                let mut constant = true;
                kind.each_child(&mut |child| constant = constant && child.may_be_constant());
                constant
            }
        }
    }
}

impl ExprKind {
    /// Calls a function on each expression right below this one, in the order in which jinja2 visits them.
    pub(crate) fn each_child<'e>(&'e self, f: &mut impl FnMut(&'e Expr)) {
        match self {
            Self::Const(_) | Self::Name(_) => {}
            Self::Tuple(items) | Self::List(items) | Self::Add(items) | Self::Concat(items) => {
                items.iter().for_each(f);
            }
            Self::Dict(items) => items.iter().for_each(|(key, value)| {
                f(key);
                f(value);
            }),
            Self::Unary(_, value)
            | Self::Attr(value, _)
            | Self::ItemNamed(value, _)
            | Self::IsText { value, .. } => f(value),
            Self::Binary(_, sides) | Self::And(sides) | Self::Or(sides) | Self::Item(sides) => {
                f(&sides.0);
                f(&sides.1);
            }
            Self::Compare(first, rest) => {
                f(first);
                for (_, operand) in rest {
                    f(operand);
                }
            }
            Self::Cond(cond) => {
                f(&cond.test);
                f(&cond.then);
                cond.otherwise.iter().for_each(f);
            }
            Self::Slice(slice) => {
                f(&slice.target);
                [&slice.start, &slice.stop, &slice.step].into_iter().flatten().for_each(f);
            }
            Self::Filter(call) => {
                call.value.iter().for_each(&mut *f);
                call.args.each(f);
            }
            Self::Test(call) => {
                f(&call.value);
                call.args.each(f);
            }
            Self::Call(call) => {
                f(&call.target);
                call.args.each(f);
            }
        }
    }

    /// The same, to change them.
    pub(crate) fn try_each_child_mut<E>(
        &mut self,
        f: &mut impl FnMut(&mut Expr) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Const(_) | Self::Name(_) => Ok(()),
            Self::Tuple(items) | Self::List(items) | Self::Add(items) | Self::Concat(items) => {
                items.iter_mut().try_for_each(f)
            }
            Self::Dict(items) => items.iter_mut().try_for_each(|(key, value)| {
                f(key)?;
                f(value)
            }),
            Self::Unary(_, value)
            | Self::Attr(value, _)
            | Self::ItemNamed(value, _)
            | Self::IsText { value, .. } => f(value),
            Self::Binary(_, sides) | Self::And(sides) | Self::Or(sides) | Self::Item(sides) => {
                f(&mut sides.0)?;
                f(&mut sides.1)
            }
            Self::Compare(first, rest) => {
                f(first)?;
                rest.iter_mut().try_for_each(|(_, operand)| f(operand))
            }
            Self::Cond(cond) => {
                f(&mut cond.test)?;
                f(&mut cond.then)?;
                cond.otherwise.iter_mut().try_for_each(f)
            }
            Self::Slice(slice) => {
                f(&mut slice.target)?;
                [&mut slice.start, &mut slice.stop, &mut slice.step].into_iter().flatten().try_for_each(f)
            }
            Self::Filter(call) => {
                call.value.iter_mut().try_for_each(&mut *f)?;
                call.args.try_each_mut(f)
            }
            Self::Test(call) => {
                f(&mut call.value)?;
                call.args.try_each_mut(f)
            }
            Self::Call(call) => {
                f(&mut call.target)?;
                call.args.try_each_mut(f)
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Cond {
    pub test: Expr,
    pub then: Expr,
    pub otherwise: Option<Expr>,
}

/// The name behind a dot, with the Python attribute that it may mean.
#[derive(Debug, Clone)]
pub(crate) struct AttrName {
    pub text: String,
    pub known: Attribute,
}

#[derive(Debug, Clone)]
pub(crate) struct Slice {
    pub target: Expr,
    pub start: Option<Expr>,
    pub stop: Option<Expr>,
    pub step: Option<Expr>,
    /// Nothing in it depends on a variable. jinja2 computes such a slice when it compiles, with other errors.
    pub constant: bool,
}

/// Arguments of a call, filter or test.
#[derive(Debug, Clone, Default)]
pub(crate) struct Args {
    pub positional: Vec<Expr>,
    pub keywords: Vec<(String, Expr)>,
    pub star: Option<Expr>,
    pub double_star: Option<Expr>,
}

impl Args {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.positional.is_empty()
            && self.keywords.is_empty()
            && self.star.is_none()
            && self.double_star.is_none()
    }

    fn each<'e>(&'e self, f: &mut impl FnMut(&'e Expr)) {
        let keywords = self.keywords.iter().map(|(_, value)| value);
        self.positional.iter().chain(keywords).chain(&self.star).chain(&self.double_star).for_each(f);
    }

    fn try_each_mut<E>(&mut self, f: &mut impl FnMut(&mut Expr) -> Result<(), E>) -> Result<(), E> {
        let keywords = self.keywords.iter_mut().map(|(_, value)| value);
        let mut all =
            self.positional.iter_mut().chain(keywords).chain(&mut self.star).chain(&mut self.double_star);
        all.try_for_each(f)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct FilterCall {
    /// `None` in a filter block, where the block's text is the value.
    pub value: Option<Expr>,
    pub name: String,
    /// `None`: jinja2 has no such filter. It raises where the filter is used.
    pub filter: Option<Filter>,
    pub args: Args,
}

#[derive(Debug, Clone)]
pub(crate) struct TestCall {
    pub value: Expr,
    pub name: String,
    /// `None`: jinja2 has no such test. It raises where the test is used.
    pub test: Option<Test>,
    pub args: Args,
}

#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub target: Expr,
    pub args: Args,
}

/// The target of an assignment.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// A variable, and the global name it is visible as to macros if it is set at the top level.
    Name {
        line: u32,
        id: NameId,
        slot: u16,
        exported: bool,
    },
    /// An attribute of a namespace.
    Attr {
        line: u32,
        name: Name,
        attr: String,
    },
    Tuple(Vec<Target>),
}

/// How a variable starts when a scope is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// From the context: what was set at the top level so far, else what the template was given.
    Resolve { slot: u16, name: NameId },
    /// As the variable of the same name outside.
    Alias { slot: u16, from: Variable },
    /// Unset.
    Unset { slot: u16 },
}

/// The work to do when a scope is entered, and the slots that become unset when it is left.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope {
    pub enter: Vec<Load>,
    pub leave: Vec<u16>,
}

#[derive(Debug, Clone)]
pub(crate) struct Stmt {
    pub line: u32,
    pub kind: StmtKind,
}

#[derive(Debug, Clone)]
pub(crate) enum StmtKind {
    Data(String),
    Output(Expr),
    Assign {
        target: Target,
        value: Expr,
    },
    AssignBlock {
        target: Target,
        filter: Option<Expr>,
        body: Vec<Stmt>,
        scope: Scope,
    },
    If(Box<If>),
    For(Box<For>),
    With {
        targets: Vec<Target>,
        values: Vec<Expr>,
        body: Vec<Stmt>,
        scope: Scope,
    },
    Macro {
        target: Target,
        def: Box<MacroDef>,
    },
    /// A call block; without a call it is a generation block.
    CallBlock {
        call: Option<Expr>,
        def: Box<MacroDef>,
    },
    FilterBlock {
        filter: Expr,
        body: Vec<Stmt>,
        scope: Scope,
    },
    Break,
    Continue,
}

/// `if`, `elif` and `else`: the first branch whose test is true.
#[derive(Debug, Clone)]
pub(crate) struct If {
    pub branches: Vec<(u32, Expr, Vec<Stmt>)>,
    pub otherwise: Vec<Stmt>,
}

#[derive(Debug, Clone)]
pub(crate) struct For {
    pub target: Target,
    pub iter: Expr,
    pub test: Option<LoopTest>,
    pub body: Vec<Stmt>,
    pub otherwise: Vec<Stmt>,
    pub recursive: bool,
    /// The slot of `loop`, if the body uses it.
    pub loop_slot: Option<u16>,
    pub scope: Scope,
    pub else_scope: Scope,
    /// The number of slots of a recursive loop, which is a function.
    pub slots: u16,
}

/// `for x in y if test`: a generator function of its own, with its own variables.
#[derive(Debug, Clone)]
pub(crate) struct LoopTest {
    pub target: Target,
    pub test: Expr,
    pub scope: Scope,
    pub slots: u16,
}

/// A macro, or the body of a call block.
#[derive(Debug, Clone, Default)]
pub(crate) struct MacroDef {
    pub name: Option<String>,
    pub params: Vec<Param>,
    pub body: Vec<Stmt>,
    pub scope: Scope,
    pub slots: u16,
    pub caller: Option<u16>,
    pub kwargs: Option<u16>,
    pub varargs: Option<u16>,
    /// A parameter of its own is named `caller`.
    pub explicit_caller: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Param {
    pub name: String,
    pub id: NameId,
    pub slot: u16,
    pub default: Option<Expr>,
}
