//! The treatment of damage in a lane: the same whatever the policy and wherever it is resumed.

use std::io::Write as _;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::tests::{Folder, NO_LIMIT, Trace, all, folder_of, line, lines, run, texts};
use crate::lane::assignment::Plan;
use crate::lane::cursor::Cursor;
use crate::spec::{OnError, Packing, Shuffle};

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// A damaged shard between two valid ones.
fn around(damaged: &[u8]) -> Folder {
    let shards = [gzip(&lines(&["first", "second"])), damaged.to_vec(), gzip(&lines(&["last"]))];
    folder_of(shards.into_iter().enumerate().map(|(number, bytes)| (format!("{number}.json.gz"), bytes)))
}

/// Every truncation, and a flip of each byte: the error is at the same record and byte under both policies, and from
/// every position that a state can name.
#[test]
fn damage_has_the_same_position_under_both_policies_and_after_restores() {
    let whole =
        [gzip(&[line("a"), line("bb")].concat()), gzip(&[line("c"), "{}\n".into(), line("dd")].concat())];
    let whole = whole.concat();
    let cuts = (0..whole.len()).map(|length| whole[..length].to_vec());
    let flips = (0..whole.len()).map(|at| {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x15;
        flipped
    });
    for (case, damaged) in cuts.chain(flips).enumerate() {
        for shuffled in [false, true] {
            let mut folder = around(&damaged);
            folder.spec.shuffle = shuffled.then_some(Shuffle { seed: 1, window: 2 });
            let spec = Arc::new(folder.spec);
            let kept = run(&spec, Cursor::default(), 1, NO_LIMIT, NO_LIMIT);
            assert_eq!(kept.error, None, "case {case}");
            assert_counts(&kept);
            for stop in 0..kept.delivered.len() {
                let from = &kept.delivered[stop];
                let rest = run(&spec, from.before, 64, NO_LIMIT, NO_LIMIT);
                assert_eq!(rest.end, kept.end, "case {case}, restored at {stop}");
                assert_eq!(rest.quarantined, kept.quarantined[from.quarantined..]);
                assert!(
                    rest.delivered
                        .iter()
                        .zip(&kept.delivered[stop..])
                        .all(|(now, then)| now.tokens == then.tokens)
                );
            }
            // The other policy stops at the first of these entries.
            let mut strict = around(&damaged);
            strict.spec.shuffle = spec.shuffle;
            strict.spec.on_error = OnError::Raise;
            let prefix = spec.shards[0].path.rsplit_once('/').unwrap().0.to_owned();
            let strict_prefix = strict.spec.shards[0].path.rsplit_once('/').unwrap().0.to_owned();
            let raised = all(strict.spec).error.map(|error| error.replace(&strict_prefix, &prefix));
            let expected = kept.quarantined.first().map(ToString::to_string);
            // The error of the strict policy ends with advice.
            let reason = raised.as_deref().and_then(|error| Some(error.rsplit_once("; set on_error=")?.0));
            assert_eq!(reason, expected.as_deref(), "case {case}");
        }
    }
}

fn assert_counts(trace: &Trace) {
    let totals = trace.end.totals;
    assert_eq!(totals.records, totals.documents + totals.quarantined);
    assert_eq!(totals.quarantined, trace.quarantined.len() as u64);
    // Entries that are not damage to the shard are bad lines.
    let lost = trace.quarantined.iter().filter(|entry| entry.reason.contains("gzip")).count();
    assert_eq!(totals.lost_shards, lost as u64);
}

/// Truncated shards count as shards, not as the one record that they are listed as.
#[test]
fn lost_shards_are_judged_apart_from_bad_records() {
    let sound = gzip(&lines(&["a", "b", "c"]));
    let cut = &sound[..sound.len() - 8];
    let lost = |shards: &[usize], rate, epochs| {
        let files = (0..20).map(|number| {
            let bytes = if shards.contains(&number) { cut.to_vec() } else { sound.clone() };
            (format!("{number:02}.json.gz"), bytes)
        });
        let mut folder = folder_of(files);
        folder.spec.on_error = OnError::Quarantine { max_error_rate: rate };
        folder.spec.epochs = Some(epochs);
        all(folder.spec)
    };
    // One of 20 is more than a hundredth, and yet tolerated: even as the first, and in each epoch.
    for shards in [&[0][..], &[7], &[19]] {
        let trace = lost(shards, 0.01, 3);
        assert_eq!((trace.error, trace.end.totals.lost_shards), (None, 3));
    }
    let trace = lost(&[3, 15], 0.01, 1);
    let error = trace.error.unwrap();
    assert!(
        error.contains("15.json.gz: record")
            && error.contains(
                "2 shards of lane 0 could not be read to the end in 1 epoch of 20 shards in 1 lane: "
            )
            && error.contains(": expected at most 1 with max_error_rate=0.01; the last one: "),
        "{error}"
    );
    // At a tenth two of 20 are tolerated, and a third is not; at a rate of 0 none is.
    assert_eq!(lost(&[3, 15], 0.1, 2).error, None);
    assert!(lost(&[3, 15, 16], 0.1, 1).error.is_some());
    let error = lost(&[3], 0.0, 1).error.unwrap();
    assert!(
        error.contains("1 shard of lane 0 could not be read to the end in 1 epoch of 20 shards in 1 lane: "),
        "{error}"
    );
    assert!(error.contains(": expected at most 0 with max_error_rate=0; the last one: "), "{error}");
}

/// The verdict may come at the shard's end, or after blank lines, and at a rate of 0 it comes at once: the error names the
/// last bad line all the same.
#[test]
fn too_many_bad_records_are_reported_at_the_last_one() {
    let few = [lines(&["a", "b"]), "\n{}\n".into(), lines(&["c", "d"])].concat();
    let many = [lines(&["a"; 99]), "\n\n{}\n".into(), lines(&["c", "d"])].concat();
    for (shard, max_error_rate, record, counts) in [
        (&few, 0.001, 3, "1 of the 5 records"),
        (&many, 0.001, 101, "1 of the 100 records"),
        (&few, 0.0, 3, "1 of the 3 records"),
    ] {
        let mut folder = folder_of([("a.jsonl".to_owned(), shard.clone())].into_iter());
        folder.spec.on_error = OnError::Quarantine { max_error_rate };
        let error = all(folder.spec).error.unwrap();
        let (place, reason) = error.split_once("a.jsonl: record ").unwrap().1.split_once(", byte ").unwrap();
        assert_eq!(place, record.to_string(), "{error}");
        assert!(reason.contains(counts) && reason.contains("; the last one: "), "{error}");
    }
}

/// A lane's shards vary in number from epoch to epoch; how many it may lose does not depend on which comes first.
#[test]
fn lost_shards_are_judged_alike_in_every_epoch() {
    // One lane gets the large shard, the other the ten small ones, of which two are damaged like the large one.
    let small = gzip(&lines(&["a", "b", "c"]));
    let large = gzip(&(0..2000).map(|number| line(&format!("{number:x}"))).collect::<String>());
    let files = || {
        let small = (0..10).map(|number| {
            let cut = if number < 2 { 8 } else { 0 };
            (format!("{number}.json.gz"), small[..small.len() - cut].to_vec())
        });
        small.chain([("large.json.gz".to_owned(), large[..large.len() - 8].to_vec())])
    };
    let mut verdicts = Vec::new();
    for seed in 0..16 {
        let mut folder = folder_of(files());
        let sizes = folder.spec.shards.iter().map(|shard| shard.size).collect();
        folder.spec.plan = Plan::new(sizes, 2, Some(seed));
        folder.spec.on_error = OnError::Quarantine { max_error_rate: 0.2 };
        folder.spec.epochs = Some(2);
        let shares = [0, 1].map(|epoch| folder.spec.plan.epoch(epoch)[0].len());
        if shares[0] != shares[1] {
            verdicts.push((shares, all(folder.spec).error.is_some()));
        }
    }
    assert!(
        verdicts.iter().any(|(shares, _)| shares[0] == 1)
            && verdicts.iter().any(|(shares, _)| shares[0] == 10)
    );
    assert!(verdicts.iter().all(|(_, stopped)| *stopped == verdicts[0].1), "{verdicts:?}");
}

/// Also that a lane loses all of its shards, of which it has more than the average.
#[test]
fn rate_of_one_tolerates_everything() {
    let cut = |texts: &[&str]| {
        let whole = gzip(&lines(texts));
        whole[..whole.len() - 8].to_vec()
    };
    let files = (0..5).map(|number| (format!("{number}.json.gz"), cut(&["a"])));
    let large: Vec<String> = (0..500).map(|number| format!("{number:x}")).collect();
    let large = cut(&large.iter().map(String::as_str).collect::<Vec<_>>());
    let mut folder = folder_of(files.chain([("large.json.gz".to_owned(), large)]));
    let sizes: Vec<u64> = folder.spec.shards.iter().map(|shard| shard.size).collect();
    let mut plans = (0..).map(|seed| Plan::new(sizes.clone(), 2, Some(seed)));
    folder.spec.plan = plans.find(|plan| plan.epoch(0)[0].len() == 5).unwrap();
    let trace = all(folder.spec);
    assert_eq!((trace.error, trace.end.totals.lost_shards), (None, 5));
}

/// Any number of consecutive bad lines is counted, in bounded memory: only the newest are kept in detail.
#[test]
fn many_bad_records_are_counted_and_the_newest_kept() {
    for packing in [Packing::Concat, Packing::BestFit { window: 4 }] {
        let shard = [line("a"), "{}\n".repeat(50_000), line("b"), "{}\n".repeat(3)].concat();
        let mut folder = folder_of([("a.jsonl".to_owned(), shard)].into_iter());
        folder.spec.rows.packing = packing;
        let trace = all(folder.spec);
        assert_eq!(texts(&trace), ["a", "b"]);
        assert_eq!((trace.end.totals.records, trace.end.totals.quarantined), (50_005, 50_003));
        let records: Vec<u64> = trace.quarantined.iter().filter_map(|entry| entry.record).collect();
        assert!(records.len() <= 1003, "{}", records.len());
        assert_eq!(records[records.len() - 3..], [50_002, 50_003, 50_004]);
    }
}
