//! A group: members with one key, by their extensions, and the record that is made of the wanted ones.

use std::ops::Range;

use super::super::{Member as Shown, ReadOptions, Step, View, jsonl};
use super::archive::{Archive, Damage, Member};
use super::images::{self, FoundImage, GroupImages, Image};
use crate::format::projection::{Columns, ImageParts, Medium};

/// The first bytes of a member that tell text from other data, which has a NUL in them: images, audio, video, arrays.
const PROBED: u64 = 4 << 10;
/// Extensions of videos and sounds.
const UNSEEN: [&str; 21] = [
    "mp4", "m4v", "avi", "mov", "webm", "mkv", "flv", "mpg", "mpeg", "wmv", "mp4s", "videos", "wav", "flac",
    "mp3", "ogg", "opus", "m4a", "aac", "wavs", "audios",
];
/// The first bytes of a member that tell an image.
const IMAGE_HEAD: u64 = 32;
/// More of them are an error: their names are held.
const MOST_MEMBERS: usize = 10_000;
/// The most extensions in a message.
const MOST_SHOWN: usize = 8;
/// Memory that is kept between groups.
const KEPT_BYTES: usize = 1 << 20;

/// The members that are wanted.
pub(super) struct Wanted {
    /// The text: the member with this extension must be UTF-8.
    text: Option<String>,
    /// Also those with these extensions, or values of JSON in them.
    names: Vec<String>,
    /// And all others.
    all: bool,
    /// And those that are images.
    images: Option<ImageParts>,
    /// The most bytes of them.
    limit: u64,
}

/// How a wanted member is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Text,
    /// As JSON, of which all is wanted or only values inside.
    Json {
        whole: bool,
    },
    /// As text, unless its first bytes show that it is none.
    Either,
    /// As images, of which the headers are read.
    Images,
}

#[derive(Default)]
pub(super) struct Group {
    items: Vec<Item>,
    /// The content of those that were read.
    data: Vec<u8>,
    /// A member that is an image without the extension of one, and its format.
    unnamed: Option<(String, &'static str)>,
    /// Why the group cannot be used, and the byte of the shard if it is not the group's first.
    pub(super) fault: Option<(Option<u64>, String)>,
}

struct Item {
    extension: String,
    /// Where its content begins in the shard.
    offset: u64,
    size: u64,
    content: Content,
}

/// The content of a member, as the range of the group's data.
enum Content {
    Unread,
    Binary,
    Text(Range<usize>),
    /// Images, or why there are none.
    Images(Result<Vec<Image>, String>),
    Json {
        range: Range<usize>,
        whole: bool,
    },
}

impl Wanted {
    pub(super) fn new(options: &ReadOptions) -> Self {
        let limit = options.max_document_bytes;
        let projection = &options.projection;
        let paths: Vec<String> = projection
            .paths()
            .iter()
            .filter_map(|path| match path.first() {
                Some(Step::Key(key)) => Some(key.clone()),
                _ => None,
            })
            .collect();
        let (text, names) = match projection.columns() {
            Columns::Text(name) => (Some(name.clone()), paths),
            Columns::Named(names) => (None, [names.as_slice(), &paths].concat()),
            Columns::All => (None, paths),
        };
        let all = *projection.columns() == Columns::All;
        Self { text, names, all, images: projection.images().cloned(), limit }
    }

    /// All members, with the same limit.
    pub(super) fn all(&self) -> Self {
        Self { text: None, names: Vec::new(), all: true, images: None, limit: self.limit }
    }

    /// The names that are wanted by themselves.
    fn iter(&self) -> impl Iterator<Item = &String> {
        self.names.iter().chain(&self.text)
    }

    /// How a member is read. None: it is not wanted.
    fn reading(&self, extension: &str) -> Option<Reading> {
        if self.images.as_ref().is_some_and(|images| images.contain(extension)) {
            return Some(Reading::Images);
        }
        let whole = self.all || self.iter().any(|name| name == extension);
        if is_json(extension) {
            let inside = self.iter().any(|name| inside(name, extension).is_some());
            return (whole || inside).then_some(Reading::Json { whole });
        }
        match &self.text {
            Some(text) if text == extension => Some(Reading::Text),
            _ => whole.then_some(Reading::Either),
        }
    }

    /// The text, if nothing else is wanted.
    fn only_text(&self) -> Option<&str> {
        self.text.as_deref().filter(|_| self.names.is_empty())
    }
}

fn is_json(extension: &str) -> bool {
    extension.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case("json"))
}

/// Whether a member is a video or a sound, as `gristmill._shards.energon_files` lists them.
fn is_unseen(extension: &str) -> bool {
    let last = extension.rsplit('.').next().unwrap_or_default();
    UNSEEN.iter().any(|unseen| unseen.eq_ignore_ascii_case(last))
}

/// The rest of a name that leads into a member.
fn inside<'a>(name: &'a str, extension: &str) -> Option<&'a str> {
    name.strip_prefix(extension)?.strip_prefix('.')
}

impl Group {
    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.data.clear();
        self.data.shrink_to(KEPT_BYTES);
        self.unnamed = None;
        self.fault = None;
    }

    /// Adds a member, and reads its content if it is wanted.
    pub(super) fn add(
        &mut self,
        extension: Vec<u8>,
        member: &Member,
        wanted: &Wanted,
        archive: &mut Archive,
    ) -> Result<(), Damage> {
        if self.fault.is_some() {
            return Ok(());
        }
        let extension = String::from_utf8(extension)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        if self.items.iter().any(|other| other.extension == extension) {
            let found = format!("expected each extension once in a record, found {extension:?} twice");
            self.fault = Some((Some(member.start), found));
            return Ok(());
        }
        if self.items.len() == MOST_MEMBERS {
            let found = format!("expected at most {MOST_MEMBERS} members with one key, found more");
            self.fault = Some((None, found));
            return Ok(());
        }
        let offset = archive.offset();
        let reading = wanted.reading(&extension);
        if let (Some(_), Some(target)) = (reading, &member.target) {
            self.fault = Some((Some(member.start), link(&extension, target)));
            return Ok(());
        }
        let content = match reading {
            None => {
                self.look(&extension, wanted, archive)?;
                Content::Unread
            }
            Some(Reading::Images) => match &wanted.images {
                Some(parts) => Content::Images(images::read(archive, parts, member.size, wanted.limit)?),
                None => Content::Unread,
            },
            Some(reading) => self.read(&extension, reading, member.size, wanted, archive)?,
        };
        self.items.push(Item { extension, offset, size: member.size, content });
        Ok(())
    }

    fn read(
        &mut self,
        extension: &str,
        reading: Reading,
        size: u64,
        wanted: &Wanted,
        archive: &mut Archive,
    ) -> Result<Content, Damage> {
        let (start, limit) = (self.data.len(), wanted.limit);
        if reading == Reading::Either {
            archive.read(PROBED, &mut self.data)?;
            if self.data[start..].contains(&0) {
                self.note(extension, start, wanted);
                self.data.truncate(start);
                return Ok(Content::Binary);
            }
        }
        if (start as u64).saturating_add(size) > limit {
            let found = format!(
                "expected at most {limit} bytes of text and JSON in a record, found more up to {extension:?} of {size}; raise \
                 max_document_bytes= to read it"
            );
            self.fault = Some((None, found));
            return Ok(Content::Unread);
        }
        archive.read(u64::MAX, &mut self.data)?;
        let range = start..self.data.len();
        Ok(match reading {
            Reading::Json { whole } => Content::Json { range, whole },
            Reading::Text | Reading::Either | Reading::Images => Content::Text(range),
        })
    }

    /// Looks whether a member that is not wanted is an image.
    fn look(&mut self, extension: &str, wanted: &Wanted, archive: &mut Archive) -> Result<(), Damage> {
        if wanted.images.as_ref().is_some_and(|images| !images.are_named) {
            let start = self.data.len();
            archive.read(IMAGE_HEAD, &mut self.data)?;
            self.note(extension, start, wanted);
            self.data.truncate(start);
        }
        Ok(())
    }

    /// Notes the first member that is an image, though its extension, which nobody named, is none of images.
    fn note(&mut self, extension: &str, start: usize, wanted: &Wanted) {
        let Some(images) = wanted.images.as_ref().filter(|images| !images.are_named) else { return };
        if let (None, Some(kind)) = (&self.unnamed, (images.kind)(&self.data[start..])) {
            self.unnamed = Some((extension.to_owned(), kind));
        }
    }

    /// Why a group without an image may not be, if it may not: a text must not be trained on without its image.
    fn missing(&self, images: &ImageParts) -> Option<String> {
        let (one, kind) = (images.medium.one(), images.medium.kind());
        if images.are_named {
            let found = shown(self.items.iter().map(|item| &item.extension));
            let expected = shown(&images.extensions);
            return Some(format!(
                "expected {one} under {expected}, as fields[\"{kind}s\"] says, found {found}; add it, or leave \
                 \"{kind}s\" out of fields= to train on texts without {kind}s, too"
            ));
        }
        let (extension, format) = self.unnamed.as_ref()?;
        Some(match images.medium {
            Medium::Image => format!(
                "expected images under extensions of images, found the {format} image {extension:?} and no other; rename it, \
                 or name it in fields={{\"images\": [{extension:?}]}}"
            ),
            Medium::Video => format!(
                "expected a video, found none but the {format} image {extension:?}: images are not read beside videos, and \
                 the text would be trained on alone"
            ),
        })
    }

    /// The text, if nothing else is wanted and a member has it.
    pub(super) fn text(&self, wanted: &Wanted) -> Option<&[u8]> {
        let name = wanted.only_text()?;
        self.items.iter().find_map(|item| match &item.content {
            Content::Text(range) if item.extension == name => Some(&self.data[range.clone()]),
            _ => None,
        })
    }

    /// Writes the wanted members of the group as a JSON object. Others are null in it, so that a message can
    /// name them.
    pub(super) fn write(&self, wanted: &Wanted, line: &mut Vec<u8>) -> Result<(), String> {
        line.clear();
        line.shrink_to(KEPT_BYTES);
        for item in &self.items {
            write_key(&item.extension, line);
            match &item.content {
                Content::Binary => write_size(item.size, None, line),
                Content::Images(images) => {
                    let only =
                        images.as_ref().ok().and_then(|images| <&[Image; 1]>::try_from(&**images).ok());
                    let size = only.and_then(|[image]| image.size.as_ref().ok());
                    write_size(item.size, size.filter(|size| **size != (0, 0)), line);
                }
                Content::Text(range) => gristmill_json::write_string(self.utf8(item, range)?, line),
                Content::Json { range, whole: true } => {
                    line.extend_from_slice(self.json(item, range)?.json().as_bytes());
                }
                Content::Json { whole: false, .. } | Content::Unread => line.extend_from_slice(b"null"),
            }
        }
        for name in wanted.iter().filter(|name| self.items.iter().all(|item| item.extension != **name)) {
            let mut found = None;
            for item in &self.items {
                if let (Content::Json { range, .. }, Some(rest)) =
                    (&item.content, inside(name, &item.extension))
                {
                    found = found.or(self.json(item, range)?.inside(rest));
                }
            }
            if let Some(value) = found {
                write_key(name, line);
                line.extend_from_slice(value.json().as_bytes());
            }
        }
        if line.is_empty() {
            line.push(b'{');
        }
        line.push(b'}');
        Ok(())
    }

    /// The images of the group with this key, if they are wanted: in the natural order of their members' extensions, in
    /// which numbers count.
    pub(super) fn images(&self, wanted: &Wanted, key: &[u8]) -> Option<GroupImages> {
        let parts = wanted.images.as_ref()?;
        let images = |item: &&Item| matches!(item.content, Content::Images(_));
        let mut items: Vec<&Item> = self.items.iter().filter(images).collect();
        items.sort_by(|a, b| {
            natural(&a.extension).cmp(natural(&b.extension)).then(a.extension.cmp(&b.extension))
        });
        let missing = self.missing(parts).filter(|_| items.is_empty());
        let mut images = Vec::new();
        for Item { extension, offset, size, content } in items {
            let mut add = |offset, bytes, size| {
                images.push(FoundImage { member: extension.clone(), offset, bytes, size });
            };
            match content {
                Content::Images(Ok(list)) => {
                    for Image { offset, bytes, size } in list {
                        add(*offset, *bytes, size.clone());
                    }
                }
                Content::Images(Err(reason)) => add(*offset, *size, Err(reason.clone())),
                _ => {}
            }
        }
        let unseen = self.items.iter().map(|item| &item.extension).find(|extension| is_unseen(extension));
        let key = String::from_utf8_lossy(key).into_owned();
        Some(GroupImages { key, missing, unseen: unseen.cloned(), images })
    }

    /// All members, with those of the JSON objects among them. A binary one and JSON have the number of their bytes.
    pub(super) fn members(&self) -> Result<Vec<Shown>, String> {
        let mut shown = Vec::new();
        for item in &self.items {
            let mut show = |key: String, kind, characters| shown.push(Shown { key, kind, characters });
            let size = usize::try_from(item.size).unwrap_or(usize::MAX);
            let name = item.extension.clone();
            match &item.content {
                Content::Binary | Content::Unread | Content::Images(_) => show(name, "binary", size),
                Content::Text(range) => match std::str::from_utf8(&self.data[range.clone()]) {
                    Ok(text) => show(name, "string", text.chars().count()),
                    Err(_) => show(name, "not UTF-8", size),
                },
                Content::Json { range, .. } => {
                    let value = self.json(item, range)?;
                    show(name, value.kind(), size);
                    for Shown { key, kind, characters } in value.members() {
                        show(format!("{}.{key}", item.extension), kind, characters);
                    }
                }
            }
        }
        Ok(shown)
    }

    fn utf8(&self, item: &Item, range: &Range<usize>) -> Result<&str, String> {
        let bytes = &self.data[range.clone()];
        simdutf8::compat::from_utf8(bytes).map_err(|error| {
            let at = error.valid_up_to();
            format!(
                "expected UTF-8 in the member {:?}, found byte 0x{:02x} at byte {at} of it",
                item.extension, bytes[at]
            )
        })
    }

    fn json(&self, item: &Item, range: &Range<usize>) -> Result<View<'_>, String> {
        jsonl::value(&self.data[range.clone()])
            .map_err(|reason| format!("expected JSON in the member {:?}: {reason}", item.extension))
    }
}

/// Why a member is not read that is a link.
fn link(extension: &str, target: &[u8]) -> String {
    format!(
        "expected a file under {extension:?}, found a link to {:?}: links are not followed; write the tar with \
         --hard-dereference and --dereference",
        String::from_utf8_lossy(target)
    )
}

/// Extensions, for a message.
fn shown<'a>(extensions: impl IntoIterator<Item = &'a String>) -> String {
    let mut shown: Vec<String> = extensions.into_iter().map(|extension| format!("{extension:?}")).collect();
    let more = shown.len().saturating_sub(MOST_SHOWN);
    shown.truncate(MOST_SHOWN);
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    shown.join(", ")
}

/// The size of a member that is no text, and of an image its width and height.
fn write_size(bytes: u64, image: Option<&(u32, u32)>, line: &mut Vec<u8>) {
    let size = image.map(|(width, height)| format!(",\"width\":{width},\"height\":{height}"));
    line.extend_from_slice(format!("{{\"bytes\":{bytes}{}}}", size.unwrap_or_default()).as_bytes());
}

/// An extension in parts that compare as people number files: `2.jpg` before `10.jpg`.
fn natural(extension: &str) -> impl Iterator<Item = (bool, Option<u128>, &str)> {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    extension.as_bytes().chunk_by(move |a, b| is_digit(a) == is_digit(b)).map(|part| {
        let part = std::str::from_utf8(part).unwrap_or_default();
        let number: Option<u128> = part.parse().ok();
        (number.is_none(), number, part)
    })
}

/// Opens the object or continues with it, up to a value.
fn write_key(key: &str, line: &mut Vec<u8>) {
    line.push(if line.is_empty() { b'{' } else { b',' });
    gristmill_json::write_string(key, line);
    line.push(b':');
}
