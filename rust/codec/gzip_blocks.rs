//! Gzip by the blocks of deflate, for pieces: a block belongs to the piece in which it starts. A piece is found from the
//! start of the file, or from a seek point of its index.

use memchr::memchr_iter;

use super::gzip::{Member, find_member};
use super::gzip_index::SeekPoint;
use super::inflater::{Inflated, Inflater, Stop, crc_of};
use super::{CHUNK_BYTES, Damage, Input};

const TRAILER_BYTES: usize = 8;

/// A chain of gzip members.
pub(super) struct GzipBlocks {
    inflater: Inflater,
    state: State,
    /// Between two blocks, or before a member, whose header and padding count as the start of its first block.
    is_between: bool,
    /// How many bits that were read belong to the next block.
    bits: u8,
    inflated: u64,
    member: Member,
    /// The checksum of the bytes of the member that were inflated.
    crc: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before a member.
    Closed,
    /// In a member's header.
    Header,
    /// In a member, which the library checks.
    Member,
    /// In blocks alone, which are checked here.
    Blocks,
}

/// The first block of a piece.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BlockStart {
    /// Bytes inflated before it, and newlines among them.
    pub(super) inflated: u64,
    pub(super) lines: u64,
    /// The byte before it.
    pub(super) before: Option<u8>,
}

impl GzipBlocks {
    pub(super) fn new() -> Self {
        Self {
            inflater: Inflater::new(),
            state: State::Closed,
            is_between: true,
            bits: 0,
            inflated: 0,
            member: Member::default(),
            crc: 0,
        }
    }

    /// Inflates into `out`. Returns 0 at the end, and before a block that starts at `end` or after it.
    pub(super) fn read(&mut self, input: &mut Input, end: u64, out: &mut [u8]) -> Result<usize, Damage> {
        loop {
            if self.is_between && self.block_start(input) >= end {
                return Ok(0);
            }
            self.is_between = false;
            if self.state == State::Closed && !self.open_member(input)? {
                return Ok(0);
            }
            let written = self.inflate(input, out)?;
            if written > 0 {
                return Ok(written);
            }
        }
    }

    /// Goes to the first block that starts at `start` or after it, from the start of the file or from a seek point.
    pub(super) fn find(
        &mut self,
        input: &mut Input,
        start: u64,
        from: Option<&SeekPoint>,
    ) -> Result<BlockStart, String> {
        let mut found = BlockStart::default();
        input.go_to(0);
        if let Some(seek_point) = from {
            self.resume(input, seek_point)?;
            found.lines = seek_point.lines;
            found.before = seek_point.before;
        }
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = self.read(input, start, &mut chunk).map_err(|damage| damage.reason)?;
            let Some(last) = chunk[..length].last() else { break };
            found.before = Some(*last);
            found.lines += memchr_iter(b'\n', &chunk[..length]).count() as u64;
        }
        found.inflated = self.inflated;
        Ok(found)
    }

    /// Continues at a seek point.
    fn resume(&mut self, input: &mut Input, seek_point: &SeekPoint) -> Result<(), String> {
        let SeekPoint { offset, bits, inflated, member, crc, is_in_member, .. } = *seek_point;
        (self.inflated, self.member, self.crc, self.bits, self.is_between) =
            (inflated, member, crc, bits, true);
        self.state = if is_in_member { State::Blocks } else { State::Closed };
        let mut byte = 0;
        input.go_to(offset - u64::from(bits > 0));
        if bits > 0 {
            byte = input.fill()?.first().copied().unwrap_or_default();
            input.consume(1);
        }
        if is_in_member {
            self.inflater.start_block(bits, byte, &seek_point.window);
        }
        Ok(())
    }

    /// Where it stopped, between blocks, after so many lines and this byte. None at the end of the file.
    pub(super) fn seek_point(&self, input: &Input, lines: u64, before: Option<u8>) -> Option<SeekPoint> {
        let is_in_member = self.state != State::Closed;
        self.is_between.then(|| SeekPoint {
            offset: self.block_start(input),
            bits: self.bits % 8,
            inflated: self.inflated,
            lines,
            before,
            member: self.member,
            crc: self.crc,
            is_in_member,
            window: if is_in_member { self.inflater.window() } else { Vec::new() },
        })
    }

    /// The offset of the first byte that has no bit of the block before.
    fn block_start(&self, input: &Input) -> u64 {
        input.offset() - u64::from(self.bits / 8)
    }

    /// Advances to the next member; returns whether there is one.
    fn open_member(&mut self, input: &mut Input) -> Result<bool, String> {
        if !find_member(input)? {
            return Ok(false);
        }
        self.inflater.start_member();
        self.state = State::Header;
        self.member = Member { start: input.offset(), inflated_start: self.inflated };
        self.crc = 0;
        Ok(true)
    }

    /// Inflates the input already read of the current member, at most up to the end of a block.
    fn inflate(&mut self, input: &mut Input, out: &mut [u8]) -> Result<usize, Damage> {
        let Inflated { read, written, stop } = self.inflater.inflate(input.fill()?, out);
        input.consume(read);
        self.inflated += written as u64;
        self.crc = crc_of(self.crc, &out[..written]);
        let damaged = |reason| Damage { written, reason };
        match stop {
            Stop::Used if read == 0 && written == 0 => {
                return Err(self.member.truncated(input.offset()).into());
            }
            Stop::Used | Stop::LastBlock => {}
            Stop::Block(_) if self.state == State::Header => self.state = State::Member,
            Stop::Block(bits) => (self.is_between, self.bits) = (true, bits),
            Stop::End => {
                if self.state == State::Blocks {
                    self.check_trailer(input).map_err(damaged)?;
                }
                (self.state, self.is_between, self.bits) = (State::Closed, true, 0);
            }
            Stop::Invalid(error) => return Err(damaged(self.member.corrupt(&error))),
        }
        Ok(written)
    }

    /// Checks the end of a member that was entered at a seek point.
    fn check_trailer(&self, input: &mut Input) -> Result<(), String> {
        let mut trailer = Vec::new();
        while trailer.len() < TRAILER_BYTES {
            let chunk = input.fill()?;
            let taken = chunk.len().min(TRAILER_BYTES - trailer.len());
            if taken == 0 {
                return Err(self.member.truncated(input.offset()));
            }
            trailer.extend_from_slice(&chunk[..taken]);
            input.consume(taken);
        }
        let length = (self.inflated - self.member.inflated_start) as u32;
        let (crc, expected_length) = trailer.split_at(4);
        if crc != self.crc.to_le_bytes() {
            return Err(self.member.corrupt("incorrect data check"));
        }
        if expected_length != length.to_le_bytes() {
            return Err(self.member.corrupt("incorrect length check"));
        }
        Ok(())
    }
}
