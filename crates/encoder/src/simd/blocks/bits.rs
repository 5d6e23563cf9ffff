//! Bits moved between the positions of a mask and the lowest ones: what BMI2 does by `pext` and `pdep`.

/// Moves bits by one mask.
pub trait BitPacker: Copy {
    /// The mask.
    fn mask(self) -> u64;
    /// The bits of `map` at the set bits of the mask, packed together.
    fn pack(self, map: u64) -> u64;
    /// The lowest bits of `map`, moved to the set bits of the mask.
    fn unpack(self, map: u64) -> u64;
}

/// In plain Rust, by the "compress" of Hacker's Delight (7-4): a bit moves down by the number of gaps below it, in six
/// rounds of 1, 2, 4, ... positions. The bits that move in a round depend on the mask alone, so they are computed once
/// for all maps.
#[derive(Clone, Copy)]
pub struct PortablePacker {
    mask: u64,
    /// The bits that move down in each round, before they do.
    moves: [u64; 6],
}

impl PortablePacker {
    #[inline(always)]
    pub fn new(mask: u64) -> Self {
        let mut moves = [0; 6];
        let mut rest = mask;
        let mut gaps = !mask << 1;
        for (round, moving) in moves.iter_mut().enumerate() {
            let is_odd = parity_up_to(gaps);
            *moving = is_odd & rest;
            rest = (rest ^ *moving) | *moving >> (1 << round);
            gaps &= !is_odd;
        }
        Self { mask, moves }
    }

    /// For a mask whose set bits are the lowest ones.
    #[inline(always)]
    pub fn without_gaps(mask: u64) -> Self {
        Self { mask, moves: [0; 6] }
    }
}

impl BitPacker for PortablePacker {
    #[inline(always)]
    fn mask(self) -> u64 {
        self.mask
    }

    #[inline(always)]
    fn pack(self, map: u64) -> u64 {
        self.moves.iter().enumerate().fold(map & self.mask, |map, (round, moves)| {
            let moving = map & moves;
            (map ^ moving) | moving >> (1 << round)
        })
    }

    #[inline(always)]
    fn unpack(self, map: u64) -> u64 {
        let moved = self.moves.iter().enumerate().rev().fold(map, |map, (round, moves)| {
            // Every bit that belongs at one of these positions is still below it.
            map & !moves | map << (1 << round) & moves
        });
        moved & self.mask
    }
}

/// For each bit, whether the number of set bits up to and with it is odd.
#[inline(always)]
fn parity_up_to(bits: u64) -> u64 {
    (0..6).fold(bits, |bits, round| bits ^ bits << (1 << round))
}

/// The code point at the start of some bytes, or some number below 2^21 if they are not UTF-8, without a branch.
#[inline(always)]
pub fn code_point(bytes: [u8; 4]) -> u32 {
    let [first, rest @ ..] = bytes.map(u32::from);
    // The code point of two, three or four bytes, by the high half of the first.
    let width = [2, 2, 3, 4][(first >> 4 & 3) as usize];
    let lead = first & (0x7F >> width);
    let all = rest.iter().fold(lead, |code, byte| code << 6 | byte & 0x3F);
    all >> (6 * (4 - width))
}

/// The bits of `starts`, the first of runs of `members`, whose run is followed by one of `wanted`.
#[inline(always)]
pub fn starts_before(wanted: u64, members: u64, starts: u64) -> u64 {
    // Carries move up; from the last bit of a run down to the first they move in reversed words.
    let last = (members & (wanted & !members) >> 1).reverse_bits();
    let members = members.reverse_bits();
    let carried = members.wrapping_add(last) ^ members | last;
    (carried & members).reverse_bits() & starts
}
