//! The queue of jobs: the schedule behind its lock, and the condition variable on which workers wait.
//!
//! A worker that finds nothing to do sleeps. It is woken by any thread that creates work: the consumer when it opens a
//! step, a worker that has read a block and leaves the next one to others, and a worker that takes work while there is
//! more. Each wakes one worker, which wakes the next.

use std::sync::PoisonError;

use super::schedule::{Feed, Job, Schedule};
use crate::error::Error;
use crate::lane::block::SampleBlock;
use crate::pack::Pause;
use crate::pack::pixels::PixelTask;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// The workers' shared list of work.
pub struct JobQueue {
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    schedule: Schedule,
    /// Workers that wait for work.
    idle: usize,
    /// All workers must stop.
    closed: bool,
    /// A worker's panic, reported to the consumer.
    bug: Option<Error>,
}

impl JobQueue {
    /// The work that `schedule` allows.
    pub fn new(schedule: Schedule) -> Self {
        let state = State { schedule, idle: 0, closed: false, bug: None };
        Self { state: Mutex::new(state), work: Condvar::new() }
    }

    /// The most urgent work; waits if there is none. `None`: all workers must stop.
    pub fn take(&self) -> Option<Job> {
        let mut state = self.lock();
        while !state.closed {
            if let Some(job) = state.schedule.take() {
                self.wake_another(&state);
                return Some(job);
            }
            state.idle += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
        None
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

    /// `lane` was packed up to `step`, of which some pixels are to be written, by a worker that then takes work again.
    pub fn lane_packed(&self, lane: usize, pause: Pause, step: u64, pixels: Vec<PixelTask>) {
        self.lock().schedule.lane_packed(lane, pause, step, pixels);
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
    }

    /// A worker panicked: all must stop.
    pub fn fail(&self, bug: Error) {
        let mut state = self.lock();
        state.bug.get_or_insert(bug);
        state.closed = true;
        drop(state);
        self.work.notify_all();
    }

    /// A worker's panic, if there was one.
    pub fn bug(&self) -> Option<Error> {
        self.lock().bug.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_another(&self, state: &State) {
        if state.idle > 0 && state.schedule.has_work() {
            self.work.notify_one();
        }
    }
}

#[cfg(all(test, feature = "loom"))]
mod model;
