//! The images of a member: one, or those of a pickled list of `bytes`, as Megatron-Bridge writes several.
//!
//! Only headers are read, and everything else is passed over. Only the opcodes of a pickle that such a list needs are
//! known, and nothing is ever unpickled.

use super::archive::{Archive, Damage};
use crate::format::projection::ImageParts;

/// The first bytes that are read of an image; where its header is longer, eight times as many, and so on.
const FIRST_BYTES: u64 = 4 << 10;
/// More are not read: the thumbnails and profiles in front of a JPEG's size are far smaller.
const LONGEST_HEADER: u64 = 16 << 20;
/// The most images of a list.
const MOST_IMAGES: usize = 10_000;

/// The images of a group, whose pixels are read again later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupImages {
    /// The group's key.
    pub key: String,
    /// Why there may be no text without images, if there is none of them.
    pub missing: Option<String>,
    /// The first member that is a video or a sound.
    pub unseen: Option<String>,
    /// The images, in the natural order of their members.
    pub images: Vec<FoundImage>,
}

/// An image of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundImage {
    /// The extension of the member that it is in.
    pub member: String,
    /// The offset of its first byte in the shard.
    pub offset: u64,
    /// The number of its bytes.
    pub bytes: u64,
    /// Width and height, or what was expected and found in their place.
    pub size: Result<(u32, u32), String>,
}

/// An image of a member.
pub(super) struct Image {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Width and height, or what was expected and found in their place.
    pub(super) size: Result<(u32, u32), String>,
}

/// Reads the headers of a member's images. The error of a list is a message about the member.
pub(super) fn read(
    archive: &mut Archive,
    parts: &ImageParts,
    bytes: u64,
    limit: u64,
) -> Result<Result<Vec<Image>, String>, Damage> {
    let mut header = Vec::new();
    archive.read(1, &mut header)?;
    if header.first() == Some(&PROTO) {
        return Pickle { archive, parts, left: bytes - 1, limit, images: Vec::new() }.read();
    }
    read_image(archive, parts, bytes, limit, header).map(|image| Ok(vec![image]))
}

/// Reads the header of an image whose first bytes were read, and passes over the rest.
fn read_image(
    archive: &mut Archive,
    parts: &ImageParts,
    bytes: u64,
    limit: u64,
    mut header: Vec<u8>,
) -> Result<Image, Damage> {
    let offset = archive.offset() - header.len() as u64;
    let mut wanted = FIRST_BYTES;
    let size = loop {
        if bytes > limit {
            break Err(format!(
                "expected an image of at most {limit} bytes, found one of {bytes}; raise max_document_bytes= to read it"
            ));
        }
        let end = wanted.min(bytes);
        archive.read(end.saturating_sub(header.len() as u64), &mut header)?;
        match (parts.size)(&header) {
            Err(_) if end < bytes && wanted < LONGEST_HEADER => wanted *= 8,
            Err(reason) if !parts.are_named && !(parts.is_decoded)(&header) => {
                let advice = "or say which members are images in fields={\"images\": [...]}";
                break Err(format!("{reason}, {advice}"));
            }
            size => break size,
        }
    };
    archive.pass(bytes - header.len() as u64)?;
    Ok(Image { offset, bytes, size })
}

const PROTO: u8 = 0x80;
const FRAME: u8 = 0x95;
const EMPTY_LIST: u8 = b']';
const MARK: u8 = b'(';
const APPEND: u8 = b'a';
const APPENDS: u8 = b'e';
const STOP: u8 = b'.';
const SHORT_BINBYTES: u8 = b'C';
const BINBYTES: u8 = b'B';
const BINBYTES8: u8 = 0x8e;
const MEMOIZE: u8 = 0x94;
const BINPUT: u8 = b'q';
const LONG_BINPUT: u8 = b'r';

/// A pickle whose first byte was read.
struct Pickle<'a> {
    archive: &'a mut Archive,
    parts: &'a ImageParts,
    /// Bytes of the member that were not read.
    left: u64,
    limit: u64,
    images: Vec<Image>,
}

/// The opcodes that may follow in the pickle of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    List,
    /// An item by itself, a mark before several, or the end.
    Item,
    /// Items, after a mark.
    Items,
    /// The end of an item by itself.
    Append,
}

impl Pickle<'_> {
    fn read(mut self) -> Result<Result<Vec<Image>, String>, Damage> {
        let mut next = Next::List;
        // The version, of which the opcodes say more.
        if self.number(1)?.is_none() {
            return Ok(Err(Self::cut()));
        }
        loop {
            let Some(opcode) = self.number(1)? else { return Ok(Err(Self::cut())) };
            let operand = match opcode as u8 {
                SHORT_BINBYTES | BINPUT => 1,
                BINBYTES | LONG_BINPUT => 4,
                BINBYTES8 | FRAME => 8,
                _ => 0,
            };
            let Some(operand) = self.number(operand)? else { return Ok(Err(Self::cut())) };
            next = match (opcode as u8, next) {
                (FRAME | MEMOIZE | BINPUT | LONG_BINPUT, _) => next,
                (EMPTY_LIST, Next::List) | (APPENDS, Next::Items) | (APPEND, Next::Append) => Next::Item,
                (MARK, Next::Item) => Next::Items,
                (SHORT_BINBYTES | BINBYTES | BINBYTES8, Next::Item | Next::Items) => {
                    if operand > self.left {
                        return Ok(Err(Self::cut()));
                    }
                    if self.images.len() == MOST_IMAGES {
                        return Ok(Err(format!(
                            "expected a list of at most {MOST_IMAGES} images, found more"
                        )));
                    }
                    let image = read_image(self.archive, self.parts, operand, self.limit, Vec::new())?;
                    self.left -= operand;
                    self.images.push(image);
                    if next == Next::Item { Next::Append } else { Next::Items }
                }
                (STOP, Next::Item) => {
                    self.archive.pass(self.left)?;
                    return Ok(Ok(self.images));
                }
                (opcode, _) => {
                    return Ok(Err(format!(
                        "expected a pickled list of bytes, found another pickle, with the opcode 0x{opcode:02x}: nothing is \
                         unpickled; write each image as a member"
                    )));
                }
            };
        }
    }

    /// A number of so many bytes. None if the member ends before.
    fn number(&mut self, bytes: u64) -> Result<Option<u64>, Damage> {
        if bytes > self.left {
            return Ok(None);
        }
        let mut read = Vec::with_capacity(8);
        self.archive.read(bytes, &mut read)?;
        self.left -= bytes;
        Ok(Some(read.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))))
    }

    fn cut() -> String {
        "expected a pickled list of bytes, found its end before the list's: it was cut".to_owned()
    }
}
