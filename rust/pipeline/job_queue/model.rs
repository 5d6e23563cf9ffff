//! A few workers under all interleavings that loom reaches with few preemptions: `make loom`.
//!
//! Workers with the real queue, schedule and ring, on lanes whose blocks are one row each. A lost wake-up is a
//! deadlock: the consumer waits for the worker's row, or `close` for its thread.

// A helper that fails is a test that fails.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use loom::thread;

use super::*;
use crate::batch::buffers::Pool;
use crate::batch::ring::{Consumer, LaneWriter, ring};
use crate::batch::schema::BatchSchema;
use crate::pack::Pause;
use crate::sync::Arc;

struct Workers {
    jobs: JobQueue,
    lanes: Vec<Mutex<Lane>>,
    /// Bytes of text in a block.
    block_bytes: usize,
    /// Whether each block waits for the network.
    waits: bool,
}

struct Lane {
    writer: LaneWriter<u64>,
    /// Blocks that can still be read, and those that were packed and not yet written.
    unread: u64,
    rows: u64,
}

impl Workers {
    fn work(&self) {
        while let Some(job) = self.jobs.take() {
            match job {
                Job::ReadAndEncode { feed } => self.grind(feed),
                Job::Pack { lane, block } => self.pack(lane, block.is_some()),
                Job::Decode { .. } => unreachable!("no lane has images"),
            }
            self.jobs.job_done();
        }
    }

    fn grind(&self, feed: Feed) {
        if self.waits {
            self.jobs.begin_wait();
            self.jobs.end_wait();
        }
        let mut state = self.lanes[feed.lane].lock().unwrap();
        state.unread -= 1;
        let read_all = state.unread == 0;
        drop(state);
        let number = self.jobs.block_read(feed, self.block_bytes, read_all);
        self.jobs.block_encoded(feed, number, SampleBlock::default());
    }

    fn pack(&self, lane: usize, block: bool) {
        let mut state = self.lanes[lane].lock().unwrap();
        state.rows += u64::from(block);
        while state.rows > 0 && state.writer.has_room() {
            let step = state.writer.step();
            state.writer.row(0).fields().next().unwrap().elements()[0] = step as i32 + 1;
            state.writer.publish(step);
            state.rows -= 1;
        }
        let pause = if state.rows > 0 { Pause::NoRoom } else { Pause::Starved(0) };
        let step = state.writer.step();
        drop(state);
        self.jobs.lane_packed(lane, Packed { pause, step, pixels: Vec::new(), supplies: Vec::new() });
    }
}

fn take(consumer: &mut Consumer<u64>, step: u64, pool: &Pool, lanes: usize) {
    while !consumer.wait(Duration::MAX) {}
    let (buffer, reports) =
        consumer.take(pool.get().expect("memory")).expect("it waited until the slot was full");
    assert_eq!(reports, vec![Some(step); lanes]);
    for row in 0..lanes {
        // SAFETY: in bounds, and this thread owns the buffer.
        assert_eq!(unsafe { *buffer.as_ptr::<i32>().add(row) }, step as i32 + 1);
    }
}

/// Workers fill a ring of `slots`; the consumer takes `taken` of `steps` steps and closes.
fn explore(slots: u64, lanes: usize, workers: usize, steps: u64, taken: u64) {
    explore_blocks(slots, lanes, workers, steps, taken, 0);
}

fn explore_blocks(slots: u64, lanes: usize, workers: usize, steps: u64, taken: u64, block_bytes: usize) {
    explore_all(slots, lanes, [workers; 2], steps, taken, block_bytes);
}

/// Two workers, one at a time, whose blocks wait for the network.
fn explore_waits(lanes: usize, steps: u64, taken: u64) {
    explore_all(1, lanes, [2, 1], steps, taken, 0);
}

/// `workers`: how many there are, and how many may work at once.
fn explore_all(slots: u64, lanes: usize, workers: [usize; 2], steps: u64, taken: u64, block_bytes: usize) {
    let [workers, limit] = workers;
    loom::model(move || {
        let pool = Pool::new(BatchSchema::of_one_element(lanes), 4);
        let buffers = (0..slots).map(|_| pool.get().expect("memory")).collect();
        let (mut consumer, writers) = ring(pool.schema(), lanes, buffers, 0, 0);
        let lane = |writer| Mutex::new(Lane { writer, unread: steps, rows: 0 });
        let shared = Arc::new(Workers {
            jobs: JobQueue::new(Schedule::new(vec![0; lanes].into_iter(), 1, slots, 1), limit),
            lanes: writers.into_iter().map(lane).collect(),
            block_bytes,
            waits: limit < workers,
        });
        let start = |_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.work())
        };
        let threads: Vec<_> = (0..workers).map(start).collect();
        for step in 0..taken {
            take(&mut consumer, step, &pool, lanes);
            shared.jobs.slot_taken(consumer.open_until());
        }
        shared.jobs.close();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn loom_workers_fill_every_opened_slot() {
    explore(1, 1, 2, 2, 2);
}

#[test]
fn loom_blocks_too_large_to_read_ahead() {
    explore_blocks(1, 1, 2, 2, 2, 1 << 30);
}

#[test]
fn loom_lanes_share_workers() {
    explore(1, 2, 2, 1, 1);
}

#[test]
fn loom_two_lanes_two_steps() {
    explore(1, 2, 2, 2, 2);
}

#[test]
fn loom_closing_wakes_who_waits() {
    explore(1, 1, 2, 2, 1);
}

#[test]
fn loom_closing_at_once() {
    explore(1, 2, 2, 1, 0);
}

#[test]
fn loom_another_works_while_one_waits_for_the_network() {
    explore_waits(1, 2, 2);
}

#[test]
fn loom_two_lanes_wait_for_the_network() {
    explore_waits(2, 1, 1);
}

#[test]
fn loom_closing_wakes_who_waits_for_its_turn() {
    explore_waits(2, 1, 0);
}
