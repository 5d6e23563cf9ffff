//! Objects of stores on the network, read at any byte as if they were local files.
//!
//! A [`Client`] has one thread for the network. An [`Object`] requests ranges of its bytes ahead of where it is read, so
//! that a reader rarely waits; [`Object::read_ready`] never does. Each range is requested again until it is whole: the
//! module `retries` says what is waited out, and for how long.

mod cache;
mod client;
mod counters;
mod fetch;
mod hub;
mod listing;
mod location;
mod object;
mod requested;
mod retries;
mod service;
mod shared;
mod whole;

pub use cache::CacheOptions;
pub use client::{Client, Listed, Listing, Options, Stop};
pub use counters::Counters;
pub use hub::Hub;
pub use location::Location;
pub use object::Object;
pub use retries::Failure;
