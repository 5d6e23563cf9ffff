//! A small ring under all interleavings that loom reaches with few preemptions: `make loom`.
//!
//! Loom's cells fail on any unordered access, its condition variable has no timeout, so that a lost wake-up is a
//! deadlock, and the values show whether a lane wrote into a buffer that had been delivered.

// A helper that fails is a test that fails.
#![allow(clippy::unwrap_used)]

use loom::thread;

use super::*;
use crate::batch::buffers::Pool;

const ROWS: usize = 2;
const FOREVER: Duration = Duration::MAX;

/// The gate stands in for the schedule's treatment of lanes: they sleep until the consumer has taken a slot.
struct Gate {
    open_until: Mutex<u64>,
    opened: Condvar,
}

fn gate(open_until: u64) -> Arc<Gate> {
    Arc::new(Gate { open_until: Mutex::new(open_until), opened: Condvar::new() })
}

fn value(step: u64, row: usize) -> i32 {
    (10 * step) as i32 + row as i32 + 1
}

fn run_lane(mut writer: LaneWriter<u64>, gate: &Gate, steps: u64) {
    while writer.step() < steps {
        let mut open_until = gate.open_until.lock().unwrap();
        while writer.step() >= *open_until {
            open_until = gate.opened.wait(open_until).unwrap();
        }
        drop(open_until);
        assert!(writer.has_room(), "the gate opens only after the slot");
        let step = writer.step();
        for row in 0..writer.rows() {
            writer.row(row).fields().next().unwrap().elements()[0] =
                value(step, writer.lane * writer.rows() + row);
        }
        writer.publish(step);
    }
}

fn take(consumer: &mut Consumer<u64>, gate: &Gate, fresh: Buffer) -> (Buffer, Vec<Option<u64>>) {
    while !consumer.wait(FOREVER) {}
    let taken = consumer.take(fresh).expect("it waited until the slot was full");
    *gate.open_until.lock().unwrap() += 1;
    gate.opened.notify_all();
    taken
}

fn check(buffer: &Buffer, step: u64) {
    for lane in 0..ROWS {
        // SAFETY: in bounds, and this thread owns the buffer: that is what is being checked.
        assert_eq!(unsafe { *buffer.as_ptr::<i32>().add(lane) }, value(step, lane));
    }
}

fn explore(slots: usize, lanes: usize, steps: u64, already_delivered: usize) {
    loom::model(move || {
        let pool = Pool::new(BatchSchema::of_one_element(ROWS), 4);
        let buffers = (0..slots).map(|_| pool.get().expect("memory")).collect();
        let (mut consumer, writers) = ring(pool.schema(), lanes, buffers, 0, already_delivered);
        let gate = gate(slots as u64);
        let threads: Vec<_> = writers
            .into_iter()
            .map(|writer| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || run_lane(writer, &gate, steps))
            })
            .collect();
        // All buffers are kept to the end except the first, which is reused.
        let mut kept: Vec<(u64, Buffer)> = Vec::new();
        for step in 0..steps {
            let fresh = if step == 1 && already_delivered == 0 {
                kept.remove(0).1
            } else {
                pool.get().expect("memory")
            };
            let (buffer, reports) = take(&mut consumer, &gate, fresh);
            let delivered = if step == 0 { already_delivered } else { 0 };
            assert!(reports[..delivered].iter().all(Option::is_none));
            assert!(reports[delivered..].iter().all(|report| *report == Some(step)));
            if delivered == 0 {
                check(&buffer, step);
                kept.push((step, buffer));
            }
            for (step, buffer) in &kept {
                check(buffer, *step);
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn loom_one_slot() {
    explore(1, 2, 2, 0);
}

#[test]
fn loom_two_slots() {
    explore(2, 2, 3, 0);
}

#[test]
fn loom_one_lane_reuses_slots() {
    explore(2, 1, 4, 0);
}

#[test]
fn loom_first_lane_skips_the_first_step() {
    explore(1, 2, 2, 1);
}
