//! The fast engine against the reference: on small tokenizers made for that, on random texts, on the structures of
//! tokenizers in use, and on damaged files.

// The helpers of tests are tests too.
#![allow(clippy::unwrap_used)]

#[path = "../support/chars_map.rs"]
mod chars_map;
mod damaged;
mod families;
#[path = "../support/mixtures.rs"]
mod mixtures;
mod random;
mod structures;
mod support;
mod traps;

use std::str::FromStr;

/// A number that the environment sets for longer runs, or the default.
fn number<T: FromStr>(variable: &str, default: T) -> T {
    std::env::var(variable).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}
