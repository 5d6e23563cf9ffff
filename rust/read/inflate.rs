//! The inflated bytes of a shard: gzip members one after another, or plain bytes as they are.

use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::{Decompress, FlushDecompress, Status};

/// Where a shard's bytes come from.
pub(super) type RawBytes = Box<dyn Read + Send>;

type Input = BufReader<io::Chain<Cursor<Vec<u8>>, RawBytes>>;

/// Compressed bytes read at once.
const INPUT_BYTES: usize = 64 << 10;

const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// What is sometimes found in place of a shard, by its first bytes, with which no line of JSON begins; and what to do.
const OTHERS: [(&[u8], &str); 14] = [
    (b"\x28\xb5", "Zstandard: convert it"),
    (b"\x50\x2a\x4d\x18", "Zstandard: convert it"),
    (b"\xfd7", "xz: convert it"),
    (b"BZh", "bzip2: convert it"),
    (b"PK", "a zip archive: convert it"),
    (b"PAR1", "Parquet: convert it"),
    (b"\xff\xfe\0\0", "UTF-32: convert it"),
    (b"\0\0\xfe\xff", "UTF-32: convert it"),
    (b"\xff\xfe", "UTF-16: convert it"),
    (b"\xfe\xff", "UTF-16: convert it"),
    (b"version https://git-lfs", "a pointer of Git LFS: fetch what it stands for, with git lfs pull"),
    (b"<!doctype html", "a web page: fetch the shard again"),
    (b"<html", "a web page: fetch the shard again"),
    (b"<?xml", "XML, as a store's error is: fetch the shard again"),
];

/// The length of the longest of these.
const HEAD: usize = {
    let (mut longest, mut at) = (0, 0);
    while at < OTHERS.len() {
        if OTHERS[at].0.len() > longest {
            longest = OTHERS[at].0.len();
        }
        at += 1;
    }
    longest
};

/// Whether bytes begin with others: markup in any case, behind a byte order mark and space.
fn begins_with(bytes: &[u8], beginning: &[u8]) -> bool {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let markup = || text.trim_ascii_start().get(..beginning.len());
    bytes.starts_with(beginning)
        || beginning[0] == b'<' && markup().is_some_and(|start| start.eq_ignore_ascii_case(beginning))
}

/// The inflated bytes of a shard.
pub(super) struct Inflated {
    input: Input,
    format: Format,
    damage: Option<String>,
    stop: Arc<AtomicBool>,
}

enum Format {
    Plain,
    Gzip(Box<Gzip>),
}

impl Inflated {
    /// Looks at the first bytes of `source` to detect its format. `named_gz` says that its name promises gzip. The
    /// error says what was expected and found. Reading fails once `stop` is set.
    pub(super) fn new(mut source: RawBytes, named_gz: bool, stop: &Arc<AtomicBool>) -> Result<Self, String> {
        let mut head = Vec::new();
        let looked = source.by_ref().take(HEAD as u64).read_to_end(&mut head);
        let expected = if named_gz { "gzip data" } else { "gzip data or plain JSON lines" };
        let format = match OTHERS.iter().find(|(beginning, _)| begins_with(&head, beginning)) {
            Some((_, other)) => return Err(format!("expected {expected}, found {other}")),
            None if head.starts_with(&MAGIC) => Format::Gzip(Box::default()),
            None if !named_gz => Format::Plain,
            None => {
                looked.map_err(|error| read_failed(&error))?;
                return Err(match head.as_slice() {
                    [] => format!("expected {expected}, found an empty file: it was cut off; fetch it again"),
                    head => format!(
                        "expected {expected} (bytes 1f 8b) because the name ends in .gz, found {}; fetch it again, or \
                         rename it if it is plain JSON lines",
                        hex(&head[..head.len().min(MAGIC.len())])
                    ),
                });
            }
        };
        if let Err(error) = looked {
            // It comes again behind the bytes before it.
            source = Box::new(Failing(error.to_string()));
        }
        let input = BufReader::with_capacity(INPUT_BYTES, Cursor::new(head).chain(source));
        Ok(Self { input, format, damage: None, stop: Arc::clone(stop) })
    }

    /// Writes the next inflated bytes to `out` and returns their number, 0 at the end of the shard.
    ///
    /// All bytes before any damage are returned first, in whatever pieces the source arrives, so that the place of an
    /// error does not depend on the pieces. Damage is final: each later call repeats it.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Result<usize, String> {
        if let Some(damage) = &self.damage {
            return Err(damage.clone());
        }
        // Not where the file is read: a buffer of it may inflate to a thousand times its size.
        if self.stop.load(Ordering::Relaxed) {
            return Err("reading was stopped".to_owned());
        }
        let result = match &mut self.format {
            Format::Plain => read_plain(&mut self.input, out),
            Format::Gzip(gzip) => gzip.read(&mut self.input, out),
        };
        result.or_else(|Damage { written, reason }| {
            self.damage = Some(reason.clone());
            if written > 0 { Ok(written) } else { Err(reason) }
        })
    }
}

/// What has failed to be read.
struct Failing(String);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other(self.0.clone()))
    }
}

/// Why reading cannot continue.
struct Damage {
    /// Sound bytes that were written before the damage.
    written: usize,
    reason: String,
}

impl From<String> for Damage {
    fn from(reason: String) -> Self {
        Self { written: 0, reason }
    }
}

fn read_plain(input: &mut Input, out: &mut [u8]) -> Result<usize, Damage> {
    loop {
        match input.read(out) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map_err(|error| read_failed(&error).into()),
        }
    }
}

/// A chain of gzip members.
#[derive(Default)]
struct Gzip {
    /// The member being inflated; none before the first and between members.
    member: Option<Decompress>,
    /// Bytes of the file consumed and bytes inflated, now and before the current member.
    consumed: u64,
    inflated: u64,
    member_start: u64,
    member_inflated_start: u64,
}

impl Gzip {
    /// Inflates into `out`. Returns 0 at the end.
    fn read(&mut self, input: &mut Input, out: &mut [u8]) -> Result<usize, Damage> {
        loop {
            if self.member.is_none() && !self.open_member(input)? {
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
        loop {
            let chunk = fill(input)?;
            match chunk.first() {
                None => return Ok(false),
                // Padding, as left by tapes and some writers; Python's gzip skips it too.
                Some(0) => {
                    let zeros = chunk.iter().take_while(|&&byte| byte == 0).count();
                    input.consume(zeros);
                    self.consumed += zeros as u64;
                }
                Some(&byte) if byte == MAGIC[0] => break,
                Some(&byte) => return Err(trailing_bytes(byte, self.consumed).into()),
            }
        }
        // In gzip mode zlib-rs itself checks header, CRC-32 and length.
        self.member = Some(Decompress::new_gzip(15));
        self.member_start = self.consumed;
        self.member_inflated_start = self.inflated;
        Ok(true)
    }

    /// Inflates the input already read of the current member, if there is one.
    fn inflate(&mut self, input: &mut Input, out: &mut [u8]) -> Result<usize, Damage> {
        let Some(member) = &mut self.member else { return Ok(0) };
        let (total_in, total_out) = (member.total_in(), member.total_out());
        let status = member.decompress(fill(input)?, out, FlushDecompress::None);
        let read = (member.total_in() - total_in) as usize;
        let written = (member.total_out() - total_out) as usize;
        input.consume(read);
        self.consumed += read as u64;
        self.inflated += written as u64;
        match status {
            Ok(Status::StreamEnd) => self.member = None,
            Ok(_) if read == 0 && written == 0 => return Err(self.cut_off().into()),
            Ok(_) => {}
            Err(error) => {
                return Err(Damage { written, reason: self.corrupt(error.message().unwrap_or_default()) });
            }
        }
        Ok(written)
    }

    fn corrupt(&self, what: &str) -> String {
        let (expected, found) = match what {
            "incorrect data check" => ("the CRC-32 of the gzip trailer", self.wrong_text()),
            "incorrect length check" => ("the length of the gzip trailer", self.wrong_text()),
            "incorrect header check" => ("a gzip header", "other bytes".to_owned()),
            "unknown compression method" | "unknown header flags set" | "header crc mismatch" => {
                ("a sound gzip header", what.to_owned())
            }
            // zlib-rs words damage inside the data differently depending on how the input is split; an error must not
            // depend on that.
            _ => ("sound deflate data", "damage".to_owned()),
        };
        format!("expected {expected}, found {found}{}", self.member_and_advice())
    }

    /// A member's text is handed out before its checksum can be verified.
    fn wrong_text(&self) -> String {
        format!("another: some text after byte {} of the inflated shard is wrong", self.member_inflated_start)
    }

    fn cut_off(&self) -> String {
        let (consumed, rest) = (self.consumed, self.member_and_advice());
        format!(
            "expected more gzip data, found the end of the file at its byte {consumed}: it was cut off{rest}"
        )
    }

    fn member_and_advice(&self) -> String {
        format!(" (in the gzip member at byte {} of the file); fetch the shard again", self.member_start)
    }
}

/// The bytes read but not yet consumed; reads more if there are none.
fn fill(input: &mut Input) -> Result<&[u8], String> {
    loop {
        match input.fill_buf() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read_failed(&error)),
        }
    }
    Ok(input.buffer())
}

fn read_failed(error: &io::Error) -> String {
    format!(
        "expected to read more of the file, found: {error}; check the disk and what writes to it, and fetch the \
         shard again"
    )
}

fn trailing_bytes(byte: u8, offset: u64) -> String {
    format!(
        "expected the end of the file or another gzip member after byte {offset} of the file, found byte \
         0x{byte:02x}; fetch the shard again, or cut off what does not belong to it"
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}
