//! A range of an object, requested until it is whole.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use object_store::client::HttpError;
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore};
use tokio::time::timeout;

use crate::retries::{Attempt, Failure, Kind, Next, Retries};
use crate::shared::{Shared, is_weak};

/// The slowest that an answer may be on the whole, in bytes a second, before it is requested again.
const SLOWEST: u64 = 64 << 10;

/// The object that ranges are of: its place, and what must not change.
pub(crate) struct Wanted {
    pub(crate) url: Arc<str>,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: Path,
    pub(crate) size: u64,
}

/// All bytes of a range. The bytes that arrived before a failure are kept.
pub(crate) async fn fetch(shared: &Shared, wanted: &Wanted, range: Range<u64>) -> Result<Bytes, Failure> {
    let mut bytes = BytesMut::with_capacity((range.end - range.start) as usize);
    let mut retries = Retries::new(shared.retry_timeout);
    loop {
        let rest = range.start + bytes.len() as u64..range.end;
        if rest.is_empty() {
            return Ok(bytes.freeze());
        }
        let (before, start) = (bytes.len(), Instant::now());
        let deadline = shared.stall_timeout + Duration::from_secs((rest.end - rest.start) / SLOWEST);
        shared.counters.requests.fetch_add(1, Ordering::Relaxed);
        let attempt = match timeout(deadline, receive(shared, wanted, rest, &mut bytes)).await {
            Ok(Ok(())) => None,
            Ok(Err(attempt)) => Some(attempt),
            Err(_) => Some(stalled(deadline)),
        };
        let received = bytes.len() - before;
        shared.counters.bytes.fetch_add(received as u64, Ordering::Relaxed);
        // Answers that drip would otherwise continue for ever.
        if received as f64 > SLOWEST as f64 * start.elapsed().as_secs_f64() {
            retries.clear();
        }
        let Some(attempt) = attempt else { continue };
        match retries.failed(&wanted.url, attempt, Instant::now()) {
            Next::GiveUp(failure) => return Err(failure),
            Next::Retry { delay, note } => {
                shared.counters.retries.fetch_add(1, Ordering::Relaxed);
                shared.counters.note(note);
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// Appends what one request brings of a range.
async fn receive(
    shared: &Shared,
    wanted: &Wanted,
    range: Range<u64>,
    bytes: &mut BytesMut,
) -> Result<(), Attempt> {
    let stall_timeout = shared.stall_timeout;
    let length = (range.end - range.start) as usize;
    let options = GetOptions::new().with_range(Some(range));
    let answer = timeout(stall_timeout, wanted.store.get_opts(&wanted.path, options))
        .await
        .map_err(|_| stalled(stall_timeout))?
        .map_err(|error| attempt_of(&error))?;
    let (size, e_tag) = (answer.meta.size, answer.meta.e_tag.as_deref());
    if size != wanted.size {
        let (expected, found) = (wanted.size, size);
        return Err(changed(&format!("expected the {expected} bytes of the manifest, found {found}")));
    }
    if let Some(found) = e_tag.filter(|found| !is_weak(found))
        && let Some(expected) = shared.e_tag(&wanted.url, Some(found))
        && *expected != *found
    {
        return Err(changed(&format!("expected the ETag {expected}, found {found}")));
    }
    let mut chunks = answer.into_stream();
    let mut missing = length;
    while missing > 0 {
        match timeout(stall_timeout, chunks.next()).await {
            Ok(Some(Ok(chunk))) => {
                let chunk = &chunk[..chunk.len().min(missing)];
                bytes.extend_from_slice(chunk);
                missing -= chunk.len();
            }
            Ok(Some(Err(error))) => return Err(attempt_of(&error)),
            Ok(None) => {
                return Err(disturbed(format!("expected {length} bytes, found {}", length - missing)));
            }
            Err(_) => return Err(stalled(stall_timeout)),
        }
    }
    Ok(())
}

/// The kind of attempt that an error of a store is.
pub(crate) fn attempt_of(error: &Error) -> Attempt {
    let mut is_of_network = false;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(found) = cause {
        if let Some(Attempt { kind, reason }) = found.downcast_ref() {
            return Attempt { kind: *kind, reason: one_line(reason) };
        }
        if is_final(found) {
            let reason = format!(
                "{}; check the URL, the certificate of the server, and storage_options= (without TLS they need \
                 \"allow_http\": \"true\")",
                whole(error)
            );
            return Attempt { kind: Kind::Refused, reason };
        }
        is_of_network |= found.is::<HttpError>();
        cause = found.source();
    }
    if matches!(error, Error::NotSupported { .. }) {
        let reason = "all of it, where a part was asked for: the server does not serve parts".to_owned();
        return Attempt { kind: Kind::Odd, reason };
    }
    let kind = match error {
        Error::NotFound { .. } => Kind::Missing,
        Error::Precondition { .. } => Kind::Changed,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Kind::Denied,
        _ if is_of_network => Kind::Disturbed,
        // An answer that is none of the store's protocol.
        _ => Kind::Odd,
    };
    Attempt { kind, reason: whole(error) }
}

/// Whether an error of the network is there each time: a certificate, a redirect in a circle, a URL that cannot be asked.
fn is_final(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<reqwest::Error>() {
        return error.is_redirect() || error.is_builder();
    }
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner.or_else(|| error.downcast_ref()), Some(rustls::Error::InvalidCertificate(_)))
}

/// The error and its causes, each only if it adds something, in one line of bounded length.
fn whole(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(found) = cause {
        let text = found.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = found.source();
    }
    one_line(&line)
}

fn one_line(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(400).collect()
}

pub(crate) fn stalled(time: Duration) -> Attempt {
    disturbed(format!("no answer for {} seconds", time.as_secs_f64()))
}

fn disturbed(reason: String) -> Attempt {
    Attempt { kind: Kind::Disturbed, reason }
}

fn changed(reason: &str) -> Attempt {
    Attempt {
        kind: Kind::Changed,
        reason: format!("{reason}: the object has changed since; restore it, or create the dataset again"),
    }
}
