//! The prompts of a `PromptDataset`, as arrays.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::encoder::Encoder;
use super::error::guarded;
use super::keep::{Selected, Selection};
use super::sample::{ChatPlan, CompletionPlan};
use super::signals::Signals;
use super::spec::{MixingPlan, access};
use crate::error::{Error, ShardError};
use crate::format::{Projection, ReadOptions};
use crate::prepare::field::Field;
use crate::prompts::{self, Arena, Left, Prompt, PromptSpec, Reason, order};
use crate::quarantine::file::QuarantineFile;
use crate::spec::QuarantineFileSpec;
use crate::spec::mixture::{Mixing, Unit};
use crate::store::{Access, Shard};

/// The shards that are read, and how. The fields are those of the class in `gristmill._prompts.reading`.
#[derive(FromPyObject)]
#[expect(clippy::struct_excessive_bools, reason = "each is an argument")]
pub struct Reading {
    folder: PathBuf,
    storage: Vec<(String, String)>,
    paths: Vec<String>,
    sizes: Vec<u64>,
    selection: Selection,
    max_document_bytes: u64,
    prompts: Vec<Plan>,
    bos: Option<u32>,
    eos: Option<u32>,
    longest: Option<usize>,
    cut: Option<(usize, usize)>,
    masks: Vec<bool>,
    needs_trained: bool,
    selected: Option<Vec<u64>>,
    keeps_records: bool,
    keeps_texts: bool,
    raises: bool,
    max_memory: u64,
    threads: usize,
}

/// A prompt: a conversation, a prompt with its completion, or the text under a key.
#[derive(FromPyObject)]
#[expect(clippy::large_enum_variant, reason = "a dataset has few")]
enum Plan {
    Chat(ChatPlan),
    Completion(CompletionPlan),
    Text(TextPlan),
}

#[derive(FromPyObject)]
struct TextPlan {
    field: String,
}

impl Reading {
    pub(super) fn spec(self) -> Result<PromptSpec, Error> {
        let access = access(self.folder, self.storage, Access::IO_BYTES, None);
        let selected = self.selection.into_selected(&access, self.max_document_bytes);
        let mut columns = selected.columns();
        let Selected { mut paths, keep, drop, sidecars } = selected;
        let filter_paths = paths.len();
        let mut prompts = Vec::with_capacity(self.prompts.len());
        for (plan, has_mask) in self.prompts.into_iter().zip(self.masks) {
            let mut wanted = |key: &str| Field::add(key, &mut paths, &mut columns);
            prompts.push(match plan {
                Plan::Chat(plan) => Prompt::Chat(plan.conversations(filter_paths, has_mask, wanted)?.into()),
                Plan::Completion(plan) => Prompt::Completion(plan.completions(filter_paths, wanted)),
                Plan::Text(plan) => Prompt::Text(wanted(&plan.field)),
            });
        }
        let columns = if self.keeps_records { Projection::all() } else { Projection::named(columns) };
        let shards = self.paths.into_iter().zip(self.sizes);
        Ok(PromptSpec {
            shards: shards.map(|(path, size)| Shard::whole(path, size)).collect(),
            read: Arc::new(ReadOptions {
                access,
                projection: columns.with_paths(paths),
                keep,
                max_document_bytes: self.max_document_bytes,
                ids: None,
            }),
            filter_paths,
            sidecars,
            drop,
            prompts,
            bos: self.bos,
            eos: self.eos,
            longest: self.longest,
            cut: self.cut,
            needs_trained: self.needs_trained,
            selected: self.selected,
            keeps_records: self.keeps_records,
            keeps_texts: self.keeps_texts,
            raises: self.raises,
            max_memory: self.max_memory,
            threads: self.threads,
        })
    }
}

/// All prompts of some shards: a dict of arrays and lists, see `_core.pyi`.
#[pyfunction]
pub fn read_prompts<'py>(
    py: Python<'py>,
    encoder: &Encoder,
    reading: Reading,
) -> PyResult<Bound<'py, PyDict>> {
    let spec = reading.spec()?;
    let mut signals = Signals::new();
    let arena = guarded(py, || {
        let access = &spec.read.access;
        let _connection = access.connect(spec.shards.iter().chain(spec.sidecars.files()))?;
        let arena = prompts::read(&spec, encoder.inner(), || signals.have_raised());
        // An outage is no fault of the records that were not read.
        access.outage().map_or(arena, Err)
    })?;
    signals.raised()?;
    let arena = arena.ok_or_else(|| Error::Bug("reading was interrupted by nothing".to_owned()))?;
    arrays(py, arena)
}

/// The number of records of some shards.
#[pyfunction]
pub fn count_records(
    py: Python<'_>,
    folder: PathBuf,
    storage: Vec<(String, String)>,
    shards: Vec<(String, u64)>,
    max_document_bytes: u64,
) -> PyResult<u64> {
    let access = access(folder, storage, Access::IO_BYTES, None);
    let read = Arc::new(ReadOptions {
        access,
        projection: Projection::all(),
        keep: None,
        max_document_bytes,
        ids: None,
    });
    let shards: Vec<Shard> = shards.into_iter().map(|(path, size)| Shard::whole(path, size)).collect();
    let mut signals = Signals::new();
    let count = guarded(py, || {
        let _connection = read.access.connect(&shards)?;
        let count = prompts::count(&shards, &read, || signals.have_raised());
        read.access.outage().map_or(count, Err)
    })?;
    signals.raised()?;
    Ok(count.ok_or_else(|| Error::Bug("counting was interrupted by nothing".to_owned()))?)
}

/// Shard, record, byte and reason of a record that cannot be used.
type Bad = (String, Option<u64>, Option<u64>, String);

/// Adds bad records of a stream to a quarantine file, but for those that it has; returns once they are on disk.
#[pyfunction]
pub fn write_quarantined(py: Python<'_>, path: String, stream: String, bad: Vec<Bad>) -> PyResult<()> {
    let written = guarded(py, || {
        // They are those of a stream with one lane.
        let file = QuarantineFile::open(&QuarantineFileSpec { path, stream }, &[(0, [0, 0])])?;
        for (number, (shard, record, byte, reason)) in (1..).zip(bad) {
            file.append(0, number, 0, &ShardError { shard: shard.into(), record, byte, reason })?;
        }
        file.sync()
    });
    Ok(written?)
}

/// A permutation of `0..count`: that of an epoch by a seed; or torch's after it has made `skipped` ones.
#[pyfunction]
pub fn prompt_order(
    py: Python<'_>,
    kind: &str,
    count: usize,
    seed: u64,
    number: u64,
) -> PyResult<Py<PyArray1<u32>>> {
    let of_torch = kind == "torch";
    let order = guarded(py, || {
        Ok(if of_torch { order::of_torch(count, seed, number) } else { order::shuffled(count, seed, number) })
    })?;
    Ok(PyArray1::from_vec(py, order).unbind())
}

/// The index of the source of each prompt of a step, of which so many are `left` of each source; -1 where there is none.
#[pyfunction]
pub fn prompt_sources(
    py: Python<'_>,
    mixing: MixingPlan,
    rows: u64,
    seed: Option<u64>,
    step: u64,
    left: Vec<Option<u64>>,
) -> PyResult<Py<PyArray1<i32>>> {
    let names = mixing.names.clone();
    // Prompts are counted one by one, whatever rows of tokens count.
    let rule = Mixing { unit: Unit::Rows, ..mixing.mixing(rows, seed, 1)? };
    Ok(PyArray1::from_vec(py, rule.batch(step, left, &names)?).unbind())
}

fn arrays(py: Python<'_>, arena: Arena) -> PyResult<Bound<'_, PyDict>> {
    let found = PyDict::new(py);
    let (mut overlong, mut tokens) = ((Vec::new(), Vec::new()), Vec::new());
    let bad = PyList::empty(py);
    for Left { shard, record, byte, reason } in arena.left {
        match reason {
            Reason::Overlong(count) => {
                overlong.0.push(shard);
                overlong.1.push(record.unwrap_or(0) as i64);
                tokens.push(count as i64);
            }
            Reason::Bad(reason) => bad.append((shard, record, byte, reason, false))?,
            Reason::Lost(reason) => bad.append((shard, record, byte, reason, true))?,
        }
    }
    found.set_item("read", arena.read)?;
    found.set_item("filtered", arena.filtered)?;
    found.set_item("keys", arena.keys)?;
    found.set_item("bad", bad)?;
    found.set_item("ids", PyArray1::from_vec(py, arena.ids))?;
    found.set_item("trained", PyArray1::from_vec(py, arena.trained))?;
    found.set_item("id_offsets", PyArray1::from_vec(py, arena.id_offsets))?;
    found.set_item("texts", PyArray1::from_vec(py, arena.texts))?;
    found.set_item("text_offsets", PyArray1::from_vec(py, arena.text_offsets))?;
    found.set_item("records", PyArray1::from_vec(py, arena.records))?;
    found.set_item("record_offsets", PyArray1::from_vec(py, arena.record_offsets))?;
    found.set_item("shards", PyArray1::from_vec(py, arena.shards))?;
    found.set_item("numbers", PyArray1::from_vec(py, arena.numbers))?;
    found.set_item("indices", PyArray1::from_vec(py, arena.indices))?;
    found.set_item("overlong_shards", PyArray1::from_vec(py, overlong.0))?;
    found.set_item("overlong_numbers", PyArray1::from_vec(py, overlong.1))?;
    found.set_item("overlong_tokens", PyArray1::from_vec(py, tokens))?;
    Ok(found)
}
