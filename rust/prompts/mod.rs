//! Prompts: all records of some shards rendered and encoded into an arena in memory, which is then read by index.
//!
//! ```text
//! shards ──> Input (one reader, shared by the workers) ──> chunks of raw records ──> Part ──> Arena, in order
//! ```
//!
//! Prompt sets have thousands to millions of records, usually in one file, and need a length, a true permutation and
//! random access, so they have no lanes. The workers take chunks of raw records in turn, and prepare and encode them in
//! parallel; the calling thread joins the results in the order of the records.

mod arena;
mod input;
pub mod order;
mod part;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::encode::Encoder;
use crate::error::{Error, Result, caught};
use crate::format::ReadOptions;
use crate::prepare::chat::Conversations;
use crate::store::Shard;

pub use arena::Arena;
use input::Input;
pub use input::count;
pub use part::{Left, Reason};
use part::{Part, Preparer};

/// How often the calling thread asks whether it is interrupted.
const LOOK_TIME: Duration = Duration::from_millis(20);

/// What is read, and what becomes of each record.
#[derive(Debug, Clone)]
pub struct PromptSpec {
    /// The shards, in the order in which they are read.
    pub shards: Vec<Shard>,
    /// The columns that are wanted, all of them if the records are kept; and the values of the prompts.
    pub read: Arc<ReadOptions>,
    /// The prompts of each record, at least one.
    pub prompts: Vec<Prompt>,
    /// Put before the ids of each prompt.
    pub bos: Option<u32>,
    /// Put after them.
    pub eos: Option<u32>,
    /// Records of which a prompt has more tokens are left out. None: none are.
    pub longest: Option<usize>,
    /// The indices of the records that are read, in order. None: all.
    pub selected: Option<Vec<u64>>,
    /// Whether the records themselves are kept, as JSON.
    pub keeps_records: bool,
    /// Whether the rendered texts are kept.
    pub keeps_texts: bool,
    /// Whether a bad record ends the reading.
    pub raises: bool,
    /// The most bytes that the arena may take.
    pub max_memory: u64,
    /// Worker threads.
    pub threads: usize,
}

/// What a prompt is made of.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// The string at the path with this index, and the name of its key.
    Text(usize, String),
    /// A conversation.
    Chat(Arc<Conversations>),
}

/// Reads, prepares and encodes all records. None if it was interrupted: `is_interrupted` is asked now and then on this
/// thread. No thread is left when it returns.
pub fn read(
    spec: &PromptSpec,
    encoder: &Encoder,
    mut is_interrupted: impl FnMut() -> bool,
) -> Result<Option<Arena>> {
    let stop = Arc::new(AtomicBool::new(false));
    let input = Input::new(spec, &stop);
    let long = Arc::new(Mutex::new(()));
    thread::scope(|scope| {
        // Dropped at the end, whatever happens: then the workers end.
        let _stopper = Stopper(&input);
        let (sender, receiver) = channel();
        for number in 0..spec.threads {
            let (sender, input, long) = (sender.clone(), &input, &long);
            thread::Builder::new()
                .name(format!("gristmill-prompts-{number}"))
                .spawn_scoped(scope, move || work(input, || Preparer::new(spec, encoder, long), &sender))
                .map_err(|error| Error::no_threads(spec.threads, error))?;
        }
        drop(sender);
        let mut arena = Arena::new(spec);
        let mut waiting = BTreeMap::new();
        loop {
            if is_interrupted() {
                return Ok(None);
            }
            match receiver.recv_timeout(LOOK_TIME) {
                Ok((number, part)) => {
                    waiting.insert(number, part);
                    while let Some(part) = waiting.remove(&arena.parts()) {
                        arena.join(part?)?;
                        input.joined(arena.parts());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if arena.parts() != input.chunks() {
            return Err(Error::Bug(format!("{} of {} chunks were prepared", arena.parts(), input.chunks())));
        }
        arena.finish().map(Some)
    })
}

/// What became of a chunk, by its number.
type Done = (u64, Result<Part>);

/// Takes chunks until there are no more. An error ends all workers; the calling thread finds it in its turn.
fn work<'a>(input: &Input<'_>, new_preparer: impl Fn() -> Preparer<'a>, sender: &Sender<Done>) {
    let mut preparer = None;
    let mut number = u64::MAX;
    let worked = caught(|| {
        while let Some(chunk) = input.take(&mut number)? {
            let preparer = preparer.get_or_insert_with(&new_preparer);
            let part = preparer.prepare(chunk, input.stop_flag());
            let ends = part.is_err();
            if sender.send((number, part)).is_err() || ends {
                break;
            }
        }
        Ok(())
    });
    if let Err(error) = worked {
        let _ = sender.send((number, Err(error)));
    }
}

/// Ends the workers when it is dropped.
struct Stopper<'a>(&'a Input<'a>);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn is_stopped(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Error::Closed) } else { Ok(()) }
}
