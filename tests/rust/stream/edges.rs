//! Cases that random streams show seldom, or all runs of one alike: where exactly an error comes, and what is counted
//! by then.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use _core::encode::Engine;
use _core::format::{Projection, ReadOptions};
use _core::lane::assignment::Plan;
use _core::lane::cursor::Cursor;
use _core::pipeline::{Delivery, Pipeline};
use _core::prepare::Prepare;
use _core::prepare::values::SourceFields;
use _core::spec::sidecars::Sidecars;
use _core::spec::{
    HostSpec, Layout, OnError, Packing, RowSpec, Shuffle, SourceSpec, Truncation, UntrainedRows,
};
use _core::store::{Access, Shard};
use tempfile::tempdir;

use crate::cases::encoder;

fn line(words: &str) -> String {
    format!("{{\"text\": \"{words}\"}}\n")
}

/// A stream of rows of two tokens, one lane for each shard.
fn pipeline(
    folder: &Path,
    shards: &[String],
    change: impl FnOnce(&mut SourceSpec, &mut HostSpec),
) -> Pipeline {
    let shards: Vec<Shard> = (0..)
        .zip(shards)
        .map(|(number, lines)| {
            let path = folder.join(format!("{number}.jsonl"));
            fs::write(&path, lines).unwrap();
            Shard::whole(path.to_str().unwrap(), lines.len() as u64)
        })
        .collect();
    let lanes = shards.len();
    let read = ReadOptions {
        access: Access::default(),
        projection: Projection::text("text"),
        keep: None,
        max_document_bytes: 1 << 20,
        ids: None,
    };
    let mut spec = SourceSpec {
        name: String::new(),
        number: 0,
        first_piece: 0,
        log_name: String::new(),
        plan: Plan::new(shards.iter().map(|shard| shard.size).collect(), lanes, None),
        shards,
        read: Arc::new(read),
        sidecars: Sidecars::default(),
        drop: Arc::default(),
        prepare: Prepare::Text,
        fields: SourceFields::default(),
        on_error: OnError::Quarantine { max_error_rate: 1.0 },
        shuffle: None,
        adds_at: None,
        epochs: Some(1),
        bos: None,
        eos: None,
        untrained_rows: UntrainedRows::Deliver,
        balance: None,
        rows: RowSpec {
            sequence_length: 2,
            packing: Packing::Concat,
            truncation: Truncation::Split,
            max_segments: None,
            layout: Layout::MaxText,
            segment_multiple: 1,
            boundary_targets: false,
            rows_per_lane: 1,
        },
    };
    let mut host = HostSpec {
        lanes: (0..lanes).collect(),
        threads: 1,
        prefetch: 2,
        verify: 0.0,
        single_rows: false,
        quarantine_file: None,
        provenance: 0,
        provenance_width: 4,
        names_sources: false,
        attention_mask: true,
    };
    change(&mut spec, &mut host);
    Pipeline::new(spec, host, encoder(Engine::Reference).clone())
}

/// Whether there was another element, or the error.
fn next(pipeline: &mut Pipeline) -> Result<bool, String> {
    loop {
        match pipeline.next(Duration::from_secs(1)) {
            Ok(Delivery::Pending) => {}
            Ok(Delivery::Batch(_)) => return Ok(true),
            Ok(Delivery::End) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[test]
fn a_place_inside_the_first_document_of_another_window_is_refused() {
    let folder = tempdir().unwrap();
    let shards = [line("w3 w4 w5") + &line("w6 w7 w8")];
    let mut pipeline = pipeline(folder.path(), &shards, |spec, _| {
        spec.shuffle = Some(Shuffle { seed: 1, window: 2 });
    });
    next(&mut pipeline).unwrap();
    let mut state = pipeline.taken().clone();
    assert_eq!((state.cursors[0].delivered, state.cursors[0].offset), (0, 2));
    state.cursors[0].window_hash += 1;
    pipeline.restore(state).unwrap();
    assert!(next(&mut pipeline).unwrap_err().contains("is inside the window of documents"));
}

#[test]
fn text_without_tokens_is_counted_in_windows_too() {
    let folder = tempdir().unwrap();
    let mut pipeline = pipeline(folder.path(), &[line("  ") + &line("w3")], |spec, _| {
        spec.rows.packing = Packing::BestFit { window: 4 };
    });
    while next(&mut pipeline).unwrap() {}
    let totals = pipeline.stats(pipeline.taken()).totals;
    assert_eq!((totals.documents, totals.text_bytes), (2, 4));
}

#[test]
fn step_before_a_failing_document_counts_quarantined_records_between() {
    let folder = tempdir().unwrap();
    let shards = [line("w3 w4") + "{}\n" + &line("unknown")];
    let mut pipeline = pipeline(folder.path(), &shards, |_, _| ());
    assert!(next(&mut pipeline).unwrap());
    let Cursor { window, totals, .. } = pipeline.taken().cursors[0];
    assert_eq!((window.record, totals.quarantined, totals.records), (2, 1, 2));
    assert!(next(&mut pipeline).unwrap_err().contains("record 2"));
}

#[test]
fn rows_of_the_lanes_before_one_that_fails_are_given() {
    let folder = tempdir().unwrap();
    // The larger shard is lane 0's.
    let shards = [line("w3 w4 w5 w6"), line("unknown")];
    let mut pipeline = pipeline(folder.path(), &shards, |_, host| host.single_rows = true);
    assert!(next(&mut pipeline).unwrap());
    assert!(next(&mut pipeline).unwrap_err().contains("1.jsonl: record 0"));
}

#[test]
fn a_row_whose_last_target_is_of_a_document_that_fails_is_not_given() {
    let folder = tempdir().unwrap();
    let shards = [line("w3 w4") + &line("unknown")];
    let mut pipeline = pipeline(folder.path(), &shards, |spec, _| spec.rows.boundary_targets = true);
    assert!(next(&mut pipeline).unwrap_err().contains("record 1"));
}
