//! Text that is cut into pieces and waits to be looked up.
//!
//! An added token among it is a piece too, spelled in bytes that no text contains. So the stretches between added tokens,
//! which may be a few words each, are looked up in batches as large as those of other text.

use crate::pretokenize::PADDING;
use crate::vocab::MAX_IDS;

/// The first byte of an added token, which never occurs in UTF-8. Its id follows in three bytes: so few that the piece is
/// a tiny one, as the cache's keys require.
const TOKEN: u8 = 0xFF;
const _: () = assert!(MAX_IDS <= 1 << 24, "three bytes hold an id");

/// Pieces, side by side.
#[derive(Default)]
pub struct PretokenBuffer {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl PretokenBuffer {
    /// The bytes of all pieces.
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

    /// All bytes so far, without padding, and the ends of the pieces, to append more of both.
    pub fn unpadded(&mut self) -> (&mut Vec<u8>, &mut Vec<u32>) {
        self.bytes.truncate(self.len());
        (&mut self.bytes, &mut self.ends)
    }

    pub fn add_token(&mut self, id: u32) {
        let (bytes, ends) = self.unpadded();
        let [a, b, c, _] = id.to_le_bytes();
        bytes.extend([TOKEN, a, b, c]);
        ends.push(bytes.len() as u32);
    }

    /// All bytes, padded, and the end of each piece.
    pub fn padded(&mut self) -> (&[u8], &[u32]) {
        self.bytes.resize(self.len() + PADDING, 0);
        (&self.bytes, &self.ends)
    }
}

/// The id of a piece that is an added token.
#[inline(always)]
pub fn token_id(pretoken: &[u8]) -> Option<u32> {
    match *pretoken {
        [TOKEN, a, b, c] => Some(u32::from_le_bytes([a, b, c, 0])),
        _ => None,
    }
}
