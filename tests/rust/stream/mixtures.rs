//! Random mixtures: whatever the threads, hosts and restarts, they give one stream, through stages and ends of sources.

use std::sync::Arc;

use _core::lane::assignment::Plan;
use _core::lane::cursor::Cursor;
use _core::pipeline::Delivered;
use _core::prepare::Prepare;
use _core::prepare::fill_in_the_middle::{FillInTheMiddle, Sentinels};
use _core::spec::mixture::{Mixing, OnExhausted, Stage, Unit};
use _core::spec::{HostSpec, Interval, SourceSpec, StreamSpec};
use _core::store::Shard;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseResult;

use crate::cases::{Case, Run, build, case, other_run};
use crate::{Stream, divisor, padding, play_mixture, settings, without_last_entry};

const SENTINELS: Sentinels = Sentinels { prefix: 1, middle: 2, suffix: 3 };

/// Steps that are played: endless sources have no end.
const STEPS: usize = 60;

#[derive(Debug, Clone)]
struct Mixed {
    /// The rows are those of the first one.
    cases: Vec<Case>,
    lanes: Index,
    stages: Vec<(u64, Vec<u64>)>,
    unit: Unit,
    on_exhausted: OnExhausted,
    offset: u64,
    /// Whether documents of a source are cut.
    fills: Vec<bool>,
}

prop_compose! {
    fn mixed()(
        cases in prop::collection::vec((case(), prop::option::weighted(0.7, 1u64..4)), 1..4),
        lanes in any::<Index>(),
        stages in prop::collection::vec((1u64..12, prop::collection::vec(0u64..9, 4)), 1..4),
        on_exhausted in prop::sample::select(vec![
            OnExhausted::Continue, OnExhausted::Continue, OnExhausted::Stop, OnExhausted::Error,
        ]),
        unit in prop::sample::select(vec![Unit::Rows, Unit::Tokens, Unit::Samples]),
        offset in any::<u64>(),
        fills in prop::collection::vec(any::<bool>(), 4),
    ) -> Mixed {
        let cases = cases.into_iter().map(|(case, epochs)| Case { epochs, ..case }).collect();
        Mixed { cases, lanes, stages, unit, on_exhausted, offset, fills }
    }
}

fn mixture(mixed: &Mixed, folder: &std::path::Path) -> StreamSpec {
    let first = &mixed.cases[0];
    let specs: Vec<SourceSpec> = (0..mixed.cases.len())
        .map(|number| {
            let case = Case {
                engine: first.engine,
                rows_per_lane: first.rows_per_lane,
                single_rows: first.single_rows,
                length: first.length,
                packing: first.packing,
                truncation: first.truncation,
                max_segments: first.max_segments,
                layout: first.layout,
                boundary_targets: first.boundary_targets,
                ..mixed.cases[number].clone()
            };
            let folder = folder.join(number.to_string());
            std::fs::create_dir(&folder).unwrap();
            Arc::try_unwrap(build(&case, &folder).0).ok().unwrap()
        })
        .collect();
    let lanes = 1 + mixed.lanes.index(specs.iter().map(|spec| spec.shards.len()).min().unwrap());
    let rows = (lanes * first.rows_per_lane) as u64;
    let mut first_piece = 0;
    let sources = specs.into_iter().enumerate().map(|(number, mut spec)| {
        let sizes = spec.shards.iter().map(Shard::dealt_bytes).collect();
        let seed = spec.shuffle.map(|shuffle| shuffle.seed);
        spec.plan = Plan::new(sizes, lanes, seed);
        if mixed.fills[number] {
            let fill = FillInTheMiddle::new(seed.unwrap_or(0), 0.7, 0.5, SENTINELS);
            spec.prepare = Prepare::FillInTheMiddle(fill);
        }
        spec.name = format!("s{number}");
        spec.number = number as i32;
        spec.first_piece = first_piece;
        first_piece += spec.shards.len() as u32;
        Arc::new(spec)
    });
    let sources: Vec<Arc<SourceSpec>> = sources.collect();
    let mut step = 0;
    let stages = mixed.stages.iter().map(|(steps, weights)| {
        let mut weights = weights[..sources.len()].to_vec();
        weights[0] += u64::from(weights.iter().all(|weight| *weight == 0));
        let stage = Stage { step, weights };
        step += steps;
        stage
    });
    let mixing = Mixing {
        rows,
        offset: mixed.offset,
        stages: stages.collect(),
        unit: mixed.unit,
        row_units: if mixed.unit == Unit::Tokens { first.length as u64 } else { 1 },
        on_exhausted: mixed.on_exhausted,
    };
    StreamSpec {
        rows: sources[0].rows,
        sources,
        mixing: Some(mixing),
        skip: Vec::new(),
        interval: Interval::default(),
    }
}

fn check(mixed: &Mixed, runs: &[Run]) -> TestCaseResult {
    let folder = tempfile::tempdir().unwrap();
    let mixture = mixture(mixed, folder.path());
    let case = &mixed.cases[0];
    let (lanes, sources) = (mixture.sources[0].plan.lanes(), mixture.sources.len());
    let all: Vec<usize> = (0..lanes).collect();
    let host = |lanes: Vec<usize>, threads, prefetch| HostSpec {
        lanes,
        threads,
        prefetch,
        verify: 0.0,
        single_rows: case.single_rows,
        quarantine_file: None,
        provenance: case.provenance,
        provenance_width: 4,
        names_sources: false,
        attention_mask: true,
    };
    let play = |host, from: Option<&Delivered>, elements| {
        play_mixture(case.engine, &mixture, host, from.cloned(), elements)
    };
    let whole = play(host(all.clone(), 1, 1), None, STEPS);
    let padding = padding(case, &mixture.rows);
    for run in runs {
        let (threads, prefetch) = (run.threads, run.prefetch);
        prop_assert_eq!(&play(host(all.clone(), threads, prefetch), None, STEPS), &whole);
        let at = run.stop.index(whole.states.len());
        let state = &whole.states[at];
        let rest = play(host(all.clone(), threads, prefetch), Some(state), STEPS - at.min(STEPS));
        prop_assert_eq!(&rest.states[..], &whole.states[at..]);
        let error =
            |stream: &Stream| stream.error.as_deref().map(|error| without_last_entry(error).to_owned());
        prop_assert_eq!(error(&rest), error(&whole));
        if state.row > 0 {
            continue;
        }
        let hosts = divisor(lanes, run.hosts);
        for own in all.chunks(lanes / hosts) {
            let cursors: Vec<Cursor> = own
                .iter()
                .flat_map(|lane| state.cursors[lane * sources..][..sources].iter().copied())
                .collect();
            let from = Delivered {
                step: state.step,
                row: 0,
                cursors,
                carried: Arc::default(),
                interval: 0,
                skipped_tokens: 0,
            };
            let elements = if case.single_rows { (STEPS - at) / lanes * own.len() } else { STEPS - at };
            let part = play(host(own.to_vec(), threads, prefetch), Some(&from), elements);
            for lane in own {
                let expected = &whole.lanes[lane][(state.step as usize).min(whole.lanes[lane].len())..];
                let found = &part.lanes[lane];
                let both = found.len().min(expected.len());
                prop_assert_eq!(&found[..both], &expected[..both], "lane {}", lane);
                let is_cut = part.error.is_some() || part.states.len() > elements;
                prop_assert!(
                    is_cut || expected[both..].iter().all(|rows| *rows == padding),
                    "lane {} ends early",
                    lane
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(settings(500))]

    #[test]
    fn mixture_is_one_stream(mixed in mixed(), runs in prop::collection::vec(other_run(), 2)) {
        check(&mixed, &runs)?;
    }
}
