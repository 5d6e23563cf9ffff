//! The members of an archive, one after the other.

use super::header::{BLOCK, Header, Pax, until_nul};
use super::input::Input;
use crate::codec::Decoder;

/// The longest name, and the most bytes of what pax says about a member.
const LONGEST_NAME: u64 = 1 << 20;

/// Why an archive cannot be read any further.
#[derive(Debug)]
pub(super) struct Damage {
    /// Offset of the header, or of the end, that is not as expected.
    pub(super) byte: u64,
    pub(super) reason: String,
}

/// A regular file, or another entry of the archive.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: Vec<u8>,
    pub(super) is_file: bool,
    /// The file that it stands for, if it is a hard or symbolic link.
    pub(super) target: Option<Vec<u8>>,
    /// Offset of its first header: that of a long name comes before its own.
    pub(super) start: u64,
    /// Bytes of its content.
    pub(super) size: u64,
}

pub(super) struct Archive {
    input: Input,
    /// Bytes of the file, if it is not compressed: members cannot be longer.
    size: Option<u64>,
    /// Offset of the last header.
    header: u64,
    /// Bytes of the last member's data that were not read, and the padding after it.
    left: u64,
    padding: u64,
    has_ended: bool,
}

/// Facts about a member from the headers before its own.
#[derive(Default)]
struct Extras {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    pax: Pax,
}

impl Archive {
    /// `size` is that of a file that is not compressed.
    pub(super) fn new(decoder: Decoder, size: Option<u64>) -> Self {
        Self { input: Input::new(decoder), size, header: 0, left: 0, padding: 0, has_ended: false }
    }

    /// Offset of the next byte.
    pub(super) fn offset(&self) -> u64 {
        self.input.offset()
    }

    /// Offset of the last header, which at the end is that of the end marker.
    pub(super) fn header(&self) -> u64 {
        self.header
    }

    /// Passes over everything before an offset. Returns whether the archive is that long.
    pub(super) fn pass_to(&mut self, offset: u64) -> Result<bool, String> {
        (self.left, self.padding) = (0, 0);
        let wanted = offset - self.input.offset();
        Ok(self.input.pass(wanted)? == wanted)
    }

    /// The next member. None at the end marker, see [`check_end`](Self::check_end).
    pub(super) fn next(&mut self) -> Result<Option<Member>, Damage> {
        if self.has_ended {
            return Ok(None);
        }
        self.pass_data()?;
        let start = self.input.offset();
        let mut extras = Extras::default();
        loop {
            self.header = self.input.offset();
            let Some(header) = self.read_header()? else {
                self.has_ended = true;
                return Ok(None);
            };
            match header.kind {
                b'L' | b'K' | b'x' => {
                    self.expect_data(header.size)?;
                    let content = self.read_extra(header.size)?;
                    extras.add(header.kind, &content).ok_or_else(|| {
                        self.damaged(
                            "expected records of pax, found others: download the shard again".to_owned(),
                        )
                    })?;
                }
                // Facts that hold for all members after it: times, comments.
                b'g' => {
                    self.expect_data(header.size)?;
                    let mut global = Extras::default();
                    let content = self.read_extra(header.size)?;
                    if global.add(b'x', &content).is_none() || global.pax != Pax::default() {
                        let found = "expected no global header of pax with paths and sizes, found one: write the tar again";
                        return Err(self.damaged(found.to_owned()));
                    }
                }
                _ => return self.member(header, start, extras).map(Some),
            }
        }
    }

    /// The member whose header was read.
    fn member(
        &mut self,
        Header { kind, name, size, target }: Header,
        start: u64,
        Extras { name: long_name, target: long_target, pax }: Extras,
    ) -> Result<Member, Damage> {
        if kind == b'S' || kind == b'M' || pax.is_sparse {
            let found =
                "expected a whole file, found a sparse one or a part: write the tar again without them";
            return Err(self.damaged(found.to_owned()));
        }
        let is_file = matches!(kind, b'\0' | b'0' | b'7');
        let size = match kind {
            // Links, devices, folders and pipes have no data, whatever the size says.
            b'1'..=b'6' => 0,
            _ => pax.size.filter(|_| is_file).unwrap_or(size),
        };
        self.expect_data(size)?;
        let target = pax.target.or(long_target).unwrap_or(target);
        Ok(Member {
            name: pax.path.or(long_name).unwrap_or(name),
            is_file,
            target: matches!(kind, b'1' | b'2').then_some(target),
            start,
            size,
        })
    }

    /// Appends at most `most` further bytes of the last member's content to `out`.
    pub(super) fn read(&mut self, most: u64, out: &mut Vec<u8>) -> Result<(), Damage> {
        let length = self.left.min(most) as usize;
        let before = out.len();
        out.resize(before + length, 0);
        let read = self.input.read(&mut out[before..]).map_err(|reason| self.unreadable(reason))?;
        self.left -= read as u64;
        if read < length { Err(self.cut()) } else { Ok(()) }
    }

    /// Passes over at most `most` further bytes of the last member's content.
    pub(super) fn pass(&mut self, most: u64) -> Result<(), Damage> {
        let length = self.left.min(most);
        let passed = self.input.pass(length).map_err(|reason| self.unreadable(reason))?;
        self.left -= passed;
        if passed < length { Err(self.cut()) } else { Ok(()) }
    }

    fn read_extra(&mut self, size: u64) -> Result<Vec<u8>, Damage> {
        if size > LONGEST_NAME {
            return Err(self.damaged(format!(
                "expected names and records of pax of at most {LONGEST_NAME} bytes, found {size}: download the shard again"
            )));
        }
        let mut content = Vec::new();
        self.read(size, &mut content)?;
        self.pass_data()?;
        Ok(content)
    }

    /// The next header. None if it is the end marker: a block of zeros.
    fn read_header(&mut self) -> Result<Option<Header>, Damage> {
        let mut block = [0; BLOCK];
        let read = self.input.read(&mut block).map_err(|reason| self.unreadable(reason))?;
        if read == 0 {
            return Err(self.damaged(
                "expected a block of zeros, which ends an archive, found the end of the file: it was cut; download it again"
                    .to_owned(),
            ));
        }
        if read < BLOCK {
            return Err(self.damaged(format!(
                "expected a header of {BLOCK} bytes, found the end of the file after {read}: it was cut; download it again"
            )));
        }
        if block.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let advice = "the file is damaged, or no tar: download it again, or rename it";
        Header::parse(&block).map(Some).map_err(|reason| self.damaged(format!("{reason}: {advice}")))
    }

    /// The last header is followed by so many bytes of data.
    fn expect_data(&mut self, size: u64) -> Result<(), Damage> {
        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
        match self.size {
            Some(end) if size > end.saturating_sub(self.input.offset()) => Err(self.cut()),
            _ => Ok(()),
        }
    }

    /// Passes over what was not read of the last member.
    fn pass_data(&mut self) -> Result<(), Damage> {
        let passed = self.input.pass(self.left).map_err(|reason| self.unreadable(reason))?;
        if passed < self.left {
            self.left -= passed;
            return Err(self.cut());
        }
        self.left = 0;
        // A cut in the padding shows as an end without its marker.
        self.input.pass(self.padding).map_err(|reason| self.unreadable(reason))?;
        self.padding = 0;
        Ok(())
    }

    /// Checks that only zeros follow the end marker. Zeros in place of a header would else end an archive in silence, and of
    /// two archives in one file the second would be lost.
    pub(super) fn check_end(&mut self) -> Result<(), Damage> {
        let mut block = [0; BLOCK];
        loop {
            let byte = self.input.offset();
            let read = self.input.read(&mut block).map_err(|reason| self.unreadable(reason))?;
            if block[..read].iter().all(|&byte| byte == 0) {
                if read < BLOCK {
                    return Ok(());
                }
                continue;
            }
            let found = if read == BLOCK && Header::parse(&block).is_ok() {
                "another member: of several archives in one file only the first is read; make one shard of each, or download \
                 the shard again if it is one archive"
            } else {
                "other bytes: a part of the file was lost; download it again"
            };
            let end = self.header;
            let reason = format!(
                "expected only zeros after the block of zeros at byte {end}, which ends an archive, found {found}"
            );
            return Err(Damage { byte, reason });
        }
    }

    fn damaged(&self, reason: String) -> Damage {
        Damage { byte: self.header, reason }
    }

    fn unreadable(&self, reason: String) -> Damage {
        Damage { byte: self.input.offset(), reason }
    }

    fn cut(&self) -> Damage {
        self.damaged(
            "expected the data of a member, found the end of the file in it: it was cut; download it again"
                .to_owned(),
        )
    }
}

impl Extras {
    /// Adds the content of a header of this kind. None if it is not valid.
    fn add(&mut self, kind: u8, content: &[u8]) -> Option<()> {
        match kind {
            b'L' => self.name = Some(until_nul(content).to_vec()),
            b'K' => self.target = Some(until_nul(content).to_vec()),
            _ => self.pax.add(content)?,
        }
        Some(())
    }
}
