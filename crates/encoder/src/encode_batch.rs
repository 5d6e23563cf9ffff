//! Many texts at once, on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::{EncodeWorker, Encoder};
use crate::error::{Error, Result, caught};

/// The ids of texts one after another, and where each text's end.
type Part = (Vec<u32>, Vec<usize>);

/// A thread looks after so many bytes of text whether it is still wanted.
const LOOK_BYTES: usize = 64 << 10;

/// How often this is asked while other threads are waited for.
const LOOK_TIME: Duration = Duration::from_millis(20);

impl Encoder {
    /// The ids of all texts one after another, and the offset at which each text's ids begin, followed by their total
    /// number; None if it was interrupted. An error names the first text that cannot be encoded.
    ///
    /// `is_interrupted` is asked now and then, on this thread and between texts.
    pub fn encode_batch<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        threads: usize,
        mut is_interrupted: impl FnMut() -> bool,
    ) -> Result<Option<(Vec<u32>, Vec<i64>)>> {
        let shares = shares(texts, threads);
        // The first share that was given up: those behind it are not wanted, those before it may hold an earlier error.
        let given_up = AtomicUsize::new(usize::MAX);
        let encode = |number: usize, is_interrupted: &mut dyn FnMut() -> bool| {
            let (first, texts) = shares[number];
            let is_wanted = || given_up.load(Ordering::Relaxed) >= number && !is_interrupted();
            let part = caught(|| self.encode_part(first, texts, is_wanted));
            if !matches!(part, Ok(Some(_))) {
                given_up.fetch_min(number, Ordering::Relaxed);
            }
            part
        };
        let mut parts = thread::scope(|scope| -> Result<Vec<(usize, Result<Option<Part>>)>> {
            let (sender, receiver) = channel();
            for number in 1..shares.len() {
                let (encode, sender) = (&encode, sender.clone());
                let work = move || sender.send((number, encode(number, &mut || false)));
                let thread = thread::Builder::new().name(format!("gristmill-encode-{number}"));
                thread.spawn_scoped(scope, work).map_err(|error| {
                    given_up.store(0, Ordering::Relaxed);
                    Error::Threads { wanted: shares.len() - 1, reason: error.to_string() }
                })?;
            }
            drop(sender);
            // This thread takes the first share: its caches are warm, and there may be no other.
            let mut parts = vec![(0, encode(0, &mut is_interrupted))];
            loop {
                match receiver.recv_timeout(LOOK_TIME) {
                    Ok(part) => parts.push(part),
                    Err(RecvTimeoutError::Disconnected) => return Ok(parts),
                    Err(RecvTimeoutError::Timeout) if is_interrupted() => {
                        given_up.store(0, Ordering::Relaxed);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
            }
        })?;
        parts.sort_unstable_by_key(|(number, _)| *number);
        let (mut offsets, mut all, mut count) = (vec![0], Vec::new(), 0);
        for (_, part) in parts {
            let Some((ids, ends)) = part? else { return Ok(None) };
            offsets.extend(ends.iter().map(|end| (count + end) as i64));
            count += ids.len();
            all.push(ids);
        }
        let ids = <[Vec<u32>; 1]>::try_from(all).map_or_else(|several| several.concat(), |[ids]| ids);
        Ok(Some((ids, offsets)))
    }

    /// The ids of texts, of which the first has the number `first`; None if they are no longer wanted.
    fn encode_part<T: AsRef<str>>(
        &self,
        first: usize,
        texts: &[T],
        is_wanted: impl FnMut() -> bool,
    ) -> Result<Option<Part>> {
        let bytes = bytes_of(texts);
        let mut worker = self.worker();
        let mut ids = self.shared.density.array(bytes);
        let mut ends = Vec::with_capacity(texts.len());
        let outcome = worker.encode_texts(first, texts, is_wanted, &mut ids, &mut ends);
        worker.release();
        Ok(outcome?.then(|| {
            self.shared.density.trim(bytes, &mut ids);
            (ids, ends)
        }))
    }
}

impl EncodeWorker {
    /// Appends the ids of texts, of which the first has the number `first`, and where each text's end; false if they
    /// were no longer wanted.
    fn encode_texts<T: AsRef<str>>(
        &mut self,
        first: usize,
        texts: &[T],
        mut is_wanted: impl FnMut() -> bool,
        ids: &mut Vec<u32>,
        ends: &mut Vec<usize>,
    ) -> Result<bool> {
        let mut bytes = 0;
        for (number, text) in texts.iter().enumerate() {
            if bytes >= LOOK_BYTES {
                bytes = 0;
                if !is_wanted() {
                    return Ok(false);
                }
            }
            self.encode(text.as_ref(), ids).map_err(|error| in_batch(first + number, error))?;
            ends.push(ids.len());
            bytes += text.as_ref().len();
        }
        Ok(true)
    }
}

fn bytes_of<T: AsRef<str>>(texts: &[T]) -> usize {
    texts.iter().map(|text| text.as_ref().len()).sum()
}

/// The error of one text of a batch.
fn in_batch(index: usize, error: Error) -> Error {
    match error {
        Error::Tokenizer(reason) => Error::Tokenizer(format!("texts[{index}]: {reason}")),
        other => other,
    }
}

/// Texts in order, in shares of about equal size in bytes, each with the index of its first text: one for each thread,
/// or fewer.
fn shares<T: AsRef<str>>(texts: &[T], threads: usize) -> Vec<(usize, &[T])> {
    /// Encoding fewer bytes than this takes less time than starting a thread.
    const LEAST: usize = 16 << 10;
    let share = bytes_of(texts).div_ceil(threads.max(1)).max(LEAST);
    let (mut shares, mut first, mut filled) = (Vec::new(), 0, 0);
    for (index, text) in texts.iter().enumerate() {
        if filled >= share && shares.len() + 1 < threads {
            shares.push((first, &texts[first..index]));
            (first, filled) = (index, 0);
        }
        filled += text.as_ref().len();
    }
    shares.push((first, &texts[first..]));
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_shares_than_threads() {
        let large = "a".repeat(64 << 10);
        let texts = [&large, "", &large, "", "", &large, ""];
        for threads in 1..6 {
            let shares = shares(&texts, threads);
            assert!(shares.len() <= threads && shares.len() >= threads.min(3), "{threads}: {}", shares.len());
            assert_eq!(shares.iter().map(|(_, texts)| texts.len()).sum::<usize>(), texts.len());
        }
    }

    /// Each word is a token; the reference engine.
    fn encoder() -> Encoder {
        let json = r#"{"pre_tokenizer": {"type": "Whitespace"}, "model":
            {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}"#;
        Encoder::from_bytes(json.as_bytes()).unwrap()
    }

    #[test]
    fn a_batch_that_is_interrupted_ends_on_all_threads() {
        let texts = vec!["a b ".repeat(4096); 64];
        for threads in [1, 2, 4] {
            let whole = encoder().encode_batch(&texts, threads, || false).unwrap();
            assert_eq!(whole.map(|(ids, _)| ids.len()), Some(64 * 8192));
            assert!(encoder().encode_batch(&texts, threads, || true).unwrap().is_none());
        }
    }
}
