//! Tar: a record is a group of neighbouring members whose names have the same key, as a sample of `WebDataset`.
//!
//! Only the members that are wanted are read, and only if they hold text or JSON; of images that are wanted the headers are,
//! and all others are passed over. The record is a JSON object with the members' extensions as keys, such as
//! `{"txt":"A cat.","json":{"width":640},"jpg":null}`.

mod archive;
mod group;
mod header;
mod images;
mod input;
mod name;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::reader::{Found, Reader, Unreadable};
use super::{AfterError, Member as Shown, Position, RawKind, RawRecord, ReadOptions};
use crate::codec::{Codec, Decoder};
use crate::store::{Piece, Source};
use archive::{Archive, Damage, Member};
use group::{Group, Wanted};
pub(super) use header::is_header;
pub use images::{FoundImage, GroupImages};

/// The key of the group that starts at a byte of an archive that is not compressed. Fails once `stop` is set.
pub fn key_at(source: Box<dyn Source>, byte: u64, stop: &Arc<AtomicBool>) -> Result<String, String> {
    let size = source.size();
    let mut archive = Archive::new(Decoder::new(Codec::None, source, 0, stop), Some(size));
    archive.pass_to(byte)?;
    let first = grouped(&mut archive).map_err(|damage| damage.reason)?;
    let first = first.filter(|first| first.member.start == byte);
    let first = first.ok_or("no record starts there")?;
    Ok(String::from_utf8_lossy(&first.key).into_owned())
}

/// Reads the groups of an archive.
pub(super) struct TarReader {
    archive: Archive,
    wanted: Wanted,
    /// Where the groups of the piece start.
    own: Range<u64>,
    /// Where the next group starts; of the first one, where the archive does.
    position: Position,
    /// The first member of the next group, whose data was not read.
    ahead: Option<Grouped>,
    group: Group,
    /// The key of that group.
    key: Vec<u8>,
    line: Vec<u8>,
    /// Its images, if they are wanted.
    images: Option<GroupImages>,
}

/// A member of a group.
struct Grouped {
    member: Member,
    key: Vec<u8>,
    extension: Vec<u8>,
}

impl TarReader {
    /// `size` is that of a file that is not compressed. Only such a file is read in pieces.
    pub(super) fn new(
        decoder: Decoder,
        size: Option<u64>,
        piece: Option<&Piece>,
        options: &Arc<ReadOptions>,
    ) -> Result<Self, String> {
        let mut reader = Self {
            archive: Archive::new(decoder, size),
            wanted: Wanted::new(options),
            own: piece.map_or(0..u64::MAX, |piece| piece.bytes.clone()),
            position: Position::default(),
            ahead: None,
            group: Group::default(),
            key: Vec::new(),
            line: Vec::new(),
            images: None,
        };
        if let Some(piece) = piece {
            reader.pass_before(piece.bytes.start).map_err(|error| {
                format!("record {}, byte {}: {}", error.position.record, error.position.byte, error.reason)
            })?;
        }
        Ok(reader)
    }

    /// Passes over the groups that start before an offset: where one starts is known only from the names before it.
    fn pass_before(&mut self, start: u64) -> Result<(), Unreadable> {
        while start > 0 && self.look_ahead()? && self.position.byte < start {
            self.pass()?;
        }
        Ok(())
    }

    /// The next group. None at the end.
    pub(super) fn next(&mut self) -> Result<Option<RawRecord<'_>>, Unreadable> {
        let Some(position) = self.read(false)? else { return Ok(None) };
        let Self { group, wanted, key, line, images, .. } = self;
        let unreadable = |reason| Unreadable { position, rest: AfterError::Readable, reason };
        if let Some(text) = group.text(wanted) {
            return Ok(Some(RawRecord::new(RawKind::Text, position, text)));
        }
        group.write(wanted, line).map_err(unreadable)?;
        *images = group.images(wanted, key);
        Ok(Some(RawRecord { images: images.as_ref(), ..RawRecord::new(RawKind::Line, position, line) }))
    }

    /// Reads the next group, of which some members are wanted or all. Returns its position; none at the end.
    fn read(&mut self, all: bool) -> Result<Option<Position>, Unreadable> {
        if !self.look_ahead()? {
            return self.archive.check_end().map(|()| None).map_err(|damage| lost(self.position, damage));
        }
        if self.position.byte >= self.own.end {
            return Ok(None);
        }
        let start = self.position;
        let wanted = if all { &Wanted::all(&self.wanted) } else { &self.wanted };
        self.group.clear();
        self.key.clear();
        self.key.extend(self.ahead.iter().flat_map(|first| &first.key));
        while let Some(Grouped { member, extension, .. }) = self.ahead.take_if(|next| next.key == self.key) {
            let added = self.group.add(extension, &member, wanted, &mut self.archive);
            added.map_err(|damage| lost(start, damage))?;
            self.ahead = grouped(&mut self.archive).map_err(|damage| lost(start, damage))?;
        }
        self.pass_to_ahead(start);
        if let Some((byte, reason)) = self.group.fault.take() {
            let position = Position { byte: byte.unwrap_or(start.byte), ..start };
            return Err(Unreadable { position, rest: AfterError::Readable, reason });
        }
        Ok(Some(start))
    }

    /// Passes over the next group, whose first member is known.
    fn pass(&mut self) -> Result<(), Unreadable> {
        let start = self.position;
        if let Some(first) = self.ahead.take() {
            loop {
                self.ahead = grouped(&mut self.archive).map_err(|damage| lost(start, damage))?;
                if self.ahead.as_ref().is_none_or(|next| next.key != first.key) {
                    break;
                }
            }
        }
        self.pass_to_ahead(start);
        Ok(())
    }

    /// Finds the first member of the next group. Returns whether there is one.
    fn look_ahead(&mut self) -> Result<bool, Unreadable> {
        if self.ahead.is_none() {
            self.ahead = grouped(&mut self.archive).map_err(|damage| lost(self.position, damage))?;
            self.position.byte = self.ahead.as_ref().map_or(self.position.byte, |first| first.member.start);
        }
        Ok(self.ahead.is_some())
    }

    /// The next position is that of the group after the one at `start`.
    fn pass_to_ahead(&mut self, start: Position) {
        let byte = self.ahead.as_ref().map_or(self.archive.header(), |next| next.member.start);
        self.position = Position { record: start.record + 1, byte };
    }
}

impl Reader for TarReader {
    /// Where the next group starts.
    fn position(&self) -> Position {
        self.position
    }

    /// The groups before it are not counted.
    fn skip_to(&mut self, target: Position) -> Result<Found, Unreadable> {
        if target == self.position {
            return Ok(Found::Target);
        }
        let passed = self.archive.offset().max(self.position.byte);
        if target.byte < passed || target.record < self.position.record {
            return Ok(Found::Elsewhere(format!("the first record of the piece starts at byte {passed}")));
        }
        let position = self.position;
        let lost = |reason| Unreadable { position, rest: AfterError::Lost, reason };
        self.ahead = None;
        if !self.archive.pass_to(target.byte).map_err(lost)? {
            return Ok(Found::Elsewhere(format!("the shard ends at byte {}", self.archive.offset())));
        }
        self.position = target;
        match self.look_ahead() {
            Ok(_) if self.position == target => Ok(Found::Target),
            Ok(_) => Ok(Found::Elsewhere("no record starts there".to_owned())),
            Err(error) => Ok(Found::Elsewhere(format!("there, {}", error.reason))),
        }
    }

    fn skip_records(&mut self, number: u64) -> Result<Found, Unreadable> {
        while self.position.record < number && self.look_ahead()? {
            self.pass()?;
        }
        Ok(Found::Target)
    }

    fn has_members(&self) -> bool {
        true
    }

    /// The members of the archive, and those of the JSON in them.
    fn next_members(&mut self) -> Result<Option<Vec<Shown>>, Unreadable> {
        let Some(position) = self.read(true)? else { return Ok(None) };
        let members = self.group.members();
        members.map(Some).map_err(|reason| Unreadable { position, rest: AfterError::Readable, reason })
    }
}

/// The next member of a group. None at the end.
fn grouped(archive: &mut Archive) -> Result<Option<Grouped>, Damage> {
    while let Some(member) = archive.next()? {
        // GNU tar writes a file that is named twice as a link to itself.
        let is_link = member.target.as_ref().is_some_and(|target| *target != member.name);
        if let Some((key, extension)) = name::divide(&member.name).filter(|_| member.is_file || is_link) {
            let (key, extension) = (key.to_vec(), extension.to_vec());
            return Ok(Some(Grouped { member, key, extension }));
        }
    }
    Ok(None)
}

/// The group at `start` and everything after it is lost.
fn lost(start: Position, Damage { byte, reason }: Damage) -> Unreadable {
    Unreadable { position: Position { byte, ..start }, rest: AfterError::Lost, reason }
}
