//! Gzip: members one after another, with zero bytes between them allowed.

use flate2::{Decompress, FlushDecompress, Status};

use super::{Damage, Input};

/// The first bytes of each member.
pub const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A chain of gzip members.
#[derive(Default)]
pub(super) struct Gzip {
    /// Inflates a member; none before the first and between members.
    inflater: Option<Decompress>,
    /// Bytes inflated.
    inflated: u64,
    member: Member,
}

/// The member being inflated, for messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Member {
    /// Its offset in the file.
    pub(super) start: u64,
    /// Bytes inflated before it.
    pub(super) inflated_start: u64,
}

impl Gzip {
    /// Inflates into `out`. Returns 0 at the end.
    pub(super) fn read(&mut self, input: &mut Input, out: &mut [u8]) -> Result<usize, Damage> {
        loop {
            if self.inflater.is_none() && !self.open_member(input)? {
                return Ok(0);
            }
            let written = self.inflate(input, out)?;
            if written > 0 {
                return Ok(written);
            }
        }
    }

    /// Advances to the next member; returns whether there is one.
    fn open_member(&mut self, input: &mut Input) -> Result<bool, Damage> {
        if !find_member(input)? {
            return Ok(false);
        }
        // In gzip mode zlib-rs itself checks header, CRC-32 and length.
        self.inflater = Some(Decompress::new_gzip(15));
        self.member = Member { start: input.offset(), inflated_start: self.inflated };
        Ok(true)
    }

    /// Inflates the input already read of the current member, if there is one.
    fn inflate(&mut self, input: &mut Input, out: &mut [u8]) -> Result<usize, Damage> {
        let Some(inflater) = &mut self.inflater else { return Ok(0) };
        let (total_in, total_out) = (inflater.total_in(), inflater.total_out());
        let status = inflater.decompress(input.fill()?, out, FlushDecompress::None);
        let read = (inflater.total_in() - total_in) as usize;
        let written = (inflater.total_out() - total_out) as usize;
        input.consume(read);
        self.inflated += written as u64;
        match status {
            Ok(Status::StreamEnd) => self.inflater = None,
            Ok(_) if read == 0 && written == 0 => return Err(self.member.truncated(input.offset()).into()),
            Ok(_) => {}
            Err(error) => {
                return Err(Damage {
                    written,
                    reason: self.member.corrupt(error.message().unwrap_or_default()),
                });
            }
        }
        Ok(written)
    }
}

/// Skips padding up to the next member; returns whether there is one.
pub(super) fn find_member(input: &mut Input) -> Result<bool, String> {
    loop {
        let chunk = input.fill()?;
        match chunk.first() {
            None => return Ok(false),
            // As left by tapes and some writers; Python's gzip skips it too.
            Some(0) => {
                let zeros = chunk.iter().take_while(|&&byte| byte == 0).count();
                input.consume(zeros);
            }
            Some(&byte) if byte == MAGIC[0] => return Ok(true),
            Some(&byte) => return Err(trailing_bytes(byte, input.offset())),
        }
    }
}

impl Member {
    /// The message for an error of zlib-rs.
    pub(super) fn corrupt(&self, error: &str) -> String {
        let (expected, found) = match error {
            "incorrect data check" => ("the CRC-32 in the gzip trailer", self.wrong_text()),
            "incorrect length check" => ("the length in the gzip trailer", self.wrong_text()),
            "incorrect header check" => ("a gzip header", "other bytes".to_owned()),
            "unknown compression method" | "unknown header flags set" | "header crc mismatch" => {
                ("a valid gzip header", error.to_owned())
            }
            // zlib-rs describes the same damage differently depending on how the input is split; a message must not
            // depend on that.
            _ => ("valid deflate data", "corrupt data".to_owned()),
        };
        format!("expected {expected}, found {found}{}", self.member_and_advice())
    }

    /// The text of a member is delivered before its checksum can be verified.
    fn wrong_text(&self) -> String {
        format!("another one: some text after byte {} of the inflated shard is wrong", self.inflated_start)
    }

    pub(super) fn truncated(&self, end: u64) -> String {
        let rest = self.member_and_advice();
        format!(
            "expected more gzip data, found the end of the file at byte {end}: the file is truncated{rest}"
        )
    }

    fn member_and_advice(&self) -> String {
        format!(" (in the gzip member at byte {} of the file); download the shard again", self.start)
    }
}

fn trailing_bytes(byte: u8, offset: u64) -> String {
    format!(
        "expected the end of the file or another gzip member after byte {offset} of the file, found byte \
         0x{byte:02x}; download the shard again, or if no data follows there, truncate the file to {offset} bytes"
    )
}
