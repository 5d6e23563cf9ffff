//! Filters, as `gristmill._filter` compiles them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::format::keep::{Arithmetic, Comparison, Constants, Expression, Extreme, Instruction, Reduction};
use crate::format::{self, Path};

/// A filter.
#[derive(FromPyObject)]
pub struct Keep {
    pub paths: Paths,
    pub program: Program,
}

/// The paths that programs name by their indices.
#[derive(Default, FromPyObject)]
pub struct Paths(Vec<Vec<Option<Step>>>);

/// One expression.
#[derive(FromPyObject)]
pub struct Program(Vec<Operation>);

/// A step to one value; `None` stands for all items.
#[derive(FromPyObject)]
enum Step {
    Key(String),
    Index(i64),
}

/// An instruction: its name, and what belongs to it.
struct Operation(Instruction);

impl From<Paths> for Vec<Path> {
    fn from(paths: Paths) -> Self {
        paths.0.into_iter().map(steps).collect()
    }
}

impl From<Program> for Expression {
    fn from(program: Program) -> Self {
        Self(program.0.into_iter().map(|operation| operation.0).collect())
    }
}

fn steps(path: Vec<Option<Step>>) -> Path {
    let step = |step| match step {
        Some(Step::Key(key)) => format::Step::Key(key),
        Some(Step::Index(index)) => format::Step::Index(index),
        None => format::Step::All,
    };
    path.into_iter().map(step).collect()
}

const ARITHMETIC: [(&str, Arithmetic); 6] = [
    ("+", Arithmetic::Add),
    ("-", Arithmetic::Subtract),
    ("*", Arithmetic::Multiply),
    ("/", Arithmetic::Divide),
    ("//", Arithmetic::FloorDivide),
    ("%", Arithmetic::Modulo),
];
const COMPARISONS: [(&str, Comparison); 6] = [
    ("<", Comparison::Less),
    ("<=", Comparison::LessOrEqual),
    ("==", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    (">=", Comparison::GreaterOrEqual),
    (">", Comparison::Greater),
];
const EXTREMES: [(&str, Extreme); 2] = [("min", Extreme::Smallest), ("max", Extreme::Largest)];
const REDUCTIONS: [(&str, Reduction); 7] = [
    ("sum", Reduction::Sum),
    ("mean", Reduction::Mean),
    ("min", Reduction::Extreme(Extreme::Smallest)),
    ("max", Reduction::Extreme(Extreme::Largest)),
    ("len", Reduction::Length),
    ("count", Reduction::Count),
    ("list", Reduction::List),
];

impl<'py> FromPyObject<'_, 'py> for Operation {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let parts = object.cast::<PyTuple>()?;
        let name: String = parts.get_item(0)?.extract()?;
        let part = |index: usize| parts.get_item(index);
        let word = |index: usize| part(index)?.extract::<String>();
        let number = |index: usize| part(index)?.extract::<usize>();
        let negated = || part(1)?.extract::<bool>();
        Ok(Self(match name.as_str() {
            "number" => Instruction::Number(part(1)?.extract()?),
            "text" => Instruction::Text(word(1)?),
            "boolean" => Instruction::Boolean(part(1)?.extract()?),
            "path" => Instruction::Path(number(1)?),
            "item" => Instruction::Item(steps(part(1)?.extract()?)),
            "arithmetic" => Instruction::Arithmetic(find(&word(1)?, &ARITHMETIC)?),
            "negate" => Instruction::Negate,
            "compare" => Instruction::Compare(find(&word(1)?, &COMPARISONS)?),
            "chain" => Instruction::Chain(find(&word(1)?, &COMPARISONS)?, number(2)?),
            "in" => Instruction::In { negated: negated()? },
            "one_of" => {
                let constants = Constants::new(part(2)?.extract()?, part(3)?.extract()?);
                Instruction::OneOf { negated: negated()?, constants }
            }
            "is_nothing" => Instruction::IsNothing { negated: negated()? },
            "not" => Instruction::Not,
            "and" => Instruction::And(number(1)?),
            "or" => Instruction::Or(number(1)?),
            "length" => Instruction::Length,
            "extreme" => Instruction::Extreme(find(&word(1)?, &EXTREMES)?, number(2)?),
            "aggregate" => Instruction::Aggregate {
                reduction: find(&word(1)?, &REDUCTIONS)?,
                array: number(2)?,
                items: steps(part(3)?.extract()?),
                body: number(4)?,
            },
            _ => return Err(PyValueError::new_err(format!("no instruction {name:?}"))),
        }))
    }
}

fn find<T: Copy>(name: &str, table: &[(&str, T)]) -> PyResult<T> {
    let found = table.iter().find(|entry| entry.0 == name).map(|entry| entry.1);
    found.ok_or_else(|| PyValueError::new_err(format!("no operation {name:?}")))
}
