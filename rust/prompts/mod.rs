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
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use crate::encode::Encoder;
use crate::error::{Error, Result, caught};
use crate::format::ReadOptions;
use crate::prepare::chat::Conversations;
use crate::prepare::completion::Completions;
use crate::prepare::field::Field;
use crate::spec::rows::Rows;
use crate::spec::sidecars::Sidecars;
use crate::store::Shard;

pub use arena::Arena;
use input::Input;
pub use input::count;
pub(crate) use input::{Chunk, Found};
use part::Preparer;
pub(crate) use part::select;
pub use part::{Left, Reason};

/// How often the calling thread asks whether it is interrupted.
const LOOK_TIME: Duration = Duration::from_millis(20);

/// The records that are read, and the prompts that they become.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is an argument")]
pub struct PromptSpec {
    /// The shards, in the order in which they are read.
    pub shards: Vec<Shard>,
    /// The columns that are wanted, all of them if the records are kept; and the values of the prompts.
    pub read: Arc<ReadOptions>,
    /// How many of the paths of its projection are those of the filter; they come first.
    pub filter_paths: usize,
    /// Files beside the shards whose records the filter sees.
    pub sidecars: Sidecars,
    /// The rows that are left out by their numbers.
    pub drop: Arc<Rows>,
    /// The prompts of each record, at least one.
    pub prompts: Vec<Prompt>,
    /// Put before the ids of each prompt.
    pub bos: Option<u32>,
    /// Put after them.
    pub eos: Option<u32>,
    /// Records of which a prompt has more tokens are left out. None: none are.
    pub longest: Option<usize>,
    /// How many tokens at the start and at the end are kept of longer ones. None: they are not cut.
    pub cut: Option<(usize, usize)>,
    /// Whether a record is bad, or left out, if a prompt with a mask has no trained token, or its mask cannot be derived; else
    /// nothing of it is trained on.
    pub needs_trained: bool,
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

/// The parts that a prompt is made of.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// The string under this key.
    Text(Field),
    /// A conversation.
    Chat(Arc<Conversations>),
    /// A prompt with its completion.
    Completion(Completions),
}

impl Prompt {
    /// Whether it says which of its tokens are trained on.
    fn has_mask(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Chat(conversations) => conversations.training.is_some(),
            Self::Completion(_) => true,
        }
    }

    /// Whether a record is left out if it has no trained token; else it is bad.
    fn drops_untrained(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Chat(conversations) => conversations.drops_untrained,
            Self::Completion(completions) => completions.drops_untrained,
        }
    }

    /// The added tokens, other than special ones, that are text in what a conversation says.
    fn guarded_tokens(&self) -> &[String] {
        match self {
            Self::Text(_) | Self::Completion(_) => &[],
            Self::Chat(conversations) => conversations.template.written_tokens(),
        }
    }
}

/// Reads, prepares and encodes all records. None if it was interrupted: `is_interrupted` is asked now and then on this
/// thread. No thread is left when it returns.
pub fn read(
    spec: &PromptSpec,
    encoder: &Encoder,
    is_interrupted: impl FnMut() -> bool,
) -> Result<Option<Arena>> {
    let long = Arc::new(Mutex::new(()));
    let mut arena = Arena::new(spec);
    let new_preparer = || {
        let mut preparer = Preparer::new(spec, encoder, &long);
        move |chunk: Chunk, stop: &AtomicBool| preparer.prepare(&chunk, stop)
    };
    if in_order(spec, new_preparer, |part| arena.join(part), is_interrupted)? {
        arena.finish().map(Some)
    } else {
        Ok(None)
    }
}

/// Makes a part of each chunk of the records of `spec`, on its threads, each with a worker of its own; and joins them on this
/// thread in their order. False if it was interrupted: `is_interrupted` is asked now and then on this thread. No thread is
/// left when it returns.
pub(crate) fn in_order<P: Send, W: FnMut(Chunk, &AtomicBool) -> Result<P>>(
    spec: &PromptSpec,
    new_worker: impl Fn() -> W + Sync,
    mut join: impl FnMut(P) -> Result<()>,
    mut is_interrupted: impl FnMut() -> bool,
) -> Result<bool> {
    let stop = Arc::new(AtomicBool::new(false));
    let input = Input::new(spec, &stop);
    thread::scope(|scope| {
        let mut workers = Workers { input: &input, threads: Vec::with_capacity(spec.threads) };
        let (sender, receiver) = channel();
        for number in 0..spec.threads {
            let (sender, input, new_worker) = (sender.clone(), &input, &new_worker);
            let thread = thread::Builder::new()
                .name(format!("gristmill-prompts-{number}"))
                .spawn_scoped(scope, move || work(input, new_worker, &sender))
                .map_err(|error| Error::no_threads(spec.threads, error))?;
            workers.threads.push(thread);
        }
        drop(sender);
        let (mut joined, mut waiting) = (0, BTreeMap::new());
        loop {
            if is_interrupted() {
                return Ok(false);
            }
            match receiver.recv_timeout(LOOK_TIME) {
                Ok((number, part)) => {
                    waiting.insert(number, part);
                    while let Some(part) = waiting.remove(&joined) {
                        join(part?)?;
                        joined += 1;
                        input.joined(joined);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if joined != input.chunks() {
            return Err(Error::Bug(format!("{joined} of {} chunks were prepared", input.chunks())));
        }
        Ok(true)
    })
}

/// The result of a chunk, by its number.
type Done<P> = (u64, Result<P>);

/// Takes chunks until there are no more. An error ends all workers; the calling thread finds it in its turn.
fn work<P, W: FnMut(Chunk, &AtomicBool) -> Result<P>>(
    input: &Input<'_>,
    new_worker: impl Fn() -> W,
    sender: &Sender<Done<P>>,
) {
    let mut worker = None;
    let mut number = u64::MAX;
    let done = caught(|| {
        while let Some(chunk) = input.take(&mut number)? {
            let worker = worker.get_or_insert_with(&new_worker);
            let part = worker(chunk, input.stop_flag());
            let ends = part.is_err();
            if sender.send((number, part)).is_err() || ends {
                break;
            }
        }
        Ok(())
    });
    if let Err(error) = done {
        let _ = sender.send((number, Err(error)));
    }
}

/// The threads, which end when this is dropped, whatever happens. A scope waits for the end of their work only.
struct Workers<'scope, 'a> {
    input: &'a Input<'a>,
    threads: Vec<ScopedJoinHandle<'scope, ()>>,
}

impl Drop for Workers<'_, '_> {
    fn drop(&mut self) {
        self.input.stop();
        for thread in self.threads.drain(..) {
            // A worker catches its own panics, so the result carries no information.
            let _ = thread.join();
        }
    }
}

pub(crate) fn is_stopped(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Error::Closed) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Path, Projection, Step};

    /// A folder with shards of texts, each of which is one token.
    struct Texts {
        folder: tempfile::TempDir,
        spec: PromptSpec,
        encoder: Encoder,
    }

    impl Texts {
        fn new(shards: &[Vec<String>]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let shards = shards.iter().enumerate().map(|(number, lines)| {
                let path = format!("{number}.jsonl");
                let text = lines.join("\n");
                std::fs::write(folder.path().join(&path), &text).unwrap();
                Shard::whole(path, text.len() as u64)
            });
            let path: Path = vec![Step::Key("text".to_owned())];
            let spec = PromptSpec {
                shards: shards.collect(),
                read: Arc::new(ReadOptions {
                    access: folder.path().to_owned().into(),
                    projection: Projection::all().with_paths(vec![path]),
                    keep: None,
                    max_document_bytes: 1 << 20,
                    ids: None,
                }),
                filter_paths: 0,
                sidecars: Sidecars::default(),
                drop: Arc::default(),
                prompts: vec![Prompt::Text(Field::add("text", &mut Vec::new(), &mut Vec::new()))],
                bos: None,
                eos: None,
                longest: None,
                cut: None,
                needs_trained: true,
                selected: None,
                keeps_records: true,
                keeps_texts: true,
                raises: false,
                max_memory: 1 << 30,
                threads: 3,
            };
            let encoder = r#"{"pre_tokenizer": {"type": "Whitespace"}, "model":
                {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}"#;
            Self { folder, spec, encoder: Encoder::from_bytes(encoder.as_bytes()).unwrap() }
        }

        fn read(&self) -> Result<Option<Arena>> {
            read(&self.spec, &self.encoder, || false)
        }
    }

    fn lines(count: usize) -> Vec<String> {
        (0..count)
            .map(|number| format!(r#"{{"text": "a{}", "n": {number}}}"#, " b".repeat(number % 3)))
            .collect()
    }

    #[test]
    fn arena_holds_all_records_in_order() {
        let shards = [lines(20_000), Vec::new(), lines(5)];
        for threads in [1, 2, 7] {
            let mut texts = Texts::new(&shards);
            texts.spec.threads = threads;
            let arena = texts.read().unwrap().unwrap();
            assert_eq!((arena.read, arena.shards.len(), arena.left.len()), (20_005, 20_005, 0));
            assert_eq!(arena.numbers, (0..20_000).chain(0..5).collect::<Vec<_>>());
            assert_eq!(arena.indices, (0..20_005).collect::<Vec<_>>());
            let tokens: Vec<i64> = (0..20_000).chain(0..5).map(|number| 1 + number % 3).collect();
            let found: Vec<i64> = arena.id_offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert_eq!(found, tokens);
            assert_eq!(arena.records, shards.concat().concat().as_bytes());
            assert_eq!(arena.keys, ["text", "n"]);
        }
    }

    #[test]
    fn interrupt_ends_reading() {
        let texts = Texts::new(&[lines(50_000)]);
        let mut asked = 0;
        let found = read(&texts.spec, &texts.encoder, || {
            asked += 1;
            asked > 1
        });
        assert!(found.unwrap().is_none());
        assert!(read(&texts.spec, &texts.encoder, || true).unwrap().is_none());
    }

    #[test]
    fn missing_shard_is_lost_or_an_error() {
        let mut texts = Texts::new(&[lines(3), lines(3), lines(3)]);
        std::fs::remove_file(texts.folder.path().join("1.jsonl")).unwrap();
        let arena = texts.read().unwrap().unwrap();
        assert_eq!((arena.shards.len(), arena.read), (6, 7));
        assert!(matches!(&*arena.left, [Left { shard: 1, record: None, reason: Reason::Lost(_), .. }]));
        texts.spec.raises = true;
        assert!(matches!(texts.read(), Err(Error::Shard(error)) if &*error.shard == "1.jsonl"));
    }

    #[test]
    fn memory_beyond_the_bound_is_counted_to_the_end() {
        let mut texts = Texts::new(&[lines(20_000)]);
        texts.spec.max_memory = 1000;
        let error = texts.read().unwrap_err().to_string();
        let needed = error.split("take ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(error.contains("the prompts of 20000 records"), "{error}");
        texts.spec.max_memory = needed;
        assert!(texts.read().unwrap().is_some());
        texts.spec.max_memory = needed - 1;
        assert!(texts.read().is_err());
    }

    #[test]
    fn only_selected_records_are_prepared() {
        let mut shard = lines(6);
        shard[1] = "broken".to_owned();
        let mut texts = Texts::new(&[shard, lines(6)]);
        texts.spec.raises = true;
        texts.spec.selected = Some(vec![0, 5, 6]);
        let arena = texts.read().unwrap().unwrap();
        assert_eq!((arena.indices, arena.numbers, arena.read), (vec![0, 5, 6], vec![0, 5, 0], 3));
        let count = count(&texts.spec.shards, &texts.spec.read, || false);
        assert_eq!(count.unwrap(), Some(12));
    }
}
