//! The whole pipeline over shards on disk. Whatever the threads, hosts and restarts, it gives one
//! stream; and in that stream every token is where it belongs.
//!
//! `PROPTEST_CASES` sets the number of cases; a failing one is shrunk and printed with its seed.

// A helper that fails is a test that fails.
#![allow(clippy::unwrap_used)]

mod cases;
mod checks;
mod edges;
mod mixtures;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use _core::batch::schema::Field;
use _core::encode::Engine;
use _core::pipeline::{Batch, Delivered, Delivery, Pipeline};
use _core::spec::{HostSpec, RowSpec, SourceSpec, StreamSpec};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;
use proptest::test_runner::TestCaseResult;

use cases::{Case, Run, build, case, encoder, other_run};

/// The batches that some lanes gave from some place on.
#[derive(Debug, Clone, Default, PartialEq)]
struct Stream {
    /// For each lane, the arrays of its rows, step after step.
    lanes: HashMap<usize, Vec<Vec<Vec<i32>>>>,
    /// The state before each element, and after the last.
    states: Vec<Delivered>,
    quarantined: Vec<String>,
    error: Option<String>,
}

/// Plays some lanes to the end, or for so many elements.
fn play(
    engine: Engine,
    spec: &Arc<SourceSpec>,
    host: HostSpec,
    from: Option<Delivered>,
    elements: usize,
) -> Stream {
    play_mixture(engine, &Arc::clone(spec).into(), host, from, elements)
}

/// The same of a mixture.
fn play_mixture(
    engine: Engine,
    mixture: &StreamSpec,
    host: HostSpec,
    from: Option<Delivered>,
    elements: usize,
) -> Stream {
    let lanes = host.lanes.clone();
    let mut pipeline = Pipeline::new(mixture.clone(), host, encoder(engine).clone());
    if let Some(from) = from {
        pipeline.restore(from.clone()).unwrap();
        assert_eq!(pipeline.taken(), &from);
    }
    let mut stream = Stream::default();
    for lane in &lanes {
        stream.lanes.insert(*lane, Vec::new());
    }
    let mut pending = 0;
    loop {
        let state = pipeline.taken().clone();
        if stream.states.len() == elements {
            stream.states.push(state);
            break;
        }
        match pipeline.next(Duration::from_secs(1)) {
            Ok(Delivery::Pending) => {
                pending += 1;
                assert!(pending < 60, "no batch in a minute");
                continue;
            }
            Ok(Delivery::Batch(batch)) => {
                let given = batch.row.map_or(0..lanes.len(), |lane| lane..lane + 1);
                for own in given {
                    let rows = lane_rows(&batch, own, mixture.rows.rows_per_lane);
                    stream.lanes.get_mut(&lanes[own]).unwrap().push(rows);
                }
            }
            Ok(Delivery::End) => {
                assert!(matches!(pipeline.next(Duration::ZERO), Ok(Delivery::End)));
                // Lanes that gave no row have their last counts only now.
                let ended = pipeline.taken().clone();
                let moved = ended != state;
                stream.states.push(state);
                stream.states.extend(moved.then_some(ended));
                break;
            }
            Err(error) => {
                assert_eq!(pipeline.next(Duration::ZERO).err(), Some(error.clone()));
                assert_eq!(pipeline.taken(), &state);
                stream.error = Some(error.to_string());
                stream.states.push(state);
                break;
            }
        }
        stream.states.push(state);
    }
    stream.quarantined = pipeline.quarantined().between(0, u64::MAX).map(ToString::to_string).collect();
    stream
}

/// The arrays of a lane's rows, row after row; the last of a row is its provenance, empty if there is none.
fn lane_rows(batch: &Batch, own: usize, rows_per_lane: usize) -> Vec<Vec<i32>> {
    let rows = own * rows_per_lane..(own + 1) * rows_per_lane;
    rows.flat_map(|row| {
        let fields = batch.lease.schema().fields().iter().enumerate();
        let arrays = fields.map(move |(index, field)| {
            let first = batch.lease.row_ptr::<i32>(index, row);
            // SAFETY: so many elements are there, and nobody writes to a batch that a pipeline gave.
            unsafe { std::slice::from_raw_parts(first, field.row_len()) }.to_vec()
        });
        let has_provenance = batch.lease.schema().fields().iter().any(|field| field.name == "provenance");
        arrays.chain((!has_provenance).then(Vec::new))
    })
    .collect()
}

fn divisor(of: usize, which: Index) -> usize {
    let divisors: Vec<usize> = (1..=of).filter(|n| of.is_multiple_of(*n)).collect();
    *which.get(&divisors)
}

/// Checks that lanes played elsewhere from step `first` on gave what `whole` gave there.
fn check_same(whole: &Stream, part: &Stream, first: usize, padding: &[Vec<i32>]) -> TestCaseResult {
    for (lane, rows) in &part.lanes {
        let expected = &whole.lanes[lane][first.min(whole.lanes[lane].len())..];
        let both = rows.len().min(expected.len());
        prop_assert_eq!(&rows[..both], &expected[..both], "lane {}", lane);
        // A host ends after its own last lane; there the whole has padding. One whose lanes are
        // sound continues where another one's failure stops the whole.
        prop_assert!(whole.error.is_some() || rows.len() <= expected.len());
        prop_assert!(expected[both..].iter().all(|rows| rows == padding), "lane {} ends early", lane);
    }
    Ok(())
}

/// Checks that the states behind steps from `first` on are the same, so that what holds for one restore holds for any
/// number of them on any hosts in turn.
fn check_states(whole: &Stream, part: &Stream, first: usize, own: &[usize]) -> TestCaseResult {
    let all = between_steps(whole);
    for (step, state) in between_steps(part).into_iter().filter(|(step, _)| *step > first as u64) {
        let Some(all) = all.get(&step) else { continue };
        let expected: Vec<_> = own.iter().map(|&lane| all.cursors[lane]).collect();
        prop_assert_eq!(&state.cursors, &expected, "behind step {}", step);
    }
    Ok(())
}

/// The states behind whole steps. The state of the end is another one of the last step: it is left out.
fn between_steps(stream: &Stream) -> HashMap<u64, &Delivered> {
    let mut states = HashMap::new();
    for state in stream.states.iter().filter(|state| state.row == 0) {
        states.entry(state.step).or_insert(state);
    }
    states
}

/// The same stream, had nobody asked for provenance.
fn without_provenance(whole: &Stream, case: &Case) -> Stream {
    let mut stream = whole.clone();
    let arrays = case.layout.fields(1, 1, false).len() + 1;
    for row in stream.lanes.values_mut().flatten().flat_map(|rows| rows.chunks_mut(arrays)) {
        row[arrays - 1].clear();
    }
    stream
}

fn padding(case: &Case, spec: &RowSpec) -> Vec<Vec<i32>> {
    let fields = case.layout.fields(case.length, spec.most_segments(), false);
    let value = |field: &Field| match field.name.as_str() {
        "labels" => -100,
        "next_token" => -1,
        _ => 0,
    };
    let arrays = fields.iter().map(|field| vec![value(field); field.row_len()]);
    let row: Vec<Vec<i32>> = arrays.chain([vec![0; 4 * case.provenance]]).collect();
    vec![row; case.rows_per_lane].concat()
}

fn check(case: &Case, runs: &[Run]) -> TestCaseResult {
    let folder = tempfile::tempdir().unwrap();
    let (spec, corpus) = build(case, folder.path());
    let lanes = spec.plan.lanes();
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
    let all: Vec<usize> = (0..lanes).collect();
    let whole = play(case.engine, &spec, host(all.clone(), 1, 1), None, usize::MAX);
    if whole.error.is_none() {
        let cursors = &whole.states.last().unwrap().cursors;
        for (lane, cursor) in cursors.iter().enumerate() {
            corpus.check_lane(&spec, lane, &whole.lanes[&lane], &cursor.totals)?;
        }
        prop_assert_eq!(whole.quarantined.len() as u64, corpus.bad * case.epochs.unwrap_or(0));
    }
    let bare = HostSpec { provenance: 0, provenance_width: 4, ..host(all.clone(), 1, 1) };
    prop_assert_eq!(play(case.engine, &spec, bare, None, usize::MAX), without_provenance(&whole, case));
    let padding = padding(case, &spec.rows);
    for run in runs {
        let same = play(case.engine, &spec, host(all.clone(), run.threads, run.prefetch), None, usize::MAX);
        prop_assert_eq!(&same, &whole);

        // From any element on, on the same lanes and on those of other hosts.
        let at = run.stop.index(whole.states.len());
        let state = &whole.states[at];
        let first = state.step as usize;
        let rest = play(
            case.engine,
            &spec,
            host(all.clone(), run.threads, run.prefetch),
            Some(state.clone()),
            usize::MAX,
        );
        let [whole_error, rest_error] =
            [&whole, &rest].map(|stream| stream.error.as_deref().map(without_last_entry));
        prop_assert_eq!(rest_error, whole_error);
        prop_assert_eq!(&rest.states[..], &whole.states[at..]);
        let own_first = |lane: usize| first + usize::from(lane < state.row);
        for lane in 0..lanes {
            prop_assert_eq!(&rest.lanes[&lane][..], &whole.lanes[&lane][own_first(lane)..], "lane {}", lane);
        }
        let seen = play(case.engine, &spec, host(all.clone(), run.threads, run.prefetch), None, at);
        prop_assert_eq!([&seen.quarantined[..], &rest.quarantined].concat(), &whole.quarantined[..]);
        if state.row > 0 {
            continue;
        }
        let hosts = divisor(lanes, run.hosts);
        let mut errors = Vec::new();
        for own in all.chunks(lanes / hosts) {
            let cursors = own.iter().map(|&lane| state.cursors[lane]).collect();
            let from = Delivered {
                step: state.step,
                row: 0,
                cursors,
                carried: Arc::default(),
                interval: 0,
                skipped_tokens: 0,
            };
            let part = play(
                case.engine,
                &spec,
                host(own.to_vec(), run.threads, run.prefetch),
                Some(from),
                usize::MAX,
            );
            check_same(&whole, &part, first, &padding)?;
            check_states(&whole, &part, first, own)?;
            if let Some(error) = part.error {
                errors.push(without_last_entry(&error).to_owned());
            } else if whole.error.is_none() {
                let expected = &whole.states.last().unwrap().cursors;
                let ended = &part.states.last().unwrap().cursors;
                prop_assert!(own.iter().zip(ended).all(|(&lane, cursor)| *cursor == expected[lane]));
            }
        }
        prop_assert_eq!(whole.error.is_some(), !errors.is_empty());
        prop_assert!(
            whole_error.iter().all(|whole| errors.iter().any(|error| error == whole)),
            "{:?} {:?}",
            whole_error,
            errors
        );
    }
    Ok(())
}

/// How many steps come before the last that holds tokens, which an endless stream may fill.
fn rows_with_tokens(steps: &[Vec<Vec<i32>>]) -> usize {
    steps.iter().rposition(|rows| rows[1].iter().any(|mark| *mark > 0)).unwrap_or(0)
}

/// The part of an error that a restored run says as well: of the bad records before its state it knows how many there
/// were.
fn without_last_entry(error: &str) -> &str {
    if let Some((searched, _)) = error.split_once(" quarantined") {
        return searched;
    }
    let Some((judgement, _)) = error.split_once(" allows") else { return error };
    judgement.rsplit(": ").next().unwrap_or(error)
}

/// An endless stream is the finite one up to its last rows, and restores like it.
fn check_endless(case: &Case, run: &Run) -> TestCaseResult {
    let folder = tempfile::tempdir().unwrap();
    let (spec, _) = build(case, folder.path());
    let (endless, _) = build(&Case { epochs: None, ..case.clone() }, folder.path());
    let all: Vec<usize> = (0..spec.plan.lanes()).collect();
    let host = HostSpec {
        lanes: all.clone(),
        threads: run.threads,
        prefetch: run.prefetch,
        verify: 0.0,
        single_rows: case.single_rows,
        quarantine_file: None,
        provenance: case.provenance,
        provenance_width: 4,
        names_sources: false,
        attention_mask: true,
    };
    let finite = play(case.engine, &spec, host.clone(), None, usize::MAX);
    let elements = finite.states.len() + 20;
    let whole = play(case.engine, &endless, host.clone(), None, elements);
    if finite.error.is_some() {
        // A lane may meet in its next epoch what another meets later.
        for lane in &all {
            let both = rows_with_tokens(&finite.lanes[lane]).min(whole.lanes[lane].len());
            prop_assert_eq!(&finite.lanes[lane][..both], &whole.lanes[lane][..both], "lane {}", lane);
        }
        return Ok(());
    }
    if let Some(error) = whole.error {
        let is_expected =
            ["no valid document", "max_error_rate="].iter().any(|reason| error.contains(reason));
        prop_assert!(is_expected, "{}", error);
        return Ok(());
    }
    for lane in &all {
        let last = rows_with_tokens(&finite.lanes[lane]);
        prop_assert!(whole.lanes[lane].len() >= last);
        prop_assert_eq!(&finite.lanes[lane][..last], &whole.lanes[lane][..last], "lane {}", lane);
    }
    let at = run.stop.index(whole.states.len());
    let rest = play(case.engine, &endless, host, Some(whole.states[at].clone()), elements - at);
    prop_assert_eq!(&rest.states[..], &whole.states[at..]);
    for lane in &all {
        let given = &whole.lanes[lane];
        prop_assert_eq!(
            &rest.lanes[lane][..],
            &given[given.len() - rest.lanes[lane].len()..],
            "lane {}",
            lane
        );
    }
    Ok(())
}

/// So many cases as a debug build plays in some seconds, or as `PROPTEST_CASES` says.
fn settings(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "proptest-regressions/stream.txt",
        ))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(settings(2000))]

    #[test]
    fn one_stream(case in case(), runs in prop::collection::vec(other_run(), 2)) {
        check(&case, &runs)?;
    }
}

proptest! {
    // Fewer: workers that read ahead go through the small shards of a case very often.
    #![proptest_config(settings(300))]

    #[test]
    fn endless_streams_begin_like_finite_ones(case in case(), run in other_run()) {
        check_endless(&case, &run)?;
    }
}
