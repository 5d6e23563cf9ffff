//! The queue of jobs: the schedule behind its lock, and the condition variable on which workers wait.
//!
//! A worker that finds nothing to do sleeps. It is woken by any thread that creates work: the consumer when it opens a
//! step, a worker that has read a block and leaves the next one to others, and a worker that takes work while there is
//! more. Each wakes one worker, which wakes the next.
//!
//! Where shards are on the network there are more workers than may work at once. One that must wait for bytes lets another
//! work in its place, and continues as soon as one of those is done: so no core waits for the network, and the cores in
//! use are still as many as the threads that were asked for.

use std::sync::PoisonError;

use super::schedule::{Feed, Job, Packed, Schedule};
use crate::error::Error;
use crate::lane::block::SampleBlock;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The workers' shared list of work.
pub struct JobQueue {
    state: Mutex<State>,
    work: Condvar,
    /// Where those sleep that have waited for the network.
    turn: Condvar,
    /// Workers that may work at once.
    limit: usize,
}

struct State {
    schedule: Schedule,
    /// Workers that work.
    working: usize,
    /// Workers that have waited for the network, and continue before others begin.
    returning: usize,
    /// Workers that wait for work.
    idle: usize,
    /// All workers must stop.
    closed: bool,
    /// A worker's panic, reported to the consumer.
    bug: Option<Error>,
}

impl JobQueue {
    /// The work that `schedule` allows, for `limit` workers at once.
    pub fn new(schedule: Schedule, limit: usize) -> Self {
        let state = State { schedule, working: 0, returning: 0, idle: 0, closed: false, bug: None };
        Self { state: Mutex::new(state), work: Condvar::new(), turn: Condvar::new(), limit }
    }

    /// The most urgent work; waits if there is none. `None`: all workers must stop. A worker says when it has done its
    /// job: see [`job_done`](Self::job_done).
    pub fn take(&self) -> Option<Job> {
        let mut state = self.lock();
        while !state.closed {
            if self.has_room(&state)
                && let Some(job) = state.schedule.take()
            {
                state.working += 1;
                self.wake_another(&state);
                return Some(job);
            }
            state.idle += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
        None
    }

    /// A worker has done its job, and takes work again.
    pub fn job_done(&self) {
        drop(self.leave(self.lock()));
    }

    /// A worker must wait for the network: another may work in its place.
    pub fn begin_wait(&self) {
        let state = self.leave(self.lock());
        self.wake_another(&state);
    }

    /// A worker has waited for the network; waits for its turn.
    pub fn end_wait(&self) {
        let mut state = self.lock();
        while state.working >= self.limit && !state.closed {
            state.returning += 1;
            state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.returning -= 1;
        }
        state.working += 1;
    }

    fn leave<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.working -= 1;
        if state.returning > 0 {
            self.turn.notify_one();
        }
        state
    }

    fn has_room(&self, state: &State) -> bool {
        state.working + state.returning < self.limit
    }

    /// A block of a lane with `bytes` of text was read: others may read the next one. Returns its number, for
    /// [`block_encoded`](Self::block_encoded).
    pub fn block_read(&self, feed: Feed, bytes: usize, read_all: bool) -> u64 {
        let mut state = self.lock();
        let number = state.schedule.block_read(feed, bytes, read_all);
        self.wake_another(&state);
        number
    }

    /// A block of a lane was encoded, by a worker that then takes work again.
    pub fn block_encoded(&self, feed: Feed, number: u64, block: SampleBlock) {
        self.lock().schedule.block_encoded(feed, number, block);
    }

    /// A lane was packed, by a worker that then takes work again.
    pub fn lane_packed(&self, lane: usize, packed: Packed) {
        self.lock().schedule.lane_packed(lane, packed);
    }

    /// Some pixels of a lane's step were written, by a worker that then takes work again.
    pub fn pixels_written(&self, lane: usize) {
        self.lock().schedule.pixels_written(lane);
    }

    /// The consumer took a slot: lanes may write steps below `open_until`.
    pub fn slot_taken(&self, open_until: u64) {
        self.lock().schedule.slot_taken(open_until);
        self.work.notify_one();
    }

    /// All workers must stop.
    pub fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
        self.turn.notify_all();
    }

    /// A worker panicked: all must stop.
    pub fn fail(&self, bug: Error) {
        let mut state = self.lock();
        state.bug.get_or_insert(bug);
        state.closed = true;
        drop(state);
        self.work.notify_all();
        self.turn.notify_all();
    }

    /// A worker's panic, if there was one.
    pub fn bug(&self) -> Option<Error> {
        self.lock().bug.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_another(&self, state: &State) {
        if state.idle > 0 && self.has_room(state) && state.schedule.has_work() {
            self.work.notify_one();
        }
    }
}

#[cfg(all(test, feature = "loom"))]
mod model;
