//! The checked arguments of a `PackedDataset`, as Python groups them, and what the core makes of them.
//!
//! The structs mirror the classes of `gristmill._spec`: an argument is a field there and here.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;

use super::choices::{self, LAYOUTS, ON_ERRORS, ON_EXHAUSTED, PACKINGS, TRUNCATIONS, WEIGHTS_BY};
use super::keep::{Selected, Selection};
use super::pipeline::usable_cores;
use super::sample::Sample;
use crate::error::Error;
use crate::format::{Projection, ReadOptions};
use crate::lane::assignment::Plan;
use crate::prepare::Prepare;
use crate::spec::mixture::{Mixing, Mixture, Stage, Unit};
use crate::spec::{
    Alignment, HostSpec, Packing, QuarantineFileSpec, Shuffle, StreamSpec, Truncation, UntrainedRows, mixture,
};
use crate::store::{Places, Shard};

/// Where shards are.
pub fn places(
    folder: PathBuf,
    storage: Vec<(String, String)>,
    io_bytes: usize,
    cache: Option<(PathBuf, u64)>,
) -> Places {
    #[cfg(feature = "remote")]
    {
        let cache = cache.map(|(folder, bytes)| gristmill_remote::CacheOptions { folder, bytes });
        let options = gristmill_remote::Options { storage, io_bytes, cache };
        Places { stores: crate::store::Stores::new(options), ..Places::from(folder) }
    }
    #[cfg(not(feature = "remote"))]
    {
        let _ = (storage, io_bytes, cache);
        Places::from(folder)
    }
}

/// What an iterator yields.
#[derive(FromPyObject)]
pub struct Spec {
    source: Source,
    tokenizing: Tokenizing,
    rows: Rows,
    order: Order,
    running: Running,
    stream_name: String,
    rows_per_lane: usize,
    delivers_untrained: bool,
    mixing: Option<MixingPlan>,
}

/// How the sources of a mixture are mixed.
#[derive(FromPyObject)]
struct MixingPlan {
    members: Vec<Member>,
    core_stages: Vec<(u64, Vec<u64>)>,
    weights_by: String,
    on_exhausted: String,
}

/// A source of a mixture.
#[derive(FromPyObject)]
struct Member {
    name: String,
    number: i32,
    first_piece: u32,
    spec: Spec,
}

/// Where records come from.
#[derive(FromPyObject)]
struct Source {
    input: Input,
    faults: Faults,
}

#[derive(FromPyObject)]
struct Input {
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
    selection: Selection,
    max_document_bytes: u64,
}

#[derive(FromPyObject)]
struct Faults {
    on_error: String,
    max_error_rate: f64,
    quarantine_file: Option<String>,
}

#[derive(FromPyObject)]
struct Tokenizing {
    eos: Option<u32>,
    bos: Option<u32>,
}

#[derive(FromPyObject)]
struct Rows {
    sequence_length: usize,
    batch_size: Option<usize>,
    packing: String,
    fit_window: usize,
    truncation: Option<String>,
    max_segments: Option<usize>,
    layout: String,
    boundary_targets: bool,
}

#[derive(FromPyObject)]
struct Order {
    lanes: usize,
    seed: Option<u64>,
    shuffle_window: usize,
    epochs: Option<u64>,
}

/// What may differ between hosts and runs of one stream.
#[derive(FromPyObject)]
struct Running {
    own_lanes: Vec<usize>,
    threads: Option<usize>,
    prefetch: usize,
    verify: f64,
    provenance: usize,
    source_arrays: bool,
}

impl Spec {
    /// What this process does of the stream.
    pub fn host(&self) -> HostSpec {
        let Running { own_lanes, threads, prefetch, verify, provenance, source_arrays } = &self.running;
        let quarantine_file = self.source.faults.quarantine_file.clone();
        let stream = self.stream_name.clone();
        HostSpec {
            lanes: own_lanes.clone(),
            threads: threads.unwrap_or_else(usable_cores),
            prefetch: *prefetch,
            verify: *verify,
            single_rows: self.rows.batch_size.is_none(),
            quarantine_file: quarantine_file.map(|path| QuarantineFileSpec { path, stream }),
            provenance: *provenance,
            names_sources: *source_arrays,
        }
    }

    /// What defines the stream.
    pub fn mixture(self) -> Result<Mixture, Error> {
        let Self { mixing: Some(plan), rows, order, .. } = self else {
            return self.stream().map(|stream| Arc::new(stream).into());
        };
        let stages = plan.core_stages.into_iter().map(|(step, weights)| Stage { step, weights });
        let source = |Member { name, number, first_piece, spec }| {
            let log_name = format!("{}.{name}", spec.stream_name);
            let stream = Arc::new(spec.stream()?);
            Ok(mixture::Source { name, number, first_piece, log_name, stream })
        };
        let unit = choices::find("weights_by", &plan.weights_by, &WEIGHTS_BY)?;
        Ok(Mixture {
            sources: plan.members.into_iter().map(source).collect::<Result<_, Error>>()?,
            mixing: Some(Mixing {
                rows: rows.batch_size.unwrap_or(order.lanes) as u64,
                offset: Mixing::offset(order.seed),
                stages: stages.collect(),
                unit,
                row_units: if unit == Unit::Tokens { rows.sequence_length as u64 } else { 1 },
                on_exhausted: choices::find("on_exhausted", &plan.on_exhausted, &ON_EXHAUSTED)?,
            }),
        })
    }

    fn stream(self) -> Result<StreamSpec, Error> {
        let Self {
            source: Source { input, faults },
            tokenizing,
            rows,
            order,
            rows_per_lane,
            delivers_untrained,
            ..
        } = self;
        let layout = choices::find("layout", &rows.layout, &LAYOUTS)?;
        let packing = choices::find("packing", &rows.packing, &PACKINGS)?(rows.fit_window);
        let truncation = match &rows.truncation {
            Some(name) => choices::find("truncation", name, &TRUNCATIONS)?,
            None if packing == Packing::Pad => Truncation::Right,
            None => Truncation::Split,
        };
        let make_on_error = choices::find("on_error", &faults.on_error, &ON_ERRORS)?;
        let e_tags = input.e_tags.into_iter().chain(std::iter::repeat(None));
        let shards =
            input.paths.into_iter().zip(&input.sizes).zip(e_tags).flat_map(|((path, &size), e_tag)| {
                let e_tag = e_tag.map(Into::into);
                Shard { e_tag, ..Shard::whole(path, size) }.divided(input.split_bytes)
            });
        let shards: Vec<Shard> = shards.collect();
        let sizes = shards.iter().map(Shard::dealt_bytes).collect();
        let places = places(
            input.folder,
            input.storage_options.unwrap_or_default(),
            input.io_bytes,
            input.cache_dir.map(|folder| (folder, input.cache_bytes)),
        );
        let selected = input.selection.into_selected(&places, input.max_document_bytes);
        let columns = selected.columns();
        let Selected { paths, keep, drop, sidecars } = selected;
        let text = |paths| Projection::text(input.text_field).with_paths(paths);
        let (prepare, projection) = match input.sample {
            None => (Prepare::Text, text(paths)),
            Some(Sample::FillInTheMiddle(plan)) => (plan.prepare(order.seed), text(paths)),
            Some(Sample::Masked(plan)) => plan.plan(paths, columns, rows.sequence_length)?,
        };
        let untrained_rows = match &prepare {
            _ if delivers_untrained || !prepare.has_mask() => UntrainedRows::Deliver,
            _ if prepare.drops_untrained() => UntrainedRows::Drop,
            _ => UntrainedRows::Error,
        };
        Ok(StreamSpec {
            shards,
            plan: Plan::new(sizes, order.lanes, order.seed),
            read: Arc::new(ReadOptions {
                places,
                projection,
                keep,
                max_document_bytes: input.max_document_bytes,
            }),
            drop,
            sidecars,
            prepare,
            on_error: make_on_error(faults.max_error_rate),
            shuffle: order.seed.map(|seed| Shuffle { seed, window: order.shuffle_window }),
            epochs: order.epochs,
            bos: tokenizing.bos,
            eos: tokenizing.eos,
            sequence_length: rows.sequence_length,
            packing,
            truncation,
            untrained_rows,
            alignment: Alignment::Left,
            max_segments: rows.max_segments,
            layout,
            boundary_targets: rows.boundary_targets,
            rows_per_lane,
        })
    }
}
