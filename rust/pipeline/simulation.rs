//! The schedule on machines of any size: the real [`Schedule`], with workers and lanes that only let time pass.
//!
//! Each event is the end of a worker's work: of reading a block, of encoding it, of packing. Costs are those measured on
//! one thread of a server with web text and Llama 3.1's tokenizer. A unit stands for 64 ids. The consumer takes a batch as
//! soon as all lanes have written it and its own step has ended. `cargo test --lib simulation -- --nocapture` prints a
//! table.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::schedule::{Feed, Job, Packed, Schedule};
use crate::lane::block::SampleBlock;
use crate::lane::cursor::{Cursor, WINDOW_SIZES};
use crate::pack::Pause;
use crate::pack::queue::Supply;
use crate::random::hash;

/// Ids of a unit.
const UNIT: u64 = 64;
/// Nanoseconds for each unit.
const READ: u64 = 10 * UNIT;
const ENCODE: u64 = 20 * UNIT;
const PACK: u64 = 3 * UNIT;
/// Units of a block of 512 KiB and of a document, on average.
const BLOCK: u64 = 120_000 / UNIT;
const DOCUMENT: u64 = 1_000 / UNIT;
/// Blocks of a lane until they have this size, from a sixteenth on.
const SMALL_BLOCKS: u64 = 4;
/// Bytes of text of a unit.
const BYTES: u64 = 4 * UNIT;
/// Batches of a simulation.
const BATCHES: u64 = 300;

/// The machine that is simulated.
#[derive(Clone, Copy)]
struct Machine {
    threads: usize,
    lanes: usize,
    /// Sources, which have equally many rows.
    sources: usize,
    /// Documents of a window.
    window: Option<u64>,
    prefetch: u64,
    /// Rows that a lane has in a batch, and units of a row.
    rows: u64,
    row: u64,
    /// Nanoseconds to encode a unit.
    encode: u64,
    /// Nanoseconds that the consumer needs for a batch.
    consumer: u64,
}

/// The result of a simulation.
#[derive(Debug)]
struct Outcome {
    /// Cores in use, on average, from the first batch on.
    cores: f64,
    /// Nanoseconds until the first batch.
    first: u64,
    /// The longest wait for a batch after the first five.
    longest_wait: u64,
    /// The most units that a lane held.
    most_held: u64,
    /// Nanoseconds until the last batch.
    total: u64,
}

#[derive(Default)]
struct Lane {
    step: u64,
    /// Rows of the step that are written, and units of the row after them.
    rows: u64,
    written: u64,
    feeds: Vec<SourceOfLane>,
}

#[derive(Clone, Default)]
struct SourceOfLane {
    /// Units of the window, or without windows of the block, and those of them that can be written.
    window: u64,
    ready: u64,
    /// Windows before it.
    windows: u64,
    /// Documents that form no whole window yet, and their units.
    documents: u64,
    gathered: u64,
    /// Blocks that were read, and units of those that are not packed.
    blocks: u64,
    ahead: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Read { lane: usize, source: usize },
    Encoded { lane: usize, source: usize, number: u64, units: u64 },
    Packed { lane: usize, starved: Option<usize> },
    Taken,
}

struct Simulation {
    machine: Machine,
    schedule: Schedule,
    lanes: Vec<Lane>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    now: u64,
    number: u64,
    working: usize,
    taken: u64,
    /// When the consumer wants its next batch.
    wanted: u64,
    waits: Vec<u64>,
    busy: u64,
    most_held: u64,
}

impl Simulation {
    fn run(machine: Machine) -> Outcome {
        let steps = (0..machine.lanes).map(|_| 0);
        let mut simulation = Self {
            machine,
            schedule: Schedule::new(steps, machine.sources, machine.prefetch, machine.threads),
            lanes: (0..machine.lanes)
                .map(|_| Lane { feeds: vec![SourceOfLane::default(); machine.sources], ..Lane::default() })
                .collect(),
            events: BinaryHeap::new(),
            now: 0,
            number: 0,
            working: 0,
            taken: 0,
            wanted: 0,
            waits: Vec::new(),
            busy: 0,
            most_held: 0,
        };
        let (mut first, mut busy_at_first) = (0, 0);
        simulation.employ();
        while simulation.taken < BATCHES {
            let Some(Reverse((time, _, event))) = simulation.events.pop() else { panic!("nobody works") };
            simulation.busy += (time - simulation.now) * simulation.working as u64;
            simulation.now = time;
            simulation.happen(event);
            if simulation.taken > 0 && first == 0 {
                (first, busy_at_first) = (time, simulation.busy);
            }
            simulation.employ();
        }
        Outcome {
            cores: (simulation.busy - busy_at_first) as f64 / (simulation.now - first) as f64,
            first,
            longest_wait: simulation.waits.iter().skip(5).copied().max().unwrap_or(0),
            most_held: simulation.most_held,
            total: simulation.now,
        }
    }

    fn after(&mut self, nanos: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((self.now + nanos, self.number, event)));
    }

    /// Idle workers take work.
    fn employ(&mut self) {
        while self.working < self.machine.threads {
            let Some(job) = self.schedule.take() else { return };
            self.working += 1;
            match job {
                Job::ReadAndEncode { feed: Feed { lane, source } } => {
                    self.after(self.block_of(lane, source) * READ, Event::Read { lane, source });
                }
                Job::Pack { lane, block } => {
                    let block = block.map(|(source, block)| (source, block.ids.len() as u64));
                    self.pack(lane, block);
                }
                Job::Decode { .. } => unreachable!(),
            }
        }
    }

    /// Units of the next block: half of the average to half more, as records differ.
    fn block_of(&self, lane: usize, source: usize) -> u64 {
        let blocks = self.lanes[lane].feeds[source].blocks;
        let average = BLOCK >> SMALL_BLOCKS.saturating_sub(blocks);
        average / 2 + hash([lane as u64, source as u64, blocks]) % (average + 1)
    }

    fn pack(&mut self, number: usize, block: Option<(usize, u64)>) {
        let Machine { window, rows, row, sources, prefetch, .. } = self.machine;
        let Lane { step, rows: row_of_step, written, feeds } = &mut self.lanes[number];
        if let Some((source, units)) = block {
            let feed = &mut feeds[source];
            feed.ahead -= units;
            feed.documents += units / document_of(number);
            feed.gathered += units;
        }
        let (mut cost, mut starved) = (1, None);
        while *step < self.taken + prefetch {
            let source = *row_of_step as usize % sources;
            let feed = &mut feeds[source];
            if feed.ready == 0 {
                let SourceOfLane { documents, gathered, .. } = *feed;
                let bytes = cursor_before(feed.windows).window_bytes() as u64;
                let whole = window
                    .map_or(documents, |window| window.min(bytes.div_ceil(BYTES * document_of(number))));
                if documents < whole || gathered == 0 {
                    (feed.window, starved) = (0, Some(source));
                    break;
                }
                feed.windows += 1;
                feed.window = gathered * whole / documents;
                feed.ready = feed.window;
                (feed.documents, feed.gathered) = (documents - whole, gathered - feed.window);
            }
            let more = feed.ready.min(row - *written);
            feed.ready -= more;
            *written += more;
            cost += more * PACK;
            if *written == row {
                (*row_of_step, *written) = (*row_of_step + 1, 0);
            }
            if *row_of_step == rows {
                (*step, *row_of_step) = (*step + 1, 0);
            }
        }
        self.after(cost, Event::Packed { lane: number, starved });
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Read { lane, source } => {
                let units = self.block_of(lane, source);
                let feed = &mut self.lanes[lane].feeds[source];
                feed.blocks += 1;
                feed.ahead += units;
                let bytes = (units * BYTES) as usize;
                let number = self.schedule.block_read(Feed { lane, source }, bytes, false);
                let event = Event::Encoded { lane, source, number, units };
                self.after(units * self.machine.encode, event);
            }
            Event::Encoded { lane, source, number, units } => {
                let mut block = SampleBlock::default();
                block.ids.resize(units as usize, 0);
                self.schedule.block_encoded(Feed { lane, source }, number, block);
                self.working -= 1;
            }
            Event::Packed { lane, starved } => {
                let Lane { step, feeds, .. } = &self.lanes[lane];
                let windowed = self.machine.window.is_some();
                let supply = |feed: &SourceOfLane| {
                    let SourceOfLane { window, ready, gathered, windows, .. } = *feed;
                    let grows = windowed && cursor_before(windows.saturating_sub(1)).window_grows();
                    let next = (1 + u64::from(grows)) * window;
                    Supply { next: next as usize, left: ready as usize, gathered: gathered as usize }
                };
                let supplies = feeds.iter().map(supply).collect();
                let held = feeds.iter().map(|feed| feed.ready + feed.gathered + feed.ahead).sum();
                let (step, pause) = (*step, starved.map_or(Pause::NoRoom, Pause::Starved));
                self.schedule.lane_packed(lane, Packed { pause, step, pixels: Vec::new(), supplies });
                self.working -= 1;
                self.most_held = self.most_held.max(held);
            }
            Event::Taken => {}
        }
        while self.now >= self.wanted && self.lanes.iter().all(|lane| lane.step > self.taken) {
            self.waits.push(self.now - self.wanted);
            self.taken += 1;
            self.schedule.slot_taken(self.taken + self.machine.prefetch);
            self.wanted = self.now + self.machine.consumer;
            self.after(self.machine.consumer, Event::Taken);
            if self.machine.consumer > 0 {
                break;
            }
        }
    }
}

/// The cursor of a source of which so many windows were delivered.
fn cursor_before(windows: u64) -> Cursor {
    Cursor { window_size: WINDOW_SIZES.min(windows + 1), ..Cursor::default() }
}

/// Units of a document of a lane, on average: shards differ.
fn document_of(lane: usize) -> u64 {
    DOCUMENT / 2 + hash([lane as u64]) % (DOCUMENT * 3 / 2)
}

/// A batch of 512 rows of 1,024 ids, in 32 lanes, on 16 cores.
const MEASURED: Machine = Machine {
    threads: 16,
    lanes: 32,
    sources: 1,
    window: None,
    prefetch: 4,
    rows: 16,
    row: 1024 / UNIT,
    encode: ENCODE,
    consumer: 0,
};
const SHUFFLED: Machine = Machine { window: Some(1024), ..MEASURED };

/// Machines with windows, and the cores in use that were measured on one with 16 of them, where each lane gathered its
/// window only once it had delivered the one before.
const MACHINES: [(&str, Machine, &str); 14] = [
    ("no seed", MEASURED, "14.9"),
    ("shuffle_window 16", Machine { window: Some(16), ..MEASURED }, "14.3"),
    ("shuffle_window 64", Machine { window: Some(64), ..MEASURED }, "12.2"),
    ("shuffle_window 256", Machine { window: Some(256), ..MEASURED }, "8.2"),
    ("shuffle_window 1024", SHUFFLED, "8.3"),
    ("16 lanes", Machine { lanes: 16, rows: 32, ..SHUFFLED }, "7.3"),
    ("8 lanes", Machine { lanes: 8, rows: 64, ..SHUFFLED }, "6.2"),
    ("prefetch 32", Machine { prefetch: 32, ..SHUFFLED }, "16.0"),
    ("128 x 4,096", Machine { rows: 4, row: 4096 / UNIT, ..SHUFFLED }, "7.6"),
    ("two sources", Machine { sources: 2, ..SHUFFLED }, ""),
    ("five sources", Machine { sources: 5, ..SHUFFLED }, ""),
    ("conversations", Machine { encode: 3 * ENCODE, ..SHUFFLED }, ""),
    ("64 threads, 128 lanes", Machine { threads: 64, lanes: 128, ..SHUFFLED }, ""),
    ("192 threads, 512 lanes", Machine { threads: 192, lanes: 512, rows: 4, ..SHUFFLED }, ""),
];

#[test]
fn windows_leave_no_core_idle_and_no_consumer_waiting() {
    println!(
        "{:24} {:>8} {:>12} {:>16} {:>14} {:>14} {:>12}",
        "", "cores", "measured", "first batch", "no windows", "longest wait", "lane holds"
    );
    for (name, machine, measured) in MACHINES {
        let free = Simulation::run(machine);
        let plain = Simulation::run(Machine { window: None, ..machine });
        // A consumer at half of the speed.
        let consumer = 2 * free.total / BATCHES;
        let calm = Simulation::run(Machine { consumer, ..machine });
        println!(
            "{name:24} {:8.1} {measured:>12} {:13.1} ms {:11.1} ms {:11.1} ms {:8.2} M ids",
            free.cores,
            free.first as f64 / 1e6,
            plain.first as f64 / 1e6,
            calm.longest_wait as f64 / 1e6,
            (free.most_held * UNIT) as f64 / 1e6
        );
        assert!(free.cores > 0.9 * machine.threads as f64, "{name}: {free:?}");
        assert!(free.first <= 4 * plain.first, "{name}: {free:?}, {plain:?}");
        assert!(calm.longest_wait < 10_000_000, "{name}: {calm:?}");
    }
}
