//! The values that a record has of the stream's fields, as bytes.

use std::sync::Arc;

use gristmill_json::{Begin, Read, ReadError, Source, Text};

use super::Samples;
use super::field::Field;
use crate::batch::schema::DType;
use crate::format::{Values, View};
use crate::spec::fields::{FieldSpec, Per};

/// The fields of a stream, and where a source's records have their values.
#[derive(Debug, Clone, Default)]
pub struct SourceFields {
    /// The fields.
    pub all: Arc<[FieldSpec]>,
    /// For each its key; none if the source lacks it.
    pub keys: Vec<Option<Field>>,
    /// The same for the second sample of a pair. Empty if samples are no pairs.
    pub second_keys: Vec<Option<Field>>,
}

/// Why a value is none of a field: what was expected, and found.
type Fault = (String, String);

impl SourceFields {
    /// Reads the values of a record, for all of its samples. The error says what was expected and found.
    pub(super) fn read(&self, values: &Values<'_>, samples: &mut Samples) -> Result<(), String> {
        for (number, field) in self.all.iter().enumerate() {
            if let (Some(second), Some(sample)) = (self.second_keys.get(number), samples.get_mut(1)) {
                let own = value_of(field, second.as_ref(), values, 0)?;
                sample.set_values(number, own);
                samples[0].set_values(number, value_of(field, self.keys[number].as_ref(), values, 0)?);
                continue;
            }
            let tokens = samples.first().map_or(0, |sample| sample.ids.len());
            let key = self.keys.get(number).and_then(Option::as_ref);
            let own = value_of(field, key, values, tokens)?;
            for sample in samples.iter_mut() {
                sample.set_values(number, own.clone());
            }
        }
        Ok(())
    }

    /// The index of the field that says how much tokens are trained on.
    pub fn weight(&self) -> Option<usize> {
        self.all.iter().position(|field| field.is_weight)
    }
}

/// The value under the key of a field, or with one for each token so many of them; nothing without a key.
fn value_of(
    field: &FieldSpec,
    key: Option<&Field>,
    values: &Values<'_>,
    tokens: usize,
) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let Some(key) = key else { return Ok(bytes) };
    let view = key.of(values).ok_or_else(|| key.missing(values, "a value", "fields"))?;
    read_value(field, view, tokens, &mut bytes).map_err(|(expected, found)| {
        let (name, key) = (&field.name, key.key());
        format!("expected {expected} for the field {name:?} under the key {key:?}, found {found}")
    })?;
    Ok(bytes)
}

/// Appends a value of a field, or with one for each token so many of them.
fn read_value(field: &FieldSpec, view: View<'_>, tokens: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
    let numbers = Numbers { dtype: field.dtype, out };
    let (shape, what): (Vec<usize>, _) = match field.per {
        Per::Sample => (field.shape.clone(), ""),
        Per::Token => ([&[tokens], &*field.shape].concat(), ", one for each token"),
    };
    let read = match view.source() {
        Source::Text(mut text) => numbers.read(&mut text, &shape),
        Source::Packed(mut packed) => numbers.read(&mut packed, &shape),
    };
    read.map_err(|(expected, found)| (format!("{expected}{what}"), found))
}

/// Numbers that become elements of one type.
struct Numbers<'o> {
    dtype: DType,
    out: &'o mut Vec<u8>,
}

impl Numbers<'_> {
    fn read<'a, R: Read<'a>>(mut self, reader: &mut R, shape: &[usize]) -> Result<(), Fault> {
        let begin = reader.begin().map_err(|error| damaged(&error))?;
        self.value(begin, reader, shape)
    }

    fn value<'a, R: Read<'a>>(
        &mut self,
        begin: Begin<'a, R::Inside>,
        reader: &mut R,
        shape: &[usize],
    ) -> Result<(), Fault> {
        if let Begin::Json(text) = begin {
            let mut text = Text::new(text);
            let begin = text.begin().map_err(|error| damaged(&error))?;
            return self.value(begin, &mut text, shape);
        }
        let Some((&length, inside)) = shape.split_first() else {
            return self.number(&begin).map_err(|found| (self.expected(), found));
        };
        let expected = || (if inside.is_empty() { "numbers" } else { "lists" }, length);
        let Begin::List(mut list) = begin else {
            let (what, length) = expected();
            return Err((format!("a list of {length} {what}"), name_of(&begin)));
        };
        let mut count = 0;
        while reader.next_item(&mut list).map_err(|error| damaged(&error))? {
            count += 1;
            let begin = reader.begin().map_err(|error| damaged(&error))?;
            if count > length {
                pass(begin, reader).map_err(|error| damaged(&error))?;
                continue;
            }
            self.value(begin, reader, inside)?;
        }
        if count == length {
            return Ok(());
        }
        let (what, length) = expected();
        Err((format!("a list of {length} {what}"), format!("one of {count}")))
    }

    /// Appends a number. The error says what it is instead.
    fn number<I>(&mut self, begin: &Begin<'_, I>) -> Result<(), String> {
        match self.dtype {
            DType::Uint8 | DType::Int32 | DType::Int64 => self.integer(begin),
            DType::Float32 | DType::Float16 | DType::BFloat16 => self.float(begin),
        }
    }

    fn integer<I>(&mut self, begin: &Begin<'_, I>) -> Result<(), String> {
        let number = match (begin, self.dtype) {
            (Begin::Int(number), _) => *number,
            (Begin::Bool(value), DType::Uint8) => i64::from(*value),
            _ => return Err(name_of(begin)),
        };
        let beyond = |_| number.to_string();
        match self.dtype {
            DType::Uint8 => self.out.push(u8::try_from(number).map_err(beyond)?),
            DType::Int32 => {
                self.out.extend_from_slice(&i32::try_from(number).map_err(beyond)?.to_ne_bytes());
            }
            _ => self.out.extend_from_slice(&number.to_ne_bytes()),
        }
        Ok(())
    }

    fn float<I>(&mut self, begin: &Begin<'_, I>) -> Result<(), String> {
        let number = match begin {
            Begin::Int(number) => *number as f64,
            Begin::BigInt(digits) => digits.parse().unwrap_or(f64::INFINITY),
            Begin::Float(number) if !number.is_nan() => *number,
            _ => return Err(name_of(begin)),
        };
        let rounded = match self.dtype {
            DType::Float16 => {
                let rounded = half::f16::from_f64(number);
                self.out.extend_from_slice(&rounded.to_ne_bytes());
                rounded.is_infinite()
            }
            DType::BFloat16 => {
                // By way of float32, as ml_dtypes rounds.
                let rounded = half::bf16::from_f32(number as f32);
                self.out.extend_from_slice(&rounded.to_ne_bytes());
                rounded.is_infinite()
            }
            _ => {
                self.out.extend_from_slice(&(number as f32).to_ne_bytes());
                (number as f32).is_infinite()
            }
        };
        if rounded && number.is_finite() {
            return Err(format!("{number}, which is beyond that"));
        }
        Ok(())
    }

    fn expected(&self) -> String {
        match self.dtype {
            DType::Uint8 => "an integer from 0 to 255",
            DType::Int32 => "an integer of 32 bits",
            DType::Int64 => "an integer of 64 bits",
            DType::Float32 => "a number that float32 holds",
            DType::Float16 => "a number that float16 holds",
            DType::BFloat16 => "a number that bfloat16 holds",
        }
        .to_owned()
    }
}

/// Passes over the rest of a value.
fn pass<'a, R: Read<'a>>(begin: Begin<'a, R::Inside>, reader: &mut R) -> Result<(), ReadError> {
    match begin {
        Begin::List(mut list) => {
            while reader.next_item(&mut list)? {
                let begin = reader.begin()?;
                pass(begin, reader)?;
            }
        }
        Begin::Object(mut object) => {
            while reader.next_key(&mut object)?.is_some() {
                let begin = reader.begin()?;
                pass(begin, reader)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The fault of a value that cannot be read.
pub(super) fn damaged(error: &ReadError) -> Fault {
    ("numbers".to_owned(), error.to_string())
}

/// The name of a value, for a message.
pub(super) fn name_of<I>(begin: &Begin<'_, I>) -> String {
    match begin {
        Begin::Null | Begin::Filled => "null".to_owned(),
        Begin::Typed => "NaN, bytes, or another value that JSON lacks".to_owned(),
        Begin::Json(_) => "JSON".to_owned(),
        Begin::Bool(value) => value.to_string(),
        Begin::Int(number) => number.to_string(),
        Begin::BigInt(digits) => digits.to_string(),
        Begin::Float(number) => format!("{number:?}"),
        Begin::Str(_) => "a string".to_owned(),
        Begin::List(_) => "a list".to_owned(),
        Begin::Object(_) => "an object".to_owned(),
    }
}
