//! What words consist of: bytes ([`bytes`]) or characters ([`spm`]).

pub mod bytes;
pub mod spm;
pub mod unknown;
pub mod words;
