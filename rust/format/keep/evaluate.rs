//! The evaluation of a program.

use super::operand::Operand;
use super::{Extreme, Instruction, Reduction, Texts, hive};
use crate::format::{Step, Values, View, json_value};

/// A run of a program over the values of one record. A program that was not compiled well takes nothing for operands
/// that are not there.
pub(super) struct Evaluation<'a> {
    program: &'a [Instruction],
    values: &'a Values<'a>,
    texts: &'a Texts,
    stack: Vec<Operand<'a>>,
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(program: &'a [Instruction], values: &'a Values<'a>, texts: &'a Texts) -> Self {
        Self { program, values, texts, stack: Vec::with_capacity(4) }
    }

    /// Runs the whole program, and returns what it leaves on the stack.
    pub(super) fn finish(mut self) -> Vec<Operand<'a>> {
        self.run(self.program, None);
        self.stack
    }

    /// Runs instructions; in an aggregate, for one item.
    fn run(&mut self, program: &'a [Instruction], item: Option<View<'a>>) {
        let mut next = 0;
        while let Some(instruction) = program.get(next) {
            next += 1;
            let result = match instruction {
                Instruction::Number(number) => Operand::Number(*number),
                Instruction::Text(text) => Operand::Text(text.into()),
                Instruction::Boolean(value) => Operand::Boolean(*value),
                Instruction::Path(path) => self.values.get(*path).into(),
                Instruction::Hive(key) => {
                    hive::value(self.values.shard(), key).map_or(Operand::Nothing, Operand::Label)
                }
                Instruction::Json(steps) => self.inside_json(steps),
                Instruction::Item(steps) => {
                    steps.iter().try_fold(item, |value, step| Some(value?.step(step))).flatten().into()
                }
                Instruction::Arithmetic(operation) => {
                    let (left, right) = self.pop_two();
                    operation.apply(&left, &right)
                }
                Instruction::Negate => match self.pop().as_number() {
                    Some(number) => Operand::Number(-number),
                    None => Operand::Nothing,
                },
                Instruction::Compare(comparison) => {
                    let (left, right) = self.pop_two();
                    Operand::Boolean(comparison.holds(&left, &right))
                }
                Instruction::Chain(comparison, skipped) => {
                    let (left, right) = self.pop_two();
                    if comparison.holds(&left, &right) {
                        right
                    } else {
                        next = next.saturating_add(*skipped);
                        Operand::Boolean(false)
                    }
                }
                Instruction::In { negated } => {
                    let (left, right) = self.pop_two();
                    Operand::Boolean(left.is_in(&right).is_some_and(|is_in| is_in != *negated))
                }
                Instruction::OneOf { constants, negated } => {
                    let found = self.pop().is_one_of(constants);
                    Operand::Boolean(found.is_some_and(|found| found != *negated))
                }
                Instruction::IsNothing { negated } => Operand::Boolean(self.pop().is_nothing() != *negated),
                Instruction::Unlisted(path, ids) => {
                    let id = self.values.get(*path).and_then(View::id);
                    Operand::Boolean(!id.is_some_and(|id| ids.contains(&id)))
                }
                Instruction::Not => Operand::Boolean(!self.pop().is_true()),
                Instruction::And(skipped) | Instruction::Or(skipped) => {
                    let stays = matches!(instruction, Instruction::Or(_));
                    let operand = self.pop();
                    if operand.is_true() != stays {
                        continue;
                    }
                    next = next.saturating_add(*skipped);
                    operand
                }
                Instruction::Length => match self.pop().length() {
                    Some(length) => Operand::Number(length as f64),
                    None => Operand::Nothing,
                },
                Instruction::Extreme(extreme, count) => self.extreme(*extreme, *count),
                Instruction::Aggregate { reduction, items, body } => {
                    let array = match self.pop() {
                        Operand::Array(array) => Some(array),
                        _ => None,
                    };
                    let end = next.saturating_add(*body).min(program.len());
                    let body = &program[next..end];
                    next = end;
                    if *reduction == Reduction::List {
                        self.for_each_item(array, items, &mut |evaluation, item| {
                            evaluation.run(body, Some(item));
                        });
                        continue;
                    }
                    self.aggregate(*reduction, array, items, body)
                }
            };
            self.stack.push(result);
        }
    }

    fn pop(&mut self) -> Operand<'a> {
        self.stack.pop().unwrap_or(Operand::Nothing)
    }

    fn pop_two(&mut self) -> (Operand<'a>, Operand<'a>) {
        let right = self.pop();
        (self.pop(), right)
    }

    /// The value that steps lead to in the JSON of a text, or in another value.
    fn inside_json(&mut self, steps: &'a [Step]) -> Operand<'a> {
        let value = match self.pop() {
            Operand::Text(text) => {
                let Ok(value) = json_value(self.texts.keep(text.into_owned()).as_bytes()) else {
                    return Operand::Nothing;
                };
                value
            }
            Operand::Array(value) | Operand::Object(value) => value,
            other => return if steps.is_empty() { other } else { Operand::Nothing },
        };
        steps.iter().try_fold(value, View::step).into()
    }

    fn extreme(&mut self, extreme: Extreme, count: usize) -> Operand<'a> {
        let operands = self.stack.drain(self.stack.len().saturating_sub(count)..);
        let numbers: Option<Vec<f64>> = operands.map(|operand| operand.as_number()).collect();
        let found = numbers.and_then(|numbers| numbers.into_iter().reduce(|a, b| extreme.of(a, b)));
        found.map_or(Operand::Nothing, Operand::Number)
    }

    fn aggregate(
        &mut self,
        reduction: Reduction,
        array: Option<View<'a>>,
        items: &'a [Step],
        body: &'a [Instruction],
    ) -> Operand<'a> {
        let mut results = Results::default();
        let is_array = self.for_each_item(array, items, &mut |evaluation, item| {
            evaluation.run(body, Some(item));
            let result = evaluation.pop();
            results.add(reduction, &result);
        });
        if is_array { results.reduced(reduction) } else { Operand::Nothing }
    }

    /// Calls `each` with the items of an array. Returns whether there is one.
    fn for_each_item(
        &mut self,
        array: Option<View<'a>>,
        items: &'a [Step],
        each: &mut dyn FnMut(&mut Self, View<'a>),
    ) -> bool {
        let Some(array) = array else { return false };
        self.walk(array, items, each);
        true
    }

    /// Calls `each` with all values that the steps lead to.
    fn walk(&mut self, value: View<'a>, steps: &'a [Step], each: &mut dyn FnMut(&mut Self, View<'a>)) {
        match steps {
            [] => each(self, value),
            [Step::All, rest @ ..] => value.items().for_each(|item| self.walk(item, rest, each)),
            [step, rest @ ..] => {
                if let Some(value) = value.step(step) {
                    self.walk(value, rest, each);
                }
            }
        }
    }
}

/// The results of an aggregate so far.
#[derive(Default)]
struct Results {
    count: u64,
    /// Their sum, smallest or largest.
    number: f64,
    /// Whether one of them is not a number where only numbers have a result.
    are_mixed: bool,
}

impl Results {
    fn add(&mut self, reduction: Reduction, result: &Operand<'_>) {
        if result.is_nothing() {
            return;
        }
        match (reduction, result.as_number()) {
            (Reduction::Length | Reduction::List, _) => {}
            (Reduction::Count, _) => {
                self.count += u64::from(result.is_true());
                return;
            }
            (_, None) => self.are_mixed = true,
            (Reduction::Sum | Reduction::Mean, Some(number)) => self.number += number,
            (Reduction::Extreme(_), Some(number)) if self.count == 0 => self.number = number,
            (Reduction::Extreme(extreme), Some(number)) => self.number = extreme.of(self.number, number),
        }
        self.count += 1;
    }

    fn reduced<'a>(&self, reduction: Reduction) -> Operand<'a> {
        match reduction {
            Reduction::Length | Reduction::Count | Reduction::List => Operand::Number(self.count as f64),
            _ if self.are_mixed => Operand::Nothing,
            Reduction::Sum => Operand::number(self.number),
            _ if self.count == 0 => Operand::Nothing,
            Reduction::Mean => Operand::number(self.number / self.count as f64),
            Reduction::Extreme(_) => Operand::Number(self.number),
        }
    }
}
