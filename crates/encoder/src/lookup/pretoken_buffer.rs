//! Pre-tokens that are not looked up yet.
//!
//! An added token among them is a pre-token too, spelled in bytes that no text contains. So the stretches between added
//! tokens, which may be a few words each, are looked up in batches as large as those of other text.

use crate::layout::ADDED_TOKEN;
use crate::pretokenize::PADDING;

/// Pre-tokens, side by side.
#[derive(Default)]
pub struct PretokenBuffer {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl PretokenBuffer {
    /// The bytes of all pre-tokens.
    pub fn len(&self) -> usize {
        self.ends.last().map_or(0, |end| *end as usize)
    }

    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// All bytes so far, without padding, and the ends of the pre-tokens, to append more of both.
    pub fn unpadded(&mut self) -> (&mut Vec<u8>, &mut Vec<u32>) {
        self.bytes.truncate(self.len());
        (&mut self.bytes, &mut self.ends)
    }

    pub fn add_token(&mut self, id: u32) {
        let (bytes, ends) = self.unpadded();
        let [a, b, c, _] = id.to_le_bytes();
        bytes.extend([ADDED_TOKEN, a, b, c]);
        ends.push(bytes.len() as u32);
    }

    /// All bytes, padded, and the end of each pre-token.
    pub fn padded(&mut self) -> (&[u8], &[u32]) {
        self.bytes.resize(self.len() + PADDING, 0);
        (&self.bytes, &self.ends)
    }
}

/// The id of a pre-token that is an added token.
#[inline(always)]
pub fn token_id(pretoken: &[u8]) -> Option<u32> {
    match *pretoken {
        [ADDED_TOKEN, a, b, c] => Some(u32::from_le_bytes([a, b, c, 0])),
        _ => None,
    }
}
