//! Filters, as `gristmill._filter` compiles them.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::rows::RowList;
use crate::format::keep::{Arithmetic, Comparison, Constants, Expression, Extreme, Instruction, Reduction};
use crate::format::{self, Projection, ReadOptions};
use crate::spec::rows::Rows;
use crate::spec::sidecars::{Matching, Sidecar, Sidecars};
use crate::store::{Access, Shard};

/// The paths that are wanted of records: the record's own come first, then those of each sidecar.
#[derive(FromPyObject)]
pub struct Selection {
    paths: Paths,
    program: Option<Program>,
    /// Rows that are left out by their numbers.
    drop: Vec<Py<RowList>>,
    sidecars: Vec<SidecarFiles>,
}

/// Sidecars of one kind.
#[derive(FromPyObject)]
pub struct SidecarFiles {
    name: String,
    paths: Paths,
    files: Vec<Option<(String, u64)>>,
    /// The paths of the record's id and of the sidecar's, whether both are required, and how names of shards end.
    matching: Option<(usize, usize, bool, String)>,
}

/// A selection as the core has it.
pub struct Selected {
    /// The filter's paths in records.
    pub paths: Vec<format::Path>,
    /// The filter, if there are no sidecars: then it is one of theirs.
    pub keep: Option<Expression>,
    pub drop: Arc<Rows>,
    pub sidecars: Sidecars,
}

impl Selection {
    /// As the core has it.
    pub fn into_selected(self, access: &Access, max_document_bytes: u64) -> Selected {
        let sidecar = |files: SidecarFiles| files.into_sidecar(access, max_document_bytes);
        let kinds: Vec<Sidecar> = self.sidecars.into_iter().map(sidecar).collect();
        let keep = self.program.map(Expression::from);
        let (keep, of_sidecars) = if kinds.is_empty() { (keep, None) } else { (None, keep) };
        Selected {
            paths: self.paths.into(),
            keep,
            drop: Rows::union(self.drop.iter().map(|rows| rows.get().rows())),
            sidecars: Sidecars { kinds, keep: of_sidecars },
        }
    }
}

impl Selected {
    /// The columns that are needed where records are prepared: there the filter is evaluated if there are sidecars.
    pub fn columns(&self) -> Vec<String> {
        if self.sidecars.kinds.is_empty() { Vec::new() } else { columns(&self.paths) }
    }
}

impl SidecarFiles {
    /// As the core has them.
    pub fn into_sidecar(self, access: &Access, max_document_bytes: u64) -> Sidecar {
        let shard = |(path, size): (String, u64)| Shard::whole(path, size);
        Sidecar {
            name: self.name,
            files: self.files.into_iter().map(|file| file.map(shard)).collect(),
            read: Arc::new(ReadOptions {
                access: access.clone(),
                projection: projection(self.paths.into()),
                keep: None,
                max_document_bytes,
                ids: None,
            }),
            matching: self.matching.map(|(record, sidecar, required, ending)| Matching {
                record,
                sidecar,
                required,
                ending,
            }),
        }
    }
}

/// The columns that paths lead into; all of them if there are no paths.
fn projection(paths: Vec<format::Path>) -> Projection {
    let columns = columns(&paths);
    let projection = if columns.is_empty() { Projection::all() } else { Projection::named(columns) };
    projection.with_paths(paths)
}

fn columns(paths: &[format::Path]) -> Vec<String> {
    let column = |path: &format::Path| match path.first() {
        Some(format::Step::Key(key)) => Some(key.clone()),
        _ => None,
    };
    paths.iter().filter_map(column).collect()
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

impl From<Paths> for Vec<format::Path> {
    fn from(paths: Paths) -> Self {
        paths.0.into_iter().map(steps).collect()
    }
}

impl From<Program> for Expression {
    fn from(program: Program) -> Self {
        Self(program.0.into_iter().map(|operation| operation.0).collect())
    }
}

fn steps(path: Vec<Option<Step>>) -> format::Path {
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
            "hive" => Instruction::Hive(word(1)?),
            "json" => Instruction::Json(steps(part(1)?.extract()?)),
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
            "unlisted" => Instruction::Unlisted(number(1)?, part(2)?.cast_into::<RowList>()?.get().ids()),
            "not" => Instruction::Not,
            "and" => Instruction::And(number(1)?),
            "or" => Instruction::Or(number(1)?),
            "length" => Instruction::Length,
            "extreme" => Instruction::Extreme(find(&word(1)?, &EXTREMES)?, number(2)?),
            "aggregate" => Instruction::Aggregate {
                reduction: find(&word(1)?, &REDUCTIONS)?,
                items: steps(part(2)?.extract()?),
                body: number(3)?,
            },
            _ => return Err(PyValueError::new_err(format!("no instruction {name:?}"))),
        }))
    }
}

fn find<T: Copy>(name: &str, table: &[(&str, T)]) -> PyResult<T> {
    let found = table.iter().find(|entry| entry.0 == name).map(|entry| entry.1);
    found.ok_or_else(|| PyValueError::new_err(format!("no operation {name:?}")))
}
