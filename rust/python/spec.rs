//! The checked arguments of a `PackedDataset`, as Python groups them, and what the core makes of them.
//!
//! The structs mirror the classes of `gristmill._spec.arguments` and `gristmill._dataset.spec`: an argument is a field of
//! the same name there and here.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;

use super::choices::{self, LAYOUTS, ON_ERRORS, ON_EXHAUSTED, PACKINGS, TRUNCATIONS, WEIGHTS_BY};
use super::fields::{FieldPlan, field_specs};
use super::keep::{Selected, Selection};
use super::pipeline::usable_cores;
use super::sample::{FillPlan, Keyed, Sample, Wanted};
use crate::error::Error;
use crate::format::{Projection, ReadOptions};
use crate::lane::assignment::Plan;
use crate::pack::balance::RowCost;
use crate::prepare::Prepare;
use crate::prepare::values::SourceFields;
use crate::spec::fields::FieldSpec;
use crate::spec::mixture::{Mixing, Stage, Unit};
use crate::spec::{
    HostSpec, Interval, Packing, QuarantineFileSpec, RowSpec, Shuffle, SourceSpec, StreamSpec, Truncation,
    UntrainedRows,
};
use crate::store::{Access, Shard};

/// Where shards are.
pub fn access(
    folder: PathBuf,
    storage: Vec<(String, String)>,
    io_bytes: usize,
    cache: Option<(PathBuf, u64)>,
) -> Access {
    let cache = cache.map(|(folder, bytes)| gristmill_remote::CacheOptions { folder, bytes });
    let options = gristmill_remote::Options { storage, io_bytes, cache };
    Access { folder, stores: crate::store::Stores::new(options) }
}

/// The stream that an iterator yields.
#[derive(FromPyObject)]
pub struct Spec {
    sources: Vec<Source>,
    rows: Rows,
    order: Order,
    running: Running,
    stream_name: String,
    rows_per_lane: usize,
    provenance_width: usize,
    delivers_untrained: bool,
    mixing: Option<MixingPlan>,
    carried_fields: Vec<FieldPlan>,
    interval: IntervalPlan,
}

/// The steps of a stream that a spec is for, as `gristmill._dataset.intervals` has them.
#[derive(FromPyObject, Clone, Copy)]
struct IntervalPlan {
    first: u64,
    until: Option<u64>,
    keeps_windows: bool,
    ends_stage: bool,
}

/// How sources are mixed; those of prompts, too.
#[derive(FromPyObject)]
pub struct MixingPlan {
    pub names: Vec<String>,
    core_stages: Vec<(u64, Vec<u64>)>,
    weights_by: String,
    on_exhausted: String,
}

/// Shards that are read in one way.
#[derive(FromPyObject)]
struct Source {
    name: String,
    folder: PathBuf,
    storage_options: Option<Vec<(String, String)>>,
    io_bytes: usize,
    cache_dir: Option<PathBuf>,
    cache_bytes: u64,
    paths: Vec<String>,
    sizes: Vec<u64>,
    /// None, or one for each shard.
    e_tags: Vec<Option<String>>,
    split_bytes: u64,
    text_field: String,
    sample: Option<Sample>,
    /// For each field of the stream its key; None if the source lacks it.
    field_keys: Vec<Option<String>>,
    /// The same for the second sample of a pair.
    second_keys: Vec<Option<String>>,
    selection: Selection,
    /// How many of the shards, which are the last ones, were added at each of several borders.
    added: Vec<usize>,
    /// The step at which more are added.
    adds_at: Option<u64>,
    /// The index of its first piece among those of all sources.
    first_piece: u32,
    max_document_bytes: u64,
    eos: Option<u32>,
    bos: Option<u32>,
    shuffle_window: usize,
    epochs: Option<u64>,
    on_error: String,
    max_error_rate: f64,
}

#[derive(FromPyObject)]
struct Rows {
    sequence_length: usize,
    batch_size: Option<usize>,
    packing: String,
    fit_window: usize,
    truncation: Option<String>,
    max_segments: Option<usize>,
    pad_segments_to: Option<usize>,
    balance: Option<CostPlan>,
    layout: String,
    boundary_targets: bool,
}

/// The cost of rows, as `gristmill._spec.cost` has it.
#[derive(FromPyObject, Clone, Copy)]
struct CostPlan {
    linear: f64,
    quadratic: f64,
}

#[derive(FromPyObject)]
struct Order {
    lanes: usize,
    seed: Option<u64>,
    skip: Option<Vec<(u64, u64)>>,
}

/// Arguments that may differ between hosts and runs of one stream.
#[derive(FromPyObject)]
struct Running {
    own_lanes: Vec<usize>,
    quarantine_file: Option<String>,
    threads: Option<usize>,
    prefetch: usize,
    verify: f64,
    provenance: usize,
    source_arrays: bool,
    attention_mask: bool,
}

impl Spec {
    /// The share of the stream that belongs to this process.
    pub fn host(&self) -> HostSpec {
        let Running {
            own_lanes,
            quarantine_file,
            threads,
            prefetch,
            verify,
            provenance,
            source_arrays,
            attention_mask,
        } = &self.running;
        let stream = self.stream_name.clone();
        HostSpec {
            lanes: own_lanes.clone(),
            threads: threads.unwrap_or_else(usable_cores),
            prefetch: *prefetch,
            verify: *verify,
            single_rows: self.rows.batch_size.is_none(),
            quarantine_file: quarantine_file.clone().map(|path| QuarantineFileSpec { path, stream }),
            provenance: *provenance,
            provenance_width: self.provenance_width,
            names_sources: *source_arrays,
            attention_mask: *attention_mask,
        }
    }

    /// The arguments that define the stream.
    pub fn stream(self) -> Result<StreamSpec, Error> {
        let Self {
            sources,
            rows,
            order,
            rows_per_lane,
            delivers_untrained,
            stream_name,
            mixing,
            interval,
            ..
        } = self;
        let fields: Arc<[FieldSpec]> = field_specs(self.carried_fields)?.into();
        let spec = rows.spec(rows_per_lane)?;
        let mut found = Vec::with_capacity(sources.len());
        for (number, source) in (0..).zip(sources) {
            let log_name =
                if mixing.is_some() { format!("{stream_name}.{}", source.name) } else { String::new() };
            let balance = rows.balance.map(|CostPlan { linear, quadratic }| RowCost { linear, quadratic });
            let own = SourceSpec { balance, ..source.spec(spec, &order, delivers_untrained, &fields)? };
            found.push(Arc::new(SourceSpec { number, log_name, ..own }));
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        let step_rows = rows.batch_size.unwrap_or(order.lanes) as u64;
        let mixing = mixing.map(|plan| plan.mixing(step_rows, order.seed, rows.sequence_length as u64));
        Ok(StreamSpec {
            sources: found,
            rows: spec,
            mixing: mixing.transpose()?,
            skip: order.skip.unwrap_or_default(),
            interval: interval.interval(),
        })
    }
}

impl IntervalPlan {
    fn interval(self) -> Interval {
        let Self { first, until, keeps_windows, ends_stage } = self;
        Interval { first, until, keeps_windows, ends_stage }
    }
}

impl Rows {
    fn spec(&self, rows_per_lane: usize) -> Result<RowSpec, Error> {
        let packing = choices::find("packing", &self.packing, &PACKINGS)?(self.fit_window);
        let truncation = match &self.truncation {
            Some(name) => choices::find("truncation", name, &TRUNCATIONS)?,
            None if packing == Packing::Pad => Truncation::Right,
            None => Truncation::Split,
        };
        Ok(RowSpec {
            sequence_length: self.sequence_length,
            packing,
            truncation,
            max_segments: self.max_segments,
            layout: choices::find("layout", &self.layout, &LAYOUTS)?,
            segment_multiple: self.pad_segments_to.unwrap_or(1),
            boundary_targets: self.boundary_targets,
            rows_per_lane,
        })
    }
}

impl MixingPlan {
    /// The rule of streams with so many rows in a step, and so many tokens in a full row.
    pub fn mixing(self, rows: u64, seed: Option<u64>, row_tokens: u64) -> Result<Mixing, Error> {
        let stages = self.core_stages.into_iter().map(|(step, weights)| Stage { step, weights });
        let unit = choices::find("weights_by", &self.weights_by, &WEIGHTS_BY)?;
        Ok(Mixing {
            rows,
            offset: Mixing::offset(seed),
            stages: stages.collect(),
            unit,
            row_units: if unit == Unit::Tokens { row_tokens } else { 1 },
            on_exhausted: choices::find("on_exhausted", &self.on_exhausted, &ON_EXHAUSTED)?,
        })
    }
}

impl Source {
    /// The source, as if there were no other one.
    fn spec(
        self,
        rows: RowSpec,
        order: &Order,
        delivers_untrained: bool,
        fields: &Arc<[FieldSpec]>,
    ) -> Result<SourceSpec, Error> {
        let make_on_error = choices::find("on_error", &self.on_error, &ON_ERRORS)?;
        let e_tags = self.e_tags.into_iter().chain(std::iter::repeat(None));
        let shards = self.paths.into_iter().zip(&self.sizes).zip(e_tags).map(|((path, &size), e_tag)| {
            let e_tag = e_tag.map(Into::into);
            Shard { e_tag, ..Shard::whole(path, size) }.divided(self.split_bytes).collect()
        });
        let shards: Vec<Vec<Shard>> = shards.collect();
        let (first, mut groups) = shards.split_at(shards.len() - self.added.iter().sum::<usize>());
        let sizes = |shards: &[Vec<Shard>]| shards.iter().flatten().map(Shard::dealt_bytes).collect();
        let mut plan = Plan::new(sizes(first), order.lanes, order.seed);
        for count in self.added {
            let (group, rest) = groups.split_at(count);
            plan = plan.with_added(sizes(group));
            groups = rest;
        }
        let shards: Vec<Shard> = shards.into_iter().flatten().collect();
        let access = access(
            self.folder,
            self.storage_options.unwrap_or_default(),
            self.io_bytes,
            self.cache_dir.map(|folder| (folder, self.cache_bytes)),
        );
        let selected = self.selection.into_selected(&access, self.max_document_bytes);
        let columns = selected.columns();
        let Selected { paths, keep, drop, sidecars } = selected;
        let has_fields = self.field_keys.iter().any(Option::is_some);
        let ids = match &self.sample {
            Some(Sample::Keyed(Keyed::Tokens(plan))) => {
                Some(plan.id_files(self.eos, !has_fields && paths.is_empty())?)
            }
            _ => None,
        };
        let key = &self.text_field;
        let text =
            |prepare, paths| (prepare, Projection::text(key).with_paths(paths), [const { Vec::new() }; 2]);
        let fill = |plan: FillPlan| plan.fill(order.seed);
        let (prepare, projection, [keys, second_keys]) = match self.sample {
            None if !has_fields => text(Prepare::Text, paths),
            Some(Sample::FillInTheMiddle(plan)) if !has_fields => {
                text(Prepare::FillInTheMiddle(fill(plan)), paths)
            }
            sample => {
                let mut wanted = Wanted::new(paths, columns);
                let prepare = match sample {
                    None | Some(Sample::WithFields(_)) => wanted.text(key, None),
                    Some(Sample::FillInTheMiddle(plan)) => wanted.text(key, Some(fill(plan))),
                    Some(Sample::Keyed(sample)) => sample.prepare(&mut wanted, rows.sequence_length)?,
                };
                let keys = [&self.field_keys, &self.second_keys].map(|keys| {
                    keys.iter().map(|key| key.as_ref().map(|key| wanted.add(key))).collect::<Vec<_>>()
                });
                (prepare, wanted.projection(), keys)
            }
        };
        let untrained_rows = match &prepare {
            _ if delivers_untrained || !prepare.has_mask() => UntrainedRows::Deliver,
            _ if prepare.drops_untrained() => UntrainedRows::Drop,
            _ => UntrainedRows::Error,
        };
        Ok(SourceSpec {
            name: self.name,
            number: 0,
            first_piece: self.first_piece,
            log_name: String::new(),
            shards,
            plan,
            read: Arc::new(ReadOptions {
                access,
                projection,
                keep,
                max_document_bytes: self.max_document_bytes,
                ids,
            }),
            drop,
            sidecars,
            prepare,
            fields: SourceFields { all: Arc::clone(fields), keys, second_keys },
            on_error: make_on_error(self.max_error_rate),
            shuffle: order.seed.map(|seed| Shuffle { seed, window: self.shuffle_window }),
            epochs: self.epochs,
            adds_at: self.adds_at,
            bos: self.bos,
            eos: self.eos,
            untrained_rows,
            rows,
            balance: None,
        })
    }
}
