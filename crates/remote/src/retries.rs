//! Failures of a network, and how long they are waited out.
//!
//! | failure | waited out for | then |
//! | --- | --- | --- |
//! | connection refused or reset, a stalled or short answer, 408, 429, 5xx | `retry_timeout` | [`Failure::Unavailable`] |
//! | 401, 403: a token may have expired | a minute | [`Failure::Unavailable`] |
//! | a server that ignores ranges, as some do now and then, or whose answer is not understood | ten seconds | [`Failure::Unavailable`] |
//! | an answer that no later one will differ from | not at all | [`Failure::Unavailable`] |
//! | 404, 410: the manifest says that the object is there | ten seconds | [`Failure::Missing`] |
//! | another size or `ETag` than before | ten seconds | [`Failure::Changed`] |
//!
//! Whatever fails, bytes that arrive in time begin a new time.

use std::time::{Duration, Instant};

/// Why bytes could not be read, after all attempts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is no such object.
    #[error("{0}")]
    Missing(String),
    /// The object is no longer the one that was listed.
    #[error("{0}")]
    Changed(String),
    /// The store does not answer, or refuses to: no fault of the object.
    #[error("{0}")]
    Unavailable(String),
    /// The reader was closed.
    #[error("closed")]
    Closed,
}

/// The kind of one failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Missing,
    Changed,
    Denied,
    /// An answer that is none of the protocol's, such as the whole object where a part was asked for.
    Odd,
    Refused,
    Disturbed,
}

/// One failed attempt.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Attempt {
    pub(crate) kind: Kind,
    pub(crate) reason: String,
}

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);
const LEAST_ATTEMPTS: u32 = 3;
/// How long attempts fail until that is worth a line in the log, and then the time between two lines.
const SILENT: Duration = Duration::from_secs(5);

/// The failed attempts of one request since the last byte arrived.
pub(crate) struct Retries {
    retry_timeout: Duration,
    /// When attempts began to fail, and since when they fail in the same way.
    since: Option<(Instant, Kind, Instant)>,
    attempts: u32,
    noted: Instant,
}

/// The step after a failed attempt.
pub(crate) enum Next {
    /// Wait so long and try again; `note` says so in the log.
    Retry {
        delay: Duration,
        note: Option<String>,
    },
    GiveUp(Failure),
}

impl Retries {
    pub(crate) fn new(retry_timeout: Duration) -> Self {
        Self { retry_timeout, since: None, attempts: 0, noted: Instant::now() }
    }

    /// Bytes have arrived in time.
    pub(crate) fn clear(&mut self) {
        self.since = None;
        self.attempts = 0;
    }

    /// An attempt on `what` has failed.
    pub(crate) fn failed(&mut self, what: &str, attempt: Attempt, now: Instant) -> Next {
        if self.since.is_none() {
            self.noted = now;
        }
        let (first, kind, alike) = self.since.unwrap_or((now, attempt.kind, now));
        let alike = if kind == attempt.kind { alike } else { now };
        self.since = Some((first, attempt.kind, alike));
        self.attempts += 1;
        let limit = match attempt.kind {
            Kind::Disturbed => self.retry_timeout,
            Kind::Denied => self.retry_timeout.min(Duration::from_secs(60)),
            Kind::Missing | Kind::Changed | Kind::Odd => self.retry_timeout.min(Duration::from_secs(10)),
            Kind::Refused => Duration::ZERO,
        };
        let elapsed = now.duration_since(first);
        if self.attempts >= LEAST_ATTEMPTS || attempt.kind == Kind::Refused {
            if now.duration_since(alike) >= limit {
                return Next::GiveUp(give_up(what, attempt, self.attempts, elapsed));
            }
            if elapsed >= self.retry_timeout {
                // Answers that differ from one to the next say nothing of the object.
                let attempt = Attempt { kind: Kind::Disturbed, ..attempt };
                return Next::GiveUp(give_up(what, attempt, self.attempts, elapsed));
            }
        }
        let delay = FIRST_DELAY.saturating_mul(1 << (self.attempts - 1).min(10)).min(LONGEST_DELAY);
        let delay = delay.mul_f64(jitter());
        // Said before the delay in which the time is over, not after it.
        let note = (now + delay >= self.noted + SILENT).then(|| {
            self.noted = now + delay;
            let (tried, limit) = (elapsed.as_secs(), limit.as_secs());
            format!("{what}: {}; trying again, for {tried} of at most {limit} seconds", attempt.reason)
        });
        Next::Retry { delay, note }
    }
}

fn give_up(what: &str, attempt: Attempt, attempts: u32, elapsed: Duration) -> Failure {
    let Attempt { kind, reason } = attempt;
    let tried = format!("after {attempts} attempts in {:.0} seconds", elapsed.as_secs_f64());
    match kind {
        Kind::Missing => {
            Failure::Missing(format!("expected the object of the manifest, found none: {reason}, {tried}"))
        }
        Kind::Changed => Failure::Changed(format!("{reason}, {tried}")),
        Kind::Denied => Failure::Unavailable(format!(
            "{what}: the store denied access: {reason}, {tried}; renew the credentials, or set storage_options=, and \
             continue from the last saved state"
        )),
        Kind::Odd => Failure::Unavailable(format!(
            "{what}: expected a listing, the size of the object, or a part of it, found another answer: {reason}, {tried}; \
             download the object, or put it into a store"
        )),
        Kind::Refused => Failure::Unavailable(format!("{what}: {reason}")),
        Kind::Disturbed => Failure::Unavailable(format!(
            "{what}: the store did not answer: {reason}, {tried}; continue from the last saved state once it does, or \
             raise storage_options={{\"retry_timeout\": ...}}"
        )),
    }
}

/// A factor of a delay, 0.5 to 1, so that lanes do not all come back at once.
fn jitter() -> f64 {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.subsec_nanos());
    0.5 + f64::from(nanos.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 25)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(kind: Kind) -> Attempt {
        Attempt { kind, reason: "503".to_owned() }
    }

    /// Seconds until a request gives up, all of whose attempts fail at once.
    fn seconds(kinds: &[Kind]) -> (u64, Failure) {
        let mut retries = Retries::new(Duration::from_secs(600));
        let start = Instant::now();
        let mut now = start;
        for number in 0.. {
            match retries.failed("gs://b/x", attempt(kinds[number % kinds.len()]), now) {
                Next::Retry { delay, .. } => now += delay,
                Next::GiveUp(failure) => return (now.duration_since(start).as_secs(), failure),
            }
        }
        unreachable!("it gives up")
    }

    #[test]
    fn each_kind_has_its_time() {
        assert!(matches!(seconds(&[Kind::Disturbed]), (600..620, Failure::Unavailable(_))));
        assert!(matches!(seconds(&[Kind::Denied]), (60..80, Failure::Unavailable(_))));
        assert!(matches!(seconds(&[Kind::Missing]), (10..21, Failure::Missing(_))));
        assert!(matches!(seconds(&[Kind::Odd]), (10..21, Failure::Unavailable(_))));
        assert!(matches!(seconds(&[Kind::Refused]), (0, Failure::Unavailable(_))));
        assert!(matches!(seconds(&[Kind::Changed]), (10..21, Failure::Changed(_))));
    }

    #[test]
    fn outage_is_noted_within_five_seconds() {
        let mut retries = Retries::new(Duration::from_secs(600));
        let start = Instant::now();
        let mut now = start;
        while let Next::Retry { delay, note: None } = retries.failed("x", attempt(Kind::Disturbed), now) {
            now += delay;
        }
        assert!(now < start + SILENT);
    }

    #[test]
    fn kinds_that_alternate_end_too() {
        let (seconds, failure) = seconds(&[Kind::Disturbed, Kind::Missing]);
        assert!((600..620).contains(&seconds), "{seconds}");
        assert!(matches!(failure, Failure::Unavailable(_)));
    }

    #[test]
    fn bytes_begin_a_new_time() {
        let mut retries = Retries::new(Duration::from_secs(1));
        let mut now = Instant::now();
        for _ in 0..100 {
            assert!(matches!(retries.failed("x", attempt(Kind::Disturbed), now), Next::Retry { .. }));
            retries.clear();
            now += Duration::from_secs(2);
        }
    }
}
