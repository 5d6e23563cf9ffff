//! The filter: an expression that a record must satisfy to be kept.
//!
//! ```text
//! keep="score >= 3 and count(lines[*].words > 2) / len(lines) > 0.5"
//!
//! paths     0 score   1 lines
//! program   Path(0) Number(3) Compare(>=) And(11)                                  // false: skip the rest
//!           Path(1) Aggregate(Count, [All], 3) [ Item([words]) Number(2) Compare(>) ]   // once for each item
//!           Path(1) Length Divide Number(0.5) Compare(>)
//! ```
//!
//! Python parses and checks expressions (`gristmill._filter`) and compiles them to programs for a stack of operands. The
//! projection finds the values of the paths in one pass over a record; they are parsed when the program comes to them.
//!
//! Evaluation is total. A value that is missing, null or of a type that an operation does not take becomes
//! [`Operand::Nothing`], for which each comparison is false. docs/filters.md defines all of it.

mod evaluate;
mod hive;
mod ids;
mod operand;
#[cfg(test)]
mod tests;
mod texts;

use std::sync::Arc;

use crate::format::{Step, Values};
use evaluate::Evaluation;
pub use ids::Ids;
pub use operand::Operand;
pub use texts::Texts;

/// A compiled expression. It names the paths of the record's [`Values`] by their indices.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression(pub Vec<Instruction>);

/// One step of a program: takes its operands off the stack and puts its result there.
#[derive(Debug, Clone, PartialEq)]
pub enum Instruction {
    /// A constant.
    Number(f64),
    /// A constant.
    Text(String),
    /// A constant.
    Boolean(bool),
    /// The value of a path.
    Path(usize),
    /// The value of a folder `key=value` in the path of the shard.
    Hive(String),
    /// The value that these steps lead to in the JSON that a text holds. A value that is no text is such a value itself.
    Json(Vec<Step>),
    /// In an aggregate: a value of the current item.
    Item(Vec<Step>),
    /// An operation on two numbers.
    Arithmetic(Arithmetic),
    /// The negative number.
    Negate,
    /// Whether two values compare like this.
    Compare(Comparison),
    /// The same inside a chain such as `1 < x < 5`: if it holds, the right operand stays for the next comparison, else
    /// the chain is false, and so many instructions are skipped.
    Chain(Comparison, usize),
    /// Whether the left operand is in the right one, an array or a text; or, if negated, is not.
    In {
        /// `not in`.
        negated: bool,
    },
    /// Whether the operand is one of some constants.
    OneOf {
        /// The constants.
        constants: Constants,
        /// `not in`.
        negated: bool,
    },
    /// Whether there is nothing; or, if negated, something.
    IsNothing {
        /// `is not None`.
        negated: bool,
    },
    /// Whether the value of a path is no id of a row list.
    Unlisted(usize, Arc<Ids>),
    /// The opposite.
    Not,
    /// If the operand is false it is the result, and so many instructions are skipped; else it is removed.
    And(usize),
    /// If the operand is true it is the result, and so many instructions are skipped; else it is removed.
    Or(usize),
    /// The length of a text in characters, or of an array in items.
    Length,
    /// The smallest or largest of so many numbers.
    Extreme(Extreme, usize),
    /// Takes an array, runs the next instructions once for each of its items, and makes one value of their results.
    Aggregate {
        /// How.
        reduction: Reduction,
        /// Steps from the array to each item.
        items: Vec<Step>,
        /// The number of instructions.
        body: usize,
    },
}

/// An operation on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `//`
    FloorDivide,
    /// `%`, with the sign of the divisor.
    Modulo,
}

/// A comparison of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `>=`
    GreaterOrEqual,
    /// `>`
    Greater,
}

/// The smallest or the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extreme {
    /// `min`
    Smallest,
    /// `max`
    Largest,
}

/// How the results of an aggregate become one value. Results that are nothing are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The sum of numbers; of none 0.
    Sum,
    /// The arithmetic mean of numbers.
    Mean,
    /// The smallest or largest number.
    Extreme(Extreme),
    /// The number of results.
    Length,
    /// The number of results that are true.
    Count,
    /// All results stay on the stack, nothing included: for people who look at them.
    List,
}

/// Constants that a value is looked up in.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Constants {
    /// In order.
    numbers: Vec<f64>,
    /// In order.
    texts: Vec<String>,
}

impl Constants {
    /// The constants in any order.
    pub fn new(mut numbers: Vec<f64>, mut texts: Vec<String>) -> Self {
        for number in &mut numbers {
            *number += 0.0; // minus zero is zero
        }
        numbers.sort_by(f64::total_cmp);
        texts.sort_unstable();
        Self { numbers, texts }
    }
}

impl Expression {
    /// Whether a record with these values is kept.
    pub fn keeps(&self, values: &Values<'_>) -> bool {
        self.evaluate(values, &Texts::default()).last().is_some_and(Operand::is_true)
    }

    /// The operands that the program leaves on the stack: one, or with [`Reduction::List`] several. `texts` holds the JSON that
    /// was found in strings.
    pub fn evaluate<'a>(&'a self, values: &'a Values<'a>, texts: &'a Texts) -> Vec<Operand<'a>> {
        Evaluation::new(&self.0, values, texts).finish()
    }
}
