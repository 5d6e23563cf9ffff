//! The names that arguments of a dataset may have: exported to Python, and looked up when it passes them.

use gristmill_chat_template::{OnLostReasoning, SampleUnit, StringArguments};

use crate::batch::schema::DType;
use crate::error::Error;
use crate::spec::mixture::{OnExhausted, Unit};
use crate::spec::{Layout, OnError, Packing, Truncation};

/// Creates the value of `packing=` from the window of `best_fit`.
type MakePacking = fn(usize) -> Packing;
/// Creates the value of `on_error=` from `max_error_rate`.
type MakeOnError = fn(f64) -> OnError;

pub const PACKINGS: [(&str, MakePacking); 3] = [
    ("concat", |_| Packing::Concat),
    ("best_fit", |window| Packing::BestFit { window }),
    ("pad", |_| Packing::Pad),
];
pub const TRUNCATIONS: [(&str, Truncation); 7] = [
    ("right", Truncation::Right),
    ("left", Truncation::Left),
    ("middle", Truncation::Middle),
    ("error", Truncation::Error),
    ("split", Truncation::Split),
    ("drop", Truncation::Drop),
    ("turns", Truncation::Turns),
];
pub const LAYOUTS: [(&str, Layout); 4] =
    [("maxtext", Layout::MaxText), ("grain", Layout::Grain), ("hf", Layout::Hf), ("varlen", Layout::Varlen)];
pub const ON_ERRORS: [(&str, MakeOnError); 2] =
    [("raise", |_| OnError::Raise), ("quarantine", |max_error_rate| OnError::Quarantine { max_error_rate })];

pub const ON_EXHAUSTED: [(&str, OnExhausted); 3] =
    [("continue", OnExhausted::Continue), ("stop", OnExhausted::Stop), ("error", OnExhausted::Error)];

pub const ON_LOST_REASONING: [(&str, OnLostReasoning); 2] =
    [("error", OnLostReasoning::Error), ("ignore", OnLostReasoning::Ignore)];

pub const SAMPLE_UNITS: [(&str, SampleUnit); 3] =
    [("conversation", SampleUnit::Conversation), ("turns", SampleUnit::Turn), ("rounds", SampleUnit::Round)];

pub const STRING_ARGUMENTS: [(&str, StringArguments); 2] =
    [("decode", StringArguments::Decode), ("keep", StringArguments::Keep)];

pub const DTYPES: [(&str, DType); 6] = [
    ("float32", DType::Float32),
    ("float16", DType::Float16),
    ("bfloat16", DType::BFloat16),
    ("int32", DType::Int32),
    ("int64", DType::Int64),
    ("uint8", DType::Uint8),
];

pub const WEIGHTS_BY: [(&str, Unit); 3] =
    [("rows", Unit::Rows), ("tokens", Unit::Tokens), ("samples", Unit::Samples)];

/// The names in a table.
pub fn names<T>(table: &[(&'static str, T)]) -> Vec<&'static str> {
    table.iter().map(|entry| entry.0).collect()
}

/// The value that a name stands for.
pub fn find<T: Copy>(argument: &str, name: &str, table: &[(&'static str, T)]) -> Result<T, Error> {
    let found = table.iter().find(|entry| entry.0 == name).map(|entry| entry.1);
    found.ok_or_else(|| {
        Error::Argument(format!("{argument}={name:?}: expected one of {}", names(table).join(", ")))
    })
}
